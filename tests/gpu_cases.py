"""Kernels of every operation over special values, with what NumPy says of them.

Shared by the tests that run the emitted CUDA C++ on the host, those on a GPU, and those
of CPUs, which take an operation's `body` and `sources` for a kernel of their own.
"""

import math
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.special import erf, erfinv

from steelyard_kernels.dtypes import (
    ALL,
    FOREIGN,
    HALVES,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    rounded,
)
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Kernel, Var, typed

INT = typed(int32)
N = Var("n", INT)
COUNT = 1024
THREADS = 32
FLOATS = (float16, bfloat16, float32, float64)
# Zeros, denormals of every type, ties of halves and of bfloat16, bounds, infinities.
SPECIAL = [
    *(0.0, -0.0, 1.0, -1.5, 1e-45, -3e-39, 6e-8, 2.98e-8, 6.1e-5, 5e-324, 1e-310),
    *(1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-24),
    *(65504.0, 65519.99, 65520.0, 7e4, 3.4e38, 3.3961e38, 1e39, 1.7e308, -88.5, 88.8),
    *(2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**63, -(2.0**63), 2.0**62, 1e19, -104.0),
    *(np.inf, -np.inf, np.nan),
]
WHOLE = [0, 1, -1, 2**11 + 1, 2**24 + 1, 2**30 + 1, 65519, 65520, 65535, -4097]
WIDE = [2**53 + 1, 2**62 + 1, 2**40 + 2**16 + 1, 2**63 - 1, -(2**63), (257 << 40) + 1]


@dataclass(frozen=True)
class Case:
    """A kernel over arrays, what it should give, and by how many ulps it may miss."""

    name: str
    kernel: Kernel
    arrays: tuple
    dtype: object
    expected: np.ndarray  # numbers, in float64 where they are floats
    ulps: int = 0
    per_thread: int = 1  # elements
    body: object = None  # of one operation over whole arrays
    sources: tuple = ()


def valued(array, dtype):
    """Return an array as numbers that NumPy computes with."""
    return array.astype(np.float32) if dtype in FOREIGN else array


