"""Emits weights of tensor cores' sums: what is rounded to halves, in few operations."""

from __future__ import annotations

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.expression.expr import Apply, Cast
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Const, Operand
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.gpu_emitter import GpuEmitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.softmax import LOG2_E
from steelyard_kernels.nest.weighing import times as times_of


class Weights(GpuEmitter):
    """Emits weights, which are rounded to halves: with errors far below that."""

    def _value(self, value: Value, at: At) -> Operand:
        node, lanes = value.node, self.lanes(value.axes)
        floats = node.dtype is float32 or node.dtype in HALVES
        if not floats or value.source is not None or value.guards:
            return super()._value(value, at)
        args = list(value.args.values())
        if isinstance(node, Apply) and node.op == "exp":
            power = self.b.let("exp2_approx", self._power(args[0], at, lanes))
            return self._rounded(value, at, power)
        if isinstance(node, Apply) and node.op == "divide":
            x, y = [value.args[arg.number] for arg in node.args]
            if y.axes < x.axes:
                one = const(1, float32, self.lanes(y.axes))
                inverse = self._once("divide", one, (y, at))
                inverse = self.b.splat(inverse, lanes)
                found = self.b.let("multiply", self._wide(x, at, lanes), inverse)
                return self._rounded(value, at, found)
        if isinstance(node, Cast) and _rounds(args[0]):
            (wide,) = args[0].args.values()
            if wide.node.dtype is float32:
                return self.at(wide, at, lanes)
        return super()._value(value, at)

    def _rounded(self, value: Value, at: At, wide: Operand) -> Operand:
        """Emit a value that is known in float32: weights are made of that."""
        self.known[-1]["wide", self.key(value, at)] = wide
        return self.b.cast(wide, value.node.dtype)

    def _wide(self, value: Value, at: At, lanes: int) -> Operand:
        """Emit a value in float32, which may not be rounded to what it is."""
        found = self.found(("wide", self.key(value, at)))
        if found is not None and found.type.lanes == lanes:
            return found
        return self.b.cast(self.at(value, at, lanes), float32)

    def _power(self, value: Value, at: At, lanes: int) -> Operand:
        """Emit the power of two that a power of e is: of a difference, by one rounding."""
        b, log2_e = self.b, const(LOG2_E, float32, lanes)
        args = [value.args[arg.number] for arg in getattr(value.node, "args", ())]
        if (
            getattr(value.node, "op", "") != "subtract"
            or not args[1].axes < args[0].axes
        ):
            return b.let("multiply", self._wide(value, at, lanes), log2_e)
        x, y = args
        times = const(-LOG2_E, float32, self.lanes(y.axes))
        level = self._once("multiply", times, (y, at))
        while getattr(x.node, "op", "") == "where":
            seen, inside, _ = [
                x.args[arg.number] for arg in getattr(x.node, "args", ())
            ]
            if not isinstance(self.found(self.key(seen, at)), Const):
                break
            x = inside
        scaled = times_of(x)
        if scaled is not None and scaled[0].node.dtype is value.node.dtype:
            x, log2_e = scaled[0], const(scaled[1] * LOG2_E, float32, lanes)
        return b.let("fma", self._wide(x, at, lanes), log2_e, b.splat(level, lanes))

    def _once(self, op: str, left: Operand, right: tuple[Value, At]) -> Operand:
        """Emit an operation for all places that one value is of."""
        key = (op, self.key(*right))
        found = self.found(key)
        if found is None:
            value = self._wide(*right, left.type.lanes)
            found = self.known[-1][key] = self.b.let(op, left, value)
        return found


def _rounds(value: Value) -> bool:
    plain = value.source is None and not value.guards
    return plain and isinstance(value.node, Cast) and value.node.dtype in HALVES
