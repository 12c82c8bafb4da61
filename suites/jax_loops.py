"""The thread's listings (jax#7024) without haiku: how JAX runs its loop, and we do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steelyard.prepare.work import BoundOnCall
from steelyard_kernels.library.noisy_mlp import ITERATIONS

from .common import Array, Peer

Program = Callable[[Any, Any, Any, Any], Any]
"""x, key, both weights; returns x."""


@functools.cache
def programs() -> Mapping[str, Program]:
    """Return the thread's first listing, the same by scan, and its second listing."""
    import jax
    import jax.numpy as jnp
    from jax.nn import sigmoid, softplus
    from jax.random import PRNGKey, normal, split

    def force(x: Any, w1: Any, w2: Any) -> Any:
        return sigmoid(jnp.dot(sigmoid(jnp.dot(x, softplus(w1))), softplus(w2)))

    def within(state: Any, w1: Any, w2: Any) -> Any:
        x, rng, count = state
        leak, rng = split(rng)
        return force(x, w1, w2) + normal(leak, x.shape, x.dtype), rng, count + 1

    def first(x: Any, key: Any, w1: Any, w2: Any) -> Any:
        def more(state: Any) -> Any:
            return state[2] < ITERATIONS

        def body(state: Any) -> Any:
            return within(state, w1, w2)

        return jax.lax.while_loop(more, body, (x, PRNGKey(key), 0))[0]

    def scanned(x: Any, key: Any, w1: Any, w2: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            return within(state, w1, w2), None

        state = (x, PRNGKey(key), 0)
        return jax.lax.scan(step, state, None, length=ITERATIONS)[0][0]

    def second(x: Any, key: Any, w1: Any, w2: Any) -> Any:
        noise = normal(PRNGKey(key), (ITERATIONS, *x.shape), x.dtype)

        def step(x: Any, row: Any) -> Any:
            return force(x, w1, w2) + row, None

        return jax.lax.scan(step, x, noise, unroll=2)[0]

    return {"jax_while": first, "jax_within": scanned, "jax": second}


@dataclass(frozen=True, slots=True)
class FromJax(BoundOnCall):
    """The thread's second listing with our decorator, for a GPU or a CPU."""

    def bind(self, *arrays: Any, out: Any) -> Any:
        """Bind the one kernel that it becomes."""
        import jax

        from steelyard_kernels.from_jax import from_jax

        with jax.enable_x64(True):
            return from_jax(programs()["jax"]).bind(*arrays, out=out)


def compiled(name: str) -> Callable[..., None]:
    """Return one of `programs` as `jax.jit` compiles it, into an output of NumPy's."""
    import jax

    program = jax.jit(programs()[name])

    def run(*arrays: Array, out: Array) -> None:
        with jax.enable_x64(True):
            out[...] = program(*arrays)

    return run


def differentiated() -> Callable[..., None]:
    """Return the second listing with its gradients by both weights, compiled."""
    import jax

    second = programs()["jax"]

    def total(w1: Any, w2: Any, x: Any, key: Any) -> Any:
        return second(x, key, w1, w2).sum()

    program = jax.jit(jax.value_and_grad(total, (0, 1)))

    def run(x: Array, key: Array, w1: Array, w2: Array, out: Sequence[Array]) -> None:
        with jax.enable_x64(True):
            value, gradients = program(w1, w2, x, key)
        for place, found in zip(out, (value, *gradients), strict=True):
            place[...] = found

    return run


PEERS: Final[Mapping[str, Any]] = {
    **{
        name: Peer(functools.partial(compiled, name))
        for name in ("jax_while", "jax_within", "jax")
    },
    "from_jax": FromJax(),
}
"""JAX's while with noise drawn in it, its scan with noise drawn in it, its scan of noise
drawn ahead, and the last as a kernel of ours."""


def noise(name: str, dtype: str, x: Array, key: Array) -> Array:
    """Return the noise that one of `PEERS` draws, a row an iteration."""
    import jax
    from jax.random import PRNGKey, normal, split

    def step(rng: Any, _: None) -> Any:
        leak, rng = split(rng)
        return rng, normal(leak, x.shape, dtype)

    with jax.enable_x64(True):
        rng = PRNGKey(int(key))
        if name in {"jax", "from_jax"}:
            drawn = normal(rng, (ITERATIONS, *x.shape), dtype)
        else:
            drawn = jax.lax.scan(step, rng, None, length=ITERATIONS)[1]
    return np.asarray(drawn, np.float64)
