"""The GPUs of this machine, and one made ready for work beside whoever else uses it."""

from __future__ import annotations

import uuid

from msgspec import Struct
from msgspec.structs import replace

from steelyard_device.cuda import driver
from steelyard_device.cuda.driver import call
from steelyard_device.errors import DeviceError
from steelyard_device.threads import Once

KEPT = 1 << 30
"""Bytes of freed memory that the pool keeps when it is next waited for: buffers of most
cases are there at once, and other programs find the GPU's memory free. A process that
kept everything would starve the worker that replaces it."""


class Device(Struct, frozen=True):
    """A GPU, as this process numbers it (CUDA_VISIBLE_DEVICES has its say)."""

    index: int
    name: str
    uuid: str
    """As nvidia-smi and NVML spell it, ``GPU-...``: their numbers may be others."""
    arch: str
    """What code is made for, as our targets spell it: ``sm_90a``."""
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int


def devices() -> tuple[Device, ...]:
    """Describe every GPU; no context is made.

    Raises:
        DeviceError: there is no driver.
        CUDAError: there is no GPU.
    """
    return tuple(
        device(index) for index in range(call("counting the GPUs", "cuDeviceGetCount"))
    )


@Once
def device(index: int = 0) -> Device:
    """Describe one GPU; raises as ``devices`` does, and for an index there is not."""
    count = call("counting the GPUs", "cuDeviceGetCount")
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no GPU {index}, expected 0 to {count - 1}: choose one that "
            "nvidia-smi lists and CUDA_VISIBLE_DEVICES lets through."
        )
    asked = f"describing GPU {index}"
    handle = call(asked, "cuDeviceGet", index)
    name = call(asked, "cuDeviceGetName", 256, handle)
    major = _value(index, "COMPUTE_CAPABILITY_MAJOR")
    minor = _value(index, "COMPUTE_CAPABILITY_MINOR")
    return Device(
        index=index,
        name=name.partition(b"\0")[0].decode(),
        uuid=f"GPU-{uuid.UUID(bytes=call(asked, 'cuDeviceGetUuid', handle).bytes)}",
        # From Hopper on a GPU has instructions that its own variant alone may use.
        arch=f"sm_{major}{minor}{'a' if major >= 9 else ''}",
        multiprocessors=_value(index, "MULTIPROCESSOR_COUNT"),
        l2_bytes=_value(index, "L2_CACHE_SIZE"),
        memory_bytes=call(asked, "cuDeviceTotalMem", handle),
    )


def _value(index: int, name: str) -> int:
    attribute = driver.attribute(f"CUdevice_attribute.CU_DEVICE_ATTRIBUTE_{name}")
    value: int = call(f"asking GPU {index}", "cuDeviceGetAttribute", attribute, index)
    return value


class Stream(Struct, frozen=True):
    """A stream as other libraries take it: by its ``handle``."""

    handle: int

    def __int__(self) -> int:
        """Return the handle, as the driver calls take it."""
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of this protocol (of cuda.core) and the handle."""
        return 0, self.handle


class Context(Struct, frozen=True):
    """A GPU ready for work: handles of its context, and of our stream and memory pool.

    It is the primary context, which PyTorch, CuPy and the CUDA runtime use too, so that
    memory and code are everybody's.
    """

    device: Device
    handle: int
    stream: int
    """Waits for no other stream, nor they for it."""
    pool: int

    def wait(self, stream: int | None = None) -> None:
        """Return when everything on ``stream``, or on ours, is done."""
        with driver.current(self.handle):
            call(
                f"waiting for GPU {self.device.index}",
                "cuStreamSynchronize",
                self.stream if stream is None else stream,
            )

    def wait_for_all(self) -> None:
        """Return when everything of this process on the GPU is done, whoever began it.

        Streams of other libraries are waited for too.
        """
        with driver.current(self.handle):
            call(f"waiting for all of GPU {self.device.index}", "cuCtxSynchronize")

    def free_bytes(self) -> int:
        """Return how much memory nobody uses, other programs and our pool included."""
        asked = f"asking for the memory of GPU {self.device.index}"
        with driver.current(self.handle):
            free, _ = call(asked, "cuMemGetInfo")
        number: int = free
        return number


def context(index: int = 0) -> Context:
    """Return this process's context of a GPU, made on first use (0.4 s).

    Raises as ``device`` does. It lives as long as the process.
    """
    return _context(index)


@Once
def _context(index: int) -> Context:
    found = device(index)
    asked = f"starting work on GPU {index} ({found.name})"
    handle = int(call(asked, "cuDevicePrimaryCtxRetain", index))
    with driver.current(handle):
        return Context(found, handle, _stream(asked), _pool(asked, index))


@Once
def beside(context: Context) -> Context:
    """Return the same context with another stream of ours, made on first use.

    Neither stream waits for the other; memory of either is the other's too.
    """
    with driver.current(context.handle):
        return replace(context, stream=_stream("making another stream"))


def _stream(asked: str) -> int:
    not_blocking = driver.attribute("CUstream_flags.CU_STREAM_NON_BLOCKING")
    return int(call(asked, "cuStreamCreate", int(not_blocking)))


def _pool(asked: str, index: int) -> int:
    """Make a memory pool of our own: how the default one behaves is everybody's."""
    names = driver.bindings()
    properties = names.CUmemPoolProps()
    properties.allocType = names.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = names.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = index
    pool = call(asked, "cuMemPoolCreate", properties)
    threshold = names.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    kept = names.cuuint64_t(KEPT)
    call(asked, "cuMemPoolSetAttribute", pool, threshold, kept)
    return int(pool)
