"""The models of `models` in PyTorch's functions: eager, or compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from .common import Made, inductor

EACH: Final = 16
"""Weights of a layer."""


def _layers(x: Any, *weights: Any) -> Any:
    from torch.nn import functional

    size = x.shape[-1:]
    for first in range(0, len(weights), EACH):
        w = weights[first : first + EACH]
        q, k, v = (
            functional.linear(x, w[i], w[i + 1]).unflatten(-1, (12, -1))
            for i in (0, 2, 4)
        )
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        a = functional.scaled_dot_product_attention(q, k, v)
        y = functional.linear(a.transpose(1, 2).flatten(2), w[6], w[7])
        x = functional.layer_norm(x + y, size, w[8], w[9], 1e-12)
        y = functional.gelu(functional.linear(x, w[10], w[11]))
        y = functional.linear(y, w[12], w[13])
        x = functional.layer_norm(x + y, size, w[14], w[15], 1e-12)
    return x


def _forward(x: Any, *weights: Any, out: Any) -> None:
    import torch

    with torch.no_grad():
        out.copy_(_layers(x, *weights))


def forward(impl: str, device: str) -> Callable[..., Any]:
    """Return the layers: eager, or compiled, also with what it finds by measuring."""
    return _of(impl, device, _forward)


def gradient(impl: str) -> Callable[..., Any]:
    """Return a pass forward and one backward, whose results are new tensors."""
    if impl == "torch":
        return _gradient(lambda: _layers)
    mode = "max-autotune-no-cudagraphs" if impl == "inductor_tuned" else None
    return _gradient(inductor(_layers, mode).make)


def _of(impl: str, device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if impl == "torch":
        return function
    mode = "max-autotune-no-cudagraphs" if impl == "inductor_tuned" else None
    compiled = inductor(function, mode)
    return compiled if device == "cpu" else Made(compiled.make)


def _gradient(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    leaves: dict[tuple[int, ...], Sequence[Any]] = {}

    def run(x: Any, g: Any, *weights: Any) -> Any:
        import torch

        where = tuple(each.data_ptr() for each in weights)
        if where not in leaves:
            leaves[where] = [each.detach().requires_grad_() for each in weights]
        y = make()(x, *leaves[where])
        return y.detach(), *torch.autograd.grad(y, leaves[where], g)

    return run


def mlp(x: Any, target: Any, *weights: Any, out: Sequence[Any]) -> None:
    """Write the loss of two layers, and its slopes."""
    import torch
    from torch.nn import functional

    leaves = [each.detach().requires_grad_() for each in weights]
    w1, b1, w2, b2 = leaves
    logits = torch.relu(x @ w1 + b1) @ w2 + b2
    loss = functional.cross_entropy(logits, target.long())
    for into, found in zip(
        out, (loss, *torch.autograd.grad(loss, leaves)), strict=True
    ):
        into.copy_(found.detach())
