"""The scan strategy on the CPU: loops with state against the oracle, by any schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import offset, values

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, reference
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.scan.schedule import Scan
from steelyard_kernels.targets import machine
from steelyard_kernels.vmap import vmap

FLOATS = [dtypes.float32, dtypes.float64]
EPSILON = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
SCHEDULES = st.builds(
    Scan,
    lanes=st.sampled_from([1, 2, 4, 8, 16]),
    unroll=st.integers(1, 5),
    ahead=st.sampled_from([0, 2, 8, 16]),
    threads=st.sampled_from([0, 1]),
    chunk=st.integers(1, 3),
)


def normal(*shape, dtype=dtypes.float32, seed=0):
    """Return random numbers of a shape."""
    return values(np.random.default_rng(seed), shape, dtype)


def runs(made, arrays, schedule, **scalars):
    """Run a kernel beside the oracle, compare every output, and return them all.

    The error is a few roundings for each of the states a result may have gone through:
    all loops here contract, so that errors do not grow. What cancels has summands of
    about one.
    """
    expected = reference.evaluate(made.program(*arrays), arrays, scalars)
    given = [offset(array, place % 2) for place, array in enumerate(arrays)]
    work = made.bind(*given, schedule=schedule, **scalars)
    work.launch()
    assert list(work.outputs) == list(expected)
    for name, want in expected.items():
        seen = work.outputs[name]
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(seen, want)
            continue
        epsilon = EPSILON[seen.dtype.name]
        size = max(1.0, np.sqrt(np.mean(np.square(want)))) if want.size else 0.0
        assert (np.abs(seen - want) <= 64 * epsilon * (np.abs(want) + size)).all()
    return list(work.outputs.values())


def mlp(x, w1, w2, noise):
    """Return the last state of two layers with noise, and all states."""

    def step(x, n):
        x = xp.tanh(xp.tanh(x @ w1) @ w2) + n
        return x, x

    return xp.scan(step, x, noise)


def moderate(rng, shape, dtype):
    """Return numbers near one, of which sums of products stay finite."""
    return rng.uniform(-1, 1, shape).astype(dtype.numpy_name)


# Straight programs.


@given(
    schedule=SCHEDULES,
    lead=st.sampled_from([(), (1,), (3,), (2, 3), (20,)]),
    inner=st.sampled_from([1, 2, 3, 7, 16, 33]),
    columns=st.sampled_from([1, 2, 5, 16, 17, 33]),
    dtype=st.sampled_from([*FLOATS, dtypes.float16]),
)
@settings(max_examples=80)
def test_products_of_any_small_shapes_agree(schedule, lead, inner, columns, dtype):
    """Whichever axes are longest, in a plain product and with transposed operands."""
    rng = np.random.default_rng(0)
    a, b = moderate(rng, (*lead, inner), dtype), moderate(rng, (inner, columns), dtype)

    @kernel
    def product(a, b):
        return a @ b

    @kernel
    def computed(a, b):
        return (a * 2.0) @ (b + 1.0).T.T

    runs(product, [a, b], schedule)
    runs(computed, [a, b], schedule)


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (4, 3), (2, 17), (17, 2)])
def test_values_change_their_shape_in_registers(lanes, shape):
    """Reshapes, transposes, rows, broadcasts and reductions of what was computed."""
    x = normal(*shape, dtype=dtypes.float32)

    @kernel
    def shapes(x):
        y = x * 2.0
        size = int(np.prod(shape))
        flat = xp.reshape(y, (size,))
        column = xp.reshape(y, (size, 1))
        return {
            "flat": flat,
            "outer": flat + column,
            "turned": column.T - flat,
            "first": y[0] * 1.0,
            "last": y[shape[0] - 1] + y[0],
            "total": xp.sum(flat * flat, axis=-1),
            "spread": xp.var(y, axis=-1, keepdims=True) + y,
            "least": xp.min(column, axis=-1) + xp.max(flat, axis=-1),
            "counted": xp.arange(size) + 1,
        }

    runs(shapes, [x], Scan(lanes, 1, 0, 1, 1))


def test_rows_in_registers_vary_as_accurately_as_numpys():
    """Far from zero as well, and constant rows not at all."""
    far = normal(37, 4) + np.array([0, 4, 1e3, 1e5])
    x = np.concatenate([far, np.full((37, 2), [0.1, -1e5 / 3])], axis=1)

    @kernel
    def columns(x):
        var = xp.var(x.T, axis=-1, keepdims=True)
        return {"var": var, "out": (x.T - xp.mean(x.T, axis=-1, keepdims=True)) * var}

    x = x.astype(np.float32)
    seen = columns(x)
    exact = x.astype(np.longdouble).var(0)
    numpys = np.maximum(abs(x.var(0) - exact), 2.0**-23 * exact)
    assert (abs(seen["var"][:, 0] - exact) <= 4 * numpys).all()
    assert not seen["var"][4:].any()
    assert not seen["out"][4:].any()


def test_empty_values_are_fine():
    """A sum over nothing is 0, and a value without elements costs none."""

    @kernel
    def nothing(a, b, c):
        return {
            "dot": a @ b,
            "none": xp.reshape(c, (3, 0)),
            "sum": a @ b + xp.sum(a, axis=-1, keepdims=True),
        }

    empty = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    runs(nothing, [*empty, np.zeros((0, 3), np.float32)], None)


def test_small_results_may_have_several_shapes():
    """Large ones that broadcast to no one shape are a kernel each."""

    @kernel
    def several(x, y):
        return {"a": x + 1.0, "b": xp.reshape(y, (2,)) * 2.0, "c": y + 1.0}

    runs(several, [normal(3), normal(2, 1)], None)
    built = several.build(((5000,), "float32"), ((2, 1), "float32"))
    assert "make a kernel for each" in built.error


# Loops.


@given(
    schedule=SCHEDULES,
    length=st.integers(0, 20),
    hidden=st.sampled_from([1, 2, 12, 17]),
    dtype=st.sampled_from(FLOATS),
)
@settings(max_examples=60)
def test_a_scan_agrees_by_any_schedule(schedule, length, hidden, dtype):
    """Its last carry and every state, for any number of iterations and any width."""
    rng = np.random.default_rng(length)
    arrays = [
        moderate(rng, shape, dtype)
        for shape in ((1,), (1, hidden), (hidden, 1), (length, 1))
    ]
    runs(kernel(mlp), arrays, schedule)


@pytest.mark.parametrize("width", [1, 3, 16, 64, 100, 256])
def test_a_state_may_be_up_to_256_wide(width):
    """Whatever part of a vector is left over."""
    rng = np.random.default_rng(width)
    arrays = [
        moderate(rng, shape, dtypes.float32) for shape in ((width,), (width,), (9, 1))
    ]

    @kernel
    def smooth(x, w, noise):
        def step(x, n):
            x = xp.tanh(x * w) - xp.mean(x, axis=-1, keepdims=True) + n
            return x, xp.max(x, axis=-1)

        return xp.scan(step, x, noise)

    runs(smooth, arrays, None)


@given(schedule=SCHEDULES, length=st.integers(-3, 20))
@settings(max_examples=60)
def test_every_iteration_is_counted_once_by_any_unrolling(schedule, length):
    """A loop whose length the launch says runs so often, or never if it is negative."""

    @kernel
    def count(x, *, n=1):
        def step(carry, _):
            total, turns = carry
            return (total + xp.astype(turns, "int64"), turns + 1), None

        return xp.scan(step, (x, 0), length=n)[0]

    start = np.array(5, np.int64)
    total, turns = runs(count, [start], schedule, n=length)
    ran = max(0, length)
    assert (total, turns) == (5 + ran * (ran - 1) // 2, ran)


@given(schedule=SCHEDULES, most=st.integers(0, 20), ends=st.integers(0, 24))
@settings(max_examples=60)
def test_a_condition_ends_a_loop_before_the_iteration_it_forbids(schedule, most, ends):
    """By any unrolling and however much was computed ahead; never after `most`."""

    @kernel
    def until(x):
        def body(carry):
            y, turns, total = carry
            return y + 1.0, turns + 1, total + wave(turns)

        return xp.while_loop(lambda c: c[0] < float(ends), body, (x, 0, x), most)

    @kernel
    def by_index(x):
        def step(carry, i):
            return (carry[0] + 1.0, carry[1] + wave(i)), None

        return xp.scan(step, (x, x), xp.arange(most))[0]

    zero = np.array(0.0, np.float32)
    y, turns, _ = runs(until, [zero], schedule)
    assert (y, turns) == (min(most, ends), min(most, ends))
    assert runs(by_index, [zero], schedule)[0] == most


def wave(index):
    """Return what is worth computing ahead of an index."""
    angle = xp.astype(index, "float32") * 0.37
    return xp.tanh(angle) * xp.exp(-angle) + xp.sigmoid(angle) - xp.sqrt(xp.abs(angle))


@given(schedule=SCHEDULES, length=st.integers(0, 40), width=st.sampled_from([1, 2, 3]))
@settings(max_examples=40)
def test_what_needs_no_carry_is_the_same_computed_ahead(schedule, length, width):
    """One value or a few for an iteration, of the index and of what is outside."""
    weights = np.linspace(-1, 1, width, dtype=np.float32)

    @kernel
    def driven(x, w):
        def step(x, i):
            x = 0.5 * x + wave(i) * xp.exp(w * wave(i))
            return x, xp.sum(x, axis=-1)

        return xp.scan(step, x, xp.arange(length))

    runs(driven, [weights, weights], schedule)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("schedule", [Scan(4, 1, 0, 1, 1), Scan(16, 3, 8, 1, 1)])
def test_rows_are_read_and_stacked_from_either_end(reverse, schedule):
    """Rows of an input and of what an earlier loop stacked, which nobody else sees."""
    xs = normal(13, 5)

    @kernel
    def both(x, xs):
        def first(x, row):
            x = xp.tanh(x + row)
            return x, x

        def second(x, pair):
            row, kept = pair
            x = xp.tanh(x - kept * row)
            return x, (x, xp.sum(kept, axis=-1))

        last, kept = xp.scan(first, x, xs)
        last, (ys, sums) = xp.scan(second, last, (xs, kept), reverse=reverse)
        return last, ys, sums

    runs(both, [xs[0], xs], schedule)


@given(schedule=SCHEDULES, outer=st.integers(0, 5), inner=st.integers(0, 6))
@settings(max_examples=40)
def test_loops_nest_and_keep_rows_between_them(schedule, outer, inner):
    """An inner loop's rows are scratch memory of one iteration of the outer one."""

    @kernel
    def nested(x, xs):
        def turn(x, row):
            def forth(y, i):
                y = xp.tanh(y + row * xp.astype(i, "float32"))
                return y, y * 2.0

            y, kept = xp.scan(forth, x, xp.arange(inner))
            z, _ = xp.scan(lambda z, k: (xp.tanh(z + k), None), y, kept, reverse=True)
            return z, xp.sum(z, axis=-1)

        return xp.scan(turn, x, xs)

    xs = np.linspace(-1, 1, outer * 3, dtype=np.float32).reshape(outer, 3)
    runs(nested, [np.ones(3, np.float32), xs], schedule)


