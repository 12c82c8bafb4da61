"""Gradients of loops: by differences, stored or computed again."""

import numpy as np
import pytest
from gradients import check, computed, evaluated, gradients, lines, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import random
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Apply, Result, loops
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad, value_and_grad
from steelyard_kernels.vmap import vmap

FITS = [{}, {"memory": 0}]  # carries stored, and as few as can be


def recurrent(xs, w, c):
    """Return a value of a scan's carry, of its rows and of their order."""

    def step(c, x):
        c = xp.tanh(c @ w + x)
        return c, (c * x, xp.sum(c))

    c, (rows, sums) = xp.scan(step, c, xs)
    return xp.sum(c) + xp.sum(xp.sum(rows * rows, axis=-1)) + xp.sum(sums * sums)


def last(xs, w, c):
    """Return a value of a scan's carry alone."""
    return xp.sum(xp.scan(lambda c, x: (xp.tanh(c @ w + x), None), c, xs)[0])


@pytest.mark.parametrize("function", [recurrent, last])
@pytest.mark.parametrize("options", FITS)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 12])
def test_scans(function, options, length):
    """Of no, one, a prime number and many iterations."""
    check(function, normal(length, 3), normal(3, 3), normal(3, seed=2), **options)


@pytest.mark.parametrize("options", FITS)
def test_scans_within_scans(options):
    """Both stack; the inner one goes in reverse."""

    def function(xs, w):
        def outer(c, rows):
            def inner(d, x):
                d = xp.tanh(d * w + x)
                return d, d * c

            return xp.scan(inner, c, rows, reverse=True)

        c, every = xp.scan(outer, xp.zeros_like(w), xs)
        return xp.sum(c) + xp.sum(xp.reshape(every, -1))

    check(function, normal(6, 4, 3), normal(3), **options)


@pytest.mark.parametrize("options", FITS)
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_are_found_in_both_directions(reverse, options):
    """The scan's own, those at its number, and those in other places."""

    def function(xs, w):
        def step(c, given):
            x, i = given
            c = xp.tanh(c * w[i] + w[5 - i] * x + w[i * 2])
            return c, c * x

        c, rows = xp.scan(step, w[0], (xs, xp.arange(6)), reverse=reverse)
        return xp.sum(c) + xp.sum(xp.sum(rows * xs, axis=-1))

    check(function, normal(6, 3), normal(6, 3, seed=2), **options)


def test_an_end_that_no_start_reaches():
    """The carry forgets where it began: its gradient is zero there."""

    def function(c, w):
        return xp.sum(xp.scan(lambda c, i: (w * 2.0, None), c, length=3)[0])

    _, (of_c, of_w) = gradients(function, normal(3), normal(3))
    np.testing.assert_array_equal(of_c, np.zeros(3))
    np.testing.assert_array_equal(of_w, np.full(3, 2.0))


@settings(max_examples=30)
@given(lines(), lines(), st.integers(0, 9), st.booleans(), st.integers(0, 2**31))
def test_random_loops(of_carry, of_row, length, reverse, seed):
    """Of a carry, of rows that are read by the scan and at its number."""
    rng = np.random.default_rng(seed)

    def function(xs, w, c):
        def step(c, given):
            x, i = given
            values = [c, x, xs[i] if length else x]  # no rows can be indexed
            carry = xp.tanh(computed(of_carry, values, w) + c)
            return xp.mean(carry * w, axis=-1), computed(of_row, values, w) * carry

        scanned = xs, xp.arange(length)
        c, rows = xp.scan(step, xp.tanh(c), scanned, reverse=reverse)
        return xp.sum(c) + xp.sum(xp.tanh(xp.reshape(rows, -1)))

    arrays = [rng.standard_normal(shape) for shape in ((length, 3), (3, 3), (3,))]
    check(function, *arrays, seed=seed, memory=seed % 200)


def layer(x, w):
    """Return one layer of the noisy perceptron."""
    return xp.sigmoid(x @ xp.softplus(w))


def noisy(length):
    """Return the noisy perceptron, 1 to 12 to 1, fed back into itself."""

    def noisy_mlp(x, w1, w2, key):
        def step(x, i):
            noise = random.normal(key, i, (1,), x.dtype)
            return layer(layer(x, w1), w2) + noise, None

        return xp.sum(xp.scan(step, x, xp.arange(length))[0])

    return noisy_mlp


def forward_and_backward(length, **options):
    """Return the noisy perceptron with its gradient by x and the weights."""

    def both(x, w1, w2, key):
        function = value_and_grad(noisy(length), (0, 1, 2), **options)
        value, found = function(x, w1, w2, key)
        return value, *found

    return both


def perceptron():
    """Return x, w1 and w2."""
    return normal(1), normal(1, 12, seed=2), normal(12, 1, seed=3)


def test_each_loop_runs_once_and_noise_is_not_stored():
    """One forward and one backward loop; all that is kept is the carry."""
    arrays = perceptron()
    program = kernel(forward_and_backward(64)).program(*arrays, np.array(12))
    forward, backward = loops(program.nodes)
    assert (forward.reverse, backward.reverse) == (False, True)
    hidden = [o.value for o in program.outputs if o.hidden]
    assert [node.shape for node in hidden] == [(64, 1)]
    inside = [n.op for n in backward.nodes if isinstance(n, Apply)]
    assert "multiply_high" not in inside  # the noise's slope is zero


