"""Totals of one walk: sums of powers below a largest value that is not known yet.

Each thread's sums are relative to the largest value that it has seen so far, and scaled
where that grows. Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from steelyard_kernels.expression.expr import Reduce
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.weighing import operands_of


class Online(Struct, frozen=True, eq=False):
    """The totals of one walk, the first the largest value `x`, the second its powers' sum.

    Of each of these and the others, `divided` says how often it is divided by that sum.
    """

    totals: tuple[Value, ...]
    divided: tuple[int, ...]

    @property
    def before(self) -> Value:
        """What the largest is found of."""
        return taken(self.totals[0])


def online_of(
    nest: Nest, levels: tuple[tuple[Value, ...], ...], known: Collection[int]
) -> Online | None:
    """Return levels of totals as those of one walk; None if they are not."""
    (largest, *more), *others = levels
    if more or not others or _op(largest) != "max":
        return None
    x, rest = taken(largest), [total for level in others for total in level]
    for total in rest:
        difference = operands_of(taken(total), "exp")
        if difference and operands_of(difference[0], "subtract") == [x, largest]:
            every = [v for v in rest if v is not total]
            kept = {*known, largest.number, total.number}
            power = taken(total)
            counts = [_divided(nest, taken(v), (power, total), kept) for v in every]
            if None in counts or any(_op(v) != "sum" for v in rest):
                return None
            divided = tuple([count for count in counts if count is not None])
            return Online((largest, total, *every), (0, 0, *divided))
    return None


def _divided(
    nest: Nest, value: Value, whole: tuple[Value, Value], known: set[int]
) -> int | None:
    """Return how often a multiple of a power is divided by the powers' sum; None: it is none."""
    power, total = whole
    if value is power:
        return 0
    parts = operands_of(value, "divide")
    if parts and parts[1] is total:
        count = _divided(nest, parts[0], whole, known)
        return None if count is None else count + 1
    parts = operands_of(value, "multiply")
    for part, other in zip(parts, parts[::-1], strict=True):
        count = _divided(nest, part, whole, known)
        below = reached(nest, [other], known - {w.number for w in whole})
        if count is not None and not any(v.over or v is power for v in below):
            return count
    return None


def taken(total: Value) -> Value:
    """Return what a reduction takes in."""
    (value,) = total.args.values()
    return value


def _op(total: Value) -> str:
    return total.node.op if isinstance(total.node, Reduce) else ""
