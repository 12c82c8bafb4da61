"""The graph of the kernel that is being traced, in which constants are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from steelyard_kernels.errors import KernelError
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


def current(what: str) -> Graph:
    """Return the graph that is being traced; `what` needs it."""
    try:
        return _TRACING.get()
    except LookupError:
        raise KernelError(
            f"{what} was called outside of a kernel; call it in the function that "
            "@kernel is put on."
        ) from None
