"""Programs with attention, with shapes that they are run at and how they are tiled.

Shapes are (batch, heads, queries, keys, columns of queries and keys, of values). A tiling
is (warpgroups, keys of a step, stages, blocks that stay).
"""

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, reference
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.cores import MMA, WGMMA
from steelyard_kernels.schedule.recipes.attention import AttentionTiling, columns_of
from steelyard_kernels.targets import device, parse

H200 = device(parse("cuda:sm_90a"))
SCALE = 0.125  # of all programs
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
SUM = 2.0**-23  # relative error of adding one product: tensor cores may cut sums off
POWER = 2.0**-20  # of a power by `exp2_approx`, and of what its argument was rounded to

CASES = [
    ("plain", (1, 2, 128, 128, 64, 64), "float16", (1, 128, 1)),  # one step
    ("plain", (2, 1, 100, 136, 64, 64), "bfloat16", (2, 64, 2)),  # a ring, and edges
    ("plain", (1, 1, 200, 200, 128, 128), "float16", (2, 64, 3)),
    ("plain", (1, 2, 64, 272, 32, 32), "float16", (1, 64, 2)),
    ("plain", (1, 1, 72, 80, 80, 80), "float16", (1, 48, 2)),
    ("plain", (1, 1, 72, 72, 40, 96), "float16", (1, 32, 2)),
    ("plain", (1, 1, 136, 144, 256, 256), "bfloat16", (2, 64, 2)),
    ("plain", (1, 1, 200, 264, 64, 64), "float16", (3, 128, 2)),
    ("plain", (2, 2, 300, 264, 64, 64), "float16", (2, 64, 2, 5)),  # blocks that stay
    ("biased", (2, 2, 200, 264, 32, 32), "float16", (2, 64, 2, 3)),
    ("causal", (1, 2, 192, 192, 64, 64), "float16", (1, 64, 2)),
    ("causal", (1, 1, 200, 264, 64, 64), "float16", (2, 64, 2)),
    ("causal", (1, 1, 264, 200, 64, 64), "float16", (2, 64, 2)),  # queries without keys
    ("causal", (1, 1, 136, 136, 64, 64), "bfloat16", (2, 32, 3)),
    ("biased", (2, 2, 72, 136, 64, 64), "float16", (1, 64, 2)),
    ("padded", (3, 2, 72, 130, 64, 64), "float16", (1, 64, 3)),
    ("unseen", (3, 2, 72, 130, 64, 64), "float16", (1, 64, 3)),
    ("by_sequence", (2, 3, 136, 72, 64, 64), "float16", (2, 32, 2)),
    ("grouped", (2, 2, 72, 136, 64, 64), "float16", (1, 64, 2)),
    # By mma.sync, which threads copy for.
    *[
        (name, shape, dtype, (*numbers, 0, MMA))
        for name, shape, dtype, numbers in (
            ("plain", (1, 2, 128, 128, 64, 64), "float16", (1, 128, 1)),
            ("plain", (2, 1, 100, 136, 64, 64), "bfloat16", (2, 64, 2)),
            ("plain", (1, 1, 72, 200, 128, 128), "float16", (1, 64, 3)),
            ("plain", (1, 1, 72, 72, 40, 96), "float16", (1, 64, 2)),
            ("causal", (1, 2, 192, 192, 64, 64), "float16", (1, 64, 2)),
            ("causal", (1, 1, 264, 200, 64, 64), "bfloat16", (2, 64, 3)),
            ("padded", (3, 2, 72, 130, 64, 64), "float16", (1, 64, 3)),
            ("biased", (2, 2, 72, 136, 64, 64), "float16", (1, 64, 2)),
            ("by_sequence", (2, 3, 136, 72, 64, 64), "float16", (2, 64, 2)),
            ("grouped", (2, 2, 72, 136, 64, 64), "float16", (1, 64, 2)),
        )
    ],
]


def softmax(x):
    """Normalise rows."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


@kernel
def plain(q, k, v):
    """Attend to all keys."""
    return xp.matmul(softmax(xp.matmul(q, k.mT) * SCALE), v)


@kernel
def causal(q, k, v):
    """Attend to the keys up to a query's own, counted from the last ones."""
    s = xp.matmul(q, k.mT) * SCALE
    i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
    seen = j <= i + (s.shape[-1] - s.shape[-2])
    return xp.matmul(softmax(xp.where(seen, s, -xp.inf)), v)


@kernel
def biased(q, k, v, bias):
    """Add a bias that all of a batch share."""
    s = xp.matmul(q.astype("float32"), k.mT.astype("float32")) * SCALE + bias
    return xp.matmul(softmax(s).astype(q.dtype), v)


@kernel
def padded(q, k, v, kept):
    """Attend to the keys that a mask keeps."""
    s = xp.where(kept[:, None, None, :], xp.matmul(q, k.mT) * SCALE, -1e4)
    return xp.matmul(softmax(s), v)


@kernel
def unseen(q, k, v, kept):
    """Attend to the keys that a mask keeps: to zeros, where it keeps none."""
    s = xp.matmul(q.astype("float32"), k.mT.astype("float32")) * SCALE
    s = xp.where(kept[:, None, None, :], s, -xp.inf)
    e = xp.exp(s - xp.maximum(xp.max(s, axis=-1, keepdims=True), xp.finfo(s.dtype).min))
    total = xp.maximum(xp.sum(e, axis=-1, keepdims=True), 1.0)
    return xp.matmul((e / total).astype(v.dtype), v)