def test_whole_stacks_are_computed_with():
    """What a loop stacked is a value like others once it has ended."""

    @kernel
    def gathered(x):
        _, ys = xp.scan(lambda x, i: (x * 0.5, x), x, xp.arange(6))
        return {"ys": ys, "scaled": ys * 2.0, "last": xp.sum(ys, axis=-1)}

    runs(gathered, [np.float32([1, 2, 3])], None)


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "float16", "float64"])
def test_carries_of_any_dtype(dtype):
    """Integers wrap, bools are bytes in memory, halves round after every operation."""

    @kernel
    def carried(x):
        def step(x, i):
            if dtype == "bool":
                x = xp.logical_not(x)
            elif dtype.startswith("int"):
                x = x * 1103515245 + 12345
            else:
                x = x * 0.75 + 0.5
            return x, x

        return xp.scan(step, x, xp.arange(11))

    runs(carried, [np.array([1, 0, 1, 3, 5]).astype(dtype)], Scan(4, 2, 0, 1, 1))


def test_a_row_may_be_asked_for_by_what_an_input_says():
    """An index that only the launch knows is brought into range."""

    @kernel
    def chosen(x, i):
        return x[i] + x[0]

    x = normal(4, 3)
    for index in range(4):
        runs(chosen, [x, np.array(index, np.int64)], None)


