"""Launching a cubin on the GPU with NumPy arrays, for tests that need one."""

import ctypes

import numpy as np
import pytest


def context():
    """Make the first GPU's primary context current; skip the test without a GPU.

    Returns the architecture that a cubin for it is compiled for: sm_90a.
    """
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra")
    try:
        failed = driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS
    except RuntimeError:  # there is no libcuda to load
        failed = True
    if failed:
        pytest.skip("needs a GPU")
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    names = driver.CUdevice_attribute
    major, minor = (
        checked(driver.cuDeviceGetAttribute(name, device))
        for name in (
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def launch(cubin, entry, grid, block, args):
    """Run a kernel of a cubin once and copy its arrays back, in place.

    `args` are NumPy arrays, each of which gets memory of its own, and ctypes scalars.
    """
    from cuda.bindings import driver

    image = np.frombuffer(cubin, np.uint8)
    module = checked(driver.cuModuleLoadData(image.ctypes.data))
    memory = []
    try:
        function = checked(driver.cuModuleGetFunction(module, entry.encode()))
        values, types = [], []
        for arg in args:
            if isinstance(arg, np.ndarray):
                at = checked(driver.cuMemAlloc(max(arg.nbytes, 1)))
                memory.append((at, arg))
                checked(driver.cuMemcpyHtoD(at, arg.ctypes.data, arg.nbytes))
                values.append(int(at))
                types.append(ctypes.c_void_p)
            else:
                values.append(arg.value)
                types.append(type(arg))
        given = (tuple(values), tuple(types))
        checked(
            driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, 0, given, 0)
        )
        checked(driver.cuCtxSynchronize())
        for at, array in memory:
            checked(driver.cuMemcpyDtoH(array.ctypes.data, at, array.nbytes))
    finally:
        for at, _ in memory:
            driver.cuMemFree(at)
        driver.cuModuleUnload(module)


def checked(answer):
    """Return what a driver call gave, without its status; an error fails the test."""
    status, *values = answer
    assert int(status) == 0, status
    return values[0] if values else None
