"""Sums of products: matrix products, and all that einsum can say.

Products of halves are of float32, as are their sums, which are rounded once. Integers
add up in int64 and wrap to their dtype.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, TypeGuard

from steelyard_kernels import dtypes
from steelyard_kernels.array.moves import moveaxis
from steelyard_kernels.array.reductions import function_of
from steelyard_kernels.array.shapes import integer, place_of
from steelyard_kernels.array.tracing import current
from steelyard_kernels.array.value import Array, as_array, dot, whole
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.indices import axis
from steelyard_kernels.monoids import MONOIDS, accumulator

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SPEC: Final = re.compile(r"([a-zA-Z]*)(\.\.\.)?([a-zA-Z]*)")


def matmul(a: Array, b: Array) -> Array:
    """Return the sums over k of a[..., m, k] * b[..., k, n].

    An array of one axis has no m, or no n: `a @ b` is the same. Raises KernelError for
    other shapes.
    """
    a, b = as_array(a, "matmul"), as_array(b, "matmul")
    inner = b.shape[-2:][:1]
    if not inner or a.shape[-1:] != inner:
        raise KernelError(
            f"{a.graph.kernel}: matmul of shapes {a.shape} and {b.shape}, expected "
            "(..., M, K) and (..., K, N), or (K,) for one of them; transpose or reshape "
            "one, or multiply by numbers with *."
        )
    kinds = {a.dtype.kind, b.dtype.kind}
    if b.ndim == 2 and "float" in kinds:  # of rows, in loops too
        return dot(a, b)
    left = "...mk" if a.ndim > 1 else "k"
    right = "...kn" if b.ndim > 1 else "k"
    kept = "m" * (a.ndim > 1) + "n" * (b.ndim > 1)
    return einsum(f"{left},{right}->...{kept}", a, b)


Array.product = matmul


def vecdot(a: Array, b: Array, *, axis: int = -1) -> Array:
    """Return the sum of a * b over an axis that both have; the others broadcast."""
    a, b = (moveaxis(as_array(x, "vecdot"), axis, -1) for x in (a, b))
    return einsum("...k,...k->...", a, b)


def tensordot(
    a: Array, b: Array, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """Return the sums of products over axes of both, or a's last and b's first."""
    a, b = as_array(a, "tensordot"), as_array(b, "tensordot")
    count = whole(axes)
    if count is not None and 0 <= count <= min(a.ndim, b.ndim):
        axes = range(a.ndim - count, a.ndim), range(count)
    if not _are_pairs(axes):
        raise KernelError(
            f"{a.graph.kernel}: tensordot of shapes {a.shape} and {b.shape} over {axes!r}, "
            "expected how many axes, or as many of each as two tuples."
        )
    pairs = [
        (place_of(a, i, a.ndim), place_of(b, j, b.ndim))
        for i, j in zip(*axes, strict=True)
    ]
    left, right = list(_LETTERS[: a.ndim]), list(_LETTERS[a.ndim :][: b.ndim])
    for i, j in pairs:
        right[j] = left[i]
    kept = [x for x in left if x not in right] + [x for x in right if x not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", a, b)


def _are_pairs(axes: Any) -> TypeGuard[tuple[Sequence[int], Sequence[int]]]:
    """Say whether axes are two sequences of one length."""
    try:
        left, right = map(len, axes)
    except (TypeError, ValueError):
        return False
    return left == right


def outer(a: Array, b: Array) -> Array:
    """Return the products of every element of one vector with every one of another."""
    return einsum("i,j->ij", a, b)


def diagonal(x: Array, *, offset: int = 0) -> Array:
    """Return the elements (..., i, i + offset) of the last two axes."""
    x, offset = as_array(x, "diagonal"), integer("diagonal", offset)
    if x.ndim < 2:
        raise KernelError(
            f"{x.graph.kernel}: diagonal of shape {x.shape}, expected matrices; reshape "
            "it first."
        )
    square = x[..., max(-offset, 0) :, max(offset, 0) :]
    outer, place = square.shape[:-2], axis(x.ndim - 2)
    index = (*map(axis, range(x.ndim - 2)), place, place)
    shape = (*outer, min(square.shape[-2:]))
    return Array(x.graph, x.graph.view(square.node, index, shape))


def trace(x: Array, *, offset: int = 0, dtype: DType | str | None = None) -> Array:
    """Return the sum of `diagonal`, of the dtype that sums have, or of the one given."""
    total = function_of(MONOIDS["sum"])
    return total(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def einsum(spec: str, *operands: Array) -> Array:
    """Return the sum of products that `spec` says, as NumPy's: "mk,kn->mn".

    Axes with one letter have one extent; those of `...` broadcast. Without "->" the
    result has the letters that occur once, in alphabetical order. Raises KernelError
    where the letters do not fit the operands.
    """
    arrays = [as_array(each, "einsum") for each in operands]
    given: object = spec
    spec = given if isinstance(given, str) else f"a {type(given).__name__}"
    inputs, arrow, output = spec.replace(" ", "").partition("->")
    names = inputs.split(",")
    matched = [_SPEC.fullmatch(name) for name in (*names, output)]
    if len(names) != len(arrays) or not all(matched) or not arrays:
        raise KernelError(
            f"{current('einsum').kernel}: einsum of {spec!r} with {len(arrays)} arrays, "
            'expected letters for each, for example "mk,kn->mn".'
        )
    labels = [_labels(name, x, spec) for name, x in zip(names, arrays, strict=True)]
    extents = _extents(labels, arrays, spec)
    if not arrow:
        every = [each for of_one in labels for each in of_one]
        once = sorted(each for each in set(every) if every.count(each) == 1)
        kept = [each for each in extents if each.isdigit()]
        result = sorted(kept, reverse=True, key=int) + [e for e in once if e.isalpha()]
    else:
        wide = max((sum(e.isdigit() for e in one) for one in labels), default=0)
        result = _spelled(output, wide)
    if not set(result) <= set(extents) or len(set(result)) < len(result):
        raise KernelError(
            f"{arrays[0].graph.kernel}: einsum of {spec!r} names axes of the result that "
            "no array has, or one twice."
        )
    return _summed(arrays, labels, result, extents)


def _spelled(name: str, wide: int) -> list[str]:
    """Return the axes of a name: `...` are numbers, counted from the last one."""
    found = _SPEC.fullmatch(name)
    assert found
    before, dots, after = found.groups()
    return [*before, *(map(str, reversed(range(wide))) if dots else ()), *after]


def _labels(name: str, x: Array, spec: str) -> list[str]:
    letters = len(name.replace("...", ""))
    labels = _spelled(name, max(x.ndim - letters, 0))
    if len(labels) != x.ndim:
        raise KernelError(
            f"{x.graph.kernel}: einsum of {spec!r} has {letters} letters for an array of "
            f"shape {x.shape}; give one for each axis, or `...`."
        )
    return labels


def _extents(
    labels: Sequence[Sequence[str]], arrays: Sequence[Array], spec: str
) -> dict[str, int]:
    """Return the extent of every axis, those of `...` broadcast."""
    found: dict[str, int] = {}
    for one, x in zip(labels, arrays, strict=True):
        for label, extent in zip(one, x.shape, strict=True):
            known = found.setdefault(label, extent)
            if label.isdigit() and known == 1:
                found[label] = extent
            elif known != extent and not (label.isdigit() and extent == 1):
                raise KernelError(
                    f"{x.graph.kernel}: einsum of {spec!r}: axis {label} has {known} and "
                    f"{extent} elements; they must be equal."
                )
    return found


def _summed(
    arrays: Sequence[Array],
    labels: Sequence[Sequence[str]],
    result: Sequence[str],
    extents: Mapping[str, int],
) -> Array:
    """Return the sum over all axes that the result has not."""
    graph = arrays[0].graph
    gone = [label for label in extents if label not in result]
    every = [*result, *gone]
    place = {label: axis(i) for i, label in enumerate(every)}
    shape = tuple(extents[label] for label in every)
    common = reduce(dtypes.promote, (dtypes.computed(x.dtype) for x in arrays))
    wide = accumulator(common)
    views = []
    for one, x in zip(labels, arrays, strict=True):
        pairs = zip(one, x.shape, strict=True)
        index = tuple(place[label] * (extent > 1) for label, extent in pairs)
        node = graph.view(graph.cast(x.node, wide), index, shape)
        views.append(Array(graph, node))
    return contracted(views, common, len(result))


def contracted(factors: Sequence[Array], common: DType, kept: int) -> Array:
    """Return the sums of products of arrays of one shape over all axes from `kept` on.

    They are added up in the factors' dtype, and rounded to `common`.
    """
    graph = factors[0].graph
    if common.kind == "bool":
        raise KernelError(
            f"{graph.kernel}: sums of products of bool are not defined, expected int or "
            "float; cast the arrays with astype."
        )
    product = reduce(lambda a, b: a * b, factors)
    if kept == product.ndim:
        return product.astype(common)
    axes = tuple(range(kept, product.ndim))
    total = graph.reduce("sum", product.node, axes, keepdims=False)
    return Array(graph, graph.cast(total, common))
