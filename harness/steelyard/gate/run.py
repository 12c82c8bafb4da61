"""The gate lane from a baseline to an outcome: what `steelyard gate` does.

A baseline that is a commit or a capsule is measured again beside head. Every trial is
stored as it arrives, in a run for each side; an end at any moment leaves what was finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from steelyard import units
from steelyard.analyse.trial import Run, Trial
from steelyard.analyse.verdict import CHANGED, Policy, Verdict
from steelyard.declare import mode as modes
from steelyard.declare.benchmark import Case
from steelyard.declare.config import OFF, Config
from steelyard.declare.plan import PlannedTrial, Settings, require_able
from steelyard.errors import SteelyardError
from steelyard.gate import (
    doubted,
    explain,
    findings,
    listing,
    policy,
    policy_file,
    static,
    stored,
    worktrees,
)
from steelyard.gate.blocks import Blocks, Point
from steelyard.gate.measure import measure
from steelyard.gate.outcome import (
    BASE,
    HEAD,
    Calibration,
    Finding,
    Outcome,
    StaticChange,
)
from steelyard.gate.pairs import Apart, Pair
from steelyard.gate.sides import Side
from steelyard.gate.worktrees import commit_of, name_of
from steelyard.machine import facts as machine
from steelyard.machine import lock
from steelyard.prepare import capsule_work
from steelyard.process import scratch
from steelyard.store import session
from steelyard.store.capsules import Measured
from steelyard.store.session import Request
from steelyard.store.store import Store

TAG = "gate"
"""Runs of a gate are tagged ``gate/base`` and ``gate/head``."""


Say = Callable[[str], None]


def gate(
    baseline: str,
    asked: Request,
    chosen: Config,
    how: Settings,
    say: Say,
    *,
    sealed: Measured | None = None,
    ref: str = "",
) -> Outcome:
    """Judge head by a baseline; what stands against that is the outcome's problem.

    ``say`` is told what is under way. ``sealed`` is the capsule that the baseline names,
    whose code may run. Head is what lies here, or the commit ``ref``.
    """
    here = Side.head()
    if sealed:
        asked = replace(asked, pattern=sealed.case, modes=asked.modes or sealed.modes)
        how = replace(how, seed=sealed.capsule.manifest["seed"])
    outcome = Outcome(baseline, ref or judged(here))
    try:
        rules = policy_file.load()
        with _prepared(here, ref, asked.places, chosen.build, say) as (head, places):
            listed = listing.of(head, replace(asked, places=places), how.timeout)
            points, left = planned(listed.cases, asked.modes)
            how, device = on_gpu(points, how, chosen)
            with lock.measuring(asked.wait), Store.open(chosen.store) as store:
                keys = [(point.case.id, str(point.mode)) for point in points]
                lane = _Lane(
                    *(baseline, asked, chosen),
                    how,
                    store,
                    device,
                    rules,
                    rules.policy(keys),
                    say,
                )
                commit = commit_of(baseline, head.root)
                base = None
                if not (commit or sealed):
                    base = stored.find(store, baseline, head.root)
                known = base.uid if base else commit or ""
                named = name_of(baseline, sealed.capsule.digest if sealed else known)
                outcome = replace(outcome, baseline=named)
                if left:
                    say(f"left out: {left}")
                if sealed:
                    outcome = lane.against_capsule(outcome, head, points, sealed)
                elif base is None:
                    outcome = lane.against_commit(outcome, head, points, listed)
                else:
                    outcome = lane.against_run(outcome, head, points, base)
    except SteelyardError as error:
        return replace(outcome, problem=error)
    return policy.apply(outcome, rules)


@contextmanager
def _prepared(
    here: Side, ref: str, places: Sequence[str], build: str, say: Say
) -> Iterator[tuple[Side, Sequence[str]]]:
    """Give head's side and its suites: this checkout's, or a commit's own."""
    if not ref:
        with here.prepared(build, say) as head:
            yield head, places
        return
    with Side.of_ref(ref, places, build, say=say) as side:
        yield replace(side, name=HEAD), listing.places_of(side, places)


def judged(head: Side) -> str:
    """Return what is judged: a commit, and whether it was changed since."""
    dirty = machine.describe(head.root)["versions"].get("dirty") is True
    return (head.commit[:12] or "this folder") + " with changes" * dirty


