"""Tensor expressions: what a kernel computes, before anything says how.

    program = (name, Input* inputs, Scalar* scalars, Output* outputs)
    output  = (name, node value, int? updates)    -- updates: the input it overwrites
    node    = Input(name, index)
            | Scalar(name)                        -- given at each launch, shape ()
            | Constant(value)                     -- shape ()
            | Apply(op, node* args)               -- a row of ops.OPERATIONS
            | Cast(arg)                           -- rounds to the node's dtype
            | Broadcast(arg)                      -- the same values in a larger shape
            | Reduce(op, arg, axes, keepdims)     -- a row of monoids.MONOIDS
            | View(arg, index)                    -- arg[index], 0 outside of it
            | Gather(arg, which, index, place)    -- the same, at computed places
            | Along(op, arg, axis, reverse)       -- a row of along.ALONG
            | Handed(op, arg, memory, axis, reverse) -- totals before each element
            | Merge(arg)                          -- two halves in order, as one order
            | Segments(arg, starts, axis)         -- sums from a start to the next one
            | Arange()                            -- 0, 1, 2, ... along its one axis
            | Reshape(arg)                        -- the same elements, same order
            | Dot(a, b)                           -- (..., K) x (K, N) -> (..., N)
            | Row(arg, index)                     -- arg[index] of memory's rows
            | Chain(arg)                          -- this chain's part of an input
            | Chains(arg)                         -- of every chain, along a new axis
            | Parameter(role, place)              -- in a loop's body: carry or index
            | Result(loop, place)                 -- a carry at the end, or stacked
    loop    = (length, inits, carries, index, condition, nexts, stacked, unroll,
               reverse)

A program of `chains` computes the same for each of them, independently; a chain is
the first axis of what Chain reads and Chains writes. A loop's body is the nodes that
depend on its parameters; they are in the loop's `nodes`, not in the program's, so that
what no iteration changes is computed before the loop by construction.

Every node also has a number, a shape and a dtype. `graph.Graph` makes the nodes
and keeps one per distinct expression, so equal subexpressions are one node and
nodes compare by identity; numbers grow from operands to users, so that sorting by
number is an evaluation order and no pass needs recursion.

Shapes broadcast as in the array API: aligned at the last axis, 1 fits anything.
Arithmetic on float16 and bfloat16 rounds after every operation; float32 and float64
products that feed only one sum or difference are fused with it (rounded once), unless
its other operand is a product too, of no power of two: equal products cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

from msgspec import Struct

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.indices import Index

Shape: TypeAlias = tuple[int, ...]
Value: TypeAlias = float | int | bool


class _Value(Struct, frozen=True, eq=False):
    """What every node has."""

    number: int
    shape: Shape
    dtype: DType
    __repr__ = object.__repr__


class Input(_Value, frozen=True, eq=False):
    """An array parameter; `index` is its position in the signature.

    One of index -1 stands for what a function is differentiated by, until that is put
    in its place.
    """

    name: str
    index: int


class Scalar(_Value, frozen=True, eq=False):
    """A runtime scalar: float64, int64 or bool, given at each launch."""

    name: str


class Constant(_Value, frozen=True, eq=False):
    """A number known when the kernel is traced, exactly representable in dtype."""

    value: Value


class Apply(_Value, frozen=True, eq=False):
    """One elementwise operation of OPERATIONS over operands that broadcast."""

    op: str
    args: tuple[Node, ...]


class Cast(_Value, frozen=True, eq=False):
    """The operand's values rounded to the node's dtype."""

    arg: Node


class Broadcast(_Value, frozen=True, eq=False):
    """The operand's values in the node's larger shape."""

    arg: Node


class Reduce(_Value, frozen=True, eq=False):
    """One reduction of MONOIDS over axes in order, which become 1 or go."""

    op: str
    arg: Node
    axes: tuple[int, ...]
    keepdims: bool

    @property
    def of_rows(self) -> bool:
        """Whether it reduces the last axis alone."""
        return self.axes == (len(self.arg.shape) - 1,)


class View(_Value, frozen=True, eq=False):
    """The elements of `arg` at other places: one expression for each of its axes.

    They are of the view's own axes; an element outside of `arg` is zero.
    """

    arg: Node
    index: tuple[Index, ...]

    @property
    def strided(self) -> bool:
        """Whether it is a part of memory where `arg` is: with a step for each axis."""
        terms = [term for each in self.index for term, _ in each.terms]
        return all(isinstance(term, int) for term in terms) and not self.guards

    @property
    def guards(self) -> tuple[int, ...]:
        """The axes of `arg` that some elements lie outside of."""
        pairs = enumerate(zip(self.index, self.arg.shape, strict=True))
        ends = [(d, each.bounds(self.shape), extent) for d, (each, extent) in pairs]
        return tuple(d for d, (low, high), n in ends if low < 0 or high >= n)


class Gather(_Value, frozen=True, eq=False):
    """The elements of `arg` at places of which one axis is computed.

    `which` has the gather's shape and says where along axis `place` of `arg` each
    element is, always in range; `index` has the others as a view has them, in range.
    """

    arg: Node
    which: Node
    index: tuple[Index, ...]
    place: int


class Along(_Value, frozen=True, eq=False):
    """A function of whole lines of the operand along one axis, each by itself.

    `reverse`: a line is taken from its last element to its first.
    """

    op: str
    arg: Node
    axis: int
    reverse: bool


class Handed(_Value, frozen=True, eq=False):
    """Totals before each element, or behind: blocks hand them over in `memory`, of zeros."""

    op: str
    arg: Node
    memory: Node
    axis: int
    reverse: bool


class Merge(_Value, frozen=True, eq=False):
    """The order of lines whose halves are in order, as two axes: a thread has the last."""

    arg: Node


class Segments(_Value, frozen=True, eq=False):
    """Sums along an axis from each of the starts, on `arg`'s axes before, to the next."""

    arg: Node
    starts: Node
    axis: int


