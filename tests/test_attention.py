"""Attention on tensor cores, as far as no GPU is needed."""

import importlib
from pathlib import Path

import attention_programs as programs
import numpy as np
import pytest
import simt_tiles
from attention_programs import H200, drawn, expected, lowered, softmax
from product_programs import built_without_spills, tiled

from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.programs import build
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.attention import Attention, attention_of
from steelyard_kernels.schedule.cores import MMA
from steelyard_kernels.targets import device, parse

TARGET = "cuda:sm_90a"


@pytest.mark.parametrize(("name", "shape", "dtype", "numbers"), programs.CASES)
def test_simulated_blocks_agree_with_float64(name, shape, dtype, numbers):
    """Every index, phase, mask and byte count, with tasks in random order."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype, seed=1)
    program, low = lowered(made, arrays, numbers)
    verify(low.kernel, "cuda")
    out = simt_tiles.launch(program, low, arrays)["out"].astype(np.float64)
    exact, bound = expected(made, arrays)
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    assert (np.isnan(exact) | (np.abs(out - exact) <= bound)).all()


def test_a_stage_that_is_filled_too_early_is_seen(monkeypatch):
    """The simulation does not pass for want of a wait."""
    arrays = drawn(programs.plain, (1, 1, 64, 256, 64, 64), "float16", seed=1)
    program, low = lowered(programs.plain, arrays, (1, 64, 2))
    wait = simt_tiles._Block.do_mbarrier_wait

    def hasty(self, buffer, index, parity):
        if not buffer.name.startswith("empty"):
            wait(self, buffer, index, parity)

    monkeypatch.setattr(simt_tiles._Block, "do_mbarrier_wait", hasty)
    with pytest.raises(AssertionError, match="all tasks wait for each other"):
        simt_tiles.launch(program, low, arrays)


@pytest.mark.parametrize("name", ["plain", "causal", "biased", "by_sequence"])
def test_other_targets_attend_by_warps_or_threads(name):
    """On the CPU, and on GPUs without the instructions, by the general recipes."""
    made = getattr(programs, name)
    arrays = drawn(made, (1, 2, 9, 17, 16, 16), "float16", seed=1)
    program = simplify(made.program(*arrays))
    for target in ("cuda:sm_80", "cuda:sm_89", "cuda:sm_100a", "cuda:sm_120a"):
        chosen = strategies.heuristic(program, device(parse(target)))
        assert "mma16.warp4" in chosen.label
    chosen = strategies.heuristic(program, device(parse("nvptx:sm_90a")))
    assert not chosen.multiplies_tiles
    exact, bound = expected(made, arrays)
    off = np.abs(made(*arrays).astype(np.float64) - exact)
    # All that is on the way is rounded to halves there: eight times, largest scores too.
    scores = programs.SCALE * 16 * np.abs(arrays[0]).max() * np.abs(arrays[1]).max()
    assert (off <= bound + 8 * programs.UNIT["float16"] * (1 + float(scores))).all()


def test_a_small_kernel_is_golden(golden):
    """Two steps of 16 keys, of 16 columns each."""
    arrays = drawn(programs.causal, (1, 2, 64, 32, 16, 16), "float16", seed=0)
    _, low = lowered(programs.causal, arrays, (1, 16, 2))
    golden(emit(low.kernel), "text")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("plain", (1, 2, 512, 512, 64, 64)),
        ("causal", (1, 2, 1024, 1024, 128, 128)),
        ("biased", (1, 2, 300, 300, 256, 256)),
    ],
)
def test_nvrtc_takes_candidates(nvrtc, name, shape):
    """Some of each kind, none of which spills."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, "float16", seed=0)
    program = simplify(made.program(*arrays))
    schedules = tiled(program)
    schedules = schedules[:: max(1, len(schedules) // 2)]
    assert len(schedules) >= 2
    for resources in built_without_spills(program, schedules):
        assert resources.tensor_core >= 8


@pytest.mark.parametrize(
    ("name", "columns", "target"),
    [
        ("plain", 64, "cuda:sm_80"),
        ("causal", 128, "cuda:sm_89"),
        ("biased", 80, "cuda:sm_120a"),
        ("biased", 80, "cuda:sm_80"),
    ],
)
def test_nvrtc_takes_attention_by_warps(nvrtc, name, columns, target):
    """The chosen one, which spills nothing."""
    made = getattr(programs, name)
    arrays = drawn(made, (8, 12, 520, 520, columns, columns), "bfloat16", seed=0)
    built = build(made.program(*arrays), target=target, levels=frozenset())
    assert isinstance(built, Artifact), built.error
    assert built.code.resources.tensor_core >= 8
    assert built.code.spill_stores == 0


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1, 96, 2, 0, MMA), "has 96 keys a step by warps; choose a multiple of 64"),
        (
            (1, 40, 2),
            "40 keys a step and 1 warpgroups; choose a multiple of 16 up to 256",
        ),
        ((4, 64, 2), "64 keys a step and 4 warpgroups; choose .* 1 to 3"),
        ((1, 256, 1), "steps of 256 of 200 keys; choose fewer"),
        ((1, 64, 1), "has 1 stages; choose 2 to 4"),
        ((2, 112, 2), "bytes of shared memory, a block has 232448"),
        ((1, 64, 2, 132), "blocks that stay; choose none, 2 or 3 warpgroups"),
        ((3, 16, 2), "registers a thread, 512 threads leave 160"),
    ],
)
def test_a_tiling_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    arrays = drawn(programs.plain, (1, 1, 200, 200, 256, 256), "float16", seed=0)
    with pytest.raises(KernelError, match=said):
        lowered(programs.plain, arrays, numbers)


