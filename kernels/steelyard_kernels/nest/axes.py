"""A program as values over named axes: the types, and what outputs share.

A value is what is computed for each index of some axes. `places` finds which these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import broadcast_shape
from steelyard_kernels.expression.indices import Index
from steelyard_kernels.expression.structure import reachable

Guard: TypeAlias = tuple[Index, int]  # an index, and what it must be below
NAMES: Final = "ijklmnopqrstuvwxyzabcdefghIJKLMNOPQRSTUVWXYZABCDEFGH"
NOWHERE: Final = Index()
Place: TypeAlias = tuple[Index, ...]  # of an element, along each dimension
Source: TypeAlias = expr.Input | expr.Arange | expr.Along  # what elements are loaded of
# Kinds that are asked for thousands of times, where `A | B` is made anew each time.
ELEMENTWISE: Final = (expr.Apply, expr.Cast)
_ARRAYS: Final = (expr.Input, expr.Arange)
_POINTWISE: Final = (expr.Scalar, expr.Constant, *ELEMENTWISE, expr.Broadcast)


def names_of(axes: Iterable[int]) -> str:
    """Return the names of axes as one word, as cuts have them."""
    return "".join([NAMES[axis] for axis in axes])


class Value(Struct, frozen=True, eq=False):
    """What is computed for each index of some axes.

    `args` are the values by the numbers of the operands that its node names, `axes` what
    it varies with, `over` what a reduction reduces. Of an array's element `source` is
    the array and `offset` where in it the element lies, each of its last operand's steps
    `step` elements on. Where a guard fails it is zero. What Along gives is two values: the
    line, over the axis that it is walked along, and an element of it, of which the line is
    the first operand. A total that `runs` along one of its own axes is one: each walk along
    that carries it on, and takes in nothing where a guard fails. So may a merge, whose
    `offset` is the place in what it gives.
    """

    number: int
    node: Node
    args: Mapping[int, Value]
    axes: frozenset[int]
    over: tuple[int, ...] = ()
    source: Source | None = None
    offset: Index = NOWHERE
    guards: tuple[Guard, ...] = ()
    step: int = 0
    runs: int | None = None


class Stored(Struct, frozen=True, eq=False):
    """An output: the value, and where along the axes its elements lie."""

    value: Value
    offset: Index


class Nest(Struct, frozen=True, eq=False, dict=True):  # keeps what is asked again
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

    @cached_property
    def axes(self) -> str:
        """The names of all axes."""
        return NAMES[: len(self.extents)]

    def extent_of(self, names: str) -> int:
        """Return how many indices some axes have together."""
        return prod([self.extents[self.axes.index(name)] for name in names])

    @property
    def streams(self) -> list[Value]:
        """The arrays that lie along all axes of the outputs, each element read once."""
        every = frozenset(range(self.space))
        return [
            value
            for value in self.values
            if isinstance(value.source, expr.Input)
            and value.axes == every
            and not (value.guards or value.step)
        ]

    @cached_property
    def lines(self) -> tuple[Value, ...]:
        """The lines that are kept for each index of their axes."""
        every = [v for v in self.values if v.over and isinstance(v.node, expr.Along)]
        return tuple(every)

    @cached_property
    def running(self) -> frozenset[int]:
        """The axes along which totals run."""
        return frozenset([v.runs for v in self.values if v.runs is not None])

    @cached_property
    def handed(self) -> expr.Handed | None:
        """What the blocks of a launch hand over, from the first on."""
        every = [v.node for v in self.values if isinstance(v.node, expr.Handed)]
        return every[0] if every else None

    @cached_property
    def lined(self) -> frozenset[int]:
        """The axes that lines alone are walked along, before others are opened."""
        lines = frozenset[int]().union(*[v.over for v in self.lines])
        others = [
            v for v in self.values if not (v.over and isinstance(v.node, expr.Along))
        ]
        walked = frozenset(range(self.space)).union(*[v.over for v in others])
        return lines - walked

    @cached_property
    def alone(self) -> frozenset[int]:
        """The axes of which one index is taken at a time: a line, or a walk, for each."""
        own = [segmented(value) for value in self.values]
        return self.parted.union(*[v.axes for v in self.lines], *own)

    @cached_property
    def parted(self) -> frozenset[int]:
        """The axes of which each walk has a part, as segments say."""
        walks = [v.over for v in self.values if isinstance(v.node, expr.Segments)]
        return frozenset[int]().union(*walks)

    @cached_property
    def merged(self) -> frozenset[int]:
        """The axes that lines are merged along, and those of such lines: without vectors."""
        merges = [v for v in self.values if isinstance(v.node, expr.Merge)]
        return frozenset[int]().union(*[v.axes for v in merges])

    @cached_property
    def outer(self) -> int:
        """How many axes of the outputs are before those that are reduced for each of them."""
        return min(self.inner, default=self.space)

    def is_plain(self, axes: Iterable[int]) -> bool:
        """Say whether axes are of the outputs alone: no reduction walks them."""
        return all(axis < self.space and axis not in self.inner for axis in axes)


def is_column(nest: Nest, value: Value) -> bool:
    """Say whether a value is an array that lies along the last axis alone."""
    last = len(nest.extents) - 1
    return (
        isinstance(value.source, expr.Input) and value.axes == {last} and not value.step
    )


def segmented(value: Value) -> frozenset[int]:
    """Return the axes of which sums of segments walk other elements for each index."""
    if not isinstance(value.node, expr.Segments):
        return frozenset()
    return value.axes - value.args[value.node.arg.number].axes


def source(node: Node) -> expr.Input | expr.Arange | None:
    """Return the array that a node is, in some shape; None for what is computed."""
    while isinstance(node, expr.Reshape):
        node = node.arg
    return node if isinstance(node, _ARRAYS) else None


def stored(output: expr.Output) -> Node:
    """Return the value whose elements, in their order, an output has."""
    node = output.value
    while isinstance(node, expr.Reshape) and source(node) is None:
        node = node.arg
    return node


def space(program: Program) -> expr.Shape | None:
    """Return what all outputs broadcast to; None where that is nothing."""
    full: expr.Shape | None = ()
    for shape in aligned(program):
        full = None if full is None else broadcast_shape(full, shape)
    return full


@lru_cache(maxsize=2)  # a build asks three times for this, and for what is below
def aligned(program: Program) -> tuple[expr.Shape, ...]:
    """Return the shapes of the outputs' values, with an axis of 1 for one that was reduced.

    One value a row is aligned with the rows, though its last axis is gone.
    """
    lost: set[int] = set()
    for node in program.nodes:
        squeezed = isinstance(node, expr.Reduce) and node.of_rows and not node.keepdims
        follows = bool(lost) and isinstance(node, ELEMENTWISE)
        if squeezed or (follows and any(n.number in lost for n in expr.operands(node))):
            lost.add(node.number)
    values = map(stored, program.outputs)
    return tuple([(*v.shape, 1) if v.number in lost else v.shape for v in values])


@lru_cache(maxsize=2)
def beyond(program: Program) -> tuple[Node, ...]:
    """Return the nodes that are neither arrays nor computed element by element.

    What only the outputs' shapes differ by is neither, and none of them.
    """
    return tuple(
        node
        for node in reachable(map(stored, program.outputs))
        if not isinstance(node, _POINTWISE) and source(node) is None
    )


def one_space(program: Program) -> bool:
    """Say whether all outputs broadcast to one shape, whose walk gives each its elements."""
    full = space(program)
    if full is None or 0 in full:
        return full is not None and all(0 in o.value.shape for o in program.outputs)
    return True


def behind(at: Place, shape: Sequence[int], arg: expr.Shape) -> Place:
    """Return the place of an operand, aligned at the last; 0 along extents of 1."""
    if shape == arg:
        return at
    skipped = len(shape) - len(arg)
    return tuple([NOWHERE if n == 1 else at[skipped + k] for k, n in enumerate(arg)])
