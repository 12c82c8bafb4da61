"""The oracle: a program evaluated by NumPy in float64, sharing nothing with emitters.

float32 and float64 values are carried unrounded in float64 and rounded only where
the program casts; float16 and bfloat16 are rounded after every operation, as the
language says; integers are exact (and wrap).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expr import (
    Apply,
    Broadcast,
    Cast,
    Constant,
    Input,
    Node,
    Program,
    Reduce,
    Scalar,
)

Values: TypeAlias = NDArray[Any]

_ELEMENTWISE: Final[dict[str, Callable[..., Values]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "where": np.where,
}
_REDUCTIONS: Final[dict[str, Callable[..., Values]]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "var": np.var,
}


def evaluate(
    program: Program,
    arrays: Sequence[Values],
    scalars: Mapping[str, float] | None = None,
) -> dict[str, Values]:
    """Return every output by name: float64 for floats, else int64 or bool.

    `arrays` are the inputs in the order of the signature, as a launch takes them;
    bfloat16 ones as uint16 bits.
    """
    values = evaluate_nodes(program, arrays, scalars or {})
    return {
        output.name: values[output.value.number].copy() for output in program.outputs
    }


def evaluate_nodes(
    program: Program, arrays: Sequence[Values], scalars: Mapping[str, float]
) -> dict[int, Values]:
    """Return the value of every node by its number."""
    values: dict[int, Values] = {}
    with np.errstate(all="ignore"):  # the IEEE result is the answer
        for node in program.nodes:
            values[node.number] = _value(node, values, arrays, scalars)
    return values


def widen(array: Values, dtype: DType) -> Values:
    """Return an array of dtype (bfloat16 as bits) as float64, int64 or bool."""
    if dtype is dtypes.bfloat16:
        array = dtypes.from_bfloat16(array)
    carried = {"float": np.float64, "int": np.int64, "bool": np.bool_}[dtype.kind]
    return np.asarray(array).astype(carried)


def _value(
    node: Node,
    values: Mapping[int, Values],
    arrays: Sequence[Values],
    scalars: Mapping[str, float],
) -> Values:
    if isinstance(node, Input):
        return widen(arrays[node.index], node.dtype)
    if isinstance(node, Scalar):
        return widen(np.asarray(scalars[node.name]), node.dtype)
    if isinstance(node, Constant):
        return widen(np.asarray(node.value), _carrier(node.dtype))
    if isinstance(node, Apply):
        args = [values[arg.number] for arg in node.args]
        return _rounded(_ELEMENTWISE[node.op](*args), node.dtype)
    if isinstance(node, Broadcast):
        return np.broadcast_to(values[node.arg.number], node.shape)
    if isinstance(node, Reduce):
        reduce = _REDUCTIONS[node.op]
        result = reduce(values[node.arg.number], axis=-1, keepdims=node.keepdims)
        return _rounded(np.asarray(result), node.dtype)
    if isinstance(node, Cast):
        return _cast(values[node.arg.number], node.dtype)
    raise CompilerBug(f"reference: no value for {node}")


def _carrier(dtype: DType) -> DType:
    return dtypes.float64 if dtype.kind == "float" else dtype


def _rounded(values: Values, dtype: DType) -> Values:
    """Round what an operation gave: halves always, integers by wrapping."""
    if dtype in dtypes.HALVES or dtype.kind == "int":
        return _cast(values, dtype)
    return values


def _cast(values: Values, dtype: DType) -> Values:
    if dtype is dtypes.bfloat16:
        return dtypes.from_bfloat16(dtypes.to_bfloat16(values)).astype(np.float64)
    narrow = np.asarray(values).astype(dtype.numpy_name)
    return widen(narrow, dtype)
