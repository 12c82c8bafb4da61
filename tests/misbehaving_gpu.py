"""A suite of kernels that do what they should not; measured by test_measure_gpu."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np

from steelyard import benchmark
from steelyard.prepare.work import Cubin
from steelyard_device import cuda, nvrtc

TEXT = """
extern "C" __global__ void good(const float* x, float* y) {
  y[threadIdx.x] = -x[threadIdx.x];
}
extern "C" __global__ void wrong(const float* x, float* y) {
  y[threadIdx.x] = threadIdx.x == 5 ? x[5] : -x[threadIdx.x];
}
extern "C" __global__ void faults(const float* x, float* y) {
  *reinterpret_cast<volatile float*>(threadIdx.x) = x[0] + y[0];
}
extern "C" __global__ void spins(const float* x, volatile float* y) {
  while (x[0] == x[0]) y[0] = 1;
}
extern "C" __global__ void overruns(const float* x, float* y) {
  y[threadIdx.x] = -x[threadIdx.x];
  if (!threadIdx.x) y[64] = 1;
}
"""

KERNELS = ("good", "wrong", "faults", "spins", "overruns")
CALLS = ("faults later", "raises", "waits")
LARGE = 1 << 42
HONEST = 20
"""Calls before a trial has its second queue: preparing, sizing, the first window."""
CALLED: Counter[str] = Counter()


@functools.cache
def image() -> bytes:
    """Compile all kernels for the GPU that is here."""
    return nvrtc.compile(TEXT, cuda.device().arch).cubin


def by_hand(how: str, x: cuda.View, out: cuda.View) -> None:
    """Launch what is right, and after `HONEST` calls do something else."""
    CALLED[how] += 1
    late = CALLED[how] > HONEST
    entry = "faults" if how == "faults later" and late else "good"
    function = cuda.load(x.context, image()).function(entry)
    cuda.Launch(function, (x.address, out.address), grid=1, block=64).launch()
    if how == "raises" and late:
        raise RuntimeError(how)
    if how == "waits":
        x.context.wait()


@benchmark(how=[*KERNELS, *CALLS, "asks for too much"])
def odd(b, how):
    """Negate an array on a GPU, or do something else."""
    b.on("cuda")
    x = b.input(LARGE if how == "asks for too much" else 64)
    y = b.output(64)
    b.check(np.negative, x)
    if how in CALLS:
        return b.launch(functools.partial(by_hand, how), x, out=y)
    entry = how if how in KERNELS else "good"
    return b.launch(Cubin(image(), entry, grid=1, block=64), x, y)
