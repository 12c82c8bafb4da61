"""Commits of a checkout beside each other on this machine, by the gate's own blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.trial import Trial
from steelyard.analyse.verdict import Policy
from steelyard.declare.config import Config
from steelyard.declare.plan import Settings
from steelyard.errors import SteelyardError, UnjudgedError
from steelyard.fleet.pairs import Comparison, Pair
from steelyard.gate import decide, explain, listing, worktrees
from steelyard.gate.blocks import Blocks, Point, same_code
from steelyard.gate.measure import measure
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.run import on_gpu, planned
from steelyard.gate.sides import Side
from steelyard.machine import git
from steelyard.store import session
from steelyard.store.session import Request
from steelyard.store.store import Store

TAG: Final = "bisect"
"""Runs of a bisection are tagged ``bisect/base`` and ``bisect/head``."""


def between(root: Path, good: str, bad: str) -> list[str]:
    """Return the commits after ``good`` up to ``bad`` along first parents, the oldest first.

    Raises:
        SteelyardError: ``good`` is none of the commits before ``bad``.
    """
    if good == bad:
        raise SteelyardError(
            f"GOOD and BAD are one commit, {good[:12]}: name an earlier one first."
        )
    line = ("rev-list", "--reverse", "--first-parent", "--ancestry-path")
    found = (git.output(root, *line, f"{good}..{bad}") or "").split()
    if not found:
        raise SteelyardError(
            f"GOOD {good[:12]} is not before BAD {bad[:12]}: name an earlier commit of "
            "the same branch first."
        )
    return found


@dataclass(frozen=True, slots=True)
class Commits:
    """Compares commits in one case and mode; every trial is stored."""

    head: Side
    """The checkout, whose suites commits are measured by that have other cases."""
    point: Point
    listed: listing.Listing
    """That case in the checkout's suites."""
    asked: Request
    chosen: Config
    how: Settings
    store: Store
    device: Mapping[str, Any]

    @classmethod
    @contextmanager
    def opened(
        cls, case: str, asked: Request, chosen: Config, how: Settings
    ) -> Iterator[Commits]:
        """Find the case in the checkout's suites, and open the store.

        Raises:
            SteelyardError: there is no such case, or more than one.
        """
        with Side.head().prepared(chosen.build) as head:
            listed = listing.of(head, replace(asked, pattern=case), how.timeout)
        points, left = planned(listed.cases, asked.modes)
        cases = {point.case.id for point in points}
        if len(cases) != 1:
            raise SteelyardError(
                f"CASE {case!r} is {len(cases)} cases{left and f' ({left})'}: "
                f"{', '.join(sorted(cases)[:5])}. Name one of them."
            )
        how, device = on_gpu(points[:1], how, chosen)
        with Store.open(chosen.store) as store:
            given = asked, chosen, how, store, device
            yield cls(head, points[0], listed, *given)

    @property
    def machines(self) -> tuple[str]:
        """Return this one, without a name."""
        return ("",)

    def __call__(self, pairs: Sequence[Pair]) -> list[Comparison]:
        """Measure pairs of commits one after the other."""
        return [self._pair(one) for one in pairs]

    def _pair(self, pair: Pair) -> Comparison:
        try:
            return self._measured(pair)
        except UnjudgedError as error:
            return Comparison(failed=str(error), unbuilt=True)

    def _measured(self, pair: Pair) -> Comparison:
        """Measure two commits beside each other, unless their code says enough."""
        with self._side(pair.base) as old, self._side(pair.other) as new:
            sides = {BASE: old, HEAD: replace(new, name=HEAD).beside(old)}
            runs = {
                name: replace(
                    session.begun(asdict(self.how), [f"{TAG}/{name}"], self.device),
                    commit=side.commit,
                    dirty=False,
                )
                for name, side in sides.items()
            }
            trials: dict[str, list[Trial]] = {BASE: [], HEAD: []}
            with session.recorded(self.store, runs) as keep:

                def take(side: str, trial: Trial) -> None:
                    trials[side].append(trial)
                    keep(side, trial)

                blocks = Blocks(sides[BASE], sides[HEAD], self.how, take)
                found = self._compared(blocks, pair.policy, pair.known)
        if found.judgement is None:
            return found
        machines = (runs[BASE].machine, runs[HEAD].machine)
        files = worktrees.changed(self.head.root, f"{old.commit}..{new.commit}")
        ratio = found.judgement.ratio
        why = explain.explain(trials[BASE], trials[HEAD], ratio, machines, files)
        return replace(found, changes=why)

    @contextmanager
    def _side(self, commit: str) -> Iterator[Side]:
        places, build = self.asked.places, self.chosen.build
        with Side.of_ref(commit, places, build, files=self.listed.files) as side:
            if self._own_suites(side) != listing.definitions(side, self.listed.cases):
                side.install_suites()
            yield side

    def _own_suites(self, side: Side) -> dict[str, str]:
        """Return what the case measures by a commit's own suites, if they have it."""
        asked = replace(self.asked, pattern=self.point.case.id)
        try:
            own = listing.known(side, asked, self.how.timeout)
        except UnjudgedError:
            return {}
        return listing.definitions(side, own)

    def _compared(
        self, blocks: Blocks, policy: Policy, known: Sequence[Mapping[str, Any]]
    ) -> Comparison:
        key = self.point.key
        looked = blocks.look(self.point)
        if looked.failed:
            return Comparison(failed="; ".join(looked.failed.values()))
        facts = looked.facts[HEAD]
        if self.point.mode.quantity in looked.identical:
            return Comparison(identical=True, facts=facts)
        if any(same_code(one, facts) for one in known):
            return Comparison(facts=facts)
        found = measure(blocks, [self.point], policy)
        if failed := found.failed.get(key):
            return Comparison(failed="; ".join(failed.values()), facts=facts)
        judgement, _ = decide.judge(found.times, found.cycles, policy)[key]
        return Comparison(judgement, found.times[key], facts=facts)
