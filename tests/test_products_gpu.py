"""Matrix products on Hopper's tensor cores against float64, on a GPU that has them."""

import secrets
from dataclasses import replace
from itertools import product

import bounds
import numpy as np
import product_programs as programs
import pytest
from corpus import compare
from product_programs import drawn, tiling

from steelyard_device import cuda
from steelyard_kernels.ops import oracles
from steelyard_kernels.schedule.cores import FMA

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
SUM = 2.0**-23  # relative error of adding one product: tensor cores may cut sums off

# Of float8, products and the sum before them lose what is below so much of the largest:
# 13 bits behind the point by Zhang et al. 2024, "SageAttention2", section 3.2 ("FP22");
# "around 14 bits" by DeepSeek-AI 2024, "DeepSeek-V3", section 3.3.2. 32 are added at a
# time, and 4 times so many before float32 takes them.
CUT, TOGETHER, PROMOTED = 2.0**-13, 32, 128

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


def cut_off(x, w):
    """Return by how much sums of float8 products may be off before float32 takes them."""
    off = np.zeros((len(x), w.shape[1]))
    for first in range(0, len(w), PROMOTED):
        total = np.zeros_like(off)
        for at in range(first, min(first + PROMOTED, len(w)), TOGETHER):
            a, b = x[:, at : at + TOGETHER], w[at : at + TOGETHER]
            largest = np.abs(a).max(1)[:, None] * np.abs(b).max(0)
            following = total + a @ b
            largest = np.maximum(largest, np.maximum(abs(total), abs(following)))
            off += (TOGETHER + 1) * CUT * largest
            total = following
    return off


def factors(name, arrays):
    """Return a product's factors in float64, cut where it cuts them."""
    x, w = (array.astype(np.float64) for array in arrays)
    if "tf32" in name:
        x, w = oracles.tf32(x), oracles.tf32(w)
    return x, w.T if name.startswith("linear") else w


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "numbers"), programs.CASES + programs.EXACT
)
def test_every_kind_of_tiling_agrees_with_the_oracle(
    hopper, name, shape, dtype, numbers
):
    """Those that were simulated, on a GPU and fresh numbers."""
    made, seed = getattr(programs, name), secrets.randbits(32)
    arrays = drawn(made, shape, dtype, seed)
    own = tiling(made, arrays, numbers)
    work = bound(hopper, made, arrays, own.schedule)
    assert bool(work.facts()["tensor_core"]) is (own.cores is not FMA)
    scalars = {each.name: each.default for each in made.signature.scalars}
    work.launch()
    work.wait()
    for output, near in bounds.expected(made.program(*arrays), arrays, scalars).items():
        if dtype.startswith("float8"):
            off = cut_off(*factors(name, arrays))
            wide = replace(near, lo=near.lo - off, hi=near.hi + off)
        else:
            wide = near
        compare(f"{output} of seed {seed}", wide, work.outputs[output].read())


HALVES = list(product(["product", "linear", "in_float32"], ["float16", "bfloat16"]))
OTHERS = [
    *product(
        ["in_float32", "linear_in_float32"],
        ["float8_e4m3fn", "float8_e5m2", "float8_e5m2 float8_e4m3fn"],
    ),
    *product(["as_tf32", "linear_as_tf32"], ["float32"]),
    *product(["in_int32", "linear_in_int32"], ["int8", "uint8 int8"]),
]


@pytest.mark.parametrize(("name", "dtype"), HALVES + OTHERS)
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
    x, w = factors(name, arrays)
    exact, size = x @ w, np.abs(x) @ np.abs(w)
    result = "float32" if name not in {"product", "linear"} else dtype
    most = UNIT[result] * np.abs(exact) + shape[2] * SUM * size
    if "int" in dtype:
        exact, most = exact * 2 + 1 if name.startswith("linear") else exact, 0.5
    elif dtype.startswith("float8"):
        most += cut_off(x, w)
    elif name == "linear_as_tf32":
        exact = np.maximum(exact, 0)
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
