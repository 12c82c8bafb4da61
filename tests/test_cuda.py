"""The CUDA half of the device layer where no GPU is needed: errors, packing, the loop."""

import ctypes
import pickle
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import shell
from host_memory_gpu import CONTEXT
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import install, llvm, turns
from steelyard_device.cuda import driver as cuda_driver
from steelyard_device.cuda import launch as cuda_launch
from steelyard_device.cuda import native as cuda_native
from steelyard_device.cuda.driver import CUDAError
from steelyard_device.cuda.graph import Chain
from steelyard_device.cuda.issue import Issued
from steelyard_device.cuda.launch import Launch, Rotation, extents, packed
from steelyard_device.cuda.module import Attributes, Function, check_whole
from steelyard_device.cuda.series import Series
from steelyard_device.errors import DeviceError

ATTRIBUTES = Attributes(32, 0, 0, 0, 1024, "sm_90")


WORD, INT = ctypes.c_void_p, ctypes.c_uint32
WORDS = ctypes.POINTER(ctypes.c_uint64)
TAKES = {
    "launch": (WORD, *[INT] * 7, WORD, ctypes.POINTER(WORD), WORD),
    "wait": (WORD,),
    "get": (WORDS,),
    "push": (WORD,),
    "pop": (WORDS,),
    "graph": (WORD, WORD),
    "capturing": (WORD, ctypes.POINTER(INT)),
    "copy": (WORD, WORD, ctypes.c_size_t, WORD),
    "replace": (WORDS, ctypes.c_uint64),
}
"""What `native.CALLS` take, in their order."""


class Recorder:
    """Stands in for the driver's entry points and writes down what they do."""

    def __init__(self):
        self.current, self.recorded = [CONTEXT.handle], 0
        self.calls = []
        self.fails = {}
        """Statuses, by the name of a call and how many of these were before it."""
        self._asked = Counter()
        self._kept = [
            ctypes.CFUNCTYPE(ctypes.c_int32, *takes)(partial(self._called, name))
            for name, takes in TAKES.items()
        ]
        self.table = (WORD * len(self._kept))(
            *(ctypes.cast(each, WORD) for each in self._kept)
        )

    def _called(self, name, *args):
        before, self._asked[name] = self._asked[name], self._asked[name] + 1
        said = self.answer(name, *args)
        if said is not None:
            self.calls.append((name, *said))
        return self.fails.get((name, before), 0)

    def answer(self, name, first, *rest):
        """Do what a call does to memory and contexts; return what is told of it."""
        match name:
            case "launch":
                *numbers, stream, parameters, _ = rest
                at = parameters[0]
                value = ctypes.c_uint64.from_address(at).value if at else None
                return first, tuple(numbers), stream, value
            case "get":
                first[0] = self.current[-1]
            case "push":
                self.current.append(first)
                return (first,)
            case "pop":
                first[0] = self.current.pop()
                return ()
            case "capturing":
                rest[0][0] = self.recorded
            case "copy":  # of memory that is the host's here
                ctypes.memmove(first, *rest[:2])
                return rest[1:]
            case "replace":
                assert ctypes.addressof(first.contents) % 64 == 0
                first[0] = rest[0]
            case _:
                return first, *rest
        return None

    def launched(self):
        """Return each launch's first argument."""
        return [call[4] for call in self.calls if call[0] == "launch"]


@pytest.fixture
def driver(monkeypatch):
    """Launch into a recorder."""
    names = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra")
    recorder = Recorder()
    monkeypatch.setattr(cuda_native, "calls", lambda: recorder.table)
    fake = SimpleNamespace(
        CUresult=names.CUresult, cuGetErrorString=lambda _: (0, b"as the driver says")
    )
    monkeypatch.setattr(cuda_driver, "bindings", lambda: fake)
    return recorder


def function(*sizes, name="kernel"):
    """Return a function with parameters of these sizes."""
    return Function(name, 0xF0, CONTEXT, sizes, ATTRIBUTES)


def said_by_a_process(script):
    """Return what a process without a GPU prints."""
    done = shell.python("-c", script, check=True, CUDA_VISIBLE_DEVICES="")
    return done.stdout.strip()


ASK = """
from steelyard_device import cuda
from steelyard_device.errors import DeviceError
try:
    cuda.device()
except DeviceError as error:
    print(error)
"""


