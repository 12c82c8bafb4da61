"""Elementwise operations through kernels and the oracle: bits, functions, refusals."""

import gpu_cases
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special

from steelyard_kernels import array as xp
from steelyard_kernels import kernel, reference
from steelyard_kernels.errors import KernelError

INTEGERS = st.one_of(
    arrays(np.int32, 5, elements=st.integers(-(2**31), 2**31 - 1)),
    arrays(np.int64, 5, elements=st.integers(-(2**63), 2**63 - 1)),
)
TRUTHS = {  # of the oracles that are not NumPy's functions
    "sigmoid": special.expit,
    "softplus": lambda x: -special.log_expit(-x),
    "erf_inv": special.erfinv,
    "erf": special.erf,
    "sinpi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 0),
    "cospi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 1),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


@kernel
def on_bits(x, y, *, amount: int):
    """Do everything to bits that integers can have done."""
    return (
        xp.bitwise_and(x, y),
        xp.bitwise_or(x, y),
        xp.bitwise_xor(x, y),
        xp.bitwise_left_shift(x, amount),
        xp.shift_right_logical(x, amount),
    )


@given(INTEGERS, st.integers(-1, 70), st.randoms(use_true_random=False))
def test_integers_are_bits_here_and_in_the_oracle(x, amount, random):
    """As Python has them; a shift past the width leaves no bit."""
    y = x.copy()
    random.shuffle(y)
    seen = on_bits(x, y, amount=amount)
    width = 8 * x.itemsize
    words = [int(word) % 2**width for word in x]
    inside = 0 <= amount < width
    left = [(word << amount) % 2**width if inside else 0 for word in words]
    right = [word >> amount if inside else 0 for word in words]
    want = [x & y, x | y, x ^ y, *(np.array(w, f"u{x.dtype}") for w in (left, right))]
    oracle = reference.evaluate(on_bits.program(x, y), [x, y], {"amount": amount})
    for one, exact, said in zip(seen, want, oracle.values(), strict=True):
        assert one.tolist() == exact.view(x.dtype).tolist() == said.tolist()


@given(arrays(np.int32, 4), arrays(np.int32, 4))
def test_a_high_word_is_that_of_the_unsigned_product(a, b):
    """With the low word it is the whole product."""

    @kernel
    def product(a, b):
        return xp.multiply_high(a, b), a * b

    high, low = product(a, b)
    both = [high.view(np.uint32), low.view(np.uint32)]
    whole = [(int(h) << 32) + int(w) for h, w in zip(*both, strict=True)]
    pairs = zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True)
    assert whole == [x * y for x, y in pairs]


@pytest.mark.parametrize("pair", [("float32", "int32"), ("float64", "int64")])
def test_bits_go_to_integers_and_back(pair):
    """A float's bits are NumPy's view of them; to its own dtype nothing happens."""

    @kernel
    def there_and_back(x):
        bits = xp.bitcast(x, pair[1])
        return bits, xp.bitcast(bits, pair[0]), xp.bitcast(x, pair[0])

    x = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, 1e-40], pair[0])
    bits, back, same = there_and_back(x)
    assert bits.tolist() == x.view(pair[1]).tolist()
    assert back.tobytes() == same.tobytes() == x.tobytes()


@pytest.mark.parametrize("op", TRUTHS)
def test_the_oracle_is_right_in_float64(op):
    """Within a few places of SciPy's and NumPy's, at zeros, ends and infinities too."""

    @kernel
    def function(x):
        return getattr(xp, op)(x)

    random = np.random.default_rng(8)
    sizes = np.exp(random.normal(0, 4, 3000)) * random.choice([-1, 1], 3000)
    edges = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-300, 0.5, 2.5, -750.0]
    x = np.concatenate([sizes, random.uniform(-1, 1, 3000), edges])
    (seen,) = reference.evaluate(function.program(x), [x]).values()
    np.testing.assert_allclose(
        seen, TRUTHS[op](x).astype(float), rtol=2e-15, atol=1e-16
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda x: xp.bitcast(x, "int64"), "bitcast of float32 to int64, expected"),
        (lambda x: xp.bitcast(x.astype("float16"), "int32"), "bitcast of float16"),
        (
            lambda x: xp.bitwise_and(x, x),
            "of float32 is not defined, expected bool or int",
        ),
        (
            lambda x: xp.multiply_high(x.astype("int64"), 3),
            "of int64 is not defined, expected int32",
        ),
        (lambda x: xp.tanh(x.astype("int32")), "of int32 is not defined, expected fl"),
    ],
)
def test_what_is_not_defined_is_one_sentence(body, said):
    """It names the operation, what it got and what it takes."""

    @kernel
    def refused(x):
        return body(x)

    with pytest.raises(KernelError, match=said):
        refused.program(np.zeros(3, np.float32))


def test_angles_may_become_large_within_a_loop():
    """The way of the large ones is a branch, taken in some of its iterations."""

    @kernel
    def waves(x):
        def step(i, total):
            angle = x * (i.astype("float64") + 1.0)
            for _ in range(3):
                angle = angle * angle
            return total + xp.sin(angle) * xp.cos(angle)

        return xp.fori_loop(0, 50, step, xp.zeros_like(x))

    x = np.array([1.0, 0.5, -3.0])
    angle = (x * np.arange(1.0, 51.0)[:, None]) ** 2
    angle = (angle * angle) ** 2
    assert np.sum(angle < 2.0**30) > 10 < np.sum(angle > 2.0**30)
    want = np.sum(np.sin(angle) * np.cos(angle), axis=0)
    np.testing.assert_allclose(waves(x), want, rtol=1e-13)
