"""Two layers with ReLU between them, and the cross-entropy of their softmax.

x[rows, columns], the class of each row as an integer, w1[columns, units], b1[units],
w2[units, classes], b2[classes].
"""

from __future__ import annotations

from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import value_and_grad

WEIGHTS: Final = ("w1", "b1", "w2", "b2")


def loss(x: Any, target: Any, *weights: Any) -> Any:
    """Return the mean cross-entropy of the classes."""
    w1, b1, w2, b2 = weights
    logits = xp.maximum(x @ w1 + b1, 0) @ w2 + b2
    top = xp.max(logits, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[:, 0]
    hit = xp.arange(logits.shape[-1], dtype=target.dtype) == target[:, None]
    return xp.mean(total - xp.sum(xp.where(hit, logits, 0.0), axis=-1))


def _slopes(x: Any, target: Any, *weights: Any) -> Any:
    def of(*weights: Any) -> Any:
        return loss(x, target, *weights)

    return value_and_grad(of, argnums=(0, 1, 2, 3))(*weights)


@kernel
def gradient(x: Any, target: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:  # noqa: PLR0917
    """Return the loss, and its gradients by the weights."""
    found, slopes = _slopes(x, target, w1, b1, w2, b2)
    return {
        "loss": found,
        **{f"of_{n}": g for n, g in zip(WEIGHTS, slopes, strict=True)},
    }


@kernel
def step(  # noqa: PLR0917
    x: Any, target: Any, w1: Any, b1: Any, w2: Any, b2: Any, *, rate: float = 0.1
) -> Any:
    """Return the loss, and take a step of gradient descent: weights are updated in place."""
    weights = w1, b1, w2, b2
    found, slopes = _slopes(x, target, *weights)
    new = [w - rate * g for w, g in zip(weights, slopes, strict=True)]
    return {"loss": found, **dict(zip(WEIGHTS, new, strict=True))}
