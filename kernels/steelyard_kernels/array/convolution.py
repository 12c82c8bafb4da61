"""Convolutions of any number of axes, as JAX and PyTorch spell them.

One is a sum of products of two views: of the array through a window, zero beyond its
ends, and of the window's weights. Neither is ever in memory. Windows are not flipped:
these are cross-correlations, as in both libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.array.products import contracted
from steelyard_kernels.array.shapes import integer, reshape
from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.indices import Index, axis, part
from steelyard_kernels.monoids import accumulator

Each: TypeAlias = int | Sequence[int]  # one number for every spatial axis, or each's
Pads: TypeAlias = str | Sequence[tuple[int, int]]
Layout: TypeAlias = str | Sequence[int]  # "NCHW", or the places of N, C, H and W

_SPATIAL: Final = "HWD"


class _Window(Struct, frozen=True):
    """What a window does along one axis: of `size` elements, from `low` before the first.

    It takes every `dilation`-th element of an array with `spread - 1` zeros between any
    two, and goes on by `stride` up to `high` behind the last.
    """

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    spread: int = 1

    def count(self, extent: int) -> int:
        """Return how many places it has along so many elements; below 1: none."""
        wide = (extent - 1) * self.spread + 1 if extent else 0
        rest = wide + self.low + self.high - (self.size - 1) * self.dilation - 1
        return rest // self.stride + 1


def conv_general_dilated(  # noqa: PLR0917 - as JAX has them
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Pads,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: tuple[Layout, Layout, Layout] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> Array:
    """Return a convolution of `lhs` by the weights `rhs`, as `jax.lax` has it.

    `padding` is "SAME", "VALID" or (before, after) for each spatial axis.
    `dimension_numbers` are the layouts of both and of the result, by default ("NCHW",
    "OIHW", "NCHW") for two spatial axes. Raises KernelError for shapes that do not fit.
    """
    x, w = as_array(lhs, "conv_general_dilated"), as_array(rhs, "conv_general_dilated")
    rank = x.ndim - 2
    letters = _SPATIAL[:rank]
    given = dimension_numbers or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    layouts = [
        _layout(x, each, first, given[0])
        for each, first in zip(given, ("NC", "OI", "NC"), strict=True)
    ]
    if w.ndim != x.ndim or any(len(each) != x.ndim for each in layouts):
        raise _unfit(x, w, "as many axes of both, and of each layout")
    _, _, *inside = layouts[1]
    _, _, *along = layouts[0]
    strides, dilations = tuple(window_strides), tuple(rhs_dilation or (1,) * rank)
    spreads = tuple(lhs_dilation or (1,) * rank)
    sizes = [w.shape[place] for place in inside]
    extents = [x.shape[place] for place in along]
    if isinstance(padding, str):
        every = zip(extents, sizes, strides, dilations, strict=True)
        padding = _named(x, padding, every)
    numbers = sizes, strides, padding, dilations, spreads
    if any(len(each) != rank for each in numbers):
        raise _unfit(x, w, f"strides, padding and dilations of {rank} axes")
    windows = [
        _Window(size, stride, low, high, dilation, spread)
        for size, stride, (low, high), dilation, spread in zip(*numbers, strict=True)
    ]
    groups = feature_group_count, batch_group_count
    return _Convolution(x, w, layouts, windows, groups).result()


def _forward(rank: int) -> Callable[..., Array]:
    """Return PyTorch's convolution over so many spatial axes."""

    def conv(
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        stride: Each = 1,
        padding: str | Each = 0,
        dilation: Each = 1,
        groups: int = 1,
    ) -> Array:
        x, w, layout = _checked(x, weight, rank)
        strides, dilations = _of_each(x, stride, rank), _of_each(x, dilation, rank)
        if isinstance(padding, str):
            sizes = zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
            pads = _named(x, padding, sizes)
        else:
            pads = [(each, each) for each in _of_each(x, padding, rank)]
            _check_none_negative(x, w, padding=[low for low, _ in pads])
        windows = [
            _Window(size, by, low, high, each)
            for size, by, (low, high), each in zip(
                w.shape[2:], strides, pads, dilations, strict=True
            )
        ]
        found = _Convolution(x, w, (layout,) * 3, windows, (groups, 1)).result()
        return _with_bias(found, bias)

    conv.__name__ = conv.__qualname__ = f"conv{rank}d"
    conv.__doc__ = f"""Return a convolution over {rank} spatial axes, as PyTorch has it.

    Of x[N, C, ...] by weight[O, C / groups, ...]. `padding` is "same", "valid" or how
    many zeros there are at both ends of each spatial axis. Raises KernelError for shapes
    that do not fit.
    """
    return conv


