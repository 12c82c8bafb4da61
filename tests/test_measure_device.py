from types import SimpleNamespace

import pytest
from fake_gpu import FakeClock, Machine
from fakes import QUICK, case_of, negate

from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.machine import gpu_state
from steelyard.measure import audit, gpu_instruments, gpu_stream
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import measure_case
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import work
from steelyard.store.codec import pack, unpack
from steelyard_device import cuda
from steelyard_device.cuda import activity


class Launched:
    """A callable on the CPU that passes for work on a GPU."""

    def __init__(self, inner, context):
        self.launch, self.wait, self.ready = inner.launch, inner.wait, inner.ready
        self.facts, self.context, self.stream = inner.facts, context, 7


class Rig:
    """A case whose GPU is made up; its arrays lie on the CPU and are checked there."""

    def __init__(self, monkeypatch, body, **axes):
        self.machine = machine = Machine()
        self.clocks = [FakeClock(machine), FakeClock(machine, kernel=3300)]
        context = SimpleNamespace(device=SimpleNamespace(l2_bytes=60 << 20, index=0))
        self.prepared = PreparedCase(case_of(body), QUICK)
        self.prepared.work = Launched(self.prepared.work, context)
        benchmark = self.prepared.case.benchmark
        case = SimpleNamespace(id=body.__name__, axes=axes, benchmark=benchmark)
        self.prepared.case = case
        self.scale = Instruments()
        self.device = SimpleNamespace(
            stamps=machine,
            flush=machine.does("flush"),
            clocks=lambda _: self.clocks,
            release_lines=lambda: None,
            capped=machine.watched,
            persisting=lambda: self.set_aside,
            null=lambda _: 640.0,
        )
        self.device.flush.nbytes = 1 << 27
        self.detached = []
        self.set_aside = 0
        monkeypatch.setattr(self.scale, "on", lambda _: self.device)
        monkeypatch.setattr(gpu_state, "before", lambda _: {"sm_mhz": 1980})
        monkeypatch.setattr(gpu_state, "after", lambda _, start: {"before": start})
        monkeypatch.setattr(
            gpu_instruments, "measured_energy", lambda *_: {"joules_per_launch": 1.5}
        )
        monkeypatch.setattr(activity, "detach", lambda: self.detached.append(1))
        monkeypatch.setattr(gpu_stream, "perf_counter_ns", lambda: machine.time)
        for clock in self.clocks:
            clock.read = self.launching(clock.read)

    def launching(self, read):
        """Have windows of a made-up clock launch the work, as real ones do."""

        def launch(measured, windows, ahead):
            def each(place):
                ahead(place)
                measured.launch(1)

            return read(measured, windows, each)

        return launch

    def measure(self, mode, settings=QUICK):
        """Return the trial."""
        return measure_case(self.prepared, parse(mode), self.scale, settings)


@pytest.mark.parametrize("mode", ["kernel/cold", "kernel/warm"])
def test_a_kernels_trial_has_all_that_its_gpu_tells(monkeypatch, mode):
    """Raw ticks by its own clock, frequencies, another clock, and the GPU's state."""
    rig = Rig(monkeypatch, negate)
    trial = rig.measure(mode)
    assert trial.error is None
    assert isinstance(rig.prepared.work, work.DeviceWork)
    assert set(trial.samples.mhz) == {1980}
    assert (trial.clock.id, trial.clock.offset) == ("fake", 2000.0)
    assert trial.facts["kernels"] == 1
    assert trial.floors["null"] == 640
    found = {"before": {"sm_mhz": 1980}, "capped": {"power": 0}}
    assert trial.extra["gpu"] == found
    assert "capped" not in trial.extra
    assert trial.extra["clocks"]["fake"]["ticks"]
    assert ("l2_flush_bytes" in trial.extra) == (mode == "kernel/cold")
    assert "flush_bytes" not in trial.extra  # the CPU's own
    assert unpack(pack(trial.samples, ()))[0] == trial.samples
    assert rig.detached == []


def test_threads_that_spin_do_not_doubt_a_gpus_time(monkeypatch):
    """Libraries leave some: PyTorch's, or those that made the reference."""
    monkeypatch.setattr(audit, "spins", lambda: True)
    rig = Rig(monkeypatch, negate)
    assert "again" in (found := audit.audit(rig.prepared, None))
    assert "spins" not in found


