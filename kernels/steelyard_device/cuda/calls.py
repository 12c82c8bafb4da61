"""Calls of the driver that launch kernels, as CUPTI's callbacks show them.

The structures are those of CUDA's ``generated_cuda_meta.h``, ``cuda.h`` and
``cupti_callbacks.h`` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from steelyard_device.errors import DeviceError

_EXTENTS = [
    (name, ctypes.c_uint32)
    for name in (
        "grid_x",
        "grid_y",
        "grid_z",
        "block_x",
        "block_y",
        "block_z",
        "shared",
    )
]


class _Plain(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        *_EXTENTS,
        ("stream", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("number", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        *_EXTENTS,
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


class _Extended(ctypes.Structure):
    _fields_ = (
        ("config", ctypes.POINTER(_Config)),
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
    )


class _Resource(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("descriptor", ctypes.c_void_p),
    )


class _Module(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint32),
        ("size", ctypes.c_size_t),
        ("cubin", ctypes.c_void_p),
    )


PLAIN: Final = ("cuLaunchKernel", "cuLaunchKernel_ptsz")
EXTENDED: Final = ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz")
COOPERATIVE: Final = ("cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz")

MEANT: Final = {
    2: "is cooperative",
    4: "has clusters",
    7: "records an event",
    11: "has clusters",
    12: "records an event",
}
"""CUlaunchAttributeID of what another launch would have to do as well, unless it is 0 or
clusters of one block; the others change when it runs, or how caches treat it."""

SIZED: Final = frozenset({4, 11})
"""Those whose value is three extents."""

_END, _POINTER, _SIZE = 0, 1, 2
"""CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE."""


class Call(Struct, frozen=True):
    """One launch, while the program is within its call."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    parameters: int
    """The address of an array with the address of each parameter; 0: they are ``extra``."""
    extra: int
    refused: str = ""
    """What of it no other launch can repeat."""

    @classmethod
    def of(cls, name: str, address: int) -> Call:
        """Read the parameters of the driver's function ``name``.

        Raises:
            DeviceError: it is none that launches.
        """
        if name in EXTENDED:
            told = _Extended.from_address(address)
            config = told.config.contents
            several = config.attributes[: config.count] if config.count else []
            meant = (MEANT[a.number & 0xFFFFFFFF] for a in several if _matters(a))
            return cls._made(told, config, told.extra or 0, next(meant, ""))
        if name in (*PLAIN, *COOPERATIVE):
            plain = _Plain.from_address(address)
            if name in COOPERATIVE:  # its parameters end before `extra`
                return cls._made(plain, plain, 0, MEANT[2])
            return cls._made(plain, plain, plain.extra or 0, "")
        raise DeviceError(f"{name} launches no kernel.")

    @classmethod
    def _made(cls, told: Any, config: Any, extra: int, refused: str) -> Call:
        return cls(
            told.function or 0,
            (config.grid_x, config.grid_y, config.grid_z),
            (config.block_x, config.block_y, config.block_z),
            config.shared,
            config.stream or 0,
            told.parameters or 0,
            extra,
            refused,
        )

    def values(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return what the parameters hold, by the offset and the bytes of each."""
        if self.parameters:
            each = (ctypes.c_void_p * len(places)).from_address(self.parameters)
            starts = [start or 0 for start in each]
        else:
            base = dict(_pairs(self.extra)).get(_POINTER, 0)
            starts = [base + offset for offset, _ in places]
        pairs = zip(starts, places, strict=True)
        return [ctypes.string_at(start, size) for start, (_, size) in pairs]


def _matters(attribute: _Attribute) -> bool:
    number = attribute.number & 0xFFFFFFFF
    if number not in MEANT:
        return False
    value = attribute.value[:3]
    return value not in ([1, 1, 1], [0, 0, 0]) if number in SIZED else any(value)


def _pairs(extra: int) -> Iterator[tuple[int, int]]:
    """Yield the words of ``extra``, each with the one behind it."""
    while extra:
        word, value = (ctypes.c_void_p * 2).from_address(extra)
        if not word:
            return
        yield word, value or 0
        extra += 16


def image(address: int) -> bytes:
    """Return the cubin of a module that was loaded, by CUPTI's data of a resource."""
    descriptor = _Resource.from_address(address).descriptor
    module = _Module.from_address(descriptor)
    return ctypes.string_at(module.cubin, module.size) if module.cubin else b""
