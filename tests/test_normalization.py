"""The normalization strategy: rows reduced and used again, against the oracle."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import agree, offset, values

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, library, reference
from steelyard_kernels.building.build import build
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.printing import text
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.normalization import model
from steelyard_kernels.schedule.normalization.schedule import Normalization
from steelyard_kernels.schedule.normalization.sums import CANCELLATION
from steelyard_kernels.targets import machine

ONE = Normalization(16, 1, 1, "shifted", "scratch", False, False, False, 32, 1)

# One-pass variance may cancel by the guard's factor on top of the roundings of its
# sums: a chain of extent / 16 additions and one across lanes.
FLOAT32 = 2.0**-24


def variance_tolerance(extent):
    """Return the relative error that a float32 variance may have."""
    return (extent / 16 + 16) * FLOAT32 * (1 + CANCELLATION[True])


@kernel
def moments(x):
    """Return mean and variance of every row."""
    return {"mean": xp.mean(x, axis=-1), "var": xp.var(x, axis=-1)}


@kernel
def variance(x):
    """Return the variance of every row."""
    return xp.var(x, axis=-1)


@kernel
def rich(x, column, row, *, scale=0.5):
    """Use every kind of reduction and operand."""
    t = (x * column + row) * scale
    top = xp.max(t, axis=-1, keepdims=True)
    low = xp.min(t, axis=-1, keepdims=True)
    total = xp.sum(t * t, axis=-1, keepdims=True)
    centred = t - xp.mean(t, axis=-1, keepdims=True)
    spread = xp.sum(abs(centred), axis=-1, keepdims=True)
    return {"y": (centred + row) * column, "low": low, "s": total + spread, "top": top}


def uneven(width):
    """Return rows whose variance is hard to take, two of them with none."""
    x = np.random.default_rng(5).standard_normal((10, width)).astype(np.float32)
    x[1] += 1000
    x[2] = x[2] * 1e-3 - 50
    x[3, 0] = 1e4
    x[4] = 7.0
    x[5] = 0.0
    x[6] *= 1e-15
    x[7] = 1e20  # its square is no float32
    x[8, 5] = np.inf
    x[9, 300] = np.nan
    return x


ROWS = (1, 2, 3, 4, 5, 7, 13)
WIDTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 100, 257)


@given(
    st.sampled_from(ROWS),
    st.sampled_from(WIDTHS),
    st.sampled_from((dtypes.float32, dtypes.float64, *dtypes.HALVES)),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=40)
def test_reductions_of_every_kind_agree_with_the_oracle(rows, width, dtype, pick, off):
    """Any rows, width, dtype, alignment and schedule: within the error bound."""
    rng = np.random.default_rng(pick)
    shapes = (rows, width), (width,), (rows, 1)
    arrays = [values(rng, shape, dtype) for shape in shapes]
    if off:
        arrays = [offset(array) for array in arrays]
    every = strategies.candidates(rich.program(*arrays), machine())
    agree(rich, arrays, {"scale": 0.5}, every[pick % len(every)])


@given(st.sampled_from(ROWS), st.sampled_from(WIDTHS), st.integers(0, 10**6))
@settings(max_examples=25)
def test_special_values_reach_the_result(rows, width, pick):
    """NaN, infinities and denormals in a row give what the oracle gives."""
    rng = np.random.default_rng(pick)
    x = values(rng, (rows, width), dtypes.float32, special=True)

    @kernel
    def extremes(x):
        top = xp.max(x, axis=-1, keepdims=True)
        return {"top": top, "low": xp.min(x, axis=-1), "over": xp.maximum(x, 0.0) - top}

    every = strategies.candidates(extremes.program(x), machine())
    agree(extremes, [x], schedule=every[pick % len(every)])


@pytest.mark.parametrize("statistics", model.STATISTICS)
@pytest.mark.parametrize("keep", ["scratch", "recompute"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_variance_survives_offsets_and_outliers(statistics, keep, rows):
    """Large means, outliers in front and constant rows lose no accuracy."""
    width = 333
    x = uneven(width)
    schedule = Normalization(16, rows, 2, statistics, keep, False, False, False, 32, 1)
    work = moments.bind(x, schedule=schedule)
    work.launch()
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean, var = wide.mean(-1), wide.var(-1)
    error = (width / 16 + 16) * FLOAT32 * np.abs(wide).mean(-1)
    np.testing.assert_allclose(
        work.outputs["mean"][:8], mean[:8], rtol=0, atol=error[:8].max()
    )
    rounding = variance_tolerance(width) * var + (error**2)
    seen = work.outputs["var"]
    assert (np.abs(seen - var)[:8] <= rounding[:8] + 1e-38).all()
    assert seen[4] == 0
    assert seen[5] == 0
    assert np.isnan(seen[8:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [3, 16, 100, 1000, 33000])
def test_variance_is_as_accurate_as_numpys(dtype, width):
    """Means of 0 to 1e6 standard deviations: NumPy's error, or a few roundings."""
    means = np.array([0, 0.5, 0.7, 1, 1.9, 2, 4, 30, 1e3, 1e4, 1e5, 1e6])
    normal = np.random.default_rng(width).standard_normal((24, width))
    x = (normal + np.repeat(means, 2)[:, None]).astype(dtype)
    exact = x.astype(np.longdouble).var(-1)
    rounding = np.finfo(dtype).eps * exact
    numpys = np.maximum(abs(x.var(-1) - exact), rounding)
    assert (abs(variance(x) - exact) <= 4 * numpys).all()
    every = strategies.candidates(variance.program(x), machine())
    for schedule in {(each.statistics, each.keep): each for each in every}.values():
        work = variance.bind(x, schedule=schedule)
        work.launch()
        most = 4 if schedule.statistics == "plain" else 16
        assert (abs(work.outputs["out"] - exact) <= most * numpys).all(), schedule


