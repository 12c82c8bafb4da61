"""The graph of the kernel that is being traced, in which constants are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError, OutOfBounds
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.graph import Graph

_TRACING: Final[ContextVar[Graph]] = ContextVar("the graph of the running trace")


@contextmanager
def tracing(graph: Graph) -> Iterator[None]:
    """Make a graph the one that constants are made in, as long as it is traced."""
    token = _TRACING.set(graph)
    try:
        yield
    finally:
        _TRACING.reset(token)


def running() -> Graph | None:
    """Return the graph that is being traced, if there is one."""
    return _TRACING.get(None)


def current(what: str) -> Graph:
    """Return the graph that is being traced; `what` needs it."""
    graph = running()
    if graph is None:
        raise KernelError(
            f"{what} was called outside of a kernel; call it in the function that "
            "@kernel is put on."
        )
    return graph


def number(graph: Graph, value: float, dtype: DType) -> Node:
    """Return a Python number as a constant of a dtype.

    Raises OutOfBounds for an integer that the dtype has not, and KernelError for a
    fraction where it is of integers.
    """
    if dtype.kind == "int":
        if value % 1:  # of an infinity or NaN too: NaN
            raise KernelError(
                f"{graph.kernel}: {value!r} is no integer, expected one for "
                f"{dtype.name}; round it, or take a floating dtype."
            )
        fits = dtype.smallest <= value <= dtype.largest
    else:
        fits = not isinstance(value, int) or abs(value) < 1 << 1024
    if not fits:
        raise OutOfBounds(
            f"{graph.kernel}: Python integer {value} out of bounds for {dtype.name}; "
            "cast the array to a wider dtype first."
        )
    return graph.constant(value, dtype)
