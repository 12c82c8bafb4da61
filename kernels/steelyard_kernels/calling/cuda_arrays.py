"""Anyone's arrays on a GPU, as a launch needs them: ours, PyTorch's, CuPy's, Numba's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from steelyard_device import cuda
from steelyard_device.cuda import driver
from steelyard_kernels import dtypes
from steelyard_kernels.calling.bind import discontiguous
from steelyard_kernels.errors import KernelError

Strides: TypeAlias = tuple[int, ...]

LEGACY = 0
"""The stream that waits for all blocking ones. NumPy's neighbours call it 1 or nothing."""


class Placed(NamedTuple):
    """An array with its place: the GPU's context, and the stream that its owner uses.

    From the address on it is all that a launch depends on: an address is one GPU's.
    """

    given: Any
    context: cuda.Context
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int
    writeable: bool = True


class DiscontiguousError(KernelError):
    """Elements are not behind one another: `strides` bytes are between neighbours."""

    def __init__(self, kernel: str, name: str, at: Placed, strides: Strides) -> None:
        super().__init__(str(discontiguous(kernel, name, at.shape, strides)))
        self.at, self.strides = at, strides


def placed(kernel: str, name: str, array: Any) -> Placed:
    """Return what a launch needs of an array; raises KernelError if it cannot have it.

    DiscontiguousError, if it can be copied.
    """
    if isinstance(array, cuda.View):
        context = array.context
        return Placed(
            array, context, array.address, array.shape, array.dtype, context.stream
        )
    if getattr(array, "is_cuda", False):  # only PyTorch's say so
        return _of_torch(kernel, name, array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise KernelError(
            f"{kernel}: {name} is a {type(array).__name__}, expected an array on a GPU as "
            "the first argument is one; copy it there, cuda.copy_of does, or pass all "
            "others from the host."
        )
    return _of_interface(kernel, name, array, interface)


def _of_torch(kernel: str, name: str, tensor: Any) -> Placed:
    """Read a tensor by PyTorch's own methods.

    They know bfloat16 and the stream that it works on now; the interface knows neither,
    and refuses tensors that need a gradient.
    """
    shape = tuple(tensor.shape)
    try:
        dtype = _dtype(tensor.dtype)
    except KernelError:
        raise KernelError(
            f"{kernel}: {name} is a tensor of {tensor.dtype}, expected one of "
            f"{', '.join(each.name for each in dtypes.ALL)}; cast it to one of them."
        ) from None
    index = tensor.device.index
    at: int = tensor.data_ptr()
    found = Placed(tensor, cuda.context(index), at, shape, dtype, _current()(index))
    if not tensor.is_contiguous():
        strides = tuple([step * dtype.itemsize for step in tensor.stride()])
        raise DiscontiguousError(kernel, name, found, strides)
    return found


@functools.cache
def _dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's or ml_dtypes' dtype of a tensor's; raises KernelError."""
    name = str(dtype).removeprefix("torch.")
    return dtypes.of(name).numpy


@functools.cache
def _current() -> Callable[[int], int]:
    """Return what says on which stream PyTorch works now, of a GPU by its number.

    It is what PyTorch's own compiler and Triton call: the public way takes 1 us.
    """
    from torch import _C

    found: Callable[[int], int] = _C._cuda_getCurrentRawStream  # noqa: SLF001 # see above
    return found


def _of_interface(
    kernel: str, name: str, array: Any, interface: dict[str, Any]
) -> Placed:
    """Read the CUDA array interface, version 2 or 3 (Numba's manual describes it)."""
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    address, read_only = interface["data"]
    if not address and 0 not in shape:
        raise KernelError(
            f"{kernel}: {name} of shape {shape} lies at address 0, expected memory of a "
            "GPU; pass an array that is still alive."
        )
    stream = interface.get("stream")
    named = LEGACY if stream is None or stream == 1 else int(stream)
    context = cuda.context(_index(address))
    found = Placed(array, context, address, shape, dtype, named, not read_only)
    strides = interface.get("strides")
    if strides is not None and not _is_contiguous(shape, strides, dtype.itemsize):
        raise DiscontiguousError(kernel, name, found, tuple(strides))
    return found


def _is_contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> bool:
    """Say whether elements lie behind one another.

    An extent of one has any stride, and so has an array without elements.
    """
    if 0 in shape:
        return True
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _index(address: int) -> int:
    """Return the number of the GPU whose memory an address is; of none 0."""
    if not address:
        return 0
    ordinal = driver.attribute(
        "CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"
    )
    asked = f"asking whose memory {address:#x} is"
    number: int = driver.call(asked, "cuPointerGetAttribute", ordinal, address)
    return number
