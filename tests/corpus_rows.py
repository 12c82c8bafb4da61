"""The corpus' programs, elements and rows of arrays: each a row of the table."""

from __future__ import annotations

import numpy as np
from corpus import Row

from steelyard_kernels import array as xp
from steelyard_kernels import library

HALVES = "float16 bfloat16"
FLOATS = "float32 float16 bfloat16 float64"
INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
FLOAT8 = "float8_e4m3fn float8_e5m2"
FLOAT32 = 2.0**-24


def fused(a, b):
    """Compute several operations in one pass."""
    return xp.maximum(a * b, 0.0) + 1.0


def shifted(x, row, column):
    """Use a value a row, one a column, and one for every element."""
    return xp.maximum(x * row + column, 0.0)


def arithmetic(a, b):
    """Return what every operation of it rounds."""
    return (a + b) * a - b / (a * a + 1.0)


def extremes_of_elements(a, b):
    """Choose, divide and compare what may be NaN or infinite."""
    chosen = xp.where(a < b, xp.minimum(a, b), xp.maximum(a, b))
    return chosen, a / b, xp.sqrt(a), xp.floor(b), a == b, (a <= b) | (b != a)


def functions(x):
    """Return one of each; their own tests measure how accurate they are."""
    named = ("exp", "log", "log1p", "expm1", "tanh", "sigmoid", "softplus", "rsqrt")
    more = ("sin", "cos", "sinpi", "cospi", "erf", "erf_inv", "erfc", "cbrt")
    return {name: getattr(xp, name)(x) for name in (*named, *more)}


def integers(a, b):
    """Wrap, compare and choose integers."""
    inside = (a < b) & ~(a == 3)
    picked = xp.where(inside, a * b, -a)
    spread = xp.maximum(a, b) - xp.minimum(a, b)
    return inside, picked, abs(a - b), spread, a << (b & 7)


def words(a, b):
    """Return both halves of an unsigned product."""
    return xp.multiply_high(a, b), a * b


def stored(x):
    """Widen and round, and move what is as it is."""
    wide = x.astype("float32")
    return (wide * 3.0).astype(x.dtype), xp.flip(x), xp.where(x > 0.0, x, wide * 2.0)


def logic(a, b):
    """Combine bools."""
    return xp.where(a & ~b, 1.0, -1.0).astype("float32"), a | b, a == b


def counted(x, row):
    """Use the number of a row, of a column and, in another dtype, of an element."""
    rows = xp.expand_dims(xp.arange(37), 1).astype("float32")
    columns = xp.arange(11, dtype="int32").astype("float32")
    every = xp.reshape(xp.arange(37 * 11), (37, 11)).astype("float32")
    return xp.reshape(x, (37, 1)) * row + rows * 100.0 + columns + every * 0.5


def shaped(x):
    """Store what was computed in another shape, beside itself."""
    y = x * 2.0 + xp.reshape(xp.arange(12), (4, 3)).astype("float32")
    return xp.reshape(y, (2, 1, 6)), y


def spread_out(x, row):
    """Store, in every element, what needs none of any input."""
    return (x - x) * 0.0 + 1.0, xp.broadcast_to(row, x.shape)


def mixed(x, y):
    """Return values of several shapes."""
    return {"both": x + y, "twice": y * 2.0, "third": y / 3.0}


def changing_places(x, y):
    """Let two parameters change places."""
    return {"x": y + 1, "y": x * y}


def cancelling(a, c):
    """Return differences of equal products, in every way that they may be written."""
    d, e = a * a, c * c
    every = d - e, d + -e, -e + d, d - xp.maximum(e, 0.0), xp.where(a > 0, d, -d) - d
    zero = 0.0 * xp.sum(a, -1, keepdims=True)
    return *every, *(each.T for each in every), *(each + zero for each in every)


def equal(rng):
    """Return one array twice."""
    a = np.abs(rng.standard_normal((3, 17))).astype(np.float32)
    return [a, a.copy()]


def all_zero(a, c):
    """Say that nothing is left of any difference."""
    return {
        f"out{k}": np.zeros(a.T.shape if 5 <= k < 10 else a.shape) for k in range(15)
    }


def rest_of_products(rng):
    """Return what a rounded product is subtracted from."""
    a = rng.standard_normal(100).astype(np.float32)
    return [a, -(a * a)]


