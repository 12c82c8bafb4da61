"""The CUDA driver through cuda.bindings: loaded by the first call, errors as sentences.

Handles are plain integers here, as cuda.bindings, PyTorch and CuPy all take them.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from steelyard_device import install
from steelyard_device.errors import DeviceError
from steelyard_device.threads import Once

_LOST = "this process has lost the GPU: start another one"
_FAULT = (
    "this kernel or one before it did that, and this process has lost the GPU: start "
    "another one, and look for the fault with compute-sanitizer"
)
_OTHER_CODE = "give a cubin made for this very GPU, as device().arch names it"

_FAULTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": _FAULT,
    "CUDA_ERROR_MISALIGNED_ADDRESS": _FAULT,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": _FAULT,
    "CUDA_ERROR_INVALID_PC": _FAULT,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": _FAULT,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": _FAULT,
    "CUDA_ERROR_ASSERT": _FAULT,
    "CUDA_ERROR_LAUNCH_FAILED": _FAULT,
    "CUDA_ERROR_LAUNCH_TIMEOUT": _FAULT,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": _LOST,
    "CUDA_ERROR_ECC_UNCORRECTABLE": _LOST,
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": _LOST,
    "CUDA_ERROR_CONTAINED": _LOST,
    "CUDA_ERROR_DEINITIALIZED": _LOST,
    "CUDA_ERROR_EXTERNAL_DEVICE": _LOST,
    "CUDA_ERROR_UNKNOWN": _LOST,
}
"""After one of these every later call of the process fails."""

_HINTS = {
    **_FAULTS,
    "CUDA_ERROR_INVALID_VALUE": "check the extents and sizes that were asked for",
    "CUDA_ERROR_OUT_OF_MEMORY": "free buffers, take a smaller case, or end other "
    "programs on the GPU",
    "CUDA_ERROR_NOT_INITIALIZED": "CUDA does not outlive a fork: start processes with "
    "multiprocessing's spawn",
    "CUDA_ERROR_NO_DEVICE": "check nvidia-smi and CUDA_VISIBLE_DEVICES, or measure on "
    "the CPU",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another program has the GPU to itself: wait",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine after a driver's update",
    "CUDA_ERROR_INVALID_IMAGE": _OTHER_CODE,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": _OTHER_CODE,
    "CUDA_ERROR_NOT_FOUND": "ask for one of the entries that cubin.read lists",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the registers or shared memory of a block "
    "exceed a multiprocessor's: take fewer threads, or limit its registers",
    "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE": "update a graph with as many launches as "
    "it was made of, or make another",
    "CUDA_ERROR_NOT_SUPPORTED": "this GPU or its virtualisation lacks it: take another",
}
"""The next step, by the driver's own name of an error."""


class CUDAError(DeviceError):
    """The driver refused a call: its own ``name`` of the error, and a sentence."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(name, sentence)  # what a pickle hands to the next process
        self.name = name
        self.sentence = sentence

    def __str__(self) -> str:
        """Say what was asked, what the driver said, and what to do."""
        return self.sentence

    @property
    def lost(self) -> bool:
        """Whether this process can use the GPU no more."""
        return self.name in _FAULTS


@Once
def bindings() -> Any:
    """Load and start the driver.

    Its compute cache is switched off before (it reads the variable once), as
    ``nvrtc_library.bindings`` has to.

    Raises:
        DeviceError: there is no driver, or nothing to call it with.
        CUDAError: it does not start, as on a machine without a GPU.
    """
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    try:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs
    except ImportError as error:
        raise DeviceError(
            f"there is nothing to call a GPU with: {install.command('cuda')}."
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceError(
            "this machine has no CUDA driver (libcuda.so.1): install NVIDIA's where "
            "there is a GPU, or measure on the CPU."
        ) from error
    if int(status):
        raise _failure(driver, "starting the CUDA driver", int(status))
    return driver


def call(asked: str, function: str, *args: Any) -> Any:
    """Call the driver's ``function`` and return what it gave: nothing, one, or a tuple.

    Raises:
        CUDAError: it failed at what was ``asked``, "loading a cubin".
    """
    status, *values = getattr(bindings(), function)(*args)
    if int(status):
        raise failure(asked, int(status))
    return tuple(values) if len(values) > 1 else values[0] if values else None


def failure(asked: str, code: int) -> CUDAError:
    """Return the error that the driver's ``code`` stands for."""
    return _failure(bindings(), asked, code)


def _failure(driver: Any, asked: str, code: int) -> CUDAError:
    try:
        status = driver.CUresult(code)
    except ValueError:
        hint = (
            "the driver is newer than cuda.bindings, which has no name for it: update"
        )
        return CUDAError(str(code), f"{asked} failed with CUDA error {code}: {hint}.")
    name: str = status.name
    _, text = driver.cuGetErrorString(status)
    hint = _HINTS.get(name, "look the name up in the CUDA driver's manual")
    return CUDAError(name, f"{asked} failed with {name} ({text.decode()}): {hint}.")


@contextmanager
def current(context: int) -> Iterator[None]:
    """Make ``context`` the calling thread's, and put back what it had.

    Which context is current is what PyTorch calls the current device.
    """
    if int(call("asking for the current context", "cuCtxGetCurrent")) == context:
        yield
        return
    call("making a context current", "cuCtxPushCurrent", context)
    try:
        yield
    finally:
        bindings().cuCtxPopCurrent()  # unchecked: after a fault it would hide it


def attribute(name: str) -> Any:
    """Return a constant of the driver, ``CUmemPool_attribute.CU_MEMPOOL_ATTR_...``."""
    found = bindings()
    for part in name.split("."):
        found = getattr(found, part)
    return found


def address(name: str, version: int) -> int:
    """Return where a function of the driver is, as that ``version`` of CUDA has it.

    Raises:
        DeviceError: the driver lacks it.
    """
    asked = f"finding {name} in the CUDA driver"
    found = call(asked, "cuGetProcAddress", name.encode(), version, 0)
    if not found[0]:
        raise DeviceError(
            f"this CUDA driver has no {name} of CUDA {version // 1000}: install a newer "
            "one."
        )
    return int(found[0])


def owned(owner: object, context: int, function: str, *args: Any) -> Callable[[], None]:
    """Have ``function`` give something back when its ``owner`` is dropped.

    Returns what does so sooner; once is enough. Never at the end of the process, when
    the driver may be gone and takes everything back by itself.
    """
    release = weakref.finalize(owner, _release, context, function, args)
    release.atexit = False
    return release


def _release(context: int, function: str, args: tuple[Any, ...]) -> None:
    """Call ``function`` whatever it says: after a fault, that was told of before."""
    with suppress(CUDAError), current(context):
        getattr(bindings(), function)(*args)
