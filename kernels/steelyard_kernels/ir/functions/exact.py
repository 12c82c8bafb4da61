"""What is a few exact operations: signs, neighbours, remainders, quotients of integers."""

from __future__ import annotations

import math

from steelyard_kernels.dtypes import float32, int32
from steelyard_kernels.ir.functions.floats import Floats, Statements
from steelyard_kernels.ir.loops import Const, Operand


def _like(x: Operand, value: float) -> Const:
    return Const(value, x.type)


def all_ones(x: Operand) -> Const:
    """Return the constant like x whose bits are all set."""
    dtype = x.type.dtype
    return _like(x, -1 if dtype.signed else dtype.largest)


def sign(b: Statements, x: Operand) -> Operand:
    """Return -1, 0 or 1; zeros and NaN are themselves."""
    if not x.type.dtype.signed:
        return b.let("minimum", x, _like(x, 1))
    below = b.let("where", b.let("less", x, _like(x, 0)), _like(x, -1), x)
    return b.let("where", b.let("greater", x, _like(x, 0)), _like(x, 1), below)


def signbit(b: Statements, x: Operand) -> Operand:
    """Say whether the sign is set, of zeros and NaN too."""
    word = b.let("bitcast", x)
    return b.let("less", word, _like(word, 0))


def tf32(b: Statements, x: Operand) -> Operand:
    """Return float32 without the last 13 of its bits."""
    word = b.let("bitcast", x)
    return b.let("bitcast", b.let("bitwise_and", word, _like(word, ~0x1FFF)))


def isnan(b: Statements, x: Operand) -> Operand:
    """Say whether it is no number."""
    return b.let("not_equal", x, x)


def isinf(b: Statements, x: Operand) -> Operand:
    """Say whether it is an infinity; no integer is."""
    if x.type.dtype.kind == "int":
        return b.let("not_equal", x, x)
    return b.let("equal", b.let("abs", x), _like(x, math.inf))


def isfinite(b: Statements, x: Operand) -> Operand:
    """Say whether it is neither an infinity nor NaN; every integer is."""
    if x.type.dtype.kind == "int":
        return b.let("equal", x, x)
    return b.let("less", b.let("abs", x), _like(x, math.inf))


