"""What runs are listed and found by: a few short columns, and none of their documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from steelyard.machine.decoding import Malformed, parsed


@dataclass(frozen=True, slots=True)
class Head:
    """A stored run without what it says of itself at length."""

    uid: str
    started: str
    finished: str | None
    state: str
    """As stored: one that says ``running`` may be gone."""
    commit: str
    dirty: bool | None
    tags: tuple[str, ...]
    number: int
    """In the order they were stored."""
    trials: int
    """How many it has, or had before it was pruned."""
    chain: str
    """Of its trials' digests, the exclusive or."""
    kind: str
    """Of its machine: see `kinds`."""
    place: str
    """Which machine it was."""
    pruned: str | None
    """When its trials were removed; what they came to is still there."""

    @property
    def short(self) -> str:
        """The id as people type it."""
        return self.uid[:8]


def of(values: Sequence[Any]) -> Head:
    """Return the head of the values of the columns `schema.HEAD`.

    Raises:
        Malformed: its tags are no list of words.
    """
    every = list(values)
    every[TAGS] = _tags(every[TAGS])
    return Head(*every)


TAGS: Final = [field.name for field in fields(Head)].index("tags")


@cache
def _tags(text: str) -> tuple[str, ...]:
    """Read what thousands of runs have in common."""
    tags = parsed(text)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Malformed(f"tags is {text[:40]!r}, expected a list")
    return tuple(tags)
