"""Hand a suite to asv: one class a benchmark, its values weighed by steelyard.

A suite's folder holds one adapter module of two lines::

    from steelyard import asv
    globals().update(asv.families(__file__))

asv imports every module of the folder (which needs an ``__init__.py``), finds the
classes there and draws their history. It runs each point of a class in a process of its
own, but shares what ``setup_cache`` returned: the whole suite is weighed there, once,
interleaved, on a worker that is replaced when it crashes.

The samples of a point are the estimates of its blocks, not of its windows: windows of
one process agree with each other far better than two runs of the same code do, and
asv's test takes samples for independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict

from steelyard import config, discovery, gpu, lock, runner, stats
from steelyard.benchmark import Benchmark, Case
from steelyard.errors import BenchmarkError
from steelyard.plan import plan
from steelyard.settings import Settings
from steelyard.trial import Trial

BLOCKS: Final = 8
"""Turns of every case, hence samples of a point. asv's test (Mann-Whitney, p < 0.002)
needs seven on either side to see any change, and with 6 against 6 it can see none."""

PATIENCE: Final = 3600
"""Seconds that asv waits for a whole suite, and that it waits its turn on the machine."""

NANO: Final = 1e-9
"""Trials are in nanoseconds, asv's samples in seconds."""

Point = tuple[str, str]
"""A case's id and a mode's text: how asv's processes agree on what was weighed."""


class Samples(TypedDict):
    """What asv's statistics take: seconds per launch, each of ``number`` launches."""

    samples: list[float]
    number: int


Weighed = dict[Point, Samples | str]
"""The samples of each point, or the sentence that says why there are none."""


def families(adapter: str, blocks: int = BLOCKS) -> dict[str, type[Family]]:
    """Return one class for each benchmark in the folder of the file ``adapter``.

    Raises:
        SteelyardError: a module of the folder cannot be imported, or it has none.
    """
    folder = str(Path(adapter).parent)
    return {
        one.name: _family(one, folder, blocks) for one in discovery.discover([folder])
    }


class Family:
    """One benchmark, as asv reads classes."""

    folder: ClassVar[str]
    blocks: ClassVar[int]
    benchmark: ClassVar[Benchmark]
    params: ClassVar[list[list[Any]]]
    param_names: ClassVar[list[str]]
    skip_params: ClassVar[list[tuple[Any, ...]]]
    version: ClassVar[str]
    """Of the benchmark's source: asv starts a new history when it changes."""
    unit: ClassVar[str] = "seconds"

    def setup_cache(self) -> Weighed:
        """Weigh the whole suite; asv keys this by line, so all families share it."""
        return weigh(self.folder, self.blocks)

    setup_cache.timeout = PATIENCE  # type: ignore[attr-defined] # where asv looks for it

    def track_seconds(self, weighed: Weighed, *point: Any) -> Samples:
        """Return the samples of one point.

        Raises:
            BenchmarkError: it failed, in its own sentence.
        """
        *values, mode = point
        case = Case(self.benchmark, dict(zip(self.benchmark.axes, values, strict=True)))
        found = weighed.get((case.id, mode), f"{case.id} was not weighed in {mode}.")
        if isinstance(found, str):
            raise BenchmarkError(found)
        return found


def weigh(folder: str, blocks: int) -> Weighed:
    """Weigh every case of a folder's benchmarks in ``blocks`` interleaved turns."""
    found = [case for one in discovery.discover([folder]) for case in one.cases()]
    cases, _ = gpu.able(found)
    weighed: Weighed = {}
    estimates: dict[Point, list[float]] = defaultdict(list)

    def keep(trial: Trial) -> None:
        point = trial.case, trial.mode
        if trial.error is not None:
            weighed[point] = trial.error
        else:
            estimates[point].append(_seconds(trial))

    with lock.measuring(wait=PATIENCE):
        turns = plan(cases, None, blocks, seed=0)
        runner.run(turns, settings(cases), keep, lambda _turn: None)
    complete = {p: s for p, s in estimates.items() if p not in weighed}
    return weighed | {p: Samples(samples=s, number=1) for p, s in complete.items()}


def settings(cases: Sequence[Case]) -> Settings:
    """Return how they are weighed: as always, on the GPU of the configuration."""
    chosen = config.load()
    if not any(map(gpu.needed, cases)):
        return Settings()
    return Settings(gpu=gpu.choose(chosen.gpu), clock=chosen.clock)


def _seconds(trial: Trial) -> float:
    return NANO * stats.of(trial).estimate.value


def _family(benchmark: Benchmark, folder: str, blocks: int) -> type[Family]:
    """Return the class whose parameters are the benchmark's axes and the mode.

    Cases may ask for different modes; asv skips the points that none asked for, and
    those of a GPU where there is none: they have no number and did not fail.
    """
    cases = benchmark.cases()
    here, _ = gpu.able(cases)
    asked = {(*case.axes.values(), str(mode)) for case in here for mode in case.modes()}
    params = [list(axis.values) for axis in benchmark.axes.values()]
    params.append(sorted({str(mode) for case in cases for mode in case.modes()}))
    members = {
        "__doc__": benchmark.doc,
        "folder": folder,
        "blocks": blocks,
        "benchmark": benchmark,
        "params": params,
        "param_names": [*benchmark.axes, "mode"],
        "skip_params": [point for point in product(*params) if point not in asked],
        "version": benchmark.source_hash(),
    }
    return type(benchmark.name, (Family,), members)
