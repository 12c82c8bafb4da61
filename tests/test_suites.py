"""The shipped suites: every case runs and is right, and asv finds nothing to choke on."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard import discovery
from steelyard.prepared import PreparedCase
from steelyard.settings import Settings
from steelyard_kernels import KernelFunction, library

SUITES = Path(__file__).parent.parent / "suites"
BENCHMARKS = discovery.discover([str(SUITES)])
SMALL = {"n": 37, "hidden": 37, "cols": 37}
"""A prime in place of the sizes that are weighed: ragged, and quick to check."""


def cases(small):
    """Return every case, its sizes small if asked, once each."""
    overrides = {name: [value] for name, value in SMALL.items()} if small else {}
    found = {
        case.id: case
        for one in BENCHMARKS
        for case in one.cases({n: v for n, v in overrides.items() if n in one.axes})
    }
    return [pytest.param(case, id=name) for name, case in found.items()]


@pytest.mark.parametrize("case", cases(small=True))
def test_each_impl_of_each_benchmark_is_right_at_a_ragged_size(case):
    """A launch agrees with the case's float64 reference, whatever implements it."""
    prepared = PreparedCase(case, Settings())
    assert prepared.checked or not prepared.description.results


@pytest.mark.parametrize("case", cases(small=False))
def test_each_case_can_be_described_and_says_how_it_is_weighed(case):
    """Listing needs no buffers; the modes fit what the case launches."""
    description = case.describe()
    builds = [mode for mode in case.modes() if mode.quantity == "build"]
    assert not builds or isinstance(description.call.target, KernelFunction)


def test_every_kernel_of_the_library_has_its_builds_weighed():
    """A kernel that is added to the library is added to the suite."""
    shipped = {
        name
        for name, value in vars(library).items()
        if isinstance(value, KernelFunction)
    }
    (build,) = (one for one in BENCHMARKS if one.name == "build")
    assert set(build.axes["kernel"].values) == shipped


def test_the_default_grid_is_short_enough_for_two_minutes():
    """Points times four blocks times 0.2 s: a tenth of sampling, as much around it."""
    points = [
        (case.id, mode)
        for one in BENCHMARKS
        for case in one.cases()
        for mode in case.modes()
        if case.axes.get("impl") not in {"numba", "inductor"}
    ]
    assert len(points) == len(set(points)) <= 155


def test_suites_import_no_peer_and_no_pytest():
    """They are read where neither is installed, and by asv, which dies of pytest."""
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numba', 'pytest']))\n"
        "from steelyard import discovery\n"
        f"found = discovery.discover([{str(SUITES)!r}])\n"
        "print(*(case.id for one in found for case in one.cases()), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bias_layernorm[hidden=5140,dtype=float16,impl=ours]" in done.stdout
    assert "numba" not in done.stdout
    assert "inductor" not in done.stdout


def test_asv_takes_no_function_of_a_suite_for_a_benchmark():
    """It goes by names, in every module of the folder."""
    taken = re.compile(r"(time|timeraw|track|mem|peakmem)_", re.IGNORECASE)
    for one in BENCHMARKS:
        module = sys.modules[one.function.__module__]
        names = [n for n, v in vars(module).items() if inspect.isroutine(v)]
        assert not [name for name in names if taken.match(name)]
