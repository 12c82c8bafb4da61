"""Numbers with operators in the loop IR: what the functions are written in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from steelyard_kernels.dtypes import DType, int32, int64
from steelyard_kernels.ir.loops import Const, Operand, typed

Binary: TypeAlias = "Callable[[Number, Number | float], Number]"


class Statements(Protocol):
    """What functions append their operations to: `ir.builder.Builder`."""

    def let(self, op: str, *args: Operand) -> Operand:
        """Append an operation and return its value."""
        ...

    def cast(self, value: Operand, dtype: DType) -> Operand:
        """Convert every lane."""
        ...

    def bitcast(self, value: Operand, dtype: DType) -> Operand:
        """Read every lane's bits as those of a dtype that is as wide."""
        ...

    def branch(self, condition: Operand, *, seldom: bool = False) -> Any:
        """Open a two-way branch."""
        ...

    def loop(self, start: int, stop: int, step: int, *first: Operand) -> Any:
        """Open a loop that carries values."""
        ...


def _operators(op: str) -> tuple[Binary, Binary]:
    """Return an operation of two numbers, and of these exchanged."""

    def of_both(self: Number, other: Number | float) -> Number:
        right = other.operand if type(other) is Number else self.beside(other)
        return Number(self.b, self.b.let(op, self.operand, right))

    return of_both, lambda self, other: self.number(other).let(op, self)


class Number:
    """An operand with operators, each of which appends a statement.

    Python's numbers beside it are constants of its type; integers wrap. `>>` fills with
    zeros. Of a float or the integer as wide `mantissa` is how many bits a float stores
    behind its exponent, which has a `bias`.
    """

    __slots__ = ("b", "operand")

    def __init__(self, b: Statements, operand: Operand) -> None:
        self.b, self.operand = b, operand

    @property
    def dtype(self) -> DType:
        """The type of every lane."""
        return self.operand.type.dtype

    @property
    def is_single(self) -> bool:
        """Whether it is float32 and not float64, or an integer as wide."""
        return self.dtype.bytes == int32.bytes

    @property
    def mantissa(self) -> int:
        """Bits of a fraction."""
        return 23 if self.is_single else 52

    @property
    def bias(self) -> int:
        """The exponent's bits of 1."""
        return 127 if self.is_single else 1023

    @property
    def magic(self) -> float:
        """What rounds to an integer, in the low bits, when it is added."""
        return 1.5 * 2.0**self.mantissa

    def beside(self, value: Number | float) -> Operand:
        """Return the operand of a number that is used beside this one."""
        if isinstance(value, Number):
            return value.operand
        type_ = self.operand.type
        dtype = type_.dtype
        if dtype.kind == "int" and not dtype.smallest <= value <= dtype.largest:
            least = int(dtype.smallest)
            value = (int(value) - least) % (1 << 8 * dtype.bytes) + least
        return Const(value, type_)

    def number(self, value: float) -> Number:
        """Return a number of the same type, the same in every lane."""
        return Number(self.b, self.beside(value))

    def whole(self, value: int) -> Number:
        """Return an integer as wide as a float, the same in every lane."""
        type_ = typed(int32 if self.is_single else int64, self.operand.type.lanes)
        return Number(self.b, Const(value, type_))

    def word_of(self, value: float) -> int:
        """Return the bits of a float as an integer."""
        codes = ("<i", "<f") if self.is_single else ("<q", "<d")
        (bits,) = struct.unpack(codes[0], struct.pack(codes[1], value))
        return int(bits)

    def let(self, op: str, *others: Number | float) -> Number:
        """Append an operation of it and others, and return the result."""
        args = [x.operand if type(x) is Number else self.beside(x) for x in others]
        return Number(self.b, self.b.let(op, self.operand, *args))

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __lshift__, __rshift__ = (
        _operators(op)[0] for op in ("bitwise_left_shift", "shift_right_logical")
    )
    __and__, __or__, __xor__ = (
        _operators(f"bitwise_{op}")[0] for op in ("and", "or", "xor")
    )
    __lt__, __gt__ = _operators("less")[0], _operators("greater")[0]
    __le__, __ge__ = _operators("less_equal")[0], _operators("greater_equal")[0]

    def __eq__(self, other: Number | float) -> Number:  # type: ignore[override]
        return self.let("equal", other)

    def __ne__(self, other: Number | float) -> Number:  # type: ignore[override]
        return self.let("not_equal", other)

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Number:
        return self.let("negative")

    def __abs__(self) -> Number:
        return self.let("abs")

    @property
    def bits(self) -> Number:
        """The bits of a float as an integer, or what float an integer is the bits of."""
        return self.let("bitcast")

    def bits_as(self, dtype: DType) -> Number:
        """Return its bits as those of a dtype that is as wide."""
        return Number(self.b, self.b.bitcast(self.operand, dtype))

    def cast(self, dtype: DType) -> Number:
        """Return it converted."""
        return Number(self.b, self.b.cast(self.operand, dtype))

    def fma(self, factor: Number | float, addend: Number | float) -> Number:
        """Return self * factor + addend, rounded once."""
        return self.let("fma", factor, addend)

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """Return a polynomial by Horner's scheme, highest power first."""
        value = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            value = value.fma(self, coefficient)
        return value

    def estrin(self, coefficients: Sequence[float]) -> Number:
        """Return a polynomial by Estrin's scheme, highest power first.

        Of n coefficients log2(n) fused operations wait for each other, not n - 1.
        """
        x, values = self, [self.number(c) for c in reversed(coefficients)]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[-1:] if len(values) % 2 else []
            values = [*[high.fma(x, low) for low, high in pairs], *odd]
            if len(values) > 1:
                x = x * x
        return values[0]

    def at_least(self, bound: float) -> Number:
        """Return it, or the bound where it is below; NaN goes through."""
        return where(self < bound, bound, self)

    def at_most(self, bound: float) -> Number:
        """Return it, or the bound where it is above; NaN goes through."""
        return where(self > bound, bound, self)

    def signed_as(self, sign: Number) -> Number:
        """Return its size with the sign of another number."""
        highest = 1 << 8 * self.dtype.bytes - 1
        return (self.bits & (highest - 1) | sign.bits & highest).bits

    def two_to(self, offset: int = 0) -> Number:
        """Return 2**(self + offset), for exponents of normal numbers."""
        return (self + (self.bias + offset)).power

    @property
    def power(self) -> Number:
        """The power of two whose exponent's bits are the lowest of a word."""
        return (self << self.mantissa).bits


def where(condition: Number, a: Number | float, b: Number | float) -> Number:
    """Return a where a condition holds, else b; one of them is no Python number."""
    like = a if isinstance(a, Number) else b
    assert isinstance(like, Number)
    args = condition.operand, like.beside(a), like.beside(b)
    return Number(like.b, like.b.let("where", *args))
