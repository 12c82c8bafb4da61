"""scan and while_loop: what they say, evaluated by the oracle, beside plain Python."""

from typing import NamedTuple

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import reference
from steelyard_kernels.array import pytrees
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Apply, Parameter, Result, loops
from steelyard_kernels.expression.printing import text
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.expression.structure import everywhere, structure
from steelyard_kernels.function import kernel

F32 = "float32"


def oracle(function, *arrays, **scalars):
    """Trace a function for these arrays and evaluate it; the outputs by name."""
    program = kernel(function).program(*arrays)
    given = {s.name: scalars[s.name] for s in program.scalars}
    return reference.evaluate(program, arrays, given)


def program(function, *shapes, dtype=F32):
    """Trace a function for arrays of these shapes."""
    return kernel(function).program(*((shape, dtype) for shape in shapes))


def normal(*shape):
    """Return seeded values."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


class Pair(NamedTuple):
    """A carry with names."""

    mean: object
    count: object


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.array])
def test_integers_are_anyones(integer):
    """NumPy's as Python's: indices, bounds, lengths; the same program."""

    def written(make):
        def function(x):
            x = xp.fori_loop(make(1), make(4), lambda i, c: c * x[make(2)], x)
            return xp.scan(lambda c, _: (c + 1.0, None), x, length=make(3))[0]

        return structure(program(function, (3,)))

    assert written(integer) == written(int)


def test_a_body_may_take_more_than_it_is_given():
    """What has a default; any number; what says nothing of its parameters."""

    def default(c, row, scale=2.0):
        return c * scale + row, None

    def any_number(*given):
        return default(*given)

    def copied(x):  # by dict, whose signature nobody knows
        return xp.while_loop(lambda c: c["x"][0] > 0, dict, {"x": x}, 2)["x"]

    def both(x, rows):
        return xp.scan(default, x, rows)[0], xp.scan(any_number, x, rows)[0]

    x, rows = normal(3), normal(1, 3)
    for seen in oracle(both, x, rows).values():
        np.testing.assert_allclose(seen, x * 2.0 + rows[0], rtol=1e-6)
    np.testing.assert_array_equal(oracle(copied, x)["out"], x)


def test_carries_keep_their_structure_and_numbers_take_the_bodys_dtype():
    """Tuples with and without names, lists, dicts, None; 0 and 0.0 as in JAX."""

    def nested(x, rows):
        def step(carry, row):
            pair, (total,), empty = carry["pair"], carry["total"], carry["empty"]
            assert empty is None
            pair = Pair(pair.mean + row, pair.count + 1)
            return {"pair": pair, "total": [total + xp.sum(row)], "empty": None}, ()

        init = {"total": [0.0], "pair": Pair(x, 0), "empty": None}
        last, kept = xp.scan(step, init, rows)
        assert kept == ()
        return last["pair"].mean, last["pair"].count, last["total"][0]

    made = program(nested, (3,), (5, 3))
    shapes = [(o.value.shape, o.value.dtype.name) for o in made.outputs]
    assert shapes == [((3,), F32), ((), "int64"), ((), F32)]
    x, rows = normal(3), normal(5, 3)
    seen = reference.evaluate(made, [x, rows])
    np.testing.assert_allclose(seen["out0"], x + rows.sum(0, float), rtol=1e-6)
    assert seen["out1"] == 5
    np.testing.assert_allclose(seen["out2"], rows.sum(dtype=float))


def test_a_structure_is_what_unflatten_makes_of_its_leaves():
    """Of every kind, nested; dicts by sorted key, whatever their order."""
    tree = {"b": [1, (2, None)], "a": Pair(3, {})}
    leaves, structure_ = pytrees.flatten(tree)
    assert leaves == [3, 1, 2]
    assert structure_.unflatten(leaves) == tree
    assert pytrees.paths(structure_, "c") == ["c['a'][0]", "c['b'][0]", "c['b'][1][0]"]
    assert str(structure_) == "{'a': Pair(*, {}), 'b': [*, (*, None)]}"
    assert pytrees.flatten((1,))[1] != pytrees.flatten([1])[1]


def test_what_no_iteration_changes_is_computed_before_the_loop():
    """The weights' exponential is a node of the program, not of the body."""

    def scanned(x, w):
        return xp.scan(lambda c, _: (c @ xp.exp(w), None), x, length=9)[0]

    made = program(scanned, (3,), (3, 3))
    (loop,) = loops(made.nodes)
    assert [n.op for n in made.nodes if isinstance(n, Apply)] == ["exp"]
    assert not any(isinstance(n, Apply) for n in loop.nodes)
    assert "loop" in text(made)


