"""Adam and LayerNorm as one writes them in Triton by hand; imported with Triton only.

Each function makes its kernel when it is called: other programs import every module of
this folder, Triton or not.
"""

from collections.abc import Callable
from typing import Any

EPSILON = 1e-5


def adam() -> Callable[..., None]:
    """Return Adam's update of float32 tensors in place, the steelyard suites' formulas."""
    import triton
    import triton.language as tl

    from . import adam as suite

    @triton.jit
    def kernel(G, M, V, n, b1, k1, k2, rate, eps, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803, PLR0917 # as Triton reads it
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        g = tl.load(G + at, mask=inside)
        m = b1 * tl.load(M + at, mask=inside) + k1 * g
        v = b1 * tl.load(V + at, mask=inside) + k2 * g * g
        tl.store(M + at, m, mask=inside)
        tl.store(V + at, v, mask=inside)
        tl.store(G + at, m / k1 / (tl.sqrt(v / k2) + eps) * rate, mask=inside)

    keep1, keep2 = 1 - suite.BETA1, 1 - suite.BETA2
    block = 1024

    def update(gradient: Any, m: Any, v: Any) -> None:
        n = gradient.numel()
        scalars = (suite.BETA1, keep1, keep2, suite.RATE, suite.EPSILON)
        kernel[(triton.cdiv(n, block),)](gradient, m, v, n, *scalars, BLOCK=block)

    return update


def layernorm() -> Callable[..., None]:
    """Return two biases and LayerNorm of float16 rows, a block a row."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(X, B1, B2, W, B, Y, hidden, eps, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803, PLR0917 # as Triton reads it
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        inside = at < hidden
        x = tl.load(X + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        first = x + tl.load(B1 + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(B2 + at, mask=inside, other=0.0).to(tl.float32)
        t = first.to(tl.float16).to(tl.float32) + second
        mean = tl.sum(tl.where(inside, t, 0.0), 0) / hidden
        away = tl.where(inside, t - mean, 0.0)
        scale = tl.rsqrt(tl.sum(away * away, 0) / hidden + eps)
        weight = tl.load(W + at, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(B + at, mask=inside, other=0.0).to(tl.float32)
        y = away * scale * weight + bias
        tl.store(Y + row * hidden + at, y.to(tl.float16), mask=inside)

    def normalise(x: Any, *vectors: Any, out: Any) -> None:
        rows, hidden = x.shape
        block = triton.next_power_of_2(hidden)
        # 16 elements a thread, as far as a block goes.
        warps = min(max(block // (32 * 16), 1), 32)
        kernel[(rows,)](x, *vectors, out, hidden, EPSILON, BLOCK=block, num_warps=warps)

    return normalise
