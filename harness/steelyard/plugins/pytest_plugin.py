"""A pytest plugin: the cases of a suite become tests that pytest-benchmark reports.

docs/pytest.md has its use. What times a test is steelyard, and pytest-benchmark's table,
JSON and comparisons show those samples; what these have no column for is in
``extra_info``. Where pytest-benchmark disables itself (``--benchmark-disable``, or under
xdist, whose processes would measure each other) every case is launched once and checked.

Only files that define a benchmark are imported, and tests beside the benchmarks stay
pytest's. Everything heavy is imported when a suite is collected: this module is loaded
by every run of pytest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.plugins import pytest_gate

if TYPE_CHECKING:
    from steelyard.analyse.trial import Trial
    from steelyard.declare.benchmark import Benchmark, Case
    from steelyard.declare.mode import Mode
    from steelyard.declare.plan import Settings
    from steelyard.process.worker import CaseCache

NANO: Final = 1e-9
"""Trials are in nanoseconds, pytest-benchmark in seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option, and the gate's."""
    parser.getgroup("steelyard").addoption(
        "--steelyard-gate",
        metavar="BASELINE",
        help="measure each case beside this commit, in turn, and fail what is slower; "
        "or beside a stored run",
    )
    parser.addini(
        "steelyard_suites",
        "folders of steelyard's benchmarks, collected where pytest is pointed at them "
        "(default: suites of [tool.steelyard])",
        type="paths",
        default=[],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Judge instead of measuring where a baseline is named."""
    if config.getoption("steelyard_gate"):
        config.pluginmanager.register(pytest_gate.Gating(config), pytest_gate.NAME)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect the benchmarks of the suites that this run was pointed at.

    Named on the command line, pytest would import each file as a module of tests as
    well; where nothing in it looks like a test that is left out.
    """
    collectors = yield
    if file_path.suffix != ".py" or file_path.name == "__init__.py":
        return collectors
    from steelyard.plugins import pytest_suites

    if not pytest_suites.holds(file_path, parent.config):
        return collectors
    others = [one for one in collectors if type(one) is not pytest.Module]
    if pytest_suites.has_tests(file_path, parent.config):
        others = collectors
    return [*others, Suite.from_parent(parent, path=file_path)]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
    exitstatus: int,
    config: pytest.Config,
) -> None:
    """Say why nothing was collected where pytest was pointed at benchmarks."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        from steelyard.plugins import pytest_suites

        for line in pytest_suites.missed(config):
            terminalreporter.write_line(line)


class Suite(pytest.File):
    """One module of a suite."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield its cases; the module is imported, nothing is allocated.

        Raises:
            CollectError: pytest-benchmark or the module cannot be imported.
        """
        from steelyard.declare import discovery

        try:
            module = discovery.import_file(
                self.path
            )  # one door: run, workers and pytest name a module alike
        except SteelyardError as error:
            raise self.CollectError(str(error)) from None
        benchmarks = discovery._benchmarks(module)  # noqa: SLF001 # as above; a module of helpers has none
        plugins = self.config.pluginmanager
        gating = self.config.getoption("steelyard_gate")
        if benchmarks and not gating and not plugins.hasplugin("benchmark"):
            from steelyard_device import install

            raise self.CollectError(
                f"{self.path.name} holds benchmarks, whose results pytest-benchmark "
                "reports, and that plugin is not loaded: "
                f"{install.command('pytest')}, or use `steelyard run`."
            )
        for benchmark in benchmarks:
            yield from self._tests(benchmark)

    def _tests(self, benchmark: Benchmark) -> Iterator[pytest.Item]:
        """Yield the tests of one benchmark, impl next to impl.

        A group is what pytest-benchmark prints as one table with ratios: the cases
        that differ only in ``impl``; without that axis, the whole family.
        """
        groups: dict[str, list[tuple[Case, Mode]]] = defaultdict(list)
        for case in benchmark.cases():
            axes = case.axes if "impl" in case.axes else {}
            shared = [f"{n}={v}" for n, v in axes.items() if n != "impl"]
            for mode in case.modes():
                words = [benchmark.name, ",".join(shared), str(mode)]
                groups[" ".join(filter(None, words))].append((case, mode))
        for group, members in groups.items():
            for case, mode in members:
                yield MeasuredItem.of(self, case, mode, group)


class MeasuredItem(pytest_gate.Failing, pytest.Function):
    """One case in one mode."""

    case: Case

    @classmethod
    def of(cls, parent: Suite, case: Case, mode: Mode, group: str) -> MeasuredItem:
        """Return the test ``name[axes,mode]``, the mode only where there are several."""
        clock = ReplayedClock()
        gating = parent.config.getoption("steelyard_gate")

        def measure(benchmark: Any) -> None:
            _measure(parent.config, case, mode, clock, benchmark)

        def judge() -> None:
            pytest_gate.judge(parent.config, case, mode)

        made = judge if gating else measure
        item: MeasuredItem = cls.from_parent(
            parent, name=_name(case, mode), callobj=made
        )
        item.case = case
        if not gating:
            item.add_marker(pytest.mark.benchmark(timer=clock, group=group))
        return item

    def reportinfo(self) -> tuple[Path, int, str]:
        """Say where the benchmark's function is."""
        return self.path, self.case.benchmark.line - 1, self.name


