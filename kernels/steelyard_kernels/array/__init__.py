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

# ruff: noqa: A001, A004 - the array API's names

import math
import sys
from collections.abc import Callable
from types import ModuleType

from steelyard_kernels import dtypes
from steelyard_kernels.array import elementwise, lines, reductions
from steelyard_kernels.array.convolution import conv1d as conv1d
from steelyard_kernels.array.convolution import conv2d as conv2d
from steelyard_kernels.array.convolution import conv3d as conv3d
from steelyard_kernels.array.convolution import (
    conv_general_dilated as conv_general_dilated,
)
from steelyard_kernels.array.convolution import conv_transpose1d as conv_transpose1d
from steelyard_kernels.array.convolution import conv_transpose2d as conv_transpose2d
from steelyard_kernels.array.convolution import conv_transpose3d as conv_transpose3d
from steelyard_kernels.array.elementwise import astype as astype
from steelyard_kernels.array.elementwise import bitcast as bitcast
from steelyard_kernels.array.elementwise import clip as clip
from steelyard_kernels.array.elementwise import logical_and as logical_and
from steelyard_kernels.array.elementwise import logical_or as logical_or
from steelyard_kernels.array.elementwise import logical_xor as logical_xor
from steelyard_kernels.array.elementwise import positive as positive
from steelyard_kernels.array.elementwise import reciprocal as reciprocal
from steelyard_kernels.array.elementwise import square as square
from steelyard_kernels.array.indexing import take as take
from steelyard_kernels.array.indexing import take_along_axis as take_along_axis
from steelyard_kernels.array.lines import argsort as argsort
from steelyard_kernels.array.lines import searchsorted as searchsorted
from steelyard_kernels.array.lines import sort as sort
from steelyard_kernels.array.lines import topk as topk
from steelyard_kernels.array.loops import fori_loop as fori_loop
from steelyard_kernels.array.loops import scan as scan
from steelyard_kernels.array.loops import while_loop as while_loop
from steelyard_kernels.array.moves import broadcast_arrays as broadcast_arrays
from steelyard_kernels.array.moves import concat as concat
from steelyard_kernels.array.moves import diff as diff
from steelyard_kernels.array.moves import flip as flip
from steelyard_kernels.array.moves import matrix_transpose as matrix_transpose
from steelyard_kernels.array.moves import moveaxis as moveaxis
from steelyard_kernels.array.moves import pad as pad
from steelyard_kernels.array.moves import permute_dims as permute_dims
from steelyard_kernels.array.moves import repeat as repeat
from steelyard_kernels.array.moves import roll as roll
from steelyard_kernels.array.moves import stack as stack
from steelyard_kernels.array.moves import tile as tile
from steelyard_kernels.array.moves import unstack as unstack
from steelyard_kernels.array.products import diagonal as diagonal
from steelyard_kernels.array.products import einsum as einsum
from steelyard_kernels.array.products import matmul as matmul
from steelyard_kernels.array.products import outer as outer
from steelyard_kernels.array.products import tensordot as tensordot
from steelyard_kernels.array.products import trace as trace
from steelyard_kernels.array.products import vecdot as vecdot
from steelyard_kernels.array.reductions import all as all
from steelyard_kernels.array.reductions import any as any
from steelyard_kernels.array.reductions import argmax as argmax
from steelyard_kernels.array.reductions import argmin as argmin
from steelyard_kernels.array.reductions import count_nonzero as count_nonzero
from steelyard_kernels.array.reductions import std as std
from steelyard_kernels.array.reductions import var as var
from steelyard_kernels.array.shapes import arange as arange
from steelyard_kernels.array.shapes import asarray as asarray
from steelyard_kernels.array.shapes import broadcast_to as broadcast_to
from steelyard_kernels.array.shapes import empty as empty
from steelyard_kernels.array.shapes import empty_like as empty_like
from steelyard_kernels.array.shapes import expand_dims as expand_dims
from steelyard_kernels.array.shapes import eye as eye
from steelyard_kernels.array.shapes import full as full
from steelyard_kernels.array.shapes import full_like as full_like
from steelyard_kernels.array.shapes import linspace as linspace
from steelyard_kernels.array.shapes import meshgrid as meshgrid
from steelyard_kernels.array.shapes import ones as ones
from steelyard_kernels.array.shapes import ones_like as ones_like
from steelyard_kernels.array.shapes import reshape as reshape
from steelyard_kernels.array.shapes import squeeze as squeeze
from steelyard_kernels.array.shapes import transpose as transpose
from steelyard_kernels.array.shapes import tril as tril
from steelyard_kernels.array.shapes import triu as triu
from steelyard_kernels.array.shapes import zeros as zeros
from steelyard_kernels.array.shapes import zeros_like as zeros_like
from steelyard_kernels.array.types import can_cast as can_cast
from steelyard_kernels.array.types import finfo as finfo
from steelyard_kernels.array.types import iinfo as iinfo
from steelyard_kernels.array.types import isdtype as isdtype
from steelyard_kernels.array.types import result_type as result_type
from steelyard_kernels.array.value import Array as Array
from steelyard_kernels.array.value import Operand as Operand
from steelyard_kernels.array.value import dot as dot
from steelyard_kernels.dtypes import bfloat16 as bfloat16
from steelyard_kernels.dtypes import float8_e4m3fn as float8_e4m3fn
from steelyard_kernels.dtypes import float8_e5m2 as float8_e5m2
from steelyard_kernels.dtypes import float16 as float16
from steelyard_kernels.dtypes import float32 as float32
from steelyard_kernels.dtypes import float64 as float64
from steelyard_kernels.dtypes import int8 as int8
from steelyard_kernels.dtypes import int16 as int16
from steelyard_kernels.dtypes import int32 as int32
from steelyard_kernels.dtypes import int64 as int64
from steelyard_kernels.dtypes import uint8 as uint8
from steelyard_kernels.dtypes import uint16 as uint16
from steelyard_kernels.dtypes import uint32 as uint32
from steelyard_kernels.dtypes import uint64 as uint64
from steelyard_kernels.monoids import ALONG, MONOIDS
from steelyard_kernels.ops import OPERATIONS

Array.namespace = sys.modules[__name__]
bool = dtypes.bool_
e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi


def __getattr__(name: str) -> Callable[..., Array]:
    """Return a function of a row: elementwise ones, reductions, running totals."""
    if name in MONOIDS:
        return reductions.function_of(MONOIDS[name])
    if name in ALONG and ALONG[name].total:
        return lines.function_of(ALONG[name])
    if name in OPERATIONS and not OPERATIONS[name].hidden:
        return elementwise.function_of(OPERATIONS[name])
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; dir() of it lists what it has"
    )


def __dir__() -> list[str]:
    rows = [row.name for row in OPERATIONS.values() if not row.hidden]
    rows += [row.name for row in ALONG.values() if row.total]
    own = [
        name
        for name, value in globals().items()
        if not (name.startswith("_") or name.isupper() or isinstance(value, ModuleType))
    ]
    return sorted({*own, *MONOIDS, *rows} - {"Callable", "ModuleType"})
