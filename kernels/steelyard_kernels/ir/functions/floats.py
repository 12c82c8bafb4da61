"""Arithmetic on one float type in the loop IR: what the functions are written in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Protocol

from steelyard_kernels.dtypes import DType, float32, int32, int64
from steelyard_kernels.ir.loops import Const, Operand, typed


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


class Floats:
    """What is done to values of x's type, float32 or float64; an integer is as wide."""

    __slots__ = ("b", "bias", "dtype", "integer", "lanes", "mantissa")

    def __init__(self, b: Statements, x: Operand) -> None:
        self.b = b
        self.dtype, self.lanes = x.type.dtype, x.type.lanes
        single = self.dtype is float32
        self.integer = int32 if single else int64
        self.mantissa = 23 if single else 52  # stored bits
        self.bias = 127 if single else 1023

    def number(self, value: float) -> Const:
        """Return a float, the same in every lane."""
        return Const(value, typed(self.dtype, self.lanes))

    def whole(self, value: int) -> Const:
        """Return an integer of the float's width, the same in every lane; it wraps."""
        width = 8 * self.integer.bytes
        signed = (value + (1 << width - 1)) % (1 << width) - (1 << width - 1)
        return Const(signed, typed(self.integer, self.lanes))

    def word_of(self, value: float) -> int:
        """Return the bits of a float as an integer."""
        codes = ("<i", "<f") if self.dtype is float32 else ("<q", "<d")
        (bits,) = struct.unpack(codes[0], struct.pack(codes[1], value))
        return int(bits)

    def as_word(self, x: Operand) -> Operand:
        """Return the bits of a value."""
        return self.b.let("bitcast", x)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Operand:
        """Return a * b + c, rounded once."""
        return self.b.let("fma", a, b, c)

    def polynomial(self, x: Operand, coefficients: Sequence[float]) -> Operand:
        """Return a polynomial by Horner's scheme, highest power first."""
        value: Operand = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.number(coefficient))
        return value

    def estrin(self, x: Operand, coefficients: Sequence[float]) -> Operand:
        """Return a polynomial by Estrin's scheme, highest power first.

        Of n coefficients log2(n) fused operations wait for each other, not n - 1.
        """
        values: list[Operand] = [self.number(c) for c in reversed(coefficients)]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            odd = values[-1:] if len(values) % 2 else []
            values = [*[self.fma(high, x, low) for low, high in pairs], *odd]
            if len(values) > 1:
                x = self.b.let("multiply", x, x)
        return values[0]

    def at_least(self, x: Operand, bound: float) -> Operand:
        """Return x, or the bound where x is below; NaN goes through."""
        low = self.number(bound)
        return self.b.let("where", self.b.let("less", x, low), low, x)

    def at_most(self, x: Operand, bound: float) -> Operand:
        """Return x, or the bound where x is above; NaN goes through."""
        high = self.number(bound)
        return self.b.let("where", self.b.let("greater", x, high), high, x)

    def signed_as(self, x: Operand, sign: Operand) -> Operand:
        """Return |x| with the sign of another value."""
        b, highest = self.b, 8 * self.dtype.bytes - 1
        size = b.let("bitwise_and", self.as_word(x), self.whole((1 << highest) - 1))
        bit = b.let("bitwise_and", self.as_word(sign), self.whole(1 << highest))
        return b.let("bitcast", b.let("bitwise_or", size, bit))

    def two_to(self, exponent: Operand, offset: int = 0) -> Operand:
        """Return 2**(exponent + offset), for exponents of normal numbers."""
        return self.power(self.b.let("add", exponent, self.whole(self.bias + offset)))

    def power(self, biased: Operand) -> Operand:
        """Return the power of two whose exponent's bits are the lowest of a word."""
        place = self.whole(self.mantissa)
        return self.b.let("bitcast", self.b.let("bitwise_left_shift", biased, place))
