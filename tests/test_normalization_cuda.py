"""The normalization strategy on a GPU, its kernels run by the interpreter."""

import numpy as np
import pytest
import simt
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import bounds, matches, values
from test_normalization import moments, rich, uneven

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, library, reference
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.loops import INDEX
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.normalization import cuda_lowering, cuda_model
from steelyard_kernels.schedule.normalization.cuda import (
    KEEPS,
    STATISTICS,
    CudaNormalization,
    batches,
)
from steelyard_kernels.schedule.normalization.sums import CANCELLATION

H200 = GPUS["sm_90a"]
FLOAT32 = 2.0**-24
EPSILON = {"epsilon": 1e-5}
SIZES = (768, 1024, 4096, 5140, 20480)


def knobs(extent, *, lanes=1, threads=32, rows=1, unroll=1, **others):
    """Return a schedule for rows of an extent."""
    given = {"statistics": "two_pass", "keep": "packed", **others}
    count = batches(extent, lanes, threads)
    return CudaNormalization(lanes, threads, count, rows, unroll, **given)


def launch(program, arrays, schedule, scalars=None, *, aligned=True):
    """Lower, verify and run; return the outputs."""
    lowered = cuda_lowering.lower(program, schedule, aligned=aligned)
    verify(lowered.kernel, "cuda")
    return simt.launch(program, lowered, arrays, scalars)


def agree(program, arrays, schedule, scalars=None, *, aligned=True, bound=None):
    """Run on copies and compare every output with the oracle."""
    bound = bound or bounds(program, arrays, scalars or {})
    seen = launch(program, arrays, schedule, scalars, aligned=aligned)
    for output in program.outputs:
        wide = reference.widen(seen[output.name], output.value.dtype)
        matches(wide, *bound[output.value.number])


def layernorm(rows, width, dtype="float16"):
    """Return the program of bias_layernorm."""
    specs = (((rows, width), dtype), *((((width,), dtype),) * 4))
    return library.bias_layernorm.program(*specs)


@given(
    st.sampled_from((1, 3, 7)),
    st.sampled_from((1, 2, 31, 32, 33, 64, 96, 257)),
    st.sampled_from((dtypes.float32, dtypes.float64, *dtypes.HALVES)),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=60)
def test_reductions_of_every_kind_agree_with_the_oracle(rows, width, dtype, pick, off):
    """Any rows, width, dtype, alignment and schedule: within the error bound."""
    rng = np.random.default_rng(pick)
    shapes = (rows, width), (width,), (rows, 1)
    arrays = [values(rng, shape, dtype) for shape in shapes]
    program = rich.program(*arrays)
    every = cuda_model.candidates(program, H200, aligned=not off)
    schedule = every[pick % len(every)]
    agree(program, arrays, schedule, {"scale": 0.5}, aligned=not off)


@given(
    st.sampled_from((1, 2, 5, 9)),
    st.sampled_from((8, 33, 96, 264)),
    st.sampled_from((32, 64, 160)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2, 3)),
    st.sampled_from(KEEPS),
    st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_rows_that_fill_no_block_are_computed_once(  # noqa: PLR0917 - a knob each
    rows, width, threads, side, unroll, keep, pick
):
    """Any rows side by side and at once, whether or not they divide the rows."""
    side = side if threads == 32 else 1
    lanes = 1 if width % 2 else 4
    arrays = [
        values(np.random.default_rng(pick), shape, dtypes.float32)
        for shape in ((rows, width), (width,), (rows, 1))
    ]
    schedule = knobs(
        width, lanes=lanes, threads=threads, rows=side, unroll=unroll, keep=keep
    )
    agree(rich.program(*arrays), arrays, schedule, {"scale": 0.5})


