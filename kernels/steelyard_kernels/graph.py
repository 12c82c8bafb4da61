"""Makes the nodes of tensor expressions: shape and dtype inference in one place.

Equal subexpressions become one node; what changes nothing (a cast to the same dtype,
a narrowing of what was just widened) becomes no node at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import (
    OPERATIONS,
    Apply,
    Broadcast,
    Cast,
    Constant,
    Input,
    Node,
    Output,
    Program,
    Reduce,
    Scalar,
    Shape,
    Value,
    operands,
    reachable,
)

_FLOAT: Final = frozenset({"float"})
_NUMBER: Final = frozenset({"float", "int"})


class Graph:
    """Makes nodes with inferred shape and dtype, one per distinct expression.

    Errors name `kernel`, the kernel that is being traced.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._count = 0

    def _next(self) -> int:
        self._count += 1
        return self._count

    def input(self, name: str, index: int, shape: Shape, dtype: DType) -> Input:
        """Return an array parameter."""
        return Input(self._next(), shape, dtype, name, index)

    def scalar(self, name: str, dtype: DType) -> Scalar:
        """Return a runtime scalar."""
        return Scalar(self._next(), (), dtype, name)

    def constant(self, value: Value, dtype: DType) -> Node:
        """Return a constant rounded to dtype."""
        value = round_constant(value, dtype)
        # repr keeps -0.0 from 0.0 and makes every NaN the same constant
        key = (Constant, dtype.name, repr(value))
        if key not in self._nodes:
            self._nodes[key] = Constant(self._next(), (), dtype, value)
        return self._nodes[key]

    def apply(self, op: str, *args: Node) -> Node:
        """Return an elementwise operation; operands are promoted to one dtype."""
        row = OPERATIONS[op]
        values = args[1:] if op == "where" else args
        common = self._common(op, values)
        if common.kind not in row.kinds:
            raise KernelError(self._refusal(op, common))
        if op == "where" and args[0].dtype.kind != "bool":
            raise KernelError(
                f"{self.kernel}: where selects by {args[0].dtype.name}, expected bool; "
                "compare first, for example where(x > 0, a, b)."
            )
        shape = self._broadcast_shapes(op, args)
        cast = tuple(self.cast(value, common) for value in values)
        if op == "where":
            cast = (args[0], *cast)
        key = (Apply, op, *(arg.number for arg in cast))
        if key not in self._nodes:
            dtype = dtypes.bool_ if row.result == "bool" else common
            self._nodes[key] = Apply(self._next(), shape, dtype, op, cast)
        return self._nodes[key]

    def cast(self, node: Node, dtype: DType) -> Node:
        """Return the node rounded to dtype; what changes nothing is left out."""
        if node.dtype is dtype:
            return node
        if isinstance(node, Constant):
            return self.constant(node.value, dtype)
        if isinstance(node, Cast) and widens(node.arg.dtype, node.dtype):
            return self.cast(node.arg, dtype)  # a widening is exact: start before it
        key = (Cast, dtype.name, node.number)
        if key not in self._nodes:
            self._nodes[key] = Cast(self._next(), node.shape, dtype, node)
        return self._nodes[key]

    def broadcast(self, node: Node, shape: Shape) -> Node:
        """Return the node in a larger shape."""
        if node.shape == shape:
            return node
        if broadcast_shape(node.shape, shape) != shape:
            raise KernelError(
                f"{self.kernel}: cannot broadcast shape {node.shape} to {shape}; "
                "aligned at the last axis, every extent must be equal or 1."
            )
        key = (Broadcast, shape, node.number)
        if key not in self._nodes:
            self._nodes[key] = Broadcast(self._next(), shape, node.dtype, node)
        return self._nodes[key]

    def reduce(self, op: str, node: Node, *, keepdims: bool) -> Node:
        """Return a reduction over the last axis; sums of int32 are int64."""
        self._check_reduce(op, node)
        if op == "sum" and node.dtype.kind == "int":
            node = self.cast(node, dtypes.int64)
        key = (Reduce, op, node.number, keepdims)
        if key not in self._nodes:
            shape = (*node.shape[:-1], 1) if keepdims else node.shape[:-1]
            number = self._next()
            self._nodes[key] = Reduce(number, shape, node.dtype, op, node, keepdims)
        return self._nodes[key]

    def _check_reduce(self, op: str, node: Node) -> None:
        if not node.shape:
            raise KernelError(
                f"{self.kernel}: {op} over a value of shape (); give it an array with "
                "at least one axis."
            )
        kinds = _FLOAT if op in {"mean", "var"} else _NUMBER
        if node.dtype.kind not in kinds:
            raise KernelError(
                f"{self.kernel}: {op} of {node.dtype.name} is not defined, expected "
                f"{' or '.join(sorted(kinds))}; cast it first with astype."
            )
        if node.shape[-1] == 0 and op != "sum":
            raise KernelError(
                f"{self.kernel}: {op} over an empty axis of shape {node.shape} has no "
                "value; give the last axis at least one element."
            )

    def _common(self, op: str, values: Sequence[Node]) -> DType:
        common = values[0].dtype
        for value in values[1:]:
            try:
                common = dtypes.promote(common, value.dtype)
            except KernelError as error:
                raise KernelError(f"{self.kernel}: in {op}, {error}") from None
        return common

    def _refusal(self, op: str, dtype: DType) -> str:
        if op == "divide" and dtype.kind == "int":
            return (
                f"{self.kernel}: divide of {dtype.name} by {dtype.name} would not be "
                "an integer; cast to a floating dtype first, for example "
                "x.astype('float32')."
            )
        expected = " or ".join(sorted(OPERATIONS[op].kinds))
        return (
            f"{self.kernel}: {op} of {dtype.name} is not defined, expected {expected}; "
            "cast it first with astype."
        )

    def _broadcast_shapes(self, op: str, args: Sequence[Node]) -> Shape:
        shape = args[0].shape
        for arg in args[1:]:
            if arg.shape == shape:
                continue
            joined = broadcast_shape(shape, arg.shape)
            if joined is None:
                raise KernelError(
                    f"{self.kernel}: {op} cannot broadcast shapes {shape} and "
                    f"{arg.shape}; aligned at the last axis, extents must be equal "
                    "or 1."
                )
            shape = joined
        return shape


