"""What stands for a value of JAX's while its program is translated.

A value is known when the kernel is traced (a NumPy scalar), an `Array` of the kernel,
or a `Stack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from msgspec import Struct

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import rows
from steelyard_kernels.expression.expr import Node, Shape
from steelyard_kernels.expression.graph import Graph

KEY: Final = "key<fry>"
"""The element type of keys of JAX's default generator, Threefry: two words each."""


class Aval(Protocol):
    """Shape and dtype of a value, as JAX says them."""

    @property
    def shape(self) -> Shape:
        """The extents, outermost first."""
        ...

    @property
    def dtype(self) -> Any:
        """NumPy's, or JAX's own of keys."""
        ...


class Like(Struct, frozen=True):
    """An `Aval` that a rule makes up."""

    shape: Shape
    dtype: Any


class Stack(tuple[Array, ...]):
    """An array as its parts along the last axis, not put together: the words of keys.

    Of keys (`KEY`) that axis is none of the shape that JAX says. Loops carry one as any
    other tuple.
    """

    __slots__ = ()


SMALL: Final = 64
"""Elements of an array that JAX's program holds, each a number in the kernel's code."""

Value: TypeAlias = np.generic | Array | Stack


def element(dtype: Any) -> DType:
    """Return the element type of a dtype of JAX's; keys are uint32 words.

    Raises KernelError for what no kernel has.
    """
    return dtypes.uint32 if str(dtype) == KEY else dtypes.of(str(dtype))


def is_key(aval: Aval) -> bool:
    """Say whether these are keys and no numbers."""
    return str(aval.dtype) == KEY


def storage(aval: Aval) -> Shape:
    """Return the shape in memory: keys have their two words last."""
    return (*aval.shape, 2) if is_key(aval) else tuple(aval.shape)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Return the elements in the same order in another shape."""
    return Array(x.graph, x.graph.reshape(x.node, tuple(shape)))


def row(x: Array, index: int | Node) -> Array:
    """Return x[index] along the first axis; the index is in range."""
    node = x.graph.constant(index, dtypes.int64) if isinstance(index, int) else index
    return Array(x.graph, rows.row(x.graph, x.node, node))


def known(graph: Graph, value: np.generic) -> Array:
    """Return a known scalar as a value of the kernel."""
    dtype = element(value.dtype)
    number = float(value) if dtype.kind == "float" else value.item()
    return Array(graph, graph.constant(number, dtype))


def literal(graph: Graph, value: Any) -> Value:
    """Return an array that JAX's program holds: a scalar, one number, or few elements.

    Raises KernelError where it is none of these.
    """
    if str(getattr(value, "dtype", "")) == KEY:
        import jax

        bits = np.asarray(jax.random.key_data(value))
        return Stack(array(graph, literal(graph, bits[..., word])) for word in range(2))
    value = np.asarray(value)
    if not value.shape:
        scalar: np.generic = value[()]
        return scalar
    every = value.reshape(-1)
    if (every == every[:1]).all():  # as of no elements
        number = every[0] if value.size else value.dtype.type(0)
        return xp.broadcast_to(known(graph, number), value.shape)
    if value.size > SMALL:
        raise KernelError(
            f"holds an array of shape {value.shape}, of which at most {SMALL} different "
            "elements are supported; pass it as an argument instead"
        )
    parts = [reshape(known(graph, each), (1,)) for each in every]
    return reshape(xp.concat(parts), value.shape)


def array(graph: Graph, value: Value) -> Array:
    """Return any value as one array; the parts of a stack are put together."""
    if isinstance(value, np.generic):
        return known(graph, value)
    if isinstance(value, Stack):
        return xp.stack(value, -1)
    return value


def words(value: Value) -> tuple[Array, Array]:
    """Return the two words of keys, each of the keys' own shape."""
    if isinstance(value, Stack):
        first, second = value
        return first, second
    assert isinstance(value, Array)
    return value[..., 0], value[..., 1]


def canonical(
    graph: Graph, values: Sequence[Value], avals: Sequence[Aval]
) -> list[Array | Stack]:
    """Return values as every iteration of a loop has them: keys always as their words."""
    found: list[Array | Stack] = []
    for value, aval in zip(values, avals, strict=True):
        few = aval.shape[-1:] == (2,) and prod(aval.shape) <= 8
        whole = value if isinstance(value, Stack) else array(graph, value)
        if is_key(aval) or (str(aval.dtype) == "uint32" and few):
            found.append(Stack(words(whole)))
        else:
            found.append(xp.broadcast_to(array(graph, whole), tuple(aval.shape)))
    return found
