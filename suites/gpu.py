"""Our kernels on a GPU, at the sizes the threads of the seeds ask about.

Yardsticks stand beside them: a copy of the same bytes for what reads and writes once,
an in-place scale of the same three streams for Adam. Other people's kernels are in
`peers`. Names begin with ``gpu_``: ``-k gpu`` chooses what needs one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import library

from . import adam, bias_layernorm, softmax
from .common import copied, scaled

ROWS: Final = 8192
"""Of Fuser#383's inputs."""

HIDDEN: Final = (768, 1600, 4096, 5140, 20480)
OTHER_HIDDEN: Final = (
    *(1024, 1280, 1536, 2048, 2560, 12288, 16384),
    *(3000, 5141, 7777, 10007, 33000),
)
"""The seeds' other seven widths, and odd and long rows, behind ``-p hidden=``."""

Launched = Callable[..., Any]


@benchmark(
    n=[
        *(1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 3 << 20),
        *(1 << 24, 25 << 20, 1 << 26, 1 << 27),
    ]
)
def gpu_copy(b: Builder, n: int) -> Call:
    """Copy n float32 elements: 4 KiB to 512 MiB, 12 and 100 MiB among them."""
    b.on("cuda")
    return copied(b, n)


@benchmark(n=[100, 1 << 20, 1 << 24])
def gpu_triad(b: Builder, n: int) -> Call:
    """Add a scaled array to another."""
    b.on("cuda")
    x, y = b.input(n, name="x"), b.input(n, name="y")
    z = b.output(n)
    b.check(lambda x, y: x + 3.0 * y, x, y)
    return b.launch(library.triad, x, y, out=z, s=3.0)


@benchmark(n=[100, 1 << 20, 1 << 24], impl=["ours", "scale"])
def gpu_adam(b: Builder, n: int, impl: str) -> Call:
    """Update both moments and turn the gradient into the step (GPUCompiler.jl#65)."""
    if impl == "scale":
        return scaled(b, *three_streams(b, n))
    return described_adam(b, n, library.adam)


def three_streams(b: Builder, n: int) -> tuple[Handle, Handle, Handle]:
    """Declare the gradient and both moments, on a GPU."""
    b.on("cuda")
    gradient, m = b.inout(n, name="gradient"), b.inout(n, name="m")
    v = b.inout(n, name="v", dist="uniform", low=0.01)
    # A few elements are what calls cost: as a program issues them, and as a user does.
    if n <= 1 << 10:
        b.mode("kernel/cold", "kernel/warm", "per_launch/warm/100", "latency/warm/100")
    return gradient, m, v


def described_adam(b: Builder, n: int, update: Launched, form: str = "numpy") -> Call:
    """Describe Adam's update by ``update``, its arrays handed over in a form."""
    streams = three_streams(b, n)
    b.check(adam.reference, *streams)
    return b.launch(update, *streams, as_=form)


@benchmark(
    cols=axis(768, 4096, others=[20480]),
    dtype=axis("float16", others=["float32"]),
    impl=["ours", "copy"],
)
def gpu_softmax(b: Builder, cols: int, dtype: str, impl: str) -> Call:
    """Exponentiate and normalise the rows of 8192 x cols."""
    b.on("cuda")
    if impl == "copy":
        return copied(b, (ROWS, cols), dtype)
    x = b.input((ROWS, cols), dtype)
    y = b.output((ROWS, cols), dtype)
    b.check(softmax.reference, x)
    return b.launch(library.softmax, x, out=y)


@benchmark(
    hidden=axis(*HIDDEN, others=OTHER_HIDDEN),
    dtype=axis("float16", others=["bfloat16", "float32"]),
    impl=["ours", "copy"],
)
def gpu_layernorm(b: Builder, hidden: int, dtype: str, impl: str) -> Call:
    """Add two biases and normalise the rows of 8192 x hidden (Fuser#383)."""
    if impl == "copy":
        return copied_rows(b, hidden, dtype)
    return described_layernorm(b, hidden, dtype, library.bias_layernorm)


def copied_rows(b: Builder, hidden: int, dtype: str) -> Call:
    """Describe the yardstick: x copied to y."""
    b.on("cuda")
    return copied(b, (ROWS, hidden), dtype)


def described_layernorm(
    b: Builder,
    hidden: int,
    dtype: str,
    normalise: Launched,
    form: str = "numpy",
    *,
    returns: bool = False,
) -> Call:
    """Describe the biases and LayerNorm by ``normalise``, its arrays in a form.

    What ``returns`` a new array writes no ``out``, and is checked by itself.
    """
    b.on("cuda")
    x = b.input((ROWS, hidden), dtype)
    bias1, bias2 = (
        b.input(hidden, dtype, name="bias1"),
        b.input(hidden, dtype, name="bias2"),
    )
    weight = b.input(hidden, dtype, dist="uniform", low=0.5, high=1.5)
    bias = b.input(hidden, dtype)
    arguments = (x, bias1, bias2, weight, bias)
    if returns:
        width = {"float16": 2, "bfloat16": 2, "float32": 4}[dtype]
        b.count(bytes=width * hidden * (2 * ROWS + 4))
        return b.launch(normalise, *arguments, as_=form)
    y = b.output((ROWS, hidden), dtype)
    bound = bias_layernorm.TOLERANCE[dtype]
    oracle = functools.partial(bias_layernorm.reference, dtype)
    b.check(oracle, *arguments, rtol=bound, atol=bound)
    return b.launch(normalise, *arguments, out=y, as_=form)
