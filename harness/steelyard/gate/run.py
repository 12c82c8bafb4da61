"""The gate lane from a baseline to an outcome: what `steelyard gate` does.

A baseline that is a commit is measured again beside head. Every trial is stored as it
arrives, in a run for each side; an end at any moment leaves what was finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

from steelyard.analyse.run import Run
from steelyard.analyse.trial import Trial
from steelyard.analyse.verdict import CHANGED, Policy, Verdict
from steelyard.declare import mode as modes
from steelyard.declare.benchmark import Case
from steelyard.declare.config import Config
from steelyard.declare.plan import Turn, able
from steelyard.declare.settings import Settings
from steelyard.errors import SteelyardError
from steelyard.gate import (
    changed,
    doubted,
    explain,
    findings,
    listing,
    policy,
    policy_file,
    static,
    stored,
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
from steelyard.gate.sides import Side
from steelyard.gate.worktrees import commit_of, name_of
from steelyard.machine import facts as machine
from steelyard.machine import lock, writer
from steelyard.store import run as runs
from steelyard.store import session
from steelyard.store.store import Store

TAG = "gate"
"""Runs of a gate are tagged ``gate/base`` and ``gate/head``."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    baseline: str
    places: Sequence[str]
    pattern: str | None = None
    overrides: Sequence[str] = ()
    modes: Sequence[str] = ()
    wait: float = 0.0


Say = Callable[[str], None]


def gate(asked: Asked, chosen: Config, how: Settings, say: Say) -> Outcome:
    """Judge head by a baseline; what stands against that is the outcome's problem.

    ``say`` is told what is under way.
    """
    here = Side.head()
    outcome = Outcome(asked.baseline, judged(here))
    try:
        rules = policy_file.load()
        with here.prepared(chosen.build) as head:
            listed = listing.of(
                head, asked.places, asked.pattern, asked.overrides, how.timeout
            )
            points, left = planned(listed.cases, asked.modes)
            turns = [Turn(0, 0, point.case, point.mode) for point in points]
            how, device = session.on_gpu(turns, how, replace(chosen, peaks="off"))
            with lock.measuring(asked.wait), Store.open(chosen.store) as store:
                keys = [(point.case.id, str(point.mode)) for point in points]
                lane = _Lane(
                    asked, chosen, how, store, device, rules, rules.policy(keys), say
                )
                commit = commit_of(asked.baseline, head.root)
                base = None if commit else stored.find(store, asked.baseline, head.root)
                named = name_of(asked.baseline, base.uid if base else commit or "")
                outcome = replace(outcome, baseline=named)
                if left:
                    say(f"left out: {left}")
                if base is None:
                    outcome = lane.against_commit(outcome, head, points, listed)
                else:
                    outcome = lane.against_run(outcome, head, points, base)
    except SteelyardError as error:
        return replace(outcome, problem=error)
    return policy.apply(outcome, rules)


def judged(head: Side) -> str:
    """Return what is judged: a commit, and whether it was changed since."""
    dirty = machine.describe(head.root)["versions"].get("dirty") is True
    return (head.commit[:12] or "this folder") + " with changes" * dirty


def planned(found: Sequence[Case], wanted: Sequence[str]) -> tuple[list[Point], str]:
    """Return what is compared; and a sentence on what is left out for want of a GPU.

    Raises:
        SteelyardError: a mode is unknown, or nothing can run here.
    """
    words = [word for text in wanted for word in text.split(",")]
    chosen = list(dict.fromkeys(map(modes.parse, words)))
    cases, left = able(found)
    if not cases:
        raise SteelyardError(left)
    return [Point(case, m) for case in cases for m in chosen or case.modes()], left