def test_a_lost_gpu_fails_the_trial_and_keeps_its_samples(monkeypatch):
    """The driver's sentence is told as it is."""
    rig = Rig(monkeypatch, negate)
    read, queues = rig.clocks[0].read, []

    def lose(*asked):
        queues.append(asked)
        if len(queues) > 4:
            raise cuda.CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS", "the GPU is gone")
        return read(*asked)

    rig.clocks[0].read = lose
    trial = rig.measure("kernel/cold", Settings(precision=1e-9))
    assert trial.error == "negate: the GPU is gone"
    assert len(trial.samples) == len(trial.samples.mhz) == 1
    assert trial.clock.id == "fake"


def test_energy_is_metered_where_inputs_are_compared(monkeypatch):
    """Of kernels alone, and the data is as it was."""
    rig = Rig(monkeypatch, negate, inputs="zeros")
    metered = rig.measure("kernel/cold").extra["gpu"]["energy"]
    assert metered == {"joules_per_launch": 1.5}
    assert "energy" not in rig.measure("per_launch/warm").extra["gpu"]
    assert "energy" not in Rig(monkeypatch, negate).measure("kernel/cold").extra["gpu"]


def test_energy_is_metered_after_the_state_is_read(monkeypatch):
    """Its launches heat the GPU, and are none of the samples."""
    rig = Rig(monkeypatch, negate, inputs="zeros")
    order = []
    monkeypatch.setattr(gpu_state, "after", lambda *_: order.append("after") or {})
    monkeypatch.setattr(
        gpu_instruments, "measured_energy", lambda *_: order.append("energy")
    )
    assert rig.measure("kernel/cold").error is None
    assert order == ["after", "energy"]

    def fail(*_):
        raise cuda.CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS", "the GPU is gone")

    monkeypatch.setattr(gpu_instruments, "measured_energy", fail)
    assert rig.measure("kernel/cold").error == "negate: the GPU is gone"


@pytest.mark.parametrize("mode", ["kernel/cold", "per_launch/cold", "kernel/warm"])
def test_cache_that_is_set_aside_is_not_cold(monkeypatch, mode):
    """Each launch may keep lines there again, which no flush evicts."""
    rig = Rig(monkeypatch, negate)
    assert "wrong-cache" not in rig.measure(mode).doubts
    rig.set_aside = 4096
    trial = rig.measure(mode)
    assert ("wrong-cache" in trial.doubts) is mode.endswith("cold")
    if mode.endswith("cold"):
        assert trial.extra["wrong_cache"].startswith("4096 bytes of the L2 cache")


@pytest.mark.parametrize(
    "mode", ["per_launch/warm/8", "latency/cold", "latency/warm/8"]
)
def test_calls_are_timed_without_cuptis_hooks(monkeypatch, mode):
    """By the host's clock; a batch of them has no ledger, they overlap."""
    rig = Rig(monkeypatch, negate)
    trial = rig.measure(mode)
    assert trial.error is None
    assert rig.detached == [1]
    assert trial.extra["gpu"]["capped"] == {"power": 0}
    assert trial.clock.id == "perf_counter_ns"
    assert trial.samples.mhz == ()
    assert trial.ledger == {}


def test_a_ledger_reads_the_kernel_without_cupti(monkeypatch):
    """Its hooks would come back into the calls that are timed beside."""
    rig = Rig(monkeypatch, negate)
    asked = []
    rig.device.clocks = lambda which: asked.append(which) or rig.clocks
    trial = rig.measure("latency/warm")
    assert trial.error is None
    assert "kernel" in trial.ledger
    assert asked == ["events"]


def test_a_graph_is_of_launches_on_a_gpu(monkeypatch):
    """Of anything else it is refused in a sentence."""
    made = []

    class Graph:
        def __init__(self, measured, nodes):
            made.append(nodes)
            self.launch, self.wait = measured.launch, measured.wait

    monkeypatch.setattr(cuda, "Graph", Graph)
    trial = Rig(monkeypatch, negate).measure("per_launch/warm/graph/16")
    assert trial.error is None
    assert made == [16]
    assert all(n % 16 == 0 for n in trial.samples.launches)
    here = PreparedCase(case_of(negate), QUICK)
    said = measure_case(
        here, parse("per_launch/warm/graph/16"), Instruments(), QUICK
    ).error
    assert "asks for a CUDA graph, but negate runs on the CPU" in said
