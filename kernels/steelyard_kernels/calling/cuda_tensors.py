"""Tensors of bulk copies: what the driver makes of an array's place and shape.

A launch is passed its 128 bytes by value; one is made for each array and place, and
remembered.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Final

from steelyard_device.cuda import driver
from steelyard_device.errors import DeviceError
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.dtypes import of
from steelyard_kernels.ir.loops import Tensor

BYTES: Final = 128
ALIGNMENT: Final = 64  # of what the driver writes to
REMEMBERED: Final = 1024
VERSION: Final = 12000  # of CUDA, that brought the function
# CUtensorMapDataType, CUtensorMapSwizzle, and 256 bytes of CUtensorMapL2promotion.
TYPES: Final = {"float16": 6, "bfloat16": 9}
SWIZZLES: Final = {32: 1, 64: 2, 128: 3}
L2_PROMOTION: Final = 3


def slots(
    convention: Convention,
    context: int,
    addresses: Sequence[int],
    scalars: Mapping[str, float],
) -> list[int | bytes]:
    """Return the words of a launch's slots, and the bytes of its tensors."""
    words: list[int | bytes] = [*binding.packed(convention, addresses, scalars)]
    for place, number, tensor in convention.tensors:
        words[place] = encoded(tensor, context, addresses[number])
    return words


@functools.lru_cache(maxsize=REMEMBERED)
def encoded(tensor: Tensor, context: int, address: int) -> bytes:
    """Return the driver's CUtensorMap of a tensor in a context's array at an address.

    Raises:
        CUDAError: the driver refuses it.
    """
    room = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    base = ctypes.addressof(room)
    at = -(-base // ALIGNMENT) * ALIGNMENT
    axes = len(tensor.extents)
    start = address + tensor.first * of(tensor.dtype).bytes
    described = (
        TYPES[tensor.dtype],
        axes,
        start,
        (ctypes.c_uint64 * axes)(*tensor.extents),
        (ctypes.c_uint64 * (axes - 1))(*tensor.strides),
        (ctypes.c_uint32 * axes)(*tensor.box),
        (ctypes.c_uint32 * axes)(*[1] * axes),
        0,  # not interleaved
        SWIZZLES[tensor.swizzle],
        L2_PROMOTION,
        0,  # zeros beyond the edges
    )
    with driver.current(context):
        code = _encode()(at, *described)
    if code:
        shown = f"{tensor.dtype} {tensor.extents} by {tensor.box} at {start:#x}"
        raise driver.failure(f"describing a tensor of {shown} to bulk copies", code)
    return room.raw[at - base :][:BYTES]


@functools.cache
def _encode() -> ctypes._NamedFuncPointer | ctypes._FuncPointer:
    """Return cuTensorMapEncodeTiled; cuda.bindings' own gives it unaligned memory."""
    name = "cuTensorMapEncodeTiled"
    asked = f"finding {name} in the CUDA driver"
    found = driver.call(asked, "cuGetProcAddress", name.encode(), VERSION, 0)
    if not found[0]:
        raise DeviceError(f"this CUDA driver has no {name}: install a newer one.")
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    kinds = (pointer, number, number, *[pointer] * 5, *[number] * 4)
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(int(found[0]))