def planned(found: Sequence[Case], wanted: Sequence[str]) -> tuple[list[Point], str]:
    """Return what is compared; and a sentence on what is left out for want of a GPU.

    Raises:
        SteelyardError: a mode is unknown, or nothing can run here.
    """
    chosen = modes.parse_all(wanted)
    cases, left = require_able(found)
    return [Point(case, m) for case in cases for m in chosen or case.modes()], left


def on_gpu(
    points: Sequence[Point], how: Settings, chosen: Config
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with a GPU, and its facts, as `session.on_gpu` for points."""
    turns = [PlannedTrial(0, 0, point.case, point.mode) for point in points]
    return session.on_gpu(turns, how, replace(chosen, peaks=OFF))


@dataclass(frozen=True, slots=True)
class _Lane:
    """One gate under way."""

    baseline: str
    asked: Request
    chosen: Config
    how: Settings
    store: Store
    device: Mapping[str, Any]
    rules: policy.Rules
    policy: Policy
    say: Say

    def against_commit(
        self,
        outcome: Outcome,
        head: Side,
        points: Sequence[Point],
        listed: listing.Listing,
    ) -> Outcome:
        """Measure a commit and head in turn."""
        asked = self.asked
        with ExitStack() as opened:
            self.say(f"base {self.baseline}: a worktree of its own")
            base = opened.enter_context(
                Side.of_ref(
                    self.baseline,
                    asked.places,
                    self.chosen.build,
                    files=listed.files,
                    say=self.say,
                )
            )
            own = listing.known(base, asked, self.how.timeout)
            known = listing.definitions(base, own)
            defined = listing.definitions(base, listed.cases)
            kept = {case for case, said in defined.items() if known.get(case) == said}
            alike = [point for point in points if point.case.id in kept]
            rest = [point for point in points if point.case.id not in kept]
            share = len(alike) / len(points)
            sides = base, head.beside(base)
            with self._recorded(*sides) as (runs_of, keep):
                turn = partial(self._in_turn, *sides, known=known, keep=keep)
                found = turn(alike, share=share)
                if rest:  # new or others: base measures head's
                    blind = listing.of_changed_suites(base, listed)
                    base.install_suites()
                    more = turn(rest, share=1 - share)
                    found += tuple(findings.without(more, blind, known))
        ids = listed.every | {point.case.id for point in points}
        found += tuple(findings.vanished(known, ids))
        if not asked.modes:
            found += tuple(findings.vanished_modes(own, listed.cases))
        locked = (head.root / static.FILE).exists()  # a project may keep none
        code = static.check(head.root, base.commit) if locked else static.Static()
        notes = [*_redefined(defined, known), *code.notes]
        if code.problem is not None:
            notes.insert(0, f"the static lane says nothing: {code.problem}")
        files = worktrees.changed(head.root, base.commit)
        if head.own is None and (old := worktrees.stale(head.root, files)):
            notes.insert(0, old)
        return replace(
            self._with_findings(outcome, found, runs_of, files, code.changes),
            static=code.changes,
            notes=(*outcome.notes, *notes),
        )

    def against_capsule(
        self, outcome: Outcome, head: Side, points: Sequence[Point], sealed: Measured
    ) -> Outcome:
        """Measure a capsule and head in turn: nothing is checked out or built."""
        with scratch.folder() as home:
            place = capsule_work.unpack(sealed.capsule, Path(home)).path
            base = Side(
                BASE,
                Path(home),
                environment=head.environment,
                commit=sealed.run.commit,
                suites=tuple((p.case.benchmark.path, place) for p in points),
            )
            known = {sealed.case}
            with self._recorded(base, head) as (runs_of, keep):
                found = self._in_turn(
                    base, head, points, known=known, keep=keep, start=Apart
                )
        files = worktrees.changed(head.root, base.commit)
        return self._with_findings(outcome, found, runs_of, files)

    @contextmanager
    def _recorded(
        self, *sides: Side
    ) -> Iterator[tuple[dict[str, Run], Callable[[str, Trial], None]]]:
        """Give a stored run for each side, and what keeps a trial in it."""
        made = {side.name: self._run(side) for side in sides}
        with session.recorded(self.store, made) as keep:
            yield made, keep

    def _in_turn(
        self,
        base: Side,
        head: Side,
        points: Sequence[Point],
        *,
        known: Collection[str],
        keep: Callable[[str, Trial], None],
        share: float = 1.0,
        start: Callable[[Mapping[str, Side]], Pair] = Pair,
    ) -> tuple[Finding, ...]:
        """Measure both sides until all is decided, in a share of the budget.

        ``known`` are the cases of base.
        """
        began, done = monotonic(), 0
        budget = share * self.chosen.budget if self.chosen.budget else None
        deadline = began + budget if budget is not None else None

        def on_block(number: int, count: int, rest: int) -> None:
            nonlocal done
            left = units.left(monotonic() - began, done, rest, budget)
            done += count
            self.say(
                f"block {number + 1}: {count} of {len(points)} cases undecided{left}"
            )

        measured = measure(
            Blocks(base, head, self.how, keep, start),
            points,
            self.policy,
            noisy=_noisy(self._calibration(), self.policy),
            identity=True,
            deadline=deadline,
            on_block=on_block,
        )
        return findings.of(points, measured, known, self.policy)

    def _with_findings(
        self,
        outcome: Outcome,
        found: Sequence[Finding],
        made: Mapping[str, Run],
        files: Sequence[str],
        static: Sequence[StaticChange] = (),
    ) -> Outcome:
        """Return an outcome with its findings and what may explain them."""
        return replace(
            outcome,
            findings=tuple(self._explained(one, made, files, static) for one in found),
            calibration=self._calibration(),
            runs={side: run.uid for side, run in made.items()},
        )

    def against_run(
        self, outcome: Outcome, head: Side, points: Sequence[Point], base: Run
    ) -> Outcome:
        """Measure head alone and hold it against stored numbers."""
        new = self._run(head)
        stored.require_comparable(base, new, self.store)
        with session.recorded(self.store, {HEAD: new}) as keep:
            stored.measure(head, points, self.how, keep, self.say)
        found = stored.findings(self.store, base, new, points)
        files = worktrees.changed(head.root, base.commit)
        reported = self._with_findings(
            outcome, tuple(found), {BASE: base, HEAD: new}, files
        )
        return replace(reported, notes=(*outcome.notes, stored.WEAK))

    def _run(self, side: Side) -> Run:
        tags = (f"{TAG}/{side.name}",)
        made = session.begun(asdict(self.how), tags, self.device)
        if side.name == HEAD:
            return made
        return replace(made, commit=side.commit, dirty=False)

    def _calibration(self) -> Calibration | None:
        """Return what the last self-test of this machine found."""
        from steelyard.gate import calibration

        return calibration.latest(self.store, machine.describe())

    def _explained(
        self,
        one: Finding,
        made: Mapping[str, Run],
        files: Sequence[str],
        static: Sequence[StaticChange] = (),
    ) -> Finding:
        """Say what doubts there are, and what may have made a case slower or faster."""
        if one.verdict in {None, Verdict.IDENTICAL_CODE} and not one.new:
            return one
        base, head = (
            [
                trial
                for trial in self.store.trials(made[side].uid, one.case)
                if trial.mode == one.mode
            ]
            for side in (BASE, HEAD)
        )
        one = doubted.of(one, base, head, self.rules.doubts(one.case, one.mode))
        if one.verdict not in CHANGED or one.judgement is None:
            return one
        machines = made[BASE].machine, made[HEAD].machine
        ratio = one.judgement.ratio
        why = explain.explain(base, head, ratio, machines, files, static=static)
        return replace(one, changes=why)


def _redefined(head: Mapping[str, str], base: Mapping[str, str]) -> Iterator[str]:
    """Say which cases measure something else than the base's of the same ids."""
    others = [case for case, said in head.items() if base.get(case, said) != said]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield (
            f"{others[0]}{more}: the benchmark, its data, modes or file changed; both "
            "sides were measured as the checkout has it"
        )


def _noisy(calibration: Calibration | None, policy: Policy) -> set[str]:
    """Return the keys of points whose changes the gate is known not to tell."""
    if calibration is None:
        return set()
    known = calibration.detectable.items()
    sizes = {f"{case} {mode}": share for (case, mode), share in known}
    return {key for key, share in sizes.items() if share > policy.of(key).tolerance}
