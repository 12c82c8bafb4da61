"""What is a few exact operations: signs, neighbours, remainders, quotients of integers."""

from __future__ import annotations

import math

from steelyard_kernels.dtypes import float32, int32
from steelyard_kernels.ir.functions.floats import Number, where


def all_ones(x: Number) -> Number:
    """Return the constant like x whose bits are all set."""
    return x.number(-1 if x.dtype.signed else x.dtype.largest)


def sign(x: Number) -> Number:
    """Return -1, 0 or 1; zeros and NaN are themselves."""
    if not x.dtype.signed:
        return x.let("minimum", 1)
    below = where(x < 0, -1, x)
    return where(x > 0, 1, below)


def signbit(x: Number) -> Number:
    """Say whether the sign is set, of zeros and NaN too."""
    return x.bits < 0


def tf32(x: Number) -> Number:
    """Return float32 without the last 13 of its bits."""
    return (x.bits & ~0x1FFF).bits


def isnan(x: Number) -> Number:
    """Say whether it is no number."""
    return x != x  # noqa: PLR0124 - NaN


def isinf(x: Number) -> Number:
    """Say whether it is an infinity; no integer is."""
    return isnan(x) if x.dtype.kind == "int" else abs(x) == math.inf


def isfinite(x: Number) -> Number:
    """Say whether it is neither an infinity nor NaN; every integer is."""
    return x == x if x.dtype.kind == "int" else abs(x) < math.inf  # noqa: PLR0124


def nextafter(x: Number, y: Number) -> Number:
    """Return the neighbour of x on the way to y: its bits less or more one."""
    word = x.bits
    outward = (y > x) == (x > 0.0)
    moved = word + where(outward, x.whole(1), -1)
    least = x.whole(1).bits.signed_as(y)
    value = where(x == 0.0, least, moved.bits)
    value = where(x == y, y, value)
    known = (x == x) & (y == y)  # noqa: PLR0124 - NaN
    return where(known, value, math.nan)


