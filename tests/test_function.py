"""Kernels called on arrays: what they return, what they refuse, what they report."""

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from traceback import extract_tb

import ml_dtypes
import numpy as np
import pytest
from programs import vectors

from steelyard_device import cpu
from steelyard_device.timings import timings
from steelyard_kernels import array as xp
from steelyard_kernels import function, library
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule.schedule import Place

ONES = np.ones((3, 4), np.float32)


@kernel
def triad(a, b, *, s=3.0):
    """Return a + s * b."""
    return a + s * b


@kernel
def two(a, b):
    """Return sum and product."""
    return a + b, a * b


@kernel
def update(a, b):
    """Update a, return the difference."""
    return {"a": a + b, "difference": a - b}


def test_results_come_as_the_function_returns_them():
    """One array, a tuple, a dict; parameters that are updated are the given arrays."""
    np.testing.assert_array_equal(triad(ONES, ONES), np.full((3, 4), 4))
    total, product = two(ONES, ONES * 2)
    assert (total[0, 0], product[0, 0]) == (3, 2)
    a = ONES.copy()
    outputs = update(a, ONES * 2)
    assert outputs["a"] is a
    assert (a == 3).all()
    assert (outputs["difference"] == -1).all()


def halved(x):
    """Return half of x."""
    return x / 2


half = kernel(halved)


def test_kernels_are_pickled_by_their_names_as_functions_are():
    """Or made anew of a plain function's; one that no name leads to is refused."""
    assert pickle.loads(pickle.dumps(triad)) is triad
    assert copy.deepcopy([triad])[0] is triad
    again = pickle.loads(pickle.dumps(half))
    assert again is not half
    assert again.function is halved
    np.testing.assert_array_equal(again(ONES), ONES / 2)
    code = f"import pickle; print(pickle.loads({pickle.dumps(library.triad)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"<kernel triad(a, b)>\n"
    nameless = kernel(lambda x: x)
    assert copy.deepcopy(nameless) is nameless
    with pytest.raises(KernelError, match="write it with def at the top of a module"):
        pickle.dumps(nameless)


def test_launches_have_spans_while_these_are_wanted(monkeypatch):
    """Each, up to so many; native code recognises the calls before and after."""
    monkeypatch.setattr(function, "LAUNCHES", 5)
    fresh = kernel(triad.function)
    for _ in range(3):
        fresh(ONES, ONES)
    assert fresh.__call__ != fresh._called  # a builtin
    fresh = kernel(triad.function)
    with timings() as found:
        for _ in range(9):
            np.testing.assert_array_equal(fresh(ONES, ONES), np.full((3, 4), 4))
    counts = {row.path[-1]: row.calls for row in found.rows()}
    assert 5 <= counts["launch triad"] < 9
    assert counts["launch triad, not timed from 5 on"] == 1
    assert fresh.__call__ != fresh._called


def test_outputs_can_be_given():
    """One array, a sequence in order, or a dict by name."""
    out, other = np.empty_like(ONES), np.empty_like(ONES)
    assert triad(ONES, ONES, out=out) is out
    assert two(ONES, ONES, out=(out, other))[1] is other
    assert two(ONES, ONES, out={"out1": other, "out0": out})[0] is out


def test_bfloat16_and_float8_arrays_are_those_of_ml_dtypes():
    """In and out, called once or again, allocated or given; uint16 is uint16."""

    @kernel
    def scaled(x, s):
        return (x * s.astype("float32")).astype(x.dtype)

    kinds = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
    for kind in kinds:
        x = np.array([1.0, 2.0, 3.0]).astype(kind)
        s = np.array([2.0], np.float32)
        for _ in range(3):
            out = scaled(x, s)
            assert out.dtype == kind
            assert out.tolist() == [2.0, 4.0, 6.0]
        assert scaled(x, s, out=out) is out
    bits = x.view(np.uint8).astype(np.uint16)
    assert kernel(lambda x: x + x)(bits).tolist() == (2 * bits).tolist()


@pytest.mark.parametrize(
    ("arrays", "keywords", "words"),
    [
        (([1.0], ONES), {}, "a is a list, expected a NumPy array"),
        ((ONES,), {}, r"got 1 arrays, expected 2 \(a, b\)"),
        ((ONES, ONES, ONES), {}, "got 3 arrays"),
        ((ONES, ONES[:2]), {}, "cannot broadcast shapes"),
        (
            (ONES, ONES.astype("int64")),
            {},
            "mixes a scalar of kind float with an array of int64",
        ),
        ((ONES, ONES.astype("complex64")), {}, "b: dtype complex64 is not supported"),
        ((ONES, ONES.astype(">f4")), {}, "swapped bytes"),
        ((ONES, ONES), {"t": 1.0}, "unknown scalar t, expected s"),
        ((ONES, ONES), {"s": "x"}, "scalar s is 'x' of type str"),
        ((ONES, ONES), {"s": True}, "scalar s is True of type bool"),
        ((ONES, ONES), {"out": ONES[:1].copy()}, "output out is float32"),
        ((ONES, ONES), {"out": np.empty((3, 4))}, "output out is float64"),
        ((ONES, ONES), {"out": [ONES, ONES]}, r"out has 2 arrays, expected 1 \(out\)"),
        ((ONES, ONES), {"out": ONES}, "output out shares memory with [ab]"),
        ((ONES, ONES), {"out": {"y": ONES}}, "expected 1"),
        ((ONES, ONES), {"out": 3}, "out is a int, expected an array"),
    ],
)
def test_bad_arguments_are_one_sentence(arrays, keywords, words):
    """The error names kernel and argument, what was seen and what to do."""
    with pytest.raises(KernelError, match=words) as raised:
        triad(*arrays, **keywords)
    assert str(raised.value).startswith("triad: ")


