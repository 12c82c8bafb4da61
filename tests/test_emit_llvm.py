import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import cpu, llvm
from steelyard_kernels.builder import Builder, const, index
from steelyard_kernels.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    from_bfloat16,
    int32,
    int64,
    to_bfloat16,
)
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.loops import INDEX, Buffer, Effect, Kernel, Var, typed

N = Var("n", INDEX)
HOST = llvm.Host("x86_64-linux-gnu", "znver4", frozenset({"f16c", "fma"}), 64)
SPECIAL = [0.0, -0.0, 1.0, -1.5, 1e-45, -3e-39, 6e-8, 7e4, np.inf, -np.inf, np.nan]
FLOATS = [float16, bfloat16, float32, float64]
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


def row_sums(threads=0):
    """Make y[r] = sum of row r, of 37: a carried loop and a masked tail."""
    x = Buffer("x", float32, N)
    y = Buffer("y", float32, N, access="out")
    b = Builder()
    with b.parallel(N, 4, threads) as (low, high), b.loop(low, high, 1) as row:
        start = b.at("mul", row.var, 37)
        with b.loop(0, 32, 16, const(0.0, float32, 16)) as loop:
            value = b.load(x, b.at("add", start, loop.var), 16)
            loop.yields(b.let("add", loop.carried[0], value))
        mask = b.mask_below(5, 16)
        tail = b.load(x, b.at("add", start, 32), 16, mask)
        total = b.let("add", loop.results[0], tail)
        b.store(y, row.var, b.let("reduce_add", total))
    return b.kernel("row_sums", [x, y, N])


def test_the_text_of_a_kernel_is_golden_and_runs(golden, run_kernel):
    """Chunks by the ticket, a carried loop, a masked tail: read, then run."""
    text = emit(row_sums(), HOST)
    golden(text)
    x = np.random.default_rng(0).normal(0, 1, (11, 37)).astype(np.float32)
    y = np.empty(11, np.float32)
    run_kernel(row_sums(), x, y, 11, threads=cpu.pool_size(), text=text)
    assert np.allclose(y, x.sum(1, dtype=np.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 997])
@pytest.mark.parametrize("threads", [0, 1])
def test_every_row_is_taken_once_whatever_the_chunks(run_kernel, rows, threads):
    """Chunks that divide the extent, that do not, and none at all."""
    x = np.ones((rows, 37), np.float32)
    y = np.full(rows + 1, -1, np.float32)
    pool = cpu.pool_size() if threads == 0 else 1
    run_kernel(row_sums(threads), x, y, rows, threads=pool)
    assert y.tolist() == [37.0] * rows + [-1.0]


def numbers(dtype):
    """Return a thousand stored numbers of a dtype, special ones among them."""
    random = np.random.default_rng(dtype.bytes)
    if dtype.kind == "int":
        bound = np.iinfo(dtype.numpy_name)
        array = random.integers(bound.min, bound.max, 1000, dtype.numpy_name)
        array[:4] = [0, -1, bound.min, bound.max]
        return array
    values = random.normal(0, 1, 1000) * 10.0 ** random.integers(-6, 5, 1000)
    values[: len(SPECIAL)] = SPECIAL
    return stored(values, dtype)


def stored(values, dtype):
    """Return numbers as NumPy carries them in memory."""
    return to_bfloat16(values) if dtype is bfloat16 else values.astype(dtype.numpy_name)


def valued(array, dtype):
    """Return a stored array as numbers that NumPy computes with."""
    return from_bfloat16(array) if dtype is bfloat16 else array


def agree(seen, expected, dtype):
    """Say whether two stored arrays hold the same numbers, NaN with NaN."""
    return np.array_equal(
        valued(seen, dtype), valued(expected, dtype), equal_nan=dtype.kind == "float"
    )


