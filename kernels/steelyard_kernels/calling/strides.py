"""Calls with arrays of any strides, and NumPy's scalars: on copies that are contiguous.

Compiled code walks C-contiguous memory. A call copies other arrays before it, and what it
wrote back to them after; `bind` takes none, since its launches are to be the kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from steelyard_kernels.calling.bind import Array, Outputs, Result
from steelyard_kernels.errors import KernelError


def are_there(arrays: Sequence[Any], out: Outputs) -> bool:
    """Say whether some array of a call has to be copied."""
    return any(map(_is_copied, (*arrays, *_each(out))))


def called(
    kernel: str,
    call: Callable[..., Result],
    arrays: Sequence[Any],
    out: Outputs,
    scalars: Mapping[str, float],
) -> Result:
    """Call a kernel on copies; return the arrays that were given where they are results.

    Raises KernelError where outputs share memory.
    """
    copies: list[tuple[Array, Array]] = []

    def copied(array: Any) -> Any:
        if not _is_copied(array):
            return array
        copy = np.array(array, order="C")
        copy.flags.writeable = array.flags.writeable
        copies.append((array, copy))
        return copy

    def given(array: Array) -> Array:
        return next((own for own, copy in copies if copy is array), array)

    result = call(*map(copied, arrays), out=_mapped(out, copied), **scalars)
    written = [(given(array), array) for array in _each(result)]
    for (one, _), (other, _) in combinations(written, 2):
        if np.shares_memory(one, other):
            raise KernelError(
                f"{kernel}: two outputs share memory; give each memory of its own."
            )
    for own, array in written:
        if own is not array:
            np.copyto(own, array)
    results: Result = _mapped(result, given)
    return results


def _is_copied(array: Any) -> bool:
    if isinstance(array, np.generic):
        return True
    plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    return plain and not array.flags.c_contiguous


def _each(arrays: Any) -> Iterator[Any]:
    """Yield the arrays of `out`, or of a result."""
    if isinstance(arrays, np.ndarray | np.generic):
        yield arrays
    elif isinstance(arrays, Mapping):
        yield from arrays.values()
    elif isinstance(arrays, Sequence):
        yield from arrays


def _mapped(arrays: Any, function: Callable[[Any], Any]) -> Any:
    """Return `out`, or a result, with something else for each of its arrays."""
    if isinstance(arrays, Mapping):
        return {name: function(array) for name, array in arrays.items()}
    if isinstance(arrays, Sequence):
        return tuple(map(function, arrays))
    return function(arrays)
