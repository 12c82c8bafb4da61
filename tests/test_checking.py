import gc
import math
import re
import weakref

import numpy as np
import pytest
from fakes import launching, prepared
from hypothesis import given
from hypothesis import strategies as st

from steelyard import BenchmarkError, Builder
from steelyard.prepare import checking
from steelyard.prepare.buffers import Buffers
from steelyard.prepare.checking import (
    ULPS,
    Expectation,
    _some_rows,
    replay,
    root_mean_square,
    wrong_on_new_data,
)


def expected(body, seed=0):
    """Return expectation, buffers and a function that launches, of a benchmark."""
    description, buffers = prepared(body, seed)
    expectation = Expectation(description, buffers, seed)
    call = description.call
    args = [buffers.resolve(value) for value in call.args]
    out = {} if call.out is None else {"out": buffers.resolve(call.out)}
    return expectation, buffers, lambda: call.target(*args, **out)


def negate(b, *, target=np.negative, shape=(300, 5), dtype="float32", **how):
    """Negate an array, or let another target and reference do so."""
    reference, tolerance = how.pop("reference", np.negative), how
    x = b.input(shape, dtype)
    y = b.output(shape, dtype)
    b.check(reference, x, **tolerance)
    return b.launch(target, x, out=y)


def trouble(**how):
    """Return what is said of one launch of `negate`, and nothing of a right one."""
    expectation, buffers, launch = expected(lambda b: negate(b, **how))
    launch()
    try:
        expectation.check_all(buffers)
    except BenchmarkError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7,), (300, 5)])
def test_a_right_result_passes_whole_and_in_rows(shape):
    """Of no elements, of one, and of more rows than are kept."""
    expectation, buffers, launch = expected(lambda b: negate(b, shape=shape))
    launch()
    expectation.check_all(buffers)
    for _ in range(2):
        buffers.poison()
        launch()
        expectation.check_rows(buffers)


def full_of(value):
    """Return a target that writes one value, and a reference that expects another."""
    return lambda x, out=None: (
        np.full_like(x, value) if out is None else out.fill(value)
    )


def times(factor):
    """Return a target or reference that multiplies in float64."""

    def target(x, out=None):
        with np.errstate(over="ignore"):
            made = x.astype(np.float64) * factor
            return made if out is None else np.copyto(out, made, casting="unsafe")

    return target


def squares(ulps):
    """Return a target that is off by so many units of the last place of each value."""
    step = 1 + ulps * float(np.finfo(np.float32).eps)
    return lambda x, out: np.multiply(1e4 * (1 + x * x), step, out=out)


def all_but_one(x, out):
    """Negate, and spoil the last element."""
    np.negative(x, out=out)
    out[299, 4] = 7


OFF = {"target": lambda x, out: np.add(-x, 1e-3, out=out), "rtol": 0.0}
LARGE = {"reference": lambda x: 1e4 * (1 + x * x)}


def logarithm(x, out=None):
    """Take one of which about half is no number."""
    with np.errstate(invalid="ignore"):
        return np.log(x, out=out)


