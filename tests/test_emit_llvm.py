import numpy as np
import pytest

from steelyard_device import cpu, llvm, processors
from steelyard_kernels.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
)
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import INDEX, Buffer, Effect, Kernel, Var, typed

N = Var("n", INDEX)
HOST = llvm.Host("x86_64-linux-gnu", "znver4", frozenset({"f16c", "fma"}), 64)


def row_sums(threads=0):
    """Make y[r] = sum of row r, of 37: a carried loop and a masked tail."""
    x = Buffer("x", float32, N)
    y = Buffer("y", float32, N, access="out")
    b = Builder()
    with b.parallel(N, 4, threads) as (low, high), b.loop(low, high, 1) as row:
        start = b.at("multiply", row.var, 37)
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
                ones = np.ones(lanes, dtype.numpy)
                zeros = np.zeros_like(ones)
                seen, kept = ones.copy(), zeros.copy()
                run_kernel(b.kernel("masked", [x, y, z, N]), ones, seen, kept, live)
                expected = np.where(np.arange(lanes) < live, ones, zeros)
                assert np.array_equal(seen, expected)
                assert np.array_equal(kept, expected)


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
    text = emit(streaming(alignment), processors.PROCESSORS["x86-64-v3"])
    assert {"vmovntps", "sfence"} <= dict(
        processors.compile(text, "x86-64-v3").opcodes
    ).keys()


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
    seen = np.empty(8, dtype.numpy)
    run_kernel(b.kernel("scalar", [y, s]), seen, value)
    assert np.all(seen == np.array(value, seen.dtype))


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
    total = b.let("add", b.let("multiply", value, value), value)
    b.store(y, 0, total)
    text = emit(b.kernel("widened", [x, y, N]), HOST)
    assert text.count("fpext") == 2  # of the value, and of the rounded product


def test_what_only_a_gpu_has_is_unsupported_here():
    """The emitter says so too, for a kernel that was verified for another target."""
    kernel = Kernel("k", (), (Effect("barrier"),))
    with pytest.raises(Unsupported, match="barrier does not exist on target cpu"):
        emit(kernel, HOST)
    b = Builder()
    b.let("shuffle_xor", const(1.0, float32), index(1))
    with pytest.raises(Unsupported, match="shuffle_xor does not exist on target cpu"):
        emit(b.kernel("k", []), HOST)
