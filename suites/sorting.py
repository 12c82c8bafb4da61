"""Lines in order, their first elements and their running totals, beside NumPy's.

A million elements: a line for each million of `n`. Names begin with ``gpu_`` where they
need one; there a copy of as many bytes stands beside, what memory gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import Array, copied

ELEMENTS: Final = 1 << 20
FIRST: Final = 5


@kernel
def in_order(x: Any) -> Any:
    """Return each line from its least element up."""
    return xp.sort(x, axis=-1)


@kernel
def places(x: Any) -> Any:
    """Return where the least element of each line is, the next one, and so on."""
    return xp.argsort(x, axis=-1)


@kernel
def largest(x: Any) -> Any:
    """Return the largest elements of each line."""
    return xp.topk(x, FIRST)[0]


@kernel
def totals(x: Any) -> Any:
    """Return the sum of each element and all before it."""
    return xp.cumulative_sum(x, axis=-1)


def _stable(x: Array) -> Array:
    return np.argsort(x, axis=-1, kind="stable")


def _chosen(x: Array) -> Array:
    found: Array = -np.sort(np.partition(-x, FIRST, -1)[..., :FIRST], -1)
    return found


WHAT: Final[dict[str, tuple[Any, Callable[..., Any]]]] = {
    "sort": (in_order, lambda x: np.sort(x, axis=-1)),
    "argsort": (places, _stable),
    "topk": (largest, _chosen),
    "running": (totals, lambda x: np.cumsum(x, axis=-1)),
}
"""What is measured, by NumPy's function that gives it."""


def _lines(b: Builder, what: str, n: int, impl: str) -> Call:
    made, peer = WHAT[what]
    shape = max(1, ELEMENTS // n), n
    if impl == "copy":
        return copied(b, shape)
    x = b.input(shape, "float32")
    size = FIRST if what == "topk" else n
    y = b.output((shape[0], size), "int64" if what == "argsort" else "float32")
    bound = {"rtol": 2.0**-17, "atol": 2.0**-22 * n} if what == "running" else {}
    b.check(peer, x, **(bound or {"rtol": 0.0, "atol": 0.0}))
    if impl == "numpy":

        def found(x: Array, out: Array) -> None:
            np.copyto(out, peer(x))

        return b.launch(found, x, out=y)
    return b.launch(made, x, out=y)


@benchmark(what=list(WHAT), n=[1000, 1 << 16, ELEMENTS], impl=["ours", "numpy"])
def lines(b: Builder, what: str, n: int, impl: str) -> Call:
    """Take lines of n of a million float32."""
    b.mode("kernel/warm")
    return _lines(b, what, n, impl)


@benchmark(what=list(WHAT), n=[1000, 1 << 16, ELEMENTS], impl=["ours", "copy"])
def gpu_lines(b: Builder, what: str, n: int, impl: str) -> Call:
    """Take lines of n of a million float32, on a GPU."""
    b.on("cuda")
    return _lines(b, what, n, impl)
