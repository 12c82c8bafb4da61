"""Attention: BERT's sizes, and on a GPU 16384 tokens of 2048 columns in long sequences.

PyTorch's scaled_dot_product_attention is the peer, on a GPU by
``-p impl=ours,cudnn,flash,efficient``: each of its backends by itself.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import array as xp
from steelyard_kernels import kernel

from .common import available

Shape = tuple[int, int, int, int]  # batch, heads, sequence, columns of a head

BERT: Final = [(8, 12, 128, 64), (1, 12, 512, 64), (8, 12, 512, 64)]
LONG: Final = [
    (16384 // n, 2048 // columns, n, columns)
    for columns in (64, 128)
    for n in (512, 2048, 8192)
]
BACKENDS: Final = {
    "cudnn": "CUDNN_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
}
SCALE: Final = 0.125
ANSWERS: Final = 2
"""Answers that are held: on the cases' own data and on other data."""


@kernel
def attention(q: Any, k: Any, v: Any) -> Any:
    """Return softmax(q @ k.T / 8) @ v of every head."""
    return _weighed(xp.matmul(q, k.mT) * SCALE, v)


@kernel
def causal(q: Any, k: Any, v: Any) -> Any:
    """Return the same of the keys up to each query's own."""
    scores = xp.matmul(q, k.mT) * SCALE
    seen = xp.arange(q.shape[-2])[:, None] >= xp.arange(k.shape[-2])
    return _weighed(xp.where(seen, scores, -xp.inf), v)


def _weighed(scores: Any, v: Any) -> Any:
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return xp.matmul(weights / xp.sum(weights, axis=-1, keepdims=True), v)


@benchmark(
    shape=axis(*BERT[:2], others=[BERT[2], (1, 12, 2048, 64)]),
    mask=axis("none", others=["causal"]),
    dtype=axis("float32", others=["float16"]),
    impl=["ours", "numpy", *available("torch")],
)
def attentions(b: Builder, shape: Shape, mask: str, dtype: str, impl: str) -> Call:
    """Attend on the CPU."""
    masked = mask == "causal"
    q, k, v = _declared(b, shape, dtype, masked=masked)
    y = b.output(shape, dtype)
    # Weighed means are below 1, with errors of sums of so many products, which add up as
    # their root; those of halves are rounded by far more.
    bound = {"atol": 8 * 2.0**-23 * shape[3] ** 0.5} if dtype == "float32" else {}
    b.check(_causal_reference if masked else _reference, q, k, v, **bound)
    b.mode("kernel/warm")  # milliseconds, which no cache shortens
    if impl == "ours":
        return b.launch(causal if masked else attention, q, k, v, out=y)
    if impl == "numpy":
        return b.launch(partial(_numpy, masked=masked), q, k, v, out=y)
    return b.launch(_filled(masked=masked), q, k, v, out=y, as_="torch")


@benchmark(
    shape=axis(BERT[0], others=[*BERT[1:], *LONG]),
    mask=axis("none", others=["causal"]),
    impl=axis("ours", others=list(BACKENDS) if available("torch") else []),
)
def gpu_attention(b: Builder, shape: Shape, mask: str, impl: str) -> Call:
    """Attend to all keys, or to those up to each query's own."""
    b.on("cuda")
    masked = mask == "causal"
    q, k, v = _declared(b, shape, "float16", masked=masked)
    if impl != "ours":  # returns a new tensor, which nobody checks: a copy costs time
        return b.launch(_torch(BACKENDS[impl], masked=masked), q, k, v, as_="torch")
    y = b.output(shape, "float16")
    b.check(_causal_reference if masked else _reference, q, k, v)
    return b.launch(causal if masked else attention, q, k, v, out=y)


def _declared(
    b: Builder, shape: Shape, dtype: str, *, masked: bool
) -> tuple[Handle, Handle, Handle]:
    """Declare queries, keys and values, normal numbers."""
    batch, heads, n, columns = shape
    q, k, v = (b.input(shape, dtype, name=name) for name in "qkv")
    seen = n * (n + 1) // 2 if masked else n * n
    b.count(operations=4 * batch * heads * seen * columns)
    return q, k, v


_ANSWERS: Final[dict[bytes, Any]] = {}


def _reference(q: Any, k: Any, v: Any, *, masked: bool = False) -> Any:
    """Attend in float64, once of the same data: implementations share the answer."""
    name = blake2b(b"masked" if masked else b"")
    for each in (q, k, v):
        name.update(np.ascontiguousarray(each).tobytes())
    if name.digest() not in _ANSWERS:
        while len(_ANSWERS) >= ANSWERS:
            _ANSWERS.pop(next(iter(_ANSWERS)))
        _ANSWERS[name.digest()] = _attended(q, k, v, masked=masked)
    return _ANSWERS[name.digest()]


def _attended(q: Any, k: Any, v: Any, *, masked: bool = False) -> Any:
    """Attend head by head: all scores of a long sequence would not fit in memory."""
    out = np.empty_like(v)
    for place in np.ndindex(q.shape[:2]):
        scores = q[place] @ k[place].T * SCALE
        if masked:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[place] = weights / weights.sum(-1, keepdims=True) @ v[place]
    return out


def _causal_reference(q: Any, k: Any, v: Any) -> Any:
    return _reference(q, k, v, masked=True)


def _numpy(q: Any, k: Any, v: Any, out: Any, *, masked: bool) -> None:
    wide = (each.astype(np.float32, copy=False) for each in (q, k, v))
    out[...] = _attended(*wide, masked=masked)


def _filled(*, masked: bool) -> Any:
    """Return PyTorch's choice of its backends."""

    def call(q: Any, k: Any, v: Any, out: Any) -> None:
        from torch.nn.functional import scaled_dot_product_attention

        out.copy_(scaled_dot_product_attention(q, k, v, is_causal=masked, scale=SCALE))

    return call


def _torch(backend: str, *, masked: bool) -> Any:
    """Return one backend's attention."""

    def call(q: Any, k: Any, v: Any) -> Any:
        from torch.nn import attention as backends
        from torch.nn.functional import scaled_dot_product_attention

        with backends.sdpa_kernel(getattr(backends.SDPBackend, backend)):
            return scaled_dot_product_attention(q, k, v, is_causal=masked, scale=SCALE)

    return call