def test_overlap_with_an_output_is_refused():
    """Part of an input, or an updated parameter given twice."""
    room = np.ones(10, np.float32)
    with pytest.raises(KernelError, match="shares memory with a"):
        triad(room[:8], np.ones(8, np.float32), out=room[2:])
    with pytest.raises(KernelError, match="shares memory"):
        update(room, room)
    with pytest.raises(KernelError, match="shares memory"):
        two(room, room, out=(np.empty_like(room),) * 2)


def test_read_only_outputs_are_refused_and_read_only_inputs_are_fine():
    """A parameter that is updated must be writable."""
    fixed = ONES.copy()
    fixed.flags.writeable = False
    assert triad(fixed, fixed)[0, 0] == 4
    with pytest.raises(KernelError, match="output a is read-only"):
        update(fixed, ONES)
    with pytest.raises(KernelError, match="output out is read-only"):
        triad(ONES, ONES, out=fixed)


def test_bound_work_runs_many_times_and_keeps_its_arrays():
    """Launches add up; window gives two readings of one clock."""
    a, b = np.zeros(1000, np.float32), np.ones(1000, np.float32)
    work = update.bind(a, b)
    work.ready()
    work.launch()
    work.launch(4)
    start, end = work.window(5, dependent=True)
    assert end >= start
    assert (a == 10).all()
    assert work.outputs["a"] is a


def test_facts_say_what_is_known_without_running():
    """Bytes, operations, hash, threads, schedule, strategy, target."""
    work = triad.bind(ONES, ONES)
    facts = work.facts()
    assert facts["bytes"] == 3 * 48
    assert facts["operations"] == 24
    assert facts["threads"] == 1
    assert facts["code_hash"] == work.built.code_hash
    assert facts["strategy"] == "pointwise"
    assert facts["target"] == "cpu"
    assert facts["schedule"] == work.built.schedule.label


def test_a_schedule_can_be_given():
    """All threads, small chunks: the same values."""
    a = np.arange(10_000, dtype=np.float32)
    schedule = vectors(16, 2, 2, Place.CORE)
    work = triad.bind(a, a, schedule=schedule)
    work.launch()
    np.testing.assert_array_equal(work.outputs["out"], a * 4)
    assert work.threads == cpu.pool_size()


def test_bound_work_can_be_built_again():
    """Cold builds anew, warm finds what is there; an unknown level is refused."""
    work = triad.bind(ONES, ONES)
    work.build("cold")
    work.build("warm-memory")
    with pytest.raises(KernelError, match="not known"):
        work.build("tepid")


def test_calls_after_a_cold_build_run_the_new_one():
    """What a call remembers of a build goes with it."""

    @kernel
    def twice(a):
        return a * 2.0

    before = twice.bind(ONES).built
    again = twice.build(ONES, cache="cold")
    assert twice.bind(ONES).built is again is not before
    assert (twice(ONES) == 2).all()


def test_unaligned_outputs_take_another_build():
    """Where the heuristic would stream, an unaligned output gets plain stores."""
    rows = np.ones((4096, 1024), np.float32)

    @kernel
    def centre(x):
        return x - xp.mean(x, axis=-1, keepdims=True)

    aligned = centre.bind(rows)
    room = np.empty(rows.size + 64, np.float32)
    first = (-room.ctypes.data % 64) // 4 + 1
    out = room[first : first + rows.size].reshape(rows.shape)
    unaligned = centre.bind(rows, out=out)
    assert aligned.built.schedule.streaming
    assert not unaligned.built.schedule.streaming
    unaligned.launch()
    assert (out == 0).all()


def test_a_kernel_shows_its_candidates_and_its_reasons():
    """Methods take arrays or (shape, dtype) pairs."""
    assert len(triad.candidates(((1000,), "float32"), ((1000,), "float32"))) >= 12
    assert "pointwise" in triad.explain(ONES, ONES)
    assert triad.program(ONES, ONES).name == "triad"
    assert repr(triad) == "<kernel triad(a, b)>"
    assert triad.__doc__ == "Return a + s * b."


def kept_between_loops(x, rows):
    """Keep every carry for a loop that goes back."""
    _, kept = xp.scan(lambda c, r: (c * 0.5 + r, c), x, rows)
    return xp.scan(lambda g, k: (g * 0.5 + k, None), x * 0.0, kept, reverse=True)[0]


