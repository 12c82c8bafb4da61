"""Gradients of expressions without loops, against finite differences in float64."""

import math

import numpy as np
import pytest
from gradients import check, computed, evaluated, gradients, lines, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad, stop_gradient, value_and_grad, vjp
from steelyard_kernels.ops import OPERATIONS, oracles
from steelyard_kernels.vmap import vmap

TABLE = [row for row in OPERATIONS.values() if not row.hidden]
APART = {"where", "tf32"}  # a choice, and a rounding
SMOOTH = [row.name for row in TABLE if row.gradient and row.name not in APART]
STOPS = [row.name for row in TABLE if not row.gradient and row.name != "bitcast"]
POSITIVE = {"sqrt", "rsqrt", "log", "log1p", "divide", "log2", "log10", "pow", "acosh"}
NAN, INF, LOG = math.nan, math.inf, 4 * math.log(2)
UNIT = {"erf_inv", "asin", "acos", "atanh"}  # of numbers between -1 and 1


def total(x):
    """Return the sum of all elements, weighted so that none is like another."""
    flat = xp.reshape(x, -1)
    places = xp.arange(flat.shape[0]).astype("float64")
    return xp.sum(flat * (places + 1.0))


@pytest.mark.parametrize("op", SMOOTH)
def test_elementwise_rules_are_the_slopes(op):
    """Where the function is defined and smooth."""
    function = getattr(xp, op)
    arrays = [normal(7, seed=place) for place in range(OPERATIONS[op].arity)]
    if op in POSITIVE:
        arrays = [np.abs(a) + (1.5 if op == "acosh" else 0.5) for a in arrays]
    if op in UNIT:
        arrays = [np.tanh(a) * 0.9 for a in arrays]

    def one(x):
        return total(function(x))

    def two(x, y):
        return total(function(x, y))

    check(one if len(arrays) == 1 else two, *arrays)


@pytest.mark.parametrize("op", STOPS)
def test_what_jumps_passes_nothing_back(op):
    """Its result may still choose between what does."""
    function = getattr(xp, op)
    arity = OPERATIONS[op].arity

    def jumps(x, w):
        if arity == 1 and "float" in OPERATIONS[op].kinds:
            given = function(x)
        elif OPERATIONS[op].kinds in ({"int"}, {"int", "bool"}):
            bits = xp.bitcast(x.astype("float32"), "int32")
            given = function(*[bits] * arity)
        elif OPERATIONS[op].kinds == {"bool"}:
            given = function(*[x > 0.5] * arity)
        else:
            given = function(x, 0.5)
        return total(given.astype("float64") * w)

    _, (of_x, of_w) = gradients(jumps, normal(3), normal(3))
    assert (of_x == 0).all()
    assert of_w.shape == (3,)


def test_a_choice_passes_back_what_was_chosen():
    """The other's infinite slope is not multiplied by zero."""

    def root(x):
        return xp.sum(xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1.0)), 0.0 * x))

    _, (found,) = gradients(root, np.array([4.0, 0.0, -1.0]))
    np.testing.assert_array_equal(found, [0.25, 0, 0])


def test_cut_digits_pass_back_what_comes():
    """As if tf32 cut none, but the factors of products are those that were multiplied."""

    def cut(x, y):
        return xp.sum(xp.tf32(x) * xp.tf32(y))

    x, y = (normal(5, seed=seed).astype("float32") for seed in range(2))
    _, found = gradients(cut, x, y)
    for of, other in zip(found, (y, x), strict=True):
        np.testing.assert_array_equal(of, oracles.tf32(other))
        assert (of != other).any()


@pytest.mark.parametrize("name", ["max", "min", "logsumexp", "sum", "prod"])
@pytest.mark.parametrize("way", [1, -1])
def test_totals_so_far_have_the_slopes(name, way):
    """Along either axis, from either end; far from 0 too."""
    function = getattr(xp, f"cumulative_{name}")
    x = normal(5, 6) * (100 if name == "logsumexp" else 1)

    def value(x):
        return total(function(x[::way], axis=0)) - total(function(x[:, ::way], axis=1))

    check(value, x)