ARITHMETIC = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op in ARITHMETIC
        for dtype in (*FLOATS, int32, int64)
        if op != "div" or dtype.kind == "float"  # integers divide as scalars only
    ],
    ids=str,
)
def test_arithmetic_is_numpys(elementwise, op, dtype):
    """Rounded once; halves too; integers wrap; NaN wins a minimum."""
    a, b = numbers(dtype), numbers(dtype)[::-1].copy()
    expected = ARITHMETIC[op](valued(a, dtype), valued(b, dtype))
    seen = elementwise(
        lambda t, x, y: t.let(op, x, y), [a, b], dtype, sources=[dtype] * 2
    )
    assert agree(seen, stored(expected, dtype), dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, int32, int64], ids=str)
@pytest.mark.parametrize("op", ["neg", "abs"])
def test_signs_are_numpys(elementwise, op, dtype):
    """Of zeros and infinities too."""
    a = numbers(dtype)
    expected = {"neg": np.negative, "abs": np.abs}[op](valued(a, dtype))
    seen = elementwise(lambda t, x: t.let(op, x), [a], dtype, sources=[dtype])
    assert agree(seen, stored(expected, dtype), dtype)
    if dtype.kind == "float":
        signs = np.signbit(valued(seen, dtype)) == np.signbit(expected)
        assert np.all(signs | np.isnan(expected))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_square_roots_are_rounded_correctly(elementwise, dtype):
    """Halves too, though they are computed in float32."""
    a = numbers(dtype)
    expected = stored(np.sqrt(valued(a, dtype).astype(np.float64)), dtype)
    seen = elementwise(lambda t, x: t.let("sqrt", x), [a], dtype, sources=[dtype])
    assert agree(seen, expected, dtype)


def test_a_fused_multiply_add_rounds_once(elementwise):
    """What a * b + c loses in two roundings."""
    a = np.array([1 + 2.0**-12] * 17, np.float32)
    c = np.array([-1 - 2.0**-11] * 17, np.float32)
    seen = elementwise(lambda t, x, y: t.let("fma", x, x, y), [a, c], float32)
    assert seen.tolist() == [2.0**-24] * 17


COMPARED = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


@pytest.mark.parametrize("dtype", [*FLOATS, int32, int64, bool_], ids=str)
@pytest.mark.parametrize("op", COMPARED)
def test_comparisons_are_numpys(elementwise, op, dtype):
    """NaN compares unequal to everything, itself too."""
    if dtype is bool_:
        a, b = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    else:
        a, b = numbers(dtype), numbers(dtype)
        b[::2] = b[::-2]
    seen = elementwise(
        lambda t, x, y: t.let(op, x, y), [a, b], bool_, sources=[dtype] * 2
    )
    assert np.array_equal(seen, COMPARED[op](valued(a, dtype), valued(b, dtype)))


def test_logic_and_choice_are_numpys(elementwise):
    """And, or, xor, not over masks, and a choice by one."""
    random = np.random.default_rng(1)
    a, b = random.integers(0, 2, (2, 37)).astype(bool)
    for op, function in {
        "and": np.logical_and,
        "or": np.logical_or,
        "xor": np.logical_xor,
    }.items():
        seen = elementwise(lambda t, x, y, op=op: t.let(op, x, y), [a, b], bool_)
        assert np.array_equal(seen, function(a, b))
    assert np.array_equal(elementwise(lambda t, x: t.let("not", x), [a], bool_), ~a)
    for dtype in (float16, bfloat16, float32, int64):
        x, y = numbers(dtype)[:37], numbers(dtype)[-37:]
        seen = elementwise(
            lambda t, c, x, y: t.let("select", c, x, y),
            [a, x, y],
            dtype,
            sources=[bool_, dtype, dtype],
        )
        assert agree(seen, np.where(a, x, y), dtype)


def reduction(op, dtype, lanes):
    """Make y[0] = op(x[0:lanes])."""
    x = Buffer("x", dtype, index(lanes))
    y = Buffer("y", dtype, index(1), access="out")
    b = Builder()
    b.store(y, 0, b.let(op, b.load(x, 0, lanes)))
    return b.kernel("reduction", [x, y])


REDUCED = {"reduce_add": np.sum, "reduce_min": np.min, "reduce_max": np.max}


