"""A GPU whose memory is the host's: what the driver would do, done at once."""

import ctypes
from types import SimpleNamespace

import numpy as np

from steelyard.declare import dtypes
from steelyard_device.cuda.device import Context, Device

DEVICE = Device(0, "a GPU", "GPU-0", "sm_90a", 132, 60 << 20, 1 << 30)
CONTEXT = Context(DEVICE, handle=0xC0, stream=0x57, pool=0xB0)
BESIDE = Context(DEVICE, handle=0xC0, stream=0x58, pool=0xB0)


class Driver:
    """The calls of the driver that memory needs, over host memory."""

    def __init__(self):
        self.memory = {}
        self.free = 1 << 30
        self.calls = []
        self.refuses = set()

    def cuCtxGetCurrent(self):  # noqa: N802 # the driver's name
        """Say that ours is current."""
        return 0, CONTEXT.handle

    def cuMemGetInfo(self):  # noqa: N802 # the driver's name
        """Say what is free."""
        return 0, self.free, DEVICE.memory_bytes

    def cuMemAllocFromPoolAsync(self, size, _pool, _stream):  # noqa: N802 # the driver's name
        """Allocate, aligned as a pool does."""
        if "alloc" in self.refuses:
            return 2, None
        raw = np.zeros(size + 256, np.uint8)
        address = -(-raw.ctypes.data // 256) * 256
        self.memory[address] = raw
        return 0, address

    def cuMemFreeAsync(self, address, _stream):  # noqa: N802 # the driver's name
        """Free."""
        self.memory.pop(address, None)
        return (0,)

    def copy(self, to, source, size, _stream):
        """Copy either way."""
        self.calls.append("copy")
        ctypes.memmove(to, source, size)
        return (0,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = copy  # noqa: N815 # the driver's names

    def set(self, dtype, to, value, count):
        """Fill."""
        self.calls.append("set")
        size = count * np.dtype(dtype).itemsize
        held = np.frombuffer((ctypes.c_char * size).from_address(to), np.uint8)
        held[:] = np.frombuffer(np.full(count, value, dtype).tobytes(), np.uint8)
        return (0,)

    def cuMemsetD8Async(self, to, value, count, _):  # noqa: N802 # the driver's name
        """Fill bytes."""
        return self.set(np.uint8, to, value, count)

    def cuMemsetD16Async(self, to, value, count, _):  # noqa: N802 # the driver's name
        """Fill half words."""
        return self.set(np.uint16, to, value, count)

    def cuMemsetD32Async(self, to, value, count, _):  # noqa: N802 # the driver's name
        """Fill words."""
        return self.set(np.uint32, to, value, count)

    def cuStreamSynchronize(self, _stream):  # noqa: N802 # the driver's name
        """Wait for nothing."""
        self.calls.append("wait")
        return (0,)

    def cuCtxSynchronize(self):  # noqa: N802 # the driver's name
        """Wait for nothing."""
        self.calls.append("wait")
        return (0,)

    def CUresult(self, code):  # noqa: N802 # the driver's name
        """Name an error."""
        return SimpleNamespace(name={2: "CUDA_ERROR_OUT_OF_MEMORY"}[code])

    def cuGetErrorString(self, _):  # noqa: N802 # the driver's name
        """Describe one."""
        return 0, b"as the driver says"


class Tools:
    """The questions of `cuda.tools`, answered by NumPy."""

    def checksum(self, view):
        """Return a hash of the bytes."""
        return hash(view.read().tobytes())

    def holds_only(self, view, pattern):
        """Whether nothing else is held."""
        return view.read().tobytes() == pattern * (view.nbytes // len(pattern))

    def differing(self, a, b):
        """Count elements whose bits differ."""
        one, two = (
            np.frombuffer(each.read().tobytes(), f"V{each.dtype.itemsize}")
            for each in (a, b)
        )
        return int(np.count_nonzero(one != two))

    def gather(self, view, rows):
        """Return rows."""
        return np.atleast_1d(view.read())[rows]

    def normal_count(self, view):
        """Count normal numbers, and say whether all bits are the same."""
        data = view.read().ravel()
        size = np.abs(data.astype(np.float64))
        normal = (size >= float(dtypes.limits(data.dtype).tiny)) & np.isfinite(size)
        bits = set(np.frombuffer(data.tobytes(), f"V{data.itemsize}").tolist())
        return int(np.count_nonzero(normal)), len(bits) == 1


def install(monkeypatch, fake=None):
    """Put such a GPU in the driver's place; return it."""
    from steelyard.prepare import gpu_buffers as device_buffers
    from steelyard_device.cuda import driver

    fake = fake or Driver()
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    monkeypatch.setattr(device_buffers, "tools", Tools())
    return fake
