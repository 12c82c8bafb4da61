"""Sums weighted by what is made of products, on Hopper's tensor cores: by simulation.

Shapes are (batch, heads, queries, keys, columns of queries and keys, of values); a tiling
is (warpgroups, keys of a step, stages).
"""

import numpy as np
import pytest
import simt_tiles
from attention_programs import H200, SCALE, SUM, UNIT
from product_programs import built_without_spills, tiled

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import value_and_grad, vjp
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.partition import partition
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.recipes.attention import columns_of
from steelyard_kernels.schedule.recipes.weighted import WeightedTiling
from steelyard_kernels.schedule.weighted import Weighted, weighted_of

POWER = (
    2.0**-22 + 2.0**-23
)  # of a power of two by `exp2_approx`, and rounding its result
STEP = 2.0**-24  # relative error of an operation in float32
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-126}  # below it halves lose bits


def scores(q, k, mask):
    """Return scaled scores, of the keys that a kind of mask keeps."""
    s = xp.matmul(q.astype("float32"), k.mT.astype("float32")) * SCALE
    i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
    if mask == "causal":
        s = xp.where(j <= i + (s.shape[-1] - s.shape[-2]), s, -xp.inf)
    return xp.where(i - j < 40, s, -xp.inf) if mask == "window" else s


def pulled(arrays, mask):
    """Return the weights and the cotangents of scores, in halves."""
    q, k, v, g, log, own = arrays
    p = xp.exp(scores(q, k, mask) - log)
    ds = p * (xp.matmul(g.astype("float32"), v.mT.astype("float32")) - own) * SCALE
    return p.astype(q.dtype), ds.astype(q.dtype)


def made_of(which, mask):
    """Return a kernel of the cotangents of queries, or of keys and values, or of values."""

    def back(q, k, v, g, log, own):  # noqa: PLR0917 - as backward passes have
        if which == "rows":
            s = scores(q, k, mask)
            most = xp.max(s, axis=-1, keepdims=True)
            return most, xp.sum(xp.exp(s - most), axis=-1, keepdims=True)
        p, ds = pulled((q, k, v, g, log, own), mask)
        if which == "queries":
            return xp.matmul(ds, k)
        of_values = xp.matmul(p.mT, g)
        return of_values if which == "values" else (xp.matmul(ds.mT, q), of_values)

    return kernel(back)


def drawn(shape, dtype, mask, seed=0):
    """Return normal random arrays, with each row's logarithm and mean in float32."""
    batch, heads, m, n, depth, columns = shape
    rng = np.random.default_rng(seed)
    every = [
        rng.standard_normal((batch, heads, *each)).astype(dtypes.of(dtype).numpy)
        for each in ((m, depth), (n, depth), (n, columns), (m, columns))
    ]
    q, k, v, g = (x.astype("float64") for x in every)
    s = np.where(seen(m, n, mask), q @ k.swapaxes(-1, -2) * SCALE, -np.inf)
    most = np.maximum(s.max(-1, keepdims=True), -1e3)  # of rows that see no key too
    log = most + np.log(np.maximum(np.exp(s - most).sum(-1, keepdims=True), 1.0))
    own = (np.exp(s - log) * (g @ v.swapaxes(-1, -2))).sum(-1, keepdims=True)
    return [*every, log.astype("float32"), own.astype("float32")]


def seen(m, n, mask):
    """Return which keys a query sees."""
    apart = np.arange(m)[:, None] - np.arange(n)
    every = {"causal": apart >= m - n, "window": apart < 40}
    return every.get(mask, np.ones((m, n), bool))


def t(x):
    """Transpose matrices."""
    return x.swapaxes(-1, -2)


def expected(arrays, mask, dtype, *, own_rows=False, halves=False):
    """Return cotangents of queries, keys and values, and bounds of their errors.

    `own_rows`: kernels add up each row's weights and mean themselves. `halves`: all that
    the program computes is rounded to such.
    """
    each = UNIT[dtype] if halves else 0.0
    q, k, v, g, log, own = (x.astype("float64") for x in arrays)
    s, d = q @ t(k) * SCALE, g @ t(v)
    p = np.exp(np.where(seen(*s.shape[-2:], mask), s - log, -np.inf))
    ds = p * (d - own) * SCALE
    sizes = [np.abs(x) for x in (q, k, v, g)]
    off_s = SCALE * SUM * q.shape[-1] * (sizes[0] @ t(sizes[1]))
    off_s += 2 * (STEP + each) * np.abs(s)
    power = off_s + STEP * (3 * np.abs(s - log) + np.abs(log)) + POWER + 2 * each
    off_d = SUM * v.shape[-1] * (sizes[3] @ t(sizes[2])) + STEP * np.abs(d - own)
    off_d += each * (np.abs(d) + np.abs(d - own))
    if own_rows:
        added = STEP * s.shape[-1] + each
        power += (p * power).sum(-1, keepdims=True) + added + 2 * STEP
        parts = p * (off_d + np.abs(d) * (power + added + 2 * STEP + each))
        off_d += parts.sum(-1, keepdims=True)
    unit = UNIT[dtype]
    off_p = p * (power + unit) + SMALLEST[dtype]
    off_ds = SCALE * p * (off_d + np.abs(d - own) * (power + 3 * STEP + each))
    off_ds += np.abs(ds) * (unit + each) + SMALLEST[dtype]
    found = []
    for weights, off, value in (
        (ds, off_ds, k),
        (t(ds), t(off_ds), q),
        (t(p), t(off_p), g),
    ):
        size, keys = np.abs(value), value.shape[-2]
        exact = weights @ value
        bound = off @ size + SUM * keys * (np.abs(weights) @ size)
        found.append((exact, bound + unit * (np.abs(exact) + bound) + SMALLEST[dtype]))
    return found


