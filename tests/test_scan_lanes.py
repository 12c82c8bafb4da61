"""A group of threads has a chain: its lanes on a GPU, run by the interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import simt
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels.dtypes import bool_, float32, float64, int64, of
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import INDEX, Buffer, Var
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.scan.cuda import GROUPS, CudaScan, check, problem
from steelyard_kernels.schedule.scan.cuda_lanes import CudaLanes
from steelyard_kernels.schedule.scan.lanes import neutral

NOTHING = Program("nothing", (), (), (), (), chains=9)
NUMPY = {"add": np.sum, "maximum": np.max, "minimum": np.min}


def knobs(group=4, chains=1, *, ahead=False):
    """Return a schedule of so many threads a chain and chains a block."""
    return CudaScan(group, chains, 1, ahead)


def every_place():
    """Return groups within a warp with few and many chains, and beyond one."""
    within = [(g, c) for g in GROUPS if g <= 32 for c in {1, 3, 32 // g, 64 // g}]
    return [*within, *[(g, 1) for g in GROUPS if g > 32]]


def ran(schedule, emit, given, size, chains):
    """Emit with lanes, verify, run on enough blocks; return what each chain stored.

    `emit(lanes, x, y)` reads x and writes y, `size` elements a chain.
    """
    b = Builder()
    many = index(chains)
    x = Buffer("x", of(given.dtype.name), index(given.size))
    y = Buffer("y", x.dtype, index(chains * size), access="out")
    extent = Var("extent", INDEX)
    emit(CudaLanes(b, schedule, extent), x, y)
    kernel = b.kernel("lanes", [x, y, extent], threads=schedule.threads)
    verify(kernel, "cuda")
    seen = np.full((chains, size), 77, given.dtype)
    blocks = -(-chains // schedule.chains)
    simt.run(kernel, {"x": given, "y": seen, "extent": int(many.value)}, blocks)
    return seen


def vectors(lanes, x, size):
    """Emit the loads of a chain's row of x, as the vectors that hold it."""
    b, width = lanes.b, lanes.width
    start = b.at("multiply", lanes.chain, size)
    return [
        (
            lanes.load(x, b.at("add", start, at), 1, min(width, size - at)),
            min(width, size - at),
        )
        for at in range(0, size, width)
    ]


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_every_chain_gets_its_own_row_back(group, chains):
    """Loads and stores of 13 elements, of as many chains as leave a block unfilled."""
    total, size = 2 * chains + 1, 13

    def emit(lanes, x, y):
        b = lanes.b
        start = b.at("multiply", lanes.chain, size)
        for place, (vector, count) in enumerate(vectors(lanes, x, size)):
            at = b.at("add", start, place * lanes.width)
            lanes.store(y, at, 1, count, vector)

    x = np.random.default_rng(group).random((total, size))
    assert np.array_equal(ran(knobs(group, chains), emit, x, size, total), x)


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize(("group", "chains"), every_place())
def test_totals_take_the_lanes_below_a_count(group, chains, op):
    """Negative maxima and positive minima show that what lies behind counts nothing."""
    total, size = chains + 2, min(group, 11)
    sign = {"add": 1, "maximum": -1, "minimum": 1}[op]
    given = sign * np.random.default_rng(3).integers(1, 99, (total, size)).astype(float)

    def emit(lanes, x, y):
        ((vector, count),) = vectors(lanes, x, size)
        first, again = lanes.totals(op, [(vector, count), (vector, 1)])
        start = lanes.b.at("multiply", lanes.chain, 2)
        lanes.store_uniform(y, start, first)
        lanes.store_uniform(y, lanes.b.at("add", start, 1), again)

    seen = ran(knobs(group, chains), emit, given, 2, total)
    assert np.array_equal(seen[:, 0], NUMPY[op](given, 1))
    assert np.array_equal(seen[:, 1], given[:, 0])


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_all_threads_get_each_element(group, chains):
    """The elements of 70 in order: by shuffles, or through shared memory."""
    total, size = chains + 1, 70

    def emit(lanes, x, y):
        b = lanes.b
        held = [vector for vector, _ in vectors(lanes, x, size)]
        found = lanes.elements(held, size)
        assert len(found) == size
        weighed = [
            b.let("multiply", value, const(k + 1, float64))
            for k, value in enumerate(found)
        ]
        result = weighed[0]
        for value in weighed[1:]:
            result = b.let("add", result, value)
        alone = lanes.elements(held, 3)[2]
        start = b.at("multiply", lanes.chain, 2)
        lanes.store_uniform(y, start, result)
        lanes.store_uniform(y, b.at("add", start, 1), alone)

    x = np.random.default_rng(5).integers(-9, 9, (total, size)).astype(float)
    seen = ran(knobs(group, chains), emit, x, 2, total)
    assert np.array_equal(seen[:, 0], x @ np.arange(1, size + 1))
    assert np.array_equal(seen[:, 1], x[:, 2])


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_what_is_computed_ahead_is_fetched_by_its_turn(group, chains):
    """A chain alone in its warp has all 32 lanes, otherwise those of its group."""
    schedule = knobs(group, chains, ahead=True)
    total, span = chains + 1, schedule.span
    assert span == (32 if chains == 1 else group)

    def emit(lanes, x, y):
        b = lanes.b
        made = b.let("multiply", lanes.turns(int64), b.load(x, lanes.chain))
        ahead = lanes.keep(made)
        with b.loop(0, lanes.span, 1) as loop:
            at = b.at("add", b.at("multiply", lanes.chain, span), loop.var)
            lanes.store_uniform(y, at, lanes.fetch(ahead, loop.var))

    x = np.arange(1, total + 1)
    seen = ran(schedule, emit, x, span, total)
    assert np.array_equal(seen, x[:, None] * np.arange(span))


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_what_a_group_wrote_is_there_for_all_of_its_threads_once_it_settled(
    group, chains
):
    """Written by lanes and by the first thread, read reversed and by everyone."""
    total, size = chains + 1, min(group, 32)

    def emit(lanes, x, y):
        b = lanes.b
        room, start = lanes.scratch("kept", float64, size + 1)
        ((vector, count),) = vectors(lanes, x, size)
        lanes.store(room, start, 1, count, vector)
        end = b.at("add", start, size)
        lanes.store_uniform(room, end, const(5, float64))
        lanes.settle()
        back = lanes.load(room, b.at("subtract", end, 1), -1, size)
        more = b.let("add", back, lanes.load_uniform(room, end))
        lanes.store(y, b.at("multiply", lanes.chain, size), 1, size, more)

    x = np.random.default_rng(2).random((total, size))
    assert np.array_equal(
        ran(knobs(group, chains), emit, x, size, total), x[:, ::-1] + 5
    )


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_chains_in_step_hear_of_each_other(group, chains):
    """One chain of a warp is not done: none is; a chain alone decides for itself."""
    schedule = knobs(group, chains)
    total = 2 * chains

    def emit(lanes, x, y):
        b = lanes.b
        flag = b.let("greater", b.load(x, lanes.chain), b.number(0))
        lanes.store_uniform(y, lanes.chain, b.cast(lanes.any(flag), int64))

    x = np.zeros(total, np.int64)
    x[-1] = 1
    seen = ran(schedule, emit, x, 1, total)[:, 0]
    assert seen[-1] == 1
    beside = [chain for chain in range(total) if seen[chain] and not x[chain]]
    warps = {(chain % chains * group // 32, chain // chains) for chain in beside}
    assert warps <= {((total - 1) % chains * group // 32, (total - 1) // chains)}
    assert (chains > 1) or not beside


def test_a_block_has_so_much_memory_of_its_own():
    """48 KiB of a block: what is asked for beyond is one sentence."""
    lanes = CudaLanes(Builder(), knobs(8, 4), Var("extent", INDEX))
    lanes.scratch("kept", float64, 1000)
    with pytest.raises(Unsupported, match="kept2 takes 32000 bytes of a block's 17152"):
        lanes.scratch("kept2", float64, 1000)


@given(
    st.integers(-1, 300), st.integers(-1, 300), st.integers(-1, 20), st.integers(0, 300)
)
@settings(max_examples=300)
def test_a_schedule_fits_or_says_why_not(group, chains, unroll, registers):
    """Legal knobs make blocks of whole warps up to 256 threads; others one sentence."""
    schedule = CudaScan(group, chains, unroll, True, registers)
    why = problem(schedule)
    if why:
        assert "; choose" in why
        with pytest.raises(KernelError, match="nothing: schedule g"):
            check(NOTHING, schedule)
        return
    check(NOTHING, schedule)
    assert schedule.threads % 32 == 0
    assert 32 <= schedule.threads <= 256
    assert schedule.threads - group * chains < 32
    assert group <= 32 or chains == 1
    assert 32 % schedule.span == 0


def test_a_program_of_one_chain_has_no_second_in_a_block():
    """It is said in a sentence."""
    with pytest.raises(KernelError, match="3 chains a block of a program of one"):
        check(replace(NOTHING, chains=0), knobs(4, 3))


@pytest.mark.parametrize("dtype", [float32, float64, int64])
def test_what_changes_no_total(dtype):
    """Any value stays what it is beside it."""
    extremes = [-(2**62), 0, 7] if dtype is int64 else [-1e30, 0.0, np.inf]
    for value in extremes:
        assert value + neutral("add", dtype).value == value
        assert max(value, neutral("maximum", dtype).value) == value
        assert min(value, neutral("minimum", dtype).value) == value


def test_a_vector_of_flags_goes_through_shared_memory():
    """A bool is a byte there."""

    def emit(lanes, x, y):
        b = lanes.b
        ((vector, _),) = vectors(lanes, x, 64)
        flags = b.let("greater", vector, b.number(0))
        assert flags.type.dtype is bool_
        count = b.number(0)
        for flag in lanes.elements([flags], 64):
            count = b.let("add", count, b.cast(flag, int64))
        lanes.store_uniform(y, lanes.chain, count)

    x = np.random.default_rng(1).integers(-5, 5, (3, 64))
    seen = ran(knobs(64), emit, x, 1, 3)
    assert np.array_equal(seen[:, 0], (x > 0).sum(1))


@pytest.mark.parametrize(("group", "chains"), every_place())
def test_scalars_become_a_vector(group, chains):
    """Each lane has its own; equal ones cost nothing."""
    total, size = chains + 1, min(group, 5)

    def emit(lanes, x, y):
        b = lanes.b
        start = b.at("multiply", lanes.chain, size)
        scalars = [lanes.load_uniform(x, b.at("add", start, k)) for k in range(size)]
        before = len(b.body)
        assert lanes.pack(scalars[:1] * size) is scalars[0]
        assert len(b.body) == before
        lanes.store(y, start, 1, size, lanes.pack(scalars))

    x = np.random.default_rng(group).random((total, size))
    assert np.array_equal(ran(knobs(group, chains), emit, x, size, total), x)
