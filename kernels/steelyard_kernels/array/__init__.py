"""The array namespace that kernels are written in: the array API's names over nodes.

    from steelyard_kernels import array as xp, kernel

    @kernel
    def softmax(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

An `Array` stands for values that exist when the kernel runs; operating on it adds
nodes to the graph of the trace. Python numbers and runtime scalars are weak: they
take the dtype of the array they meet, so float32 arithmetic stays float32.
Loops run a function of their carry within the kernel: see `loops`. Reductions are over
all axes unless `axis` says which, as in the array API.
"""

# ruff: noqa: A004 - the array API's names

import math
from collections.abc import Callable

from steelyard_kernels.along import ALONG
from steelyard_kernels.array import elementwise, lines, reductions
from steelyard_kernels.array.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_general_dilated,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from steelyard_kernels.array.elementwise import (
    astype,
    bitcast,
    clip,
    logical_and,
    logical_or,
    logical_xor,
    positive,
    reciprocal,
    square,
)
from steelyard_kernels.array.lines import argsort, searchsorted, sort, topk
from steelyard_kernels.array.loops import fori_loop, scan, while_loop
from steelyard_kernels.array.moves import (
    broadcast_arrays,
    concat,
    diff,
    flip,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    repeat,
    roll,
    stack,
    take,
    take_along_axis,
    tile,
    unstack,
)
from steelyard_kernels.array.products import (
    diagonal,
    einsum,
    matmul,
    outer,
    tensordot,
    trace,
    vecdot,
)
from steelyard_kernels.array.reductions import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    std,
    var,
)
from steelyard_kernels.array.shapes import (
    arange,
    asarray,
    broadcast_to,
    empty,
    empty_like,
    expand_dims,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    reshape,
    squeeze,
    transpose,
    tril,
    triu,
    zeros,
    zeros_like,
)
from steelyard_kernels.array.types import can_cast, finfo, iinfo, isdtype, result_type
from steelyard_kernels.array.value import Array, Operand, dot
from steelyard_kernels.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from steelyard_kernels.dtypes import bool_ as bool
from steelyard_kernels.monoids import MONOIDS
from steelyard_kernels.ops import OPERATIONS

e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi

__all__ = [
    "Array",
    "Operand",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "astype",
    "bfloat16",
    "bitcast",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "clip",
    "concat",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_general_dilated",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "count_nonzero",
    "diagonal",
    "diff",
    "dot",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "finfo",
    "flip",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "fori_loop",
    "full",
    "full_like",
    "iinfo",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "linspace",
    "logical_and",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "meshgrid",
    "moveaxis",
    "nan",
    "newaxis",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "permute_dims",
    "pi",
    "positive",
    "reciprocal",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "scan",
    "searchsorted",
    "sort",
    "square",
    "squeeze",
    "stack",
    "std",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triu",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unstack",
    "var",
    "vecdot",
    "while_loop",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> Callable[..., Array]:
    """Return a function of a row: elementwise ones, reductions, running totals."""
    where = reductions if name in MONOIDS else lines if name in ALONG else elementwise
    function: Callable[..., Array] | None = getattr(where, name, None)
    if function is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; dir() of it lists what it has"
        )
    return function


def __dir__() -> list[str]:
    rows = [row.name for row in OPERATIONS.values() if not row.hidden]
    rows += [row.name for row in ALONG.values() if row.total]
    return sorted({*__all__, *MONOIDS, *rows})