def test_noise_that_is_needed_is_made_again():
    """From its counter, within the backward loop."""

    def function(x, key):
        def step(x, i):
            return xp.tanh(x * random.normal(key, i, (), x.dtype)), None

        return xp.sum(xp.scan(step, x, xp.arange(9))[0])

    x, key = normal(2), np.array(3)
    program = kernel(grad(function)).program(x, key)
    forward, backward = loops(program.nodes)
    for loop in (forward, backward):
        assert any(isinstance(n, Apply) and n.op == "multiply_high" for n in loop.nodes)
    assert [o.value.shape for o in program.outputs if o.hidden] == [(9, 2)]


def test_memory_holds_what_is_kept():
    """About two square roots of the rows, over all chains."""
    arrays = perceptron()
    xs = np.repeat(arrays[0][None], 5, axis=0)
    both = vmap(forward_and_backward(8000, memory=100_000), (0, None, None, None))
    program = kernel(both).program(xs, *arrays[1:], np.array(12))
    stacked = [
        node.shape
        for node in everywhere(program.nodes)
        if isinstance(node, Result) and node.stacks
    ]
    assert sum(shape[0] for shape in stacked) < 2 * np.sqrt(8000) + 2


@pytest.mark.parametrize("length", [1, 6, 36, 97, 120, 10**9])
def test_segments_take_the_least_memory_there_is(length):
    """Of all lengths of segments; of a thousand million without trying each."""

    def function(c):
        step = lambda c, _: ((xp.tanh(c[0]), c[1] * 0.5), None)  # noqa: E731
        x, y = xp.scan(step, (c, c), length=length)[0]
        return x + y

    program = kernel(grad(function, memory=0)).program(((), "float32"))
    seen = sum(
        4 * node.shape[0]
        for node in everywhere(program.nodes)
        if isinstance(node, Result) and node.stacks
    )
    tried = range(1, length) if length < 1000 else range(40_000, 50_000)
    sizes = (length // n * 8 + (n + length % n) * 4 for n in tried)
    assert seen == min([length * 4, *sizes])


@pytest.mark.parametrize("options", FITS)
def test_gradients_of_gradients_of_scans(options):
    """The second one goes through a loop that goes back."""

    def function(xs, w, c):
        slope = grad(last, 1, **options)(xs, w, c)
        return xp.sum(xp.sum(slope * w, axis=-1))

    check(function, normal(6, 3), normal(3, 3), normal(3, seed=2), **options)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (
            lambda x, n: xp.while_loop(lambda c: c[0] < 9, lambda c: c * 2.0, x, 5),
            "while_loop, expected a scan",
        ),
        (
            lambda x, n: xp.scan(lambda c, _: (c * 2.0, None), x, length=n)[0],
            "given at launch, expected an int",
        ),
    ],
)
def test_unknown_iterations_are_refused(loop, said):
    """In a sentence that says what to write instead."""

    def function(x, *, n: int):
        return grad(lambda x: xp.sum(loop(x, n)))(x)

    with pytest.raises(KernelError, match=said):
        kernel(function).program(normal(3))


def test_columns_of_what_was_stacked_have_gradients():
    """A backward loop reads cotangents of a product of them row by row."""

    def function(xs, w):
        _, rows = xp.scan(lambda c, x: (c + x, c), w, xs)
        return xp.sum(xp.reshape(xp.tanh(w @ rows.T), -1))

    def value(xs, w):
        rows = w + np.vstack([np.zeros(3), np.cumsum(xs, axis=0)[:-1]])
        return np.sum(np.tanh(rows @ w))

    xs, w, step = normal(3, 3), normal(3, seed=2), 1e-6
    found = np.asarray(kernel(grad(function))(xs, w))
    for at in np.ndindex(3, 3):
        off = np.zeros((3, 3))
        off[at] = step
        slope = (value(xs + off, w) - value(xs - off, w)) / (2 * step)
        assert found[at] == pytest.approx(slope, rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", FITS)
def test_a_pass_forward_and_backward_is_one_kernel(dtype, options):
    """Compiled it is what the oracle says, of each of three chains.

    The weights are small: where a sigmoid y is near 1, its slope y * (1 - y) cancels.
    """
    _, w1, w2 = perceptron()
    x, *weights = (a.astype(dtype) for a in (normal(3, 1), w1 - 2.0, w2 - 2.0))
    keys = np.arange(3)
    both = vmap(forward_and_backward(67, **options), (0, None, None, 0))
    seen = kernel(both)(x, *weights, keys)
    expected = evaluated(both, x, *weights, keys)
    unit, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    for ours, theirs in zip(seen, expected, strict=True):
        room = 256 * unit * np.abs(theirs).max() + tiny
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=room)


def test_halves_are_summed_in_float32():
    """4096 terms of 1 are 4096, where float16 would stop at 2048."""

    def total(w, x):
        c, rows = xp.scan(lambda c, i: (c, w), x, length=4096)
        return xp.sum(xp.reshape(rows, -1)) + xp.sum(c)

    ones = np.ones(1, np.float16)
    found = evaluated(grad(total), ones, ones)[0]
    assert found == 4096
