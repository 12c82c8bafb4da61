"""Tensor expressions: what a kernel computes, before anything says how.

    program = (name, Input* inputs, Scalar* scalars, Output* outputs)
    output  = (name, node value, int? updates)    -- updates: the input it overwrites
    node    = Input(name, index)
            | Scalar(name)                        -- given at each launch, shape ()
            | Constant(value)                     -- shape ()
            | Apply(op, node* args)               -- a row of OPERATIONS, broadcasting
            | Cast(arg)                           -- rounds to the node's dtype
            | Broadcast(arg)                      -- the same values in a larger shape
            | Reduce(op, arg, keepdims)           -- a row of REDUCTIONS, last axis

Every node also has a number, a shape and a dtype. `graph.Graph` makes the nodes
and keeps one per distinct expression, so equal subexpressions are one node and
nodes compare by identity; numbers grow from operands to users, so that sorting by
number is an evaluation order and no pass needs recursion.

Shapes broadcast as in the array API: aligned at the last axis, 1 fits anything.
Arithmetic on float16 and bfloat16 rounds after every operation; float32 and float64
products that feed only one sum may be fused with it (rounded once).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import DType

Shape: TypeAlias = tuple[int, ...]
Value: TypeAlias = float | int | bool


@dataclass(frozen=True, slots=True)
class Operation:
    """What an elementwise operation takes and gives.

    `kinds` are the operand kinds it accepts; `result` is "same" (as the operands) or
    "bool"; `cost` is how many operations `cost.operations` counts an element as.
    """

    arity: int
    kinds: frozenset[str]
    result: str
    cost: int


_FLOAT: Final = frozenset({"float"})
_NUMBER: Final = frozenset({"float", "int"})
_ANY: Final = frozenset({"float", "int", "bool"})
_BOOL: Final = frozenset({"bool"})

OPERATIONS: Final[dict[str, Operation]] = {
    "add": Operation(2, _NUMBER, "same", 1),
    "subtract": Operation(2, _NUMBER, "same", 1),
    "multiply": Operation(2, _NUMBER, "same", 1),
    "divide": Operation(2, _FLOAT, "same", 1),
    "maximum": Operation(2, _NUMBER, "same", 1),
    "minimum": Operation(2, _NUMBER, "same", 1),
    "negative": Operation(1, _NUMBER, "same", 1),
    "abs": Operation(1, _NUMBER, "same", 1),
    "sqrt": Operation(1, _FLOAT, "same", 1),
    "rsqrt": Operation(1, _FLOAT, "same", 1),
    "exp": Operation(1, _FLOAT, "same", 1),
    "log": Operation(1, _FLOAT, "same", 1),
    "less": Operation(2, _NUMBER, "bool", 1),
    "less_equal": Operation(2, _NUMBER, "bool", 1),
    "greater": Operation(2, _NUMBER, "bool", 1),
    "greater_equal": Operation(2, _NUMBER, "bool", 1),
    "equal": Operation(2, _ANY, "bool", 1),
    "not_equal": Operation(2, _ANY, "bool", 1),
    "logical_and": Operation(2, _BOOL, "bool", 1),
    "logical_or": Operation(2, _BOOL, "bool", 1),
    "logical_not": Operation(1, _BOOL, "bool", 1),
    "where": Operation(3, _ANY, "same", 0),  # a selection computes nothing
}

# Reductions over the last axis, with the operations an element costs.
REDUCTIONS: Final[dict[str, int]] = {"sum": 1, "max": 1, "min": 1, "mean": 1, "var": 3}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Input:
    """An array parameter; `index` is its position in the signature."""

    number: int
    shape: Shape
    dtype: DType
    name: str
    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scalar:
    """A runtime scalar: float64, int64 or bool, given at each launch."""

    number: int
    shape: Shape
    dtype: DType
    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant:
    """A number known when the kernel is traced, exactly representable in dtype."""

    number: int
    shape: Shape
    dtype: DType
    value: Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Apply:
    """One elementwise operation of OPERATIONS over operands that broadcast."""

    number: int
    shape: Shape
    dtype: DType
    op: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast:
    """The operand's values rounded to the node's dtype."""

    number: int
    shape: Shape
    dtype: DType
    arg: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Broadcast:
    """The operand's values in the node's larger shape."""

    number: int
    shape: Shape
    dtype: DType
    arg: Node


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce:
    """One reduction of REDUCTIONS over the last axis, which becomes 1 or goes."""

    number: int
    shape: Shape
    dtype: DType
    op: str
    arg: Node
    keepdims: bool


# No repr by fields: a node's would spell out everything below it; `text` prints.
Node: TypeAlias = Input | Scalar | Constant | Apply | Cast | Broadcast | Reduce


@dataclass(frozen=True, slots=True)
class Output:
    """A result; `updates` is the index of the input that it overwrites, if any."""

    name: str
    value: Node
    updates: int | None


@dataclass(frozen=True, slots=True)
class Program:
    """A traced kernel; `nodes` are those its outputs need, in evaluation order."""

    name: str
    inputs: tuple[Input, ...]
    scalars: tuple[Scalar, ...]
    outputs: tuple[Output, ...]
    nodes: tuple[Node, ...]


def text(program: Program) -> str:
    """Return a program as one line per node, in evaluation order."""
    lines = [f"program {program.name}"]
    for node in program.nodes:
        args = ", ".join(f"%{arg.number}" for arg in operands(node))
        lines.append(
            f"  %{node.number}: {node.dtype}{node.shape} = {_head(node)}({args})"
        )
    for output in program.outputs:
        place = "" if output.updates is None else " in place"
        lines.append(f"  {output.name} = %{output.value.number}{place}")
    return "\n".join(lines) + "\n"


def _head(node: Node) -> str:
    if isinstance(node, Apply):
        return node.op
    if isinstance(node, Reduce):
        return f"{node.op}{'[keepdims]' if node.keepdims else ''}"
    if isinstance(node, Constant):
        return f"constant {node.value!r}"
    if isinstance(node, Input | Scalar):
        return f"{type(node).__name__.lower()} {node.name}"
    return type(node).__name__.lower()


def operands(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node reads, in order."""
    if isinstance(node, Apply):
        return node.args
    if isinstance(node, Cast | Broadcast | Reduce):
        return (node.arg,)
    return ()


def reachable(roots: Iterable[Node]) -> tuple[Node, ...]:
    """Return every node that the roots need, in evaluation order."""
    found: dict[int, Node] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node.number not in found:
            found[node.number] = node
            pending.extend(operands(node))
    return tuple(found[number] for number in sorted(found))


def users(nodes: Iterable[Node]) -> dict[int, int]:
    """Count, by node number, how often each node is read by the given nodes."""
    counts: dict[int, int] = {}
    for node in nodes:
        for arg in operands(node):
            counts[arg.number] = counts.get(arg.number, 0) + 1
    return counts
