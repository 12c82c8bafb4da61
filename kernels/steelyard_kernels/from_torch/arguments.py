"""A model's arguments and results in their structure, as PyTorch's pytrees have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard_device import install
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.errors import KernelError


class Structure:
    """Which tensors stand where in the arguments and results of an exported program."""

    def __init__(self, program: Any, name: str) -> None:
        self._name, self._call = name, program.call_spec
        signature = program.graph_signature
        self._inputs = [
            spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"
        ]
        self._outputs = [spec.arg for spec in signature.output_specs]

    def leaves(
        self, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments' tensors by their names in the graph.

        Raises KernelError for arguments of another structure, or other constants.
        """
        from torch.utils import _pytree as pytree

        spec = self._call.in_spec
        order: Sequence[str] = spec.children()[1].context
        named = {key: keywords[key] for key in order if key in keywords}
        named |= {key: each for key, each in keywords.items() if key not in named}
        leaves, found = pytree.tree_flatten((args, named))
        if found != spec:
            raise KernelError(
                f"{self._name}: got {_shown(args, keywords)}, expected arguments as it "
                f"was exported: {_expected(spec)}; call it so."
            )
        for known, leaf in zip(self._inputs, leaves, strict=True):
            constant = hasattr(known, "value")
            if constant and (type(leaf), leaf) != (type(known.value), known.value):
                raise KernelError(
                    f"{self._name}: {known.name} is {leaf!r}, expected {known.value!r} as "
                    "it was exported; call from_torch with it."
                )
        pairs = zip(self._inputs, leaves, strict=True)
        return {known.name: leaf for known, leaf in pairs}

    @staticmethod
    def has_tensors(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
        """Say whether an argument is PyTorch's tensor, or none an array."""
        import torch
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves((args, dict(keywords)))
        tensors = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        return tensors or not any(hasattr(leaf, "dtype") for leaf in leaves)

    def result(self, results: Sequence[Any]) -> Any:
        """Return results in the model's structure, with its constants."""
        from torch.utils import _pytree as pytree

        given = iter(results)
        leaves = [
            e.value if hasattr(e, "value") else next(given) for e in self._outputs
        ]
        return pytree.tree_unflatten(leaves, self._call.out_spec)


def _shown(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Say how many arguments there are, and which have names."""
    names = f" and {', '.join(keywords)}" if keywords else ""
    return f"{len(args)} positional arguments{names}"


def _expected(spec: Any) -> str:
    positional, named = spec.children()
    return _shown(tuple(positional.children()), dict.fromkeys(named.context))


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
