"""What data costs (iree#17012): patterns move and multiply for less power than numbers.

The same launches on normal, constant and repeating data, the time beside the watts:
where power limits the clock, zeros are quicker, and say nothing of users' data.
"""

from __future__ import annotations

from typing import Final

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import library

from .common import available, torch_matmul

DATA: Final = ["normal", "constant", "pattern"]
"""Distributions; the constant is zero."""


@benchmark(inputs=DATA, n=axis(1 << 27, others=[1 << 24]))
def gpu_inputs_copy(b: Builder, inputs: str, n: int) -> Call:
    """Copy 512 MiB of float32: 1 GiB moved."""
    b.on("cuda")
    b.mode("kernel/warm")  # far beyond the caches: as good as cold, and watts settle
    x = b.input(n, dist=inputs)
    y = b.output(n)
    b.check(lambda x: x, x, rtol=0.0, atol=0.0)
    return b.launch(library.copy, x, out=y)


if available("torch"):

    @benchmark(inputs=DATA, n=axis(8192, others=[4096]))
    def gpu_inputs_matmul(b: Builder, inputs: str, n: int) -> Call:
        """Multiply two n x n float16 matrices by cuBLAS.

        Not checked: a reference of 2^40 operations in float64 takes minutes. `peers`
        checks the same call on a small product.
        """
        b.on("cuda")
        b.mode("kernel/warm")
        b.count(operations=2 * n**3)
        x, w = _matrix(b, n, inputs, "x"), _matrix(b, n, inputs, "w")
        y = b.output((n, n), "float16")
        return b.launch(torch_matmul, x, w, out=y, as_="torch")


def _matrix(b: Builder, n: int, inputs: str, name: str) -> Handle:
    return b.input((n, n), "float16", dist=inputs, name=name)
