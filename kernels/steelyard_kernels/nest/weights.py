"""Emits weights of tensor cores' sums: what is rounded to halves, in few operations.

A thread has two rows. Its part of a total is in two lanes, for keys that are even and
odd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.expression.expr import Apply, Cast, Reduce
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Const, Operand
from steelyard_kernels.monoids import MONOIDS, Monoid
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.gpu_emitter import GpuEmitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.softmax import LOG2_E, SHARED
from steelyard_kernels.nest.weighing import times as times_of
from steelyard_kernels.schedule.weighted import Pass, Weighted


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
            if wide.node.dtype is node.dtype:
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


BEGINS = 0, 2  # where a thread's rows begin


class Totals:
    """Emits the totals of one walk."""

    def __init__(self, whole: Weighted, now: Pass, emitter: Emitter) -> None:
        self.whole, self.now, self.emitter = whole, now, emitter
        self.b, self.row = emitter.b, whole.axes[1]
        self.parts = [
            self.b.alloc(f"total_{total.number}", float32, 4, "register")
            for total in now.totals
        ]
        for part, total in zip(self.parts, now.totals, strict=True):
            for half in BEGINS:
                self.b.store(part, half, const(monoid(total).start, float32, 2))

    def take(
        self,
        places: Mapping[At, int],
        inside: Callable[[Operand, At, float], Operand],
        lanes: int,
    ) -> None:
        """Emit that all totals take in what the keys at some places come to.

        `places` are those of a thread's parts; `inside` puts a number for keys that there
        are not.
        """
        now, every = self.now, list(places)
        scales: dict[int, Operand] = {}
        if now.online is not None:
            known = {score.total.number for score in self.whole.scores}
            first = reached(self.whole.nest, [now.online.before], known)
            self.emitter.emit(first, every)
            scales = self.grow(places, inside, lanes)
        self.emitter.emit(now.values, every)
        for k, (total, part) in enumerate(zip(now.totals, self.parts, strict=True)):
            row = monoid(total)
            if scales and k == 0:
                continue
            for half, scale in scales.items():
                before = self.b.load(part, half, 2)
                scaled = self.b.let("multiply", before, self.b.splat(scale, 2))
                self.b.store(part, half, scaled)
            for at, place in places.items():
                value = self.b.cast(self.emitter.at(now.wanted[k], at, lanes), float32)
                value = inside(value, at, row.start)
                before = self.b.load(part, place, lanes)
                self.b.store(part, place, self.b.let(row.combine, before, value))

    def grow(
        self,
        places: Mapping[At, int],
        inside: Callable[[Operand, At, float], Operand],
        lanes: int,
    ) -> dict[int, Operand]:
        """Emit a thread's largest values; return what scales earlier sums, for each row."""
        b, (largest, total, *_), found = self.b, self.now.totals, dict[int, Operand]()
        zero, none = const(0, float32), const(-inf, float32)
        for half in BEGINS:
            every = [at for at in places if 2 * at[self.row] == half]
            most: Operand | None = None
            for at in every:
                wanted = self.emitter.at(self.now.wanted[0], at, lanes)
                value = inside(b.cast(wanted, float32), at, -inf)
                value = value if lanes == 1 else b.let("reduce_maximum", value)
                most = value if most is None else b.let("maximum", most, value)
            assert most is not None
            before = b.load(self.parts[0], half)
            most = b.let("maximum", before, most)
            b.store(self.parts[0], half, most)
            # Of a row that saw no key yet, powers are relative to 0.
            level = b.let("where", b.let("equal", most, none), zero, most)
            found[half] = self.power(b.let("subtract", before, level))
            self.emitter.know(largest, every[0], b.cast(level, largest.node.dtype))
            self.emitter.know(total, every[0], const(1, total.node.dtype))
        return found

    def power(self, difference: Operand) -> Operand:
        """Emit a power of e."""
        times = const(LOG2_E, float32)
        return self.b.let("exp2_approx", self.b.let("multiply", difference, times))

    def finish(self) -> dict[Value, list[Operand]]:
        """Emit what the totals come to for each of a thread's rows."""
        every = zip(self.now.totals, self.parts, strict=True)
        if self.now.online is None:
            return {
                total: [
                    self.shared(monoid(total), self.b.load(part, half, 2))
                    for half in BEGINS
                ]
                for total, part in every
            }
        found: dict[Value, list[Operand]] = {total: [] for total in self.now.totals}
        for half in BEGINS:
            for total, value in zip(found, self.joined(half), strict=True):
                found[total].append(value)
        return found

    def joined(self, half: int) -> Sequence[Operand]:
        """Emit the totals of a row of which each thread has parts below its own largest."""
        b, online = self.b, self.now.online
        assert online is not None
        zero, none = const(0, float32), const(-inf, float32)
        own = b.load(self.parts[0], half)
        most = self.shared(MONOIDS["max"], own)
        level = b.let("where", b.let("equal", most, none), zero, most)
        scale, found = b.splat(self.power(b.let("subtract", own, level)), 2), [most]
        for part, count in zip(self.parts[1:], online.divided[1:], strict=True):
            scaled = b.let("multiply", b.load(part, half, 2), scale)
            value = self.shared(MONOIDS["sum"], scaled)
            for _ in range(count):
                value = b.let("divide", value, found[1])
            found.append(value)
        return found

    def shared(self, row: Monoid, value: Operand) -> Operand:
        """Emit what a total is over a thread's lanes and the four threads of a row."""
        b, op = self.b, row.combine
        found = value if value.type.lanes == 1 else b.let(f"reduce_{op}", value)
        for lane in SHARED:
            found = b.let(op, found, b.let("shuffle_xor", found, b.number(lane)))
        return found


def monoid(total: Value) -> Monoid:
    """Return the reduction that a total is."""
    assert isinstance(total.node, Reduce)
    return MONOIDS[total.node.op]
