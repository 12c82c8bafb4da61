"""CUPTI's times of a GPU's work."""

import itertools
import threading

import gpu
import numpy as np
import pytest

from steelyard_device import cuda
from steelyard_device.cuda import activity
from steelyard_device.cuda.activity import Recorder
from steelyard_device.errors import DeviceError


@pytest.fixture(scope="module")
def context():
    """Give the first GPU, where CUPTI is and nobody else has it."""
    found = gpu.context()
    if why := activity.missing():
        pytest.skip(why)
    yield found
    activity.detach()


def recorded(context, work):
    """Return the activities of ``work``."""
    recorder = Recorder(context)
    with recorder.recording(), recorder.window(0):
        work()
    context.wait()
    return recorder.collect()[0]


def test_windows_have_what_was_submitted_in_them(context):
    """Kernels, the nodes of graphs, fills, copies; nothing of what is between."""
    null, flush = cuda.null(context), cuda.Flush(context)
    graph = cuda.Graph(null, 5)
    buffer = cuda.Buffer(context, (1000,), np.uint8)
    recorder = Recorder(context)
    with recorder.recording():
        for number in range(20):
            flush()
            with recorder.window(number):
                null.launch(number)
        with recorder.window(20):
            graph.launch()
            buffer.fill(1)
        null.launch()
        with recorder.window(21):
            buffer.read()
        with recorder.window(22):
            pass
    context.wait()
    found = recorder.collect()
    assert [len(found[number]) for number in range(20)] == list(range(20))
    assert {each.name for number in range(20) for each in found[number]} == {
        "steelyard_null"
    }
    assert [each.kind for each in found[20]] == ["kernel"] * 5 + ["memset"]
    assert [(each.kind, each.nbytes) for each in found[21]] == [("memcpy", 1000)]
    assert found[22] == ()
    everything = [each for acts in found.values() for each in acts]
    assert {each.stream for each in everything} == {recorder.stream}
    assert all(
        before.end <= after.start for before, after in itertools.pairwise(everything)
    )


def test_a_kernel_says_its_shape(context):
    """As it was launched and compiled."""
    null = cuda.null(context)
    (one,) = recorded(context, null.launch)
    assert (one.grid, one.block) == ((1, 1, 1), (32, 1, 1))
    assert one.registers >= null.function.attributes.registers
    assert one.nbytes == 0


def test_a_delay_takes_what_its_own_timer_says(context):
    """Of a microsecond to two milliseconds: more by what leads to it and from it."""
    more = []
    for steps in (2560, 25_600, 256_000, 1_024_000):
        delay = cuda.Delay(context, steps)
        times = [
            each.end - each.start
            for each in recorded(context, lambda d=delay: d.launch(9))
        ]
        more.append(np.median(times) - delay.nanoseconds())
    assert all(100 < each < 2000 for each in more)
    assert max(more) - min(more) < 500


def test_another_thread_and_another_stream_are_seen(context):
    """A thread's launches count; a stream that is not ours is told apart."""
    null = cuda.null(context)
    thread = threading.Thread(target=null.launch, args=(3,))
    acts = recorded(context, lambda: (thread.start(), thread.join()))
    assert len(acts) == 3
    legacy = cuda.null(context, stream=1)

    def elsewhere():
        legacy.launch()
        legacy.wait()

    recorder = Recorder(context)
    with recorder.recording(), recorder.window(0):
        elsewhere()
    (one,) = recorder.collect()[0]
    assert one.stream != recorder.stream


def test_ten_thousand_activities_are_all_there(context):
    """More than a buffer has, in order."""
    null = cuda.null(context)
    acts = recorded(context, lambda: null.launch(50_000))
    assert len(acts) == 50_000
    starts = [each.start for each in acts]
    assert starts == sorted(starts)


def test_collecting_too_early_is_an_error(context):
    """A window that lacks activities would read too fast."""
    delay = cuda.Delay(context, 10_000_000)
    recorder = Recorder(context)
    with recorder.recording(), recorder.window(0):
        delay.launch()
    with pytest.raises(DeviceError, match="wait for the stream"):
        recorder.collect()
    context.wait()
    assert recorder.collect() == {}


def test_a_recorder_outlives_detaching(context):
    """Twice, and the numbers of calls start anew."""
    null = cuda.null(context)
    recorder = Recorder(context)
    for count in (3, 4, 5):
        with recorder.recording(), recorder.window(0):
            null.launch(count)
        context.wait()
        assert len(recorder.collect()[0]) == count
        activity.detach()
        null.launch(3)
        null.wait()


def test_its_clock_goes_on_with_activities(context):
    """A launch between two reads of it lies between them."""
    null = cuda.null(context)
    null.launch()
    context.wait()

    def launch():
        null.launch()
        context.wait()

    before = activity.now()
    (one,) = recorded(context, launch)
    assert before < one.start < one.end < activity.now()