NAN, INFINITE = {"reference": logarithm}, {"reference": full_of(np.inf)}
HALF, DOUBLE = {"dtype": "float16"}, {"dtype": "float64"}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        # With its place, both values and the tolerance.
        (
            {"target": all_but_one},
            r"in 1 of 1500 elements: at \[299, 4\] it holds 7, expected .* give b\.check",
        ),
        # What is no number is right only where the reference has it too.
        ({"target": full_of(np.nan)}, "it holds nan"),
        (NAN, "expected nan"),
        (NAN | {"target": logarithm}, ""),
        # Infinities must agree in sign; an overflow the reference has not is wrong.
        (INFINITE | {"target": full_of(np.inf)}, ""),
        (INFINITE | {"target": full_of(-np.inf)}, "it holds -inf, expected inf"),
        (INFINITE | {"target": full_of(3e38)}, "expected inf"),
        # Far above what its neighbours' mean square allows.
        (LARGE | {"target": squares(ULPS - 1)}, ""),
        (LARGE | {"target": squares(3 * ULPS)}, "y is wrong"),
        # The square of 1e200 overflowed, and any result was within infinity.
        (
            DOUBLE | {"target": times(1.1e200), "reference": times(1e200)},
            "y is wrong in 1500 of 1500",
        ),
        # To infinity or to a denormal, in half precision.
        *(
            (HALF | {"target": times(f), "reference": times(f)}, "")
            for f in (1e6, 1e-8)
        ),
        # Of a dtype that is none of NumPy's own.
        ({"dtype": "bfloat16"}, ""),
        ({"dtype": "bfloat16", "target": all_but_one}, "in 1 of 1500 elements"),
        # Relative to the value or absolute; none at all asks for equality.
        (OFF | {"atol": 2e-3}, ""),
        (OFF | {"atol": 0.0}, r"within 0\."),
    ],
)
def test_a_result_is_right_within_what_its_dtype_can_tell(how, says):
    """By default within some units of the last place of each value."""
    found = trouble(**how)
    assert re.search(says, found, re.DOTALL) if says else found == ""


def test_a_timed_launch_is_compared_in_the_kept_rows():
    """Of 3000 rows 820 are kept: a result that is wrong in half of them is seen."""
    expectation, buffers, launch = expected(lambda b: negate(b, shape=(3000, 5)))
    launch()
    expectation.check_all(buffers)
    buffers.arrays["y"][::2] += 1
    with pytest.raises(BenchmarkError, match="y is wrong in"):
        expectation.check_rows(buffers)


@pytest.mark.parametrize(
    ("dtype", "recipe"),
    [("bool", {}), ("int32", {}), ("int64", {"low": 2**61, "high": 2**62})],
)
def test_whole_numbers_must_be_equal(dtype, recipe):
    """They have no last place to be off by; float64 took neighbours for equal."""

    def body(b):
        x = b.input(50, dtype, **recipe)
        y = b.output(50, dtype)
        b.check(lambda x: x, x)
        return b.launch(lambda x, out: np.copyto(out, x), x, out=y)

    expectation, buffers, launch = expected(body)
    launch()
    expectation.check_all(buffers)
    buffers.arrays["y"][7] ^= 1
    with pytest.raises(BenchmarkError, match=r"wrong in 1 of 50 elements: at \[7\]"):
        expectation.check_rows(buffers)


def test_outputs_then_updates_are_compared_in_order():
    """A reference of several results gives a tuple; each is checked."""

    def body(b):
        u = b.inout(8, "float64")
        x = b.input(8, "float64")
        y = b.output(8, "float64")
        z = b.output((), "float64")
        b.check(lambda u, x: (u + x, x.sum(), 2 * u), u, x)

        def target(u, x, y, z):
            np.add(u, x, out=y)
            z[...] = x.sum()
            u *= 2

        return b.launch(target, u, x, y, z)

    expectation, buffers, launch = expected(body)
    launch()
    expectation.check_all(buffers)
    buffers.restore()
    launch()
    expectation.check_rows(buffers)
    launch()
    with pytest.raises(BenchmarkError, match="y is wrong"):
        expectation.check_rows(buffers)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda _x: 1 / 0, "its reference raised ZeroDivisionError: division by zero"),
        (
            lambda x: x[:, :2],
            "its reference gave shapes [(300, 2)]; expected [(300, 5)]",
        ),
        (lambda x: (x, x), "gave shapes [(300, 5), (300, 5)]"),
        (lambda _x: None, "gave shapes [()]"),
        (lambda _x: "no", "its reference raised ValueError"),
        (lambda _x: [[1, 2], [3]], "its reference gave shapes [(2,), (1,)]"),
        (lambda x, _y: x, "its reference raised TypeError"),
        (
            lambda x: -x + 1j,
            "raised TypeError: expected real numbers, it returned comp",
        ),
        (lambda x: x * np.nan, "its reference gave nothing but NaN"),
        (lambda _x: exec("raise SystemExit"), "its reference raised SystemExit"),
    ],
)
def test_a_reference_that_fails_is_told_apart_from_the_work(reference, said):
    """Whatever it raises or gives."""
    with pytest.raises(BenchmarkError) as caught:
        expected(lambda b: negate(b, reference=reference))
    assert said in str(caught.value)


