"""The Python array API standard's names, 2024.12: which there are, and why others not."""

from inspect import Parameter, Signature, signature
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steelyard_kernels import array as xp
from steelyard_kernels import kernel
from steelyard_kernels.dtypes import ALL, STORED
from steelyard_kernels.errors import KernelError
from steelyard_kernels.grad import grad

DOCS = Path(__file__).parents[1] / "docs" / "array-api.md"
BOTH = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
STANDARD = {
    "creation": {
        "start, /, stop=None, step=1, *, dtype=None, device=None": "arange",
        "obj, /, *, dtype=None, device=None, copy=None": "asarray",
        "shape, *, dtype=None, device=None": "empty ones zeros",
        "x, /, *, dtype=None, device=None": "empty_like ones_like zeros_like",
        "n_rows, n_cols=None, /, *, k=0, dtype=None, device=None": "eye",
        "x, /, *, device=None, copy=None": "from_dlpack",
        "shape, fill_value, *, dtype=None, device=None": "full",
        "x, /, fill_value, *, dtype=None, device=None": "full_like",
        "start, stop, /, num, *, dtype=None, device=None, endpoint=True": "linspace",
        "*arrays, indexing='xy'": "meshgrid",
        "x, /, *, k=0": "tril triu",
    },
    "data types": {
        "x, dtype, /, *, copy=True, device=None": "astype",
        "*arrays": "broadcast_arrays",
        "x, /, shape": "broadcast_to",
        "from_, to, /": "can_cast",
        "type, /": "finfo iinfo",
        "dtype, kind": "isdtype",
        "*arrays_and_dtypes": "result_type",
    },
    "dtypes": """bool complex64 complex128 float32 float64 int8 int16 int32 int64 uint8
        uint16 uint32 uint64""",
    "elementwise": {
        "x, /": """abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh
            exp expm1 floor imag isfinite isinf isnan log log10 log1p log2 logical_not
            negative positive real reciprocal round sign signbit sin sinh sqrt square tan
            tanh trunc""",
        "x1, x2, /": """add atan2 bitwise_and bitwise_left_shift bitwise_or
            bitwise_right_shift bitwise_xor copysign divide equal floor_divide greater
            greater_equal hypot less less_equal logaddexp logical_and logical_or
            logical_xor maximum minimum multiply nextafter not_equal pow remainder
            subtract""",
        "x, /, min=None, max=None": "clip",
    },
    "indexing": {
        "x, indices, /, *, axis=None": "take",
        "x, indices, /, *, axis=-1": "take_along_axis",
    },
    "inspection": {"": "__array_namespace_info__"},
    "linear algebra": {
        "x1, x2, /": "matmul",
        "x, /": "matrix_transpose",
        "x1, x2, /, *, axes=2": "tensordot",
        "x1, x2, /, *, axis=-1": "vecdot",
    },
    "linear algebra (extension)": {
        "x, /, *, upper=False": "cholesky",
        "x1, x2, /, *, axis=-1": "cross",
        "x, /": "det eigh eigvalsh inv slogdet svdvals",
        "x, /, *, offset=0": "diagonal",
        "x, /, *, keepdims=False, ord='fro'": "matrix_norm",
        "x, n, /": "matrix_power",
        "x, /, *, rtol=None": "matrix_rank pinv",
        "x1, x2, /": "outer solve",
        "x, /, *, mode='reduced'": "qr",
        "x, /, *, full_matrices=True": "svd",
        "x, /, *, offset=0, dtype=None": "trace",
        "x, /, *, axis=None, keepdims=False, ord=2": "vector_norm",
    },
    "manipulation": {
        "arrays, /, *, axis=0": "concat stack",
        "x, /, axis": "expand_dims squeeze",
        "x, /, *, axis=None": "flip",
        "x, source, destination, /": "moveaxis",
        "x, /, axes": "permute_dims",
        "x, repeats, /, *, axis=None": "repeat",
        "x, /, shape, *, copy=None": "reshape",
        "x, /, shift, *, axis=None": "roll",
        "x, repetitions, /": "tile",
        "x, /, *, axis=0": "unstack",
    },
    "searching and sorting": {
        "x, /, *, axis=None, keepdims=False": "argmax argmin count_nonzero",
        "x, /, *, axis=-1, descending=False, stable=True": "argsort sort",
        "x, /": "nonzero",
        "x1, x2, /, *, side='left', sorter=None": "searchsorted",
        "condition, x1, x2, /": "where",
    },
    "sets": {"x, /": "unique_all unique_counts unique_inverse unique_values"},
    "statistical": {
        "x, /, *, axis=None, dtype=None, include_initial=False": """cumulative_prod
            cumulative_sum""",
        "x, /, *, axis=None, keepdims=False": "max mean min",
        "x, /, *, axis=None, dtype=None, keepdims=False": "prod sum",
        "x, /, *, axis=None, correction=0.0, keepdims=False": "std var",
    },
    "fft": {
        "x, /, *, n=None, axis=-1, norm='backward'": "fft hfft ifft ihfft irfft rfft",
        "x, /, *, s=None, axes=None, norm='backward'": "fftn ifftn irfftn rfftn",
        "n, /, *, d=1.0, dtype=None, device=None": "fftfreq rfftfreq",
        "x, /, *, axes=None": "fftshift ifftshift",
    },
    "utility": {
        "x, /, *, axis=None, keepdims=False": "all any",
        "x, /, *, axis=-1, n=1, prepend=None, append=None": "diff",
    },
    "constants": "e inf nan newaxis pi",
    "arrays": {
        "self": "T device dtype mT ndim shape size",
        "self, /, *, api_version=None": "__array_namespace__",
        "self, /": """__abs__ __bool__ __complex__ __dlpack_device__ __float__ __index__
            __int__ __invert__ __neg__ __pos__""",
        "self, /, *, stream=None, max_version=None, dl_device=None, copy=None": "__dlpack__",
        "self, key, value, /": "__setitem__",
        "self, device, /, *, stream=None": "to_device",
        "self, other, /": " ".join(
            ["__eq__ __ge__ __gt__ __le__ __lt__ __ne__"]
            + [f"__{name}__ __r{name}__" for name in BOTH.split()]
        ),
        "self, key, /": "__getitem__",
    },
}
"""Names of the standard, those of functions by their parameters: its stubs' _2024_12."""
REASONS = {
    "there are no complex numbers": "complex64 complex128 conj imag real",
    "arrays of other libraries are a kernel's arguments": """__dlpack__ __dlpack_device__
        from_dlpack""",
    "a kernel runs where its arguments lie": "device to_device",
    "this page says what there is": "__array_namespace_info__",
    "values are unknown while a kernel is traced": """__bool__ __complex__ __float__
        __index__ __int__""",
    "values do not change: return a new one": "__setitem__",
    "shapes are static": """nonzero unique_all unique_counts
        unique_inverse unique_values""",
    "decompositions are a library's": """cholesky cross det
        eigh eigvalsh inv matrix_norm matrix_power matrix_rank pinv qr slogdet solve svd
        svdvals vector_norm""",
    "a library's": """fft fftfreq fftn fftshift hfft ifft ifftn
        ifftshift ihfft irfft irfftn rfft rfftfreq rfftn""",
}
MISSING = {name: why for why, names in REASONS.items() for name in names.split()}


