"""The elementwise operations of tensor expressions: a row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from steelyard_kernels.dtypes import DType, float32, float64, int32, int64


@dataclass(frozen=True, slots=True)
class Operation:
    """What an elementwise operation takes and gives.

    `kinds` are the operand kinds it accepts, `only` the dtypes where not all of them;
    `result` is "same" (as the operands), "bool" or "bits" (the other dtype of as many
    bits, see BITS); `cost` is how many operations `cost.operations` counts an element
    as.
    """

    arity: int
    kinds: frozenset[str]
    result: str
    cost: int
    only: frozenset[DType] = frozenset()


_FLOAT: Final = frozenset({"float"})
_NUMBER: Final = frozenset({"float", "int"})
_ANY: Final = frozenset({"float", "int", "bool"})
_BOOL: Final = frozenset({"bool"})
_INT: Final = frozenset({"int"})
_BITS: Final = frozenset({"int", "bool"})

BITS: Final = {  # the dtype that a bitcast gives
    float32: int32,
    float64: int64,
    int32: float32,
    int64: float64,
}

OPERATIONS: Final[dict[str, Operation]] = {
    "add": Operation(2, _NUMBER, "same", 1),
    "subtract": Operation(2, _NUMBER, "same", 1),
    "multiply": Operation(2, _NUMBER, "same", 1),
    "divide": Operation(2, _FLOAT, "same", 1),
    "maximum": Operation(2, _NUMBER, "same", 1),
    "minimum": Operation(2, _NUMBER, "same", 1),
    "negative": Operation(1, _NUMBER, "same", 1),
    "abs": Operation(1, _NUMBER, "same", 1),
    "sqrt": Operation(1, _FLOAT, "same", 1),
    "rsqrt": Operation(1, _FLOAT, "same", 1),
    "exp": Operation(1, _FLOAT, "same", 1),
    "log": Operation(1, _FLOAT, "same", 1),
    "expm1": Operation(1, _FLOAT, "same", 1),
    "log1p": Operation(1, _FLOAT, "same", 1),
    "tanh": Operation(1, _FLOAT, "same", 1),
    "sigmoid": Operation(1, _FLOAT, "same", 1),
    "softplus": Operation(1, _FLOAT, "same", 1),
    "erf_inv": Operation(1, _FLOAT, "same", 1),
    "erf": Operation(1, _FLOAT, "same", 1),
    "sin": Operation(1, _FLOAT, "same", 1),
    "cos": Operation(1, _FLOAT, "same", 1),
    "sinpi": Operation(1, _FLOAT, "same", 1),  # sin(pi x)
    "cospi": Operation(1, _FLOAT, "same", 1),
    "floor": Operation(1, _FLOAT, "same", 1),
    # Integers as their bits, which have no sign.
    "bitwise_and": Operation(2, _BITS, "same", 1),
    "bitwise_or": Operation(2, _BITS, "same", 1),
    "bitwise_xor": Operation(2, _BITS, "same", 1),
    "bitwise_left_shift": Operation(2, _INT, "same", 1),
    "shift_right_logical": Operation(2, _INT, "same", 1),
    "multiply_high": Operation(2, _INT, "same", 1, frozenset({int32})),
    "bitcast": Operation(1, _NUMBER, "bits", 0, frozenset(BITS)),
    "less": Operation(2, _NUMBER, "bool", 1),
    "less_equal": Operation(2, _NUMBER, "bool", 1),
    "greater": Operation(2, _NUMBER, "bool", 1),
    "greater_equal": Operation(2, _NUMBER, "bool", 1),
    "equal": Operation(2, _ANY, "bool", 1),
    "not_equal": Operation(2, _ANY, "bool", 1),
    "logical_not": Operation(1, _BOOL, "bool", 1),
    "where": Operation(3, _ANY, "same", 0),  # a selection computes nothing
}

# Elementwise operations that take ten instructions or more.
FUNCTIONS: Final = frozenset(
    {
        *("exp", "log", "expm1", "log1p", "tanh", "sigmoid", "softplus", "erf_inv"),
        *("erf", "sin", "cos", "sinpi", "cospi"),
    }
)
