"""Elementwise operations through kernels and the oracle: bits, functions, refusals."""

import gpu_cases
import numpy as np
import pytest
from scipy import special

from steelyard_kernels import array as xp
from steelyard_kernels import kernel, reference

TRUTHS = {  # of the oracles that are not NumPy's functions
    "sigmoid": special.expit,
    "softplus": lambda x: -special.log_expit(-x),
    "erf_inv": special.erfinv,
    "erf": special.erf,
    "sinpi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 0),
    "cospi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 1),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


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
