"""Makes the nodes of tensor expressions: shape and dtype inference in one place.

Equal subexpressions become one node; what changes nothing (a cast to the same dtype,
a narrowing of what was just widened) becomes no node at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.bodies import body, check_loop
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.expression.rounding import round_constant
from steelyard_kernels.monoids import MONOIDS
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import SAME_WIDTH


class Graph:
    """Makes nodes with inferred shape and dtype, one per distinct expression.

    Errors (KernelError) name `kernel`, the kernel that is being traced.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.chains = 0  # how many there are; 0: none
        self.rows: dict[tuple[int, int], Node | None] = {}  # found by `rows.row`
        self.taken: dict[tuple[object, ...], Node] = {}  # found by `views.gathered`
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._count = 0

    def _next(self) -> int:
        self._count += 1
        return self._count

    def input(
        self, name: str, index: int, shape: expr.Shape, dtype: DType
    ) -> expr.Input:
        """Return an array parameter."""
        return expr.Input(self._next(), shape, dtype, name, index)

    def scalar(self, name: str, dtype: DType) -> expr.Scalar:
        """Return a runtime scalar."""
        return expr.Scalar(self._next(), (), dtype, name)

    def constant(self, value: expr.Value, dtype: DType) -> Node:
        """Return a constant rounded to dtype."""
        value = round_constant(value, dtype)
        # repr keeps -0.0 from 0.0 and makes every NaN the same constant
        key = (expr.Constant, dtype.name, repr(value))
        if key not in self._nodes:
            self._nodes[key] = expr.Constant(self._next(), (), dtype, value)
        return self._nodes[key]

    def apply(self, op: str, *args: Node) -> Node:
        """Return an elementwise operation; operands are promoted to one dtype."""
        row = OPERATIONS[op]
        values = args[1:] if op == "where" else args
        common = self._common(op, values)
        if common.kind in row.keeps:
            return args[0]
        if common.kind not in row.kinds or (row.only and common not in row.only):
            raise KernelError(self._refusal(op, common))
        if op == "where" and args[0].dtype.kind != "bool":
            raise KernelError(
                f"{self.kernel}: where selects by {args[0].dtype.name}, expected bool; "
                "compare first, for example where(x > 0, a, b)."
            )
        shape = self.joint_shape(op, args)
        cast = tuple([self.cast(value, common) for value in values])
        if op == "where":
            cast = (args[0], *cast)
        key = (expr.Apply, op, *[arg.number for arg in cast])
        found = self._nodes.get(key)
        if found is None:
            dtype = dtypes.bool_ if row.result == "bool" else common
            dtype = SAME_WIDTH[common] if row.result == "bits" else dtype
            found = expr.Apply(self._next(), shape, dtype, op, cast)
            self._nodes[key] = found
        return found

    def cast(self, node: Node, dtype: DType, *, folds: bool = True) -> Node:
        """Return the node rounded to dtype; what changes nothing is left out if it `folds`."""
        if node.dtype is dtype:
            return node
        if isinstance(node, expr.Constant):
            return self.constant(node.value, dtype)
        inner = node.arg if folds and isinstance(node, expr.Cast) else None
        if inner is not None and dtypes.widens(inner.dtype, node.dtype):
            return self.cast(inner, dtype)  # a widening is exact: start before it
        key = (expr.Cast, dtype.name, node.number)
        return self.keep(key, expr.Cast, node.shape, dtype, node)

    def broadcast(self, node: Node, shape: expr.Shape) -> Node:
        """Return the node in a larger shape."""
        if node.shape == shape:
            return node
        if broadcast_shape(node.shape, shape) != shape:
            raise KernelError(
                f"{self.kernel}: cannot broadcast shape {node.shape} to {shape}; "
                "aligned at the last axis, every extent must be equal or 1."
            )
        key = (expr.Broadcast, shape, node.number)
        return self.keep(key, expr.Broadcast, shape, node.dtype, node)

    def elementwise(
        self,
        node: expr.Apply | expr.Cast | expr.Broadcast,
        args: Sequence[Node],
        shape: expr.Shape,
    ) -> Node:
        """Return what computes like a node of other operands, which may be broadcast."""
        if isinstance(node, expr.Apply):
            return self.apply(node.op, *args)
        (arg,) = args
        if isinstance(node, expr.Cast):
            return self.cast(arg, node.dtype)
        return self.broadcast(arg, shape)

    def reduce(
        self,
        op: str,
        node: Node,
        axes: tuple[int, ...] | None = None,
        *,
        keepdims: bool,
    ) -> Node:
        """Return a reduction over axes in order, the last one if none are named.

        Sums and products of integers are of 64 bits. One of no elements is a constant,
        so that nothing walks, or reads, what is not there.
        """
        axes = (len(node.shape) - 1,) if axes is None else axes
        self._check_reduce(op, node, axes)
        if MONOIDS[op].widened and node.dtype.kind == "int":
            node = self.cast(node, dtypes.widest(node.dtype))
        node = self.cast(node, dtypes.computed(node.dtype))
        key = (expr.Reduce, op, node.number, axes, keepdims)
        if key not in self._nodes:
            kept = ((n, place in axes) for place, n in enumerate(node.shape))
            shape = tuple(1 if gone else n for n, gone in kept if keepdims or not gone)
            if 0 in node.shape:
                return self._filled(MONOIDS[op].nothing or 0, node.dtype, shape)
            number = self._next()
            self._nodes[key] = expr.Reduce(
                number, shape, node.dtype, op, node, axes, keepdims
            )
        return self._nodes[key]

    def view(self, node: Node, index: tuple[Index, ...], shape: expr.Shape) -> Node:
        """Return node[index], of `shape` and zero where an index lies outside.

        `index` has an expression of the view's axes for each axis of the node. Where
        either has no element the view is of zeros, for then it can read none.
        """
        if shape == node.shape and index == tuple(map(axis, range(len(shape)))):
            return node
        if 0 in shape or 0 in node.shape:
            return self._filled(0, node.dtype, shape)
        view = expr.View(0, shape, node.dtype, node, index)
        if isinstance(node, expr.View) and not view.guards:
            inner = tuple(each.at(index, shape) for each in node.index)
            return self.view(node.arg, inner, shape)
        key = (expr.View, shape, node.number, index)
        return self.keep(key, expr.View, shape, node.dtype, node, index)

    def _filled(self, value: expr.Value, dtype: DType, shape: expr.Shape) -> Node:
        return self.broadcast(self.constant(value, dtype), shape)

    def arange(self, extent: int, dtype: DType) -> Node:
        """Return 0, 1, 2, ... below extent, int32 or int64."""
        if dtype.kind != "int":
            raise KernelError(
                f"{self.kernel}: arange of {dtype.name}, expected int32 or int64; cast "
                "it with astype."
            )
        return self.keep(
            (expr.Arange, extent, dtype.name), expr.Arange, (extent,), dtype
        )

    def reshape(self, node: Node, shape: expr.Shape) -> Node:
        """Return the elements in the same order in another shape."""
        if node.shape == shape:
            return node
        if math.prod(node.shape) != math.prod(shape):
            raise KernelError(
                f"{self.kernel}: cannot reshape {node.shape} to {shape}: "
                f"{math.prod(node.shape)} elements are not {math.prod(shape)}; pass a "
                "shape of as many."
            )
        if isinstance(node, expr.Reshape):
            return self.reshape(node.arg, shape)
        key = (expr.Reshape, shape, node.number)
        return self.keep(key, expr.Reshape, shape, node.dtype, node)

    def dot(self, a: Node, b: Node) -> Node:
        """Return the sum over k of a[..., k] * b[k, n], of floating values."""
        common = self._common("dot", (a, b))
        if common.kind != "float":
            raise KernelError(
                f"{self.kernel}: dot of {common.name} is not defined, expected float; "
                "cast it first with astype."
            )
        if not a.shape or len(b.shape) != 2 or a.shape[-1] != b.shape[0]:
            raise KernelError(
                f"{self.kernel}: dot of shapes {a.shape} and {b.shape}, expected "
                "(..., K) and (K, N); transpose or reshape one of them."
            )
        a, b = self.cast(a, common), self.cast(b, common)
        shape = (*a.shape[:-1], b.shape[1])
        return self.keep((expr.Dot, a.number, b.number), expr.Dot, shape, common, a, b)

    def row_of_memory(self, node: Node, index: Node) -> Node:
        """Return the node of a row where it stands; `rows.row` looks further."""
        key = (expr.Row, node.number, index.number)
        return self.keep(key, expr.Row, node.shape[1:], node.dtype, node, index)

    def chain(self, node: Node) -> Node:
        """Return this chain's part of an input; all have the same number of chains."""
        if not isinstance(node, expr.Input) or not node.shape:
            raise KernelError(
                f"{self.kernel}: chains were asked of a value of shape {node.shape}, "
                "expected an array parameter of one axis or more; map parameters."
            )
        if self.chains not in {0, node.shape[0]}:
            raise KernelError(
                f"{self.kernel}: {node.name} has {node.shape[0]} chains, expected "
                f"{self.chains} as the others; give all the same first axis."
            )
        self.chains = node.shape[0]
        key = (expr.Chain, node.number)
        return self.keep(key, expr.Chain, node.shape[1:], node.dtype, node)

    def chains_of(self, node: Node) -> Node:
        """Return what every chain computed, along a new first axis."""
        shape = (self.chains, *node.shape)
        return self.keep(
            (expr.Chains, node.number), expr.Chains, shape, node.dtype, node
        )

    def parameters(
        self, inits: Sequence[Node]
    ) -> tuple[tuple[expr.Parameter, ...], expr.Parameter]:
        """Return a new loop's carries, like its inits, and its index."""
        carries = tuple(
            expr.Parameter(self._next(), init.shape, init.dtype, "carry", place)
            for place, init in enumerate(inits)
        )
        return carries, expr.Parameter(self._next(), (), dtypes.int64, "index", 0)

    def loop(
        self,
        length: int | Node,
        inits: Sequence[Node],
        parameters: tuple[tuple[expr.Parameter, ...], expr.Parameter],
        nexts: Sequence[Node],
        stacked: Sequence[Node] = (),
        *,
        condition: Node | None = None,
        unroll: int = 0,
        reverse: bool = False,
    ) -> tuple[Node, ...]:
        """Return the results of a loop: every carry at its end, then what it stacks.

        `parameters` are those that `nexts`, `stacked` and `condition` were made of;
        `expr.Loop` says what each means.
        """
        carries, index = parameters
        roots = [*nexts, *stacked, *([] if condition is None else [condition])]
        nodes, free = body(roots, {p.number for p in (*carries, index)})
        loop = expr.Loop(
            length=length,
            inits=tuple(inits),
            carries=carries,
            index=index,
            condition=condition,
            nexts=tuple(nexts),
            stacked=tuple(stacked),
            unroll=unroll,
            reverse=reverse,
            nodes=nodes,
            free=free,
        )
        check_loop(self.kernel, loop)
        rows_of = (length,) if isinstance(length, int) else ()
        shapes = [n.shape for n in nexts] + [(*rows_of, *n.shape) for n in stacked]
        return tuple(
            expr.Result(self._next(), shape, node.dtype, loop, place)
            for place, (shape, node) in enumerate(
                zip(shapes, [*nexts, *stacked], strict=True)
            )
        )

    def keep(
        self,
        key: tuple[object, ...],
        kind: Callable[..., Node],
        shape: expr.Shape,
        dtype: DType,
        *fields: Any,
    ) -> Node:
        """Return the node of a key, made of its fields where there is none yet."""
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = kind(self._next(), shape, dtype, *fields)
        return found

    def _check_reduce(self, op: str, node: Node, axes: tuple[int, ...]) -> None:
        if not node.shape:
            raise KernelError(
                f"{self.kernel}: {op} over a value of shape (); give it an array with "
                "at least one axis."
            )
        row = MONOIDS[op]
        if node.dtype.kind not in row.kinds:
            raise KernelError(
                f"{self.kernel}: {op} of {node.dtype.name} is not defined, expected "
                f"{' or '.join(sorted(row.kinds))}; cast it first with astype."
            )
        if row.nothing is None and any(node.shape[place] == 0 for place in axes):
            raise KernelError(
                f"{self.kernel}: {op} over an empty axis of shape {node.shape} has no "
                "value; give every reduced axis at least one element."
            )

    def _common(self, op: str, values: Sequence[Node]) -> DType:
        common = dtypes.computed(values[0].dtype)
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
        row = OPERATIONS[op]
        only = [dtype.name for dtype in row.only]
        expected = " or ".join(sorted(only or row.kinds))
        return (
            f"{self.kernel}: {op} of {dtype.name} is not defined, expected {expected}; "
            "cast it first with astype."
        )

    def joint_shape(self, op: str, args: Sequence[Node]) -> expr.Shape:
        """Return the shape that operands broadcast to; raises KernelError if there is none."""
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


def broadcast_shape(a: expr.Shape, b: expr.Shape) -> expr.Shape | None:
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
