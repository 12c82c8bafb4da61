"""Tracing: a plain function becomes a program."""

import functools

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.printing import text
from steelyard_kernels.expression.structure import structure
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.trace import signature, trace

F = dtypes.float32


def traced(function, *shapes):
    """Trace a function over float32 arrays."""
    return trace(function, signature(function), [(shape, F) for shape in shapes])


def test_one_array_is_called_out():
    """A single result has one name, a tuple numbers them, a dict names them."""

    def one(a):
        return a + 1

    def several(a, b):
        return a + b, a * b

    def named(a, b):
        return {"total": a + b, "b": b * 2}

    assert [o.name for o in traced(one, (3,)).outputs] == ["out"]
    assert [o.name for o in traced(several, (3,), (3,)).outputs] == ["out0", "out1"]
    total, updated = traced(named, (3,), (3,)).outputs
    assert (total.name, total.updates) == ("total", None)
    assert (updated.name, updated.updates) == ("b", 1)


def test_a_program_prints_one_line_a_node(golden):
    """The printed program shows every node once, in evaluation order."""

    def adam(gradient, m, v, *, beta=0.9, rate=1e-3):
        m = beta * m + (1 - beta) * gradient
        v = beta * v + (1 - beta) * xp.square(gradient)
        return {"gradient": m / (xp.sqrt(v) + 1e-8) * rate, "m": m, "v": v}

    program = traced(adam, (100,), (100,), (100,))
    golden(text(program))
    numbers = [node.number for node in program.nodes]
    assert numbers == sorted(numbers)


def test_scalars_take_the_dtype_they_meet():
    """A runtime scalar in float32 arithmetic leaves it float32."""

    def scaled(a, *, s=2.0, n=3):
        return a * s + n

    program = traced(scaled, (3,))
    assert program.outputs[0].value.dtype is F
    assert [node.dtype for node in program.scalars] == [dtypes.float64, dtypes.int64]


def test_scalar_arithmetic_is_done_in_double():
    """1 - beta is rounded once, when it meets the array."""

    def scaled(a, *, beta=0.9):
        return a * (1 - beta)

    assert "float64() = subtract" in text(traced(scaled, (3,)))


def test_unused_parameters_are_left_out():
    """What no output needs is no node; its scalar is not passed."""

    def lazy(a, b, *, s=1.0, t=2.0):
        _ = b * t
        return a * s

    program = traced(lazy, (3,), (4,))
    assert [node.name for node in program.scalars] == ["s"]
    assert all(getattr(node, "name", "") != "b" for node in program.nodes)


def test_equal_programs_have_equal_structures():
    """Names do not matter, shapes and operations do."""

    def one(a, b):
        return a + b

    def other(x, y):
        return x + y

    def third(x, y):
        return x * y

    assert structure(traced(one, (3,), (3,))) == structure(traced(other, (3,), (3,)))
    assert structure(traced(one, (3,), (3,))) != structure(traced(other, (4,), (4,)))
    assert structure(traced(one, (3,), (3,))) != structure(traced(third, (3,), (3,)))


def test_annotations_type_scalars():
    """Without default or annotation a scalar is a float; text annotations count."""

    def typed(a, *, n: int, flag: "bool" = True, x):
        return xp.where(flag, a * n, a * x)

    types = [(p.name, p.dtype.name, p.default) for p in signature(typed).scalars]
    assert types == [
        ("n", "int64", None),
        ("flag", "bool", True),
        ("x", "float64", None),
    ]


def default_array(a=1):
    """Give an array parameter a default."""


def star(*arrays):
    """Take any number of arrays."""


def text_scalar(a, *, mode="fast"):
    """Take a scalar that is no number."""


def reserved(a, *, out=1.0):
    """Take a scalar named as an argument of every call."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (default_array, "put \\* before it"),
        (star, "expected named arrays"),
        (text_scalar, "expected float, int or bool"),
        (reserved, "give it another name"),
    ],
)
def test_signatures_a_kernel_cannot_have(function, words):
    """Each is one sentence that says what to change."""
    with pytest.raises(KernelError, match=words):
        signature(function)


def test_results_a_kernel_cannot_have():
    """A result that is no array, or an update of another shape or dtype."""

    def number(a):
        return a.ndim

    def grows(a, b):
        return {"a": a + b}

    def changes(a):
        return {"a": a.astype("float64")}

    with pytest.raises(KernelError, match="output out is of type int"):
        traced(number, (3,))
    with pytest.raises(KernelError, match="updated in place with float32"):
        traced(grows, (3,), (2, 3))
    with pytest.raises(KernelError, match="updated in place with float64"):
        traced(changes, (3,))


def test_the_number_of_arrays_and_their_size_are_checked():
    """Too few arrays, and more elements than 2**31 - 1."""

    def one(a):
        return a + 1

    with pytest.raises(KernelError, match=r"got 2 arrays, expected 1 \(a\)"):
        traced(one, (3,), (3,))
    with pytest.raises(KernelError, match="at most 2147483647"):
        traced(one, (2**31,))


def test_a_kernel_that_calls_itself_for_ever_is_said_to():
    """One that ends may call itself."""

    def endless(x):
        return again(x)

    again = KernelFunction(endless)
    with pytest.raises(KernelError, match=r"endless: .* calls itself .*have it end"):
        again(np.zeros(4, "float32"))


@pytest.mark.parametrize("given", [3, functools.partial(max, 1), int])
def test_a_kernel_is_made_of_a_function_with_a_name(given):
    """Which errors, outputs and caches go by."""
    with pytest.raises(
        KernelError, match=f"of a {type(given).__name__}, expected a func"
    ):
        signature(given)
