"""Hand a suite to asv: one class a benchmark, its values measured by steelyard.

docs/asv.md has the adapter. Each point of a class asv runs in a process of its own, in the
folder where ``setup_cache`` ran: there one worker measures the whole suite, interleaved,
and the points look their numbers up.

That happens once a round, and a point returns one number a round: windows of one
process agree with each other far better than two runs of the same code do, and asv's
test takes its samples for independent. ``asv continuous`` begins a new folder for each
round of each commit, in turn; where asv stays with one commit (an existing environment)
all rounds share a folder, and the first point that is asked again begins the next.

In an environment of asv's the project is what asv installed there. Where a module of it
comes from the repository instead, every commit would be measured by the working tree:
that is an error.

With ``-b`` only what asv will ask for is measured; it tells no benchmark, so its own
command line is read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict

from steelyard.analyse import expression
from steelyard.analyse.trial import Trial
from steelyard.clocks import gpu as clocks
from steelyard.declare import config, discovery
from steelyard.declare.benchmark import Benchmark, Case
from steelyard.declare.mode import Mode
from steelyard.declare.plan import able, needs_gpu, plan
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.machine import files
from steelyard.machine import gpu_choice as gpu
from steelyard.process.origins import Origins

ROUNDS: Final = 8
"""Numbers that asv compares on either side. Its test (Mann-Whitney, p < 0.002) needs
seven to see any change."""

BLIND: Final = 6
"""Rounds with which asv 0.6 sees no change at all: a one-sided p tells it that its test
can, and the two-sided one cannot."""

PATIENCE: Final = 3600
"""Seconds that asv waits for a whole suite, and that it waits its turn on the machine."""

NANO: Final = 1e-9
"""Trials are in nanoseconds, asv's samples in seconds."""

ANCESTORS: Final = 3
"""Processes above ours among which asv is: one, or its fork server between."""

PROCESSES: Final = Path("/proc")

MADE: Final = "asv-env-info.json"
"""What asv leaves in an environment that it makes."""

MARKS: Final = (".git", ".hg", "asv.conf.json")
"""What marks the repository that benchmarks lie in."""

ASKED: Final = "asked.json"
"""How often each point of this folder was asked for."""

Point = tuple[str, str]
"""A case's id and a mode's text: how asv's processes agree on what was measured."""


class Samples(TypedDict):
    """What asv's statistics take: seconds per launch, each of ``number`` launches."""

    samples: list[float]
    number: int


Times = Mapping[str, float | str]
"""One round: the seconds of each point (see `key`), or why there are none."""


def families(
    adapter: str, rounds: int = ROUNDS, pattern: str = ""
) -> dict[str, type[Family]]:
    """Return one class for each benchmark in the folder of the file ``adapter``.

    It has the cases that ``pattern`` selects, as ``-k`` of `steelyard run` does; every
    round measures all of them, so that a history has to leave some to other tools.

    Raises:
        SteelyardError: a module of the folder cannot be imported, it has none, the
            project does not come from asv's environment, or asv could never see a
            change in so many rounds.
    """
    if rounds == BLIND or rounds < 1:
        raise SteelyardError(
            f"rounds is {rounds}: asv cannot see a change in so many. Take {ROUNDS}."
        )
    found = _discovered(adapter, pattern)
    return {one.name: _family(one, c, adapter, rounds, pattern) for one, c in found}


def _discovered(adapter: str, pattern: str) -> list[tuple[Benchmark, list[Case]]]:
    """Return the benchmarks beside an adapter, each with its cases that are selected.

    Workers are held to asv's environment.
    """
    origins = _origins(Path(adapter).resolve())
    found = discovery.discover([str(Path(adapter).parent)])
    if refusal := origins.refusal():
        raise SteelyardError(refusal)
    os.environ.update(origins.variable())
    wanted = expression.parse(pattern) if pattern else bool
    chosen = [(one, [c for c in one.cases() if wanted(c.id)]) for one in found]
    return [(one, cases) for one, cases in chosen if cases]


