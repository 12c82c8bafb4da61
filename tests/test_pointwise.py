"""Fused broadcasts on a CPU against the oracle, under every schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import (
    MIXED,
    agree,
    mixed,
    offset,
    pointwise_cases,
    rows_of_vectors,
    values,
    vectors,
)

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, library
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.build import build
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.targets import machine


@given(pointwise_cases(), st.integers(0, 10**6))
@settings(max_examples=60)
def test_random_broadcasts_agree_with_the_oracle(case, pick):
    """Any operations, shapes, dtypes, special values and schedule: within the bound."""
    made, arrays = case
    program = made.program(*arrays)
    schedule = None
    if 0 not in program.outputs[0].value.shape:
        every = strategies.candidates(program, machine())
        schedule = every[pick % len(every)]
    agree(made, arrays, {"scale": 0.75}, schedule)


def test_what_rows_and_elements_both_take_is_computed_for_both():
    """One value that a row compares with and its elements choose."""

    @kernel
    def chosen(a, b, c):
        return xp.where(b < c, c, -a)

    rng = np.random.default_rng(2)
    shapes = ((2, 1, 2), (2, 1, 1), (1, 1, 1))
    agree(chosen, [values(rng, shape, dtypes.float32) for shape in shapes])


def test_every_candidate_of_a_typical_shape_runs_and_agrees():
    """At least 12 candidates have distinct code, and all give the oracle's values."""
    rng = np.random.default_rng(1)
    arrays = [
        values(rng, (37, 100), dtypes.float32),
        values(rng, (100,), dtypes.float32),
    ]

    @kernel
    def fused(a, b):
        return xp.maximum(a * b, 0.0) + 1.0

    program = fused.program(*arrays)
    hashes = set()
    for schedule in strategies.candidates(program, machine())[::5]:
        hashes.add(agree(fused, arrays, schedule=schedule).built.code_hash)
    assert len(hashes) >= 12


def test_one_binary_serves_every_size_of_one_axis():
    """The extent of a collapsed space is a runtime parameter, not part of the code."""
    small = library.triad.build(((100,), "float32"), ((100,), "float32"))
    large = library.triad.build(((7, 13), "float32"), ((7, 13), "float32"))
    assert small.code_hash == large.code_hash
    assert small.slots[-1].index == 100
    assert large.slots[-1].index == 91


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 33, 100, 4097])
def test_tails_and_unaligned_bases(count):
    """Every remainder, with arrays that start one element off a cache line."""
    rng = np.random.default_rng(count)
    arrays = [offset(values(rng, (count,), dtypes.float32)) for _ in range(2)]
    out = offset(np.full(count, np.nan, np.float32))
    library.triad.bind(*arrays, out=out, s=0.5).launch()
    np.testing.assert_allclose(out, arrays[0] + 0.5 * arrays[1], rtol=3e-7)


def test_nothing_is_written_past_the_end():
    """Elements before and behind the output stay as they were."""
    room = np.full(300, 7.0, np.float32)
    a = np.ones(100, np.float32)
    for schedule in strategies.candidates(library.copy.program(a), machine())[::7]:
        if not schedule.streaming:
            library.copy.bind(a, out=room[100:200], schedule=schedule).launch()
    assert (room[:100] == 7).all()
    assert (room[200:] == 7).all()
    assert (room[100:200] == 1).all()


def test_halves_are_rounded_after_every_operation_exactly():
    """float16 and bfloat16 arithmetic is bit for bit the oracle's."""
    rng = np.random.default_rng(2)

    @kernel
    def half(a, b):
        return (a + b) * a - b / (a * a + 1.0)

    for dtype in dtypes.HALVES:
        arrays = [values(rng, (1000,), dtype) for _ in range(2)]
        from steelyard_kernels import reference

        expected = reference.evaluate(half.program(*arrays), arrays)["out"]
        seen = reference.widen(half(*arrays), dtype)
        np.testing.assert_array_equal(seen, expected)


def test_integers_and_booleans():
    """Integers wrap, comparisons and logic give booleans."""
    rng = np.random.default_rng(3)
    a, b = (values(rng, (77,), dtypes.int64) for _ in range(2))

    @kernel
    def mixed(a, b):
        inside = (a < b) & ~(a == 3)
        return {
            "inside": inside,
            "picked": xp.where(inside, a * b, -a),
            "c": abs(a - b),
        }

    outputs = mixed(a, b)
    inside = (a < b) & ~(a == 3)
    np.testing.assert_array_equal(outputs["inside"], inside)
    np.testing.assert_array_equal(outputs["picked"], np.where(inside, a * b, -a))
    np.testing.assert_array_equal(outputs["c"], np.abs(a - b))