ELEMENTS = [
    Row(
        "copy",
        library.copy,
        "5; 1,1,1; (); 0; 0,3; 4097",
        f"float32 bool float16 {INTEGERS} {FLOAT8}",
        exact=True,
    ),
    Row("nothing", library.empty),
    Row(
        "triad",
        library.triad,
        ";".join(
            f"{n} {n}" for n in (1, 2, 15, 17, 31, 33, 127, 129, 257, 4097, 20_011)
        ),
        FLOATS,
        {"s": 0.5},
    ),
    Row("one size", library.triad, "100 100; 7,13 7,13; 3000 3000", together=True),
    Row(
        "adam",
        library.adam,
        "61 61 61; 1009 1009 1009; 64 64 64",
        FLOATS,
        data="positive",
    ),
    Row("scale", library.scale, "33 33 33; 5,7 5,7 5,7", HALVES),
    Row("fused", fused, "37,100 100; 100,1 100; 1 5,3; 0,4 4; 2,0,3 2,1,1; 40,1 1,7"),
    Row(
        "shifted",
        shifted,
        ";".join(f"3,7,{n} 3,1,1 {n}" for n in (1, 2, 3, 20, 31, 32, 33, 96, 257)),
        FLOATS,
    ),
    Row("shifted along", shifted, "4,3,8 8 4,1,8; 2,1,2 2,1,1 1,1,1; 5,3,40 5,1,1 40"),
    Row("halves round once", arithmetic, "1000 1000; 33,3 3", HALVES, exact=True),
    Row(
        "two levels",
        lambda a, b, c: xp.where(b < c, c, -a),
        "2,1,2 2,1,1 1,1,1; 3,33 3,1 33",
    ),
    Row("special", extremes_of_elements, "100 100; 7,9 9", FLOATS, data="special"),
    Row("functions", functions, "61; 257", "float32 float64"),
    Row("functions of halves", functions, "61", HALVES),
    Row("special functions", functions, "99", data="special"),
    Row("integers", integers, "77 77; 3,1 5; 333 333", INTEGERS),
    Row("words", words, "77 77", "int32", data="bits"),
    Row("stored", stored, "333; 7,11", FLOAT8, exact=True),
    Row("logic", logic, "33 33; 7,1 1,5", "bool"),
    Row("counted", counted, "37 11"),
    Row("shaped", shaped, "4,3"),
    Row("spread out", spread_out, "5,12 5,1; 3,7 7"),
    Row("no input", lambda: xp.arange(20_011) * 3),
    Row(
        "mixed",
        mixed,
        "455,9 9; 40,8 40,1; 1000 (); 3,4,5 4,1; 3,4,5 3,1,5; 2048,2 2; 9 45,9;"
        "6,5 1,1; 1 (); 96,128 128; 0,3 0,1",
    ),
    Row("small", lambda x, y: (x * 2.0, y + 1.0), "3 (); 7 2,2"),
    Row("changing places", changing_places, "7,33 7,33; 100 100"),
    Row("equal products", cancelling, data=equal, near=all_zero),
    Row(
        "rounded once",
        lambda a, b: (a * a + b, b * 1.0 - -a * a),
        data=rest_of_products,
        near=lambda a, b: {
            f"out{k}": (a * a + b).astype("f4").astype(float) for k in (0, 1)
        },
    ),
    Row(
        "two shapes",
        lambda a, b: (a + 1.0, b),
        "3000,4 5; 5 3000,4",
        refused={"*": "makes several launches"},
    ),
]


def rich(x, column, row, *, scale=0.5):
    """Use every kind of reduction and operand."""
    t = (x * column + row) * scale
    top = xp.max(t, axis=-1, keepdims=True)
    low = xp.min(t, axis=-1, keepdims=True)
    total = xp.sum(t * t, axis=-1, keepdims=True)
    centred = t - xp.mean(t, axis=-1, keepdims=True)
    spread = xp.sum(abs(centred), axis=-1, keepdims=True)
    return {"y": (centred + row) * column, "low": low, "s": total + spread, "top": top}


def moments(x):
    """Return sums of one pass: mean, sum and variance of every row."""
    return {"mean": xp.mean(x, -1), "sum": xp.sum(x, -1), "var": xp.var(x, -1)}


