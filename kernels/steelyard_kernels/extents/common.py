"""What kernels of one program at several extents have in common: one kernel for all.

They are the same statements, and differ in numbers alone. Each number that differs is a
parameter of the common kernel, whose word follows from the extents by a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import cache
from math import isfinite
from typing import Any, Final

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType, float64, int32
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.extents.formulas import Fitter, Formula, Point
from steelyard_kernels.ir.loops import (
    INDEX,
    Buffer,
    Const,
    Let,
    Operand,
    Statement,
    Tensor,
    Type,
    Var,
    typed,
)
from steelyard_kernels.schedule.parameters import Lowered, Slot

BOUND: Final = "bound"
"""What parameters that follow from extents are named, behind which comes a number."""

# Of what differs without a difference to the result: the one that does for all.
CHOSEN: Final[dict[str, Callable[[Sequence[int]], int]]] = {
    "alignment": min,  # powers of two, 0 where nothing is known
    "chunk": min,
    "shared": max,
}


class Differs(Unsupported):
    """Kernels at several extents that are not the same statements."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that follows from the extents: so many units, a power of two to 1.

    With a `unit` of 0 it is 1 over a formula.
    """

    formula: Formula
    unit: int

    def at(self, point: Point) -> float:
        """Return it at some extents."""
        found = self.formula.at(point)
        return found / self.unit if self.unit else 1 / found


def number_of(
    values: Sequence[float], dtype: DType, fit: Callable[[Sequence[int]], Formula]
) -> Number:
    """Return what values of a dtype at all points are; raises Differs if it is unknown."""
    if not all(map(isfinite, values)):
        raise Differs(f"a number is {values[0]!r} and {values[-1]!r}")
    if all(_is_share(value, dtype) for value in values):
        return Number(fit([round(1 / value) for value in values]), 0)
    exact = [Fraction(value) for value in values]
    unit = max([each.denominator for each in exact])
    return Number(fit([int(each * unit) for each in exact]), unit)


@dataclass(frozen=True, slots=True)
class RuntimeSlot:
    """A slot, and the formulas of what its number or its tensor's extents are."""

    slot: Slot
    index: Formula | None = None
    extents: tuple[Formula, ...] = ()
    strides: tuple[Formula, ...] = ()

    def at(self, point: Point) -> Slot:
        """Return the slot at some extents."""
        if self.slot.tensor is not None:
            sizes = tuple([each.at(point) for each in self.extents])
            steps = tuple([each.at(point) for each in self.strides])
            tensor = replace(self.slot.tensor, extents=sizes, strides=steps)
            return replace(self.slot, tensor=tensor)
        return (
            replace(self.slot, index=self.index.at(point)) if self.index else self.slot
        )


def common(
    every: Sequence[Lowered], fitter: Fitter | None
) -> tuple[Lowered, tuple[RuntimeSlot, ...]]:
    """Return one kernel for all extents, with its slots; raises Differs for none.

    Without a fitter numbers may be any, and only the statements are compared.
    """
    found = _Common(fitter)
    first = every[0]
    slots = [found.slot(each) for each in zip(*[x.slots for x in every], strict=True)]
    kernel = found.one([each.kernel for each in every], "kernel")
    for name in ("threads", "per_block"):
        found.one([getattr(each, name) for each in every], name)
    behind = len(kernel.parameters) - 1  # the last says what a launch is shared by
    order = *kernel.parameters[:behind], *found.words, *kernel.parameters[behind:]
    kernel = replace(kernel, parameters=order, body=(*found.ahead, *kernel.body))
    slots[behind:behind] = [
        RuntimeSlot(Slot("extent", 0, BOUND, _code(var)), formula)
        for var, formula in zip(found.words, found.formulas, strict=True)
    ]
    shared = max([each.shared for each in every])
    return replace(first, kernel=kernel, slots=(), shared=shared), tuple(slots)


def _code(var: Var) -> str:
    return "i" if var.type.dtype is int32 else "q"