@pytest.mark.parametrize("width", [7, 333, 33000])
def test_constant_rows_have_no_variance_under_any_schedule(width):
    """Nor a layernorm, whatever the mean's sum was rounded to."""
    x = np.full((5, width), 0.1, np.float32)
    x[1:] = [[-1 / 3], [1e20], [1e-30], [123456.7]]
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    arrays = x, zeros, zeros, ones, zeros
    every = strategies.candidates(library.bias_layernorm.program(*arrays), machine())
    for each in every[:: len(every) // 5]:
        for fn, args in ((library.bias_layernorm, arrays), (variance, arrays[:1])):
            work = fn.bind(
                *args,
                schedule=replace(each, hoist=False, prefetch=False, streaming=False),
            )
            work.launch()
            assert not work.outputs["out"].any(), each.label


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_every_candidate_of_a_typical_shape_runs_and_agrees(dtype):
    """At least 12 candidates have distinct code, and all give the oracle's values."""
    rng = np.random.default_rng(6)
    shapes = (21, 97), *(((97,),) * 4)
    arrays = [values(rng, shape, dtype) for shape in shapes]
    program = library.bias_layernorm.program(*arrays)
    expected = reference.evaluate(program, arrays, {"epsilon": 1e-5})["out"]
    # The variance's error, half of it in its root, and three roundings to the dtype:
    # two of the sums are of its size, the last is the output's.
    unit = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype.name]
    error = (variance_tolerance(97) + 3 * unit) * (np.abs(expected) + 4)
    every = strategies.candidates(program, machine())
    hashes = set()
    for schedule in every[:: 7 if dtype is dtypes.float32 else 29]:
        work = library.bias_layernorm.bind(*arrays, schedule=schedule)
        work.launch()
        hashes.add(work.built.code_hash)
        seen = reference.widen(work.outputs["out"], dtype)
        assert (np.abs(seen - expected) <= error).all(), schedule.label
    assert len(hashes) >= (12 if dtype is dtypes.float32 else 5)


def test_softmax_rows_add_up_to_one():
    """Softmax of large and small values is finite and normalised."""
    x = np.array([[1000.0, 1000.0, 0.0], [-1000.0, 0.0, 1.0]], np.float32)
    y = library.softmax(x)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(y[0], [0.5, 0.5, 0.0], rtol=1e-6)


def test_reductions_without_keepdims_lose_the_axis():
    """The output has one axis less, in one and in three dimensions."""
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)

    @kernel
    def both(x):
        return xp.sum(x, axis=-1), xp.max(x, axis=-1) * 2.0

    total, top = both(x)
    np.testing.assert_array_equal(total, x.sum(-1))
    np.testing.assert_array_equal(top, x.max(-1) * 2)
    line, last = both(x[0, 0])
    assert line.shape == last.shape == ()
    assert line == 10
    assert last == 8


def test_integer_sums_are_int64_and_extremes_keep_their_dtype():
    """Sums of int32 do not wrap at 2**31; max and min are exact."""
    x = np.full((3, 50), 2**30, np.int32)
    x[1, 7] = -5

    @kernel
    def ints(x):
        return xp.sum(x, axis=-1), xp.max(x, axis=-1), xp.min(x, axis=-1)

    total, top, low = ints(x)
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, x.astype(np.int64).sum(-1))
    np.testing.assert_array_equal(top, x.max(-1))
    np.testing.assert_array_equal(low, x.min(-1))