def test_without_a_gpu_one_sentence_says_what_to_do():
    """Whether the driver is missing or only the GPU."""
    said = said_by_a_process(ASK)
    assert said.endswith("measure on the CPU.")
    assert "\n" not in said


def test_without_the_bindings_one_sentence_says_what_to_install():
    """The extra."""
    said = said_by_a_process("import sys; sys.modules['cuda.bindings'] = None\n" + ASK)
    assert said == (f"there is nothing to call a GPU with: {install.command('cuda')}.")


def test_importing_the_door_calls_nothing():
    """Nor does it import what would."""
    script = (
        "import sys; from steelyard_device import cuda; print('cuda' in sys.modules)"
    )
    assert said_by_a_process(script) == "False"


def test_every_hint_is_of_an_error_that_the_driver_has():
    """A hint of a misspelt name would never be seen."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra")
    assert cuda_driver._HINTS.keys() <= set(driver.CUresult.__members__)


@pytest.mark.parametrize(
    ("code", "name", "lost", "step"),
    [
        (2, "CUDA_ERROR_OUT_OF_MEMORY", False, "free buffers"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS", True, "compute-sanitizer"),
        (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", True, "start another one"),
        (800, "CUDA_ERROR_NOT_PERMITTED", False, "manual"),
        (98765, "98765", False, "newer"),
    ],
)
def test_an_error_has_the_drivers_name_and_the_next_step(
    driver, code, name, lost, step
):
    """Also one that the bindings do not know yet."""
    error = cuda_driver.failure("trying", code)
    assert (error.name, error.lost) == (name, lost)
    assert str(error).startswith("trying failed with CUDA")
    assert name in str(error)
    assert step in str(error)


def test_an_error_survives_the_way_to_another_process(driver):
    """With its name, by which the worker is replaced."""
    error = cuda_driver.failure("trying", 700)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.name, again.lost) == (str(error), error.name, True)


def test_a_launch_reaches_the_driver_as_it_was_packed(driver):
    """Extents not given are one."""
    launch = Launch(
        function(8, 4), [1 << 40, 7], grid=(3, 2), block=(64, 1, 2), shared=16
    )
    launch.launch()
    numbers = (3, 2, 1, 64, 1, 2, 16)
    assert driver.calls == [("launch", 0xF0, numbers, 0x57, 1 << 40)]


def test_a_launch_without_parameters_passes_none(driver):
    """Its table of arguments has nothing in it."""
    Launch(function(), [], grid=1, block=32).launch()
    assert driver.launched() == [None]


@given(count=st.integers(-3, 40), kernels=st.integers(1, 5), before=st.integers(0, 9))
def test_a_rotation_takes_turns_and_goes_on_where_it_stopped(count, kernels, before):
    """Whatever the counts; none for a negative one."""
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder()
        patch.setattr(cuda_native, "calls", lambda: recorder.table)
        launches = [Launch(function(8), [n], grid=1, block=1) for n in range(kernels)]
        rotation = Rotation(launches)
        rotation.launch(before)
        rotation.launch(count)
        total = before + max(count, 0)
        assert recorder.launched() == [n % kernels for n in range(total)]


def test_a_refused_launch_ends_the_loop_and_keeps_its_turn(driver):
    """The next call begins with it."""
    launches = [Launch(function(8), [n], grid=1, block=1) for n in range(3)]
    rotation = Rotation(launches)
    driver.fails = {("launch", 4): 701}
    with pytest.raises(
        CUDAError, match="3 kernels in turn failed with CUDA_ERROR_LAUN"
    ):
        rotation.launch(10)
    assert driver.launched() == [0, 1, 2, 0, 1]
    rotation.launch()
    assert driver.launched()[-1] == 1


def test_the_first_launch_may_be_the_one_that_is_refused(driver):
    """Then a window does not wait."""
    driver.fails = {("launch", 0): 1}
    launch = Launch(function(name="mine"), [], grid=5, block=2000)
    expected = r"launching mine with grid \(5, 1, 1\) and block \(2000, 1, 1\) failed"
    with pytest.raises(CUDAError, match=expected):
        launch.window(4)
    numbers = (5, 1, 1, 2000, 1, 1, 0)
    assert driver.calls == [("launch", 0xF0, numbers, 0x57, None)]


@pytest.mark.parametrize("others", [0, 0xAB])
def test_another_context_of_the_thread_is_put_back(driver, others):
    """A thread that never called CUDA has none."""
    driver.current = [others]
    driver.fails = {("launch", 1): 1}
    launch = Launch(function(), [], grid=1, block=1)
    launch.launch()
    names = [name for name, *_ in driver.calls]
    assert names == ["push", "launch", "pop"]
    assert driver.calls[0] == ("push", CONTEXT.handle)
    with pytest.raises(CUDAError):
        launch.launch()
    assert [name for name, *_ in driver.calls][3:] == ["push", "launch", "pop"]


def test_a_window_waits_for_its_stream_between_two_reads_of_the_clock(driver):
    """For the stream it was given, not the context's."""
    launch = Launch(function(), [], grid=1, block=1, stream=0x99)
    start, stop = launch.window(3)
    assert 0 < start < stop
    assert [call[0] for call in driver.calls] == [*["launch"] * 3, "wait"]
    assert driver.calls[-1] == ("wait", 0x99)


