"""Axes: which of them each value of a program varies with, found from its outputs down.

Every output is stored along axes of its own space, and each value is asked for along
the axes of who reads it: elementwise operations pass theirs on, without those along
which an operand has one element. What is asked for along other axes is another value.
Neighbouring axes that every array treats alike become one.

Views are no values: a broadcast array varies with fewer axes. An array in memory, or
one of 0, 1, 2, ..., is read by its strides along the axes, which hold for each of its
shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.errors import Unsupported
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
    Reduce,
    Reshape,
    Scalar,
    Shape,
    operands,
    reachable,
)
from steelyard_kernels.expression.graph import broadcast_shape

Dims: TypeAlias = tuple[int | None, ...]
Strides: TypeAlias = tuple[int, ...]
NAMES: Final = "ijklmnopqrstuvwxyzabcdefgh"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is computed for each index of some axes.

    `args` are the values by the numbers of the operands that its node names, `axes` what
    it varies with. Of an array's element `source` is the array, and `strides` are by
    axis where it lies.
    """

    number: int
    node: Node
    args: Mapping[int, Value]
    source: Input | Arange | None
    strides: Strides
    axes: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An output: the value, and its strides along the axes."""

    value: Value
    strides: Strides


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A program's values, operands before users, over axes of known extents.

    Axes are numbers, outermost first, named by NAMES.
    """

    program: Program
    extents: tuple[int, ...]
    values: tuple[Value, ...]
    outputs: tuple[Stored, ...]

    @property
    def axes(self) -> str:
        """The names of all axes."""
        return NAMES[: len(self.extents)]


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


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def nest_of(program: Program) -> Nest:
    """Return the nest of a program that has elements; raises Unsupported for others."""
    for node in beyond(program):
        what = node.op if isinstance(node, Reduce) else type(node).__name__.lower()
        raise Unsupported(
            f"{program.name}: this schedule computes element by element, which {what} is "
            "not; leave the schedule out, or take one of the program's candidates."
        )
    full = space(program)
    if full is None or not one_space(program):
        shapes = {stored(output).shape for output in program.outputs}
        shown = " and ".join(str(shape) for shape in sorted(shapes))
        raise Unsupported(
            f"{program.name}: outputs have shapes {shown}, one pass gives "
            "those that broadcast to one, with elements, and update none of the "
            "smaller; make a kernel for each."
        )
    return _Axes(program, full).nest()


class _Axes:
    """Asks each node for the axes that its users need it along."""

    def __init__(self, program: Program, full: Shape) -> None:
        self.program = program
        self.extents = list(full)
        self.asked: dict[int, dict[Dims, None]] = {}

    def nest(self) -> Nest:
        """Ask from the last node to the first, then make values in their order."""
        program = self.program
        wanted = [stored(output) for output in program.outputs]
        every = tuple(range(len(self.extents)))
        places = [_behind(every, self.extents, node.shape) for node in wanted]
        for node, dims in zip(wanted, places, strict=True):
            self.asked.setdefault(node.number, {})[dims] = None
        for node in reversed(program.nodes):
            if source(node) is None:
                for dims in self.asked.get(node.number, ()):
                    for arg in operands(node):
                        place = _behind(dims, node.shape, arg.shape)
                        self.asked.setdefault(arg.number, {})[place] = None
        arrays = [
            self._strides(node.shape, dims)
            for node in program.nodes
            if source(node) is not None
            for dims in self.asked.get(node.number, ())
        ]
        stores = [
            self._strides(node.shape, dims)
            for node, dims in zip(wanted, places, strict=True)
        ]
        extents, kept = merged(self.extents, [*arrays, *stores])
        made = self._values(kept)
        if not kept:  # one element: every array has it along the only axis
            stores = [(1,)] * len(stores)
        else:
            stores = [tuple([strides[k] for k in kept]) for strides in stores]
        outputs = tuple(
            Stored(made[node.number, dims], strides)
            for node, dims, strides in zip(wanted, places, stores, strict=True)
        )
        values = dict.fromkeys(made.values())  # views are those of their operands
        return Nest(program, extents, tuple(values), outputs)

    def _strides(self, shape: Shape, dims: Dims) -> Strides:
        """Return the strides of a row-major array whose dimensions lie along axes."""
        strides = [0] * len(self.extents)
        stride = 1
        for extent, axis in zip(reversed(shape), reversed(dims), strict=True):
            if axis is not None and extent != 1:
                strides[axis] += stride
            stride *= extent
        return tuple(strides)

    def _values(self, kept: Sequence[int]) -> dict[tuple[int, Dims], Value]:
        made: dict[tuple[int, Dims], Value] = {}
        none = (0,) * max(1, len(kept))
        count = 0
        for node in self.program.nodes:
            of = source(node)
            for dims in self.asked.get(node.number, ()):
                args: dict[int, Value] = {}
                strides, axes = none, frozenset[int]()
                if of is not None:
                    whole = self._strides(node.shape, dims)
                    strides = tuple([whole[k] for k in kept]) or (1,)
                    axes = frozenset([k for k, stride in enumerate(strides) if stride])
                else:
                    for arg in operands(node):
                        place = _behind(dims, node.shape, arg.shape)
                        args[arg.number] = made[arg.number, place]
                    axes = axes.union(*[arg.axes for arg in args.values()])
                if isinstance(node, Broadcast):
                    made[node.number, dims] = args[node.arg.number]
                    continue
                made[node.number, dims] = Value(count, node, args, of, strides, axes)
                count += 1
        return made


def _behind(dims: Dims, shape: Sequence[int], arg: Shape) -> Dims:
    """Return the axes of an operand, aligned at the last; None along its extents of 1."""
    skipped = len(shape) - len(arg)
    return tuple([None if arg[k] == 1 else dims[skipped + k] for k in range(len(arg))])


def merged(
    extents: Sequence[int], arrays: Iterable[Strides]
) -> tuple[tuple[int, ...], list[int]]:
    """Merge neighbouring axes; return the extents, and the axes that strides stay of.

    Every array walks the outer of two as the inner's whole extent, or neither. One
    element has an axis too.
    """
    found: list[int] = []
    kept: list[int] = []
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        if kept and all(s[kept[-1]] == s[axis] * extent for s in arrays):
            found[-1] *= extent
            kept[-1] = axis
        else:
            found.append(extent)
            kept.append(axis)
    return tuple(found) or (1,), kept