@kernel
def in_float32(q, k, v):
    """Weigh values by what is not rounded."""
    s = softmax(xp.matmul(q.astype("float32"), k.mT.astype("float32")))
    return xp.matmul(s, v.astype("float32"))


@kernel
def scores_too(q, k, v):
    """Return a row's largest score as well."""
    s = xp.matmul(q, k.mT)
    return xp.matmul(softmax(s), v) + xp.max(s, axis=-1, keepdims=True)


@kernel
def of_sums(q, k, v):
    """Attend by what is computed."""
    return xp.matmul(softmax(xp.matmul(q + q, k.mT)), v)


@kernel
def no_softmax(q, k, v):
    """Weigh values by powers alone."""
    s = xp.matmul(q, k.mT)
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return xp.matmul(e / xp.max(e, axis=-1, keepdims=True), v)


@pytest.mark.parametrize(
    ("made", "columns", "said"),
    [
        (in_float32, 64, "weighs float16 by float32; round the weights to float16"),
        (scores_too, 64, "reads a softmax's largest scores or their sums besides"),
        (of_sums, 64, "scores what is computed, not two arrays of halves"),
        (no_softmax, 64, "weighs values by no softmax of scores"),
        (programs.plain, 60, "reads q by rows that begin at no 16 bytes"),
    ],
)
def test_what_is_no_attention_is_computed_by_threads(made, columns, said):
    """With a reason, and no failure."""
    arrays = [np.zeros((2, 32, columns), "float16")] * 3
    program = simplify(made.program(*arrays))
    assert attention_of(nest_of(program)) == said
    assert not strategies.heuristic(program, H200).multiplies_tiles


@kernel
def reciprocal(q, k, v):
    """Divide once a row, and round in the middle."""
    s = xp.matmul(q.astype("float32"), k.mT.astype("float32")) / 8
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    w = e * (1.0 / xp.sum(e, axis=-1, keepdims=True))
    return xp.tanh(xp.matmul(w.astype(q.dtype), v).astype("float32"))


@kernel
def repeated(q, k, v):
    """Repeat heads, and scale queries and keys."""
    k, v = xp.repeat(k, 3, axis=1), xp.repeat(v, 3, axis=1)
    return xp.matmul(softmax(xp.matmul(q * 0.5, (k / 4).mT)), v)


@kernel
def scaled_and_biased(q, k, v):
    """Scale queries, and add what grows with keys."""
    s = xp.matmul(q.astype("float32") * 0.125, k.mT.astype("float32"))
    j = xp.arange(k.shape[-2]).astype("float32")
    return xp.matmul(softmax(s - 0.25 * j).astype(q.dtype), v)


