"""Reductions, votes and lanes of a warp and a block, run by the interpreter."""

import numpy as np
import pytest
import simt

from steelyard_kernels.dtypes import float32, int64
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import Buffer
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.warp import Group, across_group, across_lanes

NUMPY = {"add": np.sum, "maximum": np.max, "minimum": np.min}


def reducing(threads, lanes, combines, dtype):
    """Return a kernel in which every thread stores the total of each reduction."""
    b = Builder()
    size = threads * lanes
    x = Buffer("x", dtype, index(size))
    y = Buffer("y", dtype, index(len(combines) * threads), access="out")
    thread = b.thread()
    vector = b.load(x, b.at("multiply", thread, lanes), lanes)
    values = [across_lanes(b, combine, vector) for combine in combines]
    group = Group(thread, threads)
    for place, total in enumerate(across_group(b, group, combines, values)):
        b.store(y, b.at("add", thread, place * threads), total)
    return b.kernel("reducing", [x, y], threads=threads)


@pytest.mark.parametrize("threads", [32, 64, 96, 160, 224, 1024])
@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("dtype", [float32, int64])
def test_every_thread_gets_every_total(threads, lanes, dtype):
    """Whatever the number of warps: sums of integers are exact in any order."""
    combines = ["add", "maximum", "minimum"]
    kernel = reducing(threads, lanes, combines, dtype)
    verify(kernel, "cuda")
    x = np.random.default_rng(1).integers(-99, 99, threads * lanes)
    x = x.astype(dtype.numpy)
    y = np.zeros((3, threads), x.dtype)
    simt.run(kernel, {"x": x, "y": y}, 1)
    for seen, combine in zip(y, combines, strict=True):
        np.testing.assert_array_equal(seen, NUMPY[combine](x))


def test_reductions_of_a_block_share_one_barrier_and_a_warp_needs_none():
    """Each has slots of its own; nothing waits where one warp is the group."""
    texts = [repr(reducing(n, 1, ["add", "maximum"], float32).body) for n in (32, 128)]
    assert [text.count("barrier") for text in texts] == [0, 1]
    assert [text.count("Alloc") for text in texts] == [0, 2]


def test_nan_reaches_every_total():
    """Sums and extremes of a row with one NaN are NaN in every thread."""
    kernel = reducing(64, 2, ["add", "maximum", "minimum"], float32)
    x = np.ones(128, np.float32)
    x[77] = np.nan
    y = np.zeros((3, 64), np.float32)
    simt.run(kernel, {"x": x, "y": y}, 1)
    assert np.isnan(y).all()


@pytest.mark.parametrize("width", [1, 2, 8, 32])
def test_a_lane_known_at_run_time_is_one_of_its_neighbours(width):
    """Every group of `width` lanes reads its own lane `index[0]`."""
    b = Builder()
    x = Buffer("x", float32, index(64))
    at = Buffer("at", int64, index(1))
    y = Buffer("y", float32, index(64), access="out")
    thread = b.thread()
    lane = b.load(at, 0)
    value = b.let("shuffle", b.load(x, thread), lane, index(width))
    b.store(y, thread, value)
    kernel = b.kernel("fetching", [x, at, y], threads=64)
    verify(kernel, "cuda")
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    for chosen in range(width):
        simt.run(kernel, {"x": x, "at": np.array([chosen]), "y": y}, 1)
        np.testing.assert_array_equal(y, x // width * width + chosen)
    with pytest.raises(AssertionError):
        simt.run(kernel, {"x": x, "at": np.array([width]), "y": y}, 1)


@pytest.mark.parametrize(("op", "told"), [("any_warp", 32), ("any_block", 64)])
def test_a_vote_tells_everyone(op, told):
    """One thread of 64 says yes: its warp hears it, or the block."""
    b = Builder()
    y = Buffer("y", float32, index(64), access="out")
    thread = b.thread()
    flag = b.let(op, b.let("equal", thread, index(40)))
    one, zero = const(1, float32), const(0, float32)
    b.store(y, thread, b.let("where", flag, one, zero))
    kernel = b.kernel("voting", [y], threads=64)
    verify(kernel, "cuda")
    y = np.zeros(64, np.float32)
    simt.run(kernel, {"y": y}, 1)
    assert y.sum() == told
    assert y[32:].all()


def test_a_vote_of_a_block_behind_a_condition_of_one_thread_is_refused():
    """It is a barrier; what it says is the same for all and may decide on one."""

    def voting(condition):
        b = Builder()
        first = b.let("equal", b.thread(), index(0))
        with b.branch(condition(b, first)):
            b.let("any_block", first)
        return b.kernel("voting", [], threads=64)

    verify(voting(lambda b, first: b.let("any_block", first)), "cuda")
    for hidden in (lambda _, first: first, lambda b, first: b.let("any_warp", first)):
        with pytest.raises(CompilerBug, match="every thread of a block"):
            verify(voting(hidden), "cuda")


def test_a_warps_barrier_orders_what_its_threads_share():
    """Without one the interpreter finds the race."""

    def turning(barrier):
        b = Builder()
        y = Buffer("y", float32, index(32), access="out")
        slot = b.alloc("slot", int64, 32, "shared")
        thread = b.thread()
        b.store(slot, thread, thread)
        if barrier:
            b.effect("warp_barrier")
        other = b.load(slot, b.at("subtract", 31, thread))
        b.store(y, thread, b.cast(other, float32))
        return b.kernel("turning", [y], threads=32)

    y = np.zeros(32, np.float32)
    verify(turning(True), "cuda")
    simt.run(turning(True), {"y": y}, 1)
    np.testing.assert_array_equal(y, np.arange(32)[::-1])
    with pytest.raises(AssertionError, match="race"):
        simt.run(turning(False), {"y": y}, 1)
