"""Kernels called on arrays of a GPU that is not there: what reaches the driver."""

import ctypes
import gc
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace
from test_cuda import ATTRIBUTES, CONTEXT, Recorder

from steelyard_device import cubin, cuda, nvrtc
from steelyard_device.cuda import driver as cuda_driver
from steelyard_device.cuda import native as cuda_native
from steelyard_device.cuda import strided
from steelyard_device.cuda.module import Function
from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.calling import cuda_arrays, cuda_bind, cuda_calls
from steelyard_kernels.calling.cuda_bind import check_agrees
from steelyard_kernels.calling.cuda_stamped import stamped
from steelyard_kernels.errors import CompilerBug, KernelError
from steelyard_kernels.function import KernelFunction, kernel
from steelyard_kernels.library import examples

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

SIZES = {"q": 8, "d": 8, "i": 4, "?": 1}
SECOND = replace(CONTEXT, device=replace(CONTEXT.device, index=1), handle=0xC1)


class Driver(Recorder):
    """Writes down the bytes of each launch's parameters too."""

    def __init__(self):
        self.sizes = ()
        self.passed = []
        super().__init__()

    def answer(self, name, first, *rest):
        """Stand in for cuLaunchKernel."""
        if name == "launch":
            places = zip(self.sizes, rest[-2], strict=False)
            self.passed.append([ctypes.string_at(at, size) for size, at in places])
        return super().answer(name, first, *rest)


@pytest.fixture
def driver(monkeypatch):
    """Launch into a recorder; functions take what their builds' slots say."""
    recorder = Driver()

    def function_of(built, context):
        recorder.sizes = tuple(SIZES[slot.code] for slot in built.slots)
        return Function("kernel", 0xF0, context, recorder.sizes, ATTRIBUTES)

    monkeypatch.setattr(cuda_native, "calls", lambda: recorder.table)
    monkeypatch.setattr(cuda_bind, "function_of", function_of)
    return recorder


@pytest.fixture
def triad():
    """Give a kernel that was never called."""
    return KernelFunction(library.triad.function)


def view(address=0x1000, count=100, dtype=np.float32, context=CONTEXT):
    """Return an array of ours."""
    return cuda.View(context, address, (count,), dtype)


@dataclass
class Foreign:
    """An array of another library, by its interface."""

    __cuda_array_interface__: dict


def foreign(monkeypatch, address=0x1000, **fields):
    """Return one on the first GPU."""
    monkeypatch.setattr(cuda_arrays, "_index", lambda _: 0)
    monkeypatch.setattr(cuda, "context", lambda _: CONTEXT)
    return Foreign(
        {"shape": (100,), "typestr": "<f4", "data": (address, False), **fields}
    )


def events(monkeypatch):
    """Have events write down what they do; return the list."""
    steps = []

    class Event:
        def __init__(self, _):
            self.record = lambda stream: steps.append(("record", stream))
            self.hold = lambda stream: steps.append(("hold", stream))

    monkeypatch.setattr(cuda, "Event", Event)
    return steps


def placing(monkeypatch):
    """Have buffers lie one after another; return the list of their addresses."""
    memory = [0x100000]

    def buffer(context, shape, dtype):
        memory.append(memory[-1] + 0x10000)
        return cuda.View(context, memory[-1], shape, dtype)

    monkeypatch.setattr(cuda, "Buffer", buffer)
    monkeypatch.setattr(type(CONTEXT), "wait", lambda *_: None)
    return memory


def known(made, *arrays, **keywords):
    """Call until the arrays are known by themselves."""
    for _ in range(3):
        made(*arrays, **keywords)


def test_a_call_passes_addresses_scalars_and_extent(driver, triad):
    """In the order of the slots; one thread has an element or more."""
    out = view(0x3000)
    assert triad(view(0x1000), view(0x2000), out=out, s=0.5) is out
    (passed,) = driver.passed
    words = [int.from_bytes(each, "little") for each in passed[:3]]
    assert words == [0x1000, 0x2000, 0x3000]
    assert struct.unpack("<d", passed[3]) == (0.5,)
    assert int.from_bytes(passed[4], "little") == 100
    (_, _, numbers, stream, *_) = driver.calls[0]
    assert stream == CONTEXT.stream
    assert numbers[0] * numbers[3] >= 100 / 4


