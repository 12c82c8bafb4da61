"""One run from its cases to its stored trials: what `steelyard run` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.trial import Run, Trial
from steelyard.clocks import gpu as clocks
from steelyard.declare import discovery, npy
from steelyard.declare import mode as modes
from steelyard.declare import plan as plans
from steelyard.declare.benchmark import Case
from steelyard.declare.config import AUTO, Config
from steelyard.declare.plan import Plan, PlannedTrial, Settings, needs_gpu, once
from steelyard.errors import (
    FAILED,
    FINE,
    UNRESOLVED,
    BenchmarkError,
    SteelyardError,
    StoreError,
)
from steelyard.machine import facts as machine
from steelyard.machine import files, lock, writer
from steelyard.machine import gpu_choice as gpu
from steelyard.measure import gpu_peaks
from steelyard.process import runner
from steelyard.store import archive
from steelyard.store import run as runs
from steelyard.store.store import Store

INTERRUPTED: Final = 130
"""What shells report of a program ended by Ctrl-C: 128 + SIGINT."""

SPOOL: Final = "STEELYARD_SPOOL"
"""The variable with a folder for runs that could not be stored, to be imported later."""

NPY: Final = b"\x93NUMPY"
"""How a .npy file begins (numpy.lib.format)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for, read and checked."""

    places: Sequence[str]
    pattern: str | None = None
    overrides: Sequence[str] = ()
    modes: Sequence[str] = ()
    inputs: Sequence[str] = ()
    blocks: int = 1
    tags: Sequence[str] = ()
    wait: float = 0.0
    profile: str | None = None
    """Whose counters are read beside: ``ncu``'s."""
    trace: str | None = None
    """The file that a trace of the cases goes to."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    run: Run
    turns: Sequence[PlannedTrial]
    trials: list[Trial] = field(default_factory=list)
    state: str = "running"
    problem: SteelyardError | None = None
    """Why it ended early, unless by Ctrl-C."""

    @property
    def failed(self) -> set[str]:
        """The cases that failed; they are left out of later turns."""
        return {t.case for t in self.trials if t.error}

    @property
    def missing(self) -> set[tuple[str, str]]:
        """Cases and modes that were planned and never had a turn."""
        asked = {(turn.case.id, str(turn.mode)) for turn in once(self.turns)}
        return asked - {(trial.case, trial.mode) for trial in self.trials}

    @property
    def cut_short(self) -> bool:
        """Whether a turn was left out that no failure explains."""
        broken = {(t.case, t.mode) for t in self.trials if t.error}
        had = {t.position for t in self.trials}
        return any(
            turn.position not in had and (turn.case.id, str(turn.mode)) not in broken
            for turn in self.turns
        )

    @property
    def exit_code(self) -> int:
        """What the command ends with; a case without a number is never fine."""
        if self.state == "interrupted":
            return INTERRUPTED
        if self.problem is not None:
            return self.problem.exit_code
        if self.failed:
            return FAILED
        return UNRESOLVED if self.missing else FINE


def planned(
    asked: Request, settings: Config
) -> tuple[Plan, str, BenchmarkError | None]:
    """Return the turns of a run; nothing is allocated and nothing runs.

    Beside them sentences on what is left out: cases for want of a GPU, and files of a
    folder that cannot be imported; of these also the failure that the run ends with.

    Raises:
        SteelyardError: something asked for does not exist or cannot be read, or no
            case can run here.
    """
    runs.check_tags(asked.tags)
    chosen = modes.parse_all(asked.modes) or None
    broken: list[SteelyardError] = []
    try:
        found = discovery.find(
            asked.places, asked.pattern, asked.overrides, broken, settings.timeout
        )
    except SteelyardError as error:
        raise next(iter(broken), error) from None  # what was asked for may be there
    cases, left = plans.require_able(found)
    _check_inputs(read_inputs(asked.inputs), cases)
    turns = plans.plan(cases, chosen, asked.blocks, settings.seed)
    failure = BenchmarkError(" ".join(map(str, broken))) if broken else None
    return turns, " ".join(filter(None, [left, str(failure or "")])), failure


def _check_inputs(files: Mapping[str, str], cases: Sequence[Case]) -> None:
    """Refuse a file for a buffer that no chosen case fills, or of one value."""
    if not files:
        return
    filled = {
        handle.name
        for case in cases
        for handle in case.describe().handles_of("input", "inout")
    }
    for name, path in files.items():
        if name not in filled:
            raise SteelyardError(
                f"--input {name}=: no chosen case has an input of that name; they have "
                f"{', '.join(sorted(filled)) or 'none'}."
            )
        if npy.repeats(npy.read(path)):
            raise SteelyardError(
                f"--input {name}: {path} repeats one value, which no user's data does. "
                "Give real data."
            )


def read_inputs(texts: Sequence[str]) -> dict[str, str]:
    """Read ``x=@file.npy``: which file stands in for which handle.

    Raises:
        SteelyardError: it is not of that form, or there is no such file.
    """
    return dict(_input(text) for text in texts)


def _input(text: str) -> tuple[str, str]:
    name, _, place = text.partition("=@")
    if not name or not place:
        raise SteelyardError(f"--input is {text!r}, expected name=@file.npy.")
    path = Path(place)
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SteelyardError(f"--input {name}: {path} is no file. Name a .npy file.")
    try:
        with path.open("rb") as file:
            head = file.read(len(NPY))
    except OSError as error:
        raise SteelyardError(
            f"--input {name} cannot be read from {path}: {error.strerror}. Write the "
            "array there with numpy.save."
        ) from error
    if head != NPY:
        raise SteelyardError(
            f"--input {name}: {path} begins with {head!r}, expected {NPY!r} of a .npy "
            "file. Write it with numpy.save."
        )
    return name, str(path.absolute())


def settings(
    chosen: Config,
    asked: Request,
    *,
    check: bool = True,
    allocations: bool = False,
    energy: bool = False,
) -> Settings:
    """Return how the run measures; which GPU it uses is `on_gpu`'s to find."""
    return Settings(
        seed=chosen.seed,
        budget=chosen.budget,
        precision=chosen.precision,
        timeout=chosen.timeout,
        inputs=read_inputs(asked.inputs),
        clock=clocks.known(chosen.clock),
        check=check,
        allocations=allocations,
        energy=energy,
    )


