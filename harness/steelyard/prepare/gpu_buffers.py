"""The buffers of a case in a GPU's memory.

Restoring and poisoning are submitted to the context's stream and wait for nothing;
looking at what buffers hold waits for everything on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from steelyard.declare import dtypes
from steelyard.declare.handles import Handle
from steelyard.machine.alive import SIGNS
from steelyard.prepare import inputs
from steelyard.prepare.buffers import (
    SMALL,
    ZONE,
    ZONE_BYTE,
    Array,
    Buffers,
    needed_bytes,
    poison_of,
    too_large,
)
from steelyard_device import cuda
from steelyard_device.cuda import tools
from steelyard_device.cuda.device import KEPT


class DeviceBuffers(Buffers):
    """All arrays of one case on a GPU, each a `cuda.View` between two red zones."""

    def __init__(
        self,
        context: cuda.Context,
        handles: tuple[Handle, ...],
        seed: int,
        files: Mapping[str, str],
    ) -> None:
        self._context = context
        super().__init__(handles, seed, files)

    @property
    def context(self) -> cuda.Context:
        """The GPU they lie on."""
        return self._context

    def rows(self, name: str, indices: NDArray[np.intp] | None) -> Array:
        """Return some rows of a buffer, or all of it, as a NumPy array."""
        view: cuda.View = self.arrays[name]
        return view.read() if indices is None else tools.gather(view, indices)

    def restore(self) -> None:
        """Give every in-place argument its first data again, in the stream's order."""
        SIGNS.step()
        for name, data in self._pristine.items():
            self.arrays[name].copy_from(data)

    def collapsed(self, name: str) -> bool:
        """Whether a buffer no longer holds what users have: `inputs.collapsed`."""
        view: cuda.View = self.arrays[name]
        if view.size < inputs.FEWEST or not dtypes.is_float(view.dtype):
            return False
        normal, constant = tools.normal_count(view)
        return inputs.is_collapsed(view.size, normal, constant=constant)

    def _require_memory(self) -> None:
        needed = needed_bytes(self.handles)
        # What our pool keeps is in use to the driver and free to us.
        if needed >= SMALL and needed > (free := self.context.free_bytes()) + KEPT:
            raise too_large(needed, free)

    def _allocate(self, handle: Handle, index: int) -> cuda.View:
        del index  # the GPU's memory has no pages whose low bits loads would compare
        dtype = dtypes.named(handle.dtype)
        nbytes = handle.size * dtype.itemsize
        try:
            whole = cuda.Buffer(self.context, (nbytes + 2 * ZONE,), np.uint8)
        except cuda.CUDAError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            free = self.context.free_bytes()
            raise too_large(needed_bytes(self.handles), free) from error
        view = whole.part(ZONE, handle.shape, dtype)
        for zone in _zones(view):
            zone.fill(ZONE_BYTE)
        return view

    def write(self, name: str, data: Array) -> None:
        """Copy data to the GPU."""
        self.arrays[name].write(data)

    def _copy(self, name: str) -> cuda.Buffer:
        view: cuda.View = self.arrays[name]
        copy = cuda.Buffer(self.context, view.shape, view.dtype)
        copy.copy_from(view)
        return copy

    def _put(self, name: str, copy: cuda.Buffer) -> None:
        self.arrays[name].copy_from(copy)

    def _first(self, name: str) -> Array:
        handle = next(each for each in self.handles if each.name == name)
        if handle.role == "output":
            return self.read(name)
        return inputs.generate(handle, self.seed)

    def _poison(self, name: str) -> None:
        view: cuda.View = self.arrays[name]
        value = poison_of(view.dtype)
        if dtypes.is_float(view.dtype):
            view.fill(np.frombuffer(value, view.dtype)[0])
        else:  # as bytes: a bool would be made 1
            view.part(0, (view.nbytes,), np.uint8).fill(value[0])

    def _equal(self, name: str, copy: cuda.Buffer) -> bool:
        view: cuda.View = self.arrays[name]
        if not tools.differing(copy, view):
            return True
        return bool(np.array_equal(copy.read(), view.read(), equal_nan=True))

    def _zones(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        before, after = _zones(self.arrays[name])
        return before.read(), after.read()

    def _guard(self, name: str) -> None:
        for zone in _zones(self.arrays[name]):
            zone.fill(ZONE_BYTE)

    def _checksum(self, name: str) -> int:
        return tools.checksum(self.arrays[name])

    def _holds_only(self, name: str, pattern: bytes) -> bool:
        return tools.holds_only(self.arrays[name], pattern)


def _zones(view: cuda.View) -> tuple[cuda.View, cuda.View]:
    whole = view.owner
    assert isinstance(whole, cuda.View)
    return (
        whole.part(0, (ZONE,), np.uint8),
        whole.part(ZONE + view.nbytes, (ZONE,), np.uint8),
    )