def _name(case: Case, mode: Mode) -> str:
    if len(case.modes()) == 1:
        return case.id
    if case.id.endswith("]"):
        return f"{case.id[:-1]},{mode}]"
    return f"{case.id}[{mode}]"


class ReplayedClock:
    """A timer for pytest-benchmark that reads what steelyard's clocks read before."""

    __name__ = "steelyard"

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, seconds: list[float]) -> None:
        """Hold the durations of the rounds to come; each starts at exactly zero."""
        self._readings = chain.from_iterable((0.0, duration) for duration in seconds)

    def __call__(self) -> float:
        """Return the next reading in seconds: the start of a round, then its end."""
        return next(self._readings)


def _measure(
    config: pytest.Config,
    case: Case,
    mode: Mode,
    clock: ReplayedClock,
    benchmark: Any,
) -> None:
    """Measure, and give pytest-benchmark the samples by its public ways.

    Also a failure happens within ``pedantic``, so that the fixture counts as used and
    its row is left out of the table.
    """
    from steelyard.analyse import stats
    from steelyard.declare import plan

    _, without = plan.able([case])
    if without:
        pytest.skip(without)
    plugin_session = _plugin_session(config)
    # So that --benchmark-group-by=param:impl works.
    benchmark.param = _name(case, mode).partition("[")[2].removesuffix("]")
    benchmark.params = {**_axes(case.axes), "mode": str(mode)}
    if benchmark.disabled:
        benchmark.pedantic(plugin_session.check, args=(case,))
        return
    trial = plugin_session.measure(case, mode)
    if trial.error is not None:
        clock.load([0.0])
        benchmark.pedantic(_fail, args=(trial.error,))
    benchmark.extra_info.update(_facts(trial))
    clock.load([NANO * sample for sample in stats.corrected(trial)])
    benchmark.pedantic(lambda: None, rounds=len(trial.samples))
    # The rounds hold means already: only the column says of how many launches.
    benchmark.stats.iterations = trial.samples.launches[0]


def _fail(sentence: str) -> None:
    raise BenchmarkError(sentence)


def _facts(trial: Trial) -> dict[str, Any]:
    """Return what pytest-benchmark has no column for, in plain types and seconds."""
    from steelyard.analyse import stats
    from steelyard.store import codec

    summary = stats.of(trial)
    return {
        "case": trial.case,
        "axes": _axes(trial.axes),
        "mode": trial.mode,
        "estimate": NANO * summary.estimate.value,
        "low": NANO * summary.estimate.low,
        "high": NANO * summary.estimate.high,
        "clock": trial.clock.id,
        "quantum": NANO * trial.clock.quantum,
        "floor": {name: NANO * value for name, value in trial.floors.items()},
        "ledger": {name: NANO * value for name, value in trial.ledger.items()},
        "bytes": trial.facts.get("bytes"),
        "operations": trial.facts.get("operations"),
        "code_hash": trial.facts.get("code_hash"),
        "doubts": [str(doubt) for doubt in trial.doubts],
        "gpu": codec.plain(trial.extra.get("gpu")),
    }


def _axes(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return axes whose values JSON knows; others by their text."""
    plain = (bool, int, float, str)
    return {n: v if isinstance(v, plain) else str(v) for n, v in axes.items()}


class PluginSession:
    """What one run of pytest measures with, made by its first test of a suite."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._config = config
        self._bench: CaseCache | None = None
        self._turns = 0

    def measure(self, case: Case, mode: Mode) -> Trial:
        """Measure one case, alone on the machine; what goes wrong is the trial's error.

        Raises:
            SteelyardError: another run measures, or the settings cannot be read.
        """
        from steelyard.declare.plan import PlannedTrial
        from steelyard.machine import lock
        from steelyard.process.worker import CaseCache

        settings = self._settings(case)
        if self._bench is None:
            held = ExitStack()
            held.enter_context(lock.measuring())
            self._config.add_cleanup(held.close)
            self._bench = CaseCache(settings.flush_bytes)
        turn = PlannedTrial(self._turns, 0, case, mode)
        self._turns += 1
        return self._bench.measure(turn, settings)

    def check(self, case: Case) -> None:
        """Launch a case once and check its result.

        Raises:
            SteelyardError: it is wrong, or could not be launched.
        """
        from steelyard.declare.benchmark import named, raised
        from steelyard.measure.prepared import PreparedCase

        try:
            PreparedCase(case, self._settings(case))
        except SteelyardError as error:
            raise BenchmarkError(named(case.id, str(error))) from None
        except Exception as error:
            raise BenchmarkError(f"{case.id} raised {raised(error)}") from error

    def _settings(self, case: Case) -> Settings:
        """Return those of the project's ``[tool.steelyard]`` and the environment."""
        from steelyard.clocks import gpu as clocks
        from steelyard.declare import config
        from steelyard.declare.plan import Settings, needs_gpu
        from steelyard.machine import gpu_choice as gpu

        chosen = config.load(folder=self._root)
        return Settings(
            seed=chosen.seed,
            precision=chosen.precision,
            clock=clocks.known(chosen.clock),
            gpu=gpu.choose(chosen.gpu) if needs_gpu(case) else 0,
        )


_SESSION: Final = pytest.StashKey[PluginSession]()


def _plugin_session(config: pytest.Config) -> PluginSession:
    if _SESSION not in config.stash:
        config.stash[_SESSION] = PluginSession(config)
    return config.stash[_SESSION]
