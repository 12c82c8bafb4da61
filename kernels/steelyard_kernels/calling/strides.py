"""Calls with arrays of any strides, and numbers: on copies that are contiguous.

Compiled code walks C-contiguous memory. A call copies other arrays before it, and what it
wrote back to them after; so does each launch of a kernel that is bound to such.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, Protocol

import numpy as np

from steelyard_device import cpu
from steelyard_device.series import Step
from steelyard_kernels.calling.arguments import NUMBERS
from steelyard_kernels.calling.bind import Array, Outputs, Result
from steelyard_kernels.errors import KernelError
from steelyard_kernels.trace import MAX_ELEMENTS


def are_there(arrays: Sequence[Any], out: Outputs) -> bool:
    """Say whether some array of a call has to be copied."""
    written = [_is_copied(array, read=False) for array in each_of(out)]
    return any(map(_is_copied, arrays)) or any(written)


class Copies(Protocol):
    """How arrays of some memory are copied."""

    def made(self, array: Any, *, read: bool = True) -> Any:
        """Return a contiguous copy of an array that is not; itself if it is.

        What is not `read` may hold anything.
        """
        ...

    def view(self, array: Any) -> Array:
        """Return where an array lies, as NumPy would have it."""
        ...

    def written(self, own: Any, copy: Any) -> None:
        """Copy back what a kernel wrote."""
        ...


class OnHost:
    """Copies of NumPy's arrays; `steps` gives launches for a kernel that is bound.

    Of `every` array, if one is not apart from the others: a call that is refused for what
    it would write has written nothing then.
    """

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._of: list[tuple[Any, Array]] = []
        self._calls: list[Any] = []  # alive as long as they may be called

    def made(self, array: Any, *, read: bool = True) -> Any:
        """Return a contiguous copy of an array that is not; itself if it is."""
        if not _is_copied(array, read=read, every=self._every):
            return array
        own = np.array(array, order="C") if read else np.empty_like(array, order="C")
        copy = own.view()
        copy.flags.writeable = isinstance(array, np.ndarray) and array.flags.writeable
        if isinstance(array, np.ndarray):  # a number stays what it is
            self._of.append((array, copy))
        return copy

    def view(self, array: Any) -> Array:
        """Return the array, which is NumPy's."""
        return np.asarray(array)

    def written(self, own: Any, copy: Any) -> None:
        """Copy back what a kernel wrote."""
        np.copyto(own, copy)

    def owner(self, array: Array) -> Array:
        """Return an array as it was given."""
        return next((own for own, copy in self._of if copy is array), array)

    def steps(self, arrays: Sequence[Array], *, back: bool) -> list[Step]:
        """Return what fills those of some arrays that are copies, or copies them back."""
        found: list[Step] = []
        for array in arrays:
            own, near = self.owner(array), array.base
            if own is array:
                continue
            pair = (own, near) if back else (near, own)
            call = _FUNCTION(lambda *_, pair=pair: np.copyto(*pair))
            self._calls.append(call)
            address = ctypes.cast(call, ctypes.c_void_p).value
            assert address is not None
            found.append((cpu.Function("copy", address), 0, 1))
        return found


# As `native` calls functions: with arguments, a ticket, a number and a count of threads.
_FUNCTION: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32
)


def called(
    kernel: str,
    call: Callable[..., Result],
    arrays: Sequence[Any],
    out: Outputs,
    scalars: Mapping[str, float],
    *,
    copies: Copies | None = None,
) -> Result:
    """Call a kernel on copies; return the arrays that were given where they are results.

    Raises KernelError where outputs share memory.
    """
    found: list[tuple[Any, Any]] = []
    how = copies or OnHost(every=_may_be_refused([*arrays, *each_of(out)]))

    def copied(array: Any, *, read: bool = False) -> Any:
        copy = how.made(array, read=read)
        found.append((array, copy))
        return copy

    def given(array: Any) -> Any:
        return next((own for own, copy in found if copy is array), array)

    inputs = [copied(array, read=True) for array in arrays]
    result = call(*inputs, out=mapped(out, copied), **scalars)
    written = [(given(array), array) for array in each_of(result)]
    check_apart(kernel, [how.view(own) for own, _ in written])
    for own, array in written:
        if own is not array:
            how.written(own, array)
    results: Result = mapped(result, given)
    return results


def _may_be_refused(arrays: Sequence[Any]) -> bool:
    """Say whether some arrays that can be written are not apart."""
    every = [a for a in arrays if isinstance(a, np.ndarray) and a.flags.writeable]
    near = any(np.may_share_memory(*pair) for pair in combinations(every, 2))
    return near or any(map(_overlaps_itself, every))


def check_apart(kernel: str, outputs: Sequence[Array]) -> None:
    """Raise KernelError where two outputs share memory, or two elements of one."""
    if any(np.shares_memory(*pair) for pair in combinations(outputs, 2)):
        raise KernelError(
            f"{kernel}: two outputs share memory; give each memory of its own."
        )
    if any(map(_overlaps_itself, outputs)):
        raise KernelError(
            f"{kernel}: two elements of an output share memory; give each memory of its "
            "own."
        )


def _overlaps_itself(array: Array) -> bool:
    """Say whether elements may share memory: each axis is to step over all inside of it."""
    if not array.size:
        return False  # whose strides say nothing
    end, every = 0, zip(array.strides, array.shape, strict=True)
    for stride, extent in sorted((abs(s), n) for s, n in every if n > 1):
        if stride < end + array.itemsize:
            return True
        end += stride * (extent - 1)
    return False


def _is_copied(array: Any, *, read: bool = True, every: bool = False) -> bool:
    if not isinstance(array, np.ndarray):
        return read and isinstance(array, NUMBERS)
    known = isinstance(array, np.ma.MaskedArray) or array.size > MAX_ELEMENTS
    lies = array.flags.c_contiguous and not every
    return not (lies or known)  # what is refused as it is


def each_of(arrays: Any) -> Iterator[Any]:
    """Yield the arrays of `out`, or of a result."""
    if isinstance(arrays, Mapping):
        yield from arrays.values()
    elif isinstance(arrays, Sequence):
        yield from arrays
    elif arrays is not None:
        yield arrays


def mapped(arrays: Any, function: Callable[[Any], Any]) -> Any:
    """Return `out`, or a result, with something else for each of its arrays."""
    if arrays is None:
        return None
    if isinstance(arrays, Mapping):
        return {name: function(array) for name, array in arrays.items()}
    if isinstance(arrays, Sequence):
        return tuple(map(function, arrays))
    return function(arrays)
