"""Walking an axis by vectors: unrolled, then single, then one masked tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Operand

Carried: TypeAlias = tuple[Operand, ...]

# body(at, vectors, mask, carried) emits so many vectors from element `at` on and
# returns what it carries on; under a mask it is one vector.
Body: TypeAlias = Callable[[Operand, int, Operand | None, Carried], Carried]


def tile_constant(
    b: Builder,
    extent: int,
    step: tuple[int, int],
    body: Body,
    first: Carried,
    *,
    positive: Operand,
) -> Carried:
    """Emit a walk over [0, extent) for a constant extent; returns what is carried.

    `step` is (lanes, vectors an iteration), `positive` any number that only the launch
    knows and that is never below 1.
    """
    lanes, unroll = step
    whole = extent // (lanes * unroll) * (lanes * unroll)
    carried = first
    if whole:
        with b.loop(0, whole, lanes * unroll, *carried) as loop:
            loop.yields(*body(loop.var, unroll, None, loop.carried))
        carried = loop.results
    rest, tail = divmod(extent - whole, lanes)
    if rest:
        carried = body(b.at("add", whole, 0), rest, None, carried)
    if tail:
        # LLVM 22 stores a truncated value whole under a constant mask of one lane (four
        # bytes of a bfloat16): such a mask must not look constant.
        live = b.at("minimum", positive, 1) if tail == 1 else tail
        mask = b.mask_below(live, lanes)
        carried = body(b.at("add", extent - tail, 0), 1, mask, carried)
    return carried


def tile_runtime(
    b: Builder,
    low: Operand,
    high: Operand,
    step: tuple[int, int],
    body: Body,
    *,
    whole: bool = False,
) -> None:
    """Emit a walk over [low, high) for bounds that only the launch knows.

    `whole`: all bounds are known to be multiples of an iteration's elements.
    """
    lanes, unroll = step
    if whole:
        with b.loop(low, high, lanes * unroll) as loop:
            body(loop.var, unroll, None, ())
        return
    size: Operand = high
    if lanes * unroll > 1:
        size = b.at("subtract", high, low)
    vectors = _multiple(b, low, size, lanes) if lanes > 1 else high
    at = low
    if unroll > 1:
        at = _multiple(b, low, size, lanes * unroll)
        with b.loop(low, at, lanes * unroll) as loop:
            body(loop.var, unroll, None, ())
    with b.loop(at, vectors, lanes) as loop:
        body(loop.var, 1, None, ())
    if lanes > 1:
        with b.branch(b.let("less", vectors, high)):
            mask = b.mask_below(b.at("subtract", high, vectors), lanes)
            body(vectors, 1, mask, ())


def _multiple(b: Builder, low: Operand, size: Operand, step: int) -> Operand:
    """Emit low + size rounded down to a multiple of step."""
    return b.at("add", low, b.at("multiply", b.at("div", size, step), step))
