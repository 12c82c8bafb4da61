"""The table of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from steelyard.doctor import Finding

STYLES = {"ok": "green", "doubt": "yellow", "unknown": "dim"}


def table(found: Sequence[Finding]) -> Table:
    """Return a line a finding: what was seen, what it does, what to do."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("topic", "seen", "verdict", "what it does to numbers", "advice"):
        made.add_column(name, overflow="fold")
    for one in found:
        verdict = Text(one.verdict, style=STYLES[one.verdict])
        cells = [Text(one.topic), Text(one.seen), verdict, Text(one.why)]
        made.add_row(*cells, Text(one.advice))
    return made
