import ctypes

import pytest

from steelyard_device import turns
from steelyard_device.cuda import native

OURS, OTHER, STREAM, FAILED = 0xC0, 0xDD, 0x55, 700
POINTER, WORD, INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
TAKES = (
    (POINTER, *[INT] * 7, POINTER, POINTER, POINTER),
    (POINTER,),
    (ctypes.POINTER(WORD),),
    (POINTER,),
    (ctypes.POINTER(WORD),),
    (POINTER, POINTER),
    (POINTER, ctypes.POINTER(INT)),
    (POINTER, WORD, WORD, POINTER),
    (ctypes.POINTER(WORD), WORD),
)


class Driver:
    """What native code calls instead of CUDA's: it writes down what it was asked.

    `current` is the thread's context, `fails` the name of a call and after how many.
    """

    def __init__(self, *, current=OURS, fails=("", 0), capturing=0, seen=b""):
        self.current, self.fails = [current], list(fails)
        self.capturing, self.seen = capturing, seen
        self.asked = []
        made = [
            ctypes.CFUNCTYPE(ctypes.c_int, *takes)(self._called(name))
            for name, takes in zip(native.CALLS, TAKES, strict=True)
        ]
        self.alive = made
        self.table = (POINTER * len(made))(*[ctypes.cast(f, POINTER) for f in made])

    def _called(self, name):
        def call(*args):
            self.asked.append((name, *[a for a in args if isinstance(a, int)]))
            if name == self.fails[0]:
                self.fails[1] -= 1
                if self.fails[1] < 0:
                    return FAILED
            self._answer(name, *args)
            return 0

        return call

    def _answer(self, name, first, second=None, third=None, *_):
        match name:
            case "cuCtxGetCurrent":
                first[0] = self.current[-1]
            case "cuCtxPushCurrent":
                self.current.append(first)
            case "cuCtxPopCurrent":
                first[0] = self.current.pop()
            case "cuStreamIsCapturing":
                second[0] = self.capturing
            case "cuMemcpyDtoHAsync":
                ctypes.memmove(first, self.seen, third)
            case "cuTensorMapReplaceAddress":
                assert ctypes.addressof(first.contents) % 64 == 0
                first[0] = second

    def names(self):
        """Return what was asked for, in order."""
        return [name.removeprefix("cu") for name, *_ in self.asked]


def run(kind, driver, entries, count, *, turns=1, first=0):
    """Run a function of native code; return its status and the batch."""
    batch = native.Batch(
        calls=ctypes.addressof(driver.table),
        context=OURS,
        stream=STREAM,
        entries=entries,
        count=turns,
        next=first,
    )
    function = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_int64)
    status = function(native.addresses()[kind])(ctypes.addressof(batch), count)
    return status, batch


def entry(number):
    """Return a launch that is told by its number."""
    return native.Entry(
        function=number,
        grid=(1, 2, 3),
        block=(4, 5, 6),
        shared=7,
        parameters=0x1000 + number,
    )


def told(number):
    """Return what the driver hears of a launch."""
    launch = number, 1, 2, 3, 4, 5, 6, 7, STREAM, 0x1000 + number
    return ("cuLaunchKernel", *launch)


def test_launches_are_issued_in_turn():
    """Each is told whole, and a later run goes on where one ended."""
    every = [entry(number) for number in (1, 2, 3)]
    table = (POINTER * 3)(*map(ctypes.addressof, every))
    driver = Driver()
    status, batch = run(
        "cuda_launch", driver, ctypes.addressof(table), 4, turns=3, first=2
    )
    assert (status, batch.next) == (0, 0)
    assert driver.asked == [("cuCtxGetCurrent",), *map(told, (3, 1, 2, 3))]
    driver = Driver(fails=("cuLaunchKernel", 1))
    status, batch = run("cuda_launch", driver, ctypes.addressof(table), 4, turns=3)
    assert (status, batch.next) == (FAILED, 1)
    assert len(driver.asked) == 3
    of_none = run("cuda_launch", Driver(), ctypes.addressof(table), 0, turns=3, first=1)
    assert of_none[1].next == 1