def _origins(adapter: Path) -> Origins:
    """Return where a project's code may come from in this environment.

    Only one that asv made says so; with ``--python=same`` the project is what is there.
    """
    environment = Path(sys.prefix)
    repository = config.nearest(adapter.parent, MARKS)
    if repository is None or not (environment / MADE).exists():
        return Origins()
    suites = adapter.parent
    while (suites.parent / "__init__.py").exists():
        suites = suites.parent
    if suites == repository:  # a benchmark folder that is its own repository
        return Origins()
    return Origins(
        places=(str(environment), str(environment.resolve()), str(suites)),
        avoided=(str(repository),),
        wrong="asv would measure the working tree for every commit, not what it "
        "installed in its environment. Have install_command in asv.conf.json install "
        "the project; what only benchmarks use belongs into their folder.",
    )


class Family:
    """One benchmark, as asv reads classes."""

    adapter: ClassVar[str]
    pattern: ClassVar[str]
    benchmark: ClassVar[Benchmark]
    params: ClassVar[list[list[Any]]]
    param_names: ClassVar[list[str]]
    skip_params: ClassVar[list[tuple[Any, ...]]]
    version: ClassVar[str]
    """Of the benchmark's source: asv starts a new history when it changes."""
    unit: ClassVar[str] = "seconds"
    timeout: ClassVar[int] = PATIENCE
    """Of a point: the first of a later round measures the whole suite."""

    def setup_cache(self) -> Times:
        """Measure the first round; asv keys this by line, so all families share it."""
        return measure(selected(self.adapter, asked_for(), self.pattern))

    setup_cache.timeout = PATIENCE  # type: ignore[attr-defined] # where asv looks for it

    def seconds(self, first: Times, *point: Any) -> Samples:
        """Return the one sample of this round of a point.

        Raises:
            BenchmarkError: it failed, in its own sentence.
        """
        *values, mode = point
        case = Case(self.benchmark, dict(zip(self.benchmark.axes, values, strict=True)))
        wanted = key(case.id, mode)
        number = _times_asked(wanted)
        times = first if number == 1 else self._later(number, first)
        found = times.get(wanted, f"{case.id} was not measured in {mode}.")
        if isinstance(found, str):
            raise BenchmarkError(found)
        return Samples(samples=[found], number=1)

    def _later(self, number: int, first: Times) -> Times:
        """Return a later round, measuring it for the first point that asks for it.

        What failed in the first is not tried again, and nothing is audited again.
        """
        file = Path(f"round-{number}.json")
        if not file.exists():
            points = [
                (case, mode)
                for case, mode in selected(self.adapter, asked_for(), self.pattern)
                if not isinstance(first.get(key(case.id, str(mode))), str)
            ]
            broken = {
                point: why for point, why in first.items() if isinstance(why, str)
            }
            found = {**broken, **measure(points, audit=False)}
            files.replace(file, json.dumps(found).encode())
        times: Times = json.loads(file.read_text(encoding="utf-8"))
        return times


def key(case: str, mode: str) -> str:
    """Return what a point is called between asv's processes."""
    return f"{case} {mode}"


def selected(
    adapter: str, patterns: Sequence[str], pattern: str = ""
) -> list[tuple[Case, Mode]]:
    """Return the points of a folder that asv asks for with ``-b`` these patterns."""
    found = [case for _, cases in _discovered(adapter, pattern) for case in cases]
    cases, _ = able(found)
    points = [(case, mode) for case in cases for mode in case.modes()]
    chosen = [p for p in points if _matches(patterns, adapter, *p)]
    # A pattern that we read otherwise than asv does must not leave its points out.
    return chosen or points


def _matches(patterns: Sequence[str], adapter: str, case: Case, mode: Mode) -> bool:
    """Tell whether asv takes a point; it searches the name it prints."""
    values = ", ".join(map(repr, (*case.axes.values(), str(mode))))
    module = _module(adapter)
    name = f"{module}{case.benchmark.name}.track_seconds({values})"
    return not patterns or any(re.search(one, name) for one in patterns)


