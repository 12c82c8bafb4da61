import re

import misbehaving_gpu
import numpy as np
import pytest

from steelyard import benchmark
from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings, plan
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import measure_case
from steelyard.measure.prepared import PreparedCase
from steelyard.process import runner

QUICK = Settings(precision=0.5, timeout=15)
FINE = None
OUTCOMES = {
    "good": FINE,
    "wrong": r"y is wrong in 1 of 64 elements: at \[5\]",
    "faults": "CUDA_ERROR_(ILLEGAL|MISALIGNED)_ADDRESS.*look for the fault with",
    "spins": r"no answer within 15 s; the worker was ended",
    "overruns": r"the work wrote up to 4 bytes behind the end of y \(64,\)",
    "faults later": "CUDA_ERROR_(ILLEGAL|MISALIGNED)_ADDRESS",
    "raises": r"the work raised RuntimeError: raises \(misbehaving_gpu\.py:\d+\)",
    "waits": FINE,
    "asks for too much": "its buffers do not fit into memory",
}


def run(turns, settings=QUICK):
    """Return the trials that were told of."""
    told = []
    runner.run(turns, settings, told.append, lambda _: None)
    return told


@pytest.fixture(scope="module")
def outcomes(context):
    """Measure every kind of misbehaviour in one run, by what it does."""
    del context
    (suite,) = discovery.discover([misbehaving_gpu.__file__])
    cases = select([suite], overrides={"how": list(OUTCOMES)})
    told = run(plan(cases, [parse("kernel/warm")], 1, seed=0))
    return {trial.axes["how"]: trial for trial in told}


@pytest.mark.parametrize("how", OUTCOMES)
def test_whatever_a_kernel_does_is_said_and_the_run_goes_on(outcomes, how):
    """A fault and a hang cost a worker; whoever comes next has another."""
    assert set(outcomes) == set(OUTCOMES)
    trial, said = outcomes[how], OUTCOMES[how]
    if said is None:
        assert trial.error is None
        assert len(trial.samples) >= 6
    else:
        assert re.search(said, trial.error), trial.error
        assert trial.error.count(trial.case) == 1


@pytest.mark.parametrize("how", ["faults later", "raises"])
def test_samples_before_a_fault_are_kept(outcomes, how):
    """With the frequency of each."""
    samples = outcomes[how].samples
    assert len(samples.ticks) == len(samples.mhz) >= 1


@pytest.fixture(scope="module")
def scale(context):
    """Give one process's clocks and flushes, where there is a GPU."""
    del context
    return Instruments()


@benchmark(n=[1000])
def scaled(b, n):
    """PlannedTrial three arrays in place by our own kernel."""
    from steelyard_kernels.library.scale import scale as kernel

    b.on("cuda")
    arrays = [b.inout(n, name=name) for name in "xyz"]
    b.check(lambda *arrays: [-each for each in arrays], *arrays)
    return b.launch(kernel, *arrays, s=-1.0)


@benchmark(n=[1, 1000, 4_000_000])
def copied(b, n):
    """Copy an array by our own kernel."""
    from steelyard_kernels.library.copy import copy as kernel

    b.on("cuda")
    x = b.input(n)
    y = b.output(n)
    b.check(np.positive, x)
    return b.launch(kernel, x, out=y)


MODES = [
    "per_launch/warm/100",
    "per_launch/warm/graph/100",
    "per_launch/cold",
    "latency/warm",
    "latency/warm/allocated",
    "latency/cold",
    "build/cold",
    "build/warm-memory",
    "build/first",
    "kernel/cold",
    "kernel/warm",
    "kernel/warm/dependent",
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 1000, 4_000_000])
def test_every_mode_measures_a_kernel_on_a_gpu(scale, mode, n):
    """Checked, with raw samples, frequencies beside kernels, and a ledger of calls."""
    prepared = PreparedCase(copied.case({"n": n}), QUICK)
    trial = measure_case(prepared, parse(mode), scale, QUICK)
    assert trial.error is None
    assert len(trial.samples) >= (1 if mode == "build/first" else 3)  # seconds each
    kernel = mode.startswith("kernel")
    assert bool(trial.samples.mhz) == kernel
    if kernel:
        assert 100 < max(trial.samples.mhz) < 5000
        assert trial.facts["kernels"] == 1
    if mode.startswith("latency/warm"):
        assert {"pack", "submit", "kernel", "synchronise"} <= set(trial.ledger)
        assert ("allocate" in trial.ledger) == mode.endswith("allocated")
    if mode == "build/first":
        assert list(trial.ledger)[2:5] == ["context", "first allocation", "first copy"]
        assert trial.ledger["module load"] > 0


@pytest.mark.parametrize("mode", ["kernel/cold", "kernel/warm", *MODES[:4]])
def test_updates_in_place_are_measured_and_checked(scale, mode):
    """However many launches a window has: as many, untimed, leave the same."""
    prepared = PreparedCase(scaled.case({"n": 1000}), QUICK)
    trial = measure_case(prepared, parse(mode), scale, QUICK)
    assert trial.error is None
    assert not trial.extra["collapsed"]


def test_cold_launches_of_what_fits_the_cache_take_longer(scale):
    """Twice 16 MB, read and written: several microseconds more from memory."""
    prepared = PreparedCase(copied.case({"n": 4_000_000}), QUICK)
    cold, warm = (
        sorted(measure_case(prepared, parse(m), scale, QUICK).samples.per_launch())
        for m in ("kernel/cold", "kernel/warm")
    )
    assert cold[len(cold) // 2] > 1.2 * warm[len(warm) // 2]


def test_nodes_of_a_graph_cost_less_than_launches(scale):
    """Neither is less than the kernel takes."""
    prepared = PreparedCase(copied.case({"n": 1000}), QUICK)
    graph, launches = (
        min(measure_case(prepared, parse(m), scale, QUICK).samples.per_launch())
        for m in ("per_launch/warm/graph/100", "per_launch/warm/100")
    )
    assert 500 < graph < launches
