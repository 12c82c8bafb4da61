"""Errors are in units of the result's last place, against a wider NumPy type."""

import math
from decimal import Decimal, localcontext
from functools import cache

import gpu_cases
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import erf as erf_of_scipy
from scipy.special import erfinv, expit, log_expit

from steelyard_device import llvm
from steelyard_kernels import array as xp
from steelyard_kernels import kernel, reference
from steelyard_kernels.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    of,
    rounded,
)
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import INDEX, Buffer, Const
from steelyard_kernels.ops import OPERATIONS

WIDER = {"float32": np.float64, "float64": np.longdouble}
ROWS = {row.name: row for row in OPERATIONS.values() if row.ulps != (0.0, 0.0)}
IN_FLOAT64 = {"erf", "erf_inv", "erfc", "lgamma", "digamma"}  # no oracle is wider
ONE = [op for op, row in ROWS.items() if row.arity == 1 and op not in IN_FLOAT64]
TWO = [op for op, row in ROWS.items() if row.arity == 2 and row.kinds == {"float"}]
COUNT = 1 << 17
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


@pytest.fixture
def apply(elementwise):
    """Apply a function of the table to every element."""

    def run(op, array, lanes=16, source=None):
        source = source or of(array.dtype)
        return elementwise(
            lambda b, x: b.let(op, x), [array], source, lanes, sources=[source]
        )

    return run


def ulps(seen, exact):
    """Return the largest error in ulp; values that are not finite must agree."""
    rounded = exact.astype(seen.dtype)
    finite = np.isfinite(rounded) & np.isfinite(seen)
    agree = (np.isnan(rounded) & np.isnan(seen)) | (rounded == seen)
    assert np.all(finite | agree)
    step = np.spacing(np.abs(rounded[finite])).astype(exact.dtype)
    return np.max(np.abs(seen[finite].astype(exact.dtype) - exact[finite]) / step)


@cache
def arguments(dtype):
    """All exponents, the neighbourhood of the hard points, and the edges."""
    random = np.random.default_rng(11)
    bits = random.integers(0, 256, np.dtype(dtype).itemsize * COUNT, np.uint8)
    low, high = (-110, 89) if dtype == "float32" else (-750, 710)
    sizes = np.exp(random.normal(0, 3, COUNT)) * random.choice([-1, 1], COUNT)
    halves = np.arange(-400, 400) / 4 + random.normal(0, 1e-6, (100, 800))
    quarters = random.integers(0, 2**30, COUNT) * (np.pi / 2)
    parts = [
        *(random.uniform(-1, 1, COUNT), random.uniform(low, high, COUNT), sizes),
        *(random.normal(0, 3, COUNT), halves.ravel(), halves.ravel() * np.log(2)),
        *(quarters, quarters % 1e5, sizes * 2.0**90),
        1 + np.arange(-50_000, 50_000) * np.finfo(dtype).eps,
        np.sqrt(0.5) * (1 + np.linspace(-1e-6, 1e-6, 9999)),
        np.ldexp(1.0, range(-149, 128)),
    ]
    found = np.concatenate([bits.view(dtype), *[part.astype(dtype) for part in parts]])
    found.setflags(write=False)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ONE)
