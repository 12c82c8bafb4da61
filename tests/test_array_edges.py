"""The array namespace at its edges: no axes, no elements, no arrays, what is no number."""

import numpy as np
import pytest
from pairwise import pairs

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, kernel
from steelyard_kernels.errors import KernelError

REDUCTIONS = ("sum", "prod", "max", "min", "mean", "var", "std")
pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of|invalid value")


def same(seen, want):
    """Hold values, shape and dtype against NumPy's."""
    assert (seen.dtype, seen.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(seen, want, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "shape", "keepdims"),
    pairs(
        [*REDUCTIONS, "any", "all", "count_nonzero"],
        [(), (3,), (0, 2), (2, 1, 3)],
        [False, True],
    ),
    ids=str,
)
def test_a_reduction_over_no_axes_is_one_of_each_value(name, shape, keepdims):
    """As in NumPy and the array API; integers are widened all the same."""
    x = np.random.default_rng(0).normal(0, 2, shape)
    of_ints = name not in {"mean", "var", "std"}
    for values in (x, x.astype("int8"))[: 1 + of_ints]:
        reduce = kernel(lambda x: getattr(xp, name)(x, axis=(), keepdims=keepdims))
        same(reduce(values), np.asarray(getattr(np, name)(values, axis=())))


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((2, 0), 1), ((0, 2), 0)])
def test_the_mean_of_nothing_is_nan(name, shape, axis):
    """The array API says so, of variances too; without results there is none."""
    x = np.zeros(shape)
    same(kernel(lambda x: getattr(xp, name)(x, axis))(x), getattr(np, name)(x, axis))
    empty = kernel(lambda x: getattr(xp, name)(x, axis=1))(np.zeros((0, 3)))
    assert empty.shape == (0,)


@pytest.mark.parametrize("correction", [3, 4.5])
def test_a_variance_of_too_few_values_is_nan(correction):
    """Where as much as there are, or more, is taken off their number."""
    made = kernel(lambda x: xp.var(x, axis=1, correction=correction))
    assert np.isnan(made(np.ones((2, 3)))).tolist() == [True, True]


def test_an_axis_that_is_reduced_twice_is_refused():
    """And the place of an extremum is along one axis."""
    for reduce in (lambda x: xp.sum(x, axis=(0, -2)), lambda x: xp.argmax(x, range(2))):
        with pytest.raises(KernelError, match=r"name a.* that there"):
            kernel(reduce)(np.ones((2, 3)))


def test_a_value_without_axes_is_indexed_by_dots():
    """`x[...]` and `x[()]` are x."""
    made = kernel(lambda x: (x[...], x[()], x[..., None]))
    assert [each.tolist() for each in made(np.asarray(3.0))] == [3.0, 3.0, [3.0]]


LEFT = []
"""Values that a trace has left behind."""


@pytest.mark.parametrize(
    "use",
    [
        lambda x, old: x + old,
        lambda x, old: xp.where(old > 0, x, 0.0),
        lambda x, old: xp.sum(old) + x,
        lambda x, old: xp.concat([x, old]),
        lambda x, old: x @ old,
        lambda x, old: x[old.astype("int32")],
        lambda x, old: xp.fori_loop(0, 2, lambda i, c: c * old, x),
        lambda x, old: old,
    ],
)
def test_a_value_of_another_trace_is_refused(use):
    """Its nodes would be taken for others: `x + old` was x + x."""
    kernel(lambda x: [LEFT.append(x), x][1])(np.ones(3))
    with pytest.raises(KernelError, match=r"of this (trace|kernel)"):
        kernel(lambda x: use(x, LEFT[-1]))(np.ones(3))


@pytest.mark.parametrize("use", [lambda x: [1, 2][x], range, lambda x: "ab"[x:]])
def test_a_value_is_no_index_of_pythons(use):
    """Of lists, ranges and strings: the error says so."""
    with pytest.raises(KernelError, match="is no number of Python's"):
        kernel(lambda x: [use(x[0]), x][1])(np.ones(3, int))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: xp.concat([]),
        lambda x: xp.stack(()),
        lambda x: xp.concat(None),
        lambda x: xp.broadcast_arrays(),
        lambda x: xp.einsum(3, x),
        lambda x: xp.tensordot(x, x, axes=((0,), (0, 1))),
        lambda x: xp.tensordot(x, x, axes=2**70),
        lambda x: xp.roll(x, 1.5),
        lambda x: xp.roll(x, (1, 2, 3), axis=(0, 1)),
        lambda x: xp.tile(x, 1.5),
        lambda x: xp.repeat(x, [1, 2]),
        lambda x: xp.permute_dims(x, None),
        lambda x: xp.squeeze(x, 1.5),
        lambda x: xp.diff(x, n=-1),
        lambda x: xp.topk(x, None),
        lambda x: xp.tril(x, k="a"),
        lambda x: xp.diagonal(x[0]),
        lambda x: xp.diagonal(x, offset=None),
        lambda x: xp.linspace("a", 1, 3),
        lambda x: xp.meshgrid(None),
        lambda x: xp.bitcast("a", "int32"),
        lambda x: xp.astype(None, "int32"),
        lambda x: xp.conv2d(x[None, None], x[None, None], stride=None),
        lambda x: xp.conv1d(x[None], x[:, None], groups="a"),
        lambda x: xp.var(x, correction="a"),
        lambda x: x[::0],
    ],
)
def test_what_a_function_cannot_take_is_one_sentence(use):
    """Not an error of Python's from inside of the compiler."""
    with pytest.raises(KernelError, match=r"^<lambda>: [^\n]*\.$"):
        kernel(use)(np.ones((2, 2)))