@pytest.mark.parametrize("name", ["prod", "cumulative_prod", "cumulative_logsumexp"])
@pytest.mark.parametrize("x", [[0, 2, 3], [2, 0, 3, 0, 4], [0, 0], [-1, 0, 0, 0]])
def test_slopes_have_slopes_where_factors_and_slopes_are_zero(name, x):
    """The product of the others of two has one by a zero; so has a square at 0."""
    function = getattr(xp, name)
    slope = grad(lambda x: xp.sum(xp.square(function(x)) + function(x * 2.0)))
    check(lambda x: total(slope(x)), np.array(x, float))
    slope = grad(lambda x: xp.sum(xp.square(function(x))))
    check(lambda x: total(slope(x)), np.array(x, float))


def test_the_last_of_equal_extremes_so_far_has_the_slope():
    """A NaN all that follow it; what is -inf so far passes nothing back."""
    x = np.array([1.0, 0.0, 1.0, 2.0, 2.0, 0.0, NAN, 3.0])
    _, (found,) = gradients(lambda x: xp.sum(xp.cumulative_max(x)), x)
    assert found.tolist() == [2, 0, 1, 1, 2, 0, 2, 0]
    x = np.array([-INF, 0.0, -INF])
    _, (found,) = gradients(lambda x: xp.sum(xp.cumulative_logsumexp(x)), x)
    assert found.tolist() == [0, 2, 0]


