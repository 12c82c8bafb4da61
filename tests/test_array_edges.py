"""The array namespace at its edges: no axes, no elements, no arrays, what is no number."""

# ruff: noqa: PLW0108 - the parameters of a lambda say which arrays it is given

import inspect

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


def test_a_method_of_numpys_is_refused_with_the_function_that_there_is():
    """The commonest slip; other names are refused as Python does."""
    with pytest.raises(AttributeError, match=r"'sum'; write xp\.sum"):
        kernel(lambda x: x.sum()).program(((3,), "float32"))
    with pytest.raises(AttributeError, match=r"attribute 'ravel'$"):
        kernel(lambda x: x.ravel()).program(((3,), "float32"))


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


ARRAYS = {
    "x": np.zeros((2, 4, 5)),
    "a": np.zeros((4, 3)),
    "f": np.zeros((3, 4), "float32"),
    "i": np.zeros((3, 4), "int64"),
    "b": np.zeros((3, 4), "bool"),
    "k": np.asarray(0),
}


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda f, i: f + i, "float32 and int64 do not mix"),
        (lambda i: i + 1.5, "mixes 1.5 of kind float with an array of int64"),
        (lambda i: i / i, "cast to a floating dtype first"),
        (lambda i: 1 / i, "cast to a floating dtype first"),
        (lambda b: b + b, "add of bool is not defined"),
        (lambda i: xp.sqrt(i), "sqrt of int64 is not defined"),
        (lambda f: xp.where(f, f, f), "compare first"),
        (lambda f: f & f, "of float32 is not defined, expected bool or int"),
        (lambda f: f[3], "index 3 .* expected -3 to 2"),
        (lambda f: list(f), "cannot be iterated"),
        (lambda f: f.__setitem__(0, 1), "elements .* are assigned.*write where"),
        (lambda f: len(f), r"len\(\) of a value of shape \(3, 4\).*write shape\[0\]"),
        (lambda f: float(f), "no number of Python's"),
        (lambda i: int(i), "no number of Python's"),
        (lambda f: complex(f), "no number of Python's"),
        (lambda f: np.asarray(f), "or NumPy's while the kernel is traced"),
        (lambda f: np.dot(f, f), "or NumPy's while the kernel is traced"),
        (lambda f: f[True], "indexed by a bool, expected ints"),
        (lambda f: 1 if f > 0 else 2, "use where"),
        (lambda i: xp.mean(i, axis=-1), "mean of int64"),
        (lambda f: xp.broadcast_to(f, (2, 5)), "cannot broadcast shape"),
        (lambda f: f + "x", "got a str"),
        (lambda f: f.astype("int4"), "int4 is not supported"),
        (lambda x: x @ x, r"matmul of shapes \(2, 4, 5\) and \(2, 4, 5\), expected"),
        (lambda x: (x > 0) @ (x[0].T > 0), "sums of products of bool are not defined"),
        (lambda x: x[:, 4], r"index 4 .* expected -4 to 3; index within axis 1"),
        (lambda x: x[0, 0, 0, 0], "4 indices of a value of shape"),
        (lambda x: x[0, 1.5], "indexed by a float"),
        (lambda x: xp.permute_dims(x, (0, 1)), "expected each of 0 to 2 once"),
        (lambda x: xp.moveaxis(x, (0, 0), (1, 2)), "as many positions as axes"),
        (lambda x: xp.concat([x, x[0]], axis=0), "their other axes must be equal"),
        (lambda x: xp.pad(x[0, 0], (1, 0)), r"such as \[\(1, 0\)\] for one"),
        (lambda x: xp.sum(x, axis=3), "expected -3 to 2"),
        (lambda x: xp.einsum("ij,jk", x), "with 1 arrays, expected letters for each"),
        (lambda x: xp.einsum("ij", x), "has 2 letters for an array of shape"),
        (lambda x: xp.einsum("abc,acb->a", x, x), "they must be equal"),
        (lambda x: xp.einsum("abc->ad", x), "that no array has"),
        (lambda x: xp.broadcast_arrays(x, x[0, :, :2]), "cannot broadcast shapes"),
        (lambda a, k: xp.sum(a, axis=-1)[0][k], r"1 indices of a value of shape \(\)"),
        (lambda a, k: a[[0], k, [1]], r"3 indices of a value of shape \(4, 3\)"),
        (lambda a: a[a[0]], r"indexed by float64 \(3,\), expected ints"),
        (lambda a, k: a[k : k + 2], r"take .* by start \+ arange\(count\)"),
        (lambda a: a[..., 0, ...], "indexed by 2 `...`, expected one"),
        (lambda a: xp.reshape(a, (5, -1)), r"cannot reshape \(4, 3\)"),
        (lambda a: xp.squeeze(a, 0), "squeeze of axis 0"),
        (lambda a: xp.expand_dims(a, 4), "axis 4 of shape"),
        (lambda k: k.T, "expected two axes"),
        (lambda a, k: a @ k, "matmul of shapes"),
        (lambda a: a @ 2.0, r"or multiply by numbers with \*"),
        (lambda a: 2.0 @ a, r"or multiply by numbers with \*"),
        (lambda a, k: xp.reshape(a, (0, 3))[k], "cannot reshape"),
        (lambda a: xp.reshape(a[:0], (-1, 0)), "any extent for -1"),
        (
            lambda k: xp.zeros((0, 3))[k],
            r"shape \(0, 3\) is indexed, but it has no rows",
        ),
        (lambda: xp.zeros((-1,)), r"full got the shape \(-1,\), expected"),
        (lambda: xp.zeros((2.5,)), r"full got the shape \(2.5,\)"),
        (lambda k: xp.arange(k), "arange got a Array, expected a Python number"),
        (lambda a: xp.reshape(a, "ab"), "reshape got the shape 'ab'"),
        (lambda a: xp.reshape(a, (-2, -6)), r"reshape got the shape \(-2, -6\)"),
        (lambda a: xp.broadcast_to(a, None), "broadcast_to got the shape None"),
        (lambda a: xp.full((2,), a), "full got a Array, expected a Python number"),
        (lambda a: xp.full_like(a, "1"), "full_like got a str, expected"),
        (lambda a: xp.full_like("a", 1), "full_like got a str, expected an array"),
        (lambda a: xp.sum("a"), "sum got a str, expected an array"),
        (lambda a: xp.reshape("a", 1), "reshape got a str, expected an array"),
        (lambda a: xp.transpose("a"), "transpose got a str, expected an array"),
        (lambda a: xp.squeeze("a"), "squeeze got a str, expected an array"),
        (lambda a: xp.expand_dims("a", 0), "expand_dims got a str, expected an arr"),
        (lambda a: xp.expand_dims(a, None), "axis None of shape"),
        (lambda f: xp.bitcast(f, "int64"), "bitcast of float32 to int64, expected"),
        (lambda f: xp.bitcast(f.astype("float16"), "int32"), "bitcast of float16"),
        (
            lambda f: xp.multiply_high(f.astype("int64"), 3),
            "of int64 is not defined, expected int32",
        ),
        (lambda a, f: a + f, r"\(4, 3\) and \(3, 4\)"),
        (lambda a: xp.cumulative_sum(a), "axis None of shape"),
        (lambda a: xp.sum(a, axis=(0, -2)), "name axes that there are"),
        (lambda a: xp.argmax(a, range(2)), "name an axis that there is"),
        (lambda i: [1, 2][i[0, 0]], "is no number of Python's"),
        (lambda k: range(k), "is no number of Python's"),
        (lambda k: "ab"[k:], "is no number of Python's"),
        (
            lambda: xp.asarray(np.arange(100.0)),
            "100.* values that change 99 times, at most 64",
        ),
        (lambda: xp.asarray([[1], [2, 3]]), "inhomogeneous shape"),
        (lambda: xp.asarray(["a"]), "dtype str.* is not supported"),
        (lambda a: None, "output out is of type NoneType"),
        (lambda a: {"out put": a}, "expected a Python name"),
        (lambda a: np.spacing(a), "numpy.spacing was called on an array of a kernel"),
    ],
)
def test_what_is_not_defined_is_one_sentence_with_the_next_step(write, words):
    """The error says what was mixed or asked of which shape, and what to do."""
    given = [ARRAYS[name] for name in inspect.signature(write).parameters]
    with pytest.raises(KernelError, match=words):
        kernel(write).program(*given)


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
