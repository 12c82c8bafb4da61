"""Random numbers by key and counter: the same everywhere, whatever was drawn before.

    from steelyard_kernels import random

    noise = random.normal(key, i)       # of iteration i
    start = random.uniform(key, i, (12,), "float64")

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
3", 2011) gives four words of 32 bits for two words of key and four of counter. Here the
key's words are an int64's low and high ones, the counter's first two those of another
int64; the third numbers blocks of four words within one draw and the last is 0. Bits
and uniform numbers are identical on every target and in the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array.shapes import arange, broadcast_to, extents, reshape
from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Scalar, Shape

Word: TypeAlias = Array | int  # int32, or a number known when the kernel is traced

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
_MASK: Final = 0xFFFFFFFF


def bits(key: Array | int, counter: Array | int, shape: Shape = ()) -> Array:
    """Return random int32, all bits random, of the counter's shape and then `shape`.

    Element e of a draw is word e % 4 of block e // 4. `key` and `counter` are int64,
    scalars or arrays that broadcast. Raises KernelError for others.
    """
    draw = _Draw(key, counter, shape, each=4)
    a, b, c, d = draw.words
    return draw.shaped(draw.choose(2, draw.choose(1, a, b), draw.choose(1, c, d)))


def uniform(
    key: Array | int,
    counter: Array | int,
    shape: Shape = (),
    dtype: DType | str = "float32",
) -> Array:
    """Return numbers in [0, 1): float32 of a word's upper 24 bits, float64 of 53.

    Shapes are as of `bits`; float32's element e is of its word e, float64's of the two
    words from 2 e on, the first one's 27 bits above 26 of the second one.
    """
    wanted = _floating(dtype)
    if wanted is dtypes.float32:
        return _whole((bits(key, counter, shape),)) * 2.0**-24
    draw = _Draw(key, counter, shape, each=2)
    a, b, c, d = draw.words
    pair = draw.choose(1, a, c), draw.choose(1, b, d)
    return draw.shaped(_whole(pair) * 2.0**-53)


def normal(
    key: Array | int,
    counter: Array | int,
    shape: Shape = (),
    dtype: DType | str = "float32",
) -> Array:
    """Return numbers of the standard normal distribution, by Box and Muller.

    Shapes are as of `bits`. Each is within 2 ulp of sqrt(-2 log u) cos(2 pi v), or its
    sine for odd elements, with u in (0, 1] and v in [0, 1) as of `uniform`: none is
    further from 0 than 5.8 (float32) or 8.6 (float64). A block gives four in float32,
    two in float64.
    """
    wanted = _floating(dtype)
    single = wanted is dtypes.float32
    draw = _Draw(key, counter, shape, each=4 if single else 2)
    a, b, c, d = draw.words
    first: tuple[Array, ...] = (a, b)
    second: tuple[Array, ...] = (c, d)
    if single:
        first, second = (draw.choose(2, a, c),), (draw.choose(2, b, d),)
    unit = 2.0**-24 if single else 2.0**-53
    angle = _whole(second) * (2 * unit)
    if isinstance(draw.element, Array):  # a sine is a cosine a quarter turn earlier
        angle = angle - xp.bitwise_and(draw.element, 1).astype(wanted) * 0.5
    square = xp.log((_whole(first) + 1.0) * unit) * -2.0
    # A root is its square times one over it; what its rounding lost is put back. Where
    # the square is 0 so are the root and what it lost.
    inverse = xp.rsqrt(xp.maximum(square, unit))
    root = square * inverse
    lost = (square - root * root) * (inverse * 0.5)
    turn = xp.cospi(angle)
    # A sum of two products is not fused; with 0 added the second is a sum.
    return draw.shaped(root * turn + (lost * turn + 0.0))


def philox(key: Sequence[Word], counter: Sequence[Word]) -> tuple[Array, ...]:
    """Return the four int32 words of Philox4x32-10 for two of key and four of counter.

    At least the first word of the counter is an array.
    """
    k, (a, b, c, d) = tuple(key), counter
    for number in range(ROUNDS):
        if number:
            k = tuple(_sum(word, step) for word, step in zip(k, WEYL, strict=True))
        (high, low), (other_high, other_low) = (
            _product(word, by) for word, by in zip((a, c), MULTIPLIERS, strict=True)
        )
        a, b = _xor(_xor(other_high, b), k[0]), other_low
        c, d = _xor(_xor(high, d), k[1]), low
    return tuple(as_array(word, "philox") for word in (a, b, c, d))


class _Draw:
    """The words of each element of a draw of `shape`, of which a block gives `each`.

    `element` is the elements' numbers; 0, if there is only one.
    """

    __slots__ = ("_shape", "element", "words")

    def __init__(
        self, key: Array | int, counter: Array | int, shape: Shape, *, each: int
    ) -> None:
        numbers = _int64(key, "key"), _int64(counter, "counter")
        self._shape = shape = extents("a random number", shape)
        self.element: Word = 0
        block: Word = 0
        if prod(shape) != 1:
            element = reshape(arange(prod(shape), dtype="int32"), self._shape)
            numbers = _before(numbers[0], len(shape)), _before(numbers[1], len(shape))
            self.element = element
            block = xp.shift_right_logical(element, each.bit_length() - 1)
        (low, high), (first, second) = _halves(numbers[0]), _halves(numbers[1])
        self.words = philox((low, high), (first, second, block, 0))

    def choose(self, bit: int, clear: Array, as_set: Array) -> Array:
        """Return one of two by a bit of the element's number."""
        if not isinstance(self.element, Array):
            return clear
        return xp.where(xp.bitwise_and(self.element, bit) == 0, clear, as_set)

    def shaped(self, values: Array) -> Array:
        """Return the values in the shape that was asked for."""
        if isinstance(self.element, Array) or not self._shape:
            return values
        if not values.shape:
            return broadcast_to(values, self._shape)
        return reshape(values, (*values.shape, *self._shape))