def test_generated_text_of_triad(golden):
    """The loops of a fused broadcast, as they are also run above."""
    program = library.triad.program(((1000,), "float32"), ((1000,), "float32"))
    lowered = strategies.lower(program, vectors(16, 2, 128, Place.CORE), machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))
    arrays = [np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)]
    agree(
        library.triad,
        arrays,
        {"s": 3.0},
        vectors(16, 2, 128, Place.CORE),
    )


def test_generated_text_of_a_broadcast(golden):
    """Rows by number, a value spread once a row, streaming stores, a masked tail."""
    specs = (((5, 3, 40), "float32"), ((5, 1, 1), "float32"), ((40,), "float32"))

    @kernel
    def shifted(x, row, column):
        return x * row + column

    hints = {"streaming": True, "prefetch": 256}
    schedule = rows_of_vectors(16, 2, 1, "ij", "k", **hints)
    lowered = strategies.lower(shifted.program(*specs), schedule, machine())
    verify(lowered.kernel)
    golden(loops_print.text(lowered.kernel))
    rng = np.random.default_rng(4)
    arrays = [values(rng, shape, dtypes.float32) for shape, _ in specs]
    agree(shifted, arrays, schedule=schedule)


def test_streaming_needs_aligned_rows_and_bases():
    """A streaming schedule is refused where its stores could not be aligned."""
    a = np.ones((4, 33), np.float32)
    b = np.ones(33, np.float32)

    @kernel
    def add(a, b):
        return a + b

    schedule = rows_of_vectors(16, streaming=True)
    failed = add.build(a, b, schedule=schedule)
    assert "choose a schedule without streaming" in failed.error
    out = offset(np.empty((4, 32), np.float32))
    with pytest.raises(KernelError, match="align it"):
        add.bind(a[:, :32].copy(), b[:32], out=out, schedule=schedule)


def test_large_outputs_of_several_shapes_are_refused():
    """Where they broadcast to none; the error says what to do."""

    @kernel
    def two(a, b):
        return a + 1.0, b

    for shapes in (((3000, 4), (5,)), ((5,), (3000, 4))):
        with pytest.raises(Unsupported, match="make a kernel for each"):
            two(*map(np.ones, shapes))


def test_the_heuristic_is_the_least_prediction_and_explains_itself():
    """The chosen schedule leads the model's table, whose terms add up."""
    specs = (((1 << 22,), "float32"),) * 3
    program = library.adam.program(*specs)
    ranked = strategies.rank(program, machine())
    totals = [prediction.total for _, prediction in ranked]
    assert totals == sorted(totals)
    chosen = strategies.heuristic(program, machine())
    assert chosen == ranked[0][0]
    assert chosen.threads == 0
    assert not chosen.streaming
    assert chosen.label in library.adam.explain(*specs).splitlines()[2]


def test_small_work_stays_on_one_thread():
    """A fork and join costs more than 100 elements."""
    program = library.adam.program(*(((100,), "float32"),) * 3)
    assert strategies.heuristic(program, machine()).threads == 1


def test_a_schedule_of_another_strategy_is_refused():
    """The error names what it got and what it needs."""
    program = library.softmax.program(((4, 8), "float32"))
    failed = build(program, rows_of_vectors(16))
    assert not isinstance(failed, Artifact)
    assert "this program needs a Normalization" in failed.error


@kernel
def counted(x, row):
    """Use the number of a row, of a column and, in another dtype, of an element."""
    rows = xp.expand_dims(xp.arange(37), 1).astype("float32")
    columns = xp.arange(11, "int32").astype("float32")
    every = xp.reshape(xp.arange(37 * 11), (37, 11)).astype("float32")
    return xp.reshape(x, (37, 1)) * row + rows * 100.0 + columns + every * 0.5


def test_elements_are_counted_along_any_axis_under_every_schedule():
    """What 0, 1, 2, ... is of an offset; a reshaped input is read where it lies."""
    rng = np.random.default_rng(2)
    x, row = values(rng, (37,), dtypes.float32), values(rng, (11,), dtypes.float32)
    for schedule in counted.candidates(x, row):
        agree(counted, [x, row], schedule=schedule)


