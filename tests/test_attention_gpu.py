"""Attention on Hopper's tensor cores against float64, on a GPU that has them."""

import secrets

import attention_programs as programs
import numpy as np
import pytest
from attention_programs import drawn, expected, tiling

from steelyard_device import cuda

SHAPES = [
    (8, 12, 128, 128, 64, 64),
    (1, 12, 512, 512, 64, 64),
    (2, 3, 1000, 1000, 128, 128),
    (1, 2, 333, 777, 96, 32),
    (1, 2, 520, 520, 256, 256),
]


def check(hopper, made, arrays, schedule=None):
    """Hold two launches to the bound, and to the same bits."""
    there = [cuda.copy_of(hopper, array) for array in arrays]
    work = made.bind(*there, schedule=schedule)
    launches = work.facts().get("launches", [work.facts()])  # three for few queries
    assert any(each.get("tensor_core") for each in launches), work.built.schedule.label
    exact, bound = expected(made, arrays, stored=len(launches) > 1)
    before = None
    for _ in range(2):
        work.launch()
        work.wait()
        out = work.outputs["out"].read()
        wide = out.astype(np.float64)
        assert np.array_equal(np.isnan(wide), np.isnan(exact))
        assert (np.isnan(exact) | (np.abs(wide - exact) <= bound)).all()
        bits = out.view(np.uint8)
        assert before is None or np.array_equal(bits, before)
        before = bits.copy()


@pytest.mark.parametrize(("name", "shape", "dtype", "numbers"), programs.CASES)
def test_every_kind_of_tiling_agrees_with_float64(hopper, name, shape, dtype, numbers):
    """Those that were simulated, on a GPU and fresh numbers."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype, secrets.randbits(32))
    check(hopper, made, arrays, tiling(made, arrays, numbers).schedule)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "causal", "biased", "grouped"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_chosen_tiling_agrees_with_float64(hopper, name, shape, dtype):
    """Within a bound of the depth, the keys and the dtype."""
    made = getattr(programs, name)
    check(hopper, made, drawn(made, shape, dtype, secrets.randbits(32)))