# What stands for a node in a program made again, given what stands for those before it;
# None: itself.
Rule: TypeAlias = Callable[[Graph, Node, Mapping[int, Node]], Node | None]


def rewritten(program: Program, rule: Rule) -> Program:
    """Make a program again, node by node, with what a rule puts for some of them."""
    graph = Graph(program.name)
    inputs = tuple(
        graph.input(node.name, node.index, node.shape, node.dtype)
        for node in program.inputs
    )
    made: dict[int, Node] = {
        old.number: new for old, new in zip(program.inputs, inputs, strict=True)
    }
    for node in program.nodes:
        if not isinstance(node, Input):
            made[node.number] = rule(graph, node, made) or _again(graph, node, made)
    outputs = tuple(
        Output(o.name, made[o.value.number], o.updates) for o in program.outputs
    )
    scalars = tuple(made[node.number] for node in program.scalars)
    nodes = reachable(output.value for output in outputs)
    return Program(program.name, inputs, scalars, outputs, nodes)  # type: ignore[arg-type]


def _again(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node:
    """Make a node of what stands for its operands."""
    args = [made[arg.number] for arg in operands(node)]
    if isinstance(node, Scalar):
        return graph.scalar(node.name, node.dtype)
    if isinstance(node, Constant):
        return graph.constant(node.value, node.dtype)
    if isinstance(node, Apply):
        return graph.apply(node.op, *args)
    if isinstance(node, Cast):
        return graph.cast(args[0], node.dtype)
    if isinstance(node, Broadcast):
        return graph.broadcast(args[0], node.shape)
    assert isinstance(node, Reduce)
    return graph.reduce(node.op, args[0], keepdims=node.keepdims)


def broadcast_shape(a: Shape, b: Shape) -> Shape | None:
    """Return the shape two shapes broadcast to, or None when they do not."""
    if len(a) < len(b):
        a, b = b, a
    b = (1,) * (len(a) - len(b)) + b
    joined = []
    for x, y in zip(a, b, strict=True):
        if 1 not in {x, y} and x != y:
            return None
        joined.append(y if x == 1 else x)
    return tuple(joined)


def widens(source: DType, target: DType) -> bool:
    """Say whether every value of source is exactly a value of target."""
    return (source.name, target.name) in _WIDENINGS


_WIDENINGS: Final = frozenset(
    {
        ("float16", "float32"),
        ("float16", "float64"),
        ("bfloat16", "float32"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
        ("int32", "int64"),
        ("int32", "float64"),
    }
)


def round_constant(value: Value, dtype: DType) -> Value:
    """Round a Python number to the nearest value of dtype, as a Python number.

    Integers wrap as NumPy's casts do; a float that is not finite has no integer and
    raises KernelError.
    """
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "int":
        if isinstance(value, float) and not math.isfinite(value):
            raise KernelError(
                f"{value} has no value in {dtype.name}; use a floating dtype."
            )
        bits = 8 * dtype.bytes
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped
    return _round_float(float(value), dtype)


def _round_float(value: float, dtype: DType) -> float:
    if dtype is dtypes.float64:
        return value
    exact = np.array(value, np.float64)
    if dtype is dtypes.bfloat16:
        return float(dtypes.from_bfloat16(dtypes.to_bfloat16(exact)))
    with np.errstate(over="ignore", under="ignore"):  # to infinity and to zero
        return float(exact.astype(dtype.numpy_name))
