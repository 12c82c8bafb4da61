"""PyTorch's tensors in memory: what a launch takes of them, and weights from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steelyard_device import install
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.errors import KernelError

Weights = Mapping[str, Any] | str | Path


def taken(leaf: Any, *, copies: bool = True) -> Any:
    """Return an argument as a launch takes it: tensors of the host as NumPy's arrays.

    These share their memory; unless it `copies` what is not contiguous. What lies on a GPU
    stays there.
    """
    import torch

    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor = leaf.detach()
    tensor = tensor.contiguous() if copies else tensor
    if tensor.is_cuda:
        return tensor
    dtype = dtypes.of(str(tensor.dtype).removeprefix("torch.")).numpy
    if np.dtype(dtype).isbuiltin == 1:
        return tensor.numpy()
    return (
        tensor.view(torch.uint8 if dtype.itemsize == 1 else torch.uint16)
        .numpy()
        .view(dtype)
    )


def given_back(result: Any) -> Any:
    """Return a result as PyTorch's tensor, in the same memory."""
    import torch

    if isinstance(result, Array):  # of a kernel that calls this one
        return result
    if not isinstance(result, np.ndarray):
        return torch.from_dlpack(result)
    if result.dtype.isbuiltin == 1:
        return torch.from_numpy(result)
    plain = result.view(np.uint8 if result.dtype.itemsize == 1 else np.uint16)
    return torch.from_numpy(plain).view(getattr(torch, result.dtype.name))


def read(name: str, weights: Weights) -> Mapping[str, Any]:
    """Return weights by their names in the model, of a file or as they were given.

    Raises KernelError where safetensors is not installed.
    """
    if not isinstance(weights, str | Path):
        return weights
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise KernelError(
            f"{name}: {weights} is read by safetensors, which is not installed: "
            f"{install.command('torch')}."
        ) from None
    loaded: Mapping[str, Any] = load_file(weights)
    return loaded
