"""Accumulators of a row's reductions: what they start from, take in and come to.

Halves accumulate in float32. A row is added up in lanes x unroll partial sums, so
that the error of a sum of n elements is about n / (lanes * unroll) roundings at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Const, Operand
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.schedule.normalization.passes import Sum
from steelyard_kernels.schedule.values import Env, operand
from steelyard_kernels.schedule.variance import residue

# One-pass variance loses the factor 1 + distance**2 / variance to cancellation, where
# distance is that of the mean from the shift. Beyond these shares the row is walked
# again, by whether there is a shift: with the row's first element, in normal data, one
# row in 22 (|z| > 2); without, where the mean is beyond 0.7 standard deviations, so
# that the variance of what is nearly centred costs nothing and loses half a unit.
CANCELLATION: Final = {True: 4.0, False: 0.5}


def _held(item: Sum) -> DType:
    return accumulator(item.arg.dtype)


def neutral(item: Sum, lanes: int) -> tuple[Const, ...]:
    """Return what the accumulators of one sum start from."""
    dtype = _held(item)
    return (const(item.monoid.neutral(dtype), dtype, lanes),) * item.accumulators


def accumulate(
    b: Builder,
    item: Sum,
    env: Env,
    into: Sequence[Operand],
    *,
    shift: Operand | None,
    mask: Operand | None,
) -> tuple[Operand, ...]:
    """Emit taking one vector in; lanes that the mask rules out change nothing."""
    lanes = into[0].type.lanes
    dtype = _held(item)
    start = const(item.monoid.neutral(dtype), dtype, lanes)

    def live(value: Operand) -> Operand:
        return value if mask is None else b.let("where", mask, value, start)

    if item.factors:
        left, right = (operand(b, env, node, lanes) for node in item.factors)
        one = live(left)
        other = one if left is right else live(right)
        return (b.let("fma", one, other, into[0]),)
    value = b.cast(operand(b, env, item.arg, lanes), accumulator(item.arg.dtype))
    if shift is not None:
        value = b.let("subtract", value, shift)
    value = live(b.cast(value, dtype))
    if item.kind != "moments":
        return (b.let(item.monoid.combine, into[0], value),)
    squares = b.let("fma", value, value, into[1])
    return b.let("add", into[0], value), squares


def total(b: Builder, item: Sum, parts: Sequence[Operand]) -> tuple[Operand, ...]:
    """Emit one scalar for each accumulator from those of all unrolled vectors."""
    combine = item.monoid.combine
    return tuple(
        b.let(
            f"reduce_{combine}",
            reduce(
                lambda x, y: b.let(combine, x, y), parts[place :: item.accumulators]
            ),
        )
        for place in range(item.accumulators)
    )


def finish(
    b: Builder,
    item: Sum,
    totals: Sequence[Operand],
    shift: Operand | None,
    extent: int,
) -> dict[str, Operand]:
    """Emit, by the reduction's name, what the totals of a row come to.

    Moments also give "excess", the square of the mean's distance from the shift (None:
    zero), by which `cancelled` judges the variance, and "squares", their mean.
    """
    if item.kind != "moments":
        found = {op: totals[0] for op in item.ops if op != "mean"}
        if "mean" in item.ops:
            share = const(1 / extent, _held(item))
            found["mean"] = b.let("multiply", totals[0], share)
        return found
    dtype = _held(item)
    shift = None if shift is None else b.cast(shift, dtype)
    share = const(1 / extent, dtype)
    distance = b.let("multiply", totals[0], share)
    squares = b.let("multiply", totals[1], share)
    moments: dict[str, Operand] = {
        "mean": distance if shift is None else b.let("add", distance, shift),
        "var": b.let("fma", b.let("negative", distance), distance, squares),
        "excess": b.let("multiply", distance, distance),
        "squares": squares,
    }
    if "sum" in item.ops:
        shifted = (
            b.let("fma", shift, const(extent, dtype), totals[0]) if shift else None
        )
        moments["sum"] = shifted or totals[0]
    return moments


def cancelled(b: Builder, found: Mapping[str, Operand], *, shifted: bool) -> Operand:
    """Emit whether a one-pass variance lost too much, or its squares overflowed."""
    limit = const(CANCELLATION[shifted], found["var"].type.dtype)
    return b.let(
        "logical_not",
        b.let("less", found["excess"], b.let("multiply", found["var"], limit)),
    )


def lasting(b: Builder, found: Mapping[str, Operand], extent: int) -> Operand:
    """Emit a variance about nearly the mean: 0 where it is what rounding left."""
    var = found["var"]
    limit = const(residue(extent, var.type.dtype), var.type.dtype)
    nothing = b.let("less", var, b.let("multiply", found["squares"], limit))
    return b.let("where", nothing, const(0.0, var.type.dtype), var)
