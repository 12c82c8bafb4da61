"""Lines of any length in order: as NumPy has them, by one kernel or by several launches."""

import numpy as np
import pytest
import simt
import simt_tiles
from corpus import SPECIAL
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.plan import orders, partition
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import device, machine, parse

GPU = device(parse("cuda:sm_90a"))
LENGTHS = (0, 1, 2, 13, 64, 65, 131, 2053, 4097)
DTYPES = [
    kind.name for kind in dtypes.ALL if kind is not dtypes.float8_e4m3fn
]  # no infinity


def drawn(shape, dtype):
    """Return values with ties; of floats with NaN, infinities and zeros of both signs."""
    rng, kind = np.random.default_rng(sum(shape)), dtypes.of(dtype)
    if kind.kind == "bool":
        return rng.random(shape) < 0.5
    if kind.kind == "int":
        near = rng.integers(0, 9, shape).astype(kind.numpy)
        ends = rng.choice(np.array([kind.smallest, kind.largest], kind.numpy), shape)
        return np.where(rng.random(shape) < 0.3, ends - near * (ends > 0), near)
    wide = rng.integers(-40, 41, shape) * 2.0 ** rng.integers(-2, 3, shape)
    wide = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), wide)
    return dtypes.rounded(wide, kind)


def placed(x, axis, *, back=False):
    """Return the order that NumPy has, of equal values the first one first."""
    exact = x.astype(np.float64) if dtypes.of(x.dtype).kind == "float" else x
    if not back:
        return np.argsort(exact, axis, kind="stable")
    turned = np.flip(exact, axis)
    return x.shape[axis] - 1 - np.flip(np.argsort(turned, axis, kind="stable"), axis)


def both(axis):
    """Return a function that has lines in order, both ways."""

    def function(x):
        return (
            xp.argsort(x, axis=axis),
            xp.sort(x, axis=axis),
            xp.argsort(x, axis=axis, descending=True),
        )

    return function


