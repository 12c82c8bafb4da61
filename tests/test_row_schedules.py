"""Schedules of rows on a nest: what stays between walks, variances, what is refused.

That what they compute is right is `test_corpus`'s to say.
"""

from itertools import product

import numpy as np
import pytest
from programs import walked_rows

from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.building.programs import build
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.targets import machine

KEPT = (None, Place.STACK)
SOFTMAX = library.softmax.program(((7, 100), "float32"))


@kernel
def variance(x):
    """Return the variance of every row."""
    return xp.var(x, axis=-1)


def lowered(program, schedule):
    """Return the text of a program's kernel for a CPU."""
    made = strategies.lower(simplify(program), schedule, machine()).kernel
    verify(made)
    return loops_print.text(made)


def test_generated_text_of_softmax(golden):
    """Maximum, sum of exponentials that stay on the stack, scale."""
    golden(lowered(SOFTMAX, walked_rows(keep=Place.STACK)))


def test_generated_text_of_a_layernorm_of_halves(golden):
    """Columns are widened once for all rows, values once for each, in one pass of sums."""
    specs = (((4, 96), "float16"), *((((96,), "float16"),) * 4))
    program = library.bias_layernorm.program(*specs)
    hints = {"keep": Place.STACK, "hoist": Place.STACK, "one_pass": True}
    golden(lowered(program, walked_rows(2, **hints)))


def test_sums_and_variances_of_the_same_data_share_walks():
    """One walk gives mean, sum and variance (seeds/004 found them doubled)."""

    @kernel
    def statistics(x):
        return xp.mean(x, axis=-1), xp.sum(x, axis=-1), xp.var(x, axis=-1)

    program = statistics.program(((4, 96), "float32"))
    for one_pass in (True, False):
        shown = lowered(program, walked_rows(one_pass=one_pass))
        assert shown.count("= x[i") == 2  # the walk, and that over deviations
        assert shown.count("if ") == one_pass


def test_rows_that_divide_by_what_is_taken_at_a_time_have_one_body():
    """Others have a second one for the rows that are left."""
    bodies = [
        lowered(library.softmax.program(((rows, 32), "float32")), walked_rows(4))
        for rows in (8, 7)
    ]
    walks = [text.count("in range(0, 32, 16)") for text in bodies]
    assert walks == [3, 6]


@pytest.mark.parametrize(
    ("rows", "width", "dtype"),
    [
        (1024, 768, "float32"),
        (1024, 4096, "float16"),
        (1021, 5140, "float32"),
        (1, 100, "float32"),
        (3, 400_000, "float32"),
    ],
)
def test_the_heuristic_is_within_a_percent_of_the_least_prediction(rows, width, dtype):
    """It looks at the candidates that are likely to be it only."""
    specs = ((rows, width), dtype), *((((width,), dtype),) * 4)
    program = simplify(library.bias_layernorm.program(*specs))
    ranked = dict(strategies.rank(program, machine()))
    chosen = strategies.heuristic(program, machine())
    least = min(prediction.total for prediction in ranked.values())
    assert ranked[chosen].total <= 1.01 * least


def test_large_rows_are_taken_several_at_a_time_and_small_ones_alone():
    """Few pages share prefetching; halves are widened once, if that stays near.

    Four rows of 16 kB do not: it is less to add their biases again.
    """
    stack, wide = Place.STACK, Machine(64, 2)
    for width, dtype, rows, hints in (
        (768, "float32", 1, (stack, None)),
        (4096, "float32", 4, (None, None)),
        (768, "float16", 4, (stack, stack)),
        (4096, "float16", 4, (stack, None)),
    ):
        specs = ((1024, width), dtype), *((((width,), dtype),) * 4)
        chosen = strategies.heuristic(library.bias_layernorm.program(*specs), wide)
        assert chosen.cuts[0].at(Place.REGISTER) == rows
        assert (chosen.keep, chosen.hoist) == hints
        assert chosen.one_pass


@pytest.mark.parametrize(
    ("vector", "dtype", "several"),
    [(32, "float32", False), (64, "float32", True), (64, "float16", False)],
)
def test_lines_of_several_rows_are_streamed_whole_or_not_at_all(vector, dtype, several):
    """Half of one waits for the other, and loads that end in the same bits for both."""
    program = library.softmax.program(((1024, 4096), dtype))
    every = strategies.candidates(program, Machine(vector, 2), aligned=True)
    rows = {each.cuts[0].at(Place.REGISTER) for each in every if each.streaming}
    assert (max(rows) > 1) is several


