"""Every operation's CUDA C++ on a GPU, over special values, against NumPy."""

import ctypes

import gpu
import gpu_cases
import numpy as np
import pytest
from gpu_cases import COUNT, THREADS

from steelyard_device import nvrtc
from steelyard_kernels.emit.cuda import emit, joined

CASES = gpu_cases.everything(1, 8)


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
