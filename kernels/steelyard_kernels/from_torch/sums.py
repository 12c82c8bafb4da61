"""ATen's reductions, products, convolutions and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod, sqrt
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.from_torch.call import Row, Site, converted, wide


def _reduced(function: Callable[..., Array], **fixed: Any) -> Row:
    """Return the row of a reduction of values, over all axes where none is named."""

    def row(
        site: Site, x: Array, dim: Any = None, keepdim: bool = False, **_: Any
    ) -> Array:
        given = converted(x, site.wide)
        axis = None if dim == () else dim
        return function(given, axis=axis, keepdims=keepdim, **fixed)

    return row


def _running(function: Callable[..., Array]) -> Row:
    """Return the row of a running total."""
    return lambda site, x, axis, **_: function(converted(x, site.wide), axis=axis)


def _found(function: Callable[..., Array]) -> Row:
    """Return the row of what a reduction says of values: a truth, a place."""
    return lambda _, x, dim=None, keepdim=False: function(x, axis=dim, keepdims=keepdim)


def _with_places(value: Callable[..., Array], place: Callable[..., Array]) -> Row:
    """Return the row of an extremum along an axis, and of where it is."""
    return lambda site, *given: (
        _found(value)(site, *given),
        _found(place)(site, *given),
    )


def _variance(
    site: Site, x: Array, *given: Any, correction: float | None = None, **named: Any
) -> Array:
    """Return the variance; infinite, as in PyTorch, where the correction leaves none."""
    by = 1 if correction is None else correction
    none_left = 0 < prod(x.shape) <= by * prod(site.shape)
    fixed = {} if none_left else {"correction": by}
    found: Array = _reduced(xp.var, **fixed)(site, x, *given, **named)
    return found * xp.inf if none_left else found


def _product(_: Site, a: Array, b: Array) -> Array:
    return xp.matmul(a, b)


def _affine(
    site: Site, bias: Any, a: Array, b: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    """Return a @ b + bias, in which sums of halves are rounded once, behind it."""
    found = xp.matmul(a.astype(site.wide), b.astype(site.wide))
    found = found if alpha == 1 else found * alpha
    if bias is not None and beta:  # of 0 PyTorch reads no bias
        term = bias.astype(site.wide)
        found = found + (term if beta == 1 else term * beta)
    return found


def _linear(site: Site, x: Array, weight: Array, bias: Array | None = None) -> Array:
    return _affine(site, bias, x, weight.T)


def _total(site: Site, bias: Array, a: Array, b: Array, **how: float) -> Array:
    """Return the sum of the products of pairs of matrices, plus bias."""
    rows = xp.reshape(xp.moveaxis(a, 0, 1), (a.shape[1], -1))
    return _affine(site, bias, rows, xp.reshape(b, (-1, b.shape[2])), **how)


def _apart(site: Site, a: Array, b: Array, p: float, *_: Any) -> Array:
    """Return the p-norms of the differences of all rows of a and all of b."""
    a, b = (converted(x, site.wide) for x in (a, b))
    sizes = xp.abs(a[..., :, None, :] - b[..., None, :, :])
    if p in {0, 1}:
        return xp.sum(sizes if p else (sizes != 0).astype(site.wide), axis=-1)
    if p == inf:
        return xp.max(sizes, axis=-1)
    return xp.pow(xp.sum(sizes**p, axis=-1), 1 / p)


def _together(site: Site, a: Array, b: Array, c: Array, *how: Any) -> Array:
    """Return sums of products of three arrays, to which axes of one element are added."""
    *added, over = how[:4]
    factors = []
    for x, axes in zip((a, b, c), added, strict=True):
        wide = converted(x, site.wide)
        for axis in axes:
            wide = xp.expand_dims(wide, axis)
        factors.append(wide)
    return xp.sum(factors[0] * factors[1] * factors[2], axis=tuple(over))


def _convolution(site: Site, x: Array, weight: Array, bias: Any, *how: Any) -> Array:
    *lists, transposed, output_padding, groups = how
    rank = weight.ndim - 2
    names = "stride", "padding", "dilation", *["output_padding"] * transposed
    every = (each * (rank // len(each)) for each in (*lists, output_padding))
    keywords: dict[str, Any] = dict(zip(names, every, strict=False))
    given = (e if e is None else e.astype(site.wide) for e in (x, weight, bias))
    function = getattr(xp, f"conv{'_transpose' * transposed}{rank}d")
    found: Array = function(*given, groups=groups, **keywords)
    return found


def _filled(given: Sequence[Any], *defaults: Any) -> tuple[Any, ...]:
    """Return as many arguments as there are defaults, which stand for those missing."""
    return (*given, *defaults[len(given) :])[: len(defaults)]


def _weights(x: Array, dim: int, *, safe: bool = False) -> Array:
    """Return the softmax along an axis; safe: zeros, not NaN, of nothing but -inf.

    The sum of any other row is at least 1, which its largest value is weighed by.
    """
    most = xp.max(x, axis=dim, keepdims=True)
    most = xp.maximum(most, xp.finfo(x.dtype).min) if safe else most
    powers = xp.exp(x - most)
    total = xp.sum(powers, axis=dim, keepdims=True)
    return powers / (xp.maximum(total, 1.0) if safe else total)


def _log_softmax(site: Site, x: Array, dim: int, *_: Any) -> Array:
    given = converted(x, site.wide)
    shifted = given - xp.max(given, axis=dim, keepdims=True)
    total = xp.sum(xp.exp(shifted), axis=dim, keepdims=True)
    return shifted - xp.log(total)


def _attention(
    site: Site,
    *given: Any,
    scale: float | None = None,
    enable_gqa: bool = False,
    **named: Any,
) -> Array:
    """Return softmax(q @ k.T * scale + mask) @ v; scores of halves are in float32."""
    q, k, v, *rest = given
    mask, dropout, causal = _filled(rest, None, 0.0, False)
    mask, causal = named.get("attn_mask", mask), named.get("is_causal", causal)
    if named.get("dropout_p", dropout):
        raise site.refusal("draws random numbers; call model.eval() first")
    if enable_gqa:
        k, v = (xp.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    inner = wide(q.dtype)
    scores = xp.matmul(q.astype(inner), k.astype(inner).mT)
    scores = scores * (1 / sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        seen = xp.arange(q.shape[-2])[:, None] >= xp.arange(k.shape[-2])
        scores = xp.where(seen, scores, -xp.inf)
    elif mask is not None and mask.dtype is dtypes.bool_:
        scores = xp.where(mask, scores, -xp.inf)
    elif mask is not None:
        scores = scores + mask.astype(inner)
    return xp.matmul(_weights(scores, -1, safe=mask is not None).astype(q.dtype), v)


ROWS: Final[dict[str, Row]] = {
    "_cdist_forward": _apart,
    "_log_softmax": _log_softmax,
    "_softmax": lambda site, x, dim, *_: _weights(converted(x, site.wide), dim),
    "_trilinear": _together,
    "addbmm": _total,
    "addmm": _affine,
    "amax": _reduced(xp.max),
    "amin": _reduced(xp.min),
    "any": _found(xp.any),
    "argmax": _found(xp.argmax),
    "argmin": _found(xp.argmin),
    "bmm": _product,
    "convolution": _convolution,
    "cumprod": _running(xp.cumulative_prod),
    "cumsum": _running(xp.cumulative_sum),
    "linear": _linear,
    "logcumsumexp": _running(xp.cumulative_logsumexp),
    "matmul": _product,
    "max": _reduced(xp.max),
    "max.dim": _with_places(xp.max, xp.argmax),
    "mean": _reduced(xp.mean),
    "min": _reduced(xp.min),
    "min.dim": _with_places(xp.min, xp.argmin),
    "mm": _product,
    "prod": _reduced(xp.prod),
    "scaled_dot_product_attention": _attention,
    "sum": _reduced(xp.sum),
    "var": _variance,
    "var_mean": lambda site, *given, correction=None, **named: (
        _variance(site, *given, correction=correction, **named),
        _reduced(xp.mean)(site, *given, **named),
    ),
}
