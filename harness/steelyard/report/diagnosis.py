"""What `doctor` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from steelyard.machine.doctor import Finding

STYLES = {"ok": "green", "doubt": "yellow", "unknown": "dim", "none": "dim"}


def page(found: Sequence[Finding]) -> Table:
    """Return a paragraph a finding behind its verdict."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for one in found:
        words = Text(f"{one.topic}: {one.seen}")
        rest = "; ".join(filter(None, [one.why, one.advice]))
        if rest:
            words.append(f"\n{rest}", style="dim")
        made.add_row(Text(one.verdict, style=STYLES[one.verdict]), words)
    return made