@pytest.mark.parametrize("refused", ["get", "push", "wait"])
def test_what_is_refused_around_launches_is_an_error_too(driver, refused):
    """Nothing is launched where the context is not ours."""
    driver.current = [0xAB]
    driver.fails = {(refused, 0): 700}
    with pytest.raises(CUDAError, match="launching kernel"):
        Launch(function(), [], grid=1, block=1).window(2)
    assert len(driver.launched()) == 2 * (refused == "wait")


def test_an_argument_can_be_set_between_launches(driver):
    """Checked as at first."""
    launch = Launch(function(8), [1], grid=1, block=1)
    launch.launch()
    launch.set(0, 2)
    launch.launch()
    assert driver.launched() == [1, 2]
    with pytest.raises(
        DeviceError, match="argument 0 of kernel is -1, expected 8 bytes"
    ):
        launch.set(0, -1)


def test_a_graph_is_launched_as_often_as_asked_until_it_is_refused(driver):
    """By its handle, on its stream; a window waits for it."""
    graph = Issued(CONTEXT, "a graph", 0x99, 0xE0, kind="cuda_graph")
    graph.launch(2)
    start, stop = graph.window(1)
    assert 0 < start < stop
    graph.launch(0)
    once = ("graph", 0xE0, 0x99)
    assert driver.calls == [once, once, once, ("wait", 0x99)]
    driver.fails = {("graph", 4): 701}
    with pytest.raises(CUDAError, match="launching a graph failed with CUDA_ERROR_LA"):
        graph.launch(5)
    assert driver.calls[4:] == [once, once]


def test_launches_in_a_graph_are_updated_where_they_lie(driver, monkeypatch):
    """Each behind the one before it; a stream that is recorded gets them apart."""
    log = []

    def noted(name, result=()):
        return lambda *of: log.append((name, *of)) or (0, *result)

    fake = cuda_driver.bindings()
    fake.CUfunction, fake.CUDA_KERNEL_NODE_PARAMS = hex, SimpleNamespace
    nodes = iter("ab")
    functions = {
        "cuCtxGetCurrent": (CONTEXT.handle,),
        "cuGraphCreate": ("graph",),
        "cuGraphInstantiate": (0xE0,),
        "cuGraphUpload": (),
        "cuGraphExecKernelNodeSetParams": (),
    }
    for name, result in functions.items():
        setattr(fake, name, noted(name, result))
    fake.cuGraphAddKernelNode = lambda *of: log.append(of) or (0, next(nodes))
    monkeypatch.setattr(cuda_driver, "owned", lambda *_: None)
    launches = [Launch(function(8), [n], grid=n, block=32) for n in (3, 4)]
    chain = Chain(launches)
    added = [of for of in log if of[0] == "graph"]
    assert [of[1:3] for of in added] == [([], 0), (["a"], 1)]
    assert [of[3].gridDimX for of in added] == [3, 4]
    chain.launch(2)
    assert driver.calls == [("graph", 0xE0, 0x57)] * 2
    launches[1].set(0, 9)
    chain.take(1)
    name, handle, node, kernel = log[-1]
    assert (name, handle, node) == ("cuGraphExecKernelNodeSetParams", 0xE0, "b")
    assert kernel.kernelParams == launches[1].entries[0].parameters
    driver.recorded = 1
    chain.launch(2)
    assert driver.launched() == [3, 9, 3, 9]


def series(order, words, *arguments, **around):
    """Return launches of one argument each in an order."""
    launches = [Launch(function(8), [each], grid=1, block=1) for each in arguments]
    return Series(launches, order, words, **around)