def inverses(y: Number) -> tuple[Number, Number, Number]:
    """Return what `quotient` takes of y: a scale, 1 / y over it, and minus 1 / y.

    Where y is so near 0 that it may have no inverse the scale is none, and the last is 0.
    """
    tiny = abs(y) < 2.0 ** (27 - y.bias)
    scale = where(tiny, y.number(2.0 ** (y.bias // 2 + 1)), 1.0)
    inverse = 1.0 / (y * scale)
    return scale, inverse, where(tiny, 0.0, -inverse)


def quotient(
    x: Number, y: Number, scale: Number, inverse: Number, step: Number
) -> Number:
    """Return x / y by the `inverses` of y, within 2**-22 ulp of its rounding.

    What the product with the inverse leaves of x, exactly, is divided once more; of
    infinities that is NaN, and of zeros it has no sign: the product has. For a y below
    2**-100 it stays the product, of 1.5 ulp. P. W. Markstein, "Computation of elementary
    functions on the IBM RISC System/6000 processor", 1990.
    """
    near = x * scale * inverse
    over = near.fma(y, -x)
    found = over.fma(step, near)
    return where(abs(found) > 0.0, found, near)


def shift_right(x: Number, amount: Number) -> Number:
    """Shift so that the sign stays; from the width on it is all that is left."""
    if not x.dtype.signed:
        return x >> amount
    negative, ones = x < 0, all_ones(x)
    moved = where(negative, x ^ ones, x) >> amount
    return where(negative, moved ^ ones, moved)


def floor_divide(x: Number, y: Number) -> Number:
    """Return the largest whole number that is not above x / y; of integers x / 0 is 0."""
    if x.dtype.kind == "int":
        quotient, safe = _divided(x, y)
        if x.dtype.signed:
            rest = x - quotient * safe
            is_minus = y == -1
            quotient = where(is_minus, -x, quotient)
            less = quotient + -1
            quotient = where(_is_opposite(rest, y), less, quotient)
        return where(y == 0, 0, quotient)
    exact = x / y
    whole = exact.let("floor")
    # Rounding to nearest can only have lifted a quotient to that whole number: what is
    # left has the divisor's sign otherwise, which an fma gets right. Of infinity it is NaN.
    rest = (-whole).fma(y, x)
    less = whole - 1.0
    lifted = _are_apart(rest, y) & (rest != 0.0)
    whole = where(lifted, less, whole)
    whole = where(rest == rest, whole, rest)  # noqa: PLR0124 - NaN
    # of an infinite divisor x / y is a zero of its sign, which is rounded down
    size = abs(y)
    down = _are_apart(x, y) & (x != 0.0)
    of_far = where(down, -1.0, exact)
    far = (size == math.inf) & (abs(x) < math.inf)
    whole = where(far, of_far, whole)
    whole = where(whole == 0.0, whole.signed_as(exact), whole)
    return where(y == 0.0, exact, whole)


def _are_apart(x: Number, y: Number) -> Number:
    """Say whether floats have different signs."""
    return (x.bits ^ y.bits) < 0


def remainder(x: Number, y: Number) -> Number:
    """Return x - y floor(x / y), exactly: of the sign of y; of integers by 0 it is 0."""
    if x.dtype.kind == "float":
        return _remainder(x, y)
    quotient, safe = _divided(x, y)
    rest = x - quotient * safe
    if not x.dtype.signed:
        return rest
    return where(_is_opposite(rest, y), rest + y, rest)


def power(x: Number, y: Number) -> Number:
    """Return x**y of integers, by the bits of y from the lowest on; 0 where y < 0."""
    value = where(_is_set(y, 0), x, 1)
    for place in range(1, x.dtype.digits):
        x = x * x
        more = value * x
        value = where(_is_set(y, place), more, value)
    return where(y < 0, 0, value) if x.dtype.signed else value


def _is_set(x: Number, place: int) -> Number:
    """Say whether a bit is set."""
    return (x & 1 << place) != 0


def _divided(x: Number, y: Number) -> tuple[Number, Number]:
    """Return quotient, truncated, and divisor, 1 instead of 0 and -1.

    Integers of one or two bytes are divided in float32: what that rounds is less than
    the distance of a quotient to the next whole number. The lowest bits of a sum with
    3 * 2**22 are the whole number's: LLVM's own conversion takes lane after lane.
    """
    quick = x.dtype.bytes < int32.bytes
    alone = y == 0
    if x.dtype.signed and not quick:
        alone = alone | (y == -1)
    safe = where(alone, 1, y)
    if not quick:
        return x.let("div", safe), safe
    whole = (x.cast(float32) / safe.cast(float32)).let("trunc")
    return (whole + 3 * 2.0**22).bits.cast(x.dtype), safe


def _is_opposite(rest: Number, y: Number) -> Number:
    """Say whether a remainder is not zero and has not the sign of the divisor."""
    return ((rest ^ y) < 0) & (rest != 0)


STEPS = {23: 14, 52: 44}  # mantissa bits: each takes that many off a quotient's


def _remainder(x: Number, y: Number) -> Number:
    """Return the remainder of |x| by |y|, then with the signs.

    x - q y is exact where q is x / y, truncated to a whole number or rounded to a float
    that is one, and a float; quotients beyond a float's digits take a loop.
    """
    b, size, divisor = x.b, abs(x), abs(y)
    quotient = size / divisor
    far = quotient >= 2.0**x.mantissa
    far = far & (divisor > 0.0)
    far = far & (size < math.inf)
    with b.branch(far.let("reduce_bitwise_or").operand, seldom=True) as branch:
        with b.loop(0, STEPS[x.mantissa], 1, size.operand) as loop:
            loop.yields(_step(Number(b, *loop.carried), divisor).operand)
        branch.gives(*loop.results)
        branch.otherwise()
        branch.gives(size.operand)
    left = Number(b, *branch.results)
    whole = (left / divisor).let("floor")
    left = (-whole).fma(divisor, left)
    left = where(left < 0.0, left + divisor, left)  # the quotient was rounded up
    infinite = divisor == math.inf
    finite = size < math.inf
    left = where(infinite & finite, size, left)
    none = left == 0.0
    rest = left.signed_as(x)
    turned = where(_are_apart(x, y), rest + y, rest)
    return where(none, left.signed_as(y), turned)


def _step(size: Number, divisor: Number) -> Number:
    """Take off the divisor as often as a float says that it goes: exact.

    Where that overflows, take off what is so many powers of two larger.
    """
    scale = 2.0 ** (100 if size.is_single else 700)
    for _ in range(2):
        large = abs(size / divisor) == math.inf
        divisor = where(large, divisor * scale, divisor)
    whole = (size / divisor).let("floor")
    return (-whole).fma(divisor, size)
