"""Every operation's CUDA C++ on a GPU, over special values, against NumPy."""

import ctypes

import gpu
import gpu_cases
import numpy as np
import pytest
from gpu_cases import COUNT, THREADS

from steelyard_device import nvrtc
from steelyard_kernels.dtypes import HALVES
from steelyard_kernels.emit.cuda import emit, joined

CASES = gpu_cases.everything()


@pytest.fixture(scope="module")
def arch():
    """Say what the GPU's cubins are compiled for; skip without one."""
    return gpu.context().device.arch


@pytest.fixture(scope="module")
def cubin(arch):
    """Compile all cases into one cubin."""
    text = joined((case.name, emit(case.kernel)) for case in CASES)
    return nvrtc.compile(text, arch).cubin


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_gives_what_numpy_says(cubin, case):
    """NaN, infinities, denormals, ties, bounds; lanes of 1 and 8."""
    seen = np.full(len(case.expected), 7, case.dtype.numpy)
    blocks = -(-COUNT // case.per_thread // THREADS)
    args = [*case.arrays, seen, ctypes.c_int(COUNT)]
    gpu.launch(cubin, case.name, blocks, THREADS, args)
    missed = gpu_cases.misses(case, seen)
    shown = gpu_cases.valued(seen, case.dtype)[:32]
    assert missed == 0, (shown, gpu_cases.valued(case.expected, case.dtype)[:32])


def test_the_threads_of_a_block_add_up(arch):
    """Shuffles within warps, shared memory and a barrier between them."""
    x = np.random.default_rng(0).integers(-99, 99, 128 * 5).astype(np.float32)
    y = np.full(5, np.nan, np.float32)
    compiled = nvrtc.compile(emit(gpu_cases.block_sums()), arch).cubin
    gpu.launch(compiled, "kernel", 5, 128, [x, y, ctypes.c_int(len(x))])
    assert y.tolist() == x.reshape(5, 128).sum(1).tolist()


def test_asynchronous_copies_arrive(arch):
    """Of 4, 8 and 16 bytes, each waited for."""
    x = np.random.default_rng(1).random(4 * 64 * 3, np.float32)
    y = np.full_like(x, np.nan)
    compiled = nvrtc.compile(emit(gpu_cases.staged()), arch).cubin
    gpu.launch(compiled, "kernel", 3, 64, [x, y, ctypes.c_int(len(x))])
    assert np.array_equal(x, y)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_matrix_product_is_numpys(arch, dtype):
    """Of small integers, whose sums are exact in any order."""
    random = np.random.default_rng(2)
    shapes = ((16, 16), (16, 8), (16, 8))
    a, b, c = (random.integers(-5, 6, shape).astype(np.float32) for shape in shapes)
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    pairs = [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]
    left = np.stack([a[r, k + j] for r, k in pairs for j in (0, 1)], 1)
    right = np.stack([b[k + j, g] for k in (2 * t, 2 * t + 8) for j in (0, 1)], 1)
    places = [(r, 2 * t + j) for r in (g, g + 8) for j in (0, 1)]
    start = np.stack([c[place] for place in places], 1)
    seen = np.full((32, 4), np.nan, np.float32)
    stored = [np.ascontiguousarray(gpu_cases.rounded(x, dtype)) for x in (left, right)]
    compiled = nvrtc.compile(emit(gpu_cases.matrix(dtype)), arch).cubin
    args = [*stored, np.ascontiguousarray(start), seen, ctypes.c_int(1)]
    gpu.launch(compiled, "kernel", 1, 32, args)
    want = a @ b + c
    assert np.array_equal(seen, np.stack([want[place] for place in places], 1))