def test_ties_are_shared():
    """Maximum halves, max divides by how many there are, abs is flat at 0."""

    def tied(x, y):
        return xp.sum(xp.maximum(x, y)) + xp.max(x) + xp.sum(xp.abs(y * 0.0))

    _, (of_x, of_y) = gradients(tied, np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    np.testing.assert_array_equal(of_x, [1.0, 0.5])
    np.testing.assert_array_equal(of_y, [0.5, 1.0])


def test_casts_keep_the_operands_dtype():
    """A gradient has the dtype of what it is by, rounded where the cast rounded."""

    def thrice(x):
        return xp.sum(x.astype("float64") * 3.0)

    program = kernel(grad(thrice)).program(np.ones(2, np.float32))
    assert program.outputs[0].value.dtype.name == "float32"


@pytest.mark.parametrize(
    ("op", "a", "b", "of_a", "of_b"),
    [
        (
            "pow",
            [-2, -1, 0, 0, 2],
            [2, 0, 0, 3, 2],
            [-4, 0, 0, 0, 4],
            [NAN, NAN, 0, 0, LOG],
        ),
        ("hypot", [0, 3, -3], [0, 4, 0], [0, 0.6, -1], [0, 0.8, 0]),
        (
            "logaddexp",
            [INF, -INF, -INF, 1, INF, 0, -INF, 800],
            [INF, -INF, 3, 1, 0, INF, 5, -800],
            [0.5, 0.5, 0, 0.5, 1, 0, 0, 1],
            None,
        ),
        ("atan2", [1e-170, 1e170], [1e-170, 1e170], [5e169, 5e-171], None),
    ],
)
def test_slopes_at_the_edges_of_functions_of_two(op, a, b, of_a, of_b):
    """NaN where there is none, as of powers of negative numbers, and nowhere else."""
    of_b = [1 - x for x in of_a] if op == "logaddexp" else of_b
    of_b = [-x for x in of_a] if op == "atan2" else of_b
    slopes = grad(lambda a, b: xp.sum(getattr(xp, op)(a, b)), argnums=(0, 1))
    found = kernel(slopes)(np.array(a, float), np.array(b, float))
    np.testing.assert_allclose(found, [of_a, of_b], rtol=1e-14)


def test_slopes_at_infinity_have_slopes():
    """Where two are equal, and finite, the second one is not that of a constant."""
    slope = grad(lambda x: xp.sum(xp.logaddexp(x, 1.0)))
    found = kernel(grad(lambda x: xp.sum(slope(x))))(np.ones(1))
    np.testing.assert_allclose(found, 0.25)


def test_a_power_of_nothing_has_slopes_by_both():
    """The slope by a base is that of b / a at b = 0; none of 0 ** 0 and NaN ** 0."""
    power = grad(lambda a, b: xp.sum(a**b), argnums=(0, 1))
    mixed = grad(lambda a, b: xp.sum(power(a, b)[0]), argnums=1)
    found = kernel(mixed)(np.array([2.0, 0.5, 0.0, NAN]), np.zeros(4))
    np.testing.assert_array_equal(found, [0.5, 2.0, 0.0, 0.0])


def test_only_what_was_named_is_differentiated():
    """Not the same array as another argument, nor as what the function closes over."""

    def product(x, y):
        inside = grad(lambda a, b: xp.sum(a * b * y))
        return inside(x, x)

    x, y = normal(3), normal(3, seed=2)
    (found,) = evaluated(product, x, y)
    np.testing.assert_allclose(found, x * y, rtol=1e-15)


def test_gradients_of_gradients():
    """x^4 down to 24 x."""

    def slopes(x):
        f = lambda x: xp.sum(x * x * x * x)  # noqa: E731
        first = lambda x: xp.sum(grad(f)(x))  # noqa: E731
        second = lambda x: xp.sum(grad(first)(x))  # noqa: E731
        return grad(f)(x), grad(first)(x), grad(second)(x)

    x = normal(5)
    first, second, third = evaluated(slopes, x)
    np.testing.assert_allclose(first, 4 * x**3, rtol=1e-14)
    np.testing.assert_allclose(second, 12 * x**2, rtol=1e-14)
    np.testing.assert_allclose(third, 24 * x, rtol=1e-14)


def test_vjp_takes_structures():
    """Of primals, results and cotangents; nothing where nothing depends."""

    def pulled(x, y):
        def function(given):
            return {"a": given["x"] * y, "b": (xp.sum(given["x"]), xp.arange(2))}

        out, pullback = vjp(function, {"x": x, "unused": (y, None)})
        (found,) = pullback({"a": y, "b": (2.0, out["b"][1])})
        return out["a"], found["x"], found["unused"][0]

    x, y = normal(3), normal(3, seed=2)
    a, of_x, of_y = evaluated(pulled, x, y)
    np.testing.assert_array_equal(a, x * y)
    np.testing.assert_allclose(of_x, y * y + 2, rtol=1e-15)
    assert (of_y == 0).all()


def test_stopped_values_are_constants():
    """In their gradients; as values they are what they were, of each dtype."""

    def stopped(x):
        f = lambda x: xp.sum(x * stop_gradient(x))  # noqa: E731
        return value_and_grad(f)(x)

    for dtype in ("float64", "float32", "float16"):
        x = np.array([1.5, -2.0, 0.25]).astype(dtype)
        value, found = evaluated(stopped, x)
        assert value == (x.astype(float) ** 2).sum()
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("count", [-1, -2, -3, -8])
def test_slopes_of_negative_powers_are_infinite_at_zero(count):
    """Not NaN, and 0 at infinity."""
    x = np.array([0.0, -0.0, 2.0, np.inf])
    found = kernel(grad(lambda x: xp.sum(x**count)))(x)
    even = 1 if count % 2 else -1
    want = [-np.inf, even * -np.inf, count * 2.0 ** (count - 1), -0.0]
    np.testing.assert_array_equal(found, want)


def test_a_gradient_is_a_kernel():
    """With the parameters of its function, runtime scalars too."""

    def scaled(x, *, by: float):
        return xp.sum(x * x) * by

    seen = kernel(grad(scaled))(np.array([1.0, 2.0]), by=3.0)
    np.testing.assert_array_equal(seen, [6.0, 12.0])


def test_many_chains_have_a_gradient_each():
    """What they share has one in each chain; the other way round is refused."""

    def one(x, w):
        return xp.sum(xp.tanh(x * w))

    x, w = normal(4, 3), normal(3, seed=2)
    found = evaluated(vmap(grad(one, 1), (0, None)), x, w)[0]
    expected = [gradients(one, row, w)[1][1] for row in x]
    np.testing.assert_allclose(found, expected, rtol=1e-14)

    def other(x, w):
        return grad(lambda w: xp.sum(vmap(one, (0, None))(x, w)))(w)

    with pytest.raises(KernelError, match="chain"):
        kernel(other).program(x, w)


def test_what_leaves_a_differentiated_function_is_refused():
    """A value of its arguments, kept aside, stands for nothing outside."""

    def leaking(x):
        kept = []

        def function(x):
            kept.append(x * 2.0)
            return xp.sum(x)

        return grad(function)(x) + kept[0]

    with pytest.raises(KernelError, match=r"made of primals\[0\].* outside"):
        kernel(leaking).program(normal(3))


def _value(x, i):
    del i
    return xp.sum(x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (grad(_value, 1), r"primals\[0\] of int64.*argnums"),
        (grad(_value, 2), "argument 2, but 2 were given"),
        (grad(_value, (0, -2)), r"by arguments \(0, -2\), two of which are one"),
        (lambda x, i: grad(_value, "x"), "by argnums 'x', expected an int or a tuple"),
        (lambda x, i: grad(_value, 0.5), "by argnums 0.5, expected an int or a tuple"),
        (grad(_value, memory=-1), "memory is -1, expected an int of bytes"),
        (lambda x, i: grad(lambda x: x)(x), r"float64 \(3,\), expected one float"),
        (lambda x, i: grad(lambda x: (x, x))(x), "gradient of a tuple"),
        (lambda x, i: vjp(lambda: x)[0], "no arrays"),
        (lambda x, i: vjp(lambda x: x, x)[1]((x, x)), "same structure"),
        (lambda x, i: vjp(lambda x: x, x)[1](x[0]), "the result is float64"),
    ],
)
def test_mistakes_are_one_sentence(function, said):
    """That names what was seen and what to do."""
    with pytest.raises(KernelError, match=said) as error:
        kernel(function).program(normal(3), np.zeros((), np.int64))
    assert str(error.value).endswith(".")