@given(st.sampled_from((1, 3)), st.sampled_from((2, 33, 96)), st.integers(0, 10**6))
@settings(max_examples=25)
def test_special_values_reach_the_result(rows, width, pick):
    """NaN, infinities and denormals in a row give what the oracle gives."""
    rng = np.random.default_rng(pick)
    x = values(rng, (rows, width), dtypes.float32, special=True)

    @kernel
    def extremes(x):
        top = xp.max(x, axis=-1, keepdims=True)
        return {"top": top, "low": xp.min(x, axis=-1), "over": xp.maximum(x, 0.0) - top}

    program = extremes.program(x)
    every = cuda_model.candidates(program, H200)
    agree(program, [x], every[pick % len(every)])


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("threads", "unroll"), [(32, 1), (32, 2), (64, 1), (96, 2)])
def test_variance_survives_offsets_and_outliers(statistics, keep, threads, unroll):
    """Large means, outliers in front and constant rows lose no accuracy."""
    width = 333
    x = uneven(width)
    schedule = knobs(
        width, threads=threads, unroll=unroll, statistics=statistics, keep=keep
    )
    seen = launch(moments.program(x), [x], schedule)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean, var = wide.mean(-1), wide.var(-1)
    error = (width / 16 + 16) * FLOAT32 * np.abs(wide).mean(-1)
    np.testing.assert_allclose(seen["mean"][:8], mean[:8], rtol=0, atol=error[:8].max())
    cancelled = (width / 16 + 16) * FLOAT32 * (1 + CANCELLATION[True])
    assert (np.abs(seen["var"] - var)[:8] <= (cancelled * var + error**2)[:8]).all()
    assert seen["var"][4] == 0
    assert seen["var"][5] == 0
    assert np.isnan(seen["var"][8:]).all()


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("width", "threads"), [(333, 32), (1000, 128)])
def test_variance_is_as_accurate_as_numpys(statistics, keep, width, threads):
    """Means of 0 to 1e6 deviations; and constant rows have none, nor a layernorm.

    In two passes they have that of their mean's rounding, as NumPy's may.
    """
    schedule = knobs(width, threads=threads, statistics=statistics, keep=keep)
    means = np.array([0, 0.7, 1, 1.9, 2, 4, 30, 1e3, 1e4, 1e5, 1e6])
    normal = np.random.default_rng(width).standard_normal((len(means), width))
    x = (normal + means[:, None]).astype(np.float32)
    exact = x.astype(np.longdouble).var(-1)
    numpys = np.maximum(abs(x.var(-1) - exact), 2 * FLOAT32 * exact)
    if statistics == "two_pass":  # the mean is rounded; what that is off by is squared
        numpys = np.maximum(numpys, (FLOAT32 * means) ** 2)
    seen = launch(moments.program(x), [x], schedule)["var"]
    assert (abs(seen - exact) <= (12 if statistics == "shifted" else 4) * numpys).all()
    x[:] = (means - 1 / 3)[:, None]
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    constant = launch(moments.program(x), [x], schedule)["var"]
    if statistics == "two_pass":
        assert (constant <= (8 * FLOAT32 * x[:, 0].astype(float)) ** 2).all()
        return
    assert not constant.any()
    program = layernorm(len(means), width, "float32")
    seen = launch(program, [x, zeros, zeros, ones, zeros], schedule, EPSILON)
    assert not seen["out"].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "width"), [(3, 96), (7, 1000), (1, 768), (2, 5140)])
def test_candidates_of_layernorm_agree(rows, width, dtype):
    """Those of a large launch also serve a small one: within the variance's error."""
    rng = np.random.default_rng(6)
    kind = dtypes.of(dtype)
    arrays = [values(rng, s, kind) for s in ((rows, width), *(((width,),) * 4))]
    program = layernorm(rows, width, dtype)
    expected = reference.evaluate(program, arrays, EPSILON)["out"]
    unit = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    cancelled = (width / 16 + 16) * FLOAT32 * (1 + CANCELLATION[True])
    error = (cancelled + 3 * unit) * (np.abs(expected) + 4)
    many = program if rows == 1 else layernorm(8192, width, dtype)
    every = cuda_model.candidates(many, H200)
    for schedule in every[:: 13 if width < 5000 else 31]:
        seen = launch(program, arrays, schedule, EPSILON)["out"]
        off = np.abs(reference.widen(seen, kind) - expected)
        assert (off <= error).all(), schedule.label


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("width", [1, 31, 1000])
def test_softmax_agrees(keep, threads, width):
    """Maximum, sum of exponentials, scale: also for one element, and a prime."""
    x = np.random.default_rng(3).standard_normal((3, width)).astype(np.float32) * 30
    schedule = knobs(width, threads=threads, keep=keep)
    agree(library.softmax.program(x), [x], schedule)


def test_integer_sums_are_int64_and_extremes_keep_their_dtype():
    """Sums of int32 do not wrap at 2**31; max and min are exact."""
    x = np.full((3, 50), 2**30, np.int32)
    x[1, 7] = -5

    @kernel
    def ints(x):
        return xp.sum(x, axis=-1), xp.max(x, axis=-1), xp.min(x, axis=-1)

    for threads in (32, 64):
        seen = launch(ints.program(x), [x], knobs(50, threads=threads))
        total, top, low = seen.values()
        np.testing.assert_array_equal(total, x.astype(np.int64).sum(-1))
        np.testing.assert_array_equal(top, x.max(-1))
        np.testing.assert_array_equal(low, x.min(-1))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("unroll", [1, 4])
