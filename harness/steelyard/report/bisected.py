"""What a bisection found, in lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from steelyard.analyse.verdict import Judgement
from steelyard.fleet.bisect import Found, Outcome
from steelyard.machine import git
from steelyard.machine.printable import printable


def lines(found: Outcome, root: Path) -> Iterator[str]:
    """Yield the commit, what it changed, why, and how sure that is."""
    yield found.case
    if found.ends is not None:
        yield f"from end to end: {_change(found.ends)}"
    if found.found is not None:
        for commit in found.found.commits:
            yield f"  {_subject(root, commit)}"
        yield from _steps(found.found)
    if found.step is not None and found.step.judgement is not None:
        yield f"beside the commit before it: {_change(found.step.judgement)}"
        yield from (f"  {why}" for why in found.step.changes)
    if found.problem:
        yield f"not certain: {found.problem}"


def _steps(found: Found) -> Iterator[str]:
    measured = sum(one.measured for one in found.decisions)
    by_code = sum(not one.measured for one in found.decisions)
    sure = min(99.9, math.floor(1000 * (1 - found.wrong)) / 10)  # never certain
    yield (
        f"decided: {measured} commits by measuring, {by_code} without; all of them are "
        f"right with a probability of at least {sure:.1f} %"
    )
    for one in found.decisions:
        if one.side == "skipped":
            yield f"  skipped {one.commit[:10]}: {one.why.splitlines()[0]}"


def _change(one: Judgement) -> str:
    low, high = (f"{100 * (end - 1):+.2f}" for end in (one.ratio.low, one.ratio.high))
    word = "slower" if one.ratio.value > 1 else "faster"
    share = abs(one.ratio.value - 1)
    return f"{100 * share:.2f} % {word} [{low} to {high} %] in {one.blocks} blocks, {one.verdict}"


def _subject(root: Path, commit: str) -> str:
    said = git.output(root, "log", "-1", "--format=%h %cs %an: %s", commit)
    return printable(said or commit)
