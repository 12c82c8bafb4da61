"""JAX's default random generator: Threefry-2x32 with 20 rounds, the same bits as JAX.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC11);
the use of it is that of JAX with `jax_threefry_partitionable`, its default since 0.5:
the word for element i of a draw is the cipher of i under the key.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.expression.expr import Shape
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.from_jax.equation import Equation, Rule, calling
from steelyard_kernels.from_jax.values import Stack, Value, reshape, words

_PARITY: Final = 0x1BD11BDA
_ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Array, Array], x: Array, y: Array) -> tuple[Array, Array]:
    """Return the two words that a key makes of two words; all uint32, broadcasting."""
    parity = xp.bitwise_xor(xp.bitwise_xor(*key), _PARITY)
    schedule = (*key, parity)
    x, y = x + schedule[0], y + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = xp.bitwise_xor(_rotated(y, distance), x)
        x = x + schedule[(group + 1) % 3]
        y = y + (schedule[(group + 2) % 3] + (group + 1))
    return x, y


def _rotated(x: Array, distance: int) -> Array:
    """Return the bits of uint32 turned to the left."""
    return xp.bitwise_or(
        xp.bitwise_left_shift(x, distance), xp.shift_right_logical(x, 32 - distance)
    )


def _drawn(equation: Equation, shape: Shape) -> tuple[Array, Array]:
    """Return two words for every element of a shape, behind the axes of the keys.

    Raises Unsupported where `jax_threefry_partitionable` is off.
    """
    import jax

    config: Any = jax.config
    if not config.jax_threefry_partitionable:
        raise equation.refusal(
            "draws as JAX did before 0.5; set jax_threefry_partitionable to True"
        )
    key = words(equation.values[0])
    more = len(key[0].shape)
    spread = (*key[0].shape, *(1 for _ in shape)) if more else ()
    key = (reshape(key[0], spread), reshape(key[1], spread)) if more else key
    zero = xp.full((), 0, "uint32")
    return threefry(key, zero, _counts(equation.graph, shape))


def _counts(graph: Graph, shape: Shape) -> Array:
    """Return every element's number, in order; axis by axis, so that rows have theirs."""
    count = xp.full((), 0, "uint32")
    for axis, extent in enumerate(shape):
        after = shape[axis + 1 :]
        along = Array(graph, graph.arange(extent, dtypes.uint32))
        along = reshape(along, (extent, *(1 for _ in after)))
        count = count + along * prod(after)
    return xp.broadcast_to(count, shape)


def random_bits(equation: Equation) -> Value:
    """Return bits for a shape: 32 of both words together, or both as 64."""
    width, shape = equation.params["bit_width"], tuple(equation.params["shape"])
    if prod(shape) >= 1 << 31:
        raise equation.refusal(
            f"draws a shape of {shape}; draw fewer than 2**31 at once"
        )
    high, low = _drawn(equation, shape)
    if width == 32:
        return xp.bitwise_xor(high, low)
    if width == 64:
        upper = xp.bitwise_left_shift(xp.astype(high, "uint64"), 32)
        return xp.bitwise_or(upper, xp.astype(low, "uint64"))
    raise equation.refusal(f"draws {width} bits each, 32 and 64 are supported")


def random_split(equation: Equation) -> Value:
    """Return new keys of each key, along new axes."""
    return Stack(_drawn(equation, tuple(equation.params["shape"])))


def random_fold_in(equation: Equation) -> Value:
    """Return the key that a key and a number make."""
    zero = xp.full((), 0, "uint32")
    return Stack(threefry(words(equation.values[0]), zero, equation.array(1)))


def random_seed(equation: Equation) -> Value:
    """Return the key of a seed: its two words, the upper one first."""
    seed = equation.array(0)
    low = xp.astype(seed, "uint32")
    if seed.dtype.bytes < 8:
        return Stack((xp.zeros_like(low), low))
    return Stack((xp.astype(xp.shift_right_logical(seed, 32), "uint32"), low))


def _of_words(equation: Equation) -> Value:
    """Return words as keys, or keys as these: apart until somebody needs them together."""
    return Stack(words(equation.values[0]))


RULES: Final[dict[str, Rule]] = {
    "random_bits": random_bits,
    "random_clone": _of_words,
    "random_fold_in": random_fold_in,
    "random_seed": random_seed,
    "random_split": random_split,
    "random_unwrap": _of_words,
    "random_wrap": _of_words,
    "threefry2x32": calling(lambda a, b, x, y: threefry((a, b), x, y)),
}
