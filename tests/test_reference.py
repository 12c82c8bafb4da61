"""The oracle: float64 throughout, rounded only where the program says so."""

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, reference
from steelyard_kernels.function import kernel


@kernel
def chain(a, b):
    """Add, multiply, cast."""
    return (a + b) * a


def test_float32_is_carried_unrounded():
    """1 + 2**-30 is exact in the oracle, though float32 would lose it."""
    a = np.ones(1, np.float32)
    b = np.full(1, 2.0**-30, np.float32)
    assert reference.evaluate(chain.program(a, b), [a, b])["out"][0] == 1 + 2.0**-30


def test_halves_are_rounded_after_every_operation():
    """NumPy's own float16 arithmetic gives the same bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(1000).astype(np.float16) for _ in range(2))
    seen = reference.evaluate(chain.program(a, b), [a, b])["out"]
    np.testing.assert_array_equal(seen.astype(np.float16), (a + b) * a)


def test_bfloat16_is_rounded():
    """The sum of two bfloat16 is the bfloat16 next to the exact sum."""
    wide = np.array([1.0, 3.0, 1e-40, 3e38])
    narrow = dtypes.rounded(wide, dtypes.bfloat16)

    @kernel
    def twice(a):
        return a + a

    seen = reference.evaluate(twice.program(narrow), [narrow])["out"]
    exact = narrow.astype(np.float64) * 2
    expected = dtypes.rounded(exact, dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(seen, expected)
    assert np.isinf(seen[3])


def test_casts_round_and_integers_wrap():
    """A cast to float32 rounds; int32 sums wrap only where they are int32."""

    @kernel
    def rounding(a, i):
        return a.astype("float32").astype("float64"), i + i, xp.sum(i, axis=-1)

    a = np.array([0.1])
    i = np.array([2**30, 2**30], np.int32)
    out = reference.evaluate(rounding.program(a, i), [a, i])
    assert out["out0"][0] == float(np.float32(0.1))
    np.testing.assert_array_equal(out["out1"], [-(2**31)] * 2)
    assert out["out2"] == 2**31


def test_runtime_scalars_are_taken_by_name():
    """The scalar's value is the launch's."""

    @kernel
    def scaled(a, *, s=2.0):
        return a * s

    a = np.ones(3)
    program = scaled.program(a)
    assert (reference.evaluate(program, [a], {"s": 5.0})["out"] == 5).all()


def test_what_is_taken_of_no_element_is_nothing():
    """Sorted lines are their elements at computed places, of which there are none."""
    made = kernel(lambda x: xp.sort(x, axis=-1))
    nothing = np.zeros((0, 3), np.float32)
    (found,) = reference.evaluate(made.program(nothing), [nothing]).values()
    assert found.shape == made(nothing).shape == (0, 3)