def test_every_call_launches_with_its_own_scalars(driver, triad):
    """Remembered or not, and the defaults come back; a zero keeps its sign."""
    a, b, out = view(0x1000), view(0x2000), view(0x3000)
    given = [{}, {}, {}, {"s": 0.5}, {}, {"s": -0.0}, {"s": 0.0}, {"s": 7}, {}]
    for scalars in given:
        triad(a, b, out=out, **scalars)
    seen = [passed[3] for passed in driver.passed]
    expected = [struct.pack("<d", each.get("s", 3.0)) for each in given]
    assert seen == expected


def test_a_remembered_call_looks_at_nothing_again(driver, triad, monkeypatch):
    """The arrays are the same objects, and ours do not change."""
    a, out = view(0x1000), view(0x2000)
    known(triad, a, a, out=out)
    driver.calls.clear()
    monkeypatch.setattr(cuda_calls, "placed", None)  # what would look
    assert triad(a, a, out=out) is out
    triad(a, a, out=out, s=2.0)
    assert driver.launched() == [0x1000, 0x1000]


class Chained:
    """Stands in for a graph of launches: which are updated, and with what, at each run."""

    runs = None

    def __init__(self, launches):
        self.launches, self.context, self.stream = launches, CONTEXT, CONTEXT.stream
        self.taken, self.failure = [], None

    def take(self, number):
        """Note that a launch was updated."""
        self.taken.append(number)

    def submit(self, _count):
        """Note all arguments, and what was updated before."""
        self.runs.append(([bytes(e.words) for e in self.launches], self.taken))
        self.taken = []
        return 0


def test_only_launches_whose_arguments_changed_are_updated(driver, monkeypatch):
    """In the graph that all calls share: of an output the last, of a scalar who takes it."""
    monkeypatch.setattr(cuda, "Chain", Chained)
    monkeypatch.setattr(Chained, "runs", [])
    placing(monkeypatch)

    @kernel
    def chain(x, w, *, s=1.0):
        return xp.sum(x @ w * s, axis=0) + xp.sum(x, axis=1)

    x, w = (cuda.View(CONTEXT, at, (64, 64), np.float32) for at in (0x1000, 0x9000))
    out = cuda.View(CONTEXT, 0x20000, (64,), np.float32)
    for _ in range(4):
        chain(x, w, out=out)
    chain(x, w, out=out, s=2.0)
    chain(x, w)
    chain(x, w)
    made = chain(x, w)
    (first, taken), *again = Chained.runs[:4]
    count = len(first)
    assert count > 1
    assert taken == [*range(count)]
    assert again == [(first, [])] * 3
    (scaled, some), *allocating = Chained.runs[4:]
    assert 0 < len(some) < count
    assert struct.pack("<d", 2.0) in b"".join(scaled)
    assert allocating[0][1] != allocating[1][1] == allocating[2][1]
    assert made.address.to_bytes(8, "little") in b"".join(allocating[2][0])


def test_a_call_of_a_loop_issues_each_turn_with_its_own_arguments(driver, monkeypatch):
    """Rows of arrays, carries that change places, and the number of turns."""
    memory = placing(monkeypatch)

    @kernel
    def loop(x, *, n=2):
        return xp.fori_loop(0, n, lambda i, c: xp.roll(c, 1) * 0.5, x)

    x, out = (cuda.View(CONTEXT, at, (5000,), np.float32) for at in (0x1000, 0x2000000))
    for n in (3, 0, 3):
        driver.calls.clear()
        loop(x, out=out, n=n)
        room = memory[-1]
        turns = [out.address, room, out.address][:n]  # what each turn reads
        behind = [room] if n % 2 else []
        assert driver.launched() == [x.address, *turns, *behind]


def test_what_is_remembered_goes_with_the_arrays(driver, triad):
    """With any of them; nothing keeps them alive."""
    a, b, out = view(0x1000), view(0x2000), view(0x3000)
    known(triad, a, b, out=out)
    known(triad, b, a, out=out)
    assert len(triad._known) == 2
    del b
    gc.collect()
    assert not triad._known
    known(triad, a, a, out=out)
    assert len(triad._known) == 1
    del out
    gc.collect()
    assert not triad._known


def test_an_output_given_is_not_taken_for_an_input(driver, triad):
    """The same three arrays, one of them in another place, are another call."""
    a, b, out = view(0x1000), view(0x2000), view(0x3000)
    known(triad, a, b, out=out)
    with pytest.raises(KernelError, match="got 3 arrays"):
        triad(a, b, out)


