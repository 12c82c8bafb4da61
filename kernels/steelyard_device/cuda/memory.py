"""Memory of a GPU in the order of a stream, and words that host and GPU share."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from steelyard_device.cuda import dlpack, driver
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import call
from steelyard_device.errors import DeviceError

ALIGNMENT = 256
"""Every buffer starts at a multiple of this many bytes."""


class View:
    """A C-contiguous array in a GPU's memory, which its ``owner`` keeps.

    Its methods work in the order of its context's stream.
    """

    __slots__ = ("__weakref__", "address", "context", "dtype", "owner", "shape")

    def __init__(
        self,
        context: Context,
        address: int,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        owner: object = None,
    ) -> None:
        self.context = context
        self.address = address
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.owner = owner

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as PyTorch, CuPy and Numba read it."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "stream": self.context.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say which GPU it lies on, in DLPack's numbers."""
        return dlpack.CUDA, self.context.device.index

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> Any:
        """Return the array as DLPack hands it over: no copy, ready on ``stream``.

        -1 asks for no waiting; what other keywords ask for is what every version of
        ours does.
        """
        if stream not in {-1, self.context.stream}:
            self.context.wait()
        device = self.context.device.index
        return dlpack.capsule(self.address, self.shape, self.dtype, device, self)

    def part(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> View:
        """Return an array that lies ``offset`` bytes from the start.

        Raises:
            DeviceError: it would not lie within this one.
        """
        found = View(self.context, self.address + offset, shape, dtype, self)
        if not 0 <= offset <= offset + found.nbytes <= self.nbytes:
            raise DeviceError(
                f"{found.nbytes} bytes at {offset} do not lie within the "
                f"{self.nbytes} of {self.dtype} {self.shape}: take a smaller part."
            )
        return found

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array of the same shape and dtype here; done on return."""
        self._check(array)
        source = np.ascontiguousarray(array)
        self._copy("HtoD", self.address, source.ctypes.data, wait=True)

    def read(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Copy the elements to ``out``, or a new array, and return it."""
        array = np.empty(self.shape, self.dtype) if out is None else out
        self._check(array)
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise DeviceError(
                f"an array with strides {array.strides}, writeable "
                f"{array.flags.writeable}, cannot be read into: pass a C-contiguous one "
                "that can be written."
            )
        self._copy("DtoH", array.ctypes.data, self.address, wait=True)
        return array

    def _check(self, array: NDArray[Any]) -> None:
        if array.shape != self.shape or array.dtype != self.dtype:
            raise DeviceError(
                f"an array of {array.dtype} {array.shape} does not fit a buffer of "
                f"{self.dtype} {self.shape}: pass one of the same shape and dtype."
            )

    def _copy(self, way: str, to: int, source: int, *, wait: bool) -> None:
        asked, stream = f"copying {self.nbytes} bytes", self.context.stream
        if not self.nbytes:
            return
        with driver.current(self.context.handle):
            call(asked, f"cuMemcpy{way}Async", to, source, self.nbytes, stream)
            if wait:
                call(asked, "cuStreamSynchronize", stream)

    def copy_from(self, source: View) -> None:
        """Copy as many bytes of the same GPU here, in the stream's order."""
        if source.nbytes != self.nbytes:
            raise DeviceError(
                f"{source.nbytes} bytes were to be copied over {self.nbytes}: take "
                "arrays of one size."
            )
        self._copy("DtoD", self.address, source.address, wait=False)

    def fill(self, value: Any) -> None:
        """Set every element to ``value``, in the stream's order."""
        pattern = np.array(value, self.dtype).tobytes()
        words = [pattern[at : at + 4] for at in range(0, len(pattern), 4)]
        if not self.size:
            return
        with driver.current(self.context.handle):
            if len(set(words)) == 1:
                self._set(self.address, words[0], self.nbytes // len(words[0]))
                return
            for place, word in enumerate(words):
                self._set(self.address + 4 * place, word, 1)
            self._repeat(len(pattern))

    def _set(self, address: int, word: bytes, count: int) -> None:
        function = f"cuMemsetD{8 * len(word)}Async"
        number = int.from_bytes(word, "little")
        asked = f"filling {self.nbytes} bytes"
        call(asked, function, address, number, count, self.context.stream)

    def _repeat(self, done: int) -> None:
        """Copy the first ``done`` bytes over all others, twice as many each time."""
        asked, stream = f"filling {self.nbytes} bytes", self.context.stream
        while done < self.nbytes:
            size = min(done, self.nbytes - done)
            to = self.address + done
            call(asked, "cuMemcpyDtoDAsync", to, self.address, size, stream)
            done += size


class Buffer(View):
    """Uninitialised memory of a GPU, an array of its own.

    Taken from the context's pool in the order of its stream, and given back in that
    order when it is dropped or `free`d: launches before that on the same stream may
    still use it. Whoever uses it on another stream waits for that one first.
    """

    __slots__ = ("_release",)

    def __init__(
        self, context: Context, shape: tuple[int, ...], dtype: DTypeLike
    ) -> None:
        super().__init__(context, 0, shape, dtype)
        asked = f"allocating {self.nbytes} bytes on {context.device.name}"
        size = max(self.nbytes, 1)  # the driver refuses none
        pool, stream = context.pool, context.stream
        with driver.current(context.handle):
            at = call(asked, "cuMemAllocFromPoolAsync", size, pool, stream)
        self.address = int(at)
        self._release = driver.owned(
            self, context.handle, "cuMemFreeAsync", self.address, stream
        )
        if self.address % ALIGNMENT:
            raise DeviceError(
                f"{asked} gave the address {self.address:#x}, expected a multiple of "
                f"{ALIGNMENT}: report this driver."
            )

    def free(self) -> None:
        """Give the memory back behind everything on the stream; once is enough."""
        self._release()


def copy_of(context: Context, array: NDArray[Any]) -> Buffer:
    """Return a buffer that holds what ``array`` does."""
    buffer = Buffer(context, array.shape, array.dtype)
    buffer.write(array)
    return buffer


class SharedWords:
    """Zeroed 8-byte words of host memory that the GPU reads and writes in place.

    The same ``address`` serves both; they see each other's writes while kernels run.
    """

    def __init__(self, context: Context, count: int) -> None:
        names = ("PORTABLE", "DEVICEMAP")
        flags = sum(driver.attribute(f"CU_MEMHOSTALLOC_{name}") for name in names)
        with driver.current(context.handle):
            asked = f"allocating {count} words that the host and the GPU share"
            self.address = int(call(asked, "cuMemHostAlloc", 8 * count, flags))
        driver.owned(self, context.handle, "cuMemFreeHost", self.address)
        self.words = (ctypes.c_uint64 * count).from_address(self.address)
        ctypes.memset(self.address, 0, 8 * count)
