"""Calls that native code recognises: the same results and refusals as the first call."""

import ctypes
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from steelyard_device import cpu, dispatch, llvm, native_call
from steelyard_kernels import KernelError, kernel
from steelyard_kernels.calling.convention import convention_of
from steelyard_kernels.calling.dispatching import Recent, describe, exchange_of

SHAPES = [(), (0,), (1,), (16,), (3, 5), (2000,), (4, 300, 7)]


def twice(function, *arguments, **named):
    """Call often enough that native code recognises it, and return the last result."""
    for _ in range(3):
        result = function(*arguments, **named)
    return result


def recognised(function):
    """Count the calls that a kernel recognises."""
    found = function._recent._dispatch
    return 0 if found is None else found._table[0]


@pytest.fixture
def slow(monkeypatch):
    """Count the calls that go through Python."""
    calls = []
    made = Recent.again
    monkeypatch.setattr(Recent, "again", lambda *given: calls.append(1) or made(*given))
    return calls


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recognised_call_gives_what_the_first_one_gave(slow, shape, dtype):
    """Given or allocated, of every shape; no call but the first two is Python's."""
    x = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3, dtype)
    same = kernel(lambda x: x if dtype == "bool" else x + x)
    expected = x if dtype == "bool" else x + x
    out = np.empty_like(x)
    for _ in range(5):
        result = same(x)
        assert type(result) is np.ndarray
        assert result.dtype == x.dtype
        assert result.flags.carray
        assert np.array_equal(result, expected)
        assert same(x, out=out) is out
        assert np.array_equal(out, expected)
    assert len(slow) == 4


def test_results_are_handed_over_as_the_function_returned_them():
    """A tuple, a dict with an update, nothing; given in a tuple, a list or a dict."""
    both = kernel(lambda x, y: (x + y, x - y))
    named = kernel(lambda x, y: {"x": x * 2, "sum": x + y})
    update = kernel(lambda x: {"x": x + 1})
    x, y = np.ones(5), np.full(5, 3.0)
    total, rest = twice(both, x, y)
    assert (total[0], rest[0]) == (4, -2)
    for kind in (tuple, list):
        given = kind(np.empty(5) for _ in range(2))
        result = twice(both, x, y, out=given)
        assert type(result) is tuple
        assert all(a is b for a, b in zip(result, given, strict=True))
    result = twice(named, x, y)
    assert list(result) == ["x", "sum"]
    assert result["x"] is x
    assert (x == 8).all()
    assert (result["sum"] == 7).all()
    assert twice(update, x)["x"] is x
    assert (x == 11).all()


def test_scalars_are_of_each_call():
    """Given by name as Python's numbers or NumPy's, or left at their defaults."""
    scale = kernel(lambda x, *, s=2.0, n=1: x * s + n)
    needs = kernel(lambda x, *, s: x * s)
    x = np.ones(4)
    for s in (1.5, 3, np.float64(0.5), 2**60):
        assert (twice(scale, x, s=s) == 1 * float(s) + 1).all()
        assert (twice(scale, x, n=7, s=s) == float(s) + 7).all()
        assert (twice(needs, x, s=s) == float(s)).all()
    assert (scale(x) == 3).all()
    for wrong, message in (
        ({"s": True}, "of type bool"),
        ({"n": 2**63}, "does not fit"),
        ({"n": 1.0}, "expected int64"),
        ({"t": 1}, "unknown scalar t"),
        ({"s": 10**400}, "does not fit"),
    ):
        with pytest.raises(KernelError, match=message):
            scale(x, **wrong)
    with pytest.raises(KernelError, match="scalar s is missing"):
        needs(x)


REFUSED = {
    "no array": lambda x, y: (([1.0] * 16, y), {}),
    "read-only": lambda x, y: ((x, y), {"out": np.frombuffer(bytes(128))}),
    "shape": lambda x, y: ((x, y), {"out": np.empty(15)}),
    "dtype": lambda x, y: ((x, y), {"out": np.empty(16, np.float32)}),
    "overlap": lambda x, y: ((x, y), {"out": x}),
    "overlap in part": lambda x, y: ((x[:15], y[:15]), {"out": x[1:]}),
    "too few": lambda x, y: ((x,), {}),
    "too many": lambda x, y: ((x, y, y), {}),
    "big endian": lambda x, y: ((x.astype(">f8"), y), {}),
    "unknown name": lambda x, y: ((x, y), {"into": y}),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_a_first_call_refuses_a_later_one_refuses_too(wrong):
    """With the same sentence, and nothing is written."""
    x, y = np.ones(16), np.ones(16)
    arguments, named = REFUSED[wrong](x, y)
    errors = []
    for warm in (False, True):
        add = kernel(lambda x, y: x + y)
        if warm:
            twice(add, x, y)
            twice(add, x, y, out=np.empty(16))
            twice(add, x[:15], y[:15], out=np.empty(15))
        with pytest.raises((KernelError, TypeError, ValueError)) as raised:
            add(*arguments, **named)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]
    assert (x == 1).all()