def test_rows_are_updated_in_place():
    """A row may overwrite the array it was reduced from."""

    @kernel
    def centre(x):
        return {"x": x - xp.mean(x, axis=-1, keepdims=True)}

    rng = np.random.default_rng(7)
    for keep in ("scratch", "recompute"):
        x = rng.standard_normal((6, 40)).astype(np.float32)
        expected = x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True)
        schedule = Normalization(16, 2, 1, "two_pass", keep, False, False, False, 32, 0)
        assert centre.bind(x, schedule=schedule).launch() is None
        np.testing.assert_allclose(x, expected, atol=1e-6)


@kernel
def double(x):
    """Overwrite what the variance of the same pass may have to walk again."""
    return {"x": x + x, "var": xp.var(x, axis=-1)}


def test_a_row_is_not_walked_again_once_it_is_overwritten():
    """Where outputs are stored in the pass of a variance, it takes two passes."""
    x = np.random.default_rng(4).standard_normal((3, 96)).astype(np.float32) + 1000
    every = strategies.candidates(double.program(x), machine(), aligned=False)
    assert {each.statistics for each in every} == {"two_pass"}
    for schedule in every[::3]:
        seen = x.copy()
        work = double.bind(seen, schedule=schedule)
        work.launch()
        var = work.outputs["var"]
        np.testing.assert_allclose(var, x.var(-1, dtype=float), rtol=1e-4)
        np.testing.assert_array_equal(seen, x + x)
    with pytest.raises(KernelError, match="choose two_pass"):
        double.bind(x, schedule=ONE)


def test_outer_axes_may_be_broadcast_in_part():
    """A value for each of the inner rows is found by division of the row number."""
    rng = np.random.default_rng(8)
    shapes = (3, 5, 33), (5, 1), (3, 1, 33), (1, 1, 33)
    arrays = [values(rng, shape, dtypes.float32) for shape in shapes]

    @kernel
    def mix(x, row, part, column):
        t = x * row + part
        return t / (xp.sum(abs(t), axis=-1, keepdims=True) + 1.0) + column

    agree(mix, arrays)


def test_empty_rows_sum_to_zero_and_no_rows_give_nothing():
    """A sum over nothing is 0; an array without rows is left alone."""

    @kernel
    def total(x):
        return xp.sum(x, axis=-1)

    np.testing.assert_array_equal(total(np.empty((3, 0), np.float32)), np.zeros(3))
    assert total(np.empty((0, 3), np.float32)).shape == (0,)


def test_sum_and_variance_of_the_same_data_share_one_pass(golden):
    """One walk gives mean, sum and variance (seeds/004 found them doubled)."""

    @kernel
    def statistics(x):
        return {
            "mean": xp.mean(x, axis=-1),
            "sum": xp.sum(x, axis=-1),
            "var": xp.var(x, axis=-1),
        }

    x = np.random.default_rng(9).standard_normal((4, 100)).astype(np.float32)
    lowered = strategies.lower(statistics.program(x), ONE, machine())
    verify(lowered.kernel)
    shown = loops_print.text(lowered.kernel)
    golden(shown)
    assert shown.count("x[i") == 1 + 2 + 2  # first element; loop and tail; again
    work = statistics.bind(x, schedule=ONE)
    work.launch()
    np.testing.assert_allclose(work.outputs["var"], x.var(-1), rtol=1e-5)
    np.testing.assert_allclose(work.outputs["sum"], x.sum(-1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(work.outputs["mean"], x.mean(-1), rtol=1e-5, atol=1e-6)


def test_a_value_widened_and_used_twice_is_converted_once(golden):
    """Casts are nodes like others: bias_layernorm widens x once, rounds once."""
    specs = (((4, 96), "float16"), *((((96,), "float16"),) * 4))
    program = library.bias_layernorm.program(*specs)
    golden(text(program), "bias_layernorm_program")
    lowered = strategies.lower(program, ONE, machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))
    rng = np.random.default_rng(10)
    arrays = [values(rng, shape, dtypes.float16) for shape, _ in specs]
    work = library.bias_layernorm.bind(*arrays, schedule=ONE)
    work.launch()
    expected = reference.evaluate(program, arrays, {"epsilon": 1e-5})["out"]
    np.testing.assert_allclose(work.outputs["out"], expected, rtol=2e-3, atol=2e-3)


def test_generated_text_of_softmax(golden):
    """Maximum, sum of exponentials kept in a scratch row, scale."""
    program = library.softmax.program(((7, 100), "float32"))
    lowered = strategies.lower(program, ONE, machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))
    x = np.random.default_rng(11).standard_normal((7, 100)).astype(np.float32)
    agree(library.softmax, [x], schedule=ONE)


