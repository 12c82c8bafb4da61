"""Operations that an emitter has no text for, as those that their rows make them of.

So are casts from and to float8, which no emitter spells.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from steelyard_kernels.dtypes import HALVES, STORED, float32
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.functions import exp_log, float8
from steelyard_kernels.ir.functions.floats import Number
from steelyard_kernels.ir.loops import INDEX, Const, Let, Statement
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import Op


def decomposed(node: Let, target: str, scope: str) -> list[Statement] | None:
    """Return an operation as those that its row makes it of, where there is no text.

    Their names begin with `scope`; the last has the operation's own. Halves are computed
    in float32. `target` is "llvm" or "cuda": whose text is asked for.
    """
    op, row = node.op, OPERATIONS.get(node.op)
    make: Callable[..., Number]
    if row is not None:
        made = row.decompose and row.text(target, node.args[0].type.dtype) is None
        if not made:
            return None
        make = partial(_of_row, row)
    elif op.startswith("reduce_") and OPERATIONS[op[7:]].decompose is not None:
        make = partial(_of_lanes, op[7:])
    elif op == "scaled":
        make = exp_log.scaled
    elif op == "cast" and _is_stored(node):
        make = partial(float8.cast, target=node.var.type.dtype)
    else:
        return None
    b = Builder(scope=scope)
    value = make(*[Number(b, arg) for arg in node.args]).operand
    last = b.body.pop()
    assert isinstance(last, Let)
    assert last.var is value
    return [*b.body, Let(node.var, last.op, last.args)]


def _of_row(row: Op, *given: Number) -> Number:
    dtype = given[0].dtype
    decompose: Callable[..., Number] | None = row.decompose
    assert decompose is not None
    if dtype not in HALVES:
        return decompose(*given)
    value = decompose(*[arg.cast(float32) for arg in given])
    return value.cast(dtype) if value.dtype is float32 else value


def _of_lanes(combine: str, vector: Number) -> Number:
    lanes = [
        vector.let("extract", Number(vector.b, Const(k, INDEX)))
        for k in range(vector.operand.type.lanes)
    ]
    return reduce(lambda x, y: x.let(combine, y), lanes)


def _is_stored(node: Let) -> bool:
    """Say whether a cast is between a float8 and another dtype."""
    source, target = node.args[0].type.dtype, node.var.type.dtype
    return source is not target and not {source, target}.isdisjoint(STORED)