def held(out, every):
    """Hold results to their bounds."""
    for name, (exact, bound) in zip(sorted(out), every, strict=True):
        off = np.abs(out[name].astype("float64") - exact)
        assert (off <= bound).all(), (name, (off / bound).max())
        assert (bound < 0.1 * np.abs(exact).max()).all()


def tiling(program, numbers):
    """Return a tiling by its numbers; it need not be legal."""
    whole = weighted_of(nest_of(program))
    assert isinstance(whole, Weighted), whole
    groups, keys, stages = numbers
    return WeightedTiling(whole, groups, columns_of(whole), stages, keys=keys)


PART = {"queries": slice(0, 1), "keys": slice(1, 3), "values": slice(2, 3)}
CASES = [
    ("queries", "none", (1, 2, 128, 128, 64, 64), "float16", (2, 64, 2)),
    ("queries", "causal", (2, 1, 200, 264, 64, 64), "bfloat16", (2, 32, 2)),
    ("queries", "causal", (1, 1, 264, 200, 64, 64), "float16", (1, 64, 2)),
    ("queries", "none", (1, 1, 130, 131, 128, 128), "float16", (2, 32, 3)),  # odd rows
    ("queries", "window", (1, 1, 136, 136, 40, 96), "float16", (1, 48, 2)),
    ("keys", "none", (1, 2, 128, 128, 64, 64), "float16", (2, 64, 2)),
    ("keys", "causal", (1, 2, 192, 192, 64, 64), "float16", (3, 32, 2)),
    ("keys", "causal", (2, 1, 264, 200, 64, 64), "float16", (2, 64, 2)),
    ("keys", "causal", (1, 1, 200, 264, 128, 128), "bfloat16", (2, 64, 1)),
    ("keys", "none", (1, 1, 131, 130, 32, 32), "float16", (1, 16, 4)),
    ("keys", "window", (1, 1, 136, 136, 64, 64), "float16", (1, 64, 2)),
    ("values", "causal", (1, 2, 72, 136, 32, 80), "float16", (2, 32, 2)),
]


@pytest.mark.parametrize(("which", "mask", "shape", "dtype", "numbers"), CASES)
def test_simulated_blocks_agree_with_float64(which, mask, shape, dtype, numbers):
    """Every index, phase, mask and byte count, with tasks in random order."""
    made, arrays = made_of(which, mask), drawn(shape, dtype, mask)
    program = simplify(made.program(*arrays))
    low = strategies.lower(program, tiling(program, numbers).schedule, H200)
    verify(low.kernel, "cuda")
    names = [value.name for value in program.inputs]
    given = [arrays[["q", "k", "v", "g", "log", "own"].index(name)] for name in names]
    out = simt_tiles.launch(program, low, given)
    held(out, expected(arrays, mask, dtype)[PART[which]])


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("halves", [False, True])
def test_a_gradient_passes_no_matrix_of_weights_through_memory(
    mask, halves, monkeypatch
):
    """Three kernels: of rows, of queries, and of keys and values; all simulated.

    So few keys would be quicker by more kernels, if all is halves.
    """

    def attend(q, k, v):
        s = xp.matmul(q, k.mT).astype("float16" if halves else "float32") * SCALE
        i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
        s = xp.where(i >= j, s, -xp.inf) if mask == "causal" else s
        e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
        w = e / xp.sum(e, axis=-1, keepdims=True)
        return xp.matmul(w.astype(v.dtype), v)

    @kernel
    def back(q, k, v, g):
        return vjp(attend, q, k, v)[1](g)

    long = simplify(back.program(*[((4, 8, 2048, 64), "float16")] * 4))
    assert len(partition(long, H200).launches) == 3
    monkeypatch.setattr(Groups, "try_out", lambda self, change: change())
    arrays = drawn((1, 2, 128, 128, 64, 64), "float16", mask)
    program = simplify(back.program(*arrays[:4]))
    plan = partition(program, H200)
    assert len(plan.launches) == 3
    assert all(each.nbytes == (4 - 2 * halves) * 2 * 128 for each in plan.buffers)
    homes = dict(zip("qkvg", arrays, strict=False))
    for launch in plan.launches:
        low = strategies.lower(
            launch.program, strategies.heuristic(launch.program, H200), H200
        )
        given = [homes[name] for name in launch.reads]
        out = simt_tiles.launch(launch.program, low, given)
        named = [output.name for output in launch.program.outputs]
        homes |= {
            home: out[name] for home, name in zip(launch.writes, named, strict=True)
        }
    out = {name: homes[name] for name in ("out0", "out1", "out2")}
    held(out, expected(arrays, mask, "float16", own_rows=True, halves=halves))


