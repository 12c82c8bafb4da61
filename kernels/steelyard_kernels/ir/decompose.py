"""Operations that an emitter has no text for, as those that their rows make them of.

So are casts from and to float8, which no emitter spells.
"""

from __future__ import annotations

from functools import reduce

from steelyard_kernels.dtypes import HALVES, STORED, float32
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.functions import exp_log, float8
from steelyard_kernels.ir.loops import Let, Statement
from steelyard_kernels.ops import OPERATIONS


def decomposed(node: Let, target: str, scope: str) -> list[Statement] | None:
    """Return an operation as those that its row makes it of, where there is no text.

    Their names begin with `scope`; the last has the operation's own. Halves are computed
    in float32. `target` is "llvm" or "cuda": whose text is asked for.
    """
    row, b = OPERATIONS.get(node.op), Builder(scope=scope)
    combine = OPERATIONS.get(node.op.removeprefix("reduce_"))  # of lanes, by what
    if row is not None and row.decompose is not None:
        dtype = node.args[0].type.dtype
        if row.text(target, dtype) is not None:
            return None
        narrow = dtype in HALVES
        args = [b.cast(arg, float32) for arg in node.args] if narrow else node.args
        value = row.decompose(b, *args)
        if narrow and value.type.dtype is float32:
            value = b.cast(value, dtype)
    elif row is None and combine is not None and combine.decompose is not None:
        (vector,) = node.args
        places = range(vector.type.lanes)
        lanes = [b.let("extract", vector, b.number(k)) for k in places]
        value = reduce(lambda x, y: b.let(combine.name, x, y), lanes)
    elif node.op == "scaled":
        value = exp_log.scaled(b, *node.args)
    elif node.op == "cast" and _is_stored(node):
        value = float8.cast(b, node.args[0], node.var.type.dtype)
    else:
        return None
    last = b.body.pop()
    assert isinstance(last, Let)
    assert last.var is value
    return [*b.body, Let(node.var, last.op, last.args)]


def _is_stored(node: Let) -> bool:
    """Say whether a cast is between a float8 and another dtype."""
    source, target = node.args[0].type.dtype, node.var.type.dtype
    return source is not target and not {source, target}.isdisjoint(STORED)