@kernel
def negative(q, k, v):
    """Attend to what is unlike."""
    return xp.matmul(softmax(xp.matmul(q * 0.5, k.mT) * -0.25), v)


@kernel
def scaled(q, k, v, *, scale=0.125):
    """Scale by what the launch knows."""
    return xp.matmul(softmax(xp.matmul(q, k.mT) * scale), v)


@kernel
def windowed(q, k, v):
    """Attend to keys behind a query."""
    s = xp.matmul(q, k.mT) * 0.125
    i, j = xp.arange(s.shape[-2])[:, None], xp.arange(s.shape[-1])
    return xp.matmul(softmax(xp.where(i - j < 8, s, -1e4)), v)


@kernel
def unshifted(q, k, v):
    """Take powers of the scores as they are."""
    e = xp.exp(xp.matmul(q, k.mT) * 0.125)
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


@kernel
def below_a_number(q, k, v):
    """Take powers below a number that is never too small."""
    e = xp.exp(xp.matmul(q, k.mT) * 0.125 - 4.0)
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


@kernel
def divided_later(q, k, v):
    """Divide what was weighed."""
    s = xp.matmul(q, k.mT).astype("float32") * 0.125
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    found = xp.matmul(e.astype(q.dtype), v).astype("float32")
    return found / xp.sum(e, axis=-1, keepdims=True) + 1.0


@kernel
def by_logarithm(q, k, v):
    """Subtract the logarithm of the powers' sum."""
    s = xp.matmul(q, k.mT).astype("float32") * 0.125
    most = xp.max(s, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(s - most), axis=-1, keepdims=True)
    return xp.matmul(xp.exp(s - (most + xp.log(total))).astype(q.dtype), v)


@pytest.mark.parametrize(
    ("made", "scale", "ahead"),
    [
        (programs.plain, 0.125, None),
        (programs.causal, 0.125, 0),
        (reciprocal, 0.125, None),
        (repeated, 1.0, None),
        (scaled_and_biased, None, None),
        (negative, None, None),
        (scaled, None, None),  # every score by itself
        (windowed, None, None),
        (unshifted, 0.125, None),
        (below_a_number, 0.125, None),
        (divided_later, 0.125, None),
        (by_logarithm, 0.125, None),
    ],
)
def test_forms_of_a_softmax_are_recognised(made, scale, ahead):
    """Whatever it rounds on the way."""
    arrays = drawn(made, (2, 2, 64, 64, 32, 32), "float16", seed=2)
    if made is repeated:
        arrays[0] = np.repeat(arrays[0], 3, axis=1)[:, ::-1].copy()
    found = attention_of(nest_of(simplify(made.program(*arrays))))
    assert isinstance(found, Attention), found
    assert (found.scale, found.ahead) == (scale, ahead)
    program, low = lowered(made, arrays, (1, 32, 2))
    scalars = {each.name: each.default for each in made.signature.scalars}
    out = simt_tiles.launch(program, low, arrays, scalars)["out"].astype(np.float64)
    exact, bound = expected(made, arrays, scalars)
    assert (np.abs(out - exact) <= bound).all()


def test_implementations_share_the_suites_reference(monkeypatch):
    """It attends once of the same data and mask, and anew of others."""
    folder = str(Path(__file__).parent.parent)
    monkeypatch.syspath_prepend(folder)
    suite = importlib.import_module("suites.attention")
    asked, attend = [], suite._attended
    monkeypatch.setattr(
        suite, "_attended", lambda *a, **k: (asked.append(k), attend(*a, **k))[1]
    )
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((1, 2, 16, 8)) for _ in range(3))
    first = suite._reference(q, k, v)
    assert suite._reference(q.copy(), k, v) is first
    assert len(asked) == 1
    assert not np.array_equal(suite._causal_reference(q, k, v), first)
    suite._reference(q + 1, k, v)
    assert len(asked) == 3
    assert len(suite._ANSWERS) == suite.ANSWERS