class Arange(_Value, frozen=True, eq=False):
    """0, 1, 2, ... along one axis, as int32 or int64."""


class Reshape(_Value, frozen=True, eq=False):
    """The operand's elements in the same order, in another shape."""

    arg: Node


class Dot(_Value, frozen=True, eq=False):
    """The sum over k of a[..., k] * b[k, n]; `b` has two axes, `a` one or more."""

    a: Node
    b: Node


class Row(_Value, frozen=True, eq=False):
    """arg[index] of what lies in memory, at an index that is not known; in range."""

    arg: Node
    index: Node


class Chain(_Value, frozen=True, eq=False):
    """The part of one chain of an input whose first axis is the chains."""

    arg: Node


class Chains(_Value, frozen=True, eq=False):
    """What every chain computed, along a new first axis."""

    arg: Node


class Parameter(_Value, frozen=True, eq=False):
    """A value that each iteration of one loop gets: its place's carry, or the index.

    `role` is "carry" or "index"; the index is int64 and counts 0, 1, 2, ...
    """

    role: str
    place: int


class Result(_Value, frozen=True, eq=False):
    """What a loop gives: the carry at `place`, or what iterations computed, stacked.

    Places from len(nexts) on are stacked, along a new first axis of `length` rows.
    """

    loop: Loop
    place: int

    @property
    def stacks(self) -> bool:
        """Whether it holds a row for every iteration."""
        return self.place >= len(self.loop.nexts)


class Loop(Struct, frozen=True, eq=False):
    """At most `length` iterations, one after another, while `condition` holds.

    Iteration i computes `nexts` and `stacked` of the carries and the index i; the
    condition, a bool, is asked before each. A length that is a node is given at
    launch, and nothing is stacked then; with a condition the rows of iterations
    that did not run are undefined. `unroll` is how many iterations one turn holds;
    0: the schedule chooses. With `reverse` iteration i stacks its row as the last but
    i, not as the row i. `nodes` is the body in evaluation order, `free` what it
    and the results read from outside.
    """

    length: int | Node
    inits: tuple[Node, ...]
    carries: tuple[Parameter, ...]
    index: Parameter
    condition: Node | None
    nexts: tuple[Node, ...]
    stacked: tuple[Node, ...]
    unroll: int
    reverse: bool
    nodes: tuple[Node, ...]
    free: tuple[Node, ...]
    __repr__ = object.__repr__


# No repr by fields: a node's would spell out everything below it; `text` prints.
Node: TypeAlias = (
    Input
    | Scalar
    | Constant
    | Apply
    | Cast
    | Broadcast
    | Reduce
    | View
    | Gather
    | Along
    | Handed
    | Merge
    | Segments
    | Arange
    | Reshape
    | Dot
    | Row
    | Chain
    | Chains
    | Parameter
    | Result
)


class Output(Struct, frozen=True):
    """A result; `updates` is the index of the input that it overwrites, if any.

    A `hidden` one is memory that the kernel needs between two of its loops: the
    caller neither gives nor gets it.
    """

    name: str
    value: Node
    updates: int | None
    hidden: bool = False

    @property
    def each(self) -> Node:
        """What each chain computes of it."""
        return self.value.arg if isinstance(self.value, Chains) else self.value


class Program(Struct, frozen=True):
    """A traced kernel; `nodes` are those its outputs need, in evaluation order.

    `chains` is how many independent chains compute it; 0: it has no such axis.
    `returns` is what a call gives: "one" array, a "tuple" or a "dict" by name.
    `copies` are the sets of arrays that one launch computes it of, side by side.
    """

    name: str
    inputs: tuple[Input, ...]
    scalars: tuple[Scalar, ...]
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]
    chains: int = 0
    returns: str = "dict"
    copies: int = 1


def operands(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node reads, in order; of a loop those outside of it."""
    return _OPERANDS[type(node)](node)


def _of_loop(node: Result) -> tuple[Node, ...]:
    loop = node.loop
    length = () if isinstance(loop.length, int) else (loop.length,)
    return *loop.inits, *loop.free, *length


# By type: planning a model asks ten thousand times.
_NONE: Final = (Input, Scalar, Constant, Arange, Parameter)
_ONE: Final = (Cast, Broadcast, Reduce, View, Along, Merge, Reshape, Chain, Chains)
_OPERANDS: Final[Mapping[type, Callable[[Any], tuple[Node, ...]]]] = {
    **dict.fromkeys(_NONE, lambda _: ()),
    **dict.fromkeys(_ONE, lambda node: (node.arg,)),
    Apply: attrgetter("args"),
    Dot: attrgetter("a", "b"),
    Row: attrgetter("arg", "index"),
    Gather: attrgetter("arg", "which"),
    Handed: attrgetter("arg", "memory"),
    Segments: attrgetter("arg", "starts"),
    Result: _of_loop,
}


def loops(nodes: Iterable[Node]) -> tuple[Loop, ...]:
    """Return the loops that nodes are results of, each once; not those in bodies."""
    found = {id(node.loop): node.loop for node in nodes if isinstance(node, Result)}
    return tuple(found.values())