def numbers(dtype, seed=0):
    """Return numbers of a dtype, the special ones among random ones."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.random(COUNT) < 0.5
    if dtype.kind == "int":
        bound = np.iinfo(dtype.numpy)
        array = random.integers(bound.min, bound.max, COUNT, dtype.numpy)
        low, high = max(-70000, bound.min), min(70000, bound.max)
        array[:512] = random.integers(low, high, 512)
        special = [bound.min, bound.max, *WHOLE, *WIDE]
        special = [each for each in special if bound.min <= each <= bound.max]
        array[: len(special)] = special
    else:
        wide = random.normal(0, 1, COUNT) * 10.0 ** random.integers(-9, 10, COUNT)
        wide[: len(SPECIAL)] = SPECIAL
        array = rounded(wide, dtype)
    if seed:
        random.shuffle(array)
    return array


def misses(case, seen):
    """Return how many elements of a result are further off than the case allows."""
    seen, want = valued(seen, case.dtype), valued(case.expected, case.dtype)
    if case.dtype.kind != "float":
        return int(np.sum(seen != want))
    with np.errstate(all="ignore"):
        same = (seen == want) | (np.isnan(seen) & np.isnan(want))
        if case.ulps:
            room = case.ulps * spacing(want, case.dtype)
            wide = np.abs(seen.astype(np.float64) - want.astype(np.float64))
            same |= np.isfinite(want) & (wide <= room)
    return int(np.sum(~same))


def spacing(values, dtype):
    """Return the distance to the next number of a dtype."""
    wide = np.spacing(np.abs(values)).astype(np.float64)
    return wide * 2**16 if dtype is bfloat16 else wide


def elementwise(body, sources, target, lanes, per_thread=None):
    """Make y[i:] = body(x0[i:], x1[i:], ...) of `lanes` elements a thread."""
    inputs = [Buffer(f"x{k}", source, N) for k, source in enumerate(sources)]
    y = Buffer("y", target, N, access="out")
    b = Builder(INT)
    position = b.at("add", b.at("multiply", b.block(), THREADS), b.thread())
    start = b.at("multiply", position, lanes)
    inside = b.splat(b.let("less", start, N), lanes)
    vectors = [
        b.load(x, start, lanes, inside, min(16, lanes * x.dtype.bytes)) for x in inputs
    ]
    value = body(b, *vectors)
    width = value.type.lanes
    to = start if width == lanes else position
    mask = inside if width == lanes else b.let("less", start, N)
    b.store(y, to, value, mask, alignment=min(16, width * target.bytes))
    return b.kernel("elementwise", [*inputs, y, N], threads=THREADS)


def op_case(op, lanes, dtype, expected, sources, *, target=None, ulps=0, body=None):
    """Make the case of one operation on random arrays."""
    target = target or dtype
    arrays = tuple(numbers(source, seed) for seed, source in enumerate(sources))
    with np.errstate(all="ignore"):
        result = expected(
            *(
                valued(a, s).astype(np.float64) if s in HALVES else a
                for a, s in zip(arrays, sources, strict=True)
            )
        )
    made = body or (lambda b, *xs: b.let(op, *xs))
    kernel = elementwise(made, sources, target, lanes)
    name = f"{op}_{dtype.name}_{target.name}_{lanes}"
    want = rounded(result, target)
    return Case(name, kernel, arrays, target, want, ulps, lanes, made, tuple(sources))


ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
COMPARED = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
LOGIC = {
    "bitwise_and": np.logical_and,
    "bitwise_or": np.logical_or,
    "bitwise_xor": np.logical_xor,
}


def exactly(function):
    """Evaluate in longdouble, so that what is stored has been rounded once."""
    return lambda x: np.asarray(function(x.astype(np.longdouble)), np.float64)


def arithmetic(lanes):
    """Yield the cases that round once, or not at all."""
    for dtype in (*FLOATS, int32, int64):
        for op, function in ARITHMETIC.items():
            if op != "divide" or dtype.kind == "float":
                yield op_case(op, lanes, dtype, function, [dtype] * 2)
        yield op_case("negative", lanes, dtype, np.negative, [dtype])
        yield op_case("abs", lanes, dtype, np.abs, [dtype])
        if dtype.kind == "float":
            yield op_case("sqrt", lanes, dtype, np.sqrt, [dtype])
    for op, function in LOGIC.items():
        yield op_case(op, lanes, bool_, function, [bool_] * 2)
    yield op_case("logical_not", lanes, bool_, np.logical_not, [bool_])


PI = np.longdouble("3.14159265358979323846264338327950288")


def turned(x, quarters):
    """Return sin(pi x + pi quarters / 2), the argument reduced exactly."""
    left = x - 2 * np.rint(x / 2)
    near = np.rint(2 * left)
    turn = np.where(np.isfinite(x), near + quarters, 0).astype(np.int64) % 4
    sine, cosine = (f(PI * (left - near / 2)) for f in (np.sin, np.cos))
    return np.choose(turn, [sine, cosine, -sine, -cosine])


def sigmoid(x):
    """Return 1 / (1 + exp(-x)) without an overflow."""
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, 1) / (1 + t)


def softplus(x):
    """Return log(1 + exp(x)) without an overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


FUNCTIONS = {  # and by how many ulp a GPU may miss them, in float32 and float64
    "exp": (np.exp, 2, 2),
    "log": (np.log, 2, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2, 2),
    "expm1": (np.expm1, 2, 2),
    "log1p": (np.log1p, 2, 2),
    "tanh": (np.tanh, 2, 2),
    "sigmoid": (sigmoid, 6, 7),
    "softplus": (softplus, 4, 4),
    "erf": (lambda x: erf(x.astype(np.float64)), 2, 3),
    "erfc": (np.vectorize(math.erfc, otypes=[np.float64]), 4, 5),
    "cbrt": (np.cbrt, 1, 1),
    "sin": (np.sin, 2, 2),
    "cos": (np.cos, 2, 2),
    "sinpi": (lambda x: turned(x, 0), 2, 1),
    "cospi": (lambda x: turned(x, 1), 2, 1),
    "erf_inv": (lambda x: erfinv(x.astype(np.float64)), 3, 6),
    "floor": (np.floor, 0, 0),
    "round": (np.rint, 0, 0),
}


