"""What the time of one call goes to, and how much of it is the kernel (iree#17012).

One addition, called from Python as users call it: once, in batches, with its output
allocated inside the timing and outside. ``--across mode`` has a row a case and a column
a way to call; the rows of a latency have its ledger too: allocate, first touch, pack,
submit, kernel, synchronise.

``gpu_dispatch`` is the thread's own kernel on a GPU, called by the programs of `calls`.
What a call costs beyond its kernel is the difference of two rows: of result=allocated
and preallocated, the driver's memory; of wait=each and batch, waiting; of a batch and a
graph of it, the host's part that the kernel does not hide.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import kernel
from steelyard_kernels.array import Array

from .calls import RESULTS, Calls
from .common import available, torch_matmul

SMALL: Final = 1_000
"""Elements whose addition takes less than calling it."""

ALWAYS: Final = (
    "latency/warm",
    "latency/warm/64",
    "latency/warm/allocated",
    "latency/warm/allocated/64",
    "per_launch/warm/64",
)
WHERE_CALLS_COUNT: Final = (
    "latency/warm/8",
    "latency/warm/allocated/8",
    "per_launch/warm/8",
)
"""Batches of 8 tell a fixed cost of a call from one of a launch, where either shows."""


@kernel
def add(x: Array, y: Array) -> Array:
    """Return x + y."""
    return x + y


@benchmark(n=[SMALL, 1_000_000], impl=["numpy", "ours"])
def dispatch(b: Builder, n: int, impl: str) -> Call:
    """Add two float32 arrays."""
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(np.add, x, y)
    b.mode(*ALWAYS, *(WHERE_CALLS_COUNT if n <= SMALL else ()))
    return b.launch(np.add if impl == "numpy" else add, x, y, out=z)


M: Final = 64
N: Final = 768
"""The thread's linear layer: M x N by N x N."""

ON_GPU: Final = (
    "per_launch/warm",
    "per_launch/warm/10",
    "per_launch/warm/100",
    "per_launch/warm/1000",
)
ITSELF: Final = ("kernel/warm", "kernel/cold", "latency/warm", "latency/warm/allocated")
"""Of the program that only launches: what the kernel takes, and one call's ledger."""
GRAPHS: Final = tuple(f"per_launch/warm/graph/{batch}" for batch in (10, 100, 1000))


@benchmark(
    kernel=["add", *(["matmul"] if available("torch") else [])],
    result=RESULTS,
    wait=["each", "batch"],
)
def gpu_dispatch(b: Builder, kernel: str, result: str, wait: str) -> Call:
    """Call a 3 us kernel as four programs do: the thread's 679 and 37 us, taken apart.

    cuBLAS's 64 x 768 x 768 in float16 where PyTorch is, else our addition of as many
    results. An item is a call.
    """
    b.on("cuda")
    b.mode(*ON_GPU)
    function, form, arguments = _called(b, kernel)
    calls = Calls(function, result, waits=wait == "each")
    if result != "preallocated":
        b.count(items=1, bytes=2 * (sum(one.size for one in arguments) + M * N))
        untouched = b.inout((M, N), "float16")  # only says what a result is like
        return b.launch(calls, *arguments, out=untouched, as_=form)
    b.count(items=1)
    b.check(np.matmul if kernel == "matmul" else np.add, *arguments)
    y = b.output((M, N), "float16")
    if wait == "each":
        return b.launch(calls, *arguments, out=y, as_=form)
    b.mode(*ITSELF, *GRAPHS)
    return b.launch(function, *arguments, out=y, as_=form)


def _called(b: Builder, kernel: str) -> tuple[Any, str, tuple[Any, Any]]:
    x = b.input((M, N), "float16")
    if kernel == "add":
        return add, "numpy", (x, b.input((M, N), "float16", name="more"))
    return torch_matmul, "torch", (x, b.input((N, N), "float16", name="weight"))
