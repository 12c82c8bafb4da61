import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import BenchmarkError, Builder
from steelyard.declare.handles import Handle
from steelyard.declare.npy import header
from steelyard.prepare import inputs
from steelyard.prepare.buffers import Buffers
from steelyard.prepare.inputs import (
    CHUNK,
    collapsed,
    generate,
    recipe_hash,
)


def drawn(shape, dtype="float32", seed=0, **recipe):
    """Return the data of an input `x`."""
    return generate(Builder().input(shape, dtype, name="x", **recipe), seed)


def in_one_go(handle, seed):
    """Return what a handle holds, of one stream drawn whole by one thread."""
    recipe, dtype = dict(handle.recipe), np.dtype(handle.dtype)
    size, dist = handle.size, recipe["dist"]
    even = size + size % 2
    shape = handle.shape if dist in ("uniform", "integers") else (even,)
    text = f"{seed}/{handle.name}/{shape}/{handle.dtype}/{handle.recipe}"
    key = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), "u8")
    words = np.random.Philox(key=key).random_raw(even)
    if dist == "integers":
        low, span = recipe["low"], recipe["high"] - recipe["low"]
        return (low + (words[:size] % np.uint64(span)).astype("i8")).astype(dtype)
    if dtype == np.float64:
        uniform, one = (words >> np.uint64(11)) * 2.0**-53, np.float64(1)
    else:
        halves = words.view(np.uint32)[:even] >> np.uint32(8)
        uniform, one = halves * np.float32(2.0**-24), np.float32(1)
    if dist == "uniform":
        return uniform[:size].astype(dtype)
    radius = np.sqrt(-2 * one * np.log(one - uniform[0::2]))
    angle = type(one)(2 * np.pi) * uniform[1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()
    normal = normal.astype(type(one))[:size]
    return (np.exp(normal) if dist == "lognormal" else normal).astype(dtype)


@pytest.mark.parametrize(
    ("size", "dtype", "dist"),
    [
        *((n, "float32", "normal") for n in (1, 31, CHUNK + 1, 4 * CHUNK - 1)),
        *itertools.product(
            [5 * CHUNK + 3],
            ["float16", "bfloat16", "float32", "float64"],
            ["normal", "uniform", "lognormal"],
        ),
        *itertools.product([5 * CHUNK + 3], ["bool", "int8", "int64"], ["integers"]),
    ],
)
def test_an_input_drawn_in_parts_has_the_bits_of_one_drawn_whole(size, dtype, dist):
    """Whatever thread draws which part."""
    handle = Builder().input(size, dtype, dist=dist, name="x")
    assert generate(handle, 7).tobytes() == in_one_go(handle, 7).tobytes()


@pytest.mark.parametrize(("size", "period"), [(0, 3), (1, 3), (3, 3), (100, 7)])
def test_a_pattern_is_so_many_values_again_and_again(size, period):
    """Normal ones; seeds/001's data that moves for free."""
    x = drawn(size, dist="pattern", period=period)
    assert np.array_equal(x, np.resize(x[:period], size))
    assert len(set(x.tolist())) == min(size, period)


@pytest.mark.parametrize("period", [0, -1, 2.5])
def test_a_pattern_of_no_whole_number_of_values_is_refused(period):
    """Named as it was given."""
    with pytest.raises(
        BenchmarkError, match=f"every {period} values; expected a whole"
    ):
        drawn(8, dist="pattern", period=period)


@given(
    seed=st.integers(0, 2**63),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    dist=st.sampled_from(["normal", "uniform", "lognormal", "integers"]),
)
def test_a_seed_gives_the_same_bits_again(seed, shape, dtype, dist):
    """In shape and dtype as declared, for every distribution."""
    handle = Builder().input(shape, dtype, dist=dist, name="x")
    data = generate(handle, seed)
    inputs._KEPT.clear()
    again = generate(handle, seed)
    assert (data.shape, data.dtype) == (shape, dtype)
    assert data.tobytes() == again.tobytes()
    assert np.isfinite(data).all()


def test_inputs_of_one_case_are_drawn_once(monkeypatch):
    """However many there are: five are asked for in turn by case after case."""
    drawn = []
    monkeypatch.setattr(inputs, "draw", lambda h, _: drawn.append(h) or np.ones(8))
    monkeypatch.setattr(inputs, "_KEPT", {})
    monkeypatch.setattr(inputs, "KEPT", 5 * 64)
    handles = [Handle(name, "input", (8,), "float64") for name in "abcdef"]
    for handle in handles[:5] * 3:
        generate(handle, 0)
    assert drawn == handles[:5]
    generate(handles[5], 0)  # takes the place of what nobody asked for the longest
    generate(handles[1], 0)
    assert drawn == handles
    generate(handles[0], 0)
    assert drawn == [*handles, handles[0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_have_the_moments_of_the_normal_distribution(dtype):
    """Mean, variance, skewness and kurtosis within five standard errors."""
    n = 1_000_000
    x = drawn(n, dtype).astype(np.float64)
    moments = [np.mean(x), np.mean(x**2), np.mean(x**3), np.mean(x**4)]
    deviations = [1, math.sqrt(2), math.sqrt(15), math.sqrt(96)]
    for moment, wanted, deviation in zip(
        moments, [0, 1, 0, 3], deviations, strict=True
    ):
        assert abs(moment - wanted) < 5 * deviation / math.sqrt(n)
    # Neighbours are the two halves of one transform, and must not know of each other.
    assert abs(np.corrcoef(x[0::2], x[1::2])[0, 1]) < 5 / math.sqrt(n / 2)
    assert abs(np.corrcoef(x[0::2] ** 2, x[1::2] ** 2)[0, 1]) < 5 / math.sqrt(n / 2)


def test_parameters_shift_and_scale():
    """Of normals, log-normals and uniforms."""
    n = 200_000
    x = drawn(n, "float64", dist="normal", mean=3.0, deviation=0.5)
    assert abs(x.mean() - 3) < 5 * 0.5 / math.sqrt(n)
    assert abs(x.std() - 0.5) < 5 * 0.5 / math.sqrt(2 * n)
    logs = np.log(drawn(n, "float64", dist="lognormal", mean=-1.0, deviation=2.0))
    assert abs(logs.mean() + 1) < 5 * 2 / math.sqrt(n)
    u = drawn(n, "float64", dist="uniform", low=-2.0, high=6.0)
    assert -2 <= u.min() < u.max() < 6
    assert abs(u.mean() - 2) < 5 * 8 / math.sqrt(12 * n)
    assert abs(u.var() - 64 / 12) < 0.05


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16"])
def test_whole_numbers_are_spread_evenly_over_their_range(dtype):
    """High is left out, low is in; by default 0 to 99."""
    x = drawn(100_000, dtype, dist="integers")
    values, counts = np.unique(x.astype(np.int64), return_counts=True)
    assert values.tolist() == list(range(100))
    assert np.sum((counts - 1000) ** 2 / 1000) < 180  # 99 degrees: p < 1e-5


def test_whole_numbers_may_span_the_whole_range():
    """Of their dtype, both ends included."""
    x = drawn(10_000, "int8", low=-128, high=128)
    assert (x.min(), x.max()) == (-128, 127)
    wide = drawn(100, "int64", low=0, high=2**63 - 1)
    assert wide.min() >= 0
    assert wide.max() > 2**60


@pytest.mark.parametrize(
    ("dtype", "recipe", "said"),
    [
        ("int8", {"low": 0, "high": 300}, "cannot be had in int8"),
        ("uint8", {"low": -1}, "cannot be had in uint8"),
        ("int64", {"low": 5, "high": 5}, "Change low= or high="),
        ("int64", {"low": -(2**63), "high": 2**63}, "cannot be had in int64"),
        ("bool", {"high": 3}, "cannot be had in bool"),
        ("int32", {"dist": "normal"}, "whole numbers come from dist='integers'"),
        ("bool", {"dist": "uniform"}, "whole numbers come from dist='integers'"),
    ],
)
def test_a_distribution_that_does_not_fit_its_dtype_is_refused(dtype, recipe, said):
    """Rather than wrapped or cut."""
    with pytest.raises(BenchmarkError) as caught:
        drawn(3, dtype, **recipe)
    assert said in str(caught.value)


def test_constants_must_be_asked_for_by_name():
    """And then are what was asked for."""
    assert drawn((2, 2), dist="constant", value=1.5).tolist() == [[1.5] * 2] * 2


def test_generated_data_cannot_be_written_to():
    """The last few are kept for cases that differ in impl."""
    with pytest.raises(ValueError, match="read-only"):
        drawn(3)[0] = 1


def test_a_file_is_read_as_it_is(tmp_path):
    """Whatever its byte order and its order in memory."""
    data = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    np.save(tmp_path / "x.npy", data)
    handle = Builder().load(tmp_path / "x.npy", name="x")
    assert header(tmp_path / "x.npy") == ((2, 3), ">i4")
    assert generate(handle, 0).tolist() == data.tolist()
    assert generate(handle, 0).dtype.isnative


def test_a_file_of_one_repeated_value_is_refused(tmp_path):
    """Unless it is said to be meant; one element alone repeats nothing."""
    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    np.save(tmp_path / "one.npy", np.zeros(1))
    with pytest.raises(BenchmarkError, match="repeats one value"):
        generate(Builder().load(tmp_path / "x.npy", name="x"), 0)
    meant = Builder().load(tmp_path / "x.npy", constant=True, name="x")
    assert not generate(meant, 0).any()
    assert generate(Builder().load(tmp_path / "one.npy", name="x"), 0).size == 1


def test_a_file_without_a_number_repeats_one_value(tmp_path):
    """NaN differs from itself, and is no data all the same."""
    np.save(tmp_path / "x.npy", np.full(3, np.nan))
    handle = Builder().load(tmp_path / "x.npy", name="x")
    with pytest.raises(BenchmarkError, match="repeats one value"):
        Buffers((handle,), 0, {})


def test_a_file_that_changed_its_shape_is_refused(tmp_path):
    """As is one given on the command line for an input of another shape or dtype."""
    np.save(tmp_path / "x.npy", np.arange(3.0))
    recipe = (("file", str(tmp_path / "x.npy")), ("constant", False))
    for shape, dtype in [((4,), "float64"), ((3,), "float32")]:
        handle = Handle("x", "input", shape, dtype, recipe)
        with pytest.raises(BenchmarkError, match=r"holds float64 \(3,\); input x is"):
            generate(handle, 0)


@pytest.mark.parametrize(
    ("data", "is_collapsed"),
    [
        ([0.0, 0, 0, 1], True),
        ([0.0, 0, 2, 1], False),
        ([1.0, 1, 1, 1], True),
        ([np.nan, np.inf, 1e-40, 1], True),
        ([np.nan] * 4, True),
        ([1.0, 2, 3, np.nan], False),
        ([0.0], False),
        ([], False),
    ],
)
def test_data_that_users_do_not_have_is_seen(data, is_collapsed):
    """Mostly zeros, denormals, infinities or NaN, or all of one value."""
    assert collapsed(np.array(data, np.float32)) is is_collapsed


def test_whole_numbers_do_not_collapse():
    """A mask of zeros may be meant."""
    assert not collapsed(np.zeros(9, np.int32))


def test_the_hash_of_a_recipe_knows_everything_that_decides_the_data():
    """Seed, names, shapes, dtypes, distributions; it is the same in every process."""
    handles = [Builder().input(n, d, name="x") for n in (3, 4) for d in ("f4", "f8")]
    hashes = {recipe_hash((handle,), seed) for handle in handles for seed in (0, 1)}
    assert len(hashes) == 8
    x = Handle("x", "input", (3,), "float32", (("dist", "normal"),))
    assert recipe_hash((x,), 0) == "f3ecb64fd322c707"
