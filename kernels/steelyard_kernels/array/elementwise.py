"""Elementwise functions: one value of each element's operands, broadcasting.

Every row of `ops.OPERATIONS` is a function here, of as many operands as it has; the
others are made of those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array, Operand, apply, as_array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.ops.row import SAME_WIDTH, Op


@cache
def function_of(row: Op) -> Callable[..., Array]:
    """Return the function of a row of the table."""

    def function(*operands: Operand) -> Array:
        if len(operands) != row.arity:
            raise KernelError(
                f"{row.name} got {len(operands)} operands, expected {row.arity}; "
                "combine more of them two by two."
            )
        return apply(row.name, *operands, first=int(row.name == "where"))

    function.__name__ = function.__qualname__ = row.name
    function.__doc__ = row.doc
    names = ("x",) if row.arity == 1 else ("a", "b", "c")[: row.arity]
    positional = [Parameter(each, Parameter.POSITIONAL_ONLY) for each in names]
    function.__signature__ = Signature(positional)  # type: ignore[attr-defined]
    return function


def square(x: Array) -> Array:
    """Return x * x."""
    return apply("multiply", x, x)


def bitcast(x: Array, dtype: DType | str) -> Array:
    """Return the bits of x as a dtype as wide: integers, float32 and float64.

    Raises KernelError for any other pair.
    """
    x = as_array(x, "bitcast")
    wanted, narrow = dtypes.of(dtype), (*dtypes.HALVES, *dtypes.STORED, dtypes.bool_)
    if wanted is x.dtype:
        return x.astype(wanted)
    if wanted.bytes != x.dtype.bytes or {wanted, x.dtype}.intersection(narrow):
        raise KernelError(
            f"{x.graph.kernel}: bitcast of {x.dtype.name} to {wanted.name}, expected two "
            "of as many bytes: integers, float32 or float64; cast with astype."
        )
    if wanted.kind == x.dtype.kind == "int":
        return x.astype(wanted)
    if x.dtype.kind == "int":
        x = x.astype(SAME_WIDTH[wanted])
    return Array(x.graph, x.graph.apply("bitcast", x.node)).astype(wanted)


def reciprocal(x: Array) -> Array:
    """Return 1 / x."""
    return apply("divide", 1.0, x)


def positive(x: Array) -> Array:
    """Return x."""
    return x


def clip(x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:  # noqa: A002 - the array API's names
    """Return the values, those outside of [min, max] replaced by its ends; NaN stays."""
    if min is not None:
        x = apply("maximum", x, min)
    return x if max is None else apply("minimum", x, max)


def truncated(a: Array, b: Array) -> Array:
    """Return a / b of integers, rounded to zero; b is not 0."""
    whole = apply("floor_divide", a, b)
    if not whole.dtype.signed:
        return whole
    below = ((a < 0) != (b < 0)) & (whole * b != a)
    return whole + below.astype(whole.dtype)


def truncated_rest(a: Array, b: Array) -> Array:
    """Return what a division that is rounded to zero leaves; of integers by 0 it is a."""
    if a.dtype.kind == "float":
        return apply("copysign", apply("remainder", abs(a), abs(b)), a)
    return a - truncated(a, b) * b


def logical_xor(a: Operand, b: Operand) -> Array:
    """Return a or b of booleans, not both."""
    return _logical("xor", a, b)


def logical_and(a: Operand, b: Operand) -> Array:
    """Return a and b of booleans."""
    return _logical("and", a, b)


def logical_or(a: Operand, b: Operand) -> Array:
    """Return a or b of booleans."""
    return _logical("or", a, b)


def _logical(op: str, a: Operand, b: Operand) -> Array:
    for x in (a, b):
        if isinstance(x, Array) and x.dtype.kind != "bool":
            raise KernelError(
                f"{x.graph.kernel}: logical_{op} of {x.dtype.name} is not defined, "
                "expected bool; compare first, for example x != 0."
            )
    return apply(f"bitwise_{op}", a, b)


def astype(x: Array, dtype: DType | str, *, copy: bool = True) -> Array:
    """Return the values rounded to dtype; the result is no longer weak.

    No value changes, so that a copy is the same.
    """
    del copy
    return as_array(x, "astype").astype(dtype)
