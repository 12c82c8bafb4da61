"""Two commits beside each other: what is asked, what is found, and both as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, TypedDict

from steelyard.analyse import kinds
from steelyard.analyse.verdict import Judgement, Policy
from steelyard.errors import FINE, SteelyardError
from steelyard.fleet.jobs import BISECT, Job
from steelyard.fleet.record import Entry, State
from steelyard.gate.decide import POLICY, Evidence
from steelyard.machine.decoding import Malformed, made, parsed


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


EQUAL: Final = ("cpu", "cores", "gpu", "gpus")
"""The facts that machines have in common whose measurements one search may use."""


def equal(every: Mapping[str, Mapping[str, str]], on: str) -> tuple[str, ...]:
    """Return the names of the machines that ``--on`` selects.

    Raises:
        SteelyardError: there is none, or they are of several kinds.
    """
    found = {name: facts for name, facts in every.items() if kinds.accepts(on, facts)}
    if not found:
        said = ", ".join(every) or "none"
        raise SteelyardError(f"no machine is {on}; the cluster has {said}.")
    known = {
        kinds.text({name: facts[name] for name in EQUAL if name in facts})
        for facts in found.values()
    }
    if len(known) > 1:
        raise SteelyardError(
            f"--on {on} selects machines of {len(known)} kinds, {' | '.join(sorted(known))}: "
            "a bisection needs equal ones. Name one kind, or name=MACHINE."
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class OnMachines:
    """Compares commits in one case, on machines of a fleet."""

    machines: tuple[str, ...]
    case: str
    suites: tuple[str, ...]
    tip: str
    """The commit whose suites measure all of them."""
    options: tuple[str, ...]
    """Of ``steelyard bisect`` on each machine."""
    drive: Callable[[Sequence[Job]], Sequence[Entry]]
    """Drives jobs to their ends."""

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison]:
        """Measure each pair on its machine, all of them at once.

        Raises:
            SteelyardError: a machine cannot, such as for want of the case.
        """
        jobs = [self._job(number, one) for number, one in enumerate(pairs)]
        return [_answer(entry) for entry in self.drive(jobs)]

    def _job(self, number: int, pair: Pair) -> Job:
        words = (self.case, pair.base, pair.other, "--pair", asked(pair))
        on = f"name={pair.machine}"
        return Job(
            number, self.tip, self.suites, on, 0, BISECT, (*words, *self.options)
        )


def _answer(entry: Entry) -> Comparison:
    said = entry.log or ""
    if entry.state != State.DONE or entry.code != FINE:
        raise SteelyardError(f"{entry.machine or entry.job.on} cannot bisect: {said}")
    try:
        return comparison_of(said)
    except (Malformed, ValueError, TypeError) as error:
        raise SteelyardError(
            f"{entry.machine} answered what is no comparison: {error}. Is its steelyard "
            "the same version as this one?"
        ) from error