def test_numbers_of_numpys_are_numbers():
    """Where the namespace takes Python's, of their kinds."""
    n, f = np.int64(3), np.float32(0.5)
    made = kernel(
        lambda: (xp.arange(n), xp.full((2,), n), xp.full(2, f), xp.linspace(f, n, 2))
    )
    want = [np.arange(3), np.full(2, 3), np.full(2, f), np.float32([0.5, 3])]
    for seen, each in zip(made(), want, strict=True):
        same(seen, each)


@pytest.mark.parametrize(
    "make",
    [
        lambda: xp.arange(127, 130, dtype="int8"),
        lambda: xp.arange(1, -5, -2, dtype="uint16"),
        lambda: xp.arange(2**31 - 1, 2**31 + 1, dtype="int32"),
        lambda: xp.asarray([1, 300], dtype="int8"),
        lambda: xp.asarray(-1, dtype="uint8"),
    ],
)
def test_integers_that_a_dtype_has_not_are_refused(make):
    """As of NumPy, which wraps those of arrays alone."""
    with pytest.raises(OverflowError, match=r"out of bounds for u?int"):
        kernel(make)()
    fits = kernel(
        lambda: (xp.arange(126, 128, dtype="int8"), xp.arange(999, 999, dtype="int8"))
    )
    assert [each.tolist() for each in fits()] == [[126, 127], []]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float8_e5m2", "float16"])
@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 5])
def test_a_diagonal_is_numpys(dtype, offset):
    """Of any dtype, and of matrices that have none there."""
    x = np.random.default_rng(1).integers(0, 2, (2, 3, 5))
    x = dtypes.rounded(x.astype("float64"), dtypes.of(dtype)) if "f" in dtype else x
    x = x if "f" in dtype else x.astype(dtype)
    seen = kernel(lambda x: xp.diagonal(x, offset=offset))(x)
    want = np.diagonal(x, offset, -2, -1)
    assert (seen.dtype, seen.tolist()) == (want.dtype, want.tolist())


def test_differences_end_where_there_are_none():
    """However many times they are taken."""
    assert kernel(lambda x: xp.diff(x, n=2**70))(np.ones(3)).shape == (0,)


@pytest.mark.parametrize("outside", [3, -4])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, i: x[i],
        lambda x, i: x[i.tolist()],
        lambda x, i: x[None, ..., i, 0],
        lambda x, i: x[1, i[:, None]],
        lambda x, i: xp.take(x, i, axis=0),
        lambda x, i: xp.take_along_axis(x, i[:, None], axis=0),
    ],
)
def test_indices_that_are_known_are_within_their_axis(use, outside):
    """As NumPy has it; computed ones are held at its ends."""
    x, inside = np.arange(9.0).reshape(3, 3), np.array([0, -3, 2])
    kernel(lambda x: use(x, inside))(x)
    with pytest.raises(KernelError, match=f"index {outside} of a value .* axis [01]"):
        kernel(lambda x: use(x, np.array([0, outside])))(x)
    ends = kernel(lambda x, i: x[i])(x, np.array([outside]))
    assert ends[0].tolist() == x[2 if outside > 0 else 0].tolist()


@pytest.mark.parametrize("count", [7, 32, 300_000])
def test_a_running_product_takes_in_one_after_the_other(count):
    """Products of some elements are infinite, of all up to any none."""
    x = np.full(count, 1e200)
    x[:3] = 1e-300, 1e200, 1e-100
    x[4::2] = 1e-200
    run = kernel(lambda x: xp.cumulative_prod(x, axis=0))
    same(run(x), np.cumprod(x))
    x[0] = 0.0
    same(run(x), np.cumprod(x))
