"""Carries that count and carries for nobody: gone, and every output as before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import reference
from steelyard_kernels.expression.expr import loops, operands
from steelyard_kernels.expression.simplify import lean
from steelyard_kernels.expression.structure import everywhere, structure
from steelyard_kernels.function import kernel

F32 = "float32"


def program(function, *specs):
    """Trace a function."""
    return kernel(function).program(*specs)


def same(made, arrays, scalars=None):
    """Assert that the program without them computes the same, and return it."""
    less = lean(made)
    before = reference.evaluate(made, arrays, scalars or {})
    after = reference.evaluate(less, arrays, scalars or {})
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert structure(lean(less)) == structure(less)
    return less


def depends_on_a_carry(loop):
    """Return the kinds of nodes of a body that wait for the iteration before."""
    waiting = {carry.number for carry in loop.carries}
    for node in loop.nodes:
        if any(arg.number in waiting for arg in operands(node)):
            waiting.add(node.number)
    return [getattr(n, "op", "") for n in loop.nodes if n.number in waiting]


@given(
    length=st.integers(0, 7),
    start=st.integers(-(2**31), 2**31 - 1),
    step=st.integers(-(2**31), 2**31 - 1),
    dtype=st.sampled_from(["int32", "int64"]),
    shape=st.sampled_from(["add", "added", "subtract"]),
)
@settings(max_examples=60, deadline=None)
def test_what_counts_is_a_product_of_the_index(length, start, step, dtype, shape):
    """From any start by any step, forwards and backwards, wrapping alike."""

    def counted(x, first, by):
        def body(state, _):
            x, c = state
            new = {"add": lambda: c + by, "added": lambda: by + c}.get(
                shape, lambda: c - by
            )()
            return (x * 0.5 + c.astype("float64"), new), c

        (x, c), every = xp.scan(body, (x, first), length=length)
        return x, c, every

    made = program(counted, ((), "float64"), ((), dtype), ((), dtype))
    arrays = [np.asarray(1.0), np.asarray(start, dtype), np.asarray(step, dtype)]
    (loop,) = loops(same(made, arrays).nodes)
    assert depends_on_a_carry(loop) == ["multiply", "add"]  # of x alone


def test_a_counter_in_a_while_loop_waits_for_nothing():
    """The condition and what is drawn of it read the index; it ends the same."""

    def looped(x, *, most: int):
        def body(state):
            x, i = state
            return x * 0.5 + (i * 3).astype(F32), i + 1

        return xp.while_loop(lambda s: s[1] < most, body, (x, 0), 9)

    made = program(looped, ((2,), F32))
    for most in (-1, 0, 4, 20):
        (loop,) = loops(same(made, [np.ones(2, F32)], {"most": most}).nodes)
    assert depends_on_a_carry(loop) == ["multiply", "add"]


def test_what_nobody_reads_is_not_carried():
    """Neither for itself, nor for others like it, nor stacked; inner loops too."""

    def looped(x, rows):
        def outer(state, row):
            used, idle, more = state

            def inner(d, i):
                return (d[0] + row, d[1] * 2.0), d[1]

            (d, _), _ = xp.scan(inner, (used, idle), xp.arange(2))
            return (d, idle + more, more * xp.exp(row)), (idle, used)

        (used, _, _), (_, kept) = xp.scan(outer, (x, x, x), rows)
        return used, kept

    made = program(looped, ((3,), F32), ((4, 3), F32))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(F32) for s in ((3,), (4, 3))]
    less = same(made, arrays)
    (loop,) = loops(less.nodes)
    (inner,) = loops(loop.nodes)
    assert (len(loop.carries), len(loop.stacked), len(inner.carries)) == (1, 1, 1)
    assert not any(getattr(node, "op", "") == "exp" for node in everywhere(less.nodes))


def test_a_program_that_has_none_is_itself():
    """With and without loops."""
    plain = program(lambda x: x * 2.0, ((3,), F32))
    assert lean(plain) is plain
    looped = program(
        lambda x: xp.scan(lambda c, _: (c * 2.0, c), x, length=3), ((3,), F32)
    )
    assert lean(looped) is looped


@pytest.mark.parametrize("by", [lambda c, x: x, lambda c, x: c])
def test_what_grows_by_what_changes_does_not_count(by):
    """By an element, or by itself."""

    def looped(first, rows):
        return xp.scan(lambda c, x: (c + by(c, x), None), first, rows)[0]

    made = program(looped, ((), "int64"), ((4,), "int64"))
    assert lean(made) is made
