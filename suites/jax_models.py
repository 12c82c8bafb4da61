"""The layers of `models` in JAX's functions, compiled by `jax.jit` for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from .common import Array

HEADS: Final = 12
EACH: Final = 16
"""Weights of a layer."""


def _layers(x: Any, *weights: Any) -> Any:
    import jax

    def normal(y: Any, scale: Any, bias: Any) -> Any:
        y -= y.mean(-1, keepdims=True)
        return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-12) * scale + bias

    for first in range(0, len(weights), EACH):
        w = weights[first : first + EACH]
        q, k, v = (
            (x @ w[i].T + w[i + 1]).reshape(*x.shape[:2], HEADS, -1) for i in (0, 2, 4)
        )
        found = jax.nn.dot_product_attention(q, k, v).reshape(x.shape)
        x = normal(x + found @ w[6].T + w[7], w[8], w[9])
        inner = jax.nn.gelu(x @ w[10].T + w[11], approximate=False)
        x = normal(x + inner @ w[12].T + w[13], w[14], w[15])
    return x


def _step(x: Any, wanted: Any, *state: Any) -> Any:
    """Return what is updated behind the mean square error, by Adam."""
    import jax

    count = len(state) // 3
    w, *moments = (state[at : at + count] for at in range(0, 3 * count, count))

    def error(w: Sequence[Any]) -> Any:
        return ((_layers(x, *w) - wanted) ** 2).mean()

    loss, slopes = jax.value_and_grad(error)(w)
    m = [0.9 * old + 0.1 * g for g, old in zip(slopes, moments[0], strict=True)]
    v = [0.999 * old + 0.001 * g * g for g, old in zip(slopes, moments[1], strict=True)]
    new = [
        old - 1e-3 * (a / 0.1) / (jax.numpy.sqrt(b / 0.001) + 1e-8)
        for old, a, b in zip(w, m, v, strict=True)
    ]
    return loss, *new, *m, *v


def _gradient(x: Any, g: Any, *weights: Any) -> Any:
    import jax

    y, pull = jax.vjp(lambda *w: _layers(x, *w), *weights)
    return y, *pull(g)


def _mlp(x: Any, target: Any, *weights: Any) -> Any:
    import jax

    def loss(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
        found = jax.nn.log_softmax(logits)
        return -jax.numpy.take_along_axis(found, target[:, None], -1).mean()

    found, slopes = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(*weights)
    return found, *slopes


def forward(*, waits: bool = False) -> Callable[..., None]:
    """Return the layers, of arrays that JAX reads where they are.

    On a GPU their result is a new array, which is waited for.
    """
    return _returned(_layers) if waits else _compiled(_layers, lambda _, out: (out,))


def gradient() -> Callable[..., None]:
    """Return a pass forward and one backward, whose results are new arrays."""
    return _returned(_gradient)


def step() -> Callable[..., None]:
    """Return a step of training, whose results are copied over what it updates.

    JAX updates no memory of others in place: the copies are part of its time.
    """
    return _compiled(_step, lambda arrays, out: (out, *arrays[2:]))


def mlp() -> Callable[..., None]:
    """Return the loss of two layers and its slopes, copied as a step's."""
    return _compiled(_mlp, lambda _, out: out)


Bound = Callable[..., list[Any]]


def _bound() -> Bound:
    """Return what has arrays as JAX's, without a copy, once for the same ones."""
    import jax

    known: dict[tuple[int, ...], list[Any]] = {}

    def bound(*arrays: Array) -> list[Any]:
        where = tuple(map(id, arrays))
        if where not in known:
            known[where] = [jax.dlpack.from_dlpack(x, copy=False) for x in arrays]
        return known[where]

    return bound


def _returned(function: Callable[..., Any]) -> Callable[..., None]:
    import jax

    program, bound = jax.jit(function), _bound()

    def run(*arrays: Array) -> None:
        jax.block_until_ready(program(*bound(*arrays)))

    return run


def _compiled(
    function: Callable[..., Any], into: Callable[[Any, Any], Sequence[Any]]
) -> Callable[..., None]:
    """Return a function whose results are copied to where `into` says."""
    import jax

    program, bound = jax.jit(function), _bound()

    def run(*arrays: Array, out: Any) -> None:
        found, places = program(*bound(*arrays)), into(arrays, out)
        for place, value in zip(
            places, found if isinstance(found, tuple) else (found,), strict=True
        ):
            place[...] = value  # waits for it

    return run