def test_a_cold_build_forgets_what_was_packed(driver, triad):
    """Calls run the new code."""
    a, out = view(0x1000), view(0x2000)
    known(triad, a, a, out=out)
    driver.calls.clear()
    specs = [((100,), np.dtype("float32"))] * 2
    triad.build(*specs, target="cuda:sm_90a", cache="cold")
    assert not triad._known
    triad(a, a, out=out)
    assert len(driver.launched()) == 1


def test_another_shape_makes_nothing_forgotten(driver, triad):
    """Only a build that replaces one does."""
    a, out = view(0x1000), view(0x3000)
    known(triad, a, a, out=out)
    triad(view(count=7), view(count=7), out=view(0x3000, 7))
    assert len(triad._known) == 1


def test_scalars_without_a_default_are_asked_for_in_every_call(driver):
    """Also of arrays that are remembered."""

    @kernel
    def scaled(a, *, factor, shift=0.0):
        return {"a": a * factor + shift}

    a = view(0x1000)
    for _ in range(4):
        scaled(a, factor=2.0)
        with pytest.raises(KernelError, match="scalar factor is missing"):
            scaled(a)
        with pytest.raises(KernelError, match="scalar factor is missing"):
            scaled(a, shift=2.0)
    assert len(driver.launched()) == 4


def test_one_kernel_is_called_on_both_sides(driver, triad):
    """What is remembered of a GPU does not stand in the host's way."""
    a, out = view(0x1000), view(0x2000)
    known(triad, a, a, out=out)
    ones = np.ones(3, np.float32)
    assert (triad(ones, ones) == 4).all()
    assert (triad(ones, ones, out=np.empty_like(ones)) == 4).all()
    triad(a, a, out=out)
    assert len(driver.launched()) == 4


def test_many_calls_are_not_remembered_for_ever(driver, triad, monkeypatch):
    """At most so many."""
    monkeypatch.setattr(cuda_calls, "REMEMBERED", 3)
    arrays = [view(0x1000 * place) for place in range(1, 9)]
    out = view(0x100000)
    for each in arrays:
        known(triad, each, each, out=out)
        assert len(triad._known) <= 3


def test_foreign_arrays_are_looked_at_in_each_call(driver, triad, monkeypatch):
    """Their memory may have moved."""
    a = foreign(monkeypatch, stream=CONTEXT.stream)
    places = [0x1000, 0x1000, 0x1000, 0x2000, 0x2000, 0x1000]
    for turn, place in enumerate(places):
        a.__cuda_array_interface__["data"] = (place, False)
        out = foreign(monkeypatch, 0x3000, stream=CONTEXT.stream)
        assert triad(a, a, out=out, s=turn) is out
    assert driver.launched() == places
    factors = [struct.unpack("<d", passed[3])[0] for passed in driver.passed]
    assert factors == list(range(len(places)))
    assert not triad._known


def test_arrays_in_the_same_places_are_not_checked_again(driver, triad, monkeypatch):
    """From the third call on, whoever's they are; another stream is another place."""
    packed = []
    pack = triad._on_gpus()._packed
    monkeypatch.setattr(
        triad._on_gpus(), "_packed", lambda *args: packed.append(args) or pack(*args)
    )
    for stream in (0x99, 0x98):
        for _ in range(5):
            a = foreign(monkeypatch, stream=stream)
            triad(a, a, out=foreign(monkeypatch, 0x3000, stream=stream))
    assert len(packed) == 4
    assert [call[3] for call in driver.calls] == [0x99] * 5 + [0x98] * 5


def test_work_runs_on_the_stream_of_its_arrays(driver, triad, monkeypatch):
    """Of the legacy stream if they name none; a given stream goes before."""
    out = foreign(monkeypatch, 0x3000, stream=0x99)
    a = foreign(monkeypatch, stream=0x99)
    assert triad.bind(a, a, out=out).stream == 0x99
    assert triad.bind(a, a, out=out, stream=7).stream == 7
    a, out = foreign(monkeypatch), foreign(monkeypatch, 0x3000, stream=1)
    assert triad.bind(a, a, out=out).stream == cuda_arrays.LEGACY


def test_streams_wait_for_each_other(driver, triad, monkeypatch):
    """Ours for theirs before the launch, theirs for ours behind it."""
    steps = events(monkeypatch)
    monkeypatch.setattr(
        cuda_calls.Caller, "launch", lambda *_: steps.append(("launch",))
    )
    triad(foreign(monkeypatch, stream=0x99), view(0x2000), out=view(0x3000))
    ours = CONTEXT.stream
    assert steps == [
        *(("record", 0x99), ("hold", ours)),
        ("launch",),
        *(("record", ours), ("hold", 0x99)),
    ]


