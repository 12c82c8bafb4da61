"""Which of some commits changed a case: a search in halves or more parts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Side(StrEnum):
    """Which end of the range a commit is like."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"
    """It does not build, or was not decided: the search goes around it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is said of one commit."""

    commit: str
    side: Side
    why: str
    """Measured and how, or why not."""
    measured: bool = False
    wrong: float = 0.0
    """The chance of a measurement like this one if the commit is of the other side."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    commits: tuple[str, ...]
    """One of them changed the case, the oldest first; one alone where nothing between
    was skipped."""
    before: str
    """The last commit before these."""
    decisions: tuple[Decision, ...]
    """In the order they were made."""

    @property
    def wrong(self) -> float:
        """The chance, at most, that one of the decisions was wrong."""
        return min(1.0, sum(one.wrong for one in self.decisions))


def search(
    good: str,
    commits: Sequence[str],
    decide: Callable[[Sequence[str]], Sequence[Decision]],
    width: int = 1,
) -> Found:
    """Return the first of ``commits`` that is like the last of them, and not like ``good``.

    They stand from the oldest to the newest. Of those that are left so many are decided
    at once as ``width`` says, which part them evenly. Where they contradict each other
    the oldest bad one counts.
    """
    low, high = -1, len(commits) - 1
    made: list[Decision] = []
    skipped: set[int] = set()
    while left := [at for at in range(low + 1, high) if at not in skipped]:
        chosen = _parting(left, low, high, width)
        found = decide([commits[at] for at in chosen])
        made += found
        sides = {at: one.side for at, one in zip(chosen, found, strict=True)}
        high = min([high, *(at for at, side in sides.items() if side is Side.BAD)])
        below = [at for at, side in sides.items() if side is Side.GOOD and at < high]
        low = max([low, *below])
        skipped |= {at for at, side in sides.items() if side is Side.SKIPPED}
    before = commits[low] if low >= 0 else good
    return Found(tuple(commits[low + 1 : high + 1]), before, tuple(made))


def _parting(left: Sequence[int], low: int, high: int, width: int) -> list[int]:
    """Return those that are nearest to parting what lies between two ends evenly."""
    free, chosen = list(left), []
    for part in range(1, min(width, len(left)) + 1):
        aim = low + part * (high - low) / (width + 1)
        nearest = min(
            range(len(free)), key=[abs(one - aim) for one in free].__getitem__
        )
        chosen.append(free.pop(nearest))
    return sorted(chosen)
