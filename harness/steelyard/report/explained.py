"""Why one row takes longer than another, in a sentence and a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from steelyard.analyse.rows import Row, paired_ratio
from steelyard.analyse.run import Run
from steelyard.analyse.stats import Estimate
from steelyard.gate import explain
from steelyard.gate.difference import Difference

NEARLY: Final = 0.95
"""The share of a change from which it is all accounted for."""

LISTED: Final = 20
"""Differences that are listed."""


@dataclass(frozen=True, slots=True)
class Side:
    """A row with the run it is of, and how it was named."""

    name: str
    run: Run
    row: Row


def page(base: Side, head: Side) -> Iterator[RenderableType]:
    """Yield the sentence of a mode, then each difference with what it can account for."""
    ratio = paired_ratio(head.row.trials, base.row.trials)
    machines: Any = base.run.machine, head.run.machine
    found = explain.differences(base.row.trials, head.row.trials, machines)
    change = explain.change_of(ratio)
    ranked = explain.ranked(found, change)
    yield Text(f"\n{head.row.mode}: {sentence(ratio, ranked)}", style="bold")
    for one in ranked[:LISTED]:
        yield Text(f"  {explain.said(one, change)}")
    if len(ranked) > LISTED:
        yield Text(f"  and {len(ranked) - LISTED} more")


def sentence(ratio: Estimate | None, ranked: Sequence[Difference]) -> str:
    """Say how much longer B takes than A, what accounts for most of it, and what nothing does."""
    if ratio is None:
        return "B and A have no block in common, so that their times have no ratio."
    if not ratio.known:
        return (
            f"B takes {ratio.value:.3g} times what A takes in one pair of blocks, which "
            "says nothing of the ratio's error: measure both with more --blocks."
        )
    times = (
        f"B takes {ratio.value:.3g} times what A takes "
        f"({ratio.low:.3g} to {ratio.high:.3g})"
    )
    if ratio.low <= 1 <= ratio.high:
        return f"{times}, which is no change."
    change = explain.change_of(ratio)
    shares = [(explain.accounts(one, change) or 0.0, one) for one in ranked]
    share, first = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    if first is None or share <= 0:
        return (
            f"{times}; nothing that differs predicts it, so all of it is unexplained."
        )
    if share >= NEARLY:
        return f"{times}; {first.words} can account for all of it."
    left = 100 * (1 - share)
    return (
        f"{times}; {first.words} can account for {100 * share:.0f} % of it, and no single "
        f"difference for the other {left:.0f} %."
    )