def test_noise_drawn_ahead_is_drawn_in_the_loop():
    """Rows of what is computed of 0, 1, 2, ... are computed of the index."""

    def scanned(x, key):
        noise = (xp.expand_dims(xp.arange(6) + key, 1) * 3).astype(F32) / 7.0
        return xp.scan(lambda c, n: (c * 0.5 + n, None), x, noise)[0]

    made = kernel(scanned).program(((1,), F32), ((), "int64"))
    assert all(node.shape in {(), (1,)} for node in everywhere(made.nodes))
    x, key = normal(1), np.asarray(11)
    carry = x.astype(float)
    for i in range(6):
        carry = carry * 0.5 + (i + 11) * 3 / 7
    np.testing.assert_allclose(reference.evaluate(made, [x, key])["out"], carry)


def test_nan_goes_through_a_loop_and_ends_no_condition_that_compares():
    """A comparison with NaN is false: the loop stops, as in Python."""

    def looped(x):
        return xp.while_loop(lambda c: xp.max(c) < 9.0, lambda c: c * 2.0, x, 5)

    assert np.isnan(oracle(looped, np.full(2, np.nan, F32))["out"]).all()
    np.testing.assert_array_equal(oracle(looped, np.ones(2, F32))["out"], [16, 16])
    np.testing.assert_array_equal(oracle(looped, np.full(2, 9, F32))["out"], [9, 9])


def test_a_program_with_loops_is_made_again_and_is_the_same():
    """By a rule that changes nothing; with another, its constants everywhere."""

    def scanned(x, rows):
        def step(c, r):
            return xp.where(xp.max(c) > 1.0, c, c * 2.0 + r), c

        return xp.scan(step, x, rows, reverse=True, unroll=2)

    made = program(scanned, (3,), (5, 3))
    again = rewritten(made, lambda *_: None)
    assert structure(again) == structure(made)
    assert text(again) == text(rewritten(again, lambda *_: None))
    other = program(lambda x, r: xp.scan(lambda c, e: (c + e, c), x, r), (3,), (5, 3))
    assert structure(other) != structure(made)


def test_two_loops_that_differ_in_one_thing_differ():
    """Length, direction, unrolling, condition: each is a part of what is computed."""

    def of(length=4, body=1.0, *, most=None, **knobs):
        def scanned(x):
            if most is not None:
                return xp.while_loop(
                    lambda c: xp.max(c) < most, lambda c: c + body, x, length
                )
            return xp.scan(lambda c, _: (c + body, c), x, length=length, **knobs)

        return structure(program(scanned, (3,)))

    kinds = [
        of(),
        of(length=5),
        of(body=2.0),
        of(reverse=True),
        of(unroll=2),
        of(most=3.0),
        of(most=4.0),
    ]
    assert of() == of()
    assert len(set(kinds)) == len(kinds)


def out_of_its_loop(x):
    """Use a value of the body behind the loop."""
    seen = []

    def step(c, _):
        seen.append(c * 2.0)
        return c, None

    xp.scan(step, x, length=2)
    return seen[0]


def unrolled(unroll):
    """Return a loop of so many iterations a turn."""
    return lambda x: xp.while_loop(lambda c: c[0] < 1, lambda c: c, x, 3, unroll=unroll)


