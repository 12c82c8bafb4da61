"""Copies of a GPU's arrays whose elements are not behind one another, by kernels of ours.

They run where the kernel does: behind what their owners submitted, before what they do next.
"""

from __future__ import annotations

import operator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard_device import cuda
from steelyard_device.cuda import strided
from steelyard_device.errors import DeviceError
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.cuda_arrays import DiscontiguousError, Placed, placed
from steelyard_kernels.errors import KernelError


class OnGpu:
    """Contiguous copies of a call's arrays: see `strides.Copies`.

    With `now` each copy is launched as it is asked for; `before` and `after` give launches
    for a kernel that is bound.
    """

    def __init__(self, kernel: str, *, now: bool) -> None:
        self._kernel, self._now = kernel, now
        self._of: list[tuple[Any, cuda.Buffer, DiscontiguousError]] = []

    def made(self, array: Any, *, read: bool = True) -> Any:
        """Return a contiguous copy of an array that is not; itself if it is."""
        if not binding.on_gpu(array):
            return array
        try:
            placed(self._kernel, "an array", array)
        except DiscontiguousError as found:
            at = found.at
            if not at.writeable:
                raise
            copy = cuda.Buffer(at.context, at.shape, at.dtype)
            self._of.append((array, copy, found))
            if self._now:
                _after(at.context, at.context.stream, at.stream)
            if read and self._now:
                self._launch(copy, found, at.context.stream, back=False).launch()
            return copy
        return array

    def view(self, array: Any) -> NDArray[Any]:
        """Return where an array lies, as NumPy would have it: nobody reads what is there."""
        try:
            at, strides = placed(self._kernel, "an array", array), None
        except DiscontiguousError as found:
            at, strides = found.at, found.strides
        interface = {
            "data": (at.address or 1, False),
            "shape": at.shape,
            "strides": strides,
            "typestr": f"|V{at.dtype.itemsize}",
            "version": 3,
        }
        return np.asarray(SimpleNamespace(__array_interface__=interface))

    def written(self, own: Any, copy: Any) -> None:
        """Copy back what a kernel wrote."""
        found = next(
            at for given, each, at in self._of if given is own and each is copy
        )
        self._launch(copy, found, found.at.context.stream, back=True).launch()

    def end(self) -> None:
        """Have the owners' streams wait for all that was launched."""
        for _, _, found in self._of:
            _after(found.at.context, found.at.stream, found.at.context.stream)

    def owner(self, array: Placed) -> Placed:
        """Return an array as it was given."""
        every = [own for own, copy, _ in self._of if copy is array.given]
        return array._replace(given=every[0]) if every else array

    def before(self, stream: int, inputs: list[Any]) -> list[cuda.Launch]:
        """Return what fills the copies that are inputs."""
        read = self._among(inputs)
        return [self._launch(copy, at, stream, back=False) for copy, at in read]

    def after(self, stream: int, outputs: list[Any]) -> list[cuda.Launch]:
        """Return what copies back those that are outputs."""
        written = self._among(outputs)
        return [self._launch(copy, at, stream, back=True) for copy, at in written]

    def _among(self, arrays: list[Any]) -> list[tuple[cuda.Buffer, DiscontiguousError]]:
        """Return the copies that are among some arrays."""
        each = {id(array) for array in arrays}
        return [(copy, at) for _, copy, at in self._of if id(copy) in each]

    def _launch(
        self, copy: cuda.Buffer, found: DiscontiguousError, stream: int, *, back: bool
    ) -> cuda.Launch:
        at = found.at
        own = strided.Lying(at.address, found.strides)
        near = strided.Lying(copy.address, _steps(at.shape, at.dtype.itemsize))
        pair = (own, near) if back else (near, own)
        try:
            return strided.copy(
                at.context, at.shape, at.dtype.itemsize, *pair, stream=stream
            )
        except DeviceError as error:
            raise KernelError(f"{self._kernel}: {error}") from None


def _steps(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    steps = list(accumulate(reversed(shape), operator.mul, initial=itemsize))
    return tuple(reversed(steps[:-1]))


def _after(context: cuda.Context, stream: int, other: int) -> None:
    """Have a stream wait for what another has by now."""
    if stream != other:
        mark = cuda.Event(context)
        mark.record(other)
        mark.hold(stream)
