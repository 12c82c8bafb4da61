"""Adam, LayerNorm and rows as one writes them in Triton by hand; imported with Triton only.

Each function makes its kernel when it is called: other programs import every module of
this folder, Triton or not. Rows have the warps that Triton's autotuner finds fastest at
each width.
"""

from collections.abc import Callable
from typing import Any, Final

EPSILON = 1e-5
WARPS: Final = (1, 2, 4, 8, 16, 32)
"""Those that are tried of a block, which has a row."""

EACH: Final = 128
"""Elements of a thread at most: more only spill, and take minutes to compile."""


def _tuned(kernel: Any) -> Any:
    """Return a kernel with the warps that are fastest for its rows' width."""
    import triton

    def few(configs: list[Any], _: Any, **given: Any) -> list[Any]:
        least = given["BLOCK"] / (32 * EACH)
        return [each for each in configs if each.num_warps >= least] or configs[-1:]

    configs = [triton.Config({}, num_warps=warps) for warps in WARPS]
    prune = {"early_config_prune": few}
    return triton.autotune(configs, key=["width"], prune_configs_by=prune)(kernel)


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
    """Return two biases and LayerNorm of rows of halves, a block a row."""
    import triton
    import triton.language as tl

    @_tuned
    @triton.jit
    def kernel(X, B1, B2, W, B, Y, width, eps, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803, PLR0917 # as Triton reads it
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        inside = at < width
        x = tl.load(X + row * width + at, mask=inside, other=0.0).to(tl.float32)
        first = x + tl.load(B1 + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(B2 + at, mask=inside, other=0.0).to(tl.float32)
        t = first.to(Y.dtype.element_ty).to(tl.float32) + second
        mean = tl.sum(tl.where(inside, t, 0.0), 0) / width
        away = tl.where(inside, t - mean, 0.0)
        scale = tl.rsqrt(tl.sum(away * away, 0) / width + eps)
        weight = tl.load(W + at, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(B + at, mask=inside, other=0.0).to(tl.float32)
        y = away * scale * weight + bias
        tl.store(Y + row * width + at, y.to(Y.dtype.element_ty), mask=inside)

    def normalise(x: Any, *vectors: Any, out: Any) -> None:
        rows, width = x.shape
        block = triton.next_power_of_2(width)
        kernel[(rows,)](x, *vectors, out, width, EPSILON, BLOCK=block)

    return normalise


def rows(kind: str) -> Callable[..., None]:
    """Return a kernel of `layouts`: of x[rows, width] in halves, a block a row."""
    import triton
    import triton.language as tl

    @_tuned
    @triton.jit
    def kernel(X, E, Y, L, width, KIND: tl.constexpr, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803, PLR0917 # as Triton reads it
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        inside = at < width
        x = tl.load(X + row * width + at, mask=inside, other=-float("inf"))
        if KIND == "argmax":
            tl.store(Y + row, tl.argmax(x, 0).to(tl.int64))
        elif KIND == "rms_norm":
            x = tl.where(inside, x.to(tl.float32), 0.0)
            scale = tl.rsqrt(tl.sum(x * x, 0) / width + 1e-6)
            weight = tl.load(E + at, mask=inside, other=0.0).to(tl.float32)
            y = x * scale * weight
            tl.store(Y + row * width + at, y.to(Y.dtype.element_ty), mask=inside)
        else:
            x = x.to(tl.float32)
            top = tl.max(x, 0)
            e = tl.exp(x - top)
            total = tl.sum(e, 0)
            if KIND == "logsumexp":
                tl.store(Y + row, tl.log(total) + top)
            else:
                share = e / total
                if KIND == "cross_entropy":
                    hit = at == tl.load(E + row)
                    own = tl.sum(tl.where(hit, x, 0.0), 0)
                    tl.store(L + row, tl.log(total) + top - own)
                    share = tl.where(hit, share - 1.0, share)
                share = share.to(Y.dtype.element_ty)
                tl.store(Y + row * width + at, share, mask=inside)

    def reduce(x: Any, *extra: Any, out: Any) -> None:
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        every = (x, *(extra or (x,)), outputs[0], outputs[-1])
        block = triton.next_power_of_2(x.shape[1])
        kernel[(x.shape[0],)](*every, x.shape[1], KIND=kind, BLOCK=block)

    return reduce