@pytest.mark.parametrize("lanes", [1, 2, 16, 64])
@pytest.mark.parametrize("dtype", [*FLOATS, int32, int64], ids=str)
@pytest.mark.parametrize("op", REDUCED)
def test_a_vector_reduces_to_its_sum_or_bound(run_kernel, op, dtype, lanes):
    """Small integers, whose sums are exact in any order; then a NaN."""
    values = np.random.default_rng(lanes).integers(-9, 9, lanes).astype(np.float64)
    for nan in (False, True) if dtype.kind == "float" else (False,):
        if nan:
            values[lanes // 2] = np.nan
        x, y = stored(values, dtype), np.empty(1, dtype.numpy_name)
        run_kernel(reduction(op, dtype, lanes), x, y)
        expected = np.array([REDUCED[op](values)])
        if dtype.kind == "float":
            assert agree(y, stored(expected, dtype), dtype)
        else:
            assert y[0] == expected[0]


@pytest.mark.parametrize("op", ["reduce_and", "reduce_or"])
def test_masks_reduce_to_all_and_any(run_kernel, op):
    """Of 16 lanes: none, one, all but one, all."""
    for ones in (0, 1, 15, 16):
        x, y = np.arange(16) < ones, np.empty(1, bool)
        run_kernel(reduction(op, bool_, 16), x, y)
        assert y[0] == (x.all() if op == "reduce_and" else x.any())


@pytest.mark.parametrize("count", [-1, 0, 5, 16, 99])
def test_a_mask_of_a_known_count_is_a_constant(run_kernel, count):
    """It costs no instructions, and holds the same lanes."""
    y = Buffer("y", bool_, index(16), access="out")
    b = Builder()
    b.store(y, 0, b.mask_below(count, 16))
    kernel = b.kernel("mask", [y])
    assert "icmp" not in emit(kernel, HOST)
    seen = np.empty(16, bool)
    run_kernel(kernel, seen)
    assert np.array_equal(seen, np.arange(16) < count)


@given(count=st.integers(-(2**63), 2**63 - 1))
def test_a_mask_holds_the_lanes_below_any_count(run_kernel, count):
    """Negative counts hold none, large ones all."""
    y = Buffer("y", bool_, index(16), access="out")
    b = Builder()
    b.store(y, 0, b.mask_below(N, 16))
    seen = np.empty(16, bool)
    run_kernel(b.kernel("mask", [y, N]), seen, count)
    assert np.array_equal(seen, np.arange(16) < count)


def test_lanes_that_are_masked_off_are_neither_read_nor_written(run_kernel):
    """They read as zero, and what they would overwrite is kept."""
    for dtype in (float16, bfloat16, float32, float64, int32, int64, bool_):
        for lanes in (1, 16):
            for live in range(lanes + 1):
                x = Buffer("x", dtype, index(lanes))
                y = Buffer("y", dtype, index(lanes), access="out")
                z = Buffer("z", dtype, index(lanes), access="out")
                b = Builder()
                mask = b.mask_below(N, lanes)
                value = b.load(x, 0, lanes, mask)
                b.store(y, 0, value)
                b.store(z, 0, value, mask)
                ones = np.ones(lanes, dtype.numpy_name)
                zeros = np.zeros_like(ones)
                seen, kept = ones.copy(), zeros.copy()
                run_kernel(b.kernel("masked", [x, y, z, N]), ones, seen, kept, live)
                expected = np.where(np.arange(lanes) < live, ones, zeros)
                assert np.array_equal(seen, expected)
                assert np.array_equal(kept, expected)


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (3, 3), (5, 2), (-7, 11), (2, 9)])
@pytest.mark.parametrize("known", [True, False])
def test_a_loop_is_a_range_and_carries_its_state(run_kernel, bounds, known):
    """No iteration gives the first value, whether or not the bounds are known."""
    low, high = Var("low", INDEX), Var("high", INDEX)
    y = Buffer("y", int64, index(1), access="out")
    b = Builder()
    start, stop = [index(x) for x in bounds] if known else (low, high)
    with b.loop(start, stop, 3, index(1)) as loop:
        loop.yields(b.let("add", b.let("mul", loop.carried[0], index(31)), loop.var))
    b.store(y, 0, loop.results[0])
    seen, expected = np.empty(1, np.int64), 1
    run_kernel(b.kernel("ranged", [y, low, high]), seen, *bounds)
    for i in range(*bounds, 3):
        expected = expected * 31 + i
    assert seen[0] == expected