def test_what_was_computed_is_stored_in_any_shape():
    """In the order of its elements, beside an output of another shape."""

    def shaped(x):
        y = x * 2.0 + xp.reshape(xp.arange(12), (4, 3)).astype("float32")
        return xp.reshape(y, (2, 1, 6)), y

    x = values(np.random.default_rng(5), (4, 3), dtypes.float32)
    for schedule in kernel(shaped).candidates(x)[:8]:
        agree(kernel(shaped), [x], schedule=schedule)


def test_small_outputs_of_several_shapes_are_one_kernel():
    """Where registers hold them."""

    def both(x, y):
        return x * 2.0, y + 1.0

    rng = np.random.default_rng(6)
    x, y = values(rng, (3,), dtypes.float32), values(rng, (), dtypes.float32)
    agree(kernel(both), [x, y])


def test_a_program_without_inputs_counts():
    """Longer than any chunk, and of no array."""
    thrice = kernel(lambda: xp.arange(100_003) * 3)
    np.testing.assert_array_equal(thrice(), np.arange(100_003) * 3)


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (vectors(8).cuts, "cuts the axes i, and the program has i, j; cut each"),
        (vectors(8, axes="ijj").cuts, "cuts the axes ijj, and the program has i, j"),
        (vectors(8, 0, axes="ij").cuts, "cuts ij by 0; choose 1 or more"),
        (vectors(8, place=Place.GRID, axes="ij").cuts, "puts ij at grid on a cpu"),
        (
            vectors(8, place=Place.VECTOR, axes="ij").cuts,
            "where ij goes; choose of core",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(cuts, said):
    """The error says what does not, and what to do."""
    made = kernel(lambda a, b: a + b)
    built = made.build(np.ones((3, 4)), np.ones(4), schedule=Schedule(cuts))
    assert not isinstance(built, Artifact)
    assert said in built.error


def cancels(a, c):
    """Return differences of products, in every way that they may be written."""
    d, e = a * a, c * c
    return d - e, d + -e, -e + d, d - xp.maximum(e, 0.0), xp.where(a > 0, d, -d) - d


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", ["elements", "rows", "chain"])
def test_equal_products_cancel(dtype, rows):
    """One rounded and the other not, their difference was no zero: its root was NaN."""
    a = np.abs(np.random.default_rng(1).standard_normal((3, 17))).astype(dtype)

    def within(a, c):
        if rows == "elements":
            return cancels(a, c)
        if rows == "rows":
            zero = 0.0 * xp.sum(a, -1, keepdims=True)
            return tuple(value + zero for value in cancels(a, c))
        return tuple(value.T for value in cancels(a, c))

    for value in kernel(within)(a, a.copy()):
        assert not value.any()
    built = kernel(within).build(a, a, target="nvptx:sm_90a")
    assert "fma" not in built.text or rows == "rows"


def test_a_product_and_another_value_are_rounded_once():
    """That is what fusing is for: what is left of a product is found."""
    a = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    left = kernel(lambda a, b: a * a + b)(a, -(a * a))
    np.testing.assert_array_equal(left, (a.astype(float) ** 2 - a * a).astype("f4"))
    twice = kernel(lambda a, b: b * -2.0 - a * a)(a, a * a / -2)  # times -2 is exact
    np.testing.assert_array_equal(twice, -left)


@pytest.mark.parametrize("shapes", MIXED, ids=str)
def test_outputs_of_several_shapes_take_one_pass(shapes):
    """By any schedule, with any part of a vector left; unless one is updated."""
    rng = np.random.default_rng(3)
    arrays = [values(rng, shape, dtypes.float32) for shape in shapes]
    made = kernel(mixed)
    program = made.program(*arrays)
    every = strategies.candidates(program, machine())
    for schedule in every[:: max(1, len(every) // 5)]:
        assert isinstance(schedule, Schedule)
        agree(made, arrays, schedule=schedule)


def test_a_smaller_output_may_not_be_updated_while_it_is_read_again():
    """Small ones are held in registers; large ones are refused."""
    update = kernel(lambda x, y: {"both": x + y, "y": y + 1.0})
    x, y = np.ones((7, 3), np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(
        update(x, y)["both"], 1 + np.tile(np.arange(3), (7, 1))
    )
    np.testing.assert_array_equal(y, [1, 2, 3])
    built = update.build(((5000, 3), "float32"), ((3,), "float32"))
    assert "update none of the smaller" in built.error