def test_rows_that_wait_for_others_are_totalled_later():
    """A loss is made of attention's output, whose rows its gradient reads too."""

    def loss(q, k, v, w):
        s = xp.matmul(q, k.mT).astype("float32") * SCALE
        e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
        p = e / xp.sum(e, axis=-1, keepdims=True)
        return xp.mean((xp.matmul(p.astype(v.dtype), v) - w) ** 2)

    @kernel
    def step(q, k, v, w):
        value, found = value_and_grad(loss, argnums=(0, 1, 2))(q, k, v, w)
        return value, *found

    arrays = drawn((1, 2, 128, 128, 64, 64), "float16", "none")[:4]
    plan = partition(simplify(step.program(*arrays)), H200)
    reasons = [launch.reason.split()[0] for launch in plan.launches]
    assert reasons.count("weighted") >= 3
    there = set("qkvw")
    for launch in plan.launches:
        assert there.issuperset(launch.reads)
        there.update(launch.writes)


@kernel
def below(q, k):
    """Return each row's largest score, and how far below it all scores are together."""
    s = scores(q, k, "none")
    most = xp.max(s, axis=-1, keepdims=True)
    return most, xp.sum(s - most, axis=-1, keepdims=True)


@kernel
def rounded_twice(q, k):
    """Return the sum of each row's powers as both kinds of halves have it."""
    s = scores(q, k, "none")
    total = xp.sum(xp.exp(s - xp.max(s, axis=-1, keepdims=True)), axis=-1)
    return total.astype("float16").astype("bfloat16")


def test_totals_are_stored_in_the_dtype_that_they_are_rounded_to():
    """Halves of one kind, of halves of the other."""
    q, k = drawn((1, 2, 128, 192, 64, 64), "float16", "none")[:2]
    program = simplify(rounded_twice.program(q, k))
    low = strategies.lower(program, tiling(program, (2, 64, 2)).schedule, H200)
    verify(low.kernel, "cuda")
    out = simt_tiles.launch(program, low, [q, k])["out"].astype("float64")
    s = q.astype("float64") @ t(k.astype("float64")) * SCALE
    exact = np.exp(s - s.max(-1, keepdims=True)).sum(-1)
    assert out == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [((2, 2, 128, 192, 64, 64), (2, 64, 2)), ((1, 1, 131, 130, 32, 32), (1, 16, 3))],
)
@pytest.mark.parametrize("online", [True, False])
def test_rows_are_totalled_without_a_matrix(shape, numbers, online):
    """In one walk along the keys where powers are summed, else in one for each level."""
    made, arrays = below, drawn(shape, "float16", "causal")
    mask = "causal" if online and shape[2] <= shape[3] else "none"
    if online:
        made = made_of("rows", mask)
    program = simplify(made.program(*arrays[: len(made.signature.arrays)]))
    found = tiling(program, numbers)
    assert len(found.weighted.passes) == 2 - online
    low = strategies.lower(program, found.schedule, H200)
    verify(low.kernel, "cuda")
    out = simt_tiles.launch(program, low, arrays[: len(program.inputs)])
    q, k = (x.astype("float64") for x in arrays[:2])
    s = np.where(seen(*shape[2:4], mask), q @ t(k) * SCALE, -np.inf)
    off = SCALE * SUM * q.shape[-1] * (np.abs(q) @ t(np.abs(k))) + 2 * STEP * np.abs(s)
    off = np.where(np.isinf(s), 0, off)
    most, worst = s.max(-1, keepdims=True), off.max(-1, keepdims=True)
    assert (np.abs(out["out0"] - most) <= worst).all()
    each, added = s - most, STEP * shape[3]
    exact, bound = each.sum(-1, keepdims=True), (off + worst).sum(-1, keepdims=True)
    if online:
        powers = np.exp(each)
        size = np.where(np.isinf(each), 0, np.abs(each))
        relative = off + worst + STEP * (4 * size + 2 * np.abs(most)) + 2 * POWER
        exact, bound = (
            (powers * x).sum(-1, keepdims=True) for x in (np.ones_like(s), relative)
        )
        added = 4 * added
    assert (np.abs(out["out1"] - exact) <= bound + added * np.abs(exact)).all()


