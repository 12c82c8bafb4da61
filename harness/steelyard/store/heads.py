"""What runs are listed and found by: a few short columns, and none of their documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def of(row: Mapping[Any, Any]) -> Head:
    """Return the head of a row with the columns `schema.HEAD`.

    Raises:
        Malformed: its tags are no list of words.
    """
    tags = parsed(row["tags"])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Malformed(f"tags is {str(row['tags'])[:40]!r}, expected a list")
    return Head(**{**row, "tags": tuple(tags)})