def bounded(upper):
    """Return a loop from 0 to a bound."""
    return lambda x: xp.fori_loop(0, upper, lambda i, c: c, x)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (
            lambda x: xp.scan(lambda c, _: c, x, length=2),
            r"body of a scan returned one Array, expected \(carry, y\)",
        ),
        (
            lambda x: xp.scan(lambda c, _: (c, c, c), x, length=2),
            r"body of a scan returned a tuple of 3, expected \(carry, y\)",
        ),
        (
            lambda x: xp.scan(lambda c: (c, None), x, length=2),
            r"body of a scan is given \(carry, x\), but too many positional arguments",
        ),
        (
            lambda x: xp.fori_loop(0, 2, lambda i, c, more: c, x),
            r"body of a fori_loop is given \(i, carry\), but missing .* 'more'",
        ),
        (
            lambda x: xp.while_loop(3, lambda c: c, x, 2),
            r"condition of a while_loop is given \(carry\), but 3 is not a callable",
        ),
        (
            lambda x: xp.while_loop(lambda c: c[0] < 1, lambda: x, x, 2),
            r"body of a while_loop is given \(carry\), but too many",
        ),
        *(
            (
                bounded(bound),
                f"a bound of a fori_loop is {bound!r}, expected an int",
            )
            for bound in (2.0, True, "2", None)
        ),
        (
            lambda x: xp.scan(lambda c, _: ((c, c), None), x, length=2),
            r"the carry of a scan begins as \* and its body returns \(\*, \*\)",
        ),
        (
            lambda x: xp.scan(
                lambda c, _: ([c[0], c[1] @ xp.stack([x, x])], 0.0), [x, x], length=2
            ),
            "matmul of shapes",
        ),
        (
            lambda x: xp.scan(
                lambda c, _: ({"a": xp.sum(c["a"])}, 1), {"a": x}, None, 2
            ),
            r"carry\['a'\] of a scan begins as float32 \(3,\) and goes on as float32 \(\)",
        ),
        (
            lambda x: xp.scan(lambda c, _: (c.astype("float64"), None), x, length=2),
            "begins as float32 .* goes on as float64",
        ),
        (
            lambda x: xp.while_loop(lambda c: c < 1.0, lambda c: c, x, 3),
            r"condition is bool \(3,\), expected one bool",
        ),
        (lambda x: xp.scan(lambda c, r: (c, r), x), "scan over nothing rows"),
        (lambda x: xp.scan(lambda c, r: (c, r), x, x, 4), "3 and 4 rows"),
        (
            lambda x: xp.scan(lambda c, r: (c, r[0]), x, (x, x[0])),
            r"shapes \(3,\), \(\), expected the same first extent",
        ),
        (lambda x: xp.scan(lambda c, _: (c, None), x, None, -1), "-1 iterations"),
        (lambda x: xp.scan(lambda c, _: (c, "y"), x, length=1), "scan got a str"),
        (
            lambda x: xp.scan(lambda c, _: (c, None), x, length=1, unroll=-1),
            "unroll of a scan is -1",
        ),
        *(
            (
                unrolled(unroll),
                f"unroll of a while_loop is {unroll!r}, expected an int from 0 to 64",
            )
            for unroll in (65, 10**9, 2.5, "2")
        ),
        (
            lambda x: xp.while_loop(lambda c: c[0] < 1, lambda c: c, x, 2.5),
            "a loop's length is 2.5, expected an int",
        ),
        (
            lambda x: xp.fori_loop(0, 1 << 63, lambda i, c: c, x),
            r"9223372036854775808 iterations, expected 0 to 2\*\*63 - 1",
        ),
        (
            lambda x: xp.scan(lambda c, _: (c, None), {1: x, "b": x}, length=1),
            "keys of the types int, str, expected some that can be sorted",
        ),
        (out_of_its_loop, "is used outside of the loop; return it from the body"),
    ],
)
def test_what_is_no_loop_is_one_sentence_that_says_what_differs(write, words):
    """The error names the part of the carry, what was seen and what was expected."""
    with pytest.raises(KernelError, match=words):
        program(write, (3,))


def test_a_length_given_at_launch_stacks_nothing():
    """There is no shape for it; and it is an int."""

    def stacking(x, *, n: int):
        return xp.scan(lambda c, _: (c, c), x, length=n)[1]

    def floating(x, *, n: float):
        return xp.scan(lambda c, _: (c, None), x, length=n)[0]

    def over_rows(x, *, n: int):
        return xp.scan(lambda c, r: (c, None), x, x, n)[0]

    for function, words in (
        (stacking, "cannot stack"),
        (floating, "expected one int"),
        (over_rows, "one or the other"),
    ):
        with pytest.raises(KernelError, match=words):
            program(function, (3,))


def test_loops_and_constants_need_a_kernel_around_them():
    """Outside of one there is no graph to add to."""
    for call in (lambda: xp.zeros((2,)), lambda: xp.scan(None, 0.0, length=1)):
        with pytest.raises(KernelError, match="was called outside of a kernel"):
            call()


def test_memory_for_what_a_loop_keeps_is_hidden():
    """One output more, of the stacked shape, under a name that nobody has."""

    def twice(x, kept0):
        _, ys = xp.scan(lambda c, r: (c + r, c), x, kept0)
        return xp.scan(lambda g, y: (g * y, None), x, ys, reverse=True)[0]

    made = program(twice, (3,), (5, 3))
    (hidden,) = [output for output in made.outputs if output.hidden]
    assert (hidden.name, hidden.value.shape) == ("kept1", (5, 3))
    assert isinstance(hidden.value, Result)
    x, rows = normal(3), normal(5, 3)
    (out,) = reference.evaluate(made, [x, rows]).items()
    assert out[0] == "out"
    sums = x + np.concatenate([np.zeros((1, 3)), np.cumsum(rows, 0, float)[:-1]])
    np.testing.assert_allclose(out[1], x * np.prod(sums, 0), rtol=1e-5)


def test_what_is_returned_is_not_hidden_as_well():
    """A stacked value that is an output is read where it lies."""

    def twice(x):
        _, ys = xp.scan(lambda c, _: (c + 1.0, c), x, length=4)
        return ys, xp.scan(lambda g, y: (g * y, None), x, ys)[0]

    assert [o.hidden for o in program(twice, (3,)).outputs] == [False, False]


def test_parameters_of_loops_are_no_nodes_of_the_program():
    """Nor is any node that depends on one."""

    def scanned(x):
        return xp.scan(lambda c, i: (c + i.astype(F32), None), x, xp.arange(3))[0]

    made = program(scanned, (3,))
    assert not any(isinstance(node, Parameter) for node in made.nodes)
    inside = {n.number for n in everywhere(made.nodes)} - {n.number for n in made.nodes}
    assert len(inside) == 4  # carry, index, the cast and the sum
