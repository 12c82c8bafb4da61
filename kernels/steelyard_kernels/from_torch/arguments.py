"""A model's arguments and results in their structure, as PyTorch's pytrees have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        """Say whether an argument is PyTorch's tensor."""
        import torch
        from torch.utils import _pytree as pytree

        leaves = pytree.tree_leaves((args, dict(keywords)))
        return any(isinstance(leaf, torch.Tensor) for leaf in leaves)

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