def test_a_function_stays_within_its_stated_error(apply, op, dtype):
    """Denormal arguments and results, overflow, infinities and NaN among them."""
    values = arguments(dtype)
    exact = ROWS[op].oracle(values.astype(WIDER[dtype]))
    assert ulps(apply(op, values), exact) <= ROWS[op].ulps[dtype == "float64"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", TWO)
def test_a_function_of_two_stays_within_its_stated_error(elementwise, op, dtype):
    """Every pair of special values, powers, and sums of exponentials above 1."""
    random = np.random.default_rng(12)
    x, y = (random.permutation(arguments(dtype)) for _ in range(2))
    some = len(x) // 2
    x[:some] = np.exp(random.uniform(-3, 3, some))
    y[:some] = random.uniform(-200, 200, some)
    x[some : 2 * some : 9], y[some : 2 * some : 9] = random.integers(
        -9, 9, (2, -(-some // 9))
    )
    if op == "logaddexp":  # near 0 it is a difference
        x, y = np.abs(x) + x.dtype.type(0.5), np.where(y > np.abs(x), -y, y)
    row, wide = ROWS[op], WIDER[dtype]
    exact = row.oracle(x.astype(wide), y.astype(wide))
    seen = elementwise(lambda b, *xs: b.let(op, *xs), [x, y], of(x.dtype), 16)
    assert ulps(seen, exact) <= row.ulps[dtype == "float64"]


def test_whole_powers_of_whole_numbers_are_exact(elementwise):
    """As NumPy's: 10.0**5 is 100000, where float64 has room for it."""
    x, y = (each.ravel() for each in np.meshgrid(np.arange(1.0, 30), np.arange(12.0)))
    fits = np.power(x, y) < 2**53
    given_ = [x[fits].copy(), y[fits].copy()]
    seen = elementwise(lambda b, *xs: b.let("pow", *xs), given_, float64)
    assert seen.tolist() == [int(a) ** int(n) for a, n in zip(*given_, strict=True)]


NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, np.inf, -np.inf, np.nan]
EXACT = [
    *("floor_divide", "remainder", "copysign", "nextafter", "atan2", "pow", "hypot"),
    *("signbit", "isnan", "isinf", "isfinite", "trunc", "ceil", "asin", "log2"),
]


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_are_numpys(elementwise, op, dtype):
    """Signs of zeros too, of every number or pair of them."""
    row = OPERATIONS[op]
    given_ = [np.array(NUMBERS, dtype)]
    if row.arity == 2:
        given_ = [part.ravel().copy() for part in np.meshgrid(*given_ * 2)]
    target = bool_ if row.result == "bool" else of(given_[0].dtype)
    sources = [of(each.dtype) for each in given_]
    seen = elementwise(lambda b, *xs: b.let(op, *xs), given_, target, 4, sources)
    want = row.evaluate(of(given_[0].dtype), *given_)
    np.testing.assert_array_almost_equal_nulp(
        np.nan_to_num(seen.astype(float)), np.nan_to_num(want.astype(float)), 2**31
    )
    known = ~(np.isnan(want) | (np.abs(want) > 0) & np.isfinite(want))
    assert seen[known].tolist() == want[known].tolist()
    assert np.isnan(seen[np.isnan(want)]).all()
    assert np.signbit(seen[known]).tolist() == np.signbit(want[known]).tolist()


def pairs(*ranges):
    """Draw many pairs at once: a kernel is compiled for each example."""
    return st.lists(st.tuples(*(st.integers(*each) for each in ranges)), min_size=30)


@settings(max_examples=10)
@given(pairs((-(2**40), 2**40), (0, 60), (1, 2**20)))
def test_a_remainder_is_exact_however_large_the_quotient(elementwise, drawn):
    """As of integers of any size; the quotient is the one rounded down."""
    drawn = [(int(float(x)) << power, y) for x, power, y in drawn]
    given_ = [np.array(each, np.float64) for each in zip(*drawn, strict=True)]
    seen = elementwise(lambda b, *xs: b.let("remainder", *xs), given_, float64)
    assert seen.tolist() == [float(x % y) for x, y in drawn]
    seen = elementwise(lambda b, *xs: b.let("floor_divide", *xs), given_, float64)
    for (x, y), quotient in zip(drawn, seen.tolist(), strict=True):
        assert abs(x // y) > 2**53 or quotient == float(x // y)


INT64 = (-(2**63), 2**63 - 1)


@settings(max_examples=10)
@example([(-(2**63), -1), (-(2**31), -1), (7, 0), (-7, 2)])
@given(pairs(INT64, INT64))
def test_integers_divide_as_pythons(elementwise, drawn):
    """By 0 they are 0; the least one by -1 wraps."""
    for dtype in (np.int64, np.int32):
        width = 8 * np.dtype(dtype).itemsize
        x, y = np.array(drawn, np.int64).astype(dtype).T.copy()
        for op, exact in (
            ("floor_divide", int.__floordiv__),
            ("remainder", int.__mod__),
        ):
            seen = elementwise(lambda b, *xs, op=op: b.let(op, *xs), [x, y], of(dtype))
            for a, b_, value in zip(*map(np.ndarray.tolist, (x, y, seen)), strict=True):
                assert (value - (exact(a, b_) if b_ else 0)) % (1 << width) == 0


def test_erf_inv_of_float64_stays_within_its_stated_error(apply):
    """Against erf itself in 50 digits: how far what it gives is from what was asked."""
    random = np.random.default_rng(6)
    near_one = 1 - np.exp(-random.uniform(0, 36.7, 250))
    values = np.concatenate([random.uniform(-1, 1, 250), near_one])
    seen = apply("erf_inv", values, 8)
    with localcontext(prec=50):
        for asked, result in zip(values.tolist(), seen.tolist(), strict=True):
            value, slope = erf(Decimal(result))
            off = abs((value - Decimal(asked)) / slope)
            assert float(off) <= ROWS["erf_inv"].ulps[1] * np.spacing(abs(result))


ROOT_PI = Decimal("1.7724538509055160272981674833411451827975494561224")


def erf(y):
    """Return the error function and its slope, by a series without cancellation.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.6.
    """
    slope = 2 / ROOT_PI * (-y * y).exp()
    term = total = y
    for n in range(1, 400):
        term *= 2 * y * y / (2 * n + 1)
        total += term
    return slope * total, slope


EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, -1.5])
AT_EDGES = {
    "exp": [1.0, 1.0, np.inf, 0.0, np.nan],
    "log": [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, 0.0, np.nan],
    "rsqrt": [np.inf, -np.inf, 0.0, np.nan, np.nan, np.nan, 1.0, np.nan],
    "expm1": [0.0, -0.0, np.inf, -1.0, np.nan],
    "log1p": [0.0, -0.0, np.inf, np.nan, np.nan, -np.inf],
    "tanh": [0.0, -0.0, 1.0, -1.0, np.nan],
    "sigmoid": [0.5, 0.5, 1.0, 0.0, np.nan],
    "softplus": [np.log(2), np.log(2), np.inf, 0.0, np.nan],
    "erf": [0.0, -0.0, 1.0, -1.0, np.nan],
    "erfc": [1.0, 1.0, 0.0, 2.0, np.nan],
    "lgamma": [np.inf, np.inf, np.inf, np.inf, np.nan, np.inf, 0.0],
    "digamma": [-np.inf, np.inf, np.inf, np.nan, np.nan, np.nan],
    "cbrt": [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0],
    "sin": [0.0, -0.0, np.nan, np.nan, np.nan],
    "cos": [1.0, 1.0, np.nan, np.nan, np.nan],
    "sinpi": [0.0, -0.0, np.nan, np.nan, np.nan, 0.0, 0.0, 1.0],
    "cospi": [1.0, 1.0, np.nan, np.nan, np.nan, -1.0, -1.0, 0.0],
    "erf_inv": [0.0, -0.0, np.nan, np.nan, np.nan, -np.inf, np.inf, np.nan],
    "floor": [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, -2.0],
    "round": [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, -2.0],
}


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("op", AT_EDGES)
def test_the_edges_are_exact(apply, op, dtype):
    """Zeros with their sign where the function is odd, infinities, NaN, the ends."""
    expected = np.array(AT_EDGES[op])
    values = EDGES[: len(expected)]
    seen = apply(op, rounded(values, dtype)).astype(np.float64)
    expected = rounded(expected, dtype).astype(np.float64)
    assert np.array_equal(seen, expected, equal_nan=True)
    if op in {"expm1", "log1p", "tanh", "erf", "erf_inv", "sin", "sinpi", "floor"}:
        assert np.signbit(seen[:2]).tolist() == [False, True]


@pytest.mark.parametrize(("op", "exact"), [("erf", erf_of_scipy), ("erf_inv", erfinv)])
def test_an_error_function_stays_within_its_stated_error(apply, op, exact):
    """Float32 against SciPy's float64; denormal numbers, up to the ends."""
    values = arguments("float32")
    wanted = exact(values.astype(np.float64))
    assert ulps(apply(op, values), wanted) <= ROWS[op].ulps[0]


def erfc(x):
    """Return 1 - erf(x); from 7 on by its asymptotic series, 7.1.23 there."""
    if x < 7:
        return 1 - erf(x)[0]
    term = total = (-x * x).exp() / (x * ROOT_PI)
    for n in range(1, 60, 2):
        term *= -n / (2 * x * x)
        total += term
    return total


def stirling(x, slope):
    """Return log(gamma(x)) or its slope by Stirling's series, 40 beyond x; 6.1.41 there."""
    z = x + 40
    tail = [1, -1, 1, -1, 5, -691, 7, -3617, 43867]
    under = [6, 30, 42, 30, 66, 2730, 6, 510, 798]
    series = [
        (Decimal(a) / b, 2 * k)
        for k, (a, b) in enumerate(zip(tail, under, strict=True), 1)
    ]
    steps = [x + k for k in range(40)]
    if slope:
        rest = sum(number / (k * z**k) for number, k in series)
        return z.ln() - 1 / (2 * z) - rest - sum(1 / step for step in steps)
    rest = sum(number / (k * (k - 1) * z ** (k - 1)) for number, k in series)
    half = (z - Decimal("0.5")) * z.ln() - z + (4 * half_pi()).ln() / 2
    return half + rest - sum(step.ln() for step in steps)


IN_DIGITS = {
    "erf": (lambda x: erf(x)[0], 6.1),
    "erfc": (erfc, 26.5),
    "lgamma": (lambda x: stirling(x, slope=False), 1e5),
    "digamma": (lambda x: stirling(x, slope=True), 1e5),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", IN_DIGITS)
def test_a_special_function_stays_within_its_stated_error(apply, op, dtype):
    """Against series in 50 digits: above 0, at zeros, and where its pieces meet."""
    exact, most = IN_DIGITS[op]
    random = np.random.default_rng(7)
    sizes = np.exp(random.uniform(-40, np.log(most), 150))
    zeros = random.normal([1, 2, 1.4616321449683622, 3, 8], 1e-6, (20, 5))
    values = np.concatenate([random.uniform(0, 10, 150), sizes, zeros.ravel()])
    values = values.astype(dtype)[values < (9 if dtype == "float32" else most)]
    with localcontext(prec=50):
        for asked, result in zip(values.tolist(), apply(op, values, 8), strict=True):
            wanted = exact(Decimal(asked))
            off = max(abs(wanted - Decimal(float(result))) - Decimal("1e-25"), 0)
            oracle = float(ROWS[op].oracle(np.float64(asked)))
            assert math.isclose(oracle, wanted, rel_tol=1e-14, abs_tol=1e-14)
            step = np.spacing(np.abs(np.dtype(dtype).type(wanted)))
            assert float(off) <= ROWS[op].ulps[dtype == "float64"] * step, asked


# The float64 nearest to a multiple of pi / 2: Muller et al., "Handbook of
# Floating-Point Arithmetic", "Range Reduction".
NEAREST = 6381956970095103 * 2.0**797


def test_the_hardest_angles_keep_all_their_digits(apply):
    """Of each binade the multiples of pi / 2, and the worst float64 there is."""
    with localcontext(prec=420):
        quarter = half_pi()
        powers = [2.0**k for k in range(0, 1023, 7)]
        near = [float(round(Decimal(p) / quarter) * quarter) for p in powers]
        values = np.array([*near, *powers, NEAREST, np.finfo(float).max])
        values = np.concatenate([values, -values])
        for op, turned in (("sin", 0), ("cos", 1)):
            seen = apply(op, values, 8)
            for x, result in zip(values.tolist(), seen.tolist(), strict=True):
                exact = sine(Decimal(x), quarter, turned)
                off = float(abs(exact - Decimal(result)))
                assert off <= ROWS[op].ulps[1] * np.spacing(abs(float(exact)))


def half_pi():
    """Return pi / 2 by Machin's formula."""

    def arctan(inverse):
        power = total = 1 / Decimal(inverse)
        for n in range(3, 1200, 2):
            power = -power / inverse**2
            total += power / n
        return total

    return 2 * (4 * arctan(5) - arctan(239))


def sine(x, quarter, turned):
    """Return sin(x + turned pi / 2) by its series, and the argument's quarter turns."""
    near = round(x / quarter)
    r, number = x - near * quarter, (near + turned) % 4
    start = number % 2
    term, total = (Decimal(1), Decimal(1)) if start else (r, r)
    for n in range(2 - start, 60, 2):
        term *= -r * r / (n * (n + 1))
        total += term
    return total if number < 2 else -total


def test_a_large_angle_changes_none_beside_it(apply):
    """It takes another way for all lanes, which is for those that need it."""
    values = np.random.default_rng(9).normal(0, 1e4, 64)
    for dtype in ("float32", "float64"):
        alone = values.astype(dtype)
        beside = alone.copy()
        beside[5::16] = [1e30, np.inf, np.nan, -1e37]
        for op in ("sin", "cos"):
            one, other = apply(op, alone), apply(op, beside)
            kept = beside == alone
            assert kept.sum() == 60
            assert one[kept].tolist() == other[kept].tolist()


@pytest.mark.parametrize("op", [*ONE, *sorted(IN_FLOAT64)])
def test_a_float16_function_is_the_float32_one_rounded(apply, op):
    """All 65536 arguments; at most the neighbour of the correctly rounded value."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = values[~(values < 0)] if op == "lgamma" else values  # see its zeros there
    reference = {"erf": erf_of_scipy, "erf_inv": erfinv}.get(op, ROWS[op].oracle)
    assert ulps(apply(op, values), reference(values.astype(np.float64))) <= 0.501


def test_results_are_the_same_at_every_width(apply):
    """A lane's result does not depend on how many lanes there are."""
    values = np.random.default_rng(3).normal(0, 20, 131).astype(np.float32)
    for op in (*ONE, *sorted(IN_FLOAT64)):
        wide = apply(op, values, 16)
        for lanes in (1, 4, 32):
            assert np.array_equal(apply(op, values, lanes), wide, equal_nan=True)


def test_without_fused_multiply_add_the_functions_are_unsupported():
    """LLVM would call a library routine."""
    host = llvm.Host("x86_64-linux-gnu", "x86-64", frozenset({"sse2"}), 16)
    y = Buffer("y", float32, Const(1, INDEX), access="out")
    b = Builder()
    b.store(y, 0, b.let("exp", const(1.0, float32)))
    with pytest.raises(Unsupported, match="needs the CPU feature fma"):
        emit(b.kernel("k", [y]), host)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("by", [-(2**31), -1, 0, 1, 31, 32, 2**31 - 1])
def test_constants_move_and_multiply_bits_as_any_numbers_do(elementwise, by, lanes):
    """Past the width a shift leaves nothing, which no constant within need be asked."""
    x = np.array([0, 1, -1, 12345, -(2**31), 2**31 - 1], np.int32)
    words = x.view(np.uint32)
    factor = const(by, int32, lanes)
    inside = 0 <= by < 32
    for op, function in (
        ("bitwise_left_shift", np.left_shift),
        ("shift_right_logical", np.right_shift),
    ):
        seen = elementwise(
            lambda b, v, op=op: b.let(op, v, factor), [x], int32, lanes, [int32]
        )
        moved = function(words, np.uint32(by)) if inside else np.zeros_like(words)
        assert seen.tolist() == moved.view(np.int32).tolist()
    seen = elementwise(
        lambda b, v: b.let("multiply_high", v, factor), [x], int32, lanes, [int32]
    )
    high = [(int(word) * (by % 2**32)) >> 32 for word in words]
    assert [value % 2**32 for value in seen.tolist()] == high


TRUTHS = {  # of the oracles that are not NumPy's functions
    "sigmoid": expit,
    "softplus": lambda x: -log_expit(-x),
    "erf_inv": erfinv,
    "erf": erf_of_scipy,
    "sinpi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 0),
    "cospi": lambda x: gpu_cases.turned(x.astype(np.longdouble), 1),
}


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
