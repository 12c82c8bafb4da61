"""Commits beside each other on machines of a fleet, each pair in a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from steelyard.analyse import kinds
from steelyard.errors import FINE, SteelyardError
from steelyard.fleet.jobs import BISECT, Job
from steelyard.fleet.pairs import Comparison, Pair, asked, comparison_of
from steelyard.fleet.record import Entry, State
from steelyard.machine.decoding import Malformed

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
class Elsewhere:
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