def names_of(group):
    """Return the names of a group."""
    words = STANDARD[group]
    return " ".join(words.values() if isinstance(words, dict) else [words]).split()


def is_there(group, name):
    """Say whether the namespace, or an array, has a name, and one to call no mere error."""
    if not hasattr(xp.Array if group == "arrays" else xp, name):
        return False
    given = dict.fromkeys(STANDARD["arrays"]["self, /"].split(), ())
    given["__setitem__"] = 0, 1
    called = name in given
    try:
        kernel(lambda x: [called and getattr(x, name)(*given[name]), x][1])(
            np.ones(1, int)
        )
    except KernelError:
        return False
    return True


def names(dtypes):
    """Return the dtypes' names as a list to be read, in the table's order."""
    *most, last = [dtype.name for dtype in ALL if dtype in dtypes]
    return f"{', '.join(most)} and {last}"


def page():
    """Return docs/array-api.md."""
    count = sum(len(names_of(group)) for group in STANDARD)
    standard = {dtype for dtype in ALL if dtype.name in names_of("dtypes")}
    lines = [
        "# The array API's names",
        "",
        f"Of {count} names of the Python array API standard (2024.12)",
        f"`steelyard_kernels.array` has all but {len(MISSING)}, and all parameters but",
        "`device`. Shapes are static. Floats made without a dtype are float32.",
        "",
        f"Beside its dtypes there are {names(set(ALL) - set(STORED) - standard)};",
        f"{names(STORED)} are stored, and computed as float32. Arrays of the",
        "last three are `ml_dtypes`'.",
        "",
        "| missing | why |",
        "| --- | --- |",
    ]
    for why, gone in REASONS.items():
        shown = ", ".join(f"`{name}`" for name in gone.split())
        shown = "all of `fft`" if set(gone.split()) == set(names_of("fft")) else shown
        lines.append(f"| {shown} | {why} |")
    return "\n".join(lines) + "\n"