def test_the_heuristic_is_the_least_prediction():
    """Looking at fewer candidates finds the same minimum as looking at all."""
    for rows, width, dtype in (
        (1024, 768, "float32"),
        (1024, 4096, "float16"),
        (1021, 5140, "float32"),
        (1, 100, "float32"),
        (3, 400_000, "float32"),
    ):
        specs = (((rows, width), dtype), *((((width,), dtype),) * 4))
        program = library.bias_layernorm.program(*specs)
        ranked = strategies.rank(program, machine())
        chosen = strategies.heuristic(program, machine())
        best = ranked[0][1].total
        assert model.model(program, chosen, machine()).total == best


def test_one_binary_serves_every_number_of_rows_that_divides():
    """The number of rows is a runtime parameter."""
    specs = [(((rows, 64), "float32"),) for rows in (8, 400)]
    few, many = (library.softmax.build(*s, schedule=ONE) for s in specs)
    assert few.code_hash == many.code_hash


@pytest.mark.parametrize("shape", [(), (1,), (5,)])
def test_reductions_are_over_all_axes_unless_one_is_named(shape):
    """As in the array API; with no axis there is one element, and none to keep."""
    x = np.arange(3, 3 + prod(shape), dtype=np.float32).reshape(shape)

    @kernel
    def every(x):
        return xp.sum(x), xp.max(x, keepdims=True), xp.mean(x), xp.var(x)

    total, top, mean, spread = every(x)
    np.testing.assert_array_equal(total, x.sum())
    np.testing.assert_array_equal(top, x.max(keepdims=True))
    np.testing.assert_allclose(mean, x.mean())
    np.testing.assert_allclose(spread, x.var(), atol=1e-6)


def test_rows_that_do_not_line_up_are_refused():
    """Each error names what was seen and what to do."""
    x, y = np.ones((3, 4), np.float32), np.ones((3, 5), np.float32)

    @kernel
    def lengths(x, y):
        return xp.sum(x, axis=-1), xp.sum(y, axis=-1)

    @kernel
    def squeezed(x):
        return x[:0] if x.ndim == 0 else x.astype("float32") + xp.sum(x, axis=-1)

    @kernel
    def partial(x):
        return xp.sum(x, axis=-1, keepdims=True), xp.max(
            xp.sum(x, axis=-1), axis=-1, keepdims=True
        )

    with pytest.raises(Unsupported, match="one kernel for each"):
        lengths(x, y)
    with pytest.raises(Unsupported, match="keepdims=True"):
        squeezed(np.ones((4, 4), np.float32))
    with pytest.raises(Unsupported, match=r"two kernels|one kernel for each"):
        partial(x)


def test_a_block_that_outgrows_its_scratch_is_refused():
    """The scratch rows of a block stay near the core; the error says what to change."""
    program = library.softmax.program(((4, 100_000), "float32"))
    schedule = Normalization(16, 4, 1, "two_pass", "scratch", False, False, False, 4, 1)
    failed = build(program, schedule)
    assert "keep fewer rows, or recompute" in failed.error
    assert isinstance(failed.cause, KernelError)


@pytest.mark.parametrize("dtype", dtypes.HALVES)
def test_a_tail_of_one_half_writes_one_half(dtype):
    """LLVM 22 stored four bytes of a bfloat16 under a constant mask of one lane."""
    rng = np.random.default_rng(12)
    x = values(rng, (6, 17), dtype)

    @kernel
    def centre(x):
        return x - xp.max(x, axis=-1, keepdims=True)

    for rows in (1, 2):
        schedule = Normalization(
            16, rows, 1, "two_pass", "scratch", False, False, False, 32, 1
        )
        agree(centre, [x], schedule=schedule)

    @kernel
    def add(x, column):
        return x + column

    agree(add, [x, values(rng, (17,), dtype)])


