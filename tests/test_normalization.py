"""Schedules of rows on a CPU: variances, texts, what is chosen and refused.

That what they compute is right is `test_corpus`'s to say.
"""

from dataclasses import replace

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.building.build import build
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.printing import text
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.normalization import model
from steelyard_kernels.schedule.normalization.schedule import Normalization
from steelyard_kernels.targets import machine

ONE = Normalization(16, 1, 1, "shifted", "scratch", False, False, False, 32, 1)


@kernel
def variance(x):
    """Return the variance of every row."""
    return xp.var(x, axis=-1)


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


def test_sum_and_variance_of_the_same_data_share_one_pass(golden):
    """One walk gives mean, sum and variance (seeds/004 found them doubled)."""

    @kernel
    def statistics(x):
        return {
            "mean": xp.mean(x, axis=-1),
            "sum": xp.sum(x, axis=-1),
            "var": xp.var(x, axis=-1),
        }

    program = statistics.program(((4, 100), "float32"))
    lowered = strategies.lower(program, ONE, machine())
    verify(lowered.kernel)
    shown = loops_print.text(lowered.kernel)
    golden(shown)
    assert shown.count("x[i") == 1 + 2 + 2  # first element; loop and tail; again


def test_a_value_widened_and_used_twice_is_converted_once(golden):
    """Casts are nodes like others: bias_layernorm widens x once, rounds once."""
    specs = (((4, 96), "float16"), *((((96,), "float16"),) * 4))
    program = library.bias_layernorm.program(*specs)
    golden(text(program), "bias_layernorm_program")
    lowered = strategies.lower(program, ONE, machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))


def test_generated_text_of_softmax(golden):
    """Maximum, sum of exponentials kept in a scratch row, scale."""
    program = library.softmax.program(((7, 100), "float32"))
    lowered = strategies.lower(program, ONE, machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))


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


def test_a_block_that_outgrows_its_scratch_is_refused():
    """The scratch rows of a block stay near the core; the error says what to change."""
    program = library.softmax.program(((4, 100_000), "float32"))
    schedule = Normalization(16, 4, 1, "two_pass", "scratch", False, False, False, 4, 1)
    failed = build(program, schedule)
    assert "keep fewer rows, or recompute" in failed.error
    assert isinstance(failed.cause, KernelError)