def test_another_context_is_put_back():
    """Ours is on top meanwhile, also where a launch fails."""
    one = entry(1)
    table = (POINTER * 1)(ctypes.addressof(one))
    for fails in (("", 0), ("cuLaunchKernel", 0)):
        driver = Driver(current=OTHER, fails=fails)
        status, _ = run("cuda_launch", driver, ctypes.addressof(table), 1)
        assert status == (FAILED if fails[0] else 0)
        assert driver.current == [OTHER]
        enters = ["CtxGetCurrent", "CtxPushCurrent", "LaunchKernel", "CtxPopCurrent"]
        assert driver.names() == enters
    for fails in ("cuCtxGetCurrent", "cuCtxPushCurrent"):
        driver = Driver(current=OTHER, fails=(fails, 0))
        assert run("cuda_launch", driver, ctypes.addressof(table), 1)[0] == FAILED
        assert driver.asked[-1][0] == fails


@pytest.mark.parametrize("fails", ["", "cuLaunchKernel", "cuStreamSynchronize"])
def test_a_window_lies_around_launches_and_the_wait(fails):
    """Its ends are read where launches were submitted; otherwise they stay."""
    one = entry(1)
    table = (POINTER * 1)(ctypes.addressof(one))
    driver = Driver(fails=(fails, 0))
    status, batch = run("cuda_window", driver, ctypes.addressof(table), 2)
    assert status == (FAILED if fails else 0)
    if fails == "cuLaunchKernel":
        assert (batch.start, batch.stop) == (0, 0)
        return
    assert 0 < batch.start <= batch.stop
    launches = ["LaunchKernel"] * 2
    assert driver.names() == ["CtxGetCurrent", *launches, "StreamSynchronize"]


def test_a_graph_is_launched_unless_its_stream_is_recorded():
    """What is recorded cannot have it, and nothing is tried."""
    driver = Driver()
    assert run("cuda_graph_launch", driver, 0x99, 3)[0] == 0
    assert driver.asked[2:] == [("cuGraphLaunch", 0x99, STREAM)] * 3
    driver = Driver(capturing=1)
    assert run("cuda_graph_window", driver, 0x99, 3)[0] == native.CAPTURING
    assert "GraphLaunch" not in driver.names()
    driver = Driver(fails=("cuGraphLaunch", 1))
    assert run("cuda_graph_launch", driver, 0x99, 3)[0] == FAILED


def test_a_series_repeats_what_its_order_says():
    """Words change from turn to turn, and what decides is read from the GPU's memory."""
    every = [entry(number) for number in (1, 2, 3)]
    order = [
        (turns.TAKE, 1, 0),
        (turns.BEGIN, 0, 6),
        (turns.MOVE, 1, 1, 16, 2, 3),
        (turns.TENSOR, 1, 5, 0, 2, 3),
        (turns.KERNEL, 0),
        (turns.END, 1),
        (turns.ODD, 1, 8),
        (turns.KERNEL, 1),
        (turns.COUNT, 9, 4),
        (turns.BEGIN, 0, 13),
        (turns.TEST, 9, 4),
        (turns.KERNEL, 2),
        (turns.END, 9),
    ]
    own = turns.size(order)
    words = [3, 0, 1000, 2000, 0xABC, *[0] * 20]
    kernels = [(ctypes.addressof(each),) for each in every]
    records = turns.table(order, kernels, 0, own.__add__)
    table = (ctypes.c_int64 * (own + len(words)))(*records, *words)
    driver = Driver(seen=(2).to_bytes(8, "little"))
    status, _ = run("cuda_series_launch", driver, ctypes.addressof(table), 1)
    assert status == 0
    launches = [asked[1] for asked in driver.asked if asked[0] == "cuLaunchKernel"]
    assert launches == [1, 1, 1, 2, 3, 3]
    assert table[own + 1] == 1000 + 2 * 16  # the third turn's, an even one
    assert table[own + 5] == 1000
    reads = [asked[2:] for asked in driver.asked if asked[0] == "cuMemcpyDtoHAsync"]
    assert reads == [(0xABC, 8, STREAM)] + [(0xABC, 1, STREAM)] * 2
    waits = driver.names().count("StreamSynchronize")
    assert waits == len(reads)
    driver = Driver(seen=bytes(8), fails=("cuMemcpyDtoHAsync", 0))
    assert run("cuda_series_launch", driver, ctypes.addressof(table), 1)[0] == FAILED