@pytest.mark.parametrize("statistics", model.STATISTICS)
def test_columns_alone_can_be_reduced_too(statistics):
    """A variance of the weight is the same in every row, whatever the block."""
    rng = np.random.default_rng(13)
    x = rng.standard_normal((8, 70)).astype(np.float32)
    w = (rng.standard_normal(70) + 100).astype(np.float32)

    @kernel
    def scaled(x, w, *, s=2.0):
        return x * xp.var(w * s, axis=-1, keepdims=True) + xp.max(
            x, axis=-1, keepdims=True
        )

    for rows, hoist in ((1, False), (4, False), (4, True)):
        schedule = Normalization(
            16, rows, 1, statistics, "scratch", hoist, False, False, 32, 1
        )
        work = scaled.bind(x, w, schedule=schedule)
        work.launch()
        wide = x.astype(np.float64)
        var = (w.astype(np.float64) * 2).var()
        expected = wide * var + wide.max(-1, keepdims=True)
        # w * s rounds at 200, which an exact variance of the rounded values keeps.
        error = (variance_tolerance(70) * var + 4 * 200 * FLOAT32) * np.abs(wide).max()
        np.testing.assert_allclose(work.outputs["out"], expected, atol=error)


@kernel
def line_softmax(x):
    """Reduce one axis to none and use it again."""
    e = xp.exp(x - xp.max(x, axis=-1))
    return e / xp.sum(e, axis=-1)


@kernel
def rms_in_place(x, w):
    """Overwrite what was reduced."""
    t = x - xp.mean(x, axis=-1, keepdims=True)
    return {"x": t * xp.rsqrt(xp.mean(t * t, axis=-1, keepdims=True) + 1e-3) * w}


@kernel
def nested(x):
    """Reduce what was made of reductions; four outputs of two shapes."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    y = e / xp.sum(e, axis=-1, keepdims=True)
    q = xp.sum(y * y, axis=-1, keepdims=True)
    return y / q, q, xp.mean(x, axis=-1), xp.sum(x, axis=-1, keepdims=True)


@kernel
def spread(x, w):
    """Return what depends on the column, or on the row, as whole rows."""
    column = xp.broadcast_to(w, (6, 33)) * xp.sum(x, axis=-1, keepdims=True)
    return x + column, xp.broadcast_to(xp.max(x, axis=-1, keepdims=True), (6, 33))


@kernel
def integers(x, y):
    """Mix integers, their sums and floats made of them."""
    total = xp.sum(x, axis=-1, keepdims=True) + y.astype("int64")
    return total, xp.max(x, axis=-1, keepdims=True) - x, x.astype("float32") / 2.0


@kernel
def masked(x, mask):
    """Select before reducing; return booleans."""
    t = xp.where(mask, x, -1e30)
    top = xp.max(t, axis=-1, keepdims=True)
    return top, xp.exp(t - top), ~mask


@pytest.mark.parametrize(
    ("made", "shapes", "types"),
    [
        (line_softmax, [(77,)], "f"),
        (rms_in_place, [(40,), (40,)], "ff"),
        (rms_in_place, [(5, 40), (40,)], "ff"),
        (nested, [(6, 33)], "f"),
        (nested, [(33,)], "d"),
        (nested, [(6, 1)], "f"),
        (spread, [(6, 33), (33,)], "ff"),
        (spread, [(6, 33), (6, 1)], "ff"),
        (integers, [(5, 37), (5, 1)], "ii"),
        (masked, [(5, 37), (5, 37)], "f?"),
    ],
)
def test_odd_programs_agree_under_a_ninth_of_all_schedules(made, shapes, types):
    """One axis, in place, nested, broadcast results, integers, booleans."""
    kinds = {
        "f": dtypes.float32,
        "d": dtypes.float64,
        "i": dtypes.int32,
        "?": dtypes.bool_,
    }
    rng = np.random.default_rng(14)
    arrays = [
        values(rng, shape, kinds[kind])
        for shape, kind in zip(shapes, types, strict=True)
    ]
    program = made.program(*arrays)
    for schedule in strategies.candidates(program, machine())[::9]:
        agree(made, arrays, schedule=schedule)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: xp.sum(w * w),
        lambda x, w: xp.mean(w * 2.0, -1, keepdims=True),
        lambda x, w: x * xp.sum(w * w, -1, keepdims=True),
        lambda x, w: xp.var(x, -1),
        lambda x, w: (x - xp.mean(x, -1, keepdims=True)) * xp.var(x, -1, keepdims=True),
    ],
)
@pytest.mark.parametrize("width", [1, 17])
def test_every_candidate_computes_products_of_columns_and_rows_of_one(function, width):
    """Hoisted products lacked their factors, and rows of one element their values."""
    rng = np.random.default_rng(width)
    x = values(rng, (5, width), dtypes.float32)
    w = values(rng, (width,), dtypes.float32)
    made = kernel(function)
    for schedule in made.candidates(x, w):
        agree(made, (x, w), schedule=schedule)