def test_what_is_missing_is_listed_with_its_reason():
    """No name that is there, and every one that is not."""
    gone = {n for group in STANDARD for n in names_of(group) if not is_there(group, n)}
    assert gone == set(MISSING)


def parameters(words):
    """Return the parameters that words spell."""
    found = {}
    exec(f"def function({words}): pass", found)
    return list(signature(found["function"]).parameters.values())


def lacks(wanted, own):
    """Return which of a function's parameters another has not, has elsewhere, or as more."""
    found, others = set(), [each for each in own if each.default is each.empty]
    for place, each in enumerate(wanted):
        at = own[place] if place < len(own) else None
        if each.kind is each.KEYWORD_ONLY:
            at = next((other for other in own if other.name == each.name), None)
        there = at and {
            each.POSITIONAL_ONLY: at.kind in {each.kind, at.POSITIONAL_OR_KEYWORD},
            each.POSITIONAL_OR_KEYWORD: (at.kind, at.name) == (each.kind, each.name),
            each.VAR_POSITIONAL: at.kind is each.kind,
            each.KEYWORD_ONLY: at.kind in {each.kind, at.POSITIONAL_OR_KEYWORD},
        }
        same = at and each.default in {each.empty, at.default}
        if not (there and there[each.kind] and same) and each.name != "device":
            found.add(each.name)
        others = [other for other in others if other is not at]
    return found | {each.name for each in others}


def test_functions_have_all_parameters_of_the_standard():
    """By place or by name as it says, with its defaults, and need no others."""
    gone = {}
    for group, words in STANDARD.items():
        if isinstance(words, str):
            continue
        for spelled, every in words.items():
            for name in set(every.split()) - set(MISSING):
                function = getattr(xp.Array if group == "arrays" else xp, name)
                function = getattr(function, "fget", function)  # of a property
                own = list(signature(function).parameters.values())
                gone[name] = lacks(parameters(spelled), own)
    assert {name: missing for name, missing in gone.items() if missing} == {}


def test_a_parameter_that_is_missing_is_seen():
    """Left out, elsewhere, only by place, with another default, or one too many."""
    wanted = parameters("x, /, y, *, axis=None")
    for words in ("x, y", "x, axis=None, y=0", "x, y, /, axis=None", "x, y, axis=-1"):
        assert lacks(wanted, parameters(words))
    assert lacks(wanted, parameters("x, y, z, axis=None"))
    assert not lacks(wanted, parameters("x, y, axis=None, *, more=1"))


def test_the_documented_names_are_those_there_are():
    """`python tests/test_array_api.py` writes the page."""
    assert DOCS.read_text() == page()