@given(a=st.integers(-(2**63), 2**63 - 1), b=st.integers(1, 2**63 - 1))
def test_index_division_truncates(run_kernel, a, b):
    """Quotient and remainder as of C, minimum and maximum beside them."""
    p, q = Var("p", INDEX), Var("q", INDEX)
    y = Buffer("y", int64, index(4), access="out")
    t = Builder()
    for k, op in enumerate(("div", "rem", "min", "max")):
        t.store(y, k, t.let(op, p, q))
    seen = np.empty(4, np.int64)
    run_kernel(t.kernel("indices", [y, p, q]), seen, a, b)
    quotient = abs(a) // b * (1 if a >= 0 else -1)
    assert seen.tolist() == [quotient, a - quotient * b, min(a, b), max(a, b)]


def test_a_branch_gives_the_values_of_the_side_that_ran(run_kernel):
    """Nested in a loop, with a side that does nothing."""
    y = Buffer("y", int64, index(6), access="inout")
    b = Builder()
    with b.loop(0, 6, 1, index(0)) as loop:
        odd = b.let("eq", b.let("rem", loop.var, index(2)), index(1))
        with b.branch(odd) as branch:
            b.store(y, loop.var, loop.carried[0])
            branch.gives(b.let("add", loop.carried[0], index(10)))
            branch.otherwise()
            branch.gives(loop.carried[0])
        with b.branch(odd):
            b.store(y, b.at("sub", loop.var, 1), index(-5))
        loop.yields(branch.results[0])
    seen = np.full(6, -1)
    run_kernel(b.kernel("branches", [y]), seen)
    assert seen.tolist() == [-5, 0, -5, 10, -5, 20]


def test_scratch_memory_is_the_same_in_every_iteration(run_kernel):
    """It is reserved once, however often the loop around it runs."""
    y = Buffer("y", float32, N, access="inout")
    b = Builder()
    with b.loop(0, N, 16) as loop:
        scratch = b.alloc("scratch", float32, 1 << 14)
        b.store(scratch, 16, b.load(y, loop.var, 16))
        b.store(y, loop.var, b.let("add", *[b.load(scratch, 16, 16)] * 2))
    seen = np.ones(16 << 10, np.float32)
    run_kernel(b.kernel("scratched", [y, N]), seen, seen.size)
    assert np.all(seen == 2)


def streaming(alignment):
    """Copy x to y by streaming stores of a stated alignment."""
    x = Buffer("x", float32, N)
    y = Buffer("y", float32, N, access="out")
    b = Builder()
    with b.loop(0, N, 16) as loop:
        b.prefetch(x, b.at("add", loop.var, 1 << 20), locality=2)
        value = b.load(x, loop.var, 16)
        b.store(y, loop.var, value, streaming=True, alignment=alignment)
    b.fence()
    return b.kernel("streamed", [x, y, N])


@pytest.mark.parametrize("alignment", [16, 32, 64])
def test_streaming_stores_go_round_the_caches_at_any_alignment(run_kernel, alignment):
    """The store is non-temporal, a fence follows, and prefetching past is harmless."""
    x = np.random.default_rng(2).normal(0, 1, 160).astype(np.float32)
    room = np.zeros(160 + 32, np.float32)
    first = -room.ctypes.data % 64 // 4 + alignment // 4 % 16
    run_kernel(streaming(alignment), x, room[first : first + 160], 160)
    assert np.array_equal(room[first : first + 160], x)
    assembly = llvm.disassembly(emit(streaming(alignment), llvm.host()))
    if llvm.host().architecture == "x86_64":
        assert "movntps" in assembly
        assert "sfence" in assembly