def functions(lanes):
    """Yield the cases of functions that round more than once."""
    for dtype in FLOATS:
        for op, (function, single, double) in FUNCTIONS.items():
            ulps = double if dtype is float64 else single
            ulps = min(ulps, 1) if dtype in HALVES else ulps
            yield op_case(op, lanes, dtype, exactly(function), [dtype], ulps=ulps)


def bits(lanes):
    """Yield what is done to the bits of integers, amounts past the width included."""
    for dtype in (int32, int64):
        width = 8 * dtype.bytes
        unsigned = f"uint{width}"
        for op, function in BITWISE.items():
            yield op_case(op, lanes, dtype, function, [dtype] * 2)
        for op, function in (
            ("bitwise_left_shift", np.left_shift),
            ("shift_right_logical", np.right_shift),
        ):

            def body(b, x, y, op=op):
                return shifted(b, op, x, y)

            def expected(x, y, function=function, width=width, unsigned=unsigned):
                by = y & (2 * width - 1)
                moved = function(x.view(unsigned), (by % width).astype(unsigned))
                return np.where(by < width, moved, 0).astype(unsigned).view(x.dtype)

            yield op_case(op, lanes, dtype, expected, [dtype] * 2, body=body)
    yield op_case("multiply_high", lanes, int32, high_word, [int32] * 2)
    for source, target in (
        *((float32, int32), (float64, int64)),
        *((int32, float32), (int64, float64)),
    ):

        def as_bits(x, target=target):
            return x.view(target.numpy)

        yield op_case("bitcast", lanes, source, as_bits, [source], target=target)


def shifted(b, op, x, y):
    """Shift by amounts from 0 to twice the width."""
    most = const(16 * y.type.dtype.bytes - 1, y.type.dtype, y.type.lanes)
    return b.let(op, x, b.let("bitwise_and", y, most))


BITWISE = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def high_word(x, y):
    """Return the upper halves of unsigned products."""
    wide = x.view(np.uint32).astype(np.uint64) * y.view(np.uint32)
    return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)


def choices(lanes):
    """Yield comparisons, and choices by them: one flag a lane, and one for all."""
    for dtype in (*FLOATS, int32, int64, bool_):
        for op, function in COMPARED.items():
            yield op_case(op, lanes, dtype, function, [dtype] * 2, target=bool_)

        def select(b, x, y):
            return b.let("where", b.let("less", x, y), x, y)

        def least(x, y):
            return np.where(x < y, x, y)

        yield op_case("where", lanes, dtype, least, [dtype] * 2, body=select)


def casts(lanes):
    """Yield conversions: rounded once, truncated, saturated, NaN as 0."""
    every = (*FLOATS, int32, int64, bool_)  # the others at 8 lanes, with float32
    pairs = [*permutations(every, 2)]
    others = [one for one in ALL if one not in every and lanes == 8]
    pairs += [pair for one in others for pair in ((one, float32), (float32, one))]
    for source, target in pairs:

        def cast(b, x, target=target):
            return b.cast(x, target)

        def expected(x, source=source, target=target):
            return x != 0 if target is bool_ else x

        yield op_case(
            f"cast_{target.name}", lanes, source, expected, [source], target=target,
            body=cast,
        )  # fmt: skip


def fused():
    """Yield fused multiply-adds, which lose nothing of the product."""
    for dtype, bits in ((float32, 12), (float64, 27)):
        a = np.full(COUNT, 1 + 2.0**-bits, dtype.numpy)
        c = np.full(COUNT, -1 - 2.0 ** (1 - bits), dtype.numpy)
        kernel = elementwise(
            lambda b, x, z: b.let("fma", x, x, z), [dtype] * 2, dtype, 2
        )
        want = np.full(COUNT, 2.0 ** (-2 * bits), dtype.numpy)
        yield Case(f"fma_{dtype.name}", kernel, (a, c), dtype, want, 0, 2)


