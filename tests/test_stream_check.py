"""Work that leaves the stream, on a GPU whose memory is the host's."""

import gc
from contextlib import contextmanager

import host_memory_gpu
import numpy as np
import pytest

from steelyard import BenchmarkError, Builder
from steelyard.measure import stream_check
from steelyard.prepare.gpu_buffers import DeviceBuffers

CONTEXT = host_memory_gpu.CONTEXT


class Gpu(host_memory_gpu.Driver):
    """Queues by stream: ours runs when it is waited for, others when all are."""

    def __init__(self):
        super().__init__()
        self.ours, self.others = [], []

    def cuStreamSynchronize(self, stream):  # noqa: N802 # the driver's name
        """Run what is queued, if the stream is ours."""
        if stream == CONTEXT.stream:
            run(self.ours)
        return (0,)

    def cuCtxSynchronize(self):  # noqa: N802 # the driver's name
        """Run what is queued anywhere."""
        run(self.ours)
        run(self.others)
        return (0,)


class Spin:
    """Holds nothing by itself: our queue runs only when it is waited for."""

    expired = False

    @contextmanager
    def held(self):
        """Do nothing."""
        yield


class Work:
    """Work whose launches do what a test says."""

    context, stream = CONTEXT, CONTEXT.stream

    def __init__(self, launch):
        self._launch = launch

    def launch(self, count=1):
        """Do so."""
        for _ in range(count):
            self._launch()

    def wait(self):
        """Wait for our stream."""
        self.context.wait()


def run(queue):
    """Run what is queued."""
    while queue:
        queue.pop(0)()


@pytest.fixture
def gpu(monkeypatch):
    """Give such a GPU; watch for a moment only."""
    fake = Gpu()
    host_memory_gpu.install(monkeypatch, fake)
    spin = fake.spin = Spin()
    monkeypatch.setattr(stream_check, "_spin", lambda _: spin)
    monkeypatch.setattr(stream_check.cuda, "beside", lambda _: host_memory_gpu.BESIDE)
    monkeypatch.setattr(stream_check, "WATCHED", 0)
    monkeypatch.setattr(stream_check, "AFTER", 0)
    yield fake
    gc.collect()


def buffers_of(size=300_000, *, updates=False):
    """Return an input and an output, or an array that is updated."""
    b = Builder()
    x = b.input(10, name="x")
    y = b.inout(size, name="y") if updates else b.output(size, name="y")
    return DeviceBuffers(CONTEXT, (x, y), 0, {})


def writes(buffers, *places):
    """Return work that adds one to elements of y."""

    def write():
        y = buffers.arrays["y"]
        for place in places:
            one = y.part(4 * place, (1,), np.float32)
            one.fill(one.read()[0] / 2)

    return write


@pytest.mark.parametrize("updates", [True, False])
def test_work_in_our_stream_passes_and_leaves_one_launch(gpu, updates):
    """Of restored and poisoned buffers."""
    buffers = buffers_of(10, updates=updates)
    first = buffers.read("y")
    write = writes(buffers, 3)
    assert not stream_check.check_stream(Work(lambda: gpu.ours.append(write)), buffers)
    after = buffers.read("y")
    assert np.flatnonzero(after != first).tolist() == [3]
    assert after[3] == first[3] / 2


@pytest.mark.parametrize("size", [1, 7, 300_000])
@pytest.mark.parametrize("where", [0, 0.5, 1])
def test_a_write_while_the_stream_is_held_is_caught(gpu, size, where):
    """At the start, in the middle, at the end."""
    buffers = buffers_of(size)
    with pytest.raises(BenchmarkError, match=r"wrote y while its .* Pass it b\.stream"):
        stream_check.check_stream(
            Work(writes(buffers, int(where * (size - 1)))), buffers
        )


def test_a_write_of_what_an_earlier_launch_left_is_caught(gpu):
    """The launch before wrote the same: it is poisoned, so that one shows."""
    buffers = buffers_of()
    y = buffers.arrays["y"]
    y.fill(3)
    with pytest.raises(BenchmarkError, match="wrote y while its stream"):
        stream_check.check_stream(Work(lambda: y.fill(3)), buffers)


def test_work_that_goes_on_elsewhere_is_caught(gpu):
    """It is done only when everything on the GPU is."""
    buffers = buffers_of()
    write = writes(buffers, 0)
    with pytest.raises(
        BenchmarkError, match="changed y after everything on its stream"
    ):
        stream_check.check_stream(Work(lambda: gpu.others.append(write)), buffers)


def test_work_for_which_the_stream_was_let_go_waits_inside(gpu):
    """What it wrote by then says nothing."""
    buffers = buffers_of()
    write = writes(buffers, 0)

    def launch():
        gpu.spin.expired = True
        write()

    assert stream_check.check_stream(Work(launch), buffers)


def test_work_that_fails_lets_the_stream_go(gpu):
    """Its own error is told."""
    buffers = buffers_of()
    with pytest.raises(ZeroDivisionError):
        stream_check.check_stream(Work(lambda: 1 / 0), buffers)
