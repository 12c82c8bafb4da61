"""Random kernels for the compiler's tests, and how far from the oracle they may be.

`bounds` walks a program as the oracle does and carries a bound of the absolute error
beside every value (running error analysis; Higham, "Accuracy and Stability of
Numerical Algorithms", chapter 3), so that no tolerance is guessed.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, reference
from steelyard_kernels.expression.expr import (
    Apply,
    Broadcast,
    Cast,
    Reduce,
    Reshape,
    operands,
)
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

# Half the distance from 1 to the next number: one rounding's relative error.
UNIT = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
# The largest finite value and the smallest denormal: what rounding adds near zero.
LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}
TINY = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float32": 2.0**-149,
    "float64": 0.0,
}
# Roundings of one operation: emitted exp, log and rsqrt are within 4, what is made of
# them within 14, as the tests of the emitters show; the rest round once.
ROUNDINGS = {"exp": 4, "log": 4, "rsqrt": 4, "tanh": 14, "sigmoid": 14, "softplus": 14}

EXTENTS = (0, 1, 2, 3, 5, 7, 16, 17, 31, 33, 64, 100)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-42, 3e38, 1.0)


def offset(array, by=1):
    """Return a copy whose first element is `by` elements off a cache line."""
    room = np.empty(array.size + 128, array.dtype)
    first = (-room.ctypes.data % 64) // array.itemsize + by
    view = room[first : first + array.size].reshape(array.shape)
    view[...] = array
    return view


def _off(array):
    """Return 1 for what `offset` moved by one element: allocators give even numbers."""
    return array.ctypes.data // array.itemsize % 2


def values(rng, shape, dtype, special=False):
    """Return random values of a dtype (bfloat16 as bits), with special ones mixed in."""
    wide = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape))
    if special and wide.size:
        chosen = rng.random(shape) < 0.2
        wide = np.where(chosen, rng.choice(SPECIAL, shape), wide)
    with np.errstate(over="ignore", under="ignore"):
        if dtype is dtypes.bfloat16:
            return dtypes.to_bfloat16(wide.astype(np.float32))
        if dtype.kind == "int":
            return np.asarray(rng.integers(-50, 50, shape)).astype(dtype.numpy_name)
        if dtype.kind == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        return wide.astype(dtype.numpy_name)


def bounds(program, arrays, scalars):
    """Return, by node number, (value, error bound); infinite where nothing is said."""
    exact = reference.evaluate_nodes(program, arrays, scalars)
    errors = {}
    with np.errstate(all="ignore"):
        for node in program.nodes:
            value = exact[node.number]
            error = np.zeros(value.shape)
            args = operands(node)
            if node.dtype.kind == "float" and args:
                error = _error(node, exact, errors) + _rounding(node, value)
                known = np.all([_finite(errors[a.number]) for a in args])
                odd = ~np.isfinite(value)
                error = np.where(odd, 0.0 if known else np.inf, error)
                over = np.isfinite(value) & (
                    np.abs(value) + error > LARGEST[node.dtype.name]
                )
                error = np.where(over | np.isnan(error), np.inf, error)
            errors[node.number] = error
    return {number: (exact[number], errors[number]) for number in exact}


def _finite(error):
    return bool(np.all(np.isfinite(error)))


def _rounding(node, value):
    name = node.dtype.name
    times = ROUNDINGS.get(node.op, 1) if isinstance(node, Apply) else 1
    # float32 is compared with unrounded float64; halves are rounded on both sides.
    return times * (2 * UNIT[name] * np.abs(value) + TINY[name])


def _error(node, exact, errors):  # noqa: C901 - one case an operation
    args = operands(node)
    v = [exact[a.number] for a in args]
    e = [errors[a.number] for a in args]
    if isinstance(node, Cast | Broadcast):
        return np.broadcast_to(e[0], node.shape)
    if isinstance(node, Reshape):
        return e[0].reshape(node.shape)
    if isinstance(node, Reduce):
        return _reduced(node, v[0], e[0])
    out = exact[node.number]
    match node.op:
        case "add" | "subtract":
            return e[0] + e[1]
        case "multiply":
            cross = np.where(e[1] > 0, np.abs(v[0]) * e[1], 0)
            return cross + np.where(e[0] > 0, np.abs(v[1]) * e[0], 0) + e[0] * e[1]
        case "divide":
            below = np.abs(v[1]) - e[1]
            grown = np.where(e[0] + e[1] > 0, e[0] + np.abs(out) * e[1], 0.0)
            return np.where(grown > 0, np.where(below > 0, grown / below, np.inf), 0.0)
        case "maximum" | "minimum":
            return np.maximum(e[0], e[1])
        case "where":
            return np.where(v[0], e[1], e[2])
        case "sqrt":
            safe = v[0] > 2 * e[0]
            return np.where(e[0] > 0, np.where(safe, e[0] / np.sqrt(v[0]), np.inf), 0.0)
        case "exp":
            return np.where(e[0] > 0, out * np.expm1(e[0]), 0.0)
        case "log" | "rsqrt":
            safe = v[0] > 2 * e[0]
            scale = 2 * e[0] / v[0] * (1 if node.op == "log" else out)
            return np.where(e[0] > 0, np.where(safe, scale, np.inf), 0.0)
        case _:
            return e[0]


def _reduced(node, value, error):
    name = "float32" if node.dtype in dtypes.HALVES else node.dtype.name
    if node.op in {"max", "min"}:
        return np.max(error, axis=-1, keepdims=node.keepdims, initial=0.0)
    count = value.shape[-1]
    spread = np.sum(np.abs(value), axis=-1, keepdims=node.keepdims)
    total = np.sum(error, axis=-1, keepdims=node.keepdims)
    total = total + (count + 2) * UNIT[name] * spread
    return total / (count if node.op == "mean" else 1)


def agree(made, arrays, scalars=None, schedule=None):
    """Run a kernel on copies of the arrays and compare every output with the oracle."""
    program = made.program(*arrays)
    scalars = scalars or {}
    bound = bounds(program, arrays, scalars)
    given = [offset(array, _off(array)) for array in arrays]
    work = made.bind(*given, schedule=schedule, **scalars)
    work.launch()
    for output in program.outputs:
        value, error = bound[output.value.number]
        seen = reference.widen(work.outputs[output.name], output.value.dtype)
        matches(seen, value, error)
    return work


def matches(seen, value, error):
    """Assert that seen is within the error of value; NaN and infinities are equal."""
    said = np.isfinite(error)
    assert seen.shape == value.shape
    if value.dtype.kind != "f":
        np.testing.assert_array_equal(seen[said], value[said])
        return
    np.testing.assert_array_equal(np.isnan(seen)[said], np.isnan(value)[said])
    said &= ~np.isnan(value)
    same = seen == value
    with np.errstate(invalid="ignore"):
        off = ~same & ~(np.abs(seen - value) <= error) & said
    assert not off.any(), (seen[off][:4], value[off][:4], error[off][:4])


def vectors(lanes, unroll=1, turns=1, place=Place.SERIAL, axes="i", **hints):
    """Return a CPU's schedule of one loop over vectors."""
    factors = (lanes, Place.VECTOR), (unroll, Place.REGISTER), (turns, place)
    return Schedule((Cut(axes, factors),), **hints)