def copysign(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return |x| with the sign of y."""
    return Floats(b, x).signed_as(x, y)


def nextafter(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return the neighbour of x on the way to y: its bits less or more one."""
    s = Floats(b, x)
    zero, word = s.number(0.0), s.as_word(x)
    outward = b.let("equal", b.let("greater", y, x), b.let("greater", x, zero))
    moved = b.let("add", word, b.let("where", outward, s.whole(1), s.whole(-1)))
    least = s.signed_as(b.let("bitcast", s.whole(1)), y)
    value = b.let("where", b.let("equal", x, zero), least, b.let("bitcast", moved))
    value = b.let("where", b.let("equal", x, y), y, value)
    known = b.let("bitwise_and", b.let("equal", x, x), b.let("equal", y, y))
    return b.let("where", known, value, s.number(math.nan))


def inverses(b: Statements, y: Operand) -> tuple[Operand, Operand, Operand]:
    """Return what `quotient` takes of y: a scale, 1 / y over it, and minus 1 / y.

    Where y is so near 0 that it may have no inverse the scale is none, and the last is 0.
    """
    s = Floats(b, y)
    tiny = b.let("less", b.let("abs", y), s.number(2.0 ** (27 - s.bias)))
    scale = b.let("where", tiny, s.number(2.0 ** (s.bias // 2 + 1)), s.number(1.0))
    inverse = b.let("divide", s.number(1.0), b.let("multiply", y, scale))
    step = b.let("where", tiny, s.number(0.0), b.let("negative", inverse))
    return scale, inverse, step


def quotient(
    b: Statements, x: Operand, y: Operand, of_y: tuple[Operand, Operand, Operand]
) -> Operand:
    """Return x / y by the `inverses` of y, within 2**-22 ulp of its rounding.

    What the product with the inverse leaves of x, exactly, is divided once more; of
    infinities that is NaN, and of zeros it has no sign: the product has. For a y below
    2**-100 it stays the product, of 1.5 ulp. P. W. Markstein, "Computation of elementary
    functions on the IBM RISC System/6000 processor", 1990.
    """
    scale, inverse, step = of_y
    near = b.let("multiply", b.let("multiply", x, scale), inverse)
    over = b.let("fma", near, y, b.let("negative", x))
    found = b.let("fma", over, step, near)
    is_there = b.let("greater", b.let("abs", found), Floats(b, x).number(0.0))
    return b.let("where", is_there, found, near)


def shift_right(b: Statements, x: Operand, amount: Operand) -> Operand:
    """Shift so that the sign stays; from the width on it is all that is left."""
    if not x.type.dtype.signed:
        return b.let("shift_right_logical", x, amount)
    negative, ones = b.let("less", x, _like(x, 0)), all_ones(x)
    bits = b.let("where", negative, b.let("bitwise_xor", x, ones), x)
    moved = b.let("shift_right_logical", bits, amount)
    return b.let("where", negative, b.let("bitwise_xor", moved, ones), moved)


def floor_divide(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return the largest whole number that is not above x / y; of integers x / 0 is 0."""
    if x.type.dtype.kind == "int":
        quotient, safe = _divided(b, x, y)
        if x.type.dtype.signed:
            rest = _left(b, x, quotient, safe)
            is_minus = b.let("equal", y, _like(x, -1))
            quotient = b.let("where", is_minus, b.let("negative", x), quotient)
            less = b.let("add", quotient, _like(x, -1))
            quotient = b.let("where", _is_opposite(b, rest, y), less, quotient)
        zero = _like(x, 0)
        return b.let("where", b.let("equal", y, zero), zero, quotient)
    s = Floats(b, x)
    exact = b.let("divide", x, y)
    whole = b.let("floor", exact)
    # Rounding to nearest can only have lifted a quotient to that whole number: what is
    # left has the divisor's sign otherwise, which an fma gets right. Of infinity it is NaN.
    rest = s.fma(b.let("negative", whole), y, x)
    less = b.let("subtract", whole, s.number(1.0))
    signs = b.let(
        "less", b.let("bitwise_xor", s.as_word(rest), s.as_word(y)), s.whole(0)
    )
    lifted = b.let("bitwise_and", signs, b.let("not_equal", rest, s.number(0.0)))
    whole = b.let("where", lifted, less, whole)
    whole = b.let("where", b.let("equal", rest, rest), whole, rest)
    # of an infinite divisor x / y is a zero of its sign, which is rounded down
    size, infinite = b.let("abs", y), s.number(math.inf)
    apart = b.let("less", b.let("bitwise_xor", s.as_word(x), s.as_word(y)), s.whole(0))
    down = b.let("bitwise_and", apart, b.let("not_equal", x, s.number(0.0)))
    of_far = b.let("where", down, s.number(-1.0), exact)
    far = b.let("equal", size, infinite)
    far = b.let("bitwise_and", far, b.let("less", b.let("abs", x), infinite))
    whole = b.let("where", far, of_far, whole)
    whole = b.let(
        "where", b.let("equal", whole, s.number(0.0)), s.signed_as(whole, exact), whole
    )
    return b.let("where", b.let("equal", y, s.number(0.0)), exact, whole)


def remainder(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return x - y floor(x / y), exactly: of the sign of y; of integers by 0 it is 0."""
    if x.type.dtype.kind == "int":
        rest = _left(b, x, *_divided(b, x, y))
        if not x.type.dtype.signed:
            return rest
        return b.let("where", _is_opposite(b, rest, y), b.let("add", rest, y), rest)
    return _remainder(Floats(b, x), x, y)


def power(b: Statements, x: Operand, y: Operand) -> Operand:
    """Return x**y of integers, by the bits of y from the lowest on; 0 where y < 0."""
    zero, value = _like(y, 0), b.let("where", _is_set(b, y, 0), x, _like(x, 1))
    for place in range(1, x.type.dtype.digits):
        x = b.let("multiply", x, x)
        more = b.let("multiply", value, x)
        value = b.let("where", _is_set(b, y, place), more, value)
    if not x.type.dtype.signed:
        return value
    return b.let("where", b.let("less", y, zero), zero, value)


def _is_set(b: Statements, x: Operand, place: int) -> Operand:
    """Say whether a bit is set."""
    bit = b.let("bitwise_and", x, _like(x, 1 << place))
    return b.let("not_equal", bit, _like(x, 0))


def _divided(b: Statements, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Return quotient, truncated, and divisor, 1 instead of 0 and -1.

    Integers of one or two bytes are divided in float32: what that rounds is less than
    the distance of a quotient to the next whole number. The lowest bits of a sum with
    3 * 2**22 are the whole number's: LLVM's own conversion takes lane after lane.
    """
    dtype, one = x.type.dtype, _like(x, 1)
    quick = dtype.bytes < int32.bytes
    alone = b.let("equal", y, _like(x, 0))
    if dtype.signed and not quick:
        alone = b.let("bitwise_or", alone, b.let("equal", y, _like(x, -1)))
    safe = b.let("where", alone, one, y)
    if not quick:
        return b.let("div", x, safe), safe
    exact = b.let("divide", b.cast(x, float32), b.cast(safe, float32))
    whole = b.let("trunc", exact)
    lifted = b.let("add", whole, Const(3 * 2.0**22, whole.type))
    return b.cast(b.let("bitcast", lifted), dtype), safe


def _left(b: Statements, x: Operand, quotient: Operand, safe: Operand) -> Operand:
    return b.let("subtract", x, b.let("multiply", quotient, safe))


def _is_opposite(b: Statements, rest: Operand, y: Operand) -> Operand:
    """Say whether a remainder is not zero and has not the sign of the divisor."""
    zero = _like(y, 0)
    signs = b.let("less", b.let("bitwise_xor", rest, y), zero)
    return b.let("bitwise_and", signs, b.let("not_equal", rest, zero))


STEPS = {23: 14, 52: 44}  # mantissa bits: each takes that many off a quotient's


def _remainder(s: Floats, x: Operand, y: Operand) -> Operand:
    """Return the remainder of |x| by |y|, then with the signs.

    x - q y is exact where q is x / y, truncated to a whole number or rounded to a float
    that is one, and a float; quotients beyond a float's digits take a loop.
    """
    b = s.b
    size, divisor = b.let("abs", x), b.let("abs", y)
    quotient = b.let("divide", size, divisor)
    far = b.let("greater_equal", quotient, s.number(2.0**s.mantissa))
    far = b.let("bitwise_and", far, b.let("greater", divisor, s.number(0.0)))
    far = b.let("bitwise_and", far, b.let("less", size, s.number(math.inf)))
    with b.branch(b.let("reduce_bitwise_or", far), seldom=True) as branch:
        with b.loop(0, STEPS[s.mantissa], 1, size) as loop:
            (left,) = loop.carried
            loop.yields(_step(s, left, divisor))
        branch.gives(*loop.results)
        branch.otherwise()
        branch.gives(size)
    (left,) = branch.results
    whole = b.let("floor", b.let("divide", left, divisor))
    left = s.fma(b.let("negative", whole), divisor, left)
    below = b.let("less", left, s.number(0.0))  # the quotient was rounded up
    left = b.let("where", below, b.let("add", left, divisor), left)
    infinite = b.let("equal", divisor, s.number(math.inf))
    finite = b.let("less", size, s.number(math.inf))
    left = b.let("where", b.let("bitwise_and", infinite, finite), size, left)
    none = b.let("equal", left, s.number(0.0))
    rest = s.signed_as(left, x)
    apart = b.let("less", b.let("bitwise_xor", s.as_word(x), s.as_word(y)), s.whole(0))
    turned = b.let("where", apart, b.let("add", rest, y), rest)
    return b.let("where", none, s.signed_as(left, y), turned)


def _step(s: Floats, size: Operand, divisor: Operand) -> Operand:
    """Take off the divisor as often as a float says that it goes: exact.

    Where that overflows, take off what is so many powers of two larger.
    """
    b = s.b
    scale = s.number(2.0 ** (100 if s.mantissa == 23 else 700))
    for _ in range(2):
        large = b.let(
            "equal", b.let("abs", b.let("divide", size, divisor)), s.number(math.inf)
        )
        divisor = b.let("where", large, b.let("multiply", divisor, scale), divisor)
    whole = b.let("floor", b.let("divide", size, divisor))
    return s.fma(b.let("negative", whole), divisor, size)
