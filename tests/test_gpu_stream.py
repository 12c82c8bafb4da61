import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_gpu import FakeClock, Machine

from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.errors import BenchmarkError
from steelyard.measure import gpu_stream, interleave, sampler
from steelyard.measure.gpu_instruments import WINDOWS
from steelyard_device import cuda

COLD, WARM = parse("kernel/cold"), parse("kernel/warm")


class Rig:
    """A prepared case and what measures it, on a made-up GPU whose time is the host's."""

    def __init__(self, monkeypatch, *clocks, updates=0, **facts):
        self.machine = machine = Machine()
        self.clocks = [FakeClock(machine, **how) for how in clocks or ({},)]
        monkeypatch.setattr(gpu_stream, "perf_counter_ns", lambda: machine.time)
        self.work = SimpleNamespace(launch=lambda _: machine.log.append("touch"))
        self.scale = SimpleNamespace(
            stamps=machine,
            flush=machine.does("flush"),
            clocks=lambda _: self.clocks,
            release_lines=machine.does("release"),
            capped=machine.watched,
            kernels=lambda _: 3,
        )
        self.scale.flush.nbytes = 1 << 27
        self.prepared = SimpleNamespace(
            buffers=SimpleNamespace(
                restore=machine.does("restore"), poison=machine.does("poison")
            ),
            description=SimpleNamespace(handles_of=lambda _: "x" * updates),
            check=lambda launches: machine.log.append(f"check {launches}"),
            facts=lambda: facts,
        )

    def stream(self, mode):
        """Return the windows of a trial, and how long a launch takes."""
        return gpu_stream.stream_of(
            self.prepared, self.work, mode, self.scale, self.clocks[0]
        )

    def queued(self, mode, settings):
        """Sample; return what is told beside, and the samples."""
        record, extra = sampler.Record(), {}

        def windows():
            told = yield from gpu_stream.queued(
                *(self.prepared, self.work, mode, self.scale, settings),
                record=record,
                seed=0,
            )
            extra.update(told)

        interleave.alone(windows())
        return extra, record.samples()


def test_a_cold_window_is_one_launch_behind_a_flush(monkeypatch):
    """And nothing warms it; lines that others pinned are let go of once."""
    rig = Rig(monkeypatch)
    stream, each = rig.stream(COLD)
    assert each == 3200
    rig.machine.log.clear()
    stream.warm_caches()
    stream.flush_caches()
    assert rig.machine.log == ["flush"]
    _, samples = rig.queued(COLD, Settings())
    assert set(samples.launches) == {1}
    assert rig.machine.log.count("release") == 1


def test_a_warm_window_stands_behind_a_launch_that_is_not_timed(monkeypatch):
    """Unless a launch is long; and nothing is flushed."""
    rig = Rig(monkeypatch)
    stream, _ = rig.stream(WARM)
    rig.machine.log.clear()
    stream.warm_caches()
    assert rig.machine.log == ["touch"]
    slow = Rig(monkeypatch, {"kernel": 2_000_000})
    stream, _ = slow.stream(WARM)
    slow.machine.log.clear()
    stream.warm_caches()
    assert slow.machine.log == []
    assert "flush" not in slow.machine.log


@pytest.mark.parametrize(
    ("kernel", "leads"), [(600, 3), (100_000, 2), (299_999, 1), (300_000, 0)]
)
def test_a_lead_lasts_until_the_clock_is_steady(monkeypatch, kernel, leads):
    """It flushes, whatever the mode, and launches the work; a long launch needs none."""
    rig = Rig(monkeypatch, {"kernel": kernel})
    stream, _ = rig.stream(WARM)
    rig.machine.log.clear()
    stream.ramp_clocks()
    assert rig.machine.log == ["flush", "touch"] * leads


@pytest.mark.parametrize("kernel", [600, 3_200, 50_000, 3_000_000, 400_000_000])
def test_a_queue_lasts_a_few_milliseconds(monkeypatch, kernel):
    """Of short kernels it has many windows, of a long one a single one."""
    rig = Rig(monkeypatch, {"kernel": kernel})
    stream, _ = rig.stream(COLD)
    window = kernel + 72_000
    assert 1 <= stream.room <= WINDOWS
    assert stream.room == 1 or stream.room * window <= gpu_stream.QUEUE
    assert (stream.room + 1) * window > gpu_stream.QUEUE
    # A kernel of half a second is tried twice before it is sampled, not seven times.
    tried = sum(rig.clocks[0].asked)
    assert tried == (2 if kernel > gpu_stream.LONG else 2 + gpu_stream.PROBES)


@pytest.mark.parametrize(("room", "kernels"), [(1, 1), (30, 1), (900, 300), (10, 4)])
def test_no_queue_has_more_than_fits_behind_a_spin(monkeypatch, room, kernels):
    """It would wait for the host, which waits for room in it."""
    rig = Rig(monkeypatch, {"room": room, "kernels": kernels}, updates=2)
    rig.queued(WARM, Settings())
    for windows in rig.clocks[0].asked:
        assert windows == 1 or windows * kernels <= room