@pytest.mark.parametrize("vector", [32, 64])
def test_lines_of_several_outputs_are_streamed_whole_or_not_at_all(vector):
    """Those of one output are whole after the next store."""
    for made, whole in ((lambda x: x + 1, True), (lambda x: (x + 1, x + 2), False)):
        program = kernel(made).program(((1 << 23,), "float32"))
        chosen = strategies.heuristic(program, Machine(vector, 2))
        assert chosen.streaming is (whole or vector == 64)


def test_rows_to_come_are_asked_for_where_most_is_computed():
    """Beside the exponentials of softmax, not where its results are stored."""
    program = library.softmax.program(((64, 1024), "float32"))
    text = lowered(program, walked_rows(1, keep=Place.STACK, prefetch=4096))
    computed, stored = text.split("prefetch x[")
    assert computed.count(" in range(0, 1024, 16)") == 2  # the largest, then the sums
    assert "out[" not in computed
    assert "out[" in stored


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
    for one_pass, rows in product((True, False), (1, 4)):
        work = variance.bind(x, schedule=walked_rows(rows, one_pass=one_pass))
        work.launch()
        most = 4 if one_pass else 16
        off = abs(work.outputs["out"] - exact)
        assert (off <= most * numpys).all(), (one_pass, rows)


@kernel
def turned_sums(x):
    """Return totals of a line that no vector of memory walks: a sum and a product's."""
    line = xp.reshape(xp.flip(x.T, axis=0), (-1,))
    return xp.sum(line), xp.mean(line), xp.vecdot(line, line)


def test_sums_that_no_vector_walks_are_as_accurate_as_numpys():
    """A million like numbers in order would be off by 0.15 % in float32."""
    x = (1 + np.random.default_rng(0).random((1000, 1000)) / 10).astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide.sum(), wide.mean(), (wide * wide).sum()
    found = turned_sums(x)
    for one, wanted in zip(found, exact, strict=True):
        assert one == pytest.approx(wanted, rel=1e-6)


@kernel
def long_sum(x):
    """Return a total in float32."""
    return xp.sum(x.astype("float32"))


@pytest.mark.parametrize("length", [100_003, 1_000_003])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_of_no_parts_are_as_accurate_as_numpys(length, dtype):
    """A prime number of like numbers: 16 lanes would lose 0.06 % of a million."""
    x = np.full(length, 0.1, dtype)
    exact = x.astype(np.float64).sum()
    assert float(long_sum(x)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("width", [7, 333, 33000])
def test_constant_rows_have_no_variance_under_any_schedule(width):
    """Nor a layernorm, whatever the mean's sum was rounded to."""
    x = np.full((5, width), 0.1, np.float32)
    x[1:] = [[-1 / 3], [1e20], [1e-30], [123456.7]]
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    arrays = x, zeros, zeros, ones, zeros
    for one_pass, keep, rows in product((True, False), KEPT, (1, 2)):
        schedule = walked_rows(rows, keep=keep, one_pass=one_pass)
        for fn, args in ((library.bias_layernorm, arrays), (variance, arrays[:1])):
            work = fn.bind(*args, schedule=schedule)
            work.launch()
            assert not work.outputs["out"].any(), schedule.label


@pytest.mark.parametrize(
    ("program", "schedule", "said"),
    [
        (
            library.softmax.program(((4, 100_000), "float32")),
            walked_rows(4, keep=Place.STACK),
            "keeps 1600000 bytes of rows or columns on.*keep fewer rows, or none",
        ),
        (SOFTMAX, walked_rows(keep=Place.SERIAL), "keeps values at serial on a cpu"),
        (
            library.triad.program(*[((3, 40), "float32")] * 2),
            walked_rows(axes="", inner="i", keep=Place.STACK),
            "this takes reductions along the last axis",
        ),
    ],
)
def test_hints_that_do_not_fit_are_refused(program, schedule, said):
    """The error says what does not, and what to choose."""
    failed = build(program, schedule)
    with pytest.raises(KernelError, match=said):
        raise failed.cause