def _transposed(rank: int) -> Callable[..., Array]:
    """Return PyTorch's transposed convolution over so many spatial axes."""

    def conv(
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        stride: Each = 1,
        padding: Each = 0,
        output_padding: Each = 0,
        groups: int = 1,
        dilation: Each = 1,
    ) -> Array:
        x, w, layout = _checked(x, weight, rank)
        how = stride, padding, output_padding, dilation
        every = [_of_each(x, each, rank) for each in how]
        strides, pads, more_behind, dilations = every
        _check_none_negative(x, w, padding=pads, output_padding=more_behind)
        longest = map(max, strides, dilations)
        if any(n >= most for n, most in zip(more_behind, longest, strict=True)):
            raise _unfit(x, w, "output_padding below the stride or the dilation")
        windows = []
        for size, by, pad, more, each in zip(w.shape[2:], *every, strict=True):
            low = each * (size - 1) - pad
            windows.append(_Window(size, 1, low, low + more, each, by))
        found = _Convolution(x, w, (layout,) * 3, windows, (groups, 1), turned=True)
        return _with_bias(found.result(), bias)

    conv.__name__ = conv.__qualname__ = f"conv_transpose{rank}d"
    conv.__doc__ = f"""Return a transposed convolution over {rank} axes, as PyTorch has it.

    Of x[N, C, ...] by weight[C, O / groups, ...]: the gradient of `conv{rank}d` for its
    array, where x is the cotangent. Raises KernelError for shapes that do not fit.
    """
    return conv


conv1d, conv2d, conv3d = map(_forward, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed, (1, 2, 3))


def _checked(
    x: Array, weight: Array, rank: int
) -> tuple[Array, Array, tuple[int, ...]]:
    """Return both arrays, and PyTorch's layout of so many spatial axes."""
    x, w = as_array(x, f"conv{rank}d"), as_array(weight, f"conv{rank}d")
    if not x.ndim == w.ndim == rank + 2:
        raise _unfit(x, w, f"{rank + 2} axes of both")
    return x, w, tuple(range(rank + 2))


class _Convolution:
    """A convolution as a sum of products of two views.

    `groups` are those of features and of the batch. Layouts are the places of the batch
    (of weights: of the results' features), of the features and of each spatial axis.
    Weights that are `turned` have the features of the array first, those of the result
    behind them, and their windows backwards.
    """

    def __init__(
        self,
        x: Array,
        w: Array,
        layouts: Sequence[Sequence[int]],
        windows: Sequence[_Window],
        groups: tuple[int, int],
        *,
        turned: bool = False,
    ) -> None:
        self.x, self.w, self.windows, self.turned = x, w, windows, turned
        self.of_x, (first, second, *self.inside), self.of_result = layouts
        self.own, self.features = (second, first) if turned else (first, second)
        self.by_features, self.by_batch = [integer("groups", n) for n in groups]
        self.count = self.by_features * self.by_batch
        self._check()
        self.batch = x.shape[self.of_x[0]] // self.by_batch
        self.read = x.shape[self.of_x[1]] // self.by_features
        self.made = w.shape[self.own] // (1 if turned else self.count)
        # The axes of the result, its features by groups; then those that are added up,
        # in the order of the weights.
        parts = {self.of_result[0]: [self.batch]}
        parts[self.of_result[1]] = [self.count, self.made]
        for to, place, window in zip(
            self.of_result[2:], self.of_x[2:], windows, strict=True
        ):
            parts[to] = [window.count(x.shape[place])]
        self.parts = [parts[place] for place in range(x.ndim)]
        order = [
            (place, k) for place in range(x.ndim) for k in range(len(parts[place]))
        ]
        self.kept = [parts[place][k] for place, k in order]
        self.at = {each: axis(k) for k, each in enumerate(order)}
        self.group = self.at[self.of_result[1], 0]
        summed = [place for place in range(w.ndim) if place != self.own]
        self.deep = {place: axis(len(order) + k) for k, place in enumerate(summed)}
        sizes = {place: w.shape[place] for place in summed} | {self.features: self.read}
        self.shape = (*self.kept, *sizes.values())

    def _check(self) -> None:
        """Raise KernelError for what does not fit."""
        x, w, (batch, features, *_) = self.x, self.w, self.of_x
        steps = [n for w in self.windows for n in (w.stride, w.dilation, w.spread)]
        if self.count < 1 or min(steps, default=1) < 1:
            raise _unfit(x, w, "groups, strides and dilations from 1 up")
        if 1 not in {self.by_features, self.by_batch}:
            raise _unfit(x, w, "groups of features or of the batch, not of both")
        extents = [x.shape[place] for place in self.of_x[2:]]
        if any(w.count(n) < 1 for w, n in zip(self.windows, extents, strict=True)):
            raise _unfit(
                x, w, "windows that are no larger than the array with its padding"
            )
        own = 1 if self.turned else self.count
        shared = x.shape[batch] % self.by_batch or x.shape[features] % self.by_features
        if shared or w.shape[self.own] % own:
            raise _unfit(x, w, f"features and a batch that {self.count} groups divide")
        read = x.shape[features] // (1 if self.turned else self.by_features)
        if w.shape[self.features] != read:
            raise _unfit(x, w, f"weights of {read} features")

    def result(self) -> Array:
        """Return the sums."""
        graph = self.x.graph
        common = dtypes.promote(
            dtypes.computed(self.x.dtype), dtypes.computed(self.w.dtype)
        )
        wide = accumulator(common)
        index, rests = self._window()
        apart = graph.reshape(
            graph.cast(self.x.node, wide), (*self.x.shape, *(1,) * len(rests))
        )
        views = (
            graph.view(apart, (*index, *rests), self.shape),
            graph.view(graph.cast(self.w.node, wide), self._weights(), self.shape),
        )
        factors = [Array(graph, view) for view in views]
        found = contracted(factors, common, len(self.kept))
        return reshape(found, tuple(map(prod, self.parts)))

    def _window(self) -> tuple[list[Index], list[Index]]:
        """Return where the array is read, and what must be 0 for an element to be there."""
        batch, features, *along = self.of_x
        places = {
            batch: self.at[self.of_result[0], 0],
            features: self.deep[self.features],
        }
        if self.by_batch > 1:
            places[batch] += self.group * self.batch
        if self.by_features > 1:
            places[features] += self.group * self.read
        rests = []
        for window, place, inside, to in zip(
            self.windows, along, self.inside, self.of_result[2:], strict=True
        ):
            found = self.at[to, 0] * window.stride + -window.low
            found += self.deep[inside] * window.dilation
            places[place] = part(found, window.spread, 0, self.shape)
            if window.spread > 1:  # between two elements lie zeros
                rests.append(part(found, 1, window.spread, self.shape))
        return [places[place] for place in range(self.x.ndim)], rests

    def _weights(self) -> tuple[Index, ...]:
        """Return where the weights are read."""
        places = dict(self.deep)
        places[self.own] = self.at[self.of_result[1], 1]
        if self.turned:
            places[self.features] += self.group * self.read
            for place in self.inside:
                places[place] = self.deep[place] * -1 + (self.w.shape[place] - 1)
        else:
            places[self.own] += self.group * self.made
        return tuple(places[place] for place in range(self.w.ndim))