@pytest.mark.parametrize(
    "op", ["//", "%", "**", "<<", ">>", "&", "|", "^", "+", "-", "*", "<", "==", "@"]
)
def test_operators_are_numpys(op):
    """Of arrays, and of an array and a number, or one of NumPy's, on either side."""
    a = np.arange(1, 10, dtype=np.int64).reshape(3, 3) * 5
    b = np.arange(9, 0, -1, dtype=np.int64).reshape(3, 3) % 4 + 1
    if op in {"**", "@"}:
        a, b = a / 7, b / 3
    sources = [f"a {op} b", f"a {op} c", f"c {op} b", f"7 {op} b", f"a {op} 3"]
    sources = sources[: 3 if op == "@" else 5]
    functions = [eval(f"lambda a, b: {source}", {"c": b}) for source in sources]

    @kernel
    def every(a, b):
        return tuple(function(a, b) for function in functions)

    seen = every(a, b)
    for function, one in zip(functions, seen, strict=True):
        np.testing.assert_allclose(one, function(a, b), rtol=1e-14)


MADE = {
    "arange": lambda xp: xp.arange(3, 20, 4),
    "arange down": lambda xp: xp.arange(5.0, 1.0, -0.75, dtype="float64"),
    "linspace": lambda xp: xp.linspace(-1.0, 2.0, 7, dtype="float64"),
    "half open": lambda xp: xp.linspace(0.0, 1.0, 4, dtype="float64", endpoint=False),
    "eye": lambda xp: xp.eye(3, 5, k=1, dtype="float64"),
    "tril": lambda xp: xp.tril(xp.ones((2, 3, 4), dtype="float64"), k=-1),
    "triu": lambda xp: xp.triu(xp.ones((2, 3, 4), dtype="float64"), k=1),
    "meshgrid": lambda xp: xp.meshgrid(xp.arange(3), xp.arange(2))[0],
    "ij": lambda xp: xp.meshgrid(xp.arange(3), xp.arange(2), indexing="ij")[1],
    "clip": lambda xp: xp.clip(xp.arange(9), 2, 5),
    "argmax": lambda xp: xp.argmax(xp.reshape(xp.arange(12) % 5, (3, 4)), axis=-1),
    "argmin": lambda xp: xp.argmin(xp.reshape(xp.arange(12) % 5, (3, 4)), axis=-1),
    **{
        f"{name} of NaN": lambda xp, name=name: getattr(xp, name)(
            xp.asarray([[1.0, xp.nan, 3.0, xp.nan], [4.0, 4.0, 2.0, 2.0]]), axis=-1
        )
        for name in ("argmax", "argmin")
    },
    "power": lambda xp: xp.arange(9) ** 3,
    "powers": lambda xp: xp.arange(-4, 5) ** (xp.arange(9) % 4) + 3 ** xp.arange(9),
    "full": lambda xp: xp.full((2, 2), 7, "int32"),
    "zeros": lambda xp: xp.zeros(2, "int32") - xp.zeros((3, 2), "int32"),
    "like": lambda xp: xp.full_like(xp.arange(3), 1.5, dtype="float64"),
    "ones": lambda xp: xp.ones_like(xp.arange(3.0), dtype="int8"),
    "sum": lambda xp: xp.sum(xp.arange(300), dtype="int8"),
    "halves": lambda xp: xp.sum(xp.ones((4097,), dtype="float16"), dtype="float64"),
    "prod": lambda xp: xp.prod(xp.arange(1, 9), dtype="uint8"),
    "totals": lambda xp: xp.cumulative_sum(
        xp.arange(99), dtype="int8", include_initial=True
    ),
    "trace": lambda xp: xp.trace(xp.full((3, 4), 1 << 30, dtype="int32"), offset=1),
    "wide": lambda xp: xp.trace(xp.ones((3, 3), dtype="int32"), dtype="float64"),
    "diff": lambda xp: xp.diff(xp.arange(9) ** 2, n=2, prepend=xp.arange(2)),
    "diff of both": lambda xp: xp.diff(
        xp.ones((2, 3), dtype="int8"),
        axis=0,
        prepend=xp.zeros((1, 3), dtype="int8"),
        append=xp.ones((2, 3), dtype="int8"),
    ),
    "copies": lambda xp: xp.reshape(
        xp.astype(xp.asarray(xp.arange(6), copy=True), "int8", copy=False),
        (2, 3),
        copy=True,
    ),
    **{
        name: lambda xp, name=name: getattr(xp, name)(xp.arange(-3, 4, dtype="int8"))
        for name in ("floor", "ceil", "trunc", "round")
    },
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_shapes_is_numpys(name):
    """Values and dtype."""
    seen, want = kernel(lambda: MADE[name](xp))(), np.asarray(MADE[name](np))
    assert seen.dtype == want.dtype
    np.testing.assert_allclose(seen, want, rtol=1e-15)


def test_the_default_of_floating_numbers_is_float32():
    """Of each function that makes them without a dtype; NumPy's values keep theirs."""

    @kernel
    def made(x):
        return (
            xp.zeros(2), xp.ones(2), xp.empty(2), xp.full(2, 0.1), xp.eye(2),
            xp.linspace(0, 1, 2), xp.arange(0.1, 2), xp.asarray([0.1, 0.2]),
            xp.asarray([np.float32(0.1), 2]), xp.asarray(np.array([0.1, 0.2])),
            xp.asarray([0.1, 0.2], dtype="float64"), xp.asarray([[1, 2]]) + x,
        )  # fmt: skip

    *single, given, wide, whole = made(np.zeros((), np.int64))
    assert {each.dtype.name for each in single[:-1]} == {"float32"}
    assert {each.dtype.name for each in (single[-1], given, wide)} == {"float64"}
    assert whole.dtype == np.int64
    assert given.tolist() == wide.tolist() == [0.1, 0.2]


def test_a_product_of_a_matrix_and_itself_reads_it_at_two_places():
    """Once by rows and once by columns."""
    x = np.random.default_rng(4).normal(0, 1, (5, 5))
    np.testing.assert_allclose(kernel(lambda x: x @ x)(x), x @ x, rtol=1e-13)


def entries(extent):
    """Draw indices of an axis: ints, slices, arrays of the shapes that broadcast."""
    places = st.integers(-extent, extent - 1)
    shapes = st.sampled_from([(), (3,), (1,), (2, 1), (2, 3)])
    kinds = st.sampled_from(["int8", "int64"])
    ints = shapes.flatmap(lambda s: arrays(kinds, s, elements=places))
    return st.one_of(places, st.slices(extent), ints, ints)


@st.composite
def indexed(draw):
    """Draw an array and indices of some of its axes, with new ones and `...` between."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    key = [draw(entries(extent)) for extent in shape]
    whole = draw(st.sampled_from([None, *range(len(key))]))
    if whole is not None:
        key[whole:] = draw(st.sampled_from([[], [...], [..., *key[whole + 1 :]]]))
    key.insert(draw(st.integers(0, len(key))), None)
    return np.arange(np.prod(shape)).reshape(shape), key[draw(st.booleans()) :]


@given(indexed(), st.sampled_from(["as it is", "turned", "computed"]))
def test_elements_at_indices_are_numpys(drawn, how):
    """Of arrays that the kernel is given, or knows; of views and of what is computed."""
    x, key = drawn
    key = tuple(key)
    arrays = [each for each in key if isinstance(each, np.ndarray)]

    def chosen(x, key):
        x = (
            x.T
            if how == "turned" and x.ndim == 2
            else x * 2
            if how == "computed"
            else x
        )
        return x[key]

    def given(x, *arrays):
        found = iter(arrays)
        own = [next(found) if isinstance(e, np.ndarray) else e for e in key]
        return chosen(x, tuple(own))

    try:
        want = chosen(x, key)
    except IndexError:  # of an axis that `...` or turning put elsewhere
        return
    names = [f"a{n}" for n in range(len(arrays))]
    kinds = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ["x", *names]]
    given.__signature__ = Signature(kinds)
    for seen in (kernel(given)(x, *arrays), kernel(lambda x: chosen(x, key))(x)):
        assert (seen.dtype, seen.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(seen, want)


def test_gradients_of_elements_at_indices_are_added_up():
    """Those taken several times, and none of others."""
    x = np.arange(60.0).reshape(3, 4, 5)
    i, j = np.array([0, -1, 0, 2]), np.array([[1], [-4]])
    for key in [(i,), (i, j), (slice(1, None), j, i), (i, slice(None), j), (..., j)]:
        made = kernel(grad(lambda x, w: xp.sum(x[key] * w)))  # noqa: B023 - called at once
        w, want = np.random.default_rng(0).normal(0, 1, x[key].shape), np.zeros(x.shape)
        np.add.at(want, key, w)
        np.testing.assert_allclose(made(x, w), want, atol=1e-14)


CONSTANTS = [
    [1.5, 2, 3],
    [[True], [False]],
    [],
    np.arange(0, -3000, -3, dtype="int16").reshape(10, 100),
    np.array([0.0, -0.0, np.nan, np.inf, 1e-45], "float32"),
    np.array([2**64 - 1, 2**63, 1], "uint64"),
    np.array([127, -128, -127], "int8"),
    np.ones((50, 50), ml_dtypes.bfloat16),
    np.array(3, ml_dtypes.float8_e5m2),
    np.eye(7)[::-1],
]


@pytest.mark.parametrize("value", CONSTANTS, ids=lambda value: str(np.shape(value)))
def test_lists_and_arrays_of_numpy_are_constants(value):
    """To the bit; floats of lists are of the default dtype."""
    seen, want = kernel(lambda: xp.asarray(value))(), np.asarray(value)
    want = want.astype("f4") if isinstance(value, list) and want.dtype == "f8" else want
    assert (seen.dtype, seen.shape) == (want.dtype, want.shape)
    assert seen.tobytes() == want.tobytes()


def test_arrays_know_their_namespace():
    """Of the standard's versions up to 2024.12."""
    made = kernel(lambda x: x.__array_namespace__(api_version="2022.12").exp(x))
    assert made(np.zeros(2)).tolist() == [1, 1]
    with pytest.raises(KernelError, match=r"'2025\.12' of the array API was asked for"):
        kernel(lambda x: x.__array_namespace__(api_version="2025.12"))(np.zeros(2))


def test_dtypes_have_limits_and_kinds():
    """NumPy's, where it has them."""
    for name in ("float16", "float32", "float64"):
        seen, want = xp.finfo(name), np.finfo(name)
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(seen, field) == getattr(want, field)
    seen = xp.iinfo("int32")
    assert (seen.bits, seen.max, seen.min) == (32, 2**31 - 1, -(2**31))
    assert xp.isdtype("int64", "integral")
    assert xp.isdtype("bfloat16", ("bool", "real floating"))
    assert not xp.isdtype("bool", "numeric")
    assert xp.can_cast("float16", "float32")
    assert not xp.can_cast("float64", "float32")
    assert xp.result_type("float16", "bfloat16").name == "float32"
    numbers = {(1, True): "int64", (1, 2.0): "float64", (True,): "bool"}
    numbers |= {("float16", 1.5, 2): "float16", ("uint64", 1): "uint64"}
    assert {k: xp.result_type(*k).name for k in numbers} == numbers
    for mixed in [("int32", 1.5), ("bool", 1), ("float32", True)]:
        with pytest.raises(KernelError, match="do not mix"):
            xp.result_type(*mixed)
    for ask, dtype in ((xp.finfo, "int32"), (xp.iinfo, "float32")):
        with pytest.raises(KernelError, match="expected a"):
            ask(dtype)


if __name__ == "__main__":
    DOCS.write_text(page())
