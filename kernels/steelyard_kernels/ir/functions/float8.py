"""Casts from and to float8, in integer operations: one spelling for every emitter.

The formats are those of ml_dtypes: `e4m3fn` has no infinity and one NaN of each sign,
0x7F, to which also goes what is beyond its largest number; `e5m2` is IEEE 754's.
"""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Const, Operand, typed

BIAS = {8: 127, 5: 15, 4: 7}  # of an exponent by its bits


def cast(b: Statements, x: Operand, target: DType) -> Operand:
    """Return values converted, rounded once; either dtype is a float8."""
    if x.type.dtype in dtypes.STORED:
        return b.cast(_widened(b, x), target)
    if x.type.dtype is dtypes.float64:
        return _narrowed(b, _to_odd(b, x), target)
    # Integers of more than 24 bits, which float32 rounds, are beyond every float8.
    return _narrowed(b, b.cast(x, dtypes.float32), target)


def _widened(b: Statements, x: Operand) -> Operand:
    """Return float8 as float32, exactly."""
    dtype, lanes = x.type.dtype, x.type.lanes
    stored = dtype.digits - 1
    shift, bias = 23 - stored, BIAS[8] - BIAS[7 - stored]

    def whole(value: int) -> Const:
        return Const(value, typed(dtypes.int32, lanes))

    word = b.cast(b.bitcast(x, dtypes.uint8), dtypes.int32)
    size = b.let("bitwise_and", word, whole(0x7F))
    sign = b.let("bitwise_left_shift", b.let("bitwise_xor", word, size), whole(24))
    moved = b.let("bitwise_left_shift", size, whole(shift))
    normal = b.let("add", moved, whole(bias << 23))
    unit = Const(2.0**dtype.least, typed(dtypes.float32, lanes))
    denormal = b.let("bitcast", b.let("multiply", b.cast(size, dtypes.float32), unit))
    value = b.let("where", b.let("less", size, whole(1 << stored)), denormal, normal)
    top = whole(dtypes.bits(dtype.largest, dtype))
    special = b.let("bitwise_or", moved, whole(0x7F800000))
    value = b.let("where", b.let("greater", size, top), special, value)
    return b.let("bitcast", b.let("bitwise_or", value, sign))


def _narrowed(b: Statements, x: Operand, target: DType) -> Operand:
    """Round float32 to float8, to nearest, ties to even."""
    stored = target.digits - 1
    shift, bias = 23 - stored, BIAS[8] - BIAS[7 - stored]
    s = Floats(b, x)
    word = b.let("bitcast", x)
    size = b.let("bitwise_and", word, s.whole(0x7FFFFFFF))
    sign = b.let("shift_right_logical", b.let("bitwise_xor", word, size), s.whole(24))
    # Normal numbers round by their bits, whose carry goes into the exponent.
    even = b.let(
        "bitwise_and", b.let("shift_right_logical", size, s.whole(shift)), s.whole(1)
    )
    up = b.let("add", even, s.whole((1 << shift - 1) - 1 - (bias << 23)))
    normal = b.let("shift_right_logical", b.let("add", size, up), s.whole(shift))
    # Denormal ones are added to a number whose last digit is their unit.
    least = 2.0 ** (target.least + stored)
    anchor = s.number(2.0 ** (target.least + 23))
    lifted = b.let("bitcast", b.let("add", b.let("bitcast", size), anchor))
    denormal = b.let("subtract", lifted, s.whole(s.word_of(anchor.value)))
    small = b.let("less", size, s.whole(s.word_of(least)))
    value = b.let("where", small, denormal, normal)
    if target is dtypes.float8_e4m3fn:  # ties go to the even 448
        nan, beyond = 0x7F, s.whole(s.word_of(464.0))
    else:
        nan, beyond = 0x7E, s.whole(0x7F800000)
        value = b.let("minimum", value, s.whole(0x7C))
    value = b.let("where", b.let("greater", size, beyond), s.whole(nan), value)
    byte = b.cast(b.let("bitwise_or", value, sign), dtypes.uint8)
    return b.bitcast(byte, target)


def _to_odd(b: Statements, x: Operand) -> Operand:
    """Round float64 to float32 so that a second rounding is the only one that shows."""
    near = b.cast(x, dtypes.float32)
    back = b.cast(near, dtypes.float64)
    inexact = b.let("not_equal", back, x)
    above = b.let("greater", b.let("abs", back), b.let("abs", x))
    word = b.let("bitcast", near)
    word = b.let("subtract", word, b.cast(above, dtypes.int32))
    odd = b.let("bitwise_or", word, b.cast(inexact, dtypes.int32))
    known = b.let("equal", x, x)
    return b.let("where", known, b.let("bitcast", odd), near)
