"""The shipped kernels against formulas written out in NumPy float64."""

import numpy as np
import pytest

from steelyard_kernels import KernelFunction, library


def test_every_kernel_is_exported_once():
    """The library's names are its kernels' names."""
    kernels = {k: v for k, v in vars(library).items() if isinstance(v, KernelFunction)}
    assert {made.name for made in kernels.values()} == kernels.keys() >= {"adam"}


def sigmoid(x):
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


def force64(x, w1, w2):
    """Return the network's output in float64, as the thread writes it."""
    return sigmoid(sigmoid(x @ np.log1p(np.exp(w1))) @ np.log1p(np.exp(w2)))


def network(width, units, dtype):
    """Return x, a key and both weights."""
    rng = np.random.default_rng(width + units)
    shapes = (width,), (width, units), (units, width)
    x, w1, w2 = ((rng.standard_normal(s) * 0.5).astype(dtype) for s in shapes)
    return x, np.asarray(12), w1, w2


@pytest.mark.parametrize(
    ("width", "units", "dtype"),
    [
        (1, 12, "float32"),
        (1, 1, "float64"),
        (3, 7, "float64"),
        (2, 64, "float32"),
    ],
)
def test_a_noisy_network_is_fed_with_its_own_output(width, units, dtype):
    """Every way to write it is the loop in Python over the noise that we draw."""
    x, key, w1, w2 = network(width, units, dtype)
    tolerance = {"rtol": 2e-5 if dtype == "float32" else 1e-12}
    noise = library.noisy_mlp_noise(x, key)
    assert (noise.shape, noise.dtype) == ((8000, width), dtype)
    after = [x.astype(float)]
    for row in noise:
        after.append(force64(after[-1], w1.astype(float), w2.astype(float)) + row)
    np.testing.assert_allclose(
        library.noisy_mlp(x, key, w1, w2), after[-1], **tolerance
    )
    ahead = library.noisy_mlp_ahead(x, noise, w1, w2)
    np.testing.assert_allclose(ahead, after[-1], **tolerance)
    for count in (0, 1, 13, 8000):
        seen = library.noisy_mlp_given(x, key, w1, w2, iterations=count)
        np.testing.assert_allclose(seen, after[count], **tolerance)
    stepped, index = x.copy(), np.asarray(0)
    for _ in range(13):
        library.noisy_mlp_step(stepped, index, key, w1, w2)
    assert index == 13
    np.testing.assert_allclose(stepped, after[13], **tolerance)


def test_noise_is_normal_and_of_its_key():
    """Moments of 8000 numbers; another key gives others, the same the same."""
    x = np.zeros(1)
    one, other = (library.noisy_mlp_noise(x, np.asarray(key)) for key in (1, 2))
    np.testing.assert_array_equal(one, library.noisy_mlp_noise(x, np.asarray(1)))
    assert abs(one.mean()) < 0.05
    assert abs(one.std() - 1) < 0.05
    assert abs(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) < 0.05


def test_the_gradient_of_a_noisy_network_is_its_difference():
    """By central differences of the kernel itself, in float64, for each weight."""
    x, key, *weights = network(1, 5, "float64")
    seen = library.noisy_mlp_backward(x, key, *weights)
    np.testing.assert_allclose(seen["value"], library.noisy_mlp(x, key, *weights)[0])
    for place, name in enumerate(("by_w1", "by_w2")):
        for index in np.ndindex(weights[place].shape):
            ends = []
            for step in (-1e-5, 1e-5):
                moved = [weight.copy() for weight in weights]
                moved[place][index] += step
                ends.append(library.noisy_mlp(x, key, *moved)[0])
            slope = (ends[1] - ends[0]) / 2e-5
            np.testing.assert_allclose(seen[name][index], slope, rtol=1e-5, atol=1e-9)


def test_a_fixed_point_is_stepped_to_along_the_backward_pass():
    """The thread's formula written out: z - f(x) times f's slope, noise and all."""
    x, key, w1, w2 = network(1, 12, "float64")
    z = np.array([0.7])
    noise = library.noisy_mlp_noise(x, key)
    soft1, soft2 = np.log1p(np.exp(w1)), np.log1p(np.exp(w2))
    expected = x
    for row in noise:
        hidden = sigmoid(expected @ soft1)
        value = sigmoid(hidden @ soft2)
        inner = (value * (1 - value) * (z - value - row)) @ soft2.T
        expected = expected + 0.1 * ((hidden * (1 - hidden) * inner) @ soft1.T)
    seen = library.noisy_mlp_fixed_point(x, key, z, w1, w2)
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
