"""Casts from and to float8, in integer operations: one spelling for every emitter.

The formats are those of ml_dtypes: `e4m3fn` has no infinity and one NaN of each sign,
0x7F, to which also goes what is beyond its largest number; `e5m2` is IEEE 754's.
"""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.functions.floats import Number, where

BIAS = {8: 127, 5: 15, 4: 7}  # of an exponent by its bits


def cast(x: Number, target: DType) -> Number:
    """Return values converted, rounded once; either dtype is a float8."""
    if x.dtype in dtypes.STORED:
        return _widened(x).cast(target)
    if x.dtype is dtypes.float64:
        return _narrowed(_to_odd(x), target)
    # Integers of more than 24 bits, which float32 rounds, are beyond every float8.
    return _narrowed(x.cast(dtypes.float32), target)


def _widened(x: Number) -> Number:
    """Return float8 as float32, exactly."""
    dtype = x.dtype
    stored = dtype.digits - 1
    shift, bias = 23 - stored, BIAS[8] - BIAS[7 - stored]
    word = x.bits_as(dtypes.uint8).cast(dtypes.int32)
    size = word & 0x7F
    sign = (word ^ size) << 24
    moved = size << shift
    normal = moved + (bias << 23)
    denormal = (size.cast(dtypes.float32) * 2.0**dtype.least).bits
    value = where(size < 1 << stored, denormal, normal)
    special = moved | 0x7F800000
    value = where(size > dtypes.bits(dtype.largest, dtype), special, value)
    return (value | sign).bits


def _narrowed(x: Number, target: DType) -> Number:
    """Round float32 to float8, to nearest, ties to even."""
    stored = target.digits - 1
    shift, bias = 23 - stored, BIAS[8] - BIAS[7 - stored]
    word = x.bits
    size = word & 0x7FFFFFFF
    sign = (word ^ size) >> 24
    # Normal numbers round by their bits, whose carry goes into the exponent.
    even = size >> shift & 1
    up = even + ((1 << shift - 1) - 1 - (bias << 23))
    normal = (size + up) >> shift
    # Denormal ones are added to a number whose last digit is their unit.
    least = 2.0 ** (target.least + stored)
    anchor = 2.0 ** (target.least + 23)
    denormal = (size.bits + anchor).bits - x.word_of(anchor)
    value = where(size < x.word_of(least), denormal, normal)
    if target is dtypes.float8_e4m3fn:  # ties go to the even 448
        nan, beyond = 0x7F, x.word_of(464.0)
    else:
        nan, beyond = 0x7E, 0x7F800000
        value = value.let("minimum", 0x7C)
    value = where(size > beyond, nan, value)
    return (value | sign).cast(dtypes.uint8).bits_as(target)


def _to_odd(x: Number) -> Number:
    """Round float64 to float32 so that a second rounding is the only one that shows."""
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    inexact = back != x
    above = abs(back) > abs(x)
    word = near.bits - above.cast(dtypes.int32)
    odd = word | inexact.cast(dtypes.int32)
    known = x == x  # noqa: PLR0124 - NaN
    return where(known, odd.bits, near)
