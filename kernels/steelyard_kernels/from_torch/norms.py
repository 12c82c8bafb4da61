"""ATen's normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.from_torch.call import Row, Site, converted


def _scaled(site: Site, x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Return x * weight + bias, of which either may be missing."""
    x = x if weight is None else x * weight.astype(site.wide)
    return x if bias is None else x + bias.astype(site.wide)


def _standard(
    site: Site, x: Array, axes: Sequence[int], epsilon: float
) -> tuple[Array, Array, Array]:
    """Return values of mean 0 and variance 1, with their mean and 1 / their deviation."""
    values = converted(x, site.wide)
    mean = xp.mean(values, axis=axes, keepdims=True)
    rstd = xp.rsqrt(xp.var(values, axis=axes, keepdims=True) + epsilon)
    return (values - mean) * rstd, mean, rstd


def _layer_norm(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    *_: Any,
) -> tuple[Array, ...]:
    axes = range(x.ndim - len(shape), x.ndim)
    found, mean, rstd = _standard(site, x, axes, epsilon)
    return _scaled(site, found, weight, bias), mean, rstd


def _of_channels(x: Array, given: Array | None) -> Any:
    """Return numbers of the channels, the second axis of an array, as they broadcast."""
    return None if given is None else xp.reshape(given, (-1, *[1] * (x.ndim - 2)))


def _batch_norm(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    _: float,
    epsilon: float,
) -> tuple[Array, ...]:
    """Return values normalised by what was known of them, and two arrays of nothing."""
    mean, variance = (each.astype(site.wide) for each in (mean, variance))
    scale = _scaled(site, xp.rsqrt(variance + epsilon), weight, None)
    shifted = converted(x, site.wide) - _of_channels(x, mean)
    found = shifted * _of_channels(x, scale)
    nothing = xp.zeros(0, site.dtype)
    return _scaled(site, found, None, _of_channels(x, bias)), nothing, nothing


def _norm_of_batch(
    site: Site, x: Array, weight: Array | None, bias: Array | None, *given: Any
) -> tuple[Array, ...]:
    """Return values normalised over all axes but that of the channels."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    found, mean, rstd = _standard(site, x, axes, given[-1])
    found = _scaled(site, found, _of_channels(x, weight), _of_channels(x, bias))
    return found, xp.reshape(mean, (-1,)), xp.reshape(rstd, (-1,))


def _group_norm(  # noqa: PLR0917 - as ATen has them
    site: Site,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    epsilon: float,
) -> tuple[Array, ...]:
    """Return values normalised over each group of channels."""
    del channels, size
    grouped = xp.reshape(x, (batch, groups, prod(x.shape[1:]) // groups))
    found, *moments = _standard(site, grouped, (-1,), epsilon)
    found = xp.reshape(found, x.shape)
    found = _scaled(site, found, _of_channels(x, weight), _of_channels(x, bias))
    return found, *[xp.squeeze(each, -1) for each in moments]


ROWS: Final[dict[str, Row]] = {
    "_native_batch_norm_legit.no_stats": _norm_of_batch,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": lambda site, *given: _layer_norm(site, *given)[0],
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
}
