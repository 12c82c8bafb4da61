"""The array namespace that kernels are written in: the array API's names over nodes.

    from steelyard_kernels import array as xp, kernel

    @kernel
    def softmax(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

An `Array` stands for values that exist when the kernel runs; operating on it adds
nodes to the graph of the trace. Python numbers and runtime scalars are weak: they
take the dtype of the array they meet, so float32 arithmetic stays float32.
Loops run a function of their carry within the kernel: see `loops`. Reductions are over all axes unless `axis` says which, as in the array API, and only
the last axis can be reduced: arrays of more dimensions than one need `axis=-1`.
"""

# ruff: noqa: A004 - the array API's names

from steelyard_kernels.array.elementwise import (
    abs,
    add,
    astype,
    bitcast,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    cospi,
    divide,
    equal,
    erf_inv,
    exp,
    expm1,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    multiply_high,
    negative,
    not_equal,
    rsqrt,
    shift_left,
    shift_right_logical,
    sigmoid,
    sinpi,
    softplus,
    sqrt,
    square,
    subtract,
    tanh,
    where,
)
from steelyard_kernels.array.loops import fori_loop, scan, while_loop
from steelyard_kernels.array.reductions import max, mean, min, sum, var
from steelyard_kernels.array.shapes import (
    arange,
    broadcast_to,
    expand_dims,
    full,
    full_like,
    ones,
    ones_like,
    reshape,
    squeeze,
    transpose,
    zeros,
    zeros_like,
)
from steelyard_kernels.array.value import Array, Operand, dot

__all__ = [
    "Array",
    "Operand",
    "abs",
    "add",
    "arange",
    "astype",
    "bitcast",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "cospi",
    "divide",
    "dot",
    "equal",
    "erf_inv",
    "exp",
    "expand_dims",
    "expm1",
    "floor",
    "fori_loop",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "multiply_high",
    "negative",
    "not_equal",
    "ones",
    "ones_like",
    "reshape",
    "rsqrt",
    "scan",
    "shift_left",
    "shift_right_logical",
    "sigmoid",
    "sinpi",
    "softplus",
    "sqrt",
    "square",
    "squeeze",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]
