"""The Python array API standard's names, 2024.12: which there are, and why others not."""

from pathlib import Path

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import kernel
from steelyard_kernels.dtypes import ALL, STORED
from steelyard_kernels.errors import KernelError

DOCS = Path(__file__).parents[1] / "docs" / "array-api.md"
BOTH = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]
STANDARD = {
    "creation": """arange asarray empty empty_like eye from_dlpack full full_like linspace
        meshgrid ones ones_like tril triu zeros zeros_like""",
    "data types": """astype broadcast_arrays broadcast_to can_cast finfo iinfo isdtype
        result_type""",
    "dtypes": """bool complex64 complex128 float32 float64 int8 int16 int32 int64 uint8
        uint16 uint32 uint64""",
    "elementwise": """abs acos acosh add asin asinh atan atan2 atanh bitwise_and
        bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor ceil
        clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
        greater_equal hypot imag isfinite isinf isnan less less_equal log log10 log1p log2
        logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply
        negative nextafter not_equal positive pow real reciprocal remainder round sign
        signbit sin sinh sqrt square subtract tan tanh trunc""",
    "indexing": "take take_along_axis",
    "linear algebra": "matmul matrix_transpose tensordot vecdot",
    "linear algebra (extension)": """cholesky cross det diagonal eigh eigvalsh inv
        matrix_norm matrix_power matrix_rank outer pinv qr slogdet solve svd svdvals trace
        vector_norm""",
    "manipulation": """concat expand_dims flip moveaxis permute_dims repeat reshape roll
        squeeze stack tile unstack""",
    "searching and sorting": """argmax argmin argsort count_nonzero nonzero searchsorted
        sort where""",
    "sets": "unique_all unique_counts unique_inverse unique_values",
    "statistical": "cumulative_prod cumulative_sum max mean min prod std sum var",
    "utility and constants": "all any diff e inf nan newaxis pi",
    "attributes": "T device dtype mT ndim shape size to_device",
    "operators": " ".join(
        [
            f"__{name}__"
            for name in [
                "abs",
                "eq",
                "ge",
                "getitem",
                "gt",
                "invert",
                "le",
                "lt",
                "ne",
                "neg",
                "pos",
            ]
        ]
        + [f"__{r}{name}__" for name in BOTH for r in ("", "r")]
        + ["__setitem__"]
    ),
}
REASONS = {
    "there are no complex numbers": "complex64 complex128 conj imag real",
    "arrays of other libraries are a kernel's arguments": "from_dlpack",
    "a kernel runs where its arguments lie": "device to_device",
    "values do not change: return a new one": "__setitem__",
    "its result's shape is not known before it runs": """nonzero unique_all unique_counts
        unique_inverse unique_values""",
    "decompositions and what is made of them are a library's": """cholesky cross det
        eigh eigvalsh inv matrix_norm matrix_power matrix_rank pinv qr slogdet solve svd
        svdvals vector_norm""",
}
MISSING = {name: why for why, names in REASONS.items() for name in names.split()}


def is_there(group, name):
    """Say whether the namespace or its arrays have a name."""
    of_arrays = group in {"attributes", "operators"}
    return hasattr(xp.Array if of_arrays else xp, name)


def names(dtypes):
    """Return the dtypes' names as a list to be read, in the table's order."""
    *most, last = [dtype.name for dtype in ALL if dtype in dtypes]
    return f"{', '.join(most)} and {last}"