def test_memory_between_two_loops_is_allocated_and_not_shown():
    """In a call with and without out, bound, and of many chains."""
    from steelyard_kernels.vmap import vmap

    rng = np.random.default_rng(0)
    x, rows = rng.standard_normal(3), rng.standard_normal((4, 3))
    carry, kept, expected = x, [], 0.0
    for row in rows:
        kept.append(carry)
        carry = carry * 0.5 + row
    for each in reversed(kept):
        expected = expected * 0.5 + each
    made, out = kernel(kept_between_loops), np.empty(3)
    np.testing.assert_allclose(made(x, rows), expected)
    assert made(x, rows, out=out) is out
    np.testing.assert_allclose(out, expected)
    work = made.bind(x, rows)
    work.launch()
    assert list(work.outputs) == ["out"]
    np.testing.assert_allclose(work.outputs["out"], expected)
    many = kernel(vmap(kept_between_loops, (0, None)))(np.stack([x, x + 1, x]), rows)
    np.testing.assert_allclose(many[[0, 2]], np.stack([expected] * 2))
    with pytest.raises(KernelError, match=r"out has 2 arrays, expected 1 \(out\)"):
        made(x, rows, out=[out, np.empty((4, 3))])


def test_a_refused_call_keeps_nothing_and_says_the_same_each_time():
    """The exception was one that grew with every call and held all arrays of them."""

    @kernel
    def refused(x):
        return xp.sum(x, axis=7)

    def call(x):
        try:
            refused(x)
        except KernelError as error:
            return len(extract_tb(error.__traceback__)), str(error)

    seen = [call(np.ones((3, 4), np.float32))]
    gc.disable()  # what only the collector frees is kept for too long
    try:
        for _ in range(3):
            x = np.ones((3, 4), np.float32)
            kept = weakref.ref(x)
            seen.append(call(x))
            del x
            assert kept() is None
    finally:
        gc.enable()
    assert len({*seen[1:]}) == 1
    assert seen[0][1] == seen[1][1]
    assert seen[0][0] > seen[1][0]  # the first shows the line of the kernel's function


def test_names_of_ours_update_no_parameter_and_a_dict_stays_one():
    """A parameter called out was overwritten by what was returned without a name."""
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    assert (kernel(lambda x, out: x + out + 1)(x, out) == 2).all()
    one, other = kernel(lambda x, out1: (x + 1, out1 - 1))(x, out)
    assert (one == 2).all()
    assert (other == -1).all()
    assert not out.any()
    assert set(kernel(lambda x: {"out": x})(x)) == {"out"}
    assert set(kernel(lambda x: {"out0": x, "out1": x + 1})(x)) == {"out0", "out1"}
    assert kernel(lambda x, out: {"out": x + out})(x, out)["out"] is out
    assert out.all()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x + 2**31, "int32"),
        (lambda x: x * -(2**40), "int32"),
        (lambda x: x < 2**70, "int64"),
        (lambda x: x + xp.full((2,), 2**31, "int32"), "int32"),
        (lambda x: x * 10**400, "float32"),
    ],
)
def test_integers_that_do_not_fit_overflow_as_numpys(function, dtype):
    """They wrapped without a word."""
    with pytest.raises(OverflowError, match="out of bounds for"):
        kernel(function)(np.zeros(2, dtype))
    edge = kernel(lambda x: x + (2**31 - 1) + xp.full_like(x, 1.0))
    assert (edge(np.full(2, -1, "int32")) == 2**31 - 1).all()


def test_integers_have_operators_of_bits():
    """Bools have the logical ones; the advice to cast gave other results."""
    x = np.arange(-3, 9)
    made = kernel(lambda x: (x & 6, 1 | x, x ^ 3, ~x, (x > 1) & ~(x > 4)))
    for seen, expected in zip(
        made(x), (x & 6, 1 | x, x ^ 3, ~x, (x > 1) & ~(x > 4)), strict=True
    ):
        np.testing.assert_array_equal(seen, expected)


class OnTheHost:
    """As JAX's array on a CPU: its class has an interface that it has not."""

    shape, dtype = (8,), np.dtype("float32")

    @property
    def __cuda_array_interface__(self):
        """Raise what hasattr takes for no."""
        raise AttributeError

    def __dlpack_device__(self):
        """Return DLPack's number of the host."""
        return 1, 0


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (OnTheHost(), "is a OnTheHost, expected a NumPy array; pass numpy.asarray"),
        (np.ma.masked_array(np.ones(8)), "masked array, whose mask no kernel reads"),
    ],
)
def test_what_is_no_plain_array_of_the_host_is_named(array, words):
    """In each place."""
    plain = np.ones(8, np.float32)
    for arrays in ((array, plain), (plain, array)):
        with pytest.raises(KernelError, match=words):
            triad(*arrays)


@pytest.mark.parametrize("shape", [3, (-1,), (3.5,), "ab"])
def test_shapes_are_checked(shape):
    """They were raw errors, or built."""
    with pytest.raises(KernelError, match="expected extents of 0 or more"):
        triad.build((shape, "float32"), ((3,), "float32"))
    assert isinstance(triad.build(([3], "float32"), ([3], "float32")), Artifact)
