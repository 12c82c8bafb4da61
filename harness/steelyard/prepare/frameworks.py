"""Buffers as a library's own arrays, without a copy, and new arrays of that library.

On a GPU the library is told to work on our stream, so that what it launches lands
where clocks look.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

import numpy as np

from steelyard.declare import dtypes
from steelyard.declare.handles import CPU, CUDA
from steelyard.errors import BenchmarkError
from steelyard_device import cuda

DEVICES_OF: Final = {
    "numpy": (CPU, CUDA),
    "torch": (CPU, CUDA),
    "cupy": (CUDA,),
    "numba": (CUDA,),
}
"""Where each form is to be had; ``numpy`` on a GPU is an array of ours, `cuda.View`."""

_SHOWN: Final = {"torch": "PyTorch", "cupy": "CuPy", "numba": "Numba"}


@dataclass(frozen=True, slots=True)
class ArrayAdapter:
    """How arrays are handed to the work."""

    convert: Callable[[Any], Any]
    """Makes one of a buffer."""
    empty: Callable[[tuple[int, ...], str], Any]
    """Allocates a new one of a shape and dtype, as the library's users do."""
    stream: Any = None
    """What ``b.stream`` stands for; None where there are no streams."""
    library: str = ""
    """``torch 2.11.0``; empty for our own arrays. Triton's kernels take PyTorch's."""


def adapter(name: str, context: cuda.Context | None) -> ArrayAdapter:
    """Return the array adapter of a library on a GPU, or on the CPU where there is no ``context``.

    Raises:
        BenchmarkError: the library is not installed, or has no such arrays.
    """
    device = CPU if context is None else CUDA
    if device not in DEVICES_OF[name]:
        raise BenchmarkError(
            f"as_={name!r} hands over arrays on a GPU, but the case is on the {device}. "
            'Say b.on("cuda") first, or leave as_ out.'
        )
    if context is None:
        return _HOST[name]()
    for other in ("torch", "cupy"):  # what the work calls may use either
        if other == name or sys.modules.get(other) is not None:
            _STREAMED[other](_library(other), context)
    return _DEVICE[name](context)


def _named(*modules: str) -> str:
    """Return names and versions of those that are imported."""
    loaded = {name: sys.modules.get(name) for name in modules}
    return ", ".join(f"{n} {m.__version__}" for n, m in loaded.items() if m is not None)


def _library(name: str) -> Any:
    try:
        return importlib.import_module("numba.cuda" if name == "numba" else name)
    except ImportError:
        raise BenchmarkError(
            f"as_={name!r} needs {_SHOWN[name]}, which is not installed. Install "
            f"{name}, or leave the case out with -k."
        ) from None


def _host_numpy() -> ArrayAdapter:
    return ArrayAdapter(lambda array: array, np.empty)


def _host_torch() -> ArrayAdapter:
    torch = _library("torch")

    def convert(array: Any) -> Any:
        if array.dtype.name != dtypes.BFLOAT16:  # which is none of NumPy's own
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)

    return ArrayAdapter(convert, _torch_empty(torch, "cpu"), library=_named("torch"))


def _device_numpy(context: cuda.Context) -> ArrayAdapter:
    stream = cuda.Stream(context.stream)
    return ArrayAdapter(lambda view: view, partial(cuda.Buffer, context), stream)


def _device_torch(context: cuda.Context) -> ArrayAdapter:
    torch = _library("torch")
    if not torch.cuda.is_available():
        raise BenchmarkError(
            f"PyTorch {torch.__version__} was built without CUDA, or finds no GPU. "
            "Install one with CUDA, or leave the case out with -k."
        )
    empty = _torch_empty(torch, f"cuda:{context.device.index}")
    stream = torch.cuda.current_stream(context.device.index)
    return ArrayAdapter(torch.from_dlpack, empty, stream, _named("torch", "triton"))


def _device_cupy(context: cuda.Context) -> ArrayAdapter:
    cupy = _library("cupy")
    stream = _cupys_stream(cupy, context)
    return ArrayAdapter(cupy.from_dlpack, cupy.empty, stream, _named("cupy"))


def _device_numba(context: cuda.Context) -> ArrayAdapter:
    """Numba has no current stream: each launch names one, as ``kernel[..., stream]``."""
    numba = _library("numba")
    numba.select_device(context.device.index)
    stream = numba.external_stream(context.stream)
    return ArrayAdapter(
        partial(numba.as_cuda_array, sync=False),
        partial(numba.device_array, stream=stream),
        stream,
        _named("numba"),
    )


def _torch_empty(torch: ModuleType, device: str) -> Callable[..., Any]:
    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    return empty


def _stream_torch(torch: Any, context: cuda.Context) -> None:
    if torch.cuda.is_available():  # of one for the CPU nobody asks more
        device = torch.device("cuda", context.device.index)
        torch.cuda.set_stream(torch.cuda.ExternalStream(context.stream, device=device))


def _stream_cupy(cupy: Any, context: cuda.Context) -> None:
    cupy.cuda.Device(context.device.index).use()
    _cupys_stream(cupy, context).use()


def _cupys_stream(cupy: Any, context: cuda.Context) -> Any:
    """Return ours as CuPy's: by the protocol of streams, which came with CuPy 14."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(cuda.Stream(context.stream))
    return cupy.cuda.ExternalStream(context.stream, context.device.index)


_HOST: Final = {"numpy": _host_numpy, "torch": _host_torch}
_DEVICE: Final = {
    "numpy": _device_numpy,
    "torch": _device_torch,
    "cupy": _device_cupy,
    "numba": _device_numba,
}
_STREAMED: Final = {"torch": _stream_torch, "cupy": _stream_cupy}
