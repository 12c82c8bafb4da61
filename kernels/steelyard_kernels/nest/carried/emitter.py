"""From nodes of small values to loop IR, on any lanes: a rule for each production."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from steelyard_kernels.dtypes import HALVES, DType, float32, int32, int64
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import ALONG, MONOIDS, accumulator, rounding_loss
from steelyard_kernels.nest.carried.lanes import Lanes
from steelyard_kernels.nest.carried.outline import Body
from steelyard_kernels.nest.carried.registers import NEVER, ROLLED_ONCE, Registers
from steelyard_kernels.nest.carried.tensor import (
    FUNCTION,
    Memory,
    Tensor,
    Value,
    exchanges,
    lane_axis,
    numbered,
    uniform,
    viewed,
)
from steelyard_kernels.nest.sorts import is_before, keyed
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule import values


class Emitter(Registers):
    """Emits nodes, whose values are in `env` by their numbers."""

    def __init__(self, name: str, lanes: Lanes) -> None:
        super().__init__(name, lanes)
        self.target = lanes.target
        self.env: dict[int, Value] = {}
        if self.target == "cpu":
            self.rolled = ROLLED_ONCE

    def beside(self, env: Mapping[int, Value]) -> Emitter:
        """Return an emitter of values that are each a vector over some iterations."""
        side = copy.copy(self)
        side.lanes, side.rolled = Lanes(self.b, 1), NEVER
        side.env, side.derived = dict(env), {}
        return side

    def run(self, body: Body) -> None:
        """Emit nodes in order."""
        for node in body.nodes:
            self.fused = body.fused  # a loop among them has others
            self.emit(node)

    def emit(self, node: Node) -> None:
        """Emit one node, whose operands are in the environment."""
        rule = self.rules.get(type(node))
        if rule is None:
            raise CompilerBug(f"no rule of small values for a {type(node).__name__}")
        self.doing = f"{getattr(node, 'op', type(node).__name__.lower())} of"
        self.env[node.number] = rule(self, node)

    def tensor(self, node: Node) -> Tensor:
        """Return a node's value in registers; loads it where it lies in memory."""
        value = self.env[node.number]
        if isinstance(value, Tensor):
            return value
        return self.known(value, lambda: self.load(value))

    def wide(self, node: Node) -> Tensor:
        """Return a node's value in registers, halves as float32."""
        value = self.tensor(node)
        if node.dtype not in HALVES:
            return value
        return self.known((value, float32), lambda: self.cast(value, float32))

    def _apply(self, node: expr.Apply) -> Value:
        fusion = self.fused.get(node.number)
        reads = (fusion.a, fusion.b, fusion.c) if fusion else node.args
        numbers = [arg.number for arg in reads]

        def emit(args: Sequence[Operand]) -> Operand:
            lanes = max(arg.type.lanes for arg in args)
            env = {
                number: self.spread(arg, lanes)
                for number, arg in zip(numbers, args, strict=True)
            }
            return values.lower(
                self.b, env, node, lanes, self.fused, target=self.target
            )

        parts = [self.tensor(arg) for arg in reads]
        heavy = node.dtype if OPERATIONS[node.op].cost.cpu >= FUNCTION else None
        return self.each(node.shape, parts, emit, heavy=heavy)

    def _arange(self, node: expr.Arange) -> Value:
        dtype, order = node.dtype, self.checked(node.shape)
        if prod(node.shape) == 1:
            return uniform(0, dtype, node.shape)
        if self.lanes.width == 1:
            return Tensor(node.shape, tuple([const(v[0], dtype) for v in order]))
        numbers = self.lanes.numbers(dtype)
        vectors = [
            self.let("add", numbers, const(v[0], dtype)) if v[0] else numbers
            for v in order
        ]
        return Tensor(node.shape, tuple(vectors))

    def _reshape(self, node: expr.Reshape) -> Value:
        value = self.env[node.arg.number]
        if isinstance(value, Memory):
            view = value.reshaped(node.shape)
            if view is not None:
                return view
        return self.arrange(self.tensor(node.arg), numbered(node.shape))

    def _view(self, node: expr.View) -> Value:
        value = self.env[node.arg.number]
        if isinstance(value, Memory) and node.strided:
            return value.viewed(self.b, node)
        value = self.tensor(node.arg)
        numbers, inside = viewed(node)
        if inside.all():
            return self.arrange(value, numbers)
        elements, zero = self.elements(value), const(0, node.dtype)
        pairs = zip(numbers.flat, inside.flat, strict=True)
        return self.scattered(
            [elements[n] if ok else zero for n, ok in pairs], node.shape
        )

    def _gather(self, node: expr.Gather) -> Value:
        """Emit loads of elements one by one; of a value in registers, from memory."""
        b, value = self.b, self.env[node.arg.number]
        which = self.elements(self.tensor(node.which))
        if not isinstance(value, Memory):
            kept = self.lanes.scratch(node.dtype, node.arg.shape)
            self.store(kept, value)
            self.lanes.settle()
            value = kept
        found: list[Operand] = []
        for element, chosen in zip(viewed(node)[0].flat, which, strict=True):
            place = b.at(
                "multiply", b.cast(chosen, b.index.dtype), value.strides[node.place]
            )
            at = b.at("add", b.at("add", value.base, place), value.offset(int(element)))
            found.append(self.lanes.load(value, at, 1, 1))
        return self.scattered(found, node.shape)

    def _row(self, node: expr.Row) -> Value:
        value = self.env[node.arg.number]
        assert isinstance(value, Memory)
        return value.row(self.b, self.tensor(node.index).vectors[0])

    def _along(self, node: expr.Along) -> Value:
        """Emit lines one by one: totals one after another, or an order."""
        value, extent = self.tensor(node.arg), node.shape[node.axis]
        if node.op == "copy":
            return value
        orders = node.op == "order"
        if orders:
            self.check((*node.shape, extent))
        wide = self.cast(value, int64 if orders else accumulator(node.dtype))
        total = partial(
            self.let, "" if orders else MONOIDS[ALONG[node.op].total].combine
        )
        elements = list(self.elements(wide))
        lines = np.moveaxis(numbered(node.shape), node.axis, -1).reshape(-1, extent)
        for line in (lines[:, ::-1] if node.reverse else lines).tolist():
            taken = [elements[number] for number in line]
            found = (
                self._in_order(taken, node.arg.dtype)
                if orders
                else accumulate(taken, total)
            )
            for number, element in zip(line, found, strict=True):
                elements[number] = element
        return self.cast(self.scattered(elements, node.shape), node.dtype)

    def _in_order(self, keys: Sequence[Operand], key: DType) -> list[Operand]:
        """Emit the places of keys, those of the least first."""
        found = [
            keyed(self.let, each, const(place, int64), packs=key is int32)
            for place, each in enumerate(keys)
        ]
        for one, other in exchanges(len(found)):
            x, y = found[one], found[other]
            turned = is_before(self.let, y, x)
            for at, pair in (
                (one, zip(y, x, strict=True)),
                (other, zip(x, y, strict=True)),
            ):
                found[at] = tuple([self.let("where", turned, *each) for each in pair])
        return [each[-1] for each in found]

    def _reduce(self, node: expr.Reduce) -> Value:
        value = self.wide(node.arg)
        if MONOIDS[node.op].moments:
            return self.cast(self._variance(value, node), node.dtype)
        return self.cast(self._total(node.op, value, node), node.dtype)

    def _variance(self, value: Tensor, node: expr.Reduce) -> Tensor:
        """Emit a variance in two passes: the mean square of what is off the mean.

        The mean of that is what the mean's rounding left: its square leaves the variance
        (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983,
        the corrected two-pass algorithm).
        """
        shape, extents = node.shape, value.shape
        extent = prod([extents[axis] for axis in node.axes])
        one = [1 if k in node.axes else n for k, n in enumerate(extents)]
        mean = replace(self._total("mean", value, node), shape=tuple(one))
        off = self.let_each("subtract", extents, value, mean)
        squares = self.let_each("multiply", extents, off, off)
        rest, square = (self._total("mean", each, node) for each in (off, squares))
        lost = self.let_each("multiply", shape, rest, rest)
        var = self.let_each("subtract", shape, square, lost)
        dtype = accumulator(node.dtype)
        share = uniform(rounding_loss(extent, dtype), dtype)
        least = self.let_each("multiply", shape, square, share)
        nothing = self.let_each("less", shape, var, least)
        return self.let_each("where", shape, nothing, uniform(0, dtype), var)

    def _total(self, op: str, value: Tensor, node: expr.Reduce) -> Tensor:
        """Emit a reduction along a node's axes, the same of a value every time."""
        key = value, op, node.axes
        found = self.known(key, lambda: self._folded(op, value, node))
        return replace(found, shape=node.shape)

    def _folded(self, op: str, value: Tensor, node: expr.Reduce) -> Tensor:
        extent = prod([value.shape[axis] for axis in node.axes])
        wide = accumulator(node.dtype)
        if extent == 0:
            return uniform(MONOIDS[op].start, wide, node.shape)
        if not node.of_rows:
            last = range(-len(node.axes), 0)
            numbers = np.moveaxis(numbered(value.shape), node.axes, last)
            kept = numbers.shape[: -len(node.axes)]
            value = self.arrange(value, numbers.reshape(*kept, extent))
        total = self.reduced(MONOIDS[op].combine, value, node.shape)
        if MONOIDS[op].mean:
            count = uniform(extent, wide)
            total = self.let_each("divide", node.shape, total, count)
        return total

    def reduced(self, op: str, value: Tensor, shape: expr.Shape) -> Tensor:
        """Emit a reduction of the last axis, which is gone or 1 in `shape`."""
        extent, count = value.shape[-1], prod(shape)
        if value.same:
            return Tensor(shape, (self._of_one(op, value.vectors[0], extent),), True)
        if lane_axis(value.shape) < len(value.shape) - 1:
            found = []
            for vector in self.checked(shape):
                parts = [
                    self.pick(value, tuple([e * extent + k for e in vector]))
                    for k in range(extent)
                ]
                found.append(self._tree(op, parts))
            return Tensor(shape, tuple(found), count == 1)
        each = -(-extent // self.lanes.width)
        rows = [
            value.vectors[first : first + each]
            for first in range(0, count * each, each)
        ]
        return self.scattered(self.totals(op, rows, extent), shape)

    rules: ClassVar[Mapping[type, Callable[..., Value]]] = {
        expr.Along: _along,
        expr.Apply: _apply,
        expr.Arange: _arange,
        expr.Broadcast: lambda e, node: e.widen(e.tensor(node.arg), node.shape),
        expr.Cast: lambda e, node: e.cast(e.tensor(node.arg), node.dtype),
        expr.Constant: lambda _, node: uniform(node.value, node.dtype),
        expr.Dot: lambda e, node: e.cast(
            e.product(e.wide(node.a), e.wide(node.b), node.shape), node.dtype
        ),
        expr.Gather: _gather,
        expr.Reduce: _reduce,
        expr.Reshape: _reshape,
        expr.Row: _row,
        expr.View: _view,
    }
