"""What the driver makes of an array's place and shape for bulk copies: a CUtensorMap."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Final

from steelyard_device.cuda import driver

BYTES: Final = 128
ALIGNMENT: Final = 64  # of what the driver writes to
VERSION: Final = 12000  # of CUDA, that brought the function
# CUtensorMapDataType with bytes of an element, CUtensorMapSwizzle, and 256 bytes of
# CUtensorMapL2promotion.
TYPES: Final = {
    "float16": (6, 2),
    "bfloat16": (9, 2),
    "float32": (7, 4),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8"), (0, 1)),  # bytes
}
SWIZZLES: Final = {32: 1, 64: 2, 128: 3}
L2_PROMOTION: Final = 3


def encoded(
    context: int,
    address: int,
    *,
    dtype: str,
    first: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
) -> bytes:
    """Return the 128 bytes that a launch is passed of an array at an address.

    Axes are innermost first: ``extents`` in elements, ``strides`` of all but the first in
    bytes, ``box`` in elements; the tensor begins ``first`` elements behind the address.

    Raises:
        CUDAError: the driver refuses it.
    """
    room = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    base = ctypes.addressof(room)
    at = -(-base // ALIGNMENT) * ALIGNMENT
    axes = len(extents)
    number, width = TYPES[dtype]
    start = address + first * width
    described = (
        number,
        axes,
        start,
        (ctypes.c_uint64 * axes)(*extents),
        (ctypes.c_uint64 * (axes - 1))(*strides),
        (ctypes.c_uint32 * axes)(*box),
        (ctypes.c_uint32 * axes)(*[1] * axes),
        0,  # not interleaved
        SWIZZLES[swizzle],
        L2_PROMOTION,
        0,  # zeros beyond the edges
    )
    with driver.current(context):
        code = _encode()(at, *described)
    if code:
        shown = f"{dtype} {tuple(extents)} by {tuple(box)} at {start:#x}"
        raise driver.failure(f"describing a tensor of {shown} to bulk copies", code)
    return room.raw[at - base :][:BYTES]


@functools.cache
def _encode() -> ctypes._NamedFuncPointer | ctypes._FuncPointer:
    """Return cuTensorMapEncodeTiled; cuda.bindings' own gives it unaligned memory."""
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    kinds = (pointer, number, number, *[pointer] * 5, *[number] * 4)
    at = driver.address("cuTensorMapEncodeTiled", VERSION)
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(at)
