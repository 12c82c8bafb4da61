"""The interpreter of GPU kernels: it computes as a GPU does, and sees what hangs one."""

from fractions import Fraction

import numpy as np
import pytest
import simt
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import float32, int32
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import Buffer, Const, Var, typed
from steelyard_kernels.ir.verify import verify

INDEX = typed(int32)


def array(name, extent, dtype=float32, access="in"):
    """Return a global buffer."""
    return Buffer(name, dtype, Const(extent, INDEX), access=access)


def ran(emit, x, extent, *, threads=64, grid=1, dtype=float32, check=True):
    """Run the body `emit(b, x, y)` and return y."""
    b = Builder(INDEX)
    source = array("x", x.size, dtypes.of(x.dtype))
    target = array("y", extent, dtype, "inout")
    emit(b, source, target)
    kernel = b.kernel("k", (source, target), threads=threads)
    if check:
        verify(kernel, "cuda")
    y = np.zeros(extent, dtype.numpy)
    simt.run(kernel, {"x": x, "y": y}, grid)
    return y


ONES = np.ones(64, np.float32)


def test_a_block_adds_up_through_loops_shuffles_and_shared_memory():
    """Threads have different numbers of turns; one thread writes the sum."""
    x = np.arange(1000, dtype=np.float32)

    def emit(b, x, y):
        thread = b.thread()
        with b.loop(thread, 1000, 128, const(0.0, float32)) as loop:
            loop.yields(b.let("add", loop.carried[0], b.load(x, loop.var)))
        (total,) = loop.results
        for step in (16, 8, 4, 2, 1):
            other = b.let("shuffle_xor", total, b.number(step))
            total = b.let("add", total, other)
        slots = b.alloc("slots", float32, 4, "shared")
        with b.branch(b.let("equal", b.at("rem", thread, 32), b.number(0))):
            b.store(slots, b.at("div", thread, 32), total)
        b.effect("barrier")
        with b.branch(b.let("equal", thread, b.number(0))):
            b.store(y, 0, b.let("reduce_add", b.load(slots, 0, 4, alignment=16)))

    assert ran(emit, x, 1, threads=128)[0] == x.sum()


def test_a_shuffle_down_keeps_the_last_lanes():
    """Lanes with nobody `delta` above them keep their own value."""

    def emit(b, x, y):
        thread = b.thread()
        moved = b.let("shuffle_down", b.load(x, thread), b.number(30))
        b.store(y, thread, moved)

    x = np.arange(64, dtype=np.float32)
    expected = [30, 31, *range(2, 32), 62, 63, *range(34, 64)]
    assert ran(emit, x, 64).tolist() == expected


def test_both_sides_of_a_branch_give_their_threads_values():
    """Results are chosen thread by thread."""

    def emit(b, x, y):
        thread = b.thread()
        with b.branch(b.let("less", thread, b.number(3))) as branch:
            branch.gives(const(1.0, float32))
            branch.otherwise()
            branch.gives(b.load(x, thread))
        b.store(y, thread, branch.results[0])

    assert ran(emit, 5 * ONES, 64).tolist() == [1.0] * 3 + [5.0] * 61


def test_masked_lanes_read_zero_and_write_nothing():
    """Only lanes below two are touched."""

    def emit(b, x, y):
        with b.branch(b.let("equal", b.thread(), b.number(0))):
            mask = b.mask_below(2, 4)
            value = b.load(x, 0, 4, mask)
            b.store(y, 0, value)
            b.store(y, 4, b.let("add", value, value), mask)

    assert ran(emit, ONES, 8).tolist() == [1, 1, 0, 0, 2, 2, 0, 0]