@settings(max_examples=40)
@given(lines(), st.integers(0, 2**31))
def test_random_programs(drawn, seed):
    """Joined of smooth functions, products, rows and reductions."""
    rng = np.random.default_rng(seed)

    def function(x, y, w):
        return xp.sum(xp.reshape(xp.tanh(computed(drawn, [x, y, w], w) * w), -1))

    arrays = [rng.standard_normal(shape) for shape in ((3,), (1, 3), (3, 3))]
    check(function, *arrays, seed=seed)


def test_the_mean_of_a_softmax_has_no_slope():
    """Its rows add up to one whatever the input is."""

    def mean(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return xp.sum(e / xp.sum(e, axis=-1, keepdims=True), axis=-1)[0]

    value, (found,) = gradients(mean, normal(1, 9))
    assert math.isclose(value, 1)
    np.testing.assert_allclose(found, 0, atol=1e-16)


def test_a_shift_that_a_softmax_forgets_has_no_cotangent():
    """Not even that of rounding, and none is computed; sums elsewhere keep theirs."""

    def weigh(x, shift, w):
        e = xp.exp(x - shift)
        return xp.sum(e / xp.sum(e, axis=-1, keepdims=True) * w)

    def by_columns(x, shift, w):
        e = xp.exp(x - shift)
        return xp.sum(e / xp.sum(e, axis=0, keepdims=True) * w)

    arrays = normal(3, 5), normal(3, 1), normal(3, 5)
    _, (of_x, of_shift, _) = gradients(weigh, *arrays)
    e = np.exp(arrays[0] - arrays[1])
    weights = e / e.sum(-1, keepdims=True)
    within = (weights * arrays[2]).sum(-1, keepdims=True)
    np.testing.assert_allclose(of_x, weights * (arrays[2] - within), atol=1e-15)
    assert not of_shift.any()
    check(weigh, *arrays)
    check(by_columns, *arrays)