def test_rows_are_updated_in_place(keep, unroll):
    """A row may overwrite the array it was reduced from, rows beyond the last also."""

    @kernel
    def centre(x):
        return {"x": x - xp.mean(x, axis=-1, keepdims=True)}

    x = np.random.default_rng(7).standard_normal((6, 40)).astype(np.float32)
    wide = x.astype(np.float64)
    for threads in (32, 64):
        schedule = knobs(40, threads=threads, unroll=unroll, keep=keep)
        seen = launch(centre.program(x), [x], schedule)["x"]
        np.testing.assert_allclose(seen, wide - wide.mean(-1)[:, None], atol=1e-6)


def test_what_would_be_overwritten_too_early_is_refused():
    """A row's first element, and a row's one value where no barrier stands before."""

    @kernel
    def shift(x, row):
        y = x - xp.mean(x, axis=-1, keepdims=True) + row
        return {"x": y, "row": row + xp.var(x, axis=-1, keepdims=True)}

    arrays = np.ones((4, 64), np.float32), np.ones((4, 1), np.float32)
    program = shift.program(*arrays)
    with pytest.raises(KernelError, match="choose other statistics"):
        launch(program, arrays, knobs(64, threads=64, statistics="shifted"))
    with pytest.raises(KernelError, match="64 threads a row or more"):
        launch(program, arrays, knobs(64, threads=32))
    every = cuda_model.candidates(program, H200)
    assert {each.statistics for each in every} == {"plain", "two_pass"}
    assert 32 not in {each.threads for each in every}
    for schedule in every:
        agree(program, arrays, schedule)


def test_outer_axes_may_be_broadcast_in_part():
    """A value for each of the inner rows is found by division of the row number."""
    rng = np.random.default_rng(8)
    shapes = (3, 5, 33), (5, 1), (3, 1, 33), (1, 1, 33)
    arrays = [values(rng, shape, dtypes.float32) for shape in shapes]

    @kernel
    def mix(x, row, part, column):
        t = x * row + part
        return t / (xp.sum(abs(t), axis=-1, keepdims=True) + 1.0) + column

    for threads, side in ((32, 4), (64, 1)):
        agree(mix.program(*arrays), arrays, knobs(33, threads=threads, rows=side))


def test_empty_rows_sum_to_zero():
    """A sum over nothing is 0, by every candidate."""

    @kernel
    def total(x):
        return xp.sum(x, axis=-1)

    x = np.empty((3, 0), np.float32)
    for schedule in cuda_model.candidates(total.program(x), H200):
        (seen,) = launch(total.program(x), [x], schedule).values()
        np.testing.assert_array_equal(seen, np.zeros(3))


def test_moments_of_what_depends_on_a_reduction_are_taken_about_one_shift():
    """The first element of a row is computed anew by every thread."""
    x = np.random.default_rng(2).standard_normal((3, 300)).astype(np.float32)

    @kernel
    def scaled(x):
        t = x * 50.0 / xp.max(abs(x), axis=-1, keepdims=True) + 300.0
        return t - xp.mean(t, axis=-1, keepdims=True), xp.var(t, axis=-1)

    program = scaled.program(x)
    expected = reference.evaluate(program, [x], {})
    for threads in (32, 64):
        schedule = knobs(300, threads=threads, statistics="shifted")
        seen = launch(program, [x], schedule)
        for name, value in expected.items():
            np.testing.assert_allclose(seen[name], value, rtol=1e-4, atol=1e-3)


def test_more_elements_than_an_int32_counts_are_reached_by_int64_indices():
    """The index type follows from the largest array."""
    small = cuda_lowering.lower(layernorm(8, 768), knobs(768, lanes=8))
    large = cuda_lowering.lower(layernorm(2_796_000, 768), knobs(768, lanes=8))
    assert small.slots[-1].code == "i"
    assert large.slots[-1].code == "q"
    assert large.kernel.parameters[-1].type is INDEX


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 48}, "a multiple of 32 up to 1024"),
        ({"threads": 64, "rows": 2}, "up to 32 with 32 threads a row"),
        ({"unroll": 9}, "choose 1 to 8"),
        ({"statistics": "welford"}, "one of plain, shifted, two_pass"),
        ({"keep": "scratch"}, "one of packed, wide, reload"),
        ({"registers": 8}, "16 to 255"),
        ({"lanes": 16}, "a power of two up to 16 that divides the row"),
        ({"unroll": 8}, "more threads a row, reload"),
    ],
)
def test_a_schedule_that_fits_no_gpu_is_refused(change, message):
    """The error names the knob, what was seen, and what to choose."""
    schedule = knobs(1000, **{"lanes": 8, **change})
    with pytest.raises(KernelError, match=message):
        cuda_lowering.lower(layernorm(8, 1000), schedule)