def test_arrays_of_other_strides_are_copied_around_the_launch(
    driver, triad, monkeypatch
):
    """In the order of their owners' streams; what was given is the result."""
    steps, copies = events(monkeypatch), iter((0x8000, 0x9000))

    @dataclass
    class Copy:
        to: strided.Lying
        source: strided.Lying

        def launch(self):
            steps.append((*self.source, *self.to))

    def copy(context, shape, itemsize, to, source, *, stream):
        assert (shape, itemsize, stream) == ((100,), 4, CONTEXT.stream)
        return Copy(to, source)

    monkeypatch.setattr(
        cuda, "Buffer", lambda c, *like: cuda.View(c, next(copies), *like)
    )
    monkeypatch.setattr(strided, "copy", copy)
    monkeypatch.setattr(
        cuda_calls.Caller, "launch", lambda _self, at, _: steps.append(at)
    )
    a = foreign(monkeypatch, 0x1000, strides=(-8,), stream=0x99)
    out = foreign(monkeypatch, 0x3000, strides=(12,), stream=CONTEXT.stream)
    assert triad(a, view(0x2000), out=out) is out
    there, back = (0x1000, (-8,)), (0x3000, (12,))
    assert steps == [
        *(("record", 0x99), ("hold", CONTEXT.stream)),
        (*there, 0x8000, (4,)),
        [0x8000, 0x2000, 0x9000],
        (0x9000, (4,), *back),
        *(("record", CONTEXT.stream), ("hold", 0x99)),
    ]


def test_arrays_off_16_bytes_take_another_build(driver, triad):
    """An input or an output; bound work says which schedule it has."""
    a, out = view(1 << 28, 1 << 22), view(2 << 28, 1 << 22)
    off = view((3 << 28) + 4, 1 << 22)
    aligned = triad.bind(a, a, out=out).built
    assert triad.bind(a, off, out=out).built.schedule != aligned.schedule
    assert triad.bind(a, a, out=off).built.schedule != aligned.schedule


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"a": np.ones(100, np.float32)},
            "b is a View on a GPU, expected a NumPy array",
        ),
        (
            {"b": np.ones(100, np.float32)},
            "b is a ndarray, expected an array on a GPU",
        ),
        ({"b": view(0x2000, context=SECOND)}, "b lies on GPU 1, expected GPU 0 as a"),
        ({"b": view(0x2000, 7)}, "cannot broadcast shapes"),
        ({"b": view(0x2000, dtype="complex64")}, "b: dtype complex64 is not supported"),
        ({"out": view(0x3000, 99)}, r"output out is float32 \(99,\), expected float32"),
        ({"out": view(0x3000, dtype="float64")}, "output out is float64"),
        ({"out": view(0x1080)}, "output out shares memory with a"),
        ({"out": np.ones(100, np.float32)}, "out is a ndarray, expected an array on"),
        ({"out": [view(0x3000)] * 2}, r"out has 2 arrays, expected 1 \(out\)"),
        ({"s": "x"}, "scalar s is 'x' of type str"),
        ({"t": 1.0}, "unknown scalar t, expected s"),
    ],
)
def test_bad_arguments_are_one_sentence(driver, triad, change, words):
    """As on the CPU; nothing is launched."""
    given = {"a": view(0x1000), "b": view(0x2000), "out": view(0x3000), **change}
    a, b = given.pop("a"), given.pop("b")
    with pytest.raises(KernelError, match=words) as raised:
        triad(a, b, **given)
    assert str(raised.value).startswith("triad: ")
    assert not driver.calls


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"strides": (8,), "data": (0x1000, True)},
            r"an array of shape \(100,\) has strides \(8,\), expected",
        ),
        ({"typestr": ">f4"}, "swapped bytes"),
        ({"data": (0, False)}, "lies at address 0"),
    ],
)
def test_bad_foreign_arrays_are_one_sentence(driver, triad, monkeypatch, fields, words):
    """By their interface."""
    b = foreign(monkeypatch, **fields)
    with pytest.raises(KernelError, match=words):
        triad(view(0x1000), b)


def test_read_only_foreign_arrays_are_inputs_and_not_outputs(
    driver, triad, monkeypatch
):
    """Where they would be written they are refused."""
    fixed = foreign(monkeypatch, 0x2000, data=(0x2000, True), stream=CONTEXT.stream)
    triad(view(0x1000), fixed, out=view(0x3000))
    with pytest.raises(KernelError, match="output out is read-only"):
        triad(view(0x1000), view(0x3000), out=fixed)
    with pytest.raises(KernelError, match="output m is read-only"):
        library.adam_m(fixed, view(0x3000))