def test_a_reference_gets_copies_in_float64():
    """It may do with them as it likes; lists and other arguments arrive too."""
    seen = []

    def reference(arrays, scale, *, count=2):
        seen.append((arrays[0].dtype, type(arrays), scale, count))
        arrays[0][...] = 0
        return arrays[1] * 0 + scale

    def body(b):
        x = b.input(3, "float16")
        k = b.input(3, "int32")
        y = b.output(3)
        b.check(reference, [x, k], 2.5)
        return b.launch(lambda out: out.fill(2.5), out=y)

    expectation, buffers, launch = expected(body)
    launch()
    expectation.check_all(buffers)
    assert seen == [(np.float64, list, 2.5, 2)]
    assert buffers.arrays["x"].all()


def test_the_same_question_is_asked_once_and_keeps_no_buffers():
    """Cases that differ in impl share a reference's answer, not each other's memory."""
    asked = []

    def reference(x):
        asked.append(1)
        return -x

    def body(b):
        return negate(b, reference=reference)

    _, first, _ = expected(body)
    _, second, _ = expected(body)
    assert len(asked) == 1
    expected(body, seed=1)
    assert len(asked) == 2
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    second.check_zones()


def test_a_case_without_a_reference_still_has_its_buffers_checked():
    """Zones, inputs, and that anything was written at all."""
    expectation, buffers, launch = expected(launching(lambda *_, **__: None))
    launch()
    for check in (expectation.check_all, expectation.check_rows):
        with pytest.raises(BenchmarkError, match="wrote nothing to y"):
            check(buffers)


def test_timed_updates_are_compared_with_the_same_untimed():
    """A launch that returns before its work is done leaves something else."""
    b = Builder()
    u = b.inout(5, "float64")
    buffers = Buffers((u,), 0, {})
    array = buffers.arrays["u"]

    def launch(count):
        for _ in range(count):
            np.multiply(array, 1.5, out=array)

    launch(3)
    replay(launch, buffers, [u], 3)
    buffers.restore()
    launch(2)
    with pytest.raises(BenchmarkError, match="3 timed launches left another u"):
        replay(launch, buffers, [u], 3)
    array[0] = np.nan
    replay(lambda _: array.__setitem__(0, np.nan), buffers, [], 1)


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((), 0),
        ((0, 3), 0),
        ((5000,), 4096),
        ((300, 5), 300),
        ((3000, 5), 820),
        ((100, 4096), 64),
        ((100, 65536), 32),
        ((3, 1 << 22), 1),
    ],
)
def test_so_many_rows_are_kept(shape, kept):
    """64 or 4096 elements at least; of wide rows fewer, but one."""
    rows = _some_rows(np.broadcast_to(1.0, shape), np.random.default_rng(0))
    assert len(set(rows.indices.tolist())) == kept
    assert rows.fits(shape)


