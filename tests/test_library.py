"""The shipped kernels against formulas written out in NumPy float64."""

import numpy as np
import pytest

from steelyard_kernels import library

RNG = np.random.default_rng(42)


def test_every_kernel_is_exported_once():
    """The library's names are its kernels' names."""
    for name in library.__all__:
        assert getattr(library, name).name == name


@pytest.mark.parametrize("count", [0, 1, 7, 100, 100_003])
def test_copy_triad_and_scale(count):
    """Copy is exact; triad and scale round once or twice."""
    a, b, c = (RNG.standard_normal(count).astype(np.float32) for _ in range(3))
    np.testing.assert_array_equal(library.copy(a), a)
    expected = a.astype(np.float64) + 3.0 * b
    np.testing.assert_allclose(library.triad(a, b), expected, rtol=1e-6, atol=1e-6)
    halves = [x * np.float32(0.5) for x in (a, b, c)]
    library.scale(a, b, c)
    for seen, half in zip((a, b, c), halves, strict=True):
        np.testing.assert_array_equal(seen, half)


def adam64(gradient, m, v):
    """Return the three formulas of GPUCompiler.jl#65 in float64."""
    m = 0.9 * m + (1 - 0.9) * gradient
    v = 0.9 * v + (1 - 0.999) * gradient**2
    return m / (1 - 0.9) / (np.sqrt(v / (1 - 0.999)) + 1e-8) * 1e-3, m, v


@pytest.mark.parametrize("count", [1, 100, 4099])
def test_adam_as_one_kernel_and_as_three(count):
    """Both ways give the formulas' values; each value has at most 8 roundings."""
    arrays = [RNG.standard_normal(count).astype(np.float32) for _ in range(3)]
    arrays[2] = np.abs(arrays[2])
    expected = adam64(*(array.astype(np.float64) for array in arrays))
    one = [array.copy() for array in arrays]
    library.adam(*one)
    gradient, m, v = (array.copy() for array in arrays)
    library.adam_m(m, gradient)
    library.adam_v(v, gradient)
    library.adam_update(gradient, m, v)
    for seen, again, value in zip(one, (gradient, m, v), expected, strict=True):
        # m adds two terms that may cancel: its error is of the terms' size.
        np.testing.assert_allclose(seen, value, rtol=1e-6, atol=3e-7)
        np.testing.assert_allclose(again, value, rtol=1e-6, atol=3e-7)


def softmax64(x):
    """Return softmax in float64."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 17), (64, 1000), (3, 4096)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_softmax(rows, width, dtype):
    """Within 8 roundings of the dtype, and the oracle's exponent's own."""
    x = (3 * RNG.standard_normal((rows, width))).astype(dtype)
    unit = np.finfo(dtype).eps
    seen = library.softmax(x).astype(np.float64)
    # exp's argument carries |x| roundings of float32 into a relative error.
    rtol = 8 * unit + 16 * np.finfo(np.float32).eps * (dtype != "float64")
    np.testing.assert_allclose(
        seen, softmax64(x.astype(np.float64)), rtol=rtol + 1e-15, atol=unit / 100
    )


def layernorm64(x, bias1, bias2, weight, bias):
    """Return the two biases, the cast between them and LayerNorm, in float64."""
    wide = [array.astype(np.float64) for array in (x, bias1, bias2, weight, bias)]
    t = (wide[0] + wide[1]).astype(x.dtype).astype(np.float64) + wide[2]
    t = t - t.mean(-1, keepdims=True)
    return t / np.sqrt((t**2).mean(-1, keepdims=True) + 1e-5) * wide[3] + wide[4]


@pytest.mark.parametrize("width", [768, 1600, 4096, 5140])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bias_layernorm(width, dtype):
    """The suite's widths, with fewer rows, as the heuristic schedules them."""
    x = RNG.standard_normal((37, width)).astype(dtype)
    vectors = [RNG.standard_normal(width).astype(dtype) for _ in range(4)]
    expected = layernorm64(x, *vectors)
    # The output's own rounding, and float32's over sums of a few thousand terms.
    unit = np.finfo(dtype).eps
    seen = library.bias_layernorm(x, *vectors).astype(np.float64)
    np.testing.assert_allclose(seen, expected, rtol=unit, atol=2 * unit + 2e-5)