def extremes(x):
    """Reduce what may be NaN or infinite."""
    top = xp.max(x, axis=-1, keepdims=True)
    return {"top": top, "low": xp.min(x, axis=-1), "over": xp.maximum(x, 0.0) - top}


def hard(rng):
    """Return rows whose variance is hard to take: far, with outliers, constant."""
    x = rng.standard_normal((8, 333)).astype(np.float32)
    x[1] += 1000
    x[2] = x[2] * 1e-3 - 50
    x[3, 0] = 1e4
    x[4:6] = [[7.0], [0.0]]
    x[6] *= 1e-15
    x[7] = 0.1
    return [x]


def far(width, dtype):
    """Return data: rows with means of 0 to 1e6 standard deviations."""
    means = np.array([0, 0.5, 0.7, 1, 1.9, 2, 4, 30, 1e3, 1e4, 1e5, 1e6])

    def data(rng):
        return [(rng.standard_normal((12, width)) + means[:, None]).astype(dtype)]

    return data


def as_numpys(unit):
    """Return bounds of variances: 16 times NumPy's error, or its roundings."""

    def near(x):
        exact = x.astype(np.longdouble).var(-1)
        numpys = abs(x.astype("f4" if unit > 1e-9 else "f8").var(-1) - exact)
        mean = (unit * np.abs(x).mean(-1)) ** 2  # in two passes it is rounded once
        return {"out": (exact, 16 * np.maximum(numpys, 2 * unit * exact) + mean)}

    return near


def wide_halves(rng):
    """Return halves whose squares are beyond the largest half."""
    return [rng.uniform(-6e4, 6e4, (5, 33)).astype(np.float16)]


def deviations(x):
    """Return NumPy's in float64, rounded once."""
    exact = x.std(-1, ddof=1)
    return {"out": (exact, exact * 2.0**-10)}


def constant(rng):
    """Return layernorm's arguments: rows without variance, and no bias."""
    x = np.repeat(np.float32([[0.1], [-1 / 3], [1e20], [123456.7]]), 333, axis=1)
    zeros, ones = np.zeros(333, np.float32), np.ones(333, np.float32)
    return [x, zeros, zeros, ones, zeros]


def nothing(x, *columns):
    """Say that rows without variance have no layernorm; two passes round their mean."""
    mean = np.abs(x[:, :1])
    return {"out": (np.zeros(x.shape), 8 * FLOAT32 * mean / np.sqrt(1e-5) + 0 * x)}


def large(_):
    """Return what exp alone has no number for."""
    return [np.array([[1000.0, 1000.0, 0.0], [-1000.0, 0.0, 1.0]], np.float32)]


def in_place(x, w):
    """Overwrite what was reduced."""
    t = x - xp.mean(x, axis=-1, keepdims=True)
    return {"x": t * xp.rsqrt(xp.mean(t * t, axis=-1, keepdims=True) + 1e-3) * w}


def double(x):
    """Overwrite what the variance of the same pass may have to walk again."""
    return {"x": x + x, "var": xp.var(x, axis=-1)}


def shift(x, row):
    """Overwrite a row and its one value."""
    y = x - xp.mean(x, axis=-1, keepdims=True) + row
    return {"x": y, "row": row + xp.var(x, axis=-1, keepdims=True)}


def partly(x, row, part, column):
    """Broadcast outer axes in part: each of the inner rows has its value."""
    t = x * row + part
    return t / (xp.sum(abs(t), axis=-1, keepdims=True) + 1.0) + column


def scaled(x):
    """Take the variance of what depends on a reduction."""
    t = x * 50.0 / xp.max(abs(x), axis=-1, keepdims=True) + 3.0
    return t - xp.mean(t, axis=-1, keepdims=True), xp.var(t, axis=-1)