def test_strides_of_extents_of_one_say_nothing(driver, triad, monkeypatch):
    """Nor do those of arrays without elements."""
    a = foreign(monkeypatch, shape=(1, 100), strides=(12345, 4))
    triad.bind(a, a, out=foreign(monkeypatch, 0x3000, shape=(1, 100)))
    empty = foreign(monkeypatch, 0, shape=(0, 3), strides=(0, 0))
    triad.bind(empty, empty, out=foreign(monkeypatch, 0, shape=(0, 3)))


def test_integers_out_of_range_are_refused_on_a_gpu_too(driver):
    """By the sentence that the CPU has; the next call is well."""

    @kernel
    def add(a, *, n: int = 1):
        return {"a": a + n}

    a = view(0x1000, dtype="int32")
    add(a)
    for _ in range(2):
        with pytest.raises(
            KernelError, match=r"scalar n is .*, expected a number of int32"
        ):
            add(a, n=1 << 70)
        add(a, n=-5)
    assert driver.passed[-1][1] == struct.pack("<q", -5)


def test_bound_work_can_be_built_again(driver, triad, monkeypatch):
    """A cold one is loaded too, and says so; one from memory was."""
    unloaded = []
    monkeypatch.setattr(
        cuda, "load_again", lambda *_: lambda: unloaded.append("unloaded")
    )
    work = triad.bind(view(0x1000), view(0x2000), out=view(0x3000))
    work.build("warm-memory")
    assert not unloaded
    work.build("cold")
    assert unloaded == ["unloaded"]
    with pytest.raises(KernelError, match="not known"):
        work.build("tepid")


def test_there_is_no_stream_on_a_cpu(triad):
    """It is refused and not dropped."""
    ones = np.ones(3, np.float32)
    with pytest.raises(KernelError, match="stream 7 was given for arrays of the host"):
        triad.bind(ones, ones, stream=7)


def test_errors_of_a_launch_are_the_drivers(driver, triad, monkeypatch):
    """Remembered or not."""
    driver.fails = {("launch", place): 700 for place in (3, 4, 5)}
    monkeypatch.setattr(
        cuda_driver, "failure", lambda asked, code: cuda.CUDAError(str(code), asked)
    )
    a, out = view(0x1000), view(0x2000)
    known(triad, a, a, out=out)
    with pytest.raises(cuda.CUDAError, match="launching kernel"):
        triad(view(0x1000), a, out=out)
    with pytest.raises(cuda.CUDAError, match="launching kernel"):
        triad(a, a, out=out)
    with pytest.raises(cuda.CUDAError, match="launching kernel"):
        triad(a, a, out=out, s=2.0)


def shipped(name):
    """Return a build of a library kernel for a GPU."""
    made = getattr(library, name)
    return made.build(*examples.specs(name), target="cuda:sm_90a")


@pytest.mark.parametrize("name", sorted(examples.SHAPES))
def test_a_stamped_kernel_has_every_statement_of_the_measured_one(name):
    """In their order, with one parameter more; it compiles, and is other code."""
    built = shipped(name)
    text = stamped(built.text)
    lines = built.text.splitlines()
    statements = [line for line in lines if not line.startswith('extern "C"')]
    assert len(statements) == len(lines) - 1
    rest = iter(text.splitlines())
    assert all(line in rest for line in statements)
    made = cubin.read(nvrtc.compile(text, "sm_90a").cubin)["kernel"]
    assert made.code_hash != built.code_hash
    assert text.count("globaltimer") == 2
    assert made.stack == built.code.resources.stack


def test_where_driver_and_cubin_differ_it_is_our_bug():
    """Any of the three; what agrees passes."""
    built = shipped("bias_layernorm")
    read = built.code.resources
    said = replace(ATTRIBUTES, registers=read.registers, shared=read.shared)
    resident = facts_of(built)["blocks_resident"]
    check_agrees(built, said, resident)
    for attributes, blocks, words in (
        (replace(said, registers=99), resident, "says 99 registers, expected"),
        (
            replace(said, shared=99),
            resident,
            "says 99 bytes of shared memory, expected",
        ),
        (said, 99, "says 99 blocks on a multiprocessor, expected"),
    ):
        with pytest.raises(CompilerBug, match=words):
            check_agrees(built, attributes, blocks)
