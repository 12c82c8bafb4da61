"""Fixtures of all tests: golden files, and running a loop kernel."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

# A second thread of NumPy's library spins: half of the time that its import takes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gpu
import numpy as np
import postgresql
import pytest
import turns
from hypothesis import settings

# An example may compile a kernel, and the machine may be busy: no deadlines.
settings.register_profile("steelyard", deadline=None)
settings.load_profile("steelyard")

# Builds of tests are neither found in the user's cache nor left there.
os.environ["STEELYARD_CACHE"] = "off"

# A lock for each process of tests: they run at once, and measure nothing that is kept.
OWN = tempfile.TemporaryDirectory(prefix="steelyard-tests-")
os.environ["STEELYARD_LOCK"] = str(Path(OWN.name) / "lock")

# What tests start is no part of pytest-xdist's run, and pages are of their own width.
for variable in ("PYTEST_XDIST_WORKER", "COLUMNS"):
    os.environ.pop(variable, None)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    """Add the flags that rewrite files instead of comparing, and that of slow tests' turns."""
    for flag, text in {
        "--update-golden": "rewrite the golden files",
        "--turns": "run slow tests in turns, of which the commit has one",
        "--update-slow": "rewrite the list of slow tests by this run, which is of all",
    }.items():
        parser.addoption(flag, action="store_true", help=text)


def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests whose turn it is not."""
    if config.getoption("--turns"):
        runs = turns.deal([item.nodeid for item in items], turns.turn())
        left = [item for item, now in zip(items, runs, strict=True) if not now]
        items[:] = [item for item, now in zip(items, runs, strict=True) if now]
        config.hook.pytest_deselected(items=left)


def pytest_report_header(config):
    """Say whose turn it is."""
    if config.getoption("--turns"):
        return f"turn {turns.turn()} of slow tests; all: make test-all"
    return None


SECONDS = Counter()  # of each function, where this process hears of all


def pytest_runtest_logreport(report):
    """Sum what each function's cases take."""
    SECONDS[turns.function(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    """Write down which were slow, where that is asked for."""
    if session.config.getoption("--update-slow") and not hasattr(
        session.config, "workerinput"
    ):
        turns.write(SECONDS)


def pytest_collection_finish():
    """Leave what imports and thousands of tests made out of what is looked through."""
    leave_out_of_collections()


@pytest.fixture(autouse=True, scope="module")
def _left_out():
    """Leave out what a file's tests keep: caches of programs and of code grow to 1 GB.

    A test that collects garbage would take 0.7 s more where others came before it.
    """
    yield
    leave_out_of_collections()


def leave_out_of_collections():
    """Free what is garbage, and have later collections look through nothing of the rest."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def context():
    """Give the first GPU; skip without one."""
    return gpu.context()


@pytest.fixture
def golden(request):
    """Compare a text with tests/golden/<module>/<test>.txt.

    `golden(text)`, or `golden(text, "name")` for several in one test. After a
    wanted change run `pytest --update-golden` and read the difference.
    """
    update = request.config.getoption("--update-golden")
    folder = GOLDEN / request.module.__name__.removeprefix("test_")
    test = request.node.originalname.removeprefix("test_")

    def compare(text, name=test):
        path = folder / f"{name}.txt"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; run pytest --update-golden."
        assert text == path.read_text()

    return compare


@pytest.fixture
def nvrtc():
    """Need the compiler of GPUs; give its module."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    from steelyard_device import nvrtc

    return nvrtc


@pytest.fixture(scope="session")
def hopper():
    """Give the first GPU; skip without one that multiplies tiles."""
    found = gpu.context()
    if found.device.arch != "sm_90a":
        pytest.skip("needs a GPU of sm_90a")
    return found


@pytest.fixture(scope="session")
def server():
    """Start a PostgreSQL server for all tests."""
    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    if postgresql.programs() is None:
        pytest.skip("needs the programs of a PostgreSQL server (Debian: postgresql)")
    yield from postgresql.serve()


@pytest.fixture(scope="session")
def run_kernel():
    """Verify, emit, assemble and launch a loop kernel on arrays and scalars."""
    from steelyard_device import cpu, llvm
    from steelyard_kernels.emit.llvm import emit
    from steelyard_kernels.ir.verify import verify

    codes = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "bool": "?"}

    @cache
    def loaded(text, name):  # the same for hundreds of examples
        return cpu.load(llvm.assemble(text), name)

    def slot(value, parameter):
        if isinstance(value, np.ndarray):
            return value.ctypes.data
        return cpu.slot(value, codes[parameter.type.dtype.name])

    def run(kernel, *values, threads=1, text=None):
        verify(kernel)
        function = loaded(text or emit(kernel, llvm.host()), kernel.name)
        slots = [slot(*pair) for pair in zip(values, kernel.parameters, strict=True)]
        cpu.Launch(function, slots, threads).launch()

    return run


@pytest.fixture(scope="session")
def elementwise(run_kernel):
    """Run `body(builder, *vectors) -> vector` over arrays, tail masked.

    `elementwise(body, sources, target, lanes=16)`: sources are pairs of an array
    and its element type, by default the array's own.
    """
    from steelyard_kernels import dtypes
    from steelyard_kernels.ir.builder import Builder, index
    from steelyard_kernels.ir.loops import Buffer

    def run(body, arrays, target, lanes=16, sources=None):
        count = arrays[0].size
        types = sources or [dtypes.of(array.dtype) for array in arrays]
        extent = index(count)
        inputs = [Buffer(f"x{k}", type_, extent) for k, type_ in enumerate(types)]
        output = Buffer("y", target, extent, access="out")
        b = Builder()
        main = count // lanes * lanes
        with b.loop(0, main, lanes) as loop:
            vectors = [b.load(x, loop.var, lanes) for x in inputs]
            b.store(output, loop.var, body(b, *vectors))
        if main < count:
            mask = b.mask_below(count - main, lanes)
            vectors = [b.load(x, main, lanes, mask) for x in inputs]
            b.store(output, main, body(b, *vectors), mask)
        result = np.empty(count, target.numpy)
        run_kernel(b.kernel("elementwise", [*inputs, output]), *arrays, result)
        return result

    return run
