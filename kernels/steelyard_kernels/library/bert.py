"""BERT's encoder layers, any number of them as one program, and their training.

    y = bert(12)(x, *weights)                # x[batch, words, columns], 16 weights a layer

Sums of halves are rounded once, normalization and softmax are in float32.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from steelyard_kernels import array as xp
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.grad import value_and_grad, vjp

HEADS: Final = 12
EPSILON: Final = 1e-12  # of its normalization
NAMES: Final = (
    "query", "query_bias", "key", "key_bias", "value", "value_bias", "out", "out_bias",
    "norm1", "norm1_bias", "wide", "wide_bias", "narrow", "narrow_bias", "norm2",
    "norm2_bias",
)  # fmt: skip
"""A layer's weights, in the order in which all functions here take them."""


def _linear(x: Any, w: Any, bias: Any) -> Any:
    """Return x @ w.T + bias, of halves rounded once."""
    wide = "float64" if x.dtype.name == "float64" else "float32"
    found = x.astype(wide) @ w.astype(wide).T + bias.astype(wide)
    return found.astype(x.dtype)


def _normal(x: Any, w: Any, bias: Any) -> Any:
    wide = x.astype("float32")
    centred = wide - xp.mean(wide, axis=-1, keepdims=True)
    scale = xp.rsqrt(xp.var(wide, axis=-1, keepdims=True) + EPSILON)
    found = centred * scale * w.astype("float32") + bias.astype("float32")
    return found.astype(x.dtype)


def _gelu(x: Any) -> Any:
    wide = x.astype("float32")
    return (0.5 * wide * (1 + xp.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def _attended(q: Any, k: Any, v: Any) -> Any:
    """Return every head's softmax(q @ k.T / sqrt(columns)) @ v."""
    batch, n, width = q.shape
    shape = batch, n, HEADS, width // HEADS
    q, k, v = (xp.permute_dims(xp.reshape(x, shape), (0, 2, 1, 3)) for x in (q, k, v))
    scores = xp.matmul(q, k.mT).astype("float32") * (1 / math.sqrt(width // HEADS))
    e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = (e / xp.sum(e, axis=-1, keepdims=True)).astype(v.dtype)
    found = xp.permute_dims(xp.matmul(weights, v), (0, 2, 1, 3))
    return xp.reshape(found, (batch, n, width))


def _layer(x: Any, w: Sequence[Any]) -> Any:
    q, k, v = (_linear(x, w[i], w[i + 1]) for i in (0, 2, 4))
    x = _normal(x + _linear(_attended(q, k, v), w[6], w[7]), w[8], w[9])
    inner = _gelu(_linear(x, w[10], w[11]))
    return _normal(x + _linear(inner, w[12], w[13]), w[14], w[15])


@functools.cache
def bert(layers: int) -> KernelFunction:
    """Return the kernel of so many layers: of x[batch, words, columns] and weights."""
    return _kernel(_layers, f"bert_{layers}", ["x", *weights_of(layers)])


@functools.cache
def bert_gradient(layers: int) -> KernelFunction:
    """Return a pass forward and one backward: of x, cotangents of the result, and weights.

    The results are the layers', and the cotangent of each weight, `of_` and its name.
    """
    names = weights_of(layers)

    def function(x: Any, g: Any, *weights: Any) -> dict[str, Any]:
        y, pull = vjp(lambda *w: _layers(x, *w), *weights)
        slopes = {f"of_{n}": of for n, of in zip(names, pull(g), strict=True)}
        return {"y": y, **slopes}

    return _kernel(function, f"bert_gradient_{layers}", ["x", "g", *names])


@functools.cache
def bert_step(layers: int) -> KernelFunction:
    """Return a step of training: of x, what it is to come to, weights and Adam's moments.

    All but the first two are updated in place; the result is the mean square error.
    """
    names = weights_of(layers)
    moments = [f"{which}_{name}" for which in "mv" for name in names]

    def function(x: Any, wanted: Any, *state: Any) -> dict[str, Any]:
        count = len(names)
        w, m, v = (state[first : first + count] for first in range(0, 3 * count, count))

        def error(*w: Any) -> Any:
            return xp.mean((_layers(x, *w) - wanted) ** 2)

        loss, slopes = value_and_grad(error, argnums=tuple(range(count)))(*w)
        out = {"loss": loss}
        for name, g, *old in zip(names, slopes, w, m, v, strict=True):
            new = _adam(g, *old)
            out |= dict(zip((name, f"m_{name}", f"v_{name}"), new, strict=True))
        return out

    return _kernel(function, f"bert_step_{layers}", ["x", "wanted", *names, *moments])


def _layers(x: Any, *weights: Any) -> Any:
    """Return what layers make of x, each of 16 weights."""
    for first in range(0, len(weights), len(NAMES)):
        x = _layer(x, weights[first : first + len(NAMES)])
    return x


def _adam(g: Any, w: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return a weight and its moments, which have its digits or more, after one step."""
    g, wide = g.astype(m.dtype), w.astype(m.dtype)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    new = wide - 1e-3 * (m / 0.1) / (xp.sqrt(v / 0.001) + 1e-8)
    return new.astype(w.dtype), m, v


def weights_of(layers: int) -> list[str]:
    """Return the names of all weights of layers."""
    return [f"{name}{i}" for i in range(layers) for name in NAMES]


def _kernel(
    function: Callable[..., Any], name: str, names: Sequence[str]
) -> KernelFunction:
    """Return a kernel of a function of any number of arrays, by these names."""

    def named(*arrays: Any) -> Any:
        return function(*arrays)

    named.__name__ = name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    every = [inspect.Parameter(each, kind) for each in names]
    vars(named)["__signature__"] = inspect.Signature(every)
    return KernelFunction(named)


def shapes_of(width: int) -> list[tuple[int, ...]]:
    """Return the shapes of a layer's weights, in the order of `NAMES`."""
    square, vector = (width, width), (width,)
    wide, narrow = (4 * width, width), (width, 4 * width)
    ends = [wide, (4 * width,), narrow, vector, vector, vector]
    return [*[square, vector] * 4, vector, vector, *ends]
