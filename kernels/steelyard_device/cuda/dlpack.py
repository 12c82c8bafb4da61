"""Memory of a GPU handed to other libraries as DLPack does, without a copy.

The layout is that of dlpack.h, version 0.8: https://dmlc.github.io/dlpack/latest/
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from steelyard_device.native_call import python

CUDA: Final = 2
"""DLPack's number of memory on a CUDA GPU."""

_NAME: Final = b"dltensor"
"""Of a capsule whose tensor nobody has taken; who takes it renames it."""

_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLPack's numbers of kinds of elements, by NumPy's."""

_FOREIGN: Final = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
"""Those of ml_dtypes' dtypes by name; of float8 since DLPack 1.1."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", _DELETER),
    )


_LENT: dict[int, Any] = {}
"""What others hold, by the address of its description: kept until they are done."""


def _given_back(address: int, lent: dict[int, Any] = _LENT) -> None:
    lent.pop(address, None)


_is_ours = python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = python(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
)


def _dropped(
    capsule: int,
    lent: dict[int, Any] = _LENT,
    is_ours: Any = _is_ours,
    pointer: Any = _pointer,
    name: bytes = _NAME,
) -> None:
    """Take back what nobody took: of a taken one, its taker says when he is done."""
    if is_ours(capsule, name):
        lent.pop(pointer(capsule, name), None)


_GIVEN_BACK: Final = _DELETER(_given_back)
_DROPPED: Final = _DELETER(_dropped)
for _callback in (_GIVEN_BACK, _DROPPED):  # tensors may outlive the modules' names
    python("Py_IncRef", None, ctypes.py_object)(_callback)

_new_capsule = python(
    "PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DELETER
)


def capsule(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, owner: Any
) -> Any:
    """Describe a C-contiguous array; ``owner`` is kept as long as somebody has it."""
    count = len(shape)
    lengths = (ctypes.c_int64 * count)(*shape)
    steps = [1] * count
    for axis in range(count - 1, 0, -1):
        steps[axis - 1] = steps[axis] * max(shape[axis], 1)
    strides = (ctypes.c_int64 * count)(*steps)
    tensor = _Tensor(
        address,
        CUDA,
        device,
        count,
        _FOREIGN.get(dtype.name) or _CODES[dtype.kind],
        8 * dtype.itemsize,
        1,
        ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    managed = _Managed(tensor, None, _GIVEN_BACK)
    at = ctypes.addressof(managed)
    _LENT[at] = (managed, lengths, strides, owner)
    return _new_capsule(at, _NAME, _DROPPED)
