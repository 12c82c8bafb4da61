"""What a self-test found, as tables in a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from steelyard.analyse.sizes import POWER
from steelyard.analyse.verdict import Policy
from steelyard.gate.calibration import Counts, Tally, share
from steelyard.report.grid import sheet_of


def page(tally: Tally, policy: Policy) -> Iterator[RenderableType]:
    """Yield the false alarms, what was found of what was injected, and each case."""
    yield Text(alarms(tally))
    if tally.injected:
        yield from ("", _power(tally, policy))
    if tally.blocks:
        yield from ("", _cases(tally, policy))
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


def _power(tally: Tally, policy: Policy) -> RenderableType:
    every, fit = tally.found(), tally.found(tally.detectable(policy))
    lines = []
    for size, counts in every.items():
        rate = share(*counts)
        interval = f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %"
        right = _counted(fit.get(size, (0, 0)))
        lines.append((f"{size:+.0%}", *_counted(counts), interval, *right))
    names = ("found", "", "95 %", "of rows that should show it", "")
    return sheet_of(("injected", *names), lines, right=names)


def _counted(counts: Counts) -> Sequence[str]:
    hits, of = counts
    return (f"{hits} of {of}", f"{100 * hits / of:.0f} %") if of else ("-", "")


def _cases(tally: Tally, policy: Policy) -> RenderableType:
    known = tally.detectable(policy)
    order = sorted(tally.blocks.items(), key=lambda one: -known.get(one[0], math.inf))
    lines = []
    for key, blocks in order:
        noise = f"{100 * statistics.stdev(blocks):.2f} %" if len(blocks) > 1 else "-"
        least = f"{100 * known[key]:.1f} %" if key in known else "too few blocks"
        lines.append((*key, str(len(blocks)), noise, least))
    names = ("blocks", "noise of one", "smallest change")
    titles = ("case", "mode", *names)
    shown = sheet_of(titles, lines, names=2, right=names, folds={"case"})
    caption = (
        "smallest change: the smallest detectable change, a slowdown that is found in "
        f"{100 * POWER:.0f} % of cases"
    )
    return Group(shown, Text(caption, style="dim italic"))