def test_vectors_need_aligned_arrays_and_batches_follow_from_the_rest():
    """What does not fit the rows is said before anything is compiled."""
    program = layernorm(8, 1024)
    with pytest.raises(KernelError, match="multiples of 16 bytes"):
        cuda_lowering.lower(program, knobs(1024, lanes=8), aligned=False)
    wrong = CudaNormalization(8, 32, 3, 1, 1, "two_pass", "packed")
    with pytest.raises(KernelError, match="choose 4"):
        cuda_lowering.lower(program, wrong)


@pytest.mark.parametrize("width", SIZES)
def test_candidates_are_many_and_legal(width):
    """At least 96 of bias_layernorm in float16, all of which can be lowered."""
    program = layernorm(8192, width)
    every = cuda_model.candidates(program, H200)
    assert len(set(every)) == len(every)
    assert 96 <= len(every) <= 128
    assert sorted(every) == list(every)
    assert len({each.label for each in every}) == len(every)
    for schedule in every[::9]:
        verify(cuda_lowering.lower(program, schedule).kernel, "cuda")


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_threads_of_a_row_grow_with_the_row(arch, dtype):
    """A warp or two a row where rows are short; more where they are long."""
    sizes = (768, 1024, 4096, 16384, 20480)
    chosen = [
        cuda_model.heuristic(layernorm(8192, width, dtype), GPUS[arch])
        for width in sizes
    ]
    threads = [each.threads for each in chosen]
    assert threads[0] in {32, 64}
    assert threads[:3] == sorted(threads[:3])
    assert min(threads[3:]) >= 128
    held = [each.threads for each in chosen[3:] if each.keep != "reload"]
    assert min(held, default=threads[2]) >= threads[2]
    assert all(each.keep != "reload" for each in chosen[:3])
    huge = cuda_model.heuristic(layernorm(64, 400_000, dtype), GPUS[arch])
    assert huge.keep == "reload"


@pytest.mark.parametrize("width", [1, 257, 768, 4096, 5140, 20480])
def test_the_heuristic_finds_nearly_the_least_prediction(width):
    """Looking at fewer candidates loses at most a tenth."""
    program = layernorm(8192, width)
    ranked = cuda_model.rank(program, H200)
    free = [row[1].total for row in ranked if not row[0].registers]
    chosen = cuda_model.heuristic(program, H200)
    assert cuda_model.model(program, chosen, H200).total <= 1.1 * free[0]
    assert all(value >= 0 for _, value in ranked[0][1].terms)


def test_generated_text_of_a_warp_and_of_a_block(golden):
    """Loads first, what is kept in registers, one barrier a reduction or none."""
    program = layernorm(10, 1288)
    warp = knobs(1288, lanes=8, rows=4)
    golden(loops_print.text(cuda_lowering.lower(program, warp).kernel), "warp")
    block = knobs(1288, lanes=8, threads=64, keep="wide", statistics="shifted")
    text = loops_print.text(cuda_lowering.lower(program, block).kernel)
    golden(text, "block")
    assert text.count("barrier") == 2  # the second where a row cancelled


def test_a_row_is_not_walked_again_once_it_is_overwritten():
    """Where outputs are stored in the pass of a variance, it takes two passes."""

    @kernel
    def double(x):
        return {"x": x + x, "var": xp.var(x, axis=-1)}

    x = np.random.default_rng(4).standard_normal((3, 96)).astype(np.float32) + 1000
    program = double.program(x)
    with pytest.raises(KernelError, match="choose two_pass"):
        launch(program, [x], knobs(96, statistics="plain"))
    for schedule in cuda_model.candidates(program, H200)[::7]:
        seen = launch(program, [x], schedule)
        np.testing.assert_allclose(seen["var"], x.var(-1, dtype=float), rtol=1e-4)
        np.testing.assert_array_equal(seen["x"], x + x)


def test_registers_and_local_memory_are_as_planned():
    """No stack, and about as many registers as estimated, of every thirtieth."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    assert nvrtc
    from steelyard_device import cubin
    from steelyard_device.nvrtc import compile as compile_cuda
    from steelyard_kernels.emit.cuda import emit

    for width in (768, 5140):
        program = layernorm(8192, width)
        hashes = set()
        every = [s for s in cuda_model.candidates(program, H200) if not s.registers]
        for schedule in every[::30]:
            lowered = cuda_lowering.lower(program, schedule)
            made = compile_cuda(emit(lowered.kernel), "sm_90a")
            (found,) = cubin.read(made.cubin).values()
            assert found.stack == 0, schedule.label
            assert found.registers <= lowered.kernel.registers
            hashes.add(found.code_hash)
        assert len(hashes) == len(every[::30])
