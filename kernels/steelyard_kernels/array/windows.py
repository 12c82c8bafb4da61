"""Windows of an array: views in which the elements of each lie along further axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steelyard_kernels.array.value import Array
from steelyard_kernels.expression.indices import axis, part


class Window(NamedTuple):
    """Windows along one axis: of `size` elements, which are `apart` from each other.

    The i-th begins at element i * step // over - low.
    """

    size: int
    step: int = 1
    low: int = 0
    apart: int = 1
    over: int = 1


def windowed(x: Array, counts: Sequence[int], windows: Sequence[Window]) -> Array:
    """Return the windows of the last axes, `counts` of them, with their elements last.

    Elements beyond the array are zeros.
    """
    first = x.ndim - len(windows)
    shape = (*x.shape[:first], *counts, *[each.size for each in windows])
    index = [axis(place) for place in range(x.ndim)]
    for place, each in enumerate(windows, first):
        start = part(index[place] * each.step, each.over, 0, shape)
        within = axis(place + len(windows)) * each.apart
        index[place] = start + within + -each.low
    return Array(x.graph, x.graph.view(x.node, tuple(index), shape))