@dataclass(frozen=True, slots=True)
class _Lane:
    """One gate under way."""

    asked: Asked
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
        deadline = monotonic() + self.chosen.budget if self.chosen.budget else None
        with ExitStack() as opened:
            self.say(f"base {asked.baseline}: a worktree of its own")
            base = opened.enter_context(
                Side.of_ref(
                    asked.baseline,
                    asked.places,
                    self.chosen.build,
                    files=listed.files,
                )
            )
            known = listing.known(
                base,
                asked.places,
                asked.pattern,
                asked.overrides,
                self.how.timeout,
            )
            base.install_suites()
            runs_of = opened.enter_context(self._recorded(base, head))
            calibration = self._calibration()
            measured = measure(
                Blocks(base, head.beside(base), self.how, self._keep(runs_of)),
                points,
                self.policy,
                noisy=_noisy(calibration, self.policy),
                identity=True,
                deadline=deadline,
                on_block=lambda number, count: self.say(
                    f"block {number + 1}: {count} of {len(points)} are open"
                ),
            )
        found = findings.of(points, measured, known, self.policy)
        ids = listed.every | {point.case.id for point in points}
        found += tuple(findings.vanished(known, ids))
        code = _code(head, base.commit)
        notes = list(code.notes)
        if code.problem is not None:
            notes.insert(0, f"the static lane says nothing: {code.problem}")
        files = changed.files(head.root, base.commit)
        return replace(
            outcome,
            findings=tuple(
                self._explained(one, runs_of, files, code.changes) for one in found
            ),
            static=code.changes,
            calibration=calibration,
            runs={side: run.uid for side, run in runs_of.items()},
            notes=(*outcome.notes, *notes),
        )

    def against_run(
        self, outcome: Outcome, head: Side, points: Sequence[Point], base: Run
    ) -> Outcome:
        """Measure head alone and hold it against stored numbers."""
        stored.require_comparable(base, self._run(head), self.store)
        with self._recorded(head) as runs_of:
            stored.measure(head, points, self.how, self._keep(runs_of), self.say)
        found = stored.findings(self.store, base, runs_of[HEAD], points)
        both = {BASE: base, HEAD: runs_of[HEAD]}
        files = changed.files(head.root, base.commit)
        return replace(
            outcome,
            findings=tuple(self._explained(one, both, files) for one in found),
            calibration=self._calibration(),
            runs={BASE: base.uid, HEAD: runs_of[HEAD].uid},
            notes=(*outcome.notes, stored.WEAK),
        )

    def _run(self, side: Side) -> Run:
        around = machine.describe() | (
            {"gpu": dict(self.device)} if self.device else {}
        )
        tags = (f"{TAG}/{side.name}",)
        made = runs.new(writer.command(), asdict(self.how), tags, around)
        if side.name == HEAD:
            return made
        return replace(made, commit=side.commit, dirty=False)

    @contextmanager
    def _recorded(self, *sides: Side) -> Iterator[dict[str, Run]]:
        """Store a run a side, and how it ended."""
        made = {side.name: self._run(side) for side in sides}
        for run in made.values():
            self.store.begin(run)
        state = "failed"
        try:
            yield made
            state = "finished"
        except KeyboardInterrupt:
            state = "interrupted"
            raise
        finally:
            for run in made.values():
                self.store.finish(run.uid, state)

    def _keep(self, made: Mapping[str, Run]) -> Callable[[str, Trial], None]:
        return lambda side, trial: self.store.add(made[side].uid, trial)

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


def _code(head: Side, commit: str) -> static.Static:
    """Return what changed in the library's code, where a project keeps a file of it."""
    if not (head.root / static.FILE).exists():
        return static.Static()
    return static.check(head.root, commit)


def _noisy(calibration: Calibration | None, policy: Policy) -> set[str]:
    """Return the keys of points whose changes the gate is known not to tell."""
    if calibration is None:
        return set()
    known = calibration.detectable.items()
    sizes = {f"{case} {mode}": share for (case, mode), share in known}
    return {key for key, share in sizes.items() if share > policy.of(key).tolerance}