@kernel
def by_sequence(q, k, v):
    """Attend with heads inside of the sequence."""
    s = xp.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
    return xp.einsum("bhqk,bkhd->bqhd", softmax(s), v)


@kernel
def grouped(q, k, v):
    """Attend with several heads of queries for one of keys."""
    s = xp.einsum("bhgqd,bhkd->bhgqk", q, k) * SCALE
    return xp.einsum("bhgqk,bhkd->bhgqd", softmax(s), v)


def shapes(made, shape):
    """Return the shapes of a program's arrays."""
    name, (batch, heads, m, n, depth, columns) = made.signature.name, shape
    plain = [
        (batch, heads, m, depth),
        (batch, heads, n, depth),
        (batch, heads, n, columns),
    ]
    if name == "by_sequence":
        return [(b, s, h, d) for b, h, s, d in plain]
    if name == "grouped":
        return [(batch, heads, 3, m, depth), *plain[1:]]
    kept = [(batch, n)]
    more = {"biased": [(heads, m, n)], "padded": kept, "unseen": kept}
    return plain + more.get(name, [])


def drawn(made, shape, dtype, seed=0):
    """Return normal random arrays of a program, as the host carries them."""
    rng = np.random.default_rng(seed)
    found = [rng.standard_normal(each) for each in shapes(made, shape)]
    if made.signature.name in {"padded", "unseen"}:
        kept = np.arange(shape[3]) < rng.integers(1, shape[3] + 1, (shape[0], 1))
        kept[0] &= made.signature.name == "padded"
        return [x.astype(dtypes.of(dtype).numpy) for x in found[:3]] + [kept]
    return [x.astype(dtypes.of(dtype).numpy) for x in found]


def tiling(made, arrays, numbers):
    """Return a tiling by its numbers; it need not be legal."""
    found = attention_of(nest_of(simplify(made.program(*arrays))))
    assert not isinstance(found, str), found
    groups, keys, stages, blocks, cores = (*numbers, *(0, WGMMA)[len(numbers) - 3 :])
    columns = columns_of(found, cores)
    return AttentionTiling(
        found, groups, columns, stages, blocks=blocks, cores=cores, keys=keys
    )


def lowered(made, arrays, numbers):
    """Return a program as it is lowered, and its kernel."""
    program = simplify(made.program(*arrays))
    schedule = tiling(made, arrays, numbers).schedule
    return program, strategies.lower(program, schedule, H200)


def expected(made, arrays, scalars=None, *, stored=False):
    """Return attention without any rounding, and a bound of what roundings come to.

    A score is off by its products' sums, relatively to the product of two norms at most;
    a logit of a program that masks halves, or whose scores are `stored` as what they are
    written as, by its roundings besides; a weight by that,
    by its power and by its rounding, below 2**-14 of float16 in all of its bits; a sum of
    values as products are.
    """
    dtype = arrays[0].dtype.name
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in arrays]
    q, k, v, *rest = wide
    with np.errstate(all="ignore"):
        if made.signature.name in EXACT:
            exact, size = EXACT[made.signature.name](q, k, (v, np.abs(v)), *rest)
        else:
            exact, size = (
                reference.evaluate(
                    made.program(q, k, x, *rest), [q, k, x, *rest], scalars
                )
                for x in (v, np.abs(v))
            )
            exact, size = exact["out"], size["out"]
    depth, keys = q.shape[-1], k[0].size // k.shape[-1]
    largest = SCALE * np.prod([np.sqrt((x**2).sum(-1)).max() for x in (q, k)])
    rounded = stored or made.signature.name not in (EXACT.keys() - {"padded"})
    score = largest * (SUM * depth + 3 * UNIT[dtype] * rounded)
    weight = UNIT[dtype] + 2 * score + 2 * POWER + 2 * keys * SUM
    lost = keys * 2.0**-25 * np.abs(v).max() * (dtype == "float16")
    return exact, UNIT[dtype] * np.abs(exact) + weight * size + lost


def _attended(q, k, values, logits):
    """Return what each of some values comes to, head by head."""
    shape = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    found = [np.empty((*shape, q.shape[-2], v.shape[-1])) for v in values]
    q, k, *values = (
        np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (q, k, *values)
    )
    for place in np.ndindex(shape):
        s = logits(q[place] @ k[place].T * SCALE, place)
        e = np.exp(s - s.max(-1, keepdims=True))
        for out, v in zip(found, values, strict=True):
            out[place] = e / e.sum(-1, keepdims=True) @ v[place]
    return found


def _plain(q, k, values):
    return _attended(q, k, values, lambda s, _: s)


def _causal(q, k, values):
    def seen(s, _):
        return np.where(
            np.tri(*s.shape, s.shape[1] - s.shape[0], dtype=bool), s, -np.inf
        )

    return _attended(q, k, values, seen)


def _biased(q, k, values, bias):
    return _attended(q, k, values, lambda s, place: s + bias[place[1]])


def _padded(q, k, values, kept):
    return _attended(q, k, values, lambda s, place: np.where(kept[place[0]], s, -1e4))


def _by_sequence(q, k, values):
    q, k, *values = (x.swapaxes(1, 2) for x in (q, k, *values))
    return [x.swapaxes(1, 2) for x in _plain(q, k, values)]


def _grouped(q, k, values):
    return _plain(q, k[:, :, None], [v[:, :, None] for v in values])


EXACT = {
    "plain": _plain,
    "causal": _causal,
    "biased": _biased,
    "padded": _padded,
    "by_sequence": _by_sequence,
    "grouped": _grouped,
}
"""Attention in NumPy's float64, by the names of programs."""
