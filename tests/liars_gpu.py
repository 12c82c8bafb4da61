"""A suite of work on a GPU that lies, and one that does not; measured by test_liars_gpu."""

from __future__ import annotations

import functools

import numpy as np

from steelyard import benchmark
from steelyard_device import cuda, nvrtc

SIZE = 1 << 16
TEXT = """
extern "C" __global__ void honest(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
  for (int k = 0; k < 200000; ++k) v = v * 0.5f + x[i] * 0.5f;
  y[i] = -v;
}
extern "C" __global__ void there_already(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (y[i] == -x[i]) return;
  float v = x[i];
  for (int k = 0; k < 200000; ++k) v = v * 0.5f + x[i] * 0.5f;
  y[i] = -v;
}
extern "C" __global__ void unless_poison(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (y[i] < -1e30f) y[i] = -x[i];
}
"""
KERNELS = ("honest", "there_already", "unless_poison")


@functools.cache
def image() -> bytes:
    """Compile all kernels for the GPU that is here."""
    return nvrtc.compile(TEXT, cuda.device().arch).cubin


def launch(entry: str, x: cuda.View, out: cuda.View) -> None:
    """Launch a kernel on the arrays that are given."""
    function = cuda.load(x.context, image()).function(entry)
    arguments = (x.address, out.address)
    cuda.Launch(function, arguments, grid=SIZE // 256, block=256).launch()


class Kept:
    """Keeps results by a sample of the input, and copies them."""

    def __init__(self) -> None:
        self.known: dict[bytes, cuda.Buffer] = {}

    def __call__(self, x: cuda.View, out: cuda.View) -> None:
        """Look it up."""
        key = x.read()[::997].tobytes()
        if key not in self.known:
            launch("honest", x, out)
            self.known[key] = cuda.copy_of(x.context, out.read())
        out.copy_from(self.known[key])


class Skipping:
    """Launches every other time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: cuda.View, out: cuda.View) -> None:
        """Launch, or do not."""
        self.calls += 1
        if self.calls % 2:
            launch("honest", x, out)


def by_the_host(x: cuda.View, out: cuda.View) -> None:
    """Compute on the host and copy, which no clock of the GPU sees."""
    out.write(-x.read())


@benchmark(lie=[*KERNELS, "kept", "every other", "by the host"])
def lies(b, lie):
    """Negate an array on a GPU, or do not."""
    b.on("cuda")
    x = b.input(SIZE)
    y = b.output(SIZE)
    b.check(np.negative, x, rtol=1e-5)
    calls = {"kept": Kept(), "every other": Skipping(), "by the host": by_the_host}
    return b.launch(calls.get(lie, functools.partial(launch, lie)), x, out=y)