def test_what_nobody_wrote_is_poison():
    """Shared memory and registers begin as NaN."""

    def emit(b, x, y):
        slots = b.alloc("slots", float32, 64, "shared")
        own = b.alloc("own", float32, 2, "register")
        thread = b.thread()
        b.store(own, 0, b.load(x, thread))
        b.store(y, thread, b.load(slots, thread))
        b.store(y, b.at("add", thread, 64), b.load(own, 0))
        b.store(y, b.at("add", thread, 128), b.load(own, 1))

    y = ran(emit, ONES, 192)
    assert np.isnan(y[:64]).all()
    assert (y[64:128] == 1).all()
    assert np.isnan(y[128:]).all()


def exchange(barrier, width):
    """Return a body whose threads read what another wrote."""

    def emit(b, x, y):
        slots = b.alloc("slots", float32, 64, "shared")
        thread = b.thread()
        b.store(slots, thread, b.load(x, thread))
        if barrier:
            b.effect("barrier")
        other = b.at("subtract", 63, thread) if width == 64 else b.at("add", 0, 0)
        b.store(y, thread, b.load(slots, other))

    return emit


@pytest.mark.parametrize("width", [64, 1])
def test_threads_that_share_without_a_barrier_race(width):
    """The same body with a barrier is sound."""
    assert (ran(exchange(barrier=True, width=width), ONES, 64) == 1).all()
    with pytest.raises(AssertionError, match="two threads race"):
        ran(exchange(barrier=False, width=width), ONES, 64)


def test_a_read_before_another_threads_write_is_a_race():
    """Also where many have read."""

    def emit(b, x, y):
        slots = b.alloc("slots", float32, 1, "shared")
        thread = b.thread()
        b.store(y, thread, b.load(slots, 0))
        with b.branch(b.let("equal", thread, b.number(0))):
            b.store(slots, 0, const(1.0, float32))

    with pytest.raises(AssertionError, match=r"slots.* = .*two threads race"):
        ran(emit, ONES, 64)


def test_threads_and_blocks_that_write_one_element_race():
    """Even when they write the same value."""

    def emit(b, x, y):
        with b.branch(b.let("equal", b.thread(), b.number(0))):
            b.store(y, 0, const(1.0, float32))

    def all_threads(b, x, y):
        b.store(y, 0, const(1.0, float32))

    assert ran(emit, ONES, 1)[0] == 1
    with pytest.raises(AssertionError, match="two blocks race"):
        ran(emit, ONES, 1, grid=2)
    with pytest.raises(AssertionError, match="two threads race"):
        ran(all_threads, ONES, 1)


def test_accesses_stay_inside_and_aligned():
    """The statement is named, with the places outside."""

    def outside(b, x, y):
        b.store(y, b.at("subtract", b.thread(), 1), const(1.0, float32))

    def unaligned(b, x, y):
        at = b.at("add", b.at("multiply", b.thread(), 4), 2)
        b.load(x, at, 4, b.splat(b.let("less", at, b.number(60)), 4), alignment=16)

    with pytest.raises(AssertionError, match=r"outside 64 elements: \[-1\]"):
        ran(outside, ONES, 64)
    with pytest.raises(AssertionError, match="not aligned"):
        ran(unaligned, ONES, 64)


def test_barriers_and_shuffles_need_every_thread():
    """A hang on a GPU is an error here."""

    def barrier(b, x, y):
        with b.branch(b.let("less", b.thread(), b.number(32))):
            b.effect("barrier")

    def shuffle(b, x, y):
        thread = b.thread()
        with b.branch(b.let("less", thread, b.number(33))):
            b.let("shuffle_xor", b.load(x, thread), b.number(1))

    with pytest.raises(AssertionError, match="not every thread reaches"):
        ran(barrier, ONES, 1, check=False)
    with pytest.raises(AssertionError, match="a lane of the warp is missing"):
        ran(shuffle, ONES, 1)


def test_registers_have_no_address():
    """An index that depends on the thread would need one."""

    def emit(b, x, y):
        own = b.alloc("own", float32, 64, "register")
        b.store(own, b.thread(), const(1.0, float32))

    with pytest.raises(AssertionError, match="registers have no address"):
        ran(emit, ONES, 1)