# Chains.


ACROSS = st.builds(
    Scan,
    lanes=st.sampled_from([2, 4, 16]),
    unroll=st.integers(1, 3),
    ahead=st.just(0),
    threads=st.sampled_from([0, 1]),
    chunk=st.integers(1, 20),
    across=st.just(True),
)


@given(
    schedule=st.one_of(SCHEDULES, ACROSS),
    chains=st.sampled_from([2, 3, 7, 17]),
    length=st.integers(0, 9),
)
@settings(max_examples=40)
def test_chains_are_as_if_each_ran_alone(schedule, chains, length):
    """Mapped operands differ by chain, others are shared; so with conditions."""
    rng = np.random.default_rng(chains)
    x, w1, w2, noise = (
        moderate(rng, shape, dtypes.float32)
        for shape in ((chains, 1), (1, 12), (chains, 12, 1), (length, 1))
    )

    def one(x, w1, w2, noise):
        last, every = mlp(x, w1, xp.tanh(w2), noise)
        far, turns = xp.while_loop(
            lambda c: xp.sum(xp.abs(c[0]), axis=-1) > 0.01,
            lambda c: (c[0] * 0.5, c[1] + 1),
            (last, 0),
            30,
        )
        return last, every, far, turns, xp.sum(w1, axis=-1)

    runs(kernel(vmap(one, (0, None, 0, None))), [x, w1, w2, noise], schedule)