def nested(x):
    """Reduce what was made of reductions; four outputs of two shapes."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    y = e / xp.sum(e, axis=-1, keepdims=True)
    q = xp.sum(y * y, axis=-1, keepdims=True)
    return y / q, q, xp.mean(x, axis=-1), xp.sum(x, axis=-1, keepdims=True)


def overlapping(x):
    """Read values of two walks in a third, and two of one walk."""
    t, u = xp.exp(x * 0.25), abs(x) + 1.0
    y = t / xp.sum(t, axis=-1, keepdims=True) + u / xp.max(u, axis=-1, keepdims=True)
    return (y + t) / xp.sum(y * y, axis=-1, keepdims=True) + u


def as_rows(x, w):
    """Return what depends on the column, or on the row, as whole rows."""
    column = xp.broadcast_to(w, x.shape) * xp.sum(x, axis=-1, keepdims=True)
    return x + column, xp.broadcast_to(xp.max(x, axis=-1, keepdims=True), x.shape)


def sums_of_integers(x, y):
    """Sum integers wider than they are."""
    total = xp.sum(x, axis=-1, keepdims=True)
    total = total * xp.prod(x, axis=-1, keepdims=True) + y.astype(total.dtype)
    low, top = xp.min(x, axis=-1, keepdims=True), xp.max(x, axis=-1, keepdims=True)
    return total, top - low, x.astype("float32") / 2.0


def masked(x, mask):
    """Select before reducing; return booleans."""
    t = xp.where(mask, x, -1e30)
    top = xp.max(t, axis=-1, keepdims=True)
    return top, xp.exp(t - top), ~mask


def of_columns(x, w):
    """Reduce columns alone, hoisted or not."""
    square = xp.sum(w * w, -1, keepdims=True)
    var = xp.var(w * 2.0, axis=-1, keepdims=True)
    return x * square + var, xp.max(x, axis=-1, keepdims=True) * xp.mean(w * 2.0)


def other_reductions(x):
    """Return products, deviations and what bools come to."""
    large, flags = xp.max(abs(x), -1, keepdims=True), x > 0.25
    counts = xp.count_nonzero(flags, axis=-1), xp.all(flags, axis=-1)
    return (
        xp.prod(x / large, axis=-1),
        xp.std(x, axis=-1),
        xp.any(flags, axis=-1),
        *counts,
    )


def of_all_axes(x):
    """Reduce to one element."""
    return xp.sum(x), xp.max(x, keepdims=True), xp.mean(x), xp.var(x)


def layernorms(rows, widths):
    """Return shapes of rows and their four columns."""
    return ";".join(f"{rows},{n} {n} {n} {n} {n}" for n in widths)


WIDTHS = (1, 2, 7, 31, 32, 33, 100, 257)
ROWS = [
    Row("softmax", library.softmax, "3,1; 7,31; 2,33; 5,100; 3,1000"),
    Row("softmax of halves", library.softmax, "7,97", HALVES),
    Row("rows of one size", library.softmax, "8,64; 40,64", together=True),
    Row(
        "rich",
        rich,
        ";".join(
            f"{r},{n} {n} {r},1"
            for r, n in zip((1, 2, 3, 5, 7, 9, 4, 13), WIDTHS, strict=True)
        ),
        FLOATS,
    ),
    Row(
        "layernorm",
        library.bias_layernorm,
        layernorms(3, (96, 97, 768)),
        "float32 float16",
    ),
    Row("wide layernorm", library.bias_layernorm, layernorms(1, (5140,)), "bfloat16"),
    Row(
        "moments of products",
        lambda x, w: (xp.var(x, -1), xp.mean(x * w, -1), xp.mean(x, -1)),
        "3,33 33; 4,96 4,96",
        times=3,
    ),
    Row(
        "rows beside counts that begin elsewhere",
        lambda x: (
            xp.where(xp.arange(129)[1:] < 97, x, 0.0)
            / xp.sum(xp.exp(x), -1, keepdims=True)
        ),
        "128; 2,128",
    ),
    Row("moments", moments, "4,100; 3,17; 1,33; 7,2; 5,257", FLOATS),
    Row("extremes", extremes, "3,33; 1,2; 7,96; 4,257", data="special"),
    Row(
        "far rows",
        lambda x: xp.var(x, -1),
        data=far(333, "f4"),
        near=as_numpys(FLOAT32),
        times=4,
    ),
    Row(
        "narrow far rows",
        lambda x: xp.var(x, -1),
        data=far(3, "f4"),
        near=as_numpys(FLOAT32),
        times=4,
    ),
    Row(
        "far rows of doubles",
        lambda x: xp.var(x, -1),
        data=far(100, "f8"),
        near=as_numpys(2.0**-53),
        times=4,
    ),
    Row(
        "hard rows",
        lambda x: xp.var(x, -1),
        data=hard,
        near=as_numpys(FLOAT32),
        times=4,
    ),
    Row(
        "deviations of wide halves",
        lambda x: xp.std(x, axis=-1, correction=1),
        data=wide_halves,
        near=deviations,
    ),
    Row("constant rows", library.bias_layernorm, data=constant, near=nothing, times=2),
    Row("large exponents", library.softmax, data=large),
    Row(
        "half tails",
        lambda x: x - xp.max(x, -1, keepdims=True),
        "6,17",
        HALVES,
        times=2,
    ),
    Row("tails of halves", lambda x, y: x + y, "6,17 17", HALVES, times=2),
    Row(
        "two lengths",
        lambda x, y: (xp.sum(x, -1), xp.sum(y, -1)),
        "3,4 3,5",
    ),
    Row(
        "squeezed",
        lambda x: x + xp.sum(x, axis=-1),
        "4,4; 100,100",
    ),
    Row(
        "rows of rows",
        lambda x: (xp.sum(x, -1, keepdims=True), xp.max(xp.sum(x, -1), keepdims=True)),
        "3,4",
    ),
    Row("in place", in_place, "5,40 40; 40 40; 6,33 33"),
    Row("double", double, "3,96; 5,33"),
    Row("shift", shift, "4,64 4,1; 7,33 7,1"),
    Row("partly", partly, "3,5,33 5,1 3,1,33 1,1,33"),
    Row("scaled", scaled, "3,300; 2,33"),
    Row("line", lambda x: x / xp.sum(abs(x), axis=-1), "77; 1; 264"),
    Row("nested", nested, "6,33; 33:float64; 6,1"),
    Row("overlapping", overlapping, "6,33; 3,100; 8,257"),
    Row("as rows", as_rows, "6,33 33; 6,33 6,1"),
    Row("sums of integers", sums_of_integers, "5,37 5,1; 3,100 3,1", INTEGERS),
    Row(
        "softmax of float8",
        lambda x: library.softmax.function(x.astype("float32")),
        "5,37; 3,96",
        FLOAT8,
    ),
    Row("largest float8", lambda x: xp.max(x, -1), "5,37; 3,96", FLOAT8),
    Row(
        "large sums",
        lambda x: xp.sum(x, -1),
        "3,50:int32; 3,50:uint32; 5,17:uint64; 2,999:int8",
        data="bits",
    ),
    Row("masked", masked, "5,37 5,37:bool; 2,100 2,100:bool"),
    Row("of columns", of_columns, "5,17 17; 5,1 1; 8,70 70; 1,33 33"),
    Row(
        "mean square",
        lambda x, w: xp.sum(w * w) + xp.mean(x * w),
        "33 33; 1 1; 1000 1000",
    ),
    Row("of all axes", of_all_axes, "(); 1; 5; 100"),
    Row("other reductions", other_reductions, "5,33; 1,7"),
    Row(
        "lost axis", lambda x: (xp.sum(x, -1), xp.max(x, -1) * 2.0), "3,4,5; 5; 2,3,40"
    ),
    Row(
        "product of no rows beside others",
        lambda x, y: (xp.diff(x, axis=0) @ xp.diff(x, axis=0).T, xp.roll(y, 6) * y),
        "1,3 31",
    ),
    # The first axis is longer than the rows, whose weights are of keys of their own.
    Row(
        "products of a batch by one matrix",
        lambda x, w: xp.matmul(xp.matmul(x, x.mT), w),
        "24,8,32 8,16; 24,17,64 17,48",
        HALVES,
        data="unit",
    ),
    Row(
        "sums of repeated rows",
        lambda x, v: v @ xp.repeat(x, 3, axis=0).T,
        "7,9 9; 3,130 130; 3,129 129",
    ),
    Row(
        "repeated mean of one row",
        lambda x: xp.repeat(xp.sum(xp.mean(x, axis=1, keepdims=True), axis=1), 3),
        "1,3; 1,40",
    ),
    Row("empty rows", lambda x: xp.sum(x, axis=-1), "3,0; 0,3; 0,0"),
]