def shapes():
    """Yield what makes and takes lanes: reductions, extracts, splats, iota, masks."""
    for dtype in (*HALVES, float32, float64, int32, int64):
        whole = rounded(np.random.default_rng(3).integers(-9, 9, COUNT), dtype)
        rows = valued(whole, dtype).reshape(-1, 8)
        for op, function in (("add", np.sum), ("minimum", np.min), ("maximum", np.max)):
            want = function(rows, axis=1)
            kernel = elementwise(
                lambda b, x, op=op: b.let(f"reduce_{op}", x), [dtype], dtype, 8
            )
            name = f"reduce_{op}_{dtype.name}"
            yield Case(name, kernel, (whole,), dtype, rounded(want, dtype), 0, 8)
        for lane in (0, 5):
            name, want = f"extract_{lane}_{dtype.name}", rounded(rows[:, lane], dtype)
            kernel = elementwise(
                lambda b, x, lane=lane: b.let("extract", x, const(lane, int32)),
                [dtype], dtype, 8,
            )  # fmt: skip
            yield Case(name, kernel, (whole,), dtype, want, 0, 8)
        kernel = elementwise(_spread, [dtype], dtype, 8)
        want = rounded(np.repeat(rows[:, 3], 8) + valued(whole, dtype), dtype)
        yield Case(f"splat_{dtype.name}", kernel, (whole,), dtype, want, 0, 8)
    flags = numbers(bool_)
    for op, function in (("bitwise_and", np.all), ("bitwise_or", np.any)):
        kernel = elementwise(
            lambda b, x, op=op: b.let(f"reduce_{op}", x), [bool_], bool_, 4
        )
        want = function(flags.reshape(-1, 4), axis=1)
        yield Case(f"reduce_{op}_bool", kernel, (flags,), bool_, want, 0, 4)


def block_sums(threads=128):
    """Make y[block] = the block's sum of x: shuffles, a barrier, shared memory."""
    x, y = Buffer("x", float32, N), Buffer("y", float32, N, access="out")
    b = Builder(INT)
    lane = b.thread()
    value = b.load(x, b.at("add", b.at("multiply", b.block(), threads), lane))
    for step in (16, 8, 4):
        value = b.let("add", value, b.let("shuffle_xor", value, const(step, int32)))
    for step in (2, 1):
        value = b.let("add", value, b.let("shuffle_down", value, const(step, int32)))
    parts = b.alloc("parts", float32, threads // 32, "shared")
    first = b.let("equal", b.let("rem", lane, const(32, int32)), const(0, int32))
    with b.branch(first):
        b.store(parts, b.let("div", lane, const(32, int32)), value)
    b.effect("barrier")
    with b.branch(b.let("equal", lane, const(0, int32))):
        total = b.load(parts, 0, threads // 32, alignment=16)
        b.store(y, b.block(), b.let("reduce_add", total))
    return b.kernel("block_sums", [x, y, N], threads=threads)


def staged(threads=64):
    """Make y = x through shared memory, by asynchronous copies of 16, 8 and 4 bytes."""
    x, y = Buffer("x", float32, N), Buffer("y", float32, N, access="out")
    b = Builder(INT)
    room = b.alloc("room", float32, 4 * threads, "shared")
    to = b.at("multiply", b.thread(), 4)
    start = b.at("add", b.at("multiply", b.block(), 4 * threads), to)
    for offset, count in ((0, 2), (2, 1), (3, 1)):
        here, far = b.at("add", to, offset), b.at("add", start, offset)
        number = const(count, int32)
        b.effect("copy_async", room, here, x, far, number, number)
    b.effect("copy_commit")
    b.effect("copy_wait", const(0, int32))
    b.effect("barrier")
    b.effect("copy_async", room, to, x, start, const(4, int32), const(4, int32))
    b.effect("copy_commit")
    b.effect("copy_wait", const(0, int32))
    b.effect("barrier")
    b.store(y, start, b.load(room, to, 4, alignment=16), alignment=16)
    return b.kernel("staged", [x, y, N], threads=threads)


def _spread(b, x):
    return b.let("add", x, b.splat(b.let("extract", x, const(3, int32)), 8))


def everything(*widths):
    """Return all cases, by so many lanes where an operation has them."""
    made = []
    for lanes in widths:
        for family in (arithmetic, functions, bits, choices, casts):
            made += family(lanes)
    return [*made, *fused(), *shapes()]