def page():
    """Return docs/array-api.md."""
    groups = {group: names.split() for group, names in STANDARD.items()}
    count = sum(map(len, groups.values()))
    standard = {dtype for dtype in ALL if dtype.name in groups["dtypes"]}
    lines = [
        "# The array API's names",
        "",
        f"Of {count} names of the Python array API standard (2024.12)",
        f"`steelyard_kernels.array` has all but {len(MISSING)}. Shapes are static.",
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
        lines.append(f"| {shown} | {why} |")
    return "\n".join(lines) + "\n"


def test_what_is_missing_is_listed_with_its_reason():
    """No name that is there, and every one that is not."""
    gone = {
        name
        for group, names in STANDARD.items()
        for name in names.split()
        if not is_there(group, name)
    }
    assert gone == set(MISSING)


def test_the_documented_names_are_those_there_are():
    """`python tests/test_array_api.py` writes the page."""
    assert DOCS.read_text() == page()


@pytest.mark.parametrize(
    "op", ["//", "%", "**", "<<", ">>", "&", "|", "^", "+", "-", "*", "<", "==", "@"]
)
def test_operators_are_numpys(op):
    """Of arrays, and of an array and a number on either side."""
    a = np.arange(1, 10, dtype=np.int64).reshape(3, 3) * 5
    b = np.arange(9, 0, -1, dtype=np.int64).reshape(3, 3) % 4 + 1
    if op in {"**", "@"}:
        a, b = a / 7, b / 3
    sources = [f"a {op} b", f"7 {op} b", f"a {op} 3"][: 1 if op == "@" else 3]
    functions = [eval(f"lambda a, b: {source}") for source in sources]

    @kernel
    def every(a, b):
        return tuple(function(a, b) for function in functions)

    seen = every(a, b)
    for function, one in zip(functions, seen, strict=True):
        np.testing.assert_allclose(one, function(a, b), rtol=1e-14)


MADE = {
    "arange": lambda xp: xp.arange(3, 20, 4),
    "arange down": lambda xp: xp.arange(5.0, 1.0, -0.75),
    "linspace": lambda xp: xp.linspace(-1.0, 2.0, 7),
    "half open": lambda xp: xp.linspace(0.0, 1.0, 4, endpoint=False),
    "eye": lambda xp: xp.eye(3, 5, k=1, dtype="float64"),
    "tril": lambda xp: xp.tril(xp.ones((2, 3, 4), dtype="float64"), k=-1),
    "triu": lambda xp: xp.triu(xp.ones((2, 3, 4), dtype="float64"), k=1),
    "meshgrid": lambda xp: xp.meshgrid(xp.arange(3), xp.arange(2))[0],
    "ij": lambda xp: xp.meshgrid(xp.arange(3), xp.arange(2), indexing="ij")[1],
    "clip": lambda xp: xp.clip(xp.arange(9), 2, 5),
    "argmax": lambda xp: xp.argmax(xp.reshape(xp.arange(12) % 5, (3, 4)), axis=-1),
    "argmin": lambda xp: xp.argmin(xp.reshape(xp.arange(12) % 5, (3, 4)), axis=-1),
    "power": lambda xp: xp.arange(9) ** 3,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_shapes_is_numpys(name):
    """Values and dtype."""

    @kernel
    def made(x):
        found = MADE[name](xp)
        return found + (x - x).astype(found.dtype)

    seen, want = made(np.zeros((), np.float32)), np.asarray(MADE[name](np))
    assert seen.dtype == want.dtype
    np.testing.assert_allclose(seen, want, rtol=1e-15)


def test_the_first_nan_is_the_largest_and_the_smallest():
    """As in NumPy."""
    x = np.array([[1.0, np.nan, 3.0, np.nan], [4.0, 4.0, 2.0, 2.0]])

    @kernel
    def places(x):
        return xp.argmax(x, axis=-1), xp.argmin(x, axis=-1)

    largest, smallest = places(x)
    assert largest.tolist() == np.argmax(x, -1).tolist() == [1, 0]
    assert smallest.tolist() == np.argmin(x, -1).tolist() == [1, 2]


def test_a_product_of_a_matrix_and_itself_reads_it_at_two_places():
    """Once by rows and once by columns."""
    x = np.random.default_rng(4).normal(0, 1, (5, 5))

    @kernel
    def square(x):
        return x @ x

    np.testing.assert_allclose(square(x), x @ x, rtol=1e-13)


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
    for ask, dtype in ((xp.finfo, "int32"), (xp.iinfo, "float32")):
        with pytest.raises(KernelError, match="expected a"):
            ask(dtype)


if __name__ == "__main__":
    DOCS.write_text(page())
