"""Tensor expressions: inference, broadcasting, sharing, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Apply, Cast, Constant
from steelyard_kernels.expression.graph import Graph, broadcast_shape
from steelyard_kernels.expression.rounding import round_constant
from steelyard_kernels.ops import OPERATIONS


def inputs(*specs):
    """Return the arrays of a fresh trace."""
    graph = Graph("k")
    return tuple(
        Array(graph, graph.input(f"x{place}", place, shape, dtypes.of(dtype)))
        for place, (shape, dtype) in enumerate(specs)
    )


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_shapes_broadcast_as_in_numpy(a, b):
    """NumPy agrees on the shape, and on whether there is one."""
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        expected = None
    assert broadcast_shape(a, b) == expected


def test_equal_subexpressions_are_one_node():
    """Whoever writes an expression again gets the node that is there."""
    a, b = inputs(((4,), "float32"), ((4,), "float32"))
    assert (a + b).node is (a + b).node
    assert (a * 2).node is (a * 2.0).node
    assert (a + b).node is not (b + a).node  # no algebra, only sharing
    assert (
        xp.sum(a * b, axis=-1, keepdims=True).node
        is xp.sum(a * b, axis=-1, keepdims=True).node
    )


def test_a_cast_that_changes_nothing_is_no_node():
    """The same dtype, and a narrowing of what was just widened, are the operand."""
    (a,) = inputs(((4,), "float16"))
    assert a.astype("float16").node is a.node
    wide = a.astype("float32")
    assert wide.astype("float16").node is a.node
    assert wide.astype("float64").node is a.astype("float64").node
    narrow = (wide * 1.1).astype("float16")
    assert isinstance(narrow.astype("float32").node, Cast)  # rounding is kept


def test_numbers_take_the_dtype_they_meet():
    """Python numbers are weak: float16 arithmetic stays float16."""
    a, i = inputs(((4,), "float16"), ((4,), "int32"))
    assert (a + 1).dtype is (a * 2.5).dtype is (1 / a).dtype is dtypes.float16
    assert (i + 1).dtype is dtypes.int32
    constant = (a + 0.1).node.args[1]
    assert isinstance(constant, Constant)
    assert constant.value == float(np.float16(0.1))


def test_array_dtypes_are_promoted_within_a_kind():
    """float16 with bfloat16 is float32; float32 with float64 is float64."""
    h, b, d = inputs(((4,), "float16"), ((4,), "bfloat16"), ((4,), "float64"))
    assert (h + b).dtype is dtypes.float32
    assert (h * d).dtype is dtypes.float64
    assert (h < d).dtype is dtypes.bool_


def test_extremes_of_nothing_are_refused_and_its_sum_is_not():
    """An empty axis has no largest value; its sum is 0."""
    (a,) = inputs(((3, 0), "float32"))
    assert xp.sum(a, axis=-1).shape == (3,)
    with pytest.raises(KernelError, match="empty axis"):
        xp.max(a, axis=-1)


def test_reductions_drop_or_keep_the_last_axis():
    """Integer sums are int64, the rest keep their dtype."""
    a, i = inputs(((3, 4), "float16"), ((3, 4), "int32"))
    assert xp.sum(a, axis=-1).shape == (3,)
    assert xp.mean(a, axis=-1, keepdims=True).shape == (3, 1)
    assert xp.var(a, axis=-1).dtype is dtypes.float16
    assert xp.sum(i, axis=-1).dtype is dtypes.int64
    assert xp.max(i, axis=-1).dtype is dtypes.int32


def test_operations_accept_what_the_table_says():
    """Every row accepts its kinds and refuses the others, for all operands."""
    graph = Graph("k")
    kinds = {"float": "float32", "int": "int32", "bool": "bool"}
    for op, row in OPERATIONS.items():
        for kind, dtype in kinds.items():
            x = graph.input("x", 0, (2,), dtypes.of(dtype))
            flag = graph.input("f", 1, (2,), dtypes.bool_)
            args = (flag, x, x) if op == "where" else (x,) * row.arity
            if kind in row.keeps:
                assert graph.apply(op, *args) is x
                continue
            if kind not in row.kinds:
                with pytest.raises(KernelError):
                    graph.apply(op, *args)
                continue
            node = graph.apply(op, *args)
            assert isinstance(node, Apply)
            expected = "bool" if row.result == "bool" else dtype
            if row.result == "bits":
                expected = {"float32": "int32", "int32": "float32"}[dtype]
            assert node.dtype.name == expected


def test_constants_are_rounded_once():
    """Each dtype's nearest value; integers wrap; what is not finite is no integer."""
    assert round_constant(0.1, dtypes.float32) == float(np.float32(0.1))
    assert round_constant(1e6, dtypes.float16) == math.inf
    assert round_constant(1.00390625, dtypes.bfloat16) == 1.0  # a tie, to even
    assert round_constant(2**31, dtypes.int32) == -(2**31)
    assert round_constant(-1, dtypes.int64) == -1
    with pytest.raises(KernelError, match="use a floating dtype"):
        round_constant(math.nan, dtypes.int32)
