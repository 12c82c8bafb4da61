"""Attention: BERT's sizes, and on a GPU 16384 tokens of 2048 columns in long sequences.

PyTorch's scaled_dot_product_attention is the peer, on a GPU by
``-p impl=ours,cudnn,flash,efficient``: each of its backends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    for n in (512, 2048, 8192, 16384)
]
CPU: Final = [(1, 12, n, 64) for n in (2048, 8192, 16384)]
BACKENDS: Final = {
    "cudnn": "CUDNN_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
}
SCALE: Final = 0.125
ROWS: Final = 1024
"""Queries that references take at a time: all scores of 16384 would be gigabytes."""
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


@kernel
def gradient(q: Any, k: Any, v: Any, g: Any, y: Any, log: Any) -> Any:  # noqa: PLR0917
    """Return the cotangents of queries, keys and values.

    `y` is what attention came to, `log` that of each row's sum of powers: what a forward
    pass keeps.
    """
    return _pulled(_wide(q) @ _wide(k).mT * SCALE - log, q, k, v, g, y)


@kernel
def causal_gradient(q: Any, k: Any, v: Any, g: Any, y: Any, log: Any) -> Any:  # noqa: PLR0917
    """Return the same of the keys up to each query's own."""
    scores = _wide(q) @ _wide(k).mT * SCALE
    seen = xp.arange(q.shape[-2])[:, None] >= xp.arange(k.shape[-2])
    return _pulled(xp.where(seen, scores, -xp.inf) - log, q, k, v, g, y)


def _wide(x: Any) -> Any:
    return x.astype("float32")


def _pulled(logs: Any, q: Any, k: Any, v: Any, g: Any, y: Any) -> Any:  # noqa: PLR0917
    weights = xp.exp(logs)
    own = xp.sum(_wide(g) * _wide(y), axis=-1, keepdims=True)
    pulled = weights * (_wide(g) @ _wide(v).mT - own) * SCALE
    weights, pulled = weights.astype(q.dtype), pulled.astype(q.dtype)
    return pulled @ k, pulled.mT @ q, weights.mT @ g


@benchmark(
    shape=axis(*BERT[:2], others=[BERT[2], *CPU]),
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


@benchmark(
    shape=axis(LONG[1], others=[*LONG[:1], *LONG[2:]]),
    mask=axis("none", others=["causal"]),
    impl=axis("ours", others=list(BACKENDS) if available("torch") else []),
)
def gpu_attention_gradient(b: Builder, shape: Shape, mask: str, impl: str) -> Call:
    """Pull cotangents back through attention, given what a forward pass kept."""
    b.on("cuda")
    masked, (*rows, _) = mask == "causal", shape
    q, k, v = _declared(b, shape, "float16", masked=masked, products=5)
    g = b.input(shape, "float16")
    if impl != "ours":
        pull = _torch_gradient(BACKENDS[impl], masked=masked)
        return b.launch(pull, q, k, v, g, as_="torch")
    y = b.input(shape, "float16")
    log = b.input((*rows, 1), "float32", dist="uniform", low=8.0, high=9.0)
    of_q, of_k, of_v = (b.output(shape, "float16", name=f"of_{name}") for name in "qkv")
    b.check(partial(_gradients, masked=masked), q, k, v, g, y, log)
    made = causal_gradient if masked else gradient
    return b.launch(made, q, k, v, g, y, log, out=(of_q, of_k, of_v))


def _gradients(  # noqa: PLR0917
    q: Any, k: Any, v: Any, g: Any, y: Any, log: Any, *, masked: bool
) -> tuple[Any, Any, Any]:
    """Pull back in float64, head by head."""
    found = tuple(np.empty_like(each) for each in (q, k, v))
    of_q, of_k, of_v = found
    for *at, rows in _parts(q):
        (own_q, own_g, own_y, own_log), (keys, values) = (
            [each[(*at, rows)] for each in (q, g, y, log)],
            [each[tuple(at)] for each in (k, v)],
        )
        weights = np.exp(_scores(own_q, keys, rows, masked=masked) - own_log)
        own = (own_g * own_y).sum(-1, keepdims=True)
        pulled = weights * (own_g @ values.T - own) * SCALE
        of_q[(*at, rows)] = pulled @ keys
        if not rows.start:
            of_k[tuple(at)] = of_v[tuple(at)] = 0
        of_k[tuple(at)] += pulled.T @ own_q
        of_v[tuple(at)] += weights.T @ own_g
    return found


def _parts(q: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the batch, head and neighbouring queries of each part."""
    for at in np.ndindex(q.shape[:2]):
        for first in range(0, q.shape[2], ROWS):
            yield *at, slice(first, first + ROWS)


def _scores(q: Any, k: Any, rows: slice, *, masked: bool) -> Any:
    """Return the scores of some queries; masked, -inf for keys behind their own."""
    scores = q * SCALE @ k.T
    if masked:
        places = np.arange(rows.start, rows.start + len(q))
        scores[np.arange(len(k)) > places[:, None]] = -np.inf
    return scores


def _torch_gradient(backend: str, *, masked: bool) -> Any:
    """Return one backend's backward pass; its forward pass comes with the first call."""
    kept: dict[int, tuple[Any, list[Any]]] = {}

    def call(q: Any, k: Any, v: Any, g: Any) -> Any:
        import torch

        if q.data_ptr() not in kept:
            leaves = [each.detach().requires_grad_() for each in (q, k, v)]
            kept[q.data_ptr()] = _torch(backend, masked=masked)(*leaves), leaves
        y, leaves = kept[q.data_ptr()]
        return torch.autograd.grad(y, leaves, g, retain_graph=True)

    return call


def _declared(
    b: Builder, shape: Shape, dtype: str, *, masked: bool, products: int = 2
) -> tuple[Handle, Handle, Handle]:
    """Declare queries, keys and values, normal numbers, and how many products there are."""
    batch, heads, n, columns = shape
    q, k, v = (b.input(shape, dtype, name=name) for name in "qkv")
    seen = n * (n + 1) // 2 if masked else n * n
    b.count(operations=2 * products * batch * heads * seen * columns)
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
        with ThreadPoolExecutor() as pool:
            _ANSWERS[name.digest()] = _attended(q, k, v, masked=masked, each=pool.map)
    return _ANSWERS[name.digest()]


def _attended(q: Any, k: Any, v: Any, *, masked: bool, each: Any = map) -> Any:
    """Attend part by part: all scores of a long sequence would not fit in memory.

    `each` is a map over the parts. References take one of threads: a worker that says
    nothing for a minute is ended.
    """
    out = np.empty_like(v)

    def attend(part: tuple[Any, ...]) -> None:
        *at, rows = part
        seen = (*at, slice(rows.stop if masked else None))
        weights = _scores(q[part], k[seen], rows, masked=masked)
        np.exp(np.subtract(weights, weights.max(-1, keepdims=True), weights), weights)
        out[part] = weights @ v[seen] / weights.sum(-1, keepdims=True)

    deque(each(attend, _parts(q)), maxlen=0)
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