def _layout(x: Array, given: Layout, first: str, lhs: Layout) -> tuple[int, ...]:
    """Return the places of a layout's letters: the two named, then spatial ones in order."""
    if not isinstance(given, str):
        return tuple(given)
    letters = [c for c in lhs if c not in "NC"] if isinstance(lhs, str) else []
    names = [*first, *(letters or [c for c in given if c not in first])]
    if sorted(names) != sorted(given):
        raise KernelError(
            f"{x.graph.kernel}: the layout {given!r} of a convolution, expected each of "
            f"{', '.join(names)} once."
        )
    return tuple(given.index(name) for name in names)


def _named(
    x: Array, name: str, axes: Iterable[tuple[int, int, int, int]]
) -> list[tuple[int, int]]:
    """Return the zeros that a name stands for: none, or as many as keep every place.

    Each axis is its extent, and the size, stride and dilation of its window.
    """
    if name.upper() not in {"VALID", "SAME"}:
        raise KernelError(
            f'{x.graph.kernel}: padding {name!r}, expected "same", "valid" or numbers.'
        )
    found = []
    for extent, size, stride, dilation in axes:
        places = -(-extent // stride)
        more = max((places - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        more *= name.upper() == "SAME"
        found.append((more // 2, more - more // 2))
    return found


def _with_bias(x: Array, bias: Array | None) -> Array:
    """Return a result with a number added to each feature, if there are any."""
    if bias is None:
        return x
    bias, features = as_array(bias, "bias"), x.shape[1]
    if bias.shape != (features,):
        raise KernelError(
            f"{x.graph.kernel}: a convolution's bias of shape {bias.shape}, expected one "
            f"number for each of {features} features, ({features},)."
        )
    return x + reshape(bias, (features,) + (1,) * (x.ndim - 2))


def _of_each(x: Array, given: Each, rank: int) -> tuple[int, ...]:
    """Return a number for each spatial axis."""
    found = tuple(given) if isinstance(given, Sequence) else (given,) * rank
    if len(found) != rank or not all(isinstance(each, int) for each in found):
        raise KernelError(
            f"{x.graph.kernel}: got {given!r} for {rank} spatial axes; give one int, or "
            "one for each."
        )
    return found


def _check_none_negative(x: Array, w: Array, **given: Sequence[int]) -> None:
    """Raise KernelError for numbers below 0, by the name of their argument."""
    for name, numbers in given.items():
        if min(numbers) < 0:
            raise _unfit(x, w, f"{name} from 0 up, not {tuple(numbers)}")


def _unfit(x: Array, w: Array, expected: str) -> KernelError:
    return KernelError(
        f"{x.graph.kernel}: a convolution of shape {x.shape} by weights of {w.shape}, "
        f"expected {expected}."
    )
