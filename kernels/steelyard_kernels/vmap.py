"""`vmap`: a function of one chain becomes a function of many.

    @kernel
    def one(x, key, w): ...

    many = kernel(vmap(one, (0, 0, None)))     # x and keys of 2048 chains

Chains share nothing but what is not mapped, so that a schedule may run them in any
order and anywhere. It is the outermost transformation: a kernel has chains, or none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from steelyard_kernels.array import pytrees
from steelyard_kernels.array.tracing import current
from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.errors import KernelError

Axes: TypeAlias = "int | Sequence[int | None] | None"


def vmap(function: Callable[..., Any], in_axes: Axes = 0) -> Callable[..., Any]:
    """Return the function over the first axis of those arrays that are mapped.

    `in_axes` has 0 (a chain for each row) or None (the same for all) for each array,
    or one for all of them. Results have the chains as a new first axis; runtime scalars
    are the same for all. Raises KernelError where the kernel is traced: for other
    axes, for none mapped, and for arrays of different numbers of chains.
    """

    @functools.wraps(function, updated=())
    def mapped(*arrays: Array, **scalars: Array) -> Any:
        graph = current("vmap")
        axes = _axes(graph.kernel, in_axes, len(arrays))
        for array in arrays:
            if not isinstance(array, Array):
                raise KernelError(
                    f"{graph.kernel}: a mapped function got a {type(array).__name__}, "
                    "expected arrays of the kernel; give it what differs as parameters "
                    "of their own."
                )
        parts = [
            array if axis is None else Array(graph, graph.chain(array.node))
            for array, axis in zip(arrays, axes, strict=True)
        ]
        leaves, tree = pytrees.flatten(function(*parts, **scalars))
        values = [as_array(leaf, "vmap").node for leaf in leaves]
        return tree.unflatten([Array(graph, graph.chains_of(node)) for node in values])

    return mapped


def _axes(kernel: str, in_axes: Axes, count: int) -> Sequence[int | None]:
    """Return an axis for each array."""
    axes = in_axes if isinstance(in_axes, Sequence) else [in_axes] * count
    if len(axes) != count:
        raise KernelError(
            f"{kernel}: vmap has {len(axes)} axes for {count} arrays; give in_axes 0 or "
            "None for each."
        )
    if not all(axis is None or axis == 0 for axis in axes) or 0 not in axes:
        raise KernelError(
            f"{kernel}: vmap over axes {tuple(axes)}, expected 0 for one array or more "
            "and None for the others; put the chains first."
        )
    return axes