class _Common:
    """Collects the parameters of numbers that differ."""

    def __init__(self, fitter: Fitter | None) -> None:
        self.fitter = fitter
        self.words: list[Var] = []
        self.formulas: list[Formula] = []
        self.ahead: list[Statement] = []
        self._known: dict[tuple[Number, Type], Operand] = {}

    def one(self, every: Sequence[Any], name: str) -> Any:
        """Return what stands for all of the same place; `name` is its field's."""
        first = every[0]
        if any(type(each) is not type(first) for each in every):
            raise Differs(f"{name} is of several kinds")
        if isinstance(first, Const):
            return self._constant(every, name)
        if isinstance(first, tuple):
            return self._several(every, name)
        if isinstance(first, Var):
            every = [(each.name, each.type) for each in every]
        elif isinstance(first, Tensor):  # whose extents a launch describes
            every = [replace(each, extents=(), strides=()) for each in every]
        elif is_dataclass(first) and not isinstance(first, Type | DType):
            return self._node(every)
        if all(each == every[0] for each in every[1:]):
            return first
        if name not in CHOSEN:
            raise Differs(f"{name} is {every[0]!r} and {every[-1]!r}")
        return CHOSEN[name](every)

    def _several(self, every: Sequence[tuple[Any, ...]], name: str) -> tuple[Any, ...]:
        if len({len(each) for each in every}) > 1:
            raise Differs(f"{name} are of several numbers")
        return tuple([self.one(each, name) for each in zip(*every, strict=True)])

    def _node(self, every: Sequence[Any]) -> Any:
        kind = type(every[0])
        made = []
        for name in _fields(kind):  # type: ignore[arg-type] # a type has a hash
            parts = [getattr(each, name) for each in every]
            if kind is Buffer and name == "extent":  # room for the largest
                made.append(max(parts, key=lambda part: part.value))
            else:
                made.append(self.one(parts, name))
        return kind(*made)

    def slot(self, every: Sequence[Slot]) -> RuntimeSlot:
        """Return one slot for all."""
        first = every[0]
        if first.tensor is not None:
            tensors = [each.tensor for each in every if each.tensor]
            self.one(tensors, "tensor")
            return RuntimeSlot(
                first,
                None,
                self._formulas([each.extents for each in tensors]),
                self._formulas([each.strides for each in tensors]),
            )
        self.one([replace(each, index=0) for each in every], "slot")
        return RuntimeSlot(first, self._formula([each.index for each in every], "slot"))

    def _formulas(self, every: Sequence[tuple[int, ...]]) -> tuple[Formula, ...]:
        return tuple(
            [self._formula(each, "tensor") for each in zip(*every, strict=True)]
        )

    def _formula(self, numbers: Sequence[int], name: str) -> Formula:
        if self.fitter is None:
            return Formula(numbers[0])
        found = self.fitter.fit(numbers)
        if found is None:
            points = ", ".join(map(str, self.fitter.points))
            raise Differs(f"{name} is {[*numbers]} at extents {points}")
        least = min([found.at(point) for point in self.fitter.checks])
        if least < 0 <= min(numbers):  # what only that many elements have
            raise Differs(f"{name} is {numbers[0]}, and {least} at fewer elements")
        return found

    def _constant(self, every: Sequence[Const], name: str) -> Operand:
        """Return an operand that is a constant's number at all extents."""
        first, values = every[0], [each.value for each in every]
        if any(each.type is not first.type for each in every):
            raise Differs(f"{name} is of several types")
        if len(set(map(repr, values))) == 1:
            return first
        found = number_of(
            values, first.type.dtype, lambda seen: self._formula(seen, name)
        )
        key = found, first.type
        if key not in self._known:
            self._known[key] = self._word(*key)
        return self._known[key]

    def _word(self, number: Number, type_: Type) -> Operand:
        """Return a number of the extents as an operand of a type."""
        formula, unit = number.formula, number.unit
        own, wide = typed(type_.dtype), typed(float64)
        value: Operand = self._parameter(formula, own if own.dtype is int32 else INDEX)
        if unit != 1:
            value = self._let("cast", wide, value)
            args = (
                (Const(1.0, wide), value) if unit == 0 else (value, Const(unit, wide))
            )
            value = self._let("divide", wide, *args)
        if own is not value.type:
            value = self._let("cast", own, value)
        return value if type_ is own else self._let("splat", type_, value)

    def _parameter(self, formula: Formula, type_: Type) -> Var:
        for var, known in zip(self.words, self.formulas, strict=True):
            if known == formula and var.type is type_:
                return var
        self.words.append(Var(f"{BOUND}.{len(self.words)}", type_))
        self.formulas.append(formula)
        return self.words[-1]

    def _let(self, op: str, type_: Type, *args: Operand) -> Var:
        var = Var(f"{BOUND}.of.{len(self.ahead)}", type_)
        self.ahead.append(Let(var, op, args))
        return var


def _is_share(value: float, dtype: DType) -> bool:
    """Say whether a number is one over a whole one, rounded to its dtype."""
    if not 0 < value < 1:
        return False
    share = 1 / round(1 / value)
    return value == share or bool(dtypes.rounded(share, dtype) == value)


@cache
def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple([each.name for each in fields(kind)])