WALK = [
    (turns.BEGIN, 4, 4),
    (turns.MOVE, 0, 1, 16, 2, 3),
    (turns.KERNEL, 1),
    (turns.END, 0),
    (turns.KERNEL, 0),
]
"""Four turns of the second launch, whose word is 100 or 200 and 16 more each turn."""


def test_a_series_moves_words_from_turn_to_turn(driver):
    """Of two homes that alternate, and by a step; each run begins anew."""
    made = series(WALK, [100, 200], 7, 8)
    walked = [100, 216, 132, 248, 7]
    made.launch(2)
    assert driver.launched() == walked * 2
    made.give([0, 1000])
    made.window(1)
    assert driver.launched()[10:] == [0, 1016, 32, 1048, 7]
    assert driver.calls[-1] == ("wait", 0x57)


def test_a_series_may_stand_between_other_launches(driver):
    """Its records and words are where they are all the same."""
    others = [Launch(function(8), [each], grid=1, block=1) for each in (1, 2)]
    series(WALK, [100, 200], 7, 8, before=others[:1], after=others[1:]).launch()
    assert driver.launched() == [1, 100, 216, 132, 248, 7, 2]


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_a_count_may_be_a_word_or_lie_in_memory(driver, count):
    """What lies in a GPU's memory is waited for; odd turns have launches of their own."""
    number = ctypes.c_int64(count)
    given = count % (1 << 64), ctypes.addressof(number)
    for kind, place in ((turns.TAKE, 2), (turns.COUNT, 3)):
        driver.calls.clear()
        order = [
            (kind, 1, place),
            (turns.BEGIN, 0, 4),
            (turns.KERNEL, 0),
            (turns.END, 1),
            (turns.ODD, 1, 6),
            (turns.KERNEL, 1),
        ]
        series(order, given, 7, 8).launch()
        some = max(count, 0)
        assert driver.launched() == [7] * some + [8] * (some % 2)
        waits = [("copy", 8, 0x57), ("wait", 0x57)] * (kind == turns.COUNT)
        assert [call for call in driver.calls if call[0] in {"copy", "wait"}] == waits


def test_a_loop_ends_where_a_flag_in_memory_is_false(driver):
    """It is asked before each turn; a refusal ends the run with the driver's code."""
    flags = (ctypes.c_uint8 * 5)(1, 1, 0, 1, 1)
    order = [
        (turns.BEGIN, 9, 5),
        (turns.MOVE, 0, 2, 1, 1, 1),
        (turns.TEST, 0, 2),
        (turns.KERNEL, 0),
        (turns.END, 0),
    ]
    made = series(order, [ctypes.addressof(flags), 0], 7)
    made.launch()
    assert driver.launched() == [7, 7]
    driver.fails = {("copy", 3): 700}
    with pytest.raises(CUDAError, match="a series of 1 kernels"):
        made.launch()
    driver.fails = {("launch", 3): 1}
    with pytest.raises(CUDAError, match="launching"):
        made.launch()


def test_turns_nest_and_move_what_inner_ones_begin_from(driver):
    """A word that an outer turn moves is where an inner one's walk begins."""
    order = [
        (turns.BEGIN, 2, 7),
        (turns.MOVE, 0, 1, 100, 2, 2),
        (turns.BEGIN, 3, 6),
        (turns.MOVE, 2, 0, 1, 1, 1),
        (turns.KERNEL, 0),
        (turns.END, 2),
        (turns.END, 0),
    ]
    series(order, [0, 1000], 7).launch()
    assert driver.launched() == [1000, 1001, 1002, 1100, 1101, 1102]


def test_tensors_are_moved_by_the_driver(driver):
    """Which writes to them where they are aligned."""
    launch = Launch(function(128), [b"\1" * 128], grid=1, block=1)
    order = [
        (turns.BEGIN, 2, 4),
        (turns.TENSOR, 0, 0, 64, 1, 1),
        (turns.KERNEL, 0),
        (turns.END, 0),
    ]
    Series([launch], order, [4096]).launch()
    assert driver.launched() == [4096, 4160]
    assert launch.slots[0].raw[8:] == b"\1" * 120


