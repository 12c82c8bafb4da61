"""Primitives of JAX's that work element by element, and their dtypes' own rules."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.array.elementwise import truncated, truncated_rest
from steelyard_kernels.array.lines import ranked
from steelyard_kernels.array.value import apply
from steelyard_kernels.from_jax.equation import Equation, Rule, calling
from steelyard_kernels.from_jax.values import Stack, Value, array, element, words
from steelyard_kernels.grad import stop_gradient
from steelyard_kernels.ops import OPERATIONS


def _reduced_precision(equation: Equation) -> Value:
    """Round to so many bits of exponent and mantissa, without denormals, as XLA has it."""
    given = equation.array(0)
    wide = given if given.dtype.bytes > 2 else xp.astype(given, "float32")
    exponent, mantissa = (
        int(equation.params[f"{part}_bits"]) for part in ("exponent", "mantissa")
    )
    own = (8, 23) if wide.dtype.bytes == 4 else (11, 52)
    x = wide
    if mantissa < own[1]:
        bits, cut = xp.bitcast(x, f"int{wide.dtype.bytes * 8}"), own[1] - mantissa
        half = ((bits >> cut) & 1) + ((1 << (cut - 1)) - 1)
        x = xp.bitcast((bits + half) & -(1 << cut), wide.dtype)
    if exponent < own[0]:
        largest = (1 << (exponent - 1)) - 1
        x = xp.where(xp.abs(x) < 2.0 ** (1 - largest), xp.copysign(0.0, x), x)
        x = xp.where(xp.abs(x) >= 2.0 ** (largest + 1), xp.copysign(xp.inf, x), x)
    return xp.astype(xp.where(xp.isnan(wide), wide, x), given.dtype)


def _shifted_signed(equation: Equation) -> Value:
    """Shift to the right; what comes in is the highest bit, of naturals too."""
    x, by = equation.arrays()
    to = dtypes.of(x.dtype.name.removeprefix("u"))
    found = xp.bitwise_right_shift(xp.astype(x, to), xp.astype(by, to))
    beyond = by >= 8 * x.dtype.bytes  # also where that is a negative number
    return xp.astype(xp.where(beyond, xp.astype(x, to) >> 63, found), x.dtype)


def _counted(equation: Equation) -> Value:
    """Return how many bits are set; see Warren, "Hacker's Delight", 5-1."""
    x = equation.array(0)
    return xp.astype(_bits_set(_natural(x)), x.dtype)


def _zeros_ahead(equation: Equation) -> Value:
    """Return how many bits are above the highest one that is set."""
    x = equation.array(0)
    bits = _natural(x)
    for place in range(bits.dtype.bytes.bit_length() + 2):
        bits |= bits >> (1 << place)
    return xp.astype(8 * x.dtype.bytes - _bits_set(bits), x.dtype)


def _natural(x: Array) -> Array:
    """Return an integer's bits as a natural number of 32 bits or 64."""
    bits = xp.astype(x, f"u{x.dtype.name.removeprefix('u')}")
    return bits if x.dtype.bytes == 8 else xp.astype(bits, "uint32")


def _bits_set(x: Array) -> Array:
    every = (1 << 8 * x.dtype.bytes) - 1
    x -= x >> 1 & every // 3
    x = (x & every // 5) + (x >> 2 & every // 5)
    return (x + (x >> 4) & every // 17) * (every // 255) >> 8 * (x.dtype.bytes - 1)


def _divide(equation: Equation) -> Value:
    """Return a quotient, of integers by zero all bits set, as XLA has it."""
    a, b = equation.arrays()
    if a.dtype.kind == "float":
        return xp.divide(a, b)
    return xp.where(b == 0, ~(b * 0), truncated(a, b))


def _round(equation: Equation) -> Value:
    """Round to the nearest integer; halves to even, or away from zero."""
    (x,) = equation.arrays()
    if (
        int(equation.params["rounding_method"]) == 1
    ):  # lax.RoundingMethod.TO_NEAREST_EVEN
        return xp.round(x)
    whole = xp.trunc(x)
    more = xp.abs(x - whole) >= 0.5
    return xp.where(more, whole + xp.copysign(1.0, x), whole)


def _pow(equation: Equation) -> Value:
    """Return x ** y: of a number y a product or a root where it is one."""
    x, y = equation.array(0), equation.values[1]
    if not isinstance(y, np.generic):
        return xp.pow(x, array(equation.graph, y))
    return xp.sqrt(x) if float(y) == 0.5 else x ** float(y)


def select_n(equation: Equation) -> Value:
    """Return for each element the case of its number; keys word by word."""
    which, *cases = equation.values
    first, *others = cases
    chosen: Value = first
    for number, case in enumerate(others):
        chosen = _chosen(equation, which, number, chosen, case)
    return chosen


def _chosen(
    equation: Equation, which: Value, number: int, before: Value, case: Value
) -> Value:
    """Return the case where `which` is beyond a number, else what was before."""
    beyond = array(equation.graph, which)
    if beyond.dtype is not dtypes.bool_:
        beyond = beyond > number
    if (
        isinstance(before, Stack)
        and isinstance(case, Stack)
        and (str(equation.outputs[0].dtype).startswith("key") or not beyond.shape)
    ):
        parts = zip(words(before), words(case), strict=True)
        return Stack(xp.where(beyond, b, a) for a, b in parts)
    old, new = array(equation.graph, before), array(equation.graph, case)
    return xp.where(beyond, new, old)


def _bitcast(equation: Equation) -> Value:
    x, to = equation.array(0), element(equation.params["new_dtype"])
    if to.bytes != x.dtype.bytes:
        raise equation.refusal(
            f"of {equation.inputs[0].dtype} to {equation.params['new_dtype']} changes "
            "the size of elements; only equal sizes are supported"
        )
    return x if to is x.dtype else xp.bitcast(x, to)


RULES: Final[dict[str, Rule]] = {
    **{
        row.jax: calling(partial(apply, row.name))
        for row in OPERATIONS.values()
        if row.jax
    },
    "add_any": calling(xp.add),
    "bitcast_convert_type": _bitcast,
    "clz": _zeros_ahead,
    "clamp": calling(lambda low, x, high: xp.minimum(xp.maximum(x, low), high)),
    "convert_element_type": lambda equation: xp.astype(
        equation.array(0), element(equation.params["new_dtype"])
    ),
    "copy": lambda equation: equation.values[0],
    "device_put": lambda equation: equation.values,
    "digamma": calling(lambda x: xp.where(x == 0, xp.nan, xp.digamma(x))),
    "div": _divide,
    "exp2": calling(lambda x: xp.pow(2.0, x)),
    "integer_pow": calling(pow, "y"),
    "le_to": calling(lambda a, b: ranked(a) <= ranked(b)),
    "lt_to": calling(lambda a, b: ranked(a) < ranked(b)),
    "max": calling(xp.maximum),
    "min": calling(xp.minimum),
    "name": lambda equation: equation.values[0],
    "optimization_barrier": lambda equation: equation.values,
    "population_count": _counted,
    "pow": _pow,
    "reduce_precision": _reduced_precision,
    "rem": calling(truncated_rest),
    "round": _round,
    "select_n": select_n,
    "shift_right_arithmetic": _shifted_signed,
    "square": calling(xp.square),
    "stop_gradient": lambda equation: stop_gradient(*equation.arrays()),
}