def test_other_arrays_than_the_remembered_are_told_apart():
    """By shape, dtype, class, and how many; each is right, in any order."""
    add = kernel(lambda x, y: x + y)
    rng = np.random.default_rng(1)
    arrays = [
        (rng.normal(size=shape).astype(dtype), rng.normal(size=shape).astype(dtype))
        for shape in [(16,), (4, 4), (2, 8), (17,), (16, 1)]
        for dtype in ["float32", "float64", "float16"]
    ]
    for number in rng.integers(len(arrays), size=300):
        x, y = arrays[number]
        assert np.array_equal(add(x, y), np.asarray(x) + np.asarray(y))


def test_streamed_outputs_off_a_line_take_their_own_build():
    """A large one that starts elsewhere is written by other code, remembered too."""
    double = kernel(lambda x: x * 2)
    x = np.arange(4_000_000, dtype=np.float32)
    room = np.zeros(x.size + 32, np.float32)
    line = -room.ctypes.data % 64 // 4
    for start in (line, line + 4, line, line + 4, line + 1, line):
        out = room[start : start + x.size]
        room[:] = -1
        double(x, out=out)
        assert np.array_equal(out, x * 2)
        assert (room[:start] == -1).all()
        assert (room[start + x.size :] == -1).all()


def test_a_rebuild_is_forgotten_and_a_kernel_is_collected():
    """Remembered calls keep neither arrays nor the kernel alive."""
    add = kernel(lambda x, y: x + y)
    x, y = np.ones(16), np.ones(16)
    twice(add, x, y)
    assert recognised(add) == 1
    add.build(x, y, cache="cold")
    assert recognised(add) == 0
    assert (twice(add, x, y) == 2).all()
    gone = weakref.ref(add), weakref.ref(x)
    del add, x
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_references_are_counted_right():
    """Of arguments, results, types and names, over many calls and failures."""
    both = kernel(lambda x, y, *, s=1.0: (x + y, x - y * s))
    update = kernel(lambda x: {"x": x + 1})
    x, y = np.ones(16), np.ones(16)
    outs = np.empty(16), np.empty(16)
    large = np.ones(5000)
    watched = [x, y, outs, *outs, large, x.dtype, np.ndarray, None, "x"]

    def work():
        both(x, y)
        both(x, y, out=outs, s=2.0)
        both(large, large)
        update(x)
        for wrong in ((x, [1]), (x,)):
            with pytest.raises((KernelError, TypeError, ValueError)):
                both(*wrong)

    for _ in range(5):
        work()
    gc.collect()
    before = [sys.getrefcount(each) for each in watched]
    blocks = sys.getallocatedblocks()
    for _ in range(200):
        work()
    gc.collect()
    after = [sys.getrefcount(each) for each in watched]
    assert max(abs(a - b) for a, b in zip(after, before, strict=True)) < 20
    assert sys.getallocatedblocks() - blocks < 100


def test_small_results_take_no_more_memory_than_numpys():
    """Of 16 floats: the array, and nothing round it; a larger one is on a cache line."""
    add = kernel(lambda x, y: x + y)
    x = np.ones(16, np.float32)
    for _ in range(4):
        result = add(x, x)
        assert result.base is None
    for size in (1024, 4099, 100_000):
        large = np.ones(size, np.float32)
        for _ in range(4):
            assert add(large, large).ctypes.data % 64 == 0


def test_without_the_native_half_calls_go_through_python(monkeypatch):
    """As on an interpreter whose objects lie otherwise."""
    monkeypatch.setattr(dispatch, "_method", lambda: None)
    add = kernel(lambda x, y: x + y)
    x = np.ones(16)
    assert (twice(add, x, x) == 2).all()
    assert add.__call__ == add._called


def test_a_long_launch_lets_other_threads_run():
    """A loop holds no lock of the interpreter: another thread counts meanwhile."""
    from steelyard_kernels import array as xp

    spin = kernel(lambda x, *, n=1: xp.fori_loop(0, n, lambda i, c: c * 0.999 + 0.5, x))
    x = np.ones(1)
    twice(spin, x)
    assert recognised(spin) == 1
    begun, over, count = threading.Event(), threading.Event(), [0]

    def counting():
        begun.set()
        while not over.is_set():
            count[0] += 1

    other = threading.Thread(target=counting)
    other.start()
    begun.wait()
    before = count[0]
    spin(x, n=80_000_000)
    after = count[0]
    over.set()
    other.join()
    assert after > before + 100


# Of a batch with one kernel it calls the kernel's function as the host's launch does.
LAUNCH = """
define i32 @fake_launch(ptr %batch, i64 %count) {
  %table.at = getelementptr ptr, ptr %batch, i64 3
  %table = load ptr, ptr %table.at
  %kernel = load ptr, ptr %table
  %function = load ptr, ptr %kernel
  %status.at = getelementptr i64, ptr %kernel, i64 1
  %status = load i32, ptr %status.at
  %parameters.at = getelementptr ptr, ptr %kernel, i64 5
  %parameters = load ptr, ptr %parameters.at
  %words = load ptr, ptr %parameters
  %ticket = alloca [8 x i64], align 64
  store i64 0, ptr %ticket
  call void %function(ptr %words, ptr %ticket, i32 0, i32 1)
  ret i32 %status
}
"""


