"""What kernels of one program at several extents have in common: one kernel for all.

They are the same statements, and differ in numbers alone. Each number that differs is a
parameter of the common kernel, whose word follows from the extents by a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import DType, float64, int32
from steelyard_kernels.extents.formulas import Differs, Fitter, Formula, Number, Point
from steelyard_kernels.extents.served import RuntimeSlot
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var
from steelyard_kernels.schedule.parameters import Lowered, Slot

BOUND: Final = "bound"
"""What parameters that follow from extents are named, behind which comes a number."""

# Of what differs without a difference to the result: the one that does for all.
CHOSEN: Final[dict[str, Callable[[Sequence[int]], int]]] = {
    "alignment": min,  # powers of two, 0 where nothing is known
    "chunk": min,
    "shared": max,
}


class Common(Struct, frozen=True):
    """One kernel for all extents, its slots, and how many elements arrays have.

    `counts` must be at least 0. `numbers` are those of all places in order, None where
    they are the same.
    """

    lowered: Lowered
    slots: tuple[RuntimeSlot, ...]
    arrays: dict[str, Formula]
    counts: tuple[Formula, ...]
    numbers: tuple[Number | None, ...]

    def compare(self, first: Lowered, other: Lowered, point: Point) -> None:
        """Raise Differs for a kernel at a point that says another number than this one.

        One of other statements than the `first` is not compared.
        """
        try:
            common([first, other], None)
        except Differs:
            return
        _walked([first, other], _Again(self.numbers, point))


def common(every: Sequence[Lowered], fitter: Fitter | None) -> Common:
    """Return what kernels have in common; raises Differs where it is too little.

    Without a fitter numbers may be any, and only the statements are compared.
    """
    found = _Common(fitter)
    slots, kernel = _walked(every, found)
    behind = len(kernel.parameters) - 1  # the last says what a launch is shared by
    order = *kernel.parameters[:behind], *found.words, *kernel.parameters[behind:]
    kernel = replace(kernel, parameters=order, body=(*found.ahead, *kernel.body))
    slots[behind:behind] = [
        RuntimeSlot(
            Slot("extent", 0, BOUND, "i" if var.type.dtype is int32 else "q"), formula
        )
        for var, formula in zip(found.words, found.formulas, strict=True)
    ]
    shared = max([each.shared for each in every])
    made = replace(every[0], kernel=kernel, slots=(), shared=shared)
    return Common(
        made, tuple(slots), found.arrays, tuple(found.counts), tuple(found.numbers)
    )


def _walked(
    every: Sequence[Lowered], found: _Common
) -> tuple[list[RuntimeSlot], Kernel]:
    if len({len(each.slots) for each in every}) > 1:
        raise Differs("parameters are of several numbers")
    slots = [found.slot(each) for each in zip(*[x.slots for x in every], strict=True)]
    kernel: Kernel = found.one([each.kernel for each in every], "kernel")
    for name in ("threads", "per_block"):
        found.one([getattr(each, name) for each in every], name)
    return slots, kernel


class _Common:
    """Collects the parameters of numbers that differ."""

    def __init__(self, fitter: Fitter | None) -> None:
        self.fitter = fitter
        self.words: list[Var] = []
        self.formulas: list[Formula] = []
        self.ahead: list[ir.Statement] = []
        self.arrays: dict[str, Formula] = {}
        self.numbers: list[Number | None] = []
        self.counts: dict[Formula, None] = {}
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
        elif isinstance(first, ir.Tensor):  # whose extents a launch describes
            every = [replace(each, extents=(), strides=()) for each in every]
        elif isinstance(first, Struct) and not isinstance(first, Type | DType):
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
        for name in kind.__struct_fields__:
            parts = [getattr(each, name) for each in every]
            if kind is Buffer and name == "extent":  # room for the largest
                made.append(max(parts, key=lambda part: part.value))
                self._array(every, [part.value for part in parts])
            else:
                made.append(self.one(parts, name))
        return kind(*made)

    def _array(self, every: Sequence[Buffer], sizes: Sequence[int]) -> None:
        """Take note of how many elements an array has; what is no array has the most."""
        first = every[0]
        if first.space == "global" and first.name not in self.arrays:
            self.arrays[first.name] = self._formula(sizes, first.name)

    def slot(self, every: Sequence[Slot]) -> RuntimeSlot:
        """Return one slot for all."""
        first = every[0]
        if first.tensor is not None:
            tensors = [each.tensor for each in every if each.tensor]
            self.one(tensors, "tensor")
            return RuntimeSlot(
                first,
                Formula(first.index),
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
        return self._number(numbers, name).formula

    def _number(self, seen: Sequence[float], name: str) -> Number:
        """Return a number of the extents, which is none below 0 if it is seen as none."""
        assert self.fitter
        try:
            found = self.fitter.number(seen)
        except Differs as error:
            raise Differs(f"{name}: {error}") from error
        if min(seen) >= 0:
            self.counts[found.formula] = None
        self.numbers.append(found)
        return found

    def _constant(self, every: Sequence[Const], name: str) -> Operand:
        """Return an operand that is a constant's number at all extents."""
        first, values = every[0], [each.value for each in every]
        if any(each.type is not first.type for each in every):
            raise Differs(f"{name} is of several types")
        if self.fitter is None:
            return first
        if len(set(map(repr, values))) == 1:
            self.numbers.append(None)
            return first
        found = self._number(values, name)
        key = found, first.type
        if key not in self._known:
            self._known[key] = self._word(*key)
        return self._known[key]

    def _word(self, number: Number, type_: Type) -> Operand:
        """Return a number of the extents as an operand of a type."""
        formula, unit = number.formula, number.unit
        own, wide = ir.typed(type_.dtype), ir.typed(float64)
        value: Operand = self._parameter(
            formula, own if own.dtype is int32 else ir.INDEX
        )
        if unit != 1:
            value = self._let("cast", wide, value)
            over = Const(float(number.over), wide)
            args = (over, value) if unit == 0 else (value, Const(unit, wide))
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
        self.ahead.append(ir.Let(var, op, args))
        return var


class _Again(_Common):
    """Compares a second kernel with the numbers that were found."""

    def __init__(self, numbers: Sequence[Number | None], point: Point) -> None:
        super().__init__(None)
        self._left, self._point = iter(numbers), point

    def _constant(self, every: Sequence[Const], name: str) -> Operand:
        self._compare([each.value for each in every], name)
        return every[0]

    def _formula(self, numbers: Sequence[int], name: str) -> Formula:
        self._compare(numbers, name)
        return Formula(numbers[0])

    def _compare(self, values: Sequence[float], name: str) -> None:
        known, (first, other) = next(self._left), values
        alike = repr(first) == repr(other)
        if not (known.is_at(self._point, other) if known else alike):
            raise Differs(f"{name} is {other} at extents {self._point}, unlike others")
