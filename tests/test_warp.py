"""Reductions over lanes, a warp and a block, run by the interpreter."""

import numpy as np
import pytest
import simt

from steelyard_kernels.builder import Builder, index
from steelyard_kernels.dtypes import float32, int64
from steelyard_kernels.loops import Buffer
from steelyard_kernels.schedule.warp import Group, across_group, across_lanes
from steelyard_kernels.verify import verify

NUMPY = {"add": np.sum, "max": np.max, "min": np.min}


def reducing(threads, lanes, combines, dtype):
    """Return a kernel in which every thread stores the total of each reduction."""
    b = Builder()
    size = threads * lanes
    x = Buffer("x", dtype, index(size))
    y = Buffer("y", dtype, index(len(combines) * threads), access="out")
    thread = b.thread()
    vector = b.load(x, b.at("mul", thread, lanes), lanes)
    values = [across_lanes(b, combine, vector) for combine in combines]
    group = Group(thread, threads // 32)
    for place, total in enumerate(across_group(b, group, combines, values)):
        b.store(y, b.at("add", thread, place * threads), total)
    return b.kernel("reducing", [x, y], threads=threads)


@pytest.mark.parametrize("threads", [32, 64, 96, 160, 224, 1024])
@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("dtype", [float32, int64])
def test_every_thread_gets_every_total(threads, lanes, dtype):
    """Whatever the number of warps: sums of integers are exact in any order."""
    combines = ["add", "max", "min"]
    kernel = reducing(threads, lanes, combines, dtype)
    verify(kernel, "cuda")
    x = np.random.default_rng(1).integers(-99, 99, threads * lanes)
    x = x.astype(dtype.numpy_name)
    y = np.zeros((3, threads), x.dtype)
    simt.run(kernel, {"x": x, "y": y}, 1)
    for seen, combine in zip(y, combines, strict=True):
        np.testing.assert_array_equal(seen, NUMPY[combine](x))


def test_reductions_of_a_block_share_one_barrier_and_a_warp_needs_none():
    """Each has slots of its own; nothing waits where one warp is the group."""
    texts = [repr(reducing(n, 1, ["add", "max"], float32).body) for n in (32, 128)]
    assert [text.count("barrier") for text in texts] == [0, 1]
    assert [text.count("Alloc") for text in texts] == [0, 2]


def test_nan_reaches_every_total():
    """Sums and extremes of a row with one NaN are NaN in every thread."""
    kernel = reducing(64, 2, ["add", "max", "min"], float32)
    x = np.ones(128, np.float32)
    x[77] = np.nan
    y = np.zeros((3, 64), np.float32)
    simt.run(kernel, {"x": x, "y": y}, 1)
    assert np.isnan(y).all()
