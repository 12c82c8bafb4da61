"""ATen's operations that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.array.elementwise import truncated, truncated_rest
from steelyard_kernels.dtypes import DType
from steelyard_kernels.from_torch.call import Row, Site, common, converted


def _of(dtype: Callable[..., DType], function: Callable[..., Array]) -> Row:
    """Return the row of a function of operands in one dtype, of a call and of these."""

    def row(site: Site, *given: Any) -> Array:
        to = dtype(site, given)
        return function(*(converted(x, to) for x in given))

    return row


_same = partial(_of, lambda site, _: site.dtype)
_compared = partial(_of, lambda _, given: common(given))
_logical = partial(_of, lambda *_: dtypes.bool_)


def _made(function: Callable[..., Array]) -> Row:
    """Return the row of several functions of an array, which round halves once."""

    def row(site: Site, x: Array, *given: Any, **keywords: Any) -> Array:
        return function(converted(x, site.wide), *given, **keywords)

    return row


def _scaled(function: Callable[..., Array]) -> Row:
    """Return the row of a function of a and alpha * b."""

    def row(site: Site, a: Any, b: Any, alpha: float = 1) -> Array:
        left, right = (converted(x, site.dtype) for x in (a, b))
        if site.dtype is dtypes.bool_:
            return left | right
        return function(left, right if alpha == 1 else right * alpha)

    return row


def _multiplied(site: Site, a: Any, b: Any) -> Array:
    """Return a product; of a half by a number that may be none, as PyTorch has it."""
    left, right = (converted(x, site.wide) for x in (a, b))
    return left & right if site.dtype is dtypes.bool_ else left * right


def _divided(site: Site, a: Any, b: Any, rounding_mode: str | None = None) -> Array:
    left, right = (converted(x, site.wide) for x in (a, b))
    if rounding_mode == "floor":
        return xp.floor_divide(left, right)
    if site.dtype.kind == "float":
        return xp.trunc(left / right) if rounding_mode else left / right
    return truncated(left, right)


def _power(site: Site, base: Any, exponent: Any) -> Array:
    """Return a power: of a number a product or a root where it is one."""
    x = converted(base, site.dtype)
    if isinstance(exponent, Array):
        by = converted(exponent, site.dtype)
        found = xp.pow(x, by)
        if site.dtype.kind == "float":
            return found
        inverse = xp.logical_and(by < 0, xp.abs(x) == 1)  # the only whole ones
        return xp.where(inverse, xp.where(by % 2 == 0, x * x, x), found)
    roots = {0.5: xp.sqrt, -0.5: xp.rsqrt}
    return roots[exponent](x) if exponent in roots else x**exponent


def _clamped(site: Site, x: Array, min: Any = None, max: Any = None) -> Array:  # noqa: A002 - ATen's names
    low, high = (e if e is None else converted(e, site.dtype) for e in (min, max))
    return xp.clip(converted(x, site.dtype), low, high)


def _chosen(site: Site, condition: Array, a: Any, b: Any) -> Array:
    return xp.where(condition, converted(a, site.dtype), converted(b, site.dtype))


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    """Return x times the normal distribution at x: Hendrycks and Gimpel, 2016."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + xp.tanh(inner))
    return 0.5 * x * (1 + xp.erf(x * math.sqrt(0.5)))


def _rounded(x: Array, *, decimals: int) -> Array:
    """Return the nearest number of so many decimal digits, as PyTorch computes it."""
    unit = 10.0 ** abs(decimals)
    return xp.round(x / unit) * unit if decimals < 0 else xp.round(x * unit) / unit


def _known(function: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    """Return a function of two numbers, which of NaN and another gives the other."""
    return lambda a, b: xp.where(a != a, b, xp.where(b != b, a, function(a, b)))  # noqa: PLR0124 - NaN


def _sign(x: Array) -> Array:
    """Return -1, 0 or 1; 0 of NaN."""
    return xp.subtract((x > 0).astype(x.dtype), (x < 0).astype(x.dtype))


def _elu(x: Array, alpha: float = 1, scale: float = 1, inner: float = 1) -> Array:
    below = alpha * xp.expm1(xp.minimum(x, 0) * inner)
    return scale * xp.where(x > 0, x, below)


def _dropped(site: Site, x: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if train and p:
        raise site.refusal(
            "draws random numbers, expected a model that is used and not trained; call "
            "model.eval() before it is exported"
        )
    return x, xp.full(x.shape, fill_value=True, dtype="bool")


def _leaky(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    noise: Array,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> tuple[Array, Array]:
    _dropped(site, x, 1.0, training)
    given = converted(x, site.wide)
    return xp.where(given > 0, given, given * ((lower + upper) / 2)), noise


_SAME: Final = """
    abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_or
    bitwise_right_shift bitwise_xor ceil copysign cos cosh digamma erf erfc exp expm1
    floor hypot lgamma log
    log10 log1p log2 maximum minimum nextafter reciprocal remainder round rsqrt sigmoid
    sin sinh sqrt tan tanh trunc
"""
"""Functions of the array namespace, under the same name."""

ROWS: Final[dict[str, Row]] = {
    **{name: _same(getattr(xp, name)) for name in _SAME.split()},
    "__lshift__": _same(xp.bitwise_left_shift),
    "__rshift__": _same(xp.bitwise_right_shift),
    "add": _scaled(xp.add),
    "angle": _same(lambda x: xp.where(x < 0, math.pi, xp.where(xp.isnan(x), x, 0))),
    "bitwise_not": _same(xp.bitwise_invert),
    "clamp": _clamped,
    "div": _divided,
    "elu": _made(_elu),
    "eq": _compared(xp.equal),
    "erfinv": _same(xp.erf_inv),
    "exp2": _made(lambda x: xp.pow(2.0, x)),
    "fmax": _same(_known(xp.maximum)),
    "fmin": _same(_known(xp.minimum)),
    "fmod": _same(truncated_rest),
    "ge": _compared(xp.greater_equal),
    "gelu": _made(_gelu),
    "gt": _compared(xp.greater),
    "hardtanh": _made(lambda x, low=-1.0, high=1.0: xp.clip(x, low, high)),
    "isinf": _compared(xp.isinf),
    "isnan": _compared(xp.isnan),
    "ldexp": _same(lambda x, by: x * xp.pow(2.0, by)),
    "le": _compared(xp.less_equal),
    "leaky_relu": _made(lambda x, slope=0.01: xp.where(x > 0, x, x * slope)),
    "logical_and": _logical(xp.logical_and),
    "logical_not": _logical(xp.logical_not),
    "logical_or": _logical(xp.logical_or),
    "logical_xor": _logical(xp.logical_xor),
    "lt": _compared(xp.less),
    "mul": _multiplied,
    "native_dropout": _dropped,
    "ne": _compared(xp.not_equal),
    "neg": _same(xp.negative),
    "pow": _power,
    "relu": _made(lambda x: xp.maximum(x, 0)),
    "rrelu_with_noise_functional": _leaky,
    "round.decimals": _made(_rounded),
    "sign": _made(_sign),
    "signbit": _compared(lambda x: xp.signbit(x) if x.dtype.kind == "float" else x < 0),
    "sub": _scaled(xp.subtract),
    "where": _chosen,
}