def _int64(value: Array | int, what: str) -> Array:
    array = as_array(value, f"random's {what}")
    if array.dtype.kind != "int":
        raise KernelError(
            f"{array.graph.kernel}: the {what} of a random number is "
            f"{array.dtype.name}, expected int64; cast it with astype."
        )
    return array.astype(dtypes.int64)


def _floating(dtype: DType | str) -> DType:
    wanted = dtypes.of(dtype)
    if wanted not in {dtypes.float32, dtypes.float64}:
        raise KernelError(
            f"random numbers of {wanted.name} are not made, expected float32 or "
            "float64; draw float32 and cast it with astype."
        )
    return wanted


def _before(x: Array, axes: int) -> Array:
    """Return an array with axes of extent 1 behind its own; a scalar needs none."""
    return reshape(x, (*x.shape, *(1,) * axes)) if x.shape else x


def _halves(x: Array) -> tuple[Array, Array]:
    """Return the low and the high word of an int64."""
    high = xp.shift_right_logical(x, 32)
    # What is cast of a scalar itself has to fit.
    low = xp.bitwise_and(x, 0xFFFFFFFF) if isinstance(x.node, Scalar) else x
    return low.astype(dtypes.int32), high.astype(dtypes.int32)


def _whole(words: Sequence[Array]) -> Array:
    """Return the upper 24 bits of one word, or 53 of two, as a float that is whole."""
    if len(words) == 1:
        return xp.shift_right_logical(words[0], 8).astype(dtypes.float32)
    high, low = (
        xp.shift_right_logical(word, by).astype(dtypes.float64)
        for word, by in zip(words, (5, 6), strict=True)
    )
    return high * 2.0**26 + low


def _product(word: Word, by: int) -> tuple[Word, Word]:
    """Return the high and the low word of an unsigned product."""
    if isinstance(word, int):
        whole = (word & _MASK) * by
        return _signed(whole >> 32), _signed(whole)
    return xp.multiply_high(word, _signed(by)), word * _signed(by)


def _sum(word: Word, step: int) -> Word:
    if isinstance(word, int):
        return _signed(word + step)
    return word + _signed(step)


def _xor(a: Word, b: Word) -> Word:
    if isinstance(a, int) and isinstance(b, int):
        return a ^ b
    if isinstance(a, int) or isinstance(b, int):
        word, number = (b, a) if isinstance(a, int) else (a, b)
        return word if number == 0 else xp.bitwise_xor(word, number)
    return xp.bitwise_xor(a, b)


def _signed(word: int) -> int:
    """Return the low 32 bits of a number as an int32."""
    return ((word + (1 << 31)) & _MASK) - (1 << 31)