@pytest.mark.parametrize("schedule", [None, Scan(4, 2, 0, 1, 1, across=True)])
def test_chains_keep_rows_of_their_own(schedule):
    """In scratch memory, in outputs, and in memory between two loops."""

    def one(x, xs):
        def turn(x, row):
            y, kept = xp.scan(lambda y, i: (xp.tanh(y + row), y), x, xp.arange(3))
            z, _ = xp.scan(lambda z, k: (xp.tanh(z + k), None), y, kept, reverse=True)
            return z, xp.sum(z, axis=-1)

        last, sums = xp.scan(turn, x, xs)
        total, _ = xp.scan(lambda t, s: (t + s, None), 0.0 * sums[0], sums)
        return last, total

    runs(kernel(vmap(one)), [normal(6, 3), normal(6, 4, 3)], schedule)


def test_chains_that_look_at_different_rows_have_no_common_lanes():
    """A vector is loaded of one place; the schedule is refused, others are there."""

    @kernel
    def picked(x, at):
        return vmap(lambda x, i: x[i] * 2.0)(x, at)

    arrays = [normal(3, 4), np.array([2, 0, 3])]
    runs(picked, arrays, None)
    with pytest.raises(KernelError, match="they go to different rows"):
        picked.bind(*arrays, schedule=Scan(4, 1, 0, 1, 1, across=True))
    every = strategies.candidates(picked.program(*arrays), machine())
    assert not any(schedule.across for schedule in every)


@pytest.mark.parametrize("across", [False, True])
def test_what_ended_does_not_begin_again(across):
    """Its condition would hold once more behind the one that it ended at."""

    def one(x):
        return xp.while_loop(lambda c: (c < 3.0) | (c > 3.5), lambda c: c + 1.0, x, 20)

    schedule = Scan(4, 5, 0, 1, 4, across=across)
    x = np.array([0.0, 3.25, 1.0, 9.0, 2.0], np.float32)
    (ends,) = runs(kernel(vmap(one)), [x], schedule)
    assert ends.tolist() == [3.0, 3.25, 3.0, 29.0, 3.0]


def test_chains_that_read_nothing_of_their_own_are_written_all():
    """A pass that makes the program again keeps how many there are."""

    def one(x, w, *, n: int = 3):
        return xp.while_loop(
            lambda c: c[1] < n, lambda c: (c[0] * 0.5, c[1] + 1), (w, 0), 5
        )

    made = kernel(vmap(one, (0, None)))
    halved, counts = runs(made, [normal(3), normal(2, 3)], None, n=3)
    assert halved.shape == (3, 2, 3)
    assert counts.tolist() == [3, 3, 3]


def test_many_chains_fill_vectors_with_chains():
    """What is left over of vectors by small shapes is not, by many chains."""
    shapes = [((4096, 1), "float32"), ((1, 12), "float32"), ((12, 1), "float32")]

    def one(x, w1, w2):
        return xp.scan(lambda x, _: (xp.tanh(x @ w1) @ w2, None), x, length=500)[0]

    made = kernel(vmap(one, (0, None, None)))
    assert strategies.heuristic(made.program(*shapes), machine()).across


# Every schedule, and what has none.


def test_every_candidate_agrees_and_the_chosen_one_is_among_them():
    """Schedules differ in speed only."""
    rng = np.random.default_rng(3)
    arrays = [
        moderate(rng, shape, dtypes.float32)
        for shape in ((1,), (1, 12), (12, 1), (50, 1))
    ]
    made = kernel(mlp)
    program = made.program(*arrays)
    every = strategies.candidates(program, machine())
    assert strategies.heuristic(program, machine()) in every
    assert len(every) == len(set(every)) >= 6
    for schedule in every:
        runs(made, arrays, schedule)


def test_a_value_too_large_for_a_chain_is_refused_by_name():
    """It would be text for a thousand vectors."""
    built = kernel(large).build(((8192,), "float32"), ((8192,), "float32"))
    assert "a value of shape (8192,) takes registers for 8192" in built.error


def large(x, w):
    """Return a loop over more than a chain holds."""
    return xp.scan(lambda x, _: (x * w, None), x, length=3)[0]


@pytest.mark.parametrize(
    ("knobs", "what"),
    [((3, 1, 0), "lanes 3"), ((4, 0, 0), "0 iterations"), ((4, 1, 5), "ahead 5")],
)
def test_knobs_without_a_meaning_are_refused(knobs, what):
    """A vector has a power of two of lanes, a turn at least one iteration."""
    schedule = Scan(*knobs, 1, 1)
    with pytest.raises(KernelError, match=what):
        kernel(mlp).bind(
            normal(1), normal(1, 2), normal(2, 1), normal(3, 1), schedule=schedule
        )
