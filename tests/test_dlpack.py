"""Memory handed over as DLPack does, read back as its header says."""

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest

from steelyard_device.cuda import dlpack

pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
USED = b"used_dltensor"


class Owner:
    """Something that can be seen to be dropped."""


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [
        *(("bool", 6, 8), ("int8", 0, 8), ("uint16", 1, 16), ("float64", 2, 64)),
        *((ml_dtypes.bfloat16, 4, 16), (ml_dtypes.float8_e4m3fn, 10, 8)),
        (ml_dtypes.float8_e5m2, 12, 8),
    ],
)
@pytest.mark.parametrize(
    ("shape", "strides"),
    [((), []), ((7,), [1]), ((2, 3, 4), [12, 4, 1]), ((2, 0, 3), [3, 3, 1])],
)
def test_a_capsule_says_what_the_array_is(shape, strides, dtype, code, bits):
    """C-contiguous, on the GPU that was named."""
    capsule = dlpack.capsule(4096, shape, np.dtype(dtype), 3, None)
    tensor = dlpack._Managed.from_address(pointer(capsule, b"dltensor")).tensor
    assert (tensor.data, tensor.byte_offset, tensor.lanes) == (4096, 0, 1)
    assert (tensor.device_type, tensor.device_id) == (2, 3)
    assert (tensor.code, tensor.bits) == (code, bits)
    assert tensor.dimensions == len(shape)
    assert [tensor.shape[n] for n in range(len(shape))] == list(shape)
    assert [tensor.strides[n] for n in range(len(shape))] == strides


def test_a_capsule_that_nobody_takes_gives_its_owner_back():
    """When it is dropped."""
    lent = len(dlpack._LENT)
    capsule = dlpack.capsule(0, (1,), np.dtype("f4"), 0, Owner())
    assert len(dlpack._LENT) == lent + 1
    del capsule
    gc.collect()
    assert len(dlpack._LENT) == lent


def test_who_takes_a_tensor_keeps_its_owner_until_he_is_done():
    """Also when the capsule is gone long before."""
    lent = len(dlpack._LENT)
    capsule = dlpack.capsule(0, (1,), np.dtype("f4"), 0, Owner())
    at = pointer(capsule, b"dltensor")
    rename(capsule, USED)
    del capsule
    gc.collect()
    assert len(dlpack._LENT) == lent + 1
    dlpack._Managed.from_address(at).deleter(at)
    assert len(dlpack._LENT) == lent
