"""Primitives of JAX's that work element by element, and their dtypes' own rules.

Unsigned integers are compared with their signs turned over, and divided in float64,
which is exact for 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.array.value import apply
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.threefry import widened
from steelyard_kernels.from_jax.values import (
    Aval,
    Stack,
    Value,
    array,
    element,
    kind,
    words,
)
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import Op

_TOP: Final = {dtypes.int32: -(1 << 31), dtypes.int64: -(1 << 63)}
"""The integer whose only bit is the sign."""


def _same(row: Op) -> Rule:
    """Return the rule of a primitive that is an operation of ours."""
    return lambda equation: apply(row.name, *equation.arrays())


def _ordered(function: Callable[..., Array]) -> Rule:
    """Return the rule of an order: unsigned integers compare with signs turned over."""

    def rule(equation: Equation) -> Value:
        if kind(equation.inputs[0]) == "bool":
            a, b = (xp.astype(each, "int32") for each in equation.arrays())
            return function(a, b)
        if kind(equation.inputs[0]) != "uint":
            return function(*equation.arrays())
        a, b = (_turned(each) for each in equation.arrays())
        return function(a, b)

    return rule


def _turned(x: Array) -> Array:
    """Return integers in whose order their unsigned readings lie."""
    return xp.bitwise_xor(x, _TOP[x.dtype])


def _extreme(function: Callable[..., Array], of_booleans: Callable[..., Array]) -> Rule:
    """Return the rule of the larger or the smaller one."""

    def rule(equation: Equation) -> Value:
        which = kind(equation.inputs[0])
        if which == "bool":
            return of_booleans(*equation.arrays())
        if which == "uint":
            return _turned(function(*(_turned(each) for each in equation.arrays())))
        return function(*equation.arrays())

    return rule


def _not(equation: Equation) -> Value:
    return ~equation.array(0)


def _inverted(x: Array) -> Array:
    return xp.bitwise_xor(x, -1)


def _divide(equation: Equation) -> Value:
    a, b = equation.arrays()
    if kind(equation.inputs[0]) == "float":
        return xp.divide(a, b)
    return _quotient(equation, a, b)


def _remainder(equation: Equation) -> Value:
    a, b = equation.arrays()
    if kind(equation.inputs[0]) == "float":
        return xp.copysign(xp.remainder(xp.abs(a), xp.abs(b)), a)  # truncated
    return a - _quotient(equation, a, b) * b


def _quotient(equation: Equation, a: Array, b: Array) -> Array:
    """Return a / b rounded to zero, -1 where b is zero, as XLA has it."""
    if a.dtype is not dtypes.int32:
        raise equation.refusal(
            "of 64-bit integers is not supported; convert them to 32 bits"
        )
    unsigned = kind(equation.inputs[0]) == "uint"
    x, y = (
        xp.astype(widened(each) if unsigned else each, "float64") for each in (a, b)
    )
    exact = x / xp.where(y == 0.0, 1.0, y)
    size = xp.floor(xp.abs(exact))
    whole = xp.where(exact < 0.0, xp.negative(size), size)
    return xp.where(b == 0, -1, xp.astype(xp.astype(whole, "int64"), "int32"))


def _sign(equation: Equation) -> Value:
    (x,) = equation.arrays()
    if kind(equation.inputs[0]) == "uint":
        return xp.astype(x != 0, x.dtype)
    return xp.where(x > 0, 1, xp.where(x < 0, -1, x))  # zeros and NaN are themselves


def _absolute(equation: Equation) -> Value:
    (x,) = equation.arrays()
    return x if kind(equation.inputs[0]) == "uint" else xp.abs(x)


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


def _integer_pow(equation: Equation) -> Value:
    return equation.array(0) ** int(equation.params["y"])


def _pow(equation: Equation) -> Value:
    """Return x ** y: of a number y a product or a root where it is one."""
    x, y = equation.array(0), equation.values[1]
    if not isinstance(y, np.generic):
        return xp.pow(x, array(equation.graph, y))
    return xp.sqrt(x) if float(y) == 0.5 else x ** float(y)


def _clamp(equation: Equation) -> Value:
    low, x, high = equation.arrays()
    if kind(equation.inputs[1]) == "uint":
        low, x, high = _turned(low), _turned(x), _turned(high)
        return _turned(xp.minimum(xp.maximum(x, low), high))
    return xp.minimum(xp.maximum(x, low), high)


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
        return Stack(tuple(xp.where(beyond, b, a) for a, b in parts))
    old, new = array(equation.graph, before), array(equation.graph, case)
    return xp.where(beyond, new, old)


def _shift(function: Callable[..., Array]) -> Rule:
    """Return the rule of a shift, which by all bits or more leaves nothing."""

    def rule(equation: Equation) -> Value:
        x, distance = equation.arrays()
        bits = 8 * x.dtype.bytes
        given = equation.values[1]
        if isinstance(given, np.generic):
            return function(x, int(given)) if 0 <= int(given) < bits else x * 0
        inside = xp.logical_and(distance >= 0, distance < bits)
        return xp.where(inside, function(x, xp.where(inside, distance, 0)), 0)

    return rule


def _shift_right_arithmetic(equation: Equation) -> Value:
    """Shift so that the sign stays: of negative numbers what is not set is shifted."""
    x, distance = equation.arrays()
    bits = 8 * x.dtype.bytes
    far = xp.logical_or(distance < 0, distance >= bits)
    distance = xp.where(far, bits - 1, distance)
    shifted = xp.shift_right_logical(xp.where(x < 0, _inverted(x), x), distance)
    return xp.where(x < 0, _inverted(shifted), shifted)


def convert(x: Array, source: Aval, target: Any) -> Array:
    """Return values in another dtype, as JAX converts them."""
    name, to = str(target), element(target)
    if to is dtypes.bool_:
        return x if x.dtype is dtypes.bool_ else xp.not_equal(x, 0)
    came = kind(source)
    if came == "uint":
        return _from_unsigned(x, to)
    if came == "float" and name == "uint32":
        return xp.astype(xp.astype(x, "int64"), "int32")
    if came == "float" and name == "uint64":
        large = x >= 2.0**63
        rest = xp.astype(xp.where(large, x - 2.0**63, x), "int64")
        return xp.where(large, _turned(rest), rest)
    return xp.astype(x, to)


def _from_unsigned(x: Array, to: dtypes.DType) -> Array:
    """Return what bits read as an unsigned integer in another element type."""
    if x.dtype is dtypes.int32:
        return x if to is dtypes.int32 else xp.astype(widened(x), to)
    if to.kind == "int":
        return xp.astype(x, to)
    # halved with its lowest bit kept, which rounds as the whole does
    half = xp.bitwise_or(xp.shift_right_logical(x, 1), xp.bitwise_and(x, 1))
    doubled = xp.astype(half, to) * 2.0
    return xp.where(x < 0, doubled, xp.astype(x, to))


def _convert(equation: Equation) -> Value:
    (source,) = equation.inputs
    return convert(equation.array(0), source, equation.params["new_dtype"])


def _bitcast(equation: Equation) -> Value:
    x, to = equation.array(0), element(equation.params["new_dtype"])
    if to.bytes != x.dtype.bytes:
        raise equation.refusal(
            f"of {equation.inputs[0].dtype} to {equation.params['new_dtype']} changes "
            "the size of elements; only equal sizes are supported"
        )
    return x if to is x.dtype else xp.bitcast(x, to)


def _itself(equation: Equation) -> Value:
    return equation.values[0]


def _square(equation: Equation) -> Value:
    return xp.square(equation.array(0))


def _themselves(equation: Equation) -> tuple[Value, ...]:
    return equation.values


RULES: Final[dict[str, Rule]] = {
    **{row.jax: _same(row) for row in OPERATIONS.values() if row.jax},
    "abs": _absolute,
    "add_any": _same(OPERATIONS["add"]),
    "bitcast_convert_type": _bitcast,
    "clamp": _clamp,
    "convert_element_type": _convert,
    "copy": _itself,
    "device_put": _themselves,
    "div": _divide,
    "ge": _ordered(xp.greater_equal),
    "gt": _ordered(xp.greater),
    "integer_pow": _integer_pow,
    "le": _ordered(xp.less_equal),
    "lt": _ordered(xp.less),
    "max": _extreme(xp.maximum, xp.logical_or),
    "min": _extreme(xp.minimum, xp.logical_and),
    "name": _itself,
    "not": _not,
    "optimization_barrier": _themselves,
    "pow": _pow,
    "rem": _remainder,
    "round": _round,
    "select_n": select_n,
    "shift_left": _shift(xp.bitwise_left_shift),
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _shift(xp.shift_right_logical),
    "sign": _sign,
    "square": _square,
    "stop_gradient": _itself,
}