def test_scalars_and_the_number_of_blocks_come_from_the_launch():
    """Blocks run in any order, all of them once."""
    b = Builder(INDEX)
    y = array("y", 6, access="out")
    count, scale = Var("count", INDEX), Var("scale", typed(float32))
    at = b.at("add", b.at("multiply", b.block(), 2), b.thread())
    with b.branch(b.let("less", at, count)):
        b.store(y, at, b.let("multiply", b.cast(at, float32), scale))
    kernel = b.kernel("k", (y, scale, count), threads=2)
    verify(kernel, "cuda")
    seen = np.full(6, -1, np.float32)
    simt.run(kernel, {"y": seen, "scale": 0.5, "count": 5}, 3)
    assert seen.tolist() == [0, 0.5, 1, 1.5, 2, -1]


@pytest.mark.parametrize("dtype", dtypes.HALVES)
def test_halves_are_rounded_after_every_operation(dtype):
    """A small addend is lost twice, where float32 would have kept it."""
    small = 2.0**-12 if dtype is dtypes.float16 else 2.0**-9

    def emit(b, x, y):
        one, little = const(1.0, dtype), const(small, dtype)
        twice = b.let("add", b.let("add", one, little), little)
        with b.branch(b.let("equal", b.thread(), b.number(0))):
            b.store(y, 0, b.cast(twice, float32))

    assert ran(emit, ONES, 1)[0] == 1


wide = st.floats(-1e30, 1e30)
narrow = st.floats(-(2.0**40), 2.0**40, width=32)


@given(st.tuples(wide, wide, wide), st.tuples(narrow, narrow, narrow), st.booleans())
def test_fma_rounds_once(doubles, singles, cancel):
    """The result is the rational one's nearest float, also where terms cancel."""
    for dtype, (a, b, c) in ((np.float64, doubles), (np.float32, singles)):
        row = np.array([a, b, c], dtype)
        if cancel:
            row[2] = -row[0] * row[1]
        seen = simt.fused(*row[:, None, None])[0, 0]
        exact = Fraction(float(row[0])) * Fraction(float(row[1])) + Fraction(
            float(row[2])
        )
        if dtype is np.float64:
            if exact == 0 or abs(exact) > Fraction(1, 2**900):
                assert seen == float(exact)
            continue
        with np.errstate(over="ignore"):
            near = [np.nextafter(seen, dtype(side)) for side in (-np.inf, np.inf)]
        off = abs(Fraction(float(seen)) - exact)
        for other in near:
            assert off <= abs(Fraction(float(other)) - exact)


@pytest.mark.parametrize("spared", [0, 1, 5])
def test_a_loop_ends_for_each_thread_when_it_says_so(spared):
    """After an iteration whose flag is true; what that one gave is the result."""

    def emit(b, x, y):
        thread = b.thread()
        with b.loop(0, 10, 1, b.load(x, thread)) as loop:
            (held,) = loop.carried
            more = b.let("add", held, const(1, float32))
            loop.yields(more, until=b.let("greater_equal", more, const(4, float32)))
        b.store(y, thread, loop.results[0])

    x = np.arange(64, dtype=np.float32) - 20 + spared
    seen = ran(emit, x, 64)
    assert seen.tolist() == [min(v + 10, max(v + 1, 4)) for v in x]


def test_a_barrier_in_a_loop_that_a_thread_may_end_is_refused():
    """Unless all of the block end it together."""

    def looping(agree):
        b = Builder()
        flag = b.let("equal", b.thread(), index(3))
        with b.loop(0, 4, 1) as loop:
            b.effect("barrier")
            loop.yields(until=b.let("any_block", flag) if agree else flag)
        return b.kernel("looping", [], threads=64)

    verify(looping(True), "cuda")
    with pytest.raises(CompilerBug, match="every thread of a block"):
        verify(looping(False), "cuda")