def _module(adapter: str) -> str:
    """Return the adapter's module as asv spells it, within the folder of benchmarks."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == adapter:
            _, dot, below = module.__name__.partition(".")
            return f"{below}." if dot else ""
    return f"{Path(adapter).stem}."


def asked_for(processes: Path = PROCESSES) -> list[str]:
    """Return the patterns of ``-b`` on asv's command line; none where it is not seen."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("-b", "--bench", action="append", default=[])
    for words in _ancestors(processes):
        names = [Path(word).name for word in words]
        if "asv" in names:
            try:
                known, _ = parser.parse_known_args(words[names.index("asv") + 1 :])
            except argparse.ArgumentError:
                return []
            return [str(one) for one in known.bench]
    return []


def _ancestors(processes: Path) -> Iterator[list[str]]:
    """Yield the command lines of the processes above this one."""
    parent = os.getppid()
    for _ in range(ANCESTORS):
        folder = processes / str(parent)
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            facts = (folder / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        yield words.rstrip("\0").split("\0")
        parent = int(facts.rpartition(")")[2].split()[1])  # its name may have anything


def measure(points: Sequence[tuple[Case, Mode]], *, audit: bool = True) -> Times:
    """Measure one round: every point once, on one worker that begins with it.

    Rounds of one folder share what references expect.
    """
    # What most of asv's processes, which look one number up, would wait for.
    from steelyard.declare.plan import Settings
    from steelyard.machine import lock
    from steelyard.process import runner

    times: dict[str, float | str] = {}

    def keep(trial: Trial) -> None:
        times[key(trial.case, trial.mode)] = _seconds(trial)

    wanted = {(case.id, mode) for case, mode in points}
    cases = list({case.id: case for case, _ in points}.values())
    # Another order in every round: a case's neighbours must not be part of its time.
    whole = plan(cases, None, 1, seed=int.from_bytes(os.urandom(4)))
    turns = tuple(turn for turn in whole if (turn.case.id, turn.mode) in wanted)
    settings = Settings(scratch=str(Path.cwd()), audit=audit)
    if any(map(needs_gpu, cases)):
        chosen = config.load()
        index, clock = gpu.choose(chosen.gpu), clocks.known(chosen.clock)
        settings = replace(settings, gpu=index, clock=clock)
    with lock.measuring(wait=PATIENCE):
        runner.run(turns, settings, keep, lambda _turn: None)
    return times


def _seconds(trial: Trial) -> float | str:
    """Return a trial's number, or the sentence that says why it has none."""
    from steelyard.analyse import stats

    if trial.error is not None:
        return trial.error
    value = NANO * stats.of(trial).estimate.value if len(trial.samples) else math.nan
    if not 0 < value < math.inf:
        return f"{trial.case} took {value:g} s, which is no time. Look at its clock."
    return value


def _times_asked(point: str) -> int:
    """Count, in the folder that a suite's points share, how often this one ran."""
    file = Path(ASKED)
    counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    counts[point] = counts.get(point, 0) + 1
    files.replace(file, json.dumps(counts).encode())
    return int(counts[point])


def _family(
    benchmark: Benchmark,
    cases: Sequence[Case],
    adapter: str,
    rounds: int,
    pattern: str,
) -> type[Family]:
    """Return the class whose parameters are the benchmark's axes and the mode.

    Cases may ask for different modes; asv skips the points that none asked for, and
    those of a GPU where there is none: they have no number and did not fail.
    """
    here, _ = able(cases)
    asked = {(*case.axes.values(), str(mode)) for case in here for mode in case.modes()}
    params = [list(axis.values) for axis in benchmark.axes.values()]
    params.append(sorted({str(mode) for case in cases for mode in case.modes()}))
    members = {
        "__doc__": benchmark.doc,
        "adapter": adapter,
        "pattern": pattern,
        "benchmark": benchmark,
        "params": params,
        "param_names": [*benchmark.axes, "mode"],
        "skip_params": [point for point in product(*params) if point not in asked],
        "version": benchmark.source_hash(),
        "track_seconds": _tracked(rounds),
    }
    return type(benchmark.name, (Family,), members)


def _tracked(rounds: int) -> Callable[..., Samples]:
    """Return what asv runs: it reads the rounds from the function, not the class."""

    def track_seconds(self: Family, first: Times, *point: Any) -> Samples:
        """Return the sample of one point."""
        return self.seconds(first, *point)

    track_seconds.rounds = rounds  # type: ignore[attr-defined] # where asv looks for it
    return track_seconds