class Tensor:
    """As PyTorch's: it says where it lies by DLPack's exchange functions alone."""

    stream = 7

    def __init__(self, array, device=2, offset=0):
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(
            *(step // array.itemsize for step in array.strides)
        )
        code = {"f": 2, "i": 0}[array.dtype.kind]
        self.words = (
            array.ctypes.data - offset,
            device,
            array.ndim | (code | array.itemsize * 8 << 8 | 1 << 16) << 32,
            ctypes.addressof(self.shape),
            ctypes.addressof(self.strides),
            offset,
        )


class Derived(Tensor):
    """One whose operations may be anything."""

    def data_ptr(self):
        """Say nothing."""


def fill(tensor, room):
    """Fill in a tensor's description."""
    if tensor.words is None:
        return -1
    (ctypes.c_uint64 * 6).from_address(room)[:] = tensor.words
    return 0


def current(kind, number, room):
    """Say on which stream the library works."""
    assert (kind, number) == (2, 0)
    ctypes.c_int64.from_address(room).value = Tensor.stream
    return 0


FILL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(fill)
CURRENT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(
    current
)
EXCHANGE = (ctypes.c_void_p * 7)(
    1,
    None,
    None,
    None,
    None,
    ctypes.cast(FILL, ctypes.c_void_p),
    ctypes.cast(CURRENT, ctypes.c_void_p),
)
NAME = b"dlpack_exchange_api"
Tensor.__dlpack_c_exchange_api__ = native_call.python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(ctypes.addressof(EXCHANGE), NAME, None)


@pytest.fixture
def on_tensors():
    """Give a recognised addition of 16 floats in tensors, and what it was not given."""
    at = llvm.link(llvm.assemble(LAUNCH), ["fake_launch"])["fake_launch"]
    add = kernel(lambda x, y: x + y)
    built = add.build(((16,), "float32"), ((16,), "float32"))
    convention = convention_of(built, aligned=True)
    tensor, stream = exchange_of(Tensor)
    device, dtype = describe(tensor, Tensor(np.ones(16, np.float32)))
    one = dispatch.Array(Tensor, (16,), dtype, written=False, counts=True)
    others = []
    record = dispatch.Record(
        arrays=(one, one, one),
        outputs=1,
        given=True,
        alignment=(15, False),
        pairs=convention.pairs,
        words=convention.words,
        places=convention.addressed,
        scalars=(),
        needed=0,
        function=at,
        result="array",
        results=(2,),
        exchange=dispatch.Exchange(tensor, stream, 7, device),
        batch=bytes(64),
        kernel=built.code.function.address.to_bytes(8, "little") + bytes(40),
    )
    made = dispatch.Dispatch(lambda *given, **named: others.append((given, named)))
    made.remember(record)
    return made.call, others


def aligned(count=16, start=0, dtype=np.float32):
    """Return an array of ones that begins at a multiple of 16 bytes, and `start`."""
    room = np.ones(count * 2 + 64, dtype)
    first = -room.ctypes.data % 16 // room.itemsize + start
    return room[first : first + count]


def test_tensors_are_recognised_by_what_dlpack_says_of_them(on_tensors):
    """The launch gets their addresses, and the given output comes back."""
    add, others = on_tensors
    x, y, out = (Tensor(aligned(), offset=48 * k) for k in range(3))
    assert add(x, y, out=out) is out
    assert (out.array == 2).all()
    assert others == []


def test_tensors_that_differ_go_through_python(on_tensors, monkeypatch):
    """By shape, strides, dtype, device, alignment, class, overlap, stream; or broken."""
    add, others = on_tensors
    x, out = Tensor(aligned()), Tensor(aligned())
    broken = Tensor(aligned())
    broken.words = None
    different = [
        Tensor(aligned(15)),
        Tensor(aligned(32)[::2]),
        Tensor(aligned().reshape(4, 4)),
        Tensor(aligned(dtype=np.int32)),
        Tensor(aligned(), device=2 | 1 << 32),
        Tensor(aligned(start=1)),
        Derived(aligned()),
        np.ones(16, np.float32),
        out,
        broken,
    ]
    for other in different:
        assert add(x, other, out=out) is None
    assert add(x, x) is None
    monkeypatch.setattr(Tensor, "stream", 8)
    assert add(x, x, out=out) is None
    assert len(others) == len(different) + 2
    assert (out.array == 1).all()


def test_who_overrides_what_tensors_do_is_not_asked_where_they_lie():
    """A subclass that adds nothing is; one with its own operations is not."""
    assert exchange_of(type("Parameter", (Tensor,), {})) == exchange_of(Tensor)
    assert exchange_of(Derived) is None
    assert exchange_of(np.ndarray) is None


def test_a_launch_from_a_call_takes_the_whole_pool():
    """Results of many chunks, from the caller's stack."""
    double = kernel(lambda x: x * 2)
    x = np.arange(300_000, dtype=np.float32)
    assert double.build(x).threads != 1 or cpu.pool_size() == 1
    for _ in range(50):
        assert np.array_equal(double(x), x * 2)
