"""Two commits beside each other: what is asked, what is found, and both as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypedDict

from steelyard.analyse.verdict import Judgement, Policy
from steelyard.gate.decide import POLICY, Evidence
from steelyard.machine.decoding import made, parsed


@dataclass(frozen=True, slots=True)
class Pair:
    """Two commits to be measured beside each other on one machine."""

    base: str
    other: str
    policy: Policy = POLICY
    known: tuple[Mapping[str, Any], ...] = ()
    """Facts of code that need not be measured again."""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two commits that were."""

    judgement: Judgement | None = None
    evidence: Evidence = field(default_factory=Evidence)
    identical: bool = False
    """Whether they launch the same instructions; then nothing was measured."""
    failed: str = ""
    """Why there is no number."""
    unbuilt: bool = False
    """Whether that is because one of them does not build."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the work of the second commit says of itself."""
    changes: tuple[str, ...] = ()
    """What differs between the two, the likeliest cause first."""


class Compare(Protocol):
    """Measures commits beside each other, each pair on one machine."""

    @property
    def machines(self) -> Sequence[str]:
        """Return the machines, which are equal; each has a pair at a time."""
        ...

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison]:
        """Return what a gate says of each; of code that is known it measures nothing."""
        ...


def asked(pair: Pair) -> str:
    """Return what a machine has to know of a pair beside its commits, as JSON."""
    return json.dumps({"policy": asdict(pair.policy), "known": [*pair.known]})


def pair_of(base: str, other: str, text: str) -> Pair:
    """Return a pair of what `asked` said of it.

    Raises:
        Malformed: it did not.
    """
    asked = made(parsed(text), _Asked)
    return Pair(base, other, asked["policy"], tuple(asked["known"]))


class _Asked(TypedDict):
    policy: Policy
    known: list[dict[str, Any]]


def answered(found: Comparison) -> str:
    """Return a comparison as one line of JSON."""
    return json.dumps(asdict(found))


def comparison_of(text: str) -> Comparison:
    """Return a comparison of what `answered` said of it.

    Raises:
        Malformed: it did not.
    """
    return made(parsed(text), Comparison)