def rows_of_vectors(lanes, unroll=1, rows=1, axes="i", inner="j", **hints):
    """Return a CPU's schedule of rows, shared by all threads, each of vectors."""
    (row,) = vectors(lanes, unroll, axes=inner).cuts
    return Schedule((Cut(axes, ((rows, Place.CORE),)), row), **hints)


def blocks(lanes=4, unroll=2, threads=32, axes="i", **hints):
    """Return a GPU's schedule of one loop, by default of small blocks."""
    factors = (lanes, Place.VECTOR), (unroll, Place.REGISTER)
    cut = Cut(axes, (*factors, (threads, Place.THREAD), (1, Place.GRID)))
    return Schedule((cut,), **hints)


UNARY = (
    *("negative", "abs", "sqrt", "exp", "square"),
    *("tanh", "sigmoid", "softplus"),  # whose slopes are at most 1
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


@st.composite
def pointwise_cases(draw, kinds=(dtypes.float32, dtypes.float64, *dtypes.HALVES)):
    """Draw (kernel, arrays): random operations over random broadcasts."""
    dtype = draw(st.sampled_from(kinds))
    shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), min_size=0, max_size=3)))
    count = draw(st.integers(1, 3))
    shapes = [shape] + [_part(draw, shape) for _ in range(count - 1)]
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from((*UNARY, *BINARY, "where", "scalar", "number")),
                st.integers(0, 99),
                st.integers(0, 99),
            ),
            min_size=1,
            max_size=6,
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    special = draw(st.booleans())
    arrays = [values(rng, s, dtype, special) for s in shapes]
    if draw(st.booleans()):
        arrays = [offset(array, 1) for array in arrays]
    return _random_kernel(count, steps), arrays


def _part(draw, shape):
    """Draw a shape that broadcasts to another."""
    part = tuple(1 if draw(st.booleans()) else extent for extent in shape)
    return part[draw(st.integers(0, len(part))) :]


def _random_kernel(count, steps):  # noqa: C901 - a signature for each count
    def body(arrays, scale):
        made = list(arrays)
        for op, i, j in steps:
            a, b = made[i % len(made)], made[j % len(made)]
            if op == "where":
                x, y = arrays[i % count], arrays[j % count]
                made.append(xp.where(x < y, a, b))
            elif op == "scalar":
                made.append(a * scale)
            elif op == "number":
                made.append(1.5 - a)
            elif op in UNARY:
                made.append(getattr(xp, op)(a))
            else:
                made.append(getattr(xp, op)(a, b))
        return xp.broadcast_to(made[-1], xp.add(made[-1], arrays[0]).shape)

    if count == 1:

        def random(a, *, scale=0.75):
            return body((a,), scale)
    elif count == 2:

        def random(a, b, *, scale=0.75):
            return body((a, b), scale)
    else:

        def random(a, b, c, *, scale=0.75):
            return body((a, b, c), scale)

    return kernel(random)


# What smaller outputs may be of a pass over the larger: rows, columns, one element.
MIXED = (
    *(((455, 9), (9,)), ((40, 8), (40, 1)), ((1000,), ()), ((3, 4, 5), (4, 1))),
    *(((3, 4, 5), (3, 1, 5)), ((2048, 2), (2,)), ((9,), (45, 9)), ((6, 5), (1, 1))),
    *(((1,), ()), ((96, 128), (128,)), ((0, 3), (0, 1))),
)


def mixed(x, y):
    """Return values of several shapes."""
    return {"both": x + y, "twice": y * 2.0, "third": xp.tanh(y)}