def test_work_that_waits_by_itself_has_windows_alone(monkeypatch):
    """It would wait for the spin; and no clock that needs one checks it."""
    rig = Rig(monkeypatch, {}, {}, synchronises=True)
    extra, _ = rig.queued(COLD, Settings(precision=0.5))
    assert set(rig.clocks[0].asked) == {1}
    assert rig.clocks[1].asked == []
    assert "clocks" not in extra


@pytest.mark.parametrize(("kernel", "room"), [(3300, 900), (3300, 16)])
def test_other_clocks_read_the_same_case_in_turn(monkeypatch, kernel, room):
    """In as many windows as count, and in as many queues as they need."""
    rig = Rig(
        monkeypatch,
        {},
        {"kernel": kernel, "room": room},
        {"caches": ("warm",)},
    )
    facts = replace(rig.clocks[1].facts, uncertainty=150.0, drift=5e-4)
    rig.clocks[1].facts = rig.clocks[2].facts = facts
    extra, samples = rig.queued(COLD, Settings(precision=0.5))
    asked = rig.clocks[1].asked
    assert max(asked) <= room // 2
    assert sum(asked) == gpu_stream.CHECKS
    assert rig.clocks[2].asked == []
    (read,) = extra["clocks"].values()
    assert read["ticks"] == [kernel + 2000] * gpu_stream.CHECKS
    assert (read["offset"], read["quantum"]) == (2000.0, 32.0)
    assert (read["uncertainty"], read["drift"]) == (150.0, 5e-4)
    assert extra["settled"]
    assert extra["expired"] == 0
    assert extra["kernels"] == 1
    assert extra["l2_flush_bytes"] == 1 << 27
    assert set(samples.per_launch()) == {5200}


@pytest.mark.parametrize(("kernel", "windows"), [(2_000_000, 10), (10**9, 3)])
def test_other_clocks_read_few_windows_of_a_long_kernel(monkeypatch, kernel, windows):
    """They say as much; a second is not spent on a check."""
    rig = Rig(monkeypatch, {"kernel": kernel}, {"kernel": kernel})
    rig.queued(COLD, Settings(precision=0.5))
    assert rig.clocks[1].asked == [windows]


def test_a_clock_that_cannot_read_the_work_is_left_out_with_its_reason(monkeypatch):
    """But for a lost GPU, which ends the trial."""
    rig = Rig(monkeypatch, {}, {})

    def refuse(*_):
        raise BenchmarkError("it cannot be recorded")

    rig.clocks[1].read = refuse
    extra, _ = rig.queued(WARM, Settings(precision=0.5))
    assert extra["clocks"] == {}
    assert extra["clocks_left_out"] == {"fake": "it cannot be recorded"}

    def lose(*_):
        raise cuda.CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS", "gone")

    rig.clocks[1].read = lose
    with pytest.raises(cuda.CUDAError, match="gone"):
        rig.queued(WARM, Settings(precision=0.5))


def test_the_clock_is_watched_round_the_samples_alone(monkeypatch):
    """Not while windows are sized, nor while other clocks read the same."""
    rig = Rig(monkeypatch, {}, {})
    extra, _ = rig.queued(COLD, Settings(precision=0.5))
    log = rig.machine.log
    begin, end = log.index("watch"), log.index("watched")
    assert extra["capped"] == {"power": 0}
    assert "wait" in log[:begin]
    assert "wait" in log[begin:end]
    assert "wait" in log[end:]


@pytest.mark.parametrize(
    ("seen", "facts", "kernels"),
    [(2, {}, 2), (0, {}, 3), (0, {"synchronises": True}, 0)],
)
def test_kernels_that_a_clock_does_not_see_are_counted(
    monkeypatch, seen, facts, kernels
):
    """By recording a launch; work that waits for the GPU cannot be recorded."""
    rig = Rig(monkeypatch, {"kernels": seen}, **facts)
    extra, _ = rig.queued(COLD, Settings(precision=0.5))
    assert extra["kernels"] == kernels


def test_a_clock_that_does_not_read_the_mode_says_so(monkeypatch):
    """Before anything is launched."""
    rig = Rig(monkeypatch, {"caches": ("warm",)})
    with pytest.raises(
        BenchmarkError, match="fake does not read kernels that are cold"
    ):
        rig.stream(COLD)
    assert rig.machine.log == []


def test_a_trial_ends_with_its_budget(monkeypatch):
    """However wide its samples are."""
    rig = Rig(monkeypatch, {"kernel": 1000})
    time = itertools.count(step=10_000_000)
    monkeypatch.setattr("steelyard.measure.sampler.perf_counter_ns", lambda: next(time))
    extra, samples = rig.queued(COLD, Settings(precision=1e-9, budget=0.2))
    assert not extra["settled"]
    assert 3 <= len(samples) <= 20 + WINDOWS
