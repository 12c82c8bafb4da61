"""Matrix products on Hopper's tensor cores against float64, on a GPU that has them."""

import secrets

import bounds
import numpy as np
import product_programs as programs
import pytest
from corpus import compare
from product_programs import drawn, tiling

from steelyard_device import cuda

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
SUM = 2.0**-23  # relative error of adding one product: tensor cores may cut sums off

SHAPES = [
    (64, 768, 768),  # of the issue that asks for products
    (128, 768, 3072),
    (512, 3072, 768),
    (1024, 2304, 768),
    (100, 776, 776),
    (1031, 1032, 1048),
    (100, 770, 776),  # rows that begin at no multiples of 16 bytes
    (97, 101, 131),
    (17, 24, 8),
    (2048, 2048, 2048),
]


def bound(hopper, made, arrays, schedule=None):
    """Return a program bound to its arrays on the GPU."""
    there = [cuda.copy_of(hopper, array) for array in arrays]
    return made.bind(*there, schedule=schedule)


@pytest.mark.parametrize(("name", "shape", "dtype", "numbers"), programs.CASES)
def test_every_kind_of_tiling_agrees_with_the_oracle(
    hopper, name, shape, dtype, numbers
):
    """Those that were simulated, on a GPU and fresh numbers."""
    made, seed = getattr(programs, name), secrets.randbits(32)
    arrays = drawn(made, shape, dtype, seed)
    work = bound(hopper, made, arrays, tiling(made, arrays, numbers).schedule)
    assert work.facts()["tensor_core"]
    scalars = {each.name: each.default for each in made.signature.scalars}
    work.launch()
    work.wait()
    for output, near in bounds.expected(made.program(*arrays), arrays, scalars).items():
        compare(f"{output} of seed {seed}", near, work.outputs[output].read())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["product", "linear", "in_float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_chosen_tiling_agrees_with_float64(hopper, name, shape, dtype):
    """Within a bound of depth and dtype, and again to the bit."""
    made, seed = getattr(programs, name), secrets.randbits(32)
    arrays = drawn(made, shape, dtype, seed)
    work = bound(hopper, made, arrays)
    assert work.facts()["tensor_core"], work.built.schedule.label
    work.launch()
    work.wait()
    out = work.outputs["out"].read()
    wide = [array.astype(np.float64) for array in arrays]
    right = wide[1].T if name == "linear" else wide[1]
    exact, size = wide[0] @ right, np.abs(wide[0]) @ np.abs(right)
    result = "float32" if name == "in_float32" else dtype
    most = UNIT[result] * np.abs(exact) + shape[2] * SUM * size
    off = np.abs(out.astype(np.float64) - exact) / most
    assert off.max() <= 1, f"seed {seed}: {off.max()} of the bound"
    work.launch()
    work.wait()
    assert np.array_equal(out.view(np.uint8), work.outputs["out"].read().view(np.uint8))


@pytest.mark.parametrize("name", ["bias_relu", "bias_gelu", "residual", "batched"])
def test_calls_pack_tensors_anew(hopper, name):
    """Other arrays of the same shapes are other tensors, from the third call on too."""
    made = getattr(programs, name)
    for seed in range(4):
        arrays = drawn(made, (128, 192, 256), "float16", seed)
        there = [cuda.copy_of(hopper, array) for array in arrays]
        for _ in range(3):
            out = made(*there).read()
        again = bound(hopper, made, arrays)
        again.launch()
        again.wait()
        assert np.array_equal(out, again.outputs["out"].read()), seed


def test_stamped_launches_run_too(hopper):
    """The build that times itself has the same dynamic memory and tensors."""
    arrays = drawn(programs.product, (128, 192, 256), "float16", 0)
    work = bound(hopper, programs.product, arrays)
    stamped = work.stamped()
    stamped.launch()
    assert stamped.nanoseconds() > 0
    work.launch()
    work.wait()
