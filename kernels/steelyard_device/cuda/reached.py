"""Memory and functions of a program that has CUDA's driver to itself: nothing is set up here.

Calls go to the context that is current, as the program's own do.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard_device.cuda.calls import Call
from steelyard_device.cuda.launch import FREE_SHARED
from steelyard_device.cuda.module import check_whole
from steelyard_device.errors import DeviceError

HOST: Final = 1
"""CU_MEMORYTYPE_HOST."""

LOWEST: Final = 1 << 20
"""Numbers below are no addresses."""


class Memory:
    """What a launch of a program reaches.

    Raises:
        DeviceError: the driver refuses a call, or memory cannot be copied.
    """

    def __init__(self) -> None:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        self._driver: Any = driver

    def _ask(self, function: str, *args: Any) -> Any:
        status, *values = getattr(self._driver, function)(*args)
        if int(status):
            raise DeviceError(f"{function} failed with {status.name}")
        return values[0] if len(values) == 1 else values

    def wait(self) -> None:
        """Wait for everything that was submitted."""
        self._ask("cuCtxSynchronize")

    def is_recording(self, stream: int) -> bool:
        """Whether launches of a stream go into a graph."""
        return bool(int(self._ask("cuStreamIsCapturing", stream)))

    def parameters(self, function: int) -> list[tuple[int, int]]:
        """Return offset and bytes of each parameter of a function, or of a kernel."""
        for handle, query in self._handles(function):
            found: list[tuple[int, int]] = []
            while True:
                status, *info = getattr(self._driver, query)(handle, len(found))
                if int(status):
                    break
                found.append((int(info[0]), int(info[1])))
            if found:
                return found
        return []

    def _handles(self, function: int) -> list[tuple[Any, str]]:
        """Libraries launch kernels where functions are expected."""
        return [
            (self._driver.CUfunction(function), "cuFuncGetParamInfo"),
            (self._driver.CUkernel(function), "cuKernelGetParamInfo"),
        ]

    def around(self, address: int) -> dict[int, int]:
        """Return base and bytes of the allocation that an address lies in, if in any."""
        if address < LOWEST:
            return {}
        names = self._driver.CUpointer_attribute
        kind = names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, found = self._driver.cuPointerGetAttribute(kind, address)
        if int(status) or not found:
            return {}
        if int(found) == HOST:
            raise DeviceError("a parameter points to memory of the host")
        base, size = self._ask("cuMemGetAddressRange", address)
        return {int(base): int(size)}

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of memory."""
        room = np.empty(size, np.uint8)
        self._ask("cuMemcpyDtoH", room.ctypes.data, address, size)
        return room

    def write(self, address: int, content: NDArray[np.uint8]) -> None:
        """Overwrite memory."""
        self._ask("cuMemcpyHtoD", address, content.ctypes.data, content.size)

    def load(self, image: bytes, entry: str, shared: int) -> int:
        """Return a function of a cubin, for launches with so much dynamic memory."""
        check_whole(image)
        module = self._ask("cuModuleLoadData", image)
        function = self._ask("cuModuleGetFunction", module, entry.encode())
        if shared > FREE_SHARED:
            names = self._driver.CUfunction_attribute
            limit = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ask("cuFuncSetAttribute", function, limit, shared)
        return int(function)

    def launch(self, function: int, call: Call) -> None:
        """Launch a function as the program's was."""
        where = call.shared, call.stream, call.parameters, call.extra
        self._ask("cuLaunchKernel", function, *call.grid, *call.block, *where)