def check(found, x, axis):
    """Hold what `both` gives against NumPy."""
    order = placed(x, axis)
    back = placed(x, axis, back=True)
    for seen, want in zip(
        found, (order, np.take_along_axis(x, order, axis), back), strict=True
    ):
        assert np.asarray(seen).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_lines_are_in_order(dtype):
    """Of every dtype and of lengths for each of the ways in which they are sorted.

    Each dtype takes every second length. Lines of every dtype, and of every length, lie
    along both axes.
    """
    turn = DTYPES.index(dtype)
    for place, length in list(enumerate(LENGTHS))[turn // 2 % 2 :: 2]:
        axis = (place // 2 + turn) % 2
        x = drawn((3, length) if axis else (length, 3), dtype)
        check(kernel(both(axis))(x), x, axis)


@pytest.fixture
def short(monkeypatch):
    """Have chunks of few elements."""
    monkeypatch.setattr(orders, "MOST_THREAD", 1 << 12)
    monkeypatch.setattr(orders, "LEAST", 1 << 8)
    monkeypatch.setattr(orders, "MOST_BLOCK", 1 << 10)


@pytest.mark.parametrize(
    ("dtype", "length", "axis"),
    [
        ("float32", 4099, 0),
        ("int64", 4096, 1),
        ("float16", 4099, 1),
        ("int64", 4099, 0),
    ],
)
@pytest.mark.usefixtures("short")
def test_long_lines_are_those_of_merged_chunks(dtype, length, axis):
    """Four or eight of them, on either axis, with elements behind their ends or none."""
    x = drawn((2, length) if axis else (length, 2), dtype)
    made = kernel(both(axis))
    assert made.build(x).parts[-1].program.inputs
    check(made(x), x, axis)


def ran(program, arrays):
    """Return what launches give on a simulated GPU, by the outputs' names."""
    plan = partition.partition(program, GPU)
    values = {node.name: x for node, x in zip(program.inputs, arrays, strict=True)}
    for launch in plan.launches:
        part = launch.program
        made = strategies.lower(part, strategies.heuristic(part, GPU), GPU)
        reads = zip(part.inputs, launch.reads, strict=True)
        given = [values[home].reshape(each.shape) for each, home in reads]
        run = simt_tiles.launch if made.kernel.cluster > 1 else simt.launch
        found = run(part, made, given)
        for name, want in evaluate(part, given).items():
            np.testing.assert_array_equal(found[name].reshape(want.shape), want)
        values |= zip(launch.writes, found.values(), strict=True)
    return [values[out.name].reshape(out.value.shape) for out in program.outputs]


@pytest.mark.parametrize(
    ("dtype", "axis"), [("float32", 0), ("float64", 1), ("uint8", 0)]
)
@pytest.mark.usefixtures("short")
def test_long_lines_are_merged_by_a_gpus_threads(dtype, axis):
    """What each launch stores is the oracle's, of merges as of orders."""
    x = drawn((2, 1031) if axis else (1031, 2), dtype)
    program = simplify(kernel(both(axis)).program(x))
    check(ran(program, [x]), x, axis)


def test_threads_beyond_the_end_merge_nothing():
    """Where more of them walk a line than it has elements: all read within the runs."""
    x = np.arange(4101.0)[::-1].copy()

    def product(x):
        line = xp.sort(x)[None]
        return line @ line.T

    (found,) = ran(simplify(kernel(product).program(x)), [x])
    np.testing.assert_allclose(found, np.sum(x * x), 1e-12)


@pytest.mark.parametrize("length", [600, 2049, 4101])
def test_a_gpu_takes_one_element_of_long_lines(length):
    """No thread keeps such a line, and no axis of the result is shared by several."""
    line = np.random.default_rng(0).permutation(length) * 1.0
    x = np.stack([line, line[::-1]])

    def middle(x):
        line = xp.sort(x, axis=1)
        which = xp.argsort(x, axis=1)[:, length // 3]
        return line[:, length // 2], which, xp.topk(x, 1, axis=1)[0]

    def last(x):
        return xp.cumulative_sum(x, axis=1)[:, -1:]

    middles, which, most = ran(simplify(kernel(middle).program(x)), [x])
    np.testing.assert_array_equal(middles, np.sort(x)[:, length // 2])
    np.testing.assert_array_equal(which, np.argsort(x)[:, length // 3])
    np.testing.assert_array_equal(most, np.max(x, axis=1, keepdims=True))
    (total,) = ran(simplify(kernel(last).program(x)), [x])
    np.testing.assert_array_equal(total[:, 0], np.sum(x, axis=1))


def first(count, largest=True):
    """Return a function that has the first elements of rows."""
    return lambda x: xp.topk(x, count, largest=largest)


LINES = {
    "drawn": lambda length: drawn((2, length), "float32"),
    "up": lambda length: np.tile(np.arange(length, dtype=np.float32), (2, 1)),
    "down": lambda length: np.tile(-np.arange(length, dtype=np.float32), (2, 1)),
    "equal": lambda length: np.ones((2, length), np.float32),
    "nan": lambda length: np.full((2, length), np.nan, np.float32),
    "int64": lambda length: drawn((2, length), "int64"),
    "least": lambda length: np.full((2, length), np.iinfo(np.int32).min, np.int32),
}


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize(("length", "count"), [(1013, 1), (4097, 5), (4097, 700)])
def test_the_first_are_chosen(lines, length, count):
    """Whatever the order in which they come, and of equal ones the first."""
    x = LINES[lines](length)
    for largest in (True, False):
        order = placed(x, 1, back=largest)[:, :count]
        values, places = kernel(first(count, largest))(x)
        np.testing.assert_array_equal(places, order)
        assert values.tobytes() == np.take_along_axis(x, order, 1).tobytes()


def test_one_is_found_without_an_order():
    """By two reductions, as the place of the largest."""
    x = drawn((2, 4097), "float32")
    for largest in (True, False):
        nodes = simplify(kernel(first(1, largest)).program(x)).nodes
        assert not any(getattr(node, "op", "") == "order" for node in nodes)


@pytest.mark.parametrize("count", [2, 20, 150])
@pytest.mark.usefixtures("short")
def test_the_first_of_long_lines_are_those_of_their_chunks(count):
    """Chosen again from what these offer, where there are so few; on both targets."""
    x = drawn((2, 2053), "float32")
    several, made = replace(machine(), threads=8), kernel(first(count))
    plan = partition.partition(simplify(made.program(x)), several)
    assert len(plan.launches) > 1
    order = placed(x, 1, back=True)[:, :count]
    values = np.take_along_axis(x, order, 1)
    for found in (made(x), ran(simplify(made.program(x)), [x])):
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], order)


@pytest.mark.parametrize("several", [1, 3])
def test_a_running_total_that_is_computed_twice_is_one_number(several):
    """By one order of additions, so that the largest is one of them."""

    @kernel
    def where_largest(x, w):
        total = xp.cumulative_sum(x, axis=3)
        most = xp.max(total, axis=0, keepdims=True)
        hits = xp.flip(xp.where(total == most, w, 0.0), axis=3)
        zeros = xp.zeros((x.shape[0], several, 1, x.shape[3]), x.dtype)
        return xp.flip(xp.cumulative_sum(hits, axis=3), axis=3), zeros

    for rows, columns in ((2, 5), (3, 33), (5, 16)):
        rng = np.random.default_rng(rows)
        x, w = rng.standard_normal((rows, 1, 1, columns)), np.ones(columns)
        found, _ = where_largest(x, w)
        assert (found[:, 0, 0].sum(0)[0], found.min()) == (columns, 0)


@pytest.mark.parametrize("length", [1 << 16, 300_007])
def test_long_lines_have_kernels(length):
    """A thread's memory holds 262,144 elements, a block's 4096."""
    x = np.random.default_rng(1).integers(-999, 999, length).astype(np.float32)
    check(kernel(both(0))(x), x, 0)
    for target in ("cuda:sm_90a", "nvptx:sm_90a"):
        assert isinstance(kernel(both(0)).build(x, target=target), Artifact)


@pytest.mark.parametrize(
    ("lines", "length", "count"), [(1, 1 << 16, 1), (1, 1 << 20, 4), (64, 5000, 1)]
)
def test_chunks_are_as_many_as_pay(lines, length, count):
    """By what is predicted for eight cores: many lines, and short ones, have none."""
    eight = replace(machine(), threads=8)
    found, chooses = orders.Orders(eight).count(lines, length, length, 4)
    assert (found >= count, chooses) == (True, False)
    assert (
        orders.Orders(replace(eight, threads=1)).count(1, 1 << 16, 1 << 16, 4)[0] == 1
    )
