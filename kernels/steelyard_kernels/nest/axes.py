"""A program as values over named axes: the types, and what outputs share.

A value is what is computed for each index of some axes. `places` finds which these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.expression.expr import (
    Apply,
    Arange,
    Broadcast,
    Cast,
    Constant,
    Input,
    Node,
    Output,
    Program,
    Reshape,
    Scalar,
    Shape,
    reachable,
)
from steelyard_kernels.expression.graph import broadcast_shape
from steelyard_kernels.expression.indices import Index

Guard: TypeAlias = tuple[Index, int]  # an index, and what it must be below
NAMES: Final = "ijklmnopqrstuvwxyzabcdefghIJKLMNOPQRSTUVWXYZABCDEFGH"
NOWHERE: Final = Index()


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is computed for each index of some axes.

    `args` are the values by the numbers of the operands that its node names, `axes` what
    it varies with, `over` what a reduction reduces. Of an array's element `source` is
    the array and `offset` where in it the element lies, each of its operand's steps
    `step` elements on. Where a guard fails it is zero.
    """

    number: int
    node: Node
    args: Mapping[int, Value]
    axes: frozenset[int]
    over: tuple[int, ...] = ()
    source: Input | Arange | None = None
    offset: Index = NOWHERE
    guards: tuple[Guard, ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An output: the value, and where along the axes its elements lie."""

    value: Value
    offset: Index


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A program's values, operands before users, over axes of known extents.

    Axes are numbers, named by NAMES: first the `space` ones of the outputs, outermost
    first, then those that are only reduced. `inner` are of the space, and reduced for
    each index of others: these are opened before them.
    """

    program: Program
    extents: tuple[int, ...]
    space: int
    inner: frozenset[int]
    values: tuple[Value, ...]
    outputs: tuple[Stored, ...]

    @property
    def axes(self) -> str:
        """The names of all axes."""
        return NAMES[: len(self.extents)]

    def is_plain(self, axes: Iterable[int]) -> bool:
        """Say whether axes are of the outputs alone: no reduction walks them."""
        return all(axis < self.space and axis not in self.inner for axis in axes)


def source(node: Node) -> Input | Arange | None:
    """Return the array that a node is, in some shape; None for what is computed."""
    while isinstance(node, Reshape):
        node = node.arg
    return node if isinstance(node, Input | Arange) else None


def stored(output: Output) -> Node:
    """Return the value whose elements, in their order, an output has."""
    node = output.value
    while isinstance(node, Reshape) and source(node) is None:
        node = node.arg
    return node


def space(program: Program) -> Shape | None:
    """Return what all outputs broadcast to; None where that is nothing."""
    full: Shape | None = ()
    for output in program.outputs:
        full = None if full is None else broadcast_shape(full, stored(output).shape)
    return full


def beyond(program: Program) -> tuple[Node, ...]:
    """Return the nodes that are neither arrays nor computed element by element.

    What only the outputs' shapes differ by is neither, and none of them.
    """
    return tuple(
        node
        for node in reachable(map(stored, program.outputs))
        if not isinstance(node, Scalar | Constant | Apply | Cast | Broadcast)
        and source(node) is None
    )


def one_space(program: Program) -> bool:
    """Say whether all outputs broadcast to one shape, whose pass gives each its elements.

    A smaller one may update nothing: what it overwrites is read again with every row.
    """
    full = space(program)
    if full is None or 0 in full:
        return full is not None and all(0 in o.value.shape for o in program.outputs)
    most = prod(full)
    return all(
        output.updates is None
        for output in program.outputs
        if prod(stored(output).shape) < most
    )
