"""Elementwise functions: one value of each element's operands, broadcasting."""

from __future__ import annotations

from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array, Operand, apply
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.elementwise import BITS


def add(a: Operand, b: Operand) -> Array:
    """Return a + b."""
    return apply("add", a, b)


def subtract(a: Operand, b: Operand) -> Array:
    """Return a - b."""
    return apply("subtract", a, b)


def multiply(a: Operand, b: Operand) -> Array:
    """Return a * b."""
    return apply("multiply", a, b)


def divide(a: Operand, b: Operand) -> Array:
    """Return a / b of floating values; integers are an error that says to cast."""
    return apply("divide", a, b)


def maximum(a: Operand, b: Operand) -> Array:
    """Return the larger value; NaN when either is NaN."""
    return apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Array:
    """Return the smaller value; NaN when either is NaN."""
    return apply("minimum", a, b)


def negative(x: Array) -> Array:
    """Return -x."""
    return apply("negative", x)


def abs(x: Array) -> Array:  # noqa: A001 - the array API's name
    """Return the magnitude; the smallest integer stays itself, as in NumPy."""
    return apply("abs", x)


def square(x: Array) -> Array:
    """Return x * x."""
    return apply("multiply", x, x)


def sqrt(x: Array) -> Array:
    """Return the square root; NaN below zero."""
    return apply("sqrt", x)


def rsqrt(x: Array) -> Array:
    """Return 1 / sqrt(x)."""
    return apply("rsqrt", x)


def exp(x: Array) -> Array:
    """Return e ** x."""
    return apply("exp", x)


def log(x: Array) -> Array:
    """Return the natural logarithm."""
    return apply("log", x)


def expm1(x: Array) -> Array:
    """Return e ** x - 1, exact where x is small."""
    return apply("expm1", x)


def log1p(x: Array) -> Array:
    """Return log(1 + x), exact where x is small."""
    return apply("log1p", x)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return apply("tanh", x)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    return apply("softplus", x)


def erf_inv(x: Array) -> Array:
    """Return the value whose error function is x; infinite at -1 and 1."""
    return apply("erf_inv", x)


def erf(x: Array) -> Array:
    """Return the error function."""
    return apply("erf", x)


def sin(x: Array) -> Array:
    """Return the sine of radians; of any size, reduced exactly."""
    return apply("sin", x)


def cos(x: Array) -> Array:
    """Return the cosine of radians; of any size, reduced exactly."""
    return apply("cos", x)


def sinpi(x: Array) -> Array:
    """Return sin(pi x), exact at multiples of 1 / 2."""
    return apply("sinpi", x)


def cospi(x: Array) -> Array:
    """Return cos(pi x), exact at multiples of 1 / 2."""
    return apply("cospi", x)


def floor(x: Array) -> Array:
    """Return the largest whole number that is not above x."""
    return apply("floor", x)


def bitwise_and(a: Operand, b: Operand) -> Array:
    """Return the bits that both integers have; of bools, a and b."""
    return apply("bitwise_and", a, b)


def bitwise_or(a: Operand, b: Operand) -> Array:
    """Return the bits that either integer has; of bools, a or b."""
    return apply("bitwise_or", a, b)


def bitwise_xor(a: Operand, b: Operand) -> Array:
    """Return the bits that one integer has and the other has not; of bools, a != b."""
    return apply("bitwise_xor", a, b)


def bitwise_left_shift(x: Operand, amount: Operand) -> Array:
    """Return an integer's bits `amount` places higher; 0 from its width on."""
    return apply("bitwise_left_shift", x, amount)


def shift_right_logical(x: Operand, amount: Operand) -> Array:
    """Return an integer's bits `amount` places lower, zeros at the top."""
    return apply("shift_right_logical", x, amount)


def multiply_high(a: Operand, b: Operand) -> Array:
    """Return the high 32 bits of the product of two int32 as unsigned numbers."""
    return apply("multiply_high", a, b)


def bitcast(x: Array, dtype: DType | str) -> Array:
    """Return the bits of x as a dtype as wide: float32 and int32, float64 and int64.

    Raises KernelError for any other pair.
    """
    wanted = dtypes.of(dtype)
    if wanted is x.dtype:
        return x.astype(wanted)
    if BITS.get(x.dtype) is not wanted:
        raise KernelError(
            f"{x.graph.kernel}: bitcast of {x.dtype.name} to {wanted.name}, expected "
            "float32 and int32 or float64 and int64; cast to one of them with astype."
        )
    return Array(x.graph, x.graph.apply("bitcast", x.node))


def less(a: Operand, b: Operand) -> Array:
    """Return a < b."""
    return apply("less", a, b)


def less_equal(a: Operand, b: Operand) -> Array:
    """Return a <= b."""
    return apply("less_equal", a, b)


def greater(a: Operand, b: Operand) -> Array:
    """Return a > b."""
    return apply("greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Array:
    """Return a >= b."""
    return apply("greater_equal", a, b)


def equal(a: Operand, b: Operand) -> Array:
    """Return a == b."""
    return apply("equal", a, b)


def not_equal(a: Operand, b: Operand) -> Array:
    """Return a != b; true where either is NaN."""
    return apply("not_equal", a, b)


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


def logical_not(x: Array) -> Array:
    """Return not x of booleans."""
    return apply("logical_not", x)


def where(condition: Operand, a: Operand, b: Operand) -> Array:
    """Return a where the condition holds, else b."""
    return apply("where", condition, a, b, first=1)


def astype(x: Array, dtype: DType | str) -> Array:
    """Return the values rounded to dtype; the result is no longer weak."""
    return x.astype(dtype)