def draws(count, *shapes):
    """Yield arrays of these shapes as often."""
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield [draw.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("work", "shapes"),
    [
        (np.matmul, [(64, 128), (128, 64)]),
        (np.matmul, [(64, 192), (192, 64)]),
        (lambda x: np.cumsum(x)[-1:], [(1000,)]),
        (np.dot, [(1000,), (1000,)]),
        (lambda x: np.mean(x, dtype=np.float32), [(10_000,)]),
    ],
)
def test_sums_that_are_right_on_one_draw_are_right_on_any(work, shapes):
    """Their errors are those of what they add up, near zero too; a lost term is more."""
    every = [
        (work(*data), np.asarray(work(*(x.astype(np.float64) for x in data))), data)
        for data in draws(100, *shapes)
    ]
    usual = [float(np.median([root_mean_square(right) for _, right, _ in every]))]

    def wrong(got, wanted):
        return wrong_on_new_data({"y": np.asarray(got)}, [wanted], None, None, usual)

    assert not [said for got, wanted, _ in every if (said := wrong(got, wanted))]
    for _, wanted, (x, *more) in every:
        x.reshape(-1)[0] = 0
        assert wrong(work(x, *more), wanted).startswith("on new data, over an older")


EDGES = [0.0, -0.0, 1.0, 1.5, -3.0, 65504.0, 1e30, 1e308, math.inf, -math.inf, math.nan]


@given(
    pairs=st.lists(st.tuples(*2 * [st.sampled_from(EDGES) | st.floats()]), min_size=1),
    dtype=st.sampled_from(["float16", "float32", "float64", "int32", "uint64", "bool"]),
    rtol=st.sampled_from([0.0, 2.0**-10, 0.5, 1.0, 3.0]),
    atol=st.sampled_from([0.0, 2.0**-10, 0.5, 1e300]),
)
def test_what_is_surely_near_is_close(pairs, dtype, rtol, atol):
    """A quick look finds the same places as the rule alone, whatever the numbers."""
    with np.errstate(all="ignore"):
        got, wanted = np.array(pairs, np.float64).T
        got = got.astype(dtype)
        wanted = wanted if got.dtype.kind == "f" else wanted.astype(dtype)
    places = np.flatnonzero(~checking._close(got, wanted, rtol, atol))
    assert checking._places(got, wanted, rtol, atol).tolist() == places.tolist()


@given(
    seed=st.integers(0, 999),
    off=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, math.nan]),
    rtol=st.sampled_from([None, 0.0, 1e-5]),
    atol=st.sampled_from([None, 0.0, 1e-5]),
)
def test_what_is_surely_right_on_new_data_is_not_wrong(seed, off, rtol, atol):
    """A quick look at all problems passes none that a close one at each refuses."""
    draw = np.random.default_rng(seed)
    wanted = draw.standard_normal((5, 7))
    got = wanted.astype(np.float32)
    got[4, 3] += off
    typical = float(np.median([checking.root_mean_square(one) for one in wanted]))
    sure = checking.surely_right_on_new_data(got, wanted, (rtol, atol), typical)
    said = [
        checking.wrong_on_new_data({"y": one}, [two], rtol, atol, [typical])
        for one, two in zip(got, wanted, strict=True)
    ]
    assert not (sure and any(said))
    if rtol is None is atol and off < 1e-6:
        assert sure
    if off > 1e-4 or math.isnan(off):
        assert not sure


def test_the_worst_element_is_named_and_what_it_may_be_off():
    """It says which tolerance the work would meet."""
    got, wanted = np.array([1, 2, 3, 4], np.float32), np.array([1, 2.05, 4, np.nan])
    how = {"rtol": 0, "atol": 0.025}
    said = wrong_on_new_data({"y": got}, [wanted], typical=[1.0], **how)
    assert (
        "wrong in 2 of 4 elements: at [3] it holds 4, expected nan within 0.1." in said
    )
    said = wrong_on_new_data({"y": got[:3]}, [wanted[:3]], typical=[1.0], **how)
    assert "wrong in 1 of 3 elements: at [2] it holds 3, expected 4 within 0.1." in said
    near = {"y": np.array([0.5, 1.0])}, [np.array([0.5 + 2**-40, 1.0])]
    said = wrong_on_new_data(*near, None, None, typical=[1.0])
    assert "holds 0.5, expected 0.50000000000090949 within 1.1e-14." in said
