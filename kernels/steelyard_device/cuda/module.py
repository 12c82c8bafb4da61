"""Cubins loaded on a GPU, anyone's: their functions, and what the driver says of them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from msgspec import Struct

from steelyard_device.cuda import driver
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import CUDAError, call
from steelyard_device.errors import DeviceError
from steelyard_device.threads import LOCK, Once
from steelyard_device.timings import span

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""Of a 64-bit ELF file, after its mark: machine, then offsets, entry sizes and counts of
the tables of programs and sections, among others."""

CUDA_MACHINE = 190

LOADING = "load"
"""The span of bringing code to a GPU."""


class Attributes(Struct, frozen=True):
    """What the driver says a kernel takes; bytes, as ``cubin.Resources`` says them."""

    registers: int
    """Per thread."""
    local: int
    """Memory of a thread: its stack and what it spills."""
    shared: int
    """Static, per block."""
    constant: int
    """User's constants; not the bank of the parameters."""
    max_threads: int
    """Threads of a block that registers and launch bounds allow."""
    arch: str
    """``sm_90``, what the code was made for."""


class Function(Struct, frozen=True):
    """An entry of a loaded cubin."""

    name: str
    handle: int
    context: Context
    parameters: tuple[int, ...]
    """The bytes of each."""
    attributes: Attributes

    def occupancy(self, threads: int, shared: int = 0) -> int:
        """Return how many blocks of ``threads`` a multiprocessor holds at once.

        ``shared`` are dynamic bytes per block.
        """
        asked = f"asking how many blocks of {threads} threads of {self.name} fit"
        query = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        with driver.current(self.context.handle):
            blocks: int = call(asked, query, self.handle, threads, shared)
        return blocks

    def allow_shared(self, shared: int) -> None:
        """Let launches have ``shared`` dynamic bytes per block (48 KB need no leave)."""
        asked = f"giving a block of {self.name} {shared} bytes of shared memory"
        limit = _attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        with driver.current(self.context.handle):
            call(asked, "cuFuncSetAttribute", self.handle, limit, shared)


class Module(Struct, frozen=True):
    """A loaded cubin; it stays loaded as long as the process lives."""

    context: Context
    handle: int
    digest: str
    """blake2b of the bytes, 32 digits."""

    def function(self, entry: str) -> Function:
        """Return an entry, its code on the GPU.

        The driver would copy the code at the first launch otherwise, and may wait for
        running kernels to do so: for ever, when one of them waits for the host.
        """
        asked = f"finding {entry} in the cubin {self.digest[:12]}"
        with span(LOADING), driver.current(self.context.handle):
            handle = call(asked, "cuModuleGetFunction", self.handle, entry.encode())
            call(asked, "cuFuncLoad", handle)
            attributes, parameters = _attributes(asked, handle), _parameters(handle)
        return Function(entry, int(handle), self.context, parameters, attributes)


def load(context: Context, cubin: bytes) -> Module:
    """Load a cubin, once a process: candidates of one group share the module.

    Raises:
        DeviceError: the bytes are not a whole cubin.
        CUDAError: it is for another GPU.
    """
    digest = hashlib.blake2b(cubin, digest_size=16).hexdigest()
    with LOCK:
        loaded = _modules(context)
        if digest not in loaded:
            check_whole(cubin)
            with span(LOADING), driver.current(context.handle):
                asked = f"loading the cubin {digest[:12]} on {context.device.arch}"
                handle = int(call(asked, "cuModuleLoadData", cubin))
            loaded[digest] = Module(context, handle, digest)
        return loaded[digest]


def load_again(context: Context, cubin: bytes, entry: str) -> Callable[[], None]:
    """Load a cubin once more, as the first use of an entry does; return what unloads it.

    For whoever asks what loading costs: nothing is launched of it.
    """
    check_whole(cubin)
    asked = f"loading a cubin on {context.device.arch}"
    with driver.current(context.handle):
        handle = call(asked, "cuModuleLoadData", cubin)
        try:
            function = call(asked, "cuModuleGetFunction", handle, entry.encode())
            call(asked, "cuFuncLoad", function)
        except CUDAError:
            driver.bindings().cuModuleUnload(handle)
            raise

    def unload() -> None:
        with driver.current(context.handle):
            call("unloading a cubin", "cuModuleUnload", handle)

    return unload


@Once
def _modules(_context: Context) -> dict[str, Module]:
    return {}


def check_whole(cubin: bytes) -> None:
    """Raise DeviceError for what is no cubin, or part of one.

    The driver is told no length: it would read past the end, and take text for PTX.
    """
    fields = _HEADER.unpack(cubin[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    mark, _, machine, _, _, programs, sections, _, _, *sizes, _ = fields
    if not mark.startswith(b"\x7fELF\x02\x01") or machine != CUDA_MACHINE:
        raise DeviceError(
            f"these {len(cubin)} bytes begin with {cubin[:6]!r}, expected a cubin: "
            "compile to one, PTX and fat binaries are not launched."
        )
    end = max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    if end > len(cubin):
        raise DeviceError(
            f"this cubin has {len(cubin)} bytes, expected at least {end}: it was cut, "
            "read or compile it again."
        )


def _attribute(name: str) -> object:
    return driver.attribute(f"CUfunction_attribute.CU_FUNC_ATTRIBUTE_{name}")


def _attributes(asked: str, handle: object) -> Attributes:
    def value(name: str) -> int:
        number: int = call(asked, "cuFuncGetAttribute", _attribute(name), handle)
        return number

    return Attributes(
        registers=value("NUM_REGS"),
        local=value("LOCAL_SIZE_BYTES"),
        shared=value("SHARED_SIZE_BYTES"),
        constant=value("CONST_SIZE_BYTES"),
        max_threads=value("MAX_THREADS_PER_BLOCK"),
        arch=f"sm_{value('BINARY_VERSION')}",
    )


def _parameters(handle: object) -> tuple[int, ...]:
    """Ask for one parameter after another; the driver does not say how many."""
    names = driver.bindings()
    found: list[int] = []
    while True:
        status, _, size = names.cuFuncGetParamInfo(handle, len(found))
        if int(status):
            return tuple(found)
        found.append(size)