@pytest.mark.parametrize("which", ["rows", "queries", "keys"])
@pytest.mark.parametrize("columns", [64, 128])
def test_nvrtc_takes_candidates(nvrtc, which, columns):
    """Those of the most registers, none of which spills."""
    arrays = drawn((1, 1, 512, 512, columns, columns), "float16", "causal")
    program = simplify(made_of(which, "causal").program(*arrays))
    every = tiled(program)
    assert len(every) >= 8
    most = sorted(every, key=lambda s: strategies.estimated_registers(program, s))
    for resources in built_without_spills(program, most[-2:]):
        assert resources.tensor_core >= 8


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 40, 2), "40 keys a step and 1 warpgroups; choose a multiple of 16"),
        ((1, 256, 1), "steps of 256 of 200 keys; choose fewer"),
        ((1, 64, 5), "has 5 stages; choose 1 to 4"),
        ((3, 64, 4), "bytes of shared memory, a block has 232448"),
        ((2, 96, 1), "registers a thread, 384 threads leave 240"),
    ],
)
def test_a_tiling_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    arrays = drawn((1, 1, 200, 200, 128, 128), "float16", "none")
    program = simplify(made_of("keys", "none").program(*arrays))
    with pytest.raises(KernelError, match=said):
        strategies.lower(program, tiling(program, numbers).schedule, H200)


@kernel
def in_float32(q, k, v):
    """Weigh by what is not rounded."""
    return xp.matmul(xp.tanh(scores(q, k, "none")), v.astype("float32"))


@kernel
def of_sums(q, k, v):
    """Score what is computed."""
    return xp.matmul(xp.tanh(xp.matmul(q + q, k.mT)), v)


@kernel
def with_means(q, k, v):
    """Weigh by a row's mean too."""
    s = xp.matmul(q, k.mT)
    return xp.matmul(s - xp.mean(s, axis=-1, keepdims=True), v)


@pytest.mark.parametrize(
    ("made", "columns", "said"),
    [
        (in_float32, 64, "weighs by float32; round the weights to halves"),
        (of_sums, 64, "scores what is computed, not two arrays of halves"),
        (with_means, 64, "has not sums of products of floats"),
    ],
)
def test_what_is_no_weighted_sum_is_computed_by_threads(made, columns, said):
    """With a reason, and no failure."""
    arrays = [np.zeros((2, 32, columns), "float16")] * 3
    program = simplify(made.program(*arrays))
    assert weighted_of(nest_of(program)) == said
    assert not strategies.heuristic(program, H200).multiplies_tiles


@kernel
def linear(q, k, v):
    """Weigh values by scores as they are."""
    return xp.matmul(xp.tanh(xp.matmul(q, k.mT)), v)


@kernel
def uneven(q, k, v):
    """Weigh values ahead of a query alike, and not by nothing."""
    s = xp.matmul(q, k.mT)
    i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
    return xp.matmul(xp.where(j <= i, xp.tanh(s), 0.5), v)


@pytest.mark.parametrize("made", [linear, uneven])
def test_other_weights_than_powers_are_summed_too(made):
    """Of any elementwise function of scores: no key is left out where it weighs something.

    Of weights that a condition chooses all keys were taken for left out where it fails.
    """
    arrays = drawn((1, 1, 72, 136, 64, 64), "float16", "none")[:3]
    program = simplify(made.program(*arrays))
    low = strategies.lower(program, tiling(program, (1, 32, 2)).schedule, H200)
    out = simt_tiles.launch(program, low, arrays)["out"].astype("float64")
    q, k, v = (x.astype("float64") for x in arrays)
    s, size, unit = q @ t(k), np.abs(q) @ t(np.abs(k)), UNIT["float16"]
    # A score is rounded to halves, its tanh once more; slopes are 1 at most.
    off = unit * np.abs(s) + SUM * 64 * size + 2 * unit
    bound = off @ np.abs(v) + 136 * SUM * np.abs(v).sum(-2, keepdims=True)
    below = np.tril(np.ones(s.shape[-2:], bool))
    exact = np.where(below | (made is linear), np.tanh(s), 0.5) @ v
    assert (np.abs(out - exact) <= bound + unit * np.abs(exact) + 2.0**-25).all()


def test_a_small_kernel_is_golden(golden):
    """Two steps of 16 keys, of 16 columns each."""
    arrays = drawn((1, 2, 64, 32, 16, 16), "float16", "causal")
    program = simplify(made_of("queries", "causal").program(*arrays))
    low = strategies.lower(program, tiling(program, (1, 16, 2)).schedule, H200)
    golden(emit(low.kernel), "text")
