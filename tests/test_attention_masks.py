"""Masked attention against the written softmax in float64, where a mask's number counts.

Scores are one product each, of powers of two and 1, 1.5 or 1.75: exact in every dtype, so
that they are below a fill, about as low, or above it, in float64 as in any other.
"""

import itertools

import attention_programs as programs
import numpy as np
import pytest
import simt_tiles
from attention_programs import H200, softmax
from pairwise import pairs

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.recipes.attention import AttentionTiling, columns_of
from steelyard_kernels.targets import machine

KINDS = ["causal", "ahead", "chosen", "added"]
LOWEST = float(np.finfo("float32").min)
FILLS = [-100.0, -1e4, -1e9, -1e30, LOWEST, -np.inf, np.nan]
LOW = {"float16": (8, 15, 29), "bfloat16": (8, 30, 100), "float32": (8, 30, 100, 127)}
CASES = [  # (dtype, (queries, keys))
    ("float32", (40, 40)),
    ("float16", (50, 19)),
    ("bfloat16", (19, 50)),
    ("float32", (131, 130)),
]


def masked(kind, fill):
    """Return softmax(mask(q @ k.T)) @ v, whose logits are float32."""

    def attend(q, k, v, *mask):
        s = xp.matmul(q.astype("float32"), k.mT.astype("float32"))
        i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
        if kind == "added":
            s = s + mask[0]
        else:
            ahead = 2 if kind == "ahead" else s.shape[-1] - s.shape[-2]
            s = xp.where(mask[0] if mask else j <= i + ahead, s, fill)
        return xp.matmul(softmax(s).astype(v.dtype), v)

    def unmasked(q, k, v):
        return attend(q, k, v)

    def with_mask(q, k, v, mask):
        return attend(q, k, v, mask)

    return kernel(with_mask if kind in {"added", "chosen"} else unmasked)


def drawn(kind, fill, dtype, m, n):
    """Return a program's arrays, and what it comes to.

    Of queries some have scores about 1, some about powers of two, some -inf alone; a row
    of a mask is of the fill alone, and another one but for a key.
    """
    rng = np.random.default_rng(m * n)
    q, k, v = np.zeros((2, m, 16)), np.ones((2, n, 16)), rng.standard_normal((2, n, 16))
    k[..., 0] = rng.choice([1, 1.5, 1.75], (2, n)) * 2.0 ** max(LOW[dtype][-1] // 2, 1)
    powers = rng.choice([0, *LOW[dtype]], (2, m))
    q[..., 0] = -(2.0 ** (powers - max(LOW[dtype][-1] // 2, 1)))
    q[:, 3::7] = -np.inf
    arrays = [x.astype(dtypes.of(dtype).numpy) for x in (q, k, v)]
    q, k, v = (x.astype("float64") for x in arrays)
    s = q @ k.swapaxes(-1, -2)
    seen = rng.random((2, m, n)) < 0.5
    seen[:, :2] = False
    seen[:, 1, 3] = True
    if kind == "added":
        arrays.append(np.where(seen, 0, fill).astype("float32"))
        s = (s + arrays[3]).astype("float32").astype("float64")
    elif kind == "chosen":
        arrays.append(seen)
    else:
        seen = np.tri(m, n, 2 if kind == "ahead" else n - m, dtype=bool)
    if kind != "added":
        s = np.where(seen, s, np.float32(fill))
    e = np.exp(s - s.max(-1, keepdims=True))
    return arrays, e / e.sum(-1, keepdims=True) @ v


def combined(shapes):
    """Return kinds and fills with shapes in pairs, and all where keys are left out."""
    left_out = itertools.product(["causal", "ahead"], [-np.inf], shapes)
    return list(dict.fromkeys([*pairs(KINDS, FILLS, shapes), *left_out]))


@pytest.mark.parametrize(("kind", "fill", "case"), combined(CASES))
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_a_mask_weighs_what_it_says(kind, fill, case):
    """By blocks of registers."""
    dtype, shape = case
    made = masked(kind, fill)
    arrays, exact = drawn(kind, fill, dtype, *shape)
    every = strategies.candidates(simplify(made.program(*arrays)), machine())
    (blocks, *_) = [each for each in every if each.multiplies_blocks]
    found = made.bind(*arrays, schedule=blocks)
    found.launch()
    (out,) = found.outputs.values()
    close(out, exact, dtype)


@pytest.mark.parametrize(
    ("kind", "fill", "shape"), combined([(40, 40), (40, 24), (24, 40)])
)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_a_mask_weighs_what_it_says_on_tensor_cores(kind, fill, shape):
    """By simulation; -inf leaves keys out, other numbers are computed with."""
    made = masked(kind, fill)
    arrays, exact = drawn(kind, fill, "float16", *shape)
    program = simplify(made.program(*arrays))
    whole = attention_of(nest_of(program))
    assert not isinstance(whole, str), whole
    left_out = fill == -np.inf and kind in {"causal", "ahead"}
    assert (whole.ahead is not None) == left_out
    steps = -(-shape[1] // 16)
    tiling = AttentionTiling(whole, 1, columns_of(whole), min(2, steps), keys=16)
    low = strategies.lower(program, tiling.schedule, H200)
    close(simt_tiles.launch(program, low, arrays)["out"], exact, "float16")


def close(out, exact, dtype):
    """Hold a result to its roundings, of weights and of itself, and to the same NaN."""
    wide = out.astype(np.float64)
    assert np.array_equal(np.isnan(wide), np.isnan(exact))
    off = np.abs(wide - exact)
    bound = 16 * max(programs.UNIT[dtype], 2.0**-21)  # means of values below 4
    assert (np.isnan(exact) | (off <= bound)).all()