def test_a_fence_is_the_targets_own():
    """Machines other than x86 have no sfence."""
    arm = llvm.Host("aarch64-linux-gnu", "generic", frozenset(), 16)
    assert "fence seq_cst" in emit(streaming(16), arm)
    assert "@llvm.x86.sse.sfence()" in emit(streaming(16), HOST)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(float32, 0.1), (float64, 0.1), (int32, -7), (int64, 1 << 40), (bool_, True)],
    ids=str,
)
def test_scalars_come_through_their_slots(run_kernel, dtype, value):
    """Beside a splat, a lane and the lanes' numbers."""
    s = Var("s", typed(dtype))
    y = Buffer("y", dtype, index(8), access="out")
    b = Builder()
    b.store(y, 0, b.splat(s, 8))
    b.store(y, 3, b.let("extract", b.splat(s, 4), index(2)))
    seen = np.empty(8, dtype.numpy_name)
    run_kernel(b.kernel("scalar", [y, s]), seen, value)
    assert np.all(seen == np.array(value, seen.dtype))


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_lanes_are_numbered(run_kernel, lanes):
    """In both integer types."""
    for dtype in (int32, int64):
        y = Buffer("y", dtype, index(lanes), access="out")
        b = Builder()
        b.store(y, 0, b.iota(lanes, dtype))
        seen = np.empty(lanes, dtype.numpy_name)
        run_kernel(b.kernel("lanes", [y]), seen)
        assert seen.tolist() == list(range(lanes))


@given(value=st.floats())
def test_a_constant_is_rounded_to_its_dtype(run_kernel, value):
    """Any float64, spelled for each of the float types."""
    for dtype in FLOATS:
        y = Buffer("y", dtype, index(2), access="out")
        b = Builder()
        b.store(y, 0, const(value, dtype, 2))
        seen = np.empty(2, dtype.numpy_name)
        run_kernel(b.kernel("constant", [y]), seen)
        assert agree(seen, stored(np.array([value] * 2), dtype), dtype)


def test_a_parameter_may_have_any_python_name(run_kernel):
    """A name that is not ASCII is spelled in ASCII."""
    y = Buffer("λ", float32, index(1), access="out")
    b = Builder()
    b.store(y, 0, Var("ε", typed(float32)))
    seen = np.empty(1, np.float32)
    kernel = b.kernel("named", [y, Var("ε", typed(float32))])
    assert emit(kernel, HOST).isascii()
    run_kernel(kernel, seen, 0.5)
    assert seen[0] == 0.5


def test_a_half_value_is_widened_once_however_often_it_is_used():
    """Three uses, one conversion, and none is shared between two bodies."""
    x = Buffer("x", float16, N)
    y = Buffer("y", float16, N, access="out")
    b = Builder()
    value = b.load(x, 0, 16)
    total = b.let("add", b.let("mul", value, value), value)
    b.store(y, 0, total)
    text = emit(b.kernel("widened", [x, y, N]), HOST)
    assert text.count("fpext") == 2  # of the value, and of the rounded product


def test_the_same_bits_are_two_numbers_in_two_half_types(run_kernel):
    """A float16 0x3C00 is 1; as a bfloat16 it is 1 / 128."""
    y = Buffer("y", float32, index(2), access="out")
    b = Builder()
    for k, (dtype, value) in enumerate([(float16, 1.0), (bfloat16, 2.0**-7)]):
        constant = const(value, dtype)
        b.store(y, k, b.cast(b.let("neg", constant), float32))
    seen = np.empty(2, np.float32)
    run_kernel(b.kernel("halves", [y]), seen)
    assert seen.tolist() == [-1.0, -(2.0**-7)]


def test_what_only_a_gpu_has_is_unsupported_here():
    """The emitter says so too, for a kernel that was verified for another target."""
    kernel = Kernel("k", (), (Effect("barrier"),))
    with pytest.raises(Unsupported, match="barrier does not exist on target cpu"):
        emit(kernel, HOST)
    b = Builder()
    b.let("shuffle_xor", const(1.0, float32), index(1))
    with pytest.raises(Unsupported, match="shuffle_xor does not exist on target cpu"):
        emit(b.kernel("k", []), HOST)
