"""Launching a cubin on the GPU with NumPy arrays, for tests that need one."""

import numpy as np
import pytest

from steelyard_device import cuda
from steelyard_device.errors import DeviceError


def context():
    """Return the context of the first GPU; skip the test without one."""
    pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra")
    try:
        cuda.device()
    except DeviceError:
        pytest.skip("needs a GPU")
    return cuda.context()


def launch(cubin, entry, grid, block, args):
    """Run a kernel of a cubin once and copy arrays that can be written back, in place.

    `args` are NumPy arrays, each of which gets memory of its own, and ctypes scalars.
    """
    found = cuda.context()
    buffers = [
        (arg, cuda.copy_of(found, arg)) for arg in args if isinstance(arg, np.ndarray)
    ]
    addresses = iter([buffer.address for _, buffer in buffers])
    slots = [
        next(addresses) if isinstance(arg, np.ndarray) else bytes(arg) for arg in args
    ]
    function = cuda.load(found, cubin).function(entry)
    cuda.Launch(function, slots, grid=grid, block=block).launch()
    for array, buffer in buffers:
        if array.flags.writeable:
            buffer.read(array)
