"""What a self-test found, as tables in a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steelyard.analyse.sizes import POWER
from steelyard.analyse.verdict import Policy
from steelyard.gate.calibration import Counts, Tally, share
from steelyard.report.tables import ABOVE


def page(tally: Tally, policy: Policy) -> Iterator[RenderableType]:
    """Yield the false alarms, what was found of what was injected, and each case."""
    yield Text(alarms(tally))
    if tally.planted:
        yield Padding(_power(tally, policy), ABOVE, expand=False)
    if tally.blocks:
        yield Padding(_cases(tally, policy), ABOVE, expand=False)
    for (case, mode), why in sorted(tally.failed.items()):
        yield Text(f"failed: {why or case} ({mode})", style="red")


def alarms(tally: Tally) -> str:
    """Return the sentence on head against itself."""
    count = len(tally.same)
    if not count:
        return "nothing was compared to its end; give it more --minutes"
    cases = len({key for key, _, _ in tally.same})
    rate = share(len(tally.alarms), count)
    blocks = statistics.fmean(blocks for _, _, blocks in tally.same)
    text = (
        f"head against itself: {count} comparisons of {cases} rows, "
        f"{len(tally.alarms)} false alarms ({100 * rate.value:.2f} %, 95 %: "
        f"{100 * rate.low:.2f} to {100 * rate.high:.2f} %), {tally.undecided} not "
        f"decided, {blocks:.1f} blocks each"
    )
    return "\n".join(
        [text, *(f"  {case} {m}: {v}" for (case, m), v, _ in tally.alarms)]
    )


def _power(tally: Tally, policy: Policy) -> Table:
    table = _table("planted", "found", "", "95 %", "of rows that should show it", "")
    every, fit = tally.found(), tally.found(tally.detectable(policy))
    for size, counts in every.items():
        rate = share(*counts)
        table.add_row(
            f"{size:+.0%}",
            *_counted(counts),
            f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %",
            *_counted(fit.get(size, (0, 0))),
        )
    return table


def _counted(counts: Counts) -> Sequence[str]:
    hits, of = counts
    return (f"{hits} of {of}", f"{100 * hits / of:.0f} %") if of else ("-", "")


def _cases(tally: Tally, policy: Policy) -> Table:
    known = tally.detectable(policy)
    table = _table("case", "mode", "blocks", "noise of one", "smallest change")
    table.caption = Text(
        "smallest change: the smallest detectable change, a slowdown that is found in "
        f"{100 * POWER:.0f} % of cases"
    )
    table.caption_justify = "left"
    order = sorted(tally.blocks.items(), key=lambda one: -known.get(one[0], math.inf))
    for key, blocks in order:
        noise = f"{100 * statistics.stdev(blocks):.2f} %" if len(blocks) > 1 else "-"
        least = f"{100 * known[key]:.1f} %" if key in known else "too few blocks"
        table.add_row(*map(Text, key), str(len(blocks)), noise, least)
    return table


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(names):
        text = place < 1 or name == "mode"
        justify: Literal["left", "right"] = "left" if text else "right"
        table.add_column(name, justify=justify, no_wrap=not text, overflow="fold")
    return table
