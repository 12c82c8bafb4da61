"""Which of some commits changed a case: a binary search that may skip. Pure."""

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
    good: str, commits: Sequence[str], decide: Callable[[str], Decision]
) -> Found:
    """Return the first of ``commits`` that is like the last of them, and not like ``good``.

    They stand from the oldest to the newest. Of those that are left the one nearest to
    the middle is decided next.
    """
    low, high = -1, len(commits) - 1
    made: list[Decision] = []
    skipped: set[int] = set()
    while left := [at for at in range(low + 1, high) if at not in skipped]:
        at = min(left, key=lambda one: abs(2 * one - low - high))
        decision = decide(commits[at])
        made.append(decision)
        if decision.side is Side.GOOD:
            low = at
        elif decision.side is Side.BAD:
            high = at
        else:
            skipped.add(at)
    before = commits[low] if low >= 0 else good
    return Found(tuple(commits[low + 1 : high + 1]), before, tuple(made))