def on_any_gpu(turns: Sequence[PlannedTrial]) -> bool:
    """Tell whether any case of a plan runs on a GPU."""
    cases = {turn.case.id: turn.case for turn in once(turns)}
    return any(map(needs_gpu, cases.values()))


def unused(turns: Sequence[PlannedTrial], words: Mapping[str, str | None]) -> str:
    """Return a sentence on options that were given and say nothing of these cases.

    ``words`` are values by options that are about a GPU; empty where all count.
    """
    given = [f"{option} {value}" for option, value in words.items() if value]
    if not given or on_any_gpu(turns):
        return ""
    verb = "is" if len(given) == 1 else "are"
    return f"{' and '.join(given)} {verb} not used: nothing here runs on a GPU"


def on_gpu(
    turns: Sequence[PlannedTrial], how: Settings, chosen: Config
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with a GPU, and its facts; neither where no case needs one.

    Raises:
        SteelyardError: there is no such GPU.
    """
    return on_chosen(how, chosen) if on_any_gpu(turns) else (how, {})


def on_chosen(how: Settings, chosen: Config) -> tuple[Settings, dict[str, Any]]:
    """Return the settings with the GPU that is asked for, and its facts.

    Raises:
        SteelyardError: there is no such GPU.
    """
    index = gpu.choose(chosen.gpu)
    facts = gpu.facts(index)
    if not facts["peaks"] and chosen.peaks == AUTO:
        facts["peaks"] = None  # to be measured once nobody else measures
    return replace(how, gpu=index), facts


def with_peaks(device: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the facts of a GPU with what it does at most, measured if nobody knows.

    Where it cannot be measured, the reason stands in its place.
    """
    if not device or device["peaks"] is not None:
        return dict(device)
    try:
        return {**device, "peaks": gpu_peaks.in_its_process(index)}
    except SteelyardError as error:
        return {**device, "peaks": {"problem": str(error)}}


def measure(
    turns: Sequence[PlannedTrial],
    how: Settings,
    asked: Request,
    store_url: str,
    *,
    device: Mapping[str, Any] | None = None,
    on_start: Callable[[Run], None],
    on_turn: Callable[[PlannedTrial], None],
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Measure under the machine's lock and store every trial as it arrives.

    Ctrl-C and a store that fills up end the run; the outcome has every trial that was
    measured, also one that could not be stored. ``device`` has the facts of the GPU;
    ``say`` is told of what is looked at beside.

    Raises:
        SteelyardError: another run measures, or the store cannot be opened.
    """
    with lock.measuring(asked.wait), Store.open(store_url) as store:
        look = _beside(turns, how, asked, say)
        facts = asdict(how) | {"blocks": asked.blocks, "turns": len(turns)}
        made = begun(facts, asked.tags, with_peaks(device or {}, how.gpu))
        outcome = Outcome(made, turns)
        store.begin(outcome.run)

        def keep(trial: Trial) -> None:
            trial = look(trial)
            outcome.trials.append(trial)
            store.add(outcome.run.uid, trial)

        try:
            on_start(outcome.run)
            runner.run(turns, how, keep, on_turn)
            outcome.state = "budget" if outcome.cut_short else "finished"
        except KeyboardInterrupt:
            outcome.state = "interrupted"
        except StoreError as error:
            outcome.state, outcome.problem = "failed", error
        except BaseException:
            store.finish(outcome.run.uid, "failed")
            raise
        _finish(store, outcome)
    if isinstance(outcome.problem, StoreError) and SPOOL in os.environ:
        place = Path(os.environ[SPOOL]) / f"{outcome.run.uid}.json"
        files.save(place, archive.write(outcome.run, outcome.trials), SPOOL)
    return outcome


def begun(
    settings: Mapping[str, Any], tags: Sequence[str], device: Mapping[str, Any]
) -> Run:
    """Return a run that begins now; ``device`` has the facts of its GPU, if it has one."""
    around = machine.describe() | ({"gpu": dict(device)} if device else {})
    return runs.new(writer.command(), settings, tags, around)


@contextmanager
def recorded(
    store: Store, of: Mapping[str, Run]
) -> Iterator[Callable[[str, Trial], None]]:
    """Store a run for each side, how it ends, and the trials that are given by side."""
    for run in of.values():
        store.begin(run)
    state = "failed"
    try:
        yield lambda side, trial: store.add(of[side].uid, trial)
        state = "finished"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        for run in of.values():
            store.finish(run.uid, state)


def _beside(
    turns: Sequence[PlannedTrial],
    how: Settings,
    asked: Request,
    say: Callable[[str], None],
) -> Callable[[Trial], Trial]:
    """Trace and profile the cases as asked; return what adds the counters to a trial."""
    if asked.trace:
        from steelyard.process import tracing

        tracing.trace(turns, how, Path(asked.trace), say)
    if not asked.profile:
        return lambda trial: trial
    from steelyard.process import profile

    found = profile.profiles(turns, how, say)
    return lambda trial: profile.attach(trial, found)


def _finish(store: Store, outcome: Outcome) -> None:
    """Store how a run ended; where the store is full, its process says it is gone."""
    try:
        store.finish(outcome.run.uid, outcome.state)
    except StoreError as error:
        outcome.problem = outcome.problem or error
    outcome.run = replace(outcome.run, state=outcome.state, finished=writer.now())