def test_launches_of_a_rotation_share_a_stream(driver):
    """And there is at least one."""
    one = Launch(function(), [], grid=1, block=1)
    other = Launch(function(), [], grid=1, block=1, stream=0x99)
    with pytest.raises(DeviceError, match="2 launches on 2 streams"):
        Rotation([one, other])
    with pytest.raises(DeviceError, match="0 launches on 0 streams"):
        Rotation([])


@pytest.mark.parametrize(
    ("given_", "expected"),
    [(1, (1, 1, 1)), ((5,), (5, 1, 1)), ((5, 6), (5, 6, 1)), ((5, 6, 7), (5, 6, 7))],
)
def test_extents_not_given_are_one(given_, expected):
    """A number is the innermost."""
    assert extents("the grid", given_) == expected


@pytest.mark.parametrize("given_", [0, -1, 2**31, (), (1, 0), (1, 1, 1, 1)])
def test_extents_that_launch_nothing_are_refused(given_):
    """The driver's own word for them would be INVALID_VALUE."""
    with pytest.raises(DeviceError, match="expected one to three extents from 1 on"):
        extents("the grid", given_)


@given(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=9), st.data())
def test_words_are_packed_to_the_sizes_of_the_parameters(sizes, data):
    """Little-endian, as wide as each parameter."""
    words = [data.draw(st.integers(0, 256**size - 1)) for size in sizes]
    seen = [bytes(each) for each in packed("kernel", sizes, words)]
    expected = [w.to_bytes(s, "little") for w, s in zip(words, sizes, strict=True)]
    assert seen == expected


def test_bytes_go_through_as_they_are():
    """A struct passed by value, zeros inside it and all."""
    struct = b"\0a\0" * 40
    assert [bytes(each) for each in packed("kernel", [120], [struct])] == [struct]


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ([1], r"takes 2 parameters of \(8, 4\) bytes, got 1 arguments"),
        ([1, 2, 3], "got 3 arguments"),
        ([1, 1 << 32], "argument 1 of kernel is 4294967296, expected 4 bytes"),
        ([-1, 1], "argument 0 of kernel is -1"),
        ([b"1234", 1], "argument 0 of kernel is 4 bytes, expected 8 bytes"),
        ([1.0, 1], "argument 0 of kernel is 1.0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(slots, said):
    """The driver would read past them."""
    with pytest.raises(DeviceError, match=said):
        packed("kernel", [8, 4], slots)


@pytest.fixture(scope="module")
def cubin():
    """Compile the probes."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    from steelyard_device.cuda import probes

    return probes.cubin("sm_90a")


def test_a_whole_cubin_may_be_loaded(cubin):
    """It is not taken for a part."""
    check_whole(cubin)


@pytest.mark.parametrize("what", [b"", b"\x7fELF\x02\x01", b".version 8.0" * 20])
def test_what_is_no_cubin_is_refused(what):
    """The driver would compile PTX, and read past the end of anything."""
    with pytest.raises(DeviceError, match="expected a cubin"):
        check_whole(what)


def test_an_object_file_of_the_host_is_refused():
    """It is ELF too."""
    code = llvm.assemble("define void @f() {\n ret void\n}")
    with pytest.raises(DeviceError, match="expected a cubin"):
        check_whole(code)


@given(missing=st.integers(1, 20_000))
def test_part_of_a_cubin_is_refused(cubin, missing):
    """Cut anywhere."""
    with pytest.raises(DeviceError, match="expected"):
        check_whole(cubin[: max(len(cubin) - missing, 0)])


def test_every_probe_is_in_the_cubin_and_spills_nothing(cubin):
    """By the reader of cubins."""
    from steelyard_device import cubin as reader

    found = reader.read(cubin)
    names = {f"steelyard_{name}" for name in ("null", "spin", "walk", "delay")}
    assert found.keys() == names
    assert all(each.stack == 0 for each in found.values())


def test_the_delay_is_a_chain_of_multiply_adds(cubin):
    """And the flush reads 16 bytes at once and stores one word at most."""
    from steelyard_device import cubin as reader

    found = reader.read(cubin)
    assert found["steelyard_delay"].count("FFMA") == 256
    walk = found["steelyard_walk"]
    assert walk.loads_128 == walk.count("LDG") > 0
    assert walk.count("STG") == 1


def test_the_free_share_of_shared_memory_asks_the_driver_for_nothing(driver):
    """It has 48 KB at once."""
    Launch(function(), [], grid=1, block=1, shared=cuda_launch.FREE_SHARED).launch()
    assert driver.calls[0][2][6] == 48 << 10
