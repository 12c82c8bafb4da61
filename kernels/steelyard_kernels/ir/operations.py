"""The operations of the loop IR: those of `ops`, and those of lanes, threads and memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from msgspec import Struct

from steelyard_kernels.dtypes import bool_, float32, float64, int32, int64
from steelyard_kernels.ir.loops import Type, typed
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import SAME_WIDTH, Op


class Rule(Struct, frozen=True):
    """A typing rule: its sentence, and the result's type (None: broken).

    `result` gets the type the statement states, which an operation that chooses its own
    result (cast, splat, iota) hands back, and the arguments' types.
    """

    sentence: str
    result: Callable[..., Type | None]


class Operation(Struct, frozen=True):
    """A row of the table: what the verifier checks and the emitters spell."""

    arity: int
    rule: Rule
    targets: frozenset[str]


def is_index(type_: object) -> bool:
    """Say whether a type is that of indices."""
    return type_ in {typed(int64), typed(int32)}


def _same(kinds: Collection[object]) -> Callable[..., Type | None]:
    """All arguments of one type of these kinds or dtypes, and so is the result."""

    def result(_stated: Type | None, first: Type, *others: Type) -> Type | None:
        if first.dtype.kind not in kinds and first.dtype not in kinds:
            return None
        for other in others:
            if other is not first:
                return None
        return first

    return result


def _bits(stated: Type | None, given: Type) -> Type | None:
    """Give the stated type, or the other one, of as many bits."""
    dtype = stated.dtype if stated else SAME_WIDTH.get(given.dtype)
    fits = dtype and dtype.bytes == given.dtype.bytes
    return typed(dtype, given.lanes) if dtype and fits else None


FUSED = Rule(
    "arguments are float32 or float64 of one type, the result's",
    _same({float32, float64}),
)
SINGLE = Rule("the argument is float32, and so is the result", _same({float32}))
COMPARISON = Rule(
    "arguments are of one type, the result bool of its lanes",
    lambda _, a, b: typed(bool_, a.lanes) if a == b else None,
)
FAR = Rule("float32 gives int32, float64 int64", _bits)
BITCAST = Rule("a value gives one of as many bits", _bits)
SELECT = Rule(
    "a bool of one or all lanes chooses from two of one type",
    lambda _, flag, a, b: (
        a if flag.dtype is bool_ and flag.lanes in {1, a.lanes} and a == b else None
    ),
)
CAST = Rule(
    "the result has the argument's lanes",
    lambda stated, a: stated if stated and stated.lanes == a.lanes else None,
)
SPLAT = Rule(
    "a scalar goes to every lane of its own dtype",
    lambda stated, a: stated if stated and a is typed(stated.dtype) else None,
)
EXTRACT = Rule(
    "a vector and a constant lane give a scalar",
    lambda _, vector, lane: typed(vector.dtype) if is_index(lane) else None,
)
INSERT = Rule(
    "a vector, its scalar and a constant lane give the vector",
    lambda _, v, scalar, lane: (
        v if is_index(lane) and scalar is typed(v.dtype) else None
    ),
)
INTERLEAVE = Rule(
    "two vectors of one type and a constant count give one of it",
    lambda _, a, b, count: a if a is b and a.lanes > 1 and is_index(count) else None,
)
PART = Rule(
    "two vectors of one type give one of it",
    lambda _, a, b: a if a is b and a.lanes > 1 else None,
)
SLIDE = Rule(
    "two vectors of one type and a constant index give one of it",
    lambda _, a, before, count: a if a is before and is_index(count) else None,
)
IOTA = Rule(
    "the result is an integer",
    lambda stated: stated if stated and stated.dtype.kind == "int" else None,
)
MASK_BELOW = Rule(
    "an index gives a bool vector",
    lambda stated, n: (
        stated if stated and stated.dtype is bool_ and is_index(n) else None
    ),
)
SHUFFLE = Rule(
    "a value and a lane, an index, give the value's type",
    lambda _, value, lane: value if is_index(lane) else None,
)
FETCH = Rule(
    "a value, a lane and a width, indices, give the value's type",
    lambda _, value, lane, width: value if is_index(lane) and is_index(width) else None,
)
VOTE = Rule(
    "a scalar bool gives a scalar bool",
    lambda _, flag: flag if flag is typed(bool_) else None,
)
NUMBERED = Rule(
    "the result is an index",
    lambda stated: stated if stated and is_index(stated) else None,
)

UNLIKE = {"where": SELECT}
ANYWHERE = frozenset({"cpu", "cuda"})
CPU = frozenset({"cpu"})
CUDA = frozenset({"cuda"})

OWN: dict[str, Operation] = {  # what is no elementwise operation of tensors
    # Of x = quarter * pi / 2 + angle, far from zero: see `emit.llvm_angle`.
    "far_angle": Operation(1, FUSED, CPU),
    "far_quarter": Operation(1, FAR, CPU),
    "scaled": Operation(2, FUSED, ANYWHERE),  # x * 2**n: see `functions.exp_log`
    "cast": Operation(1, CAST, ANYWHERE),
    "splat": Operation(1, SPLAT, ANYWHERE),
    "extract": Operation(2, EXTRACT, ANYWHERE),
    "insert": Operation(3, INSERT, CPU),  # the vector, but the scalar in one lane
    # Within 16 bytes, so many lanes of two vectors in turn: of their first halves, of
    # their second. Then every second 16 bytes of two vectors, from the first, the second.
    "interleave_low": Operation(3, INTERLEAVE, CPU),
    "interleave_high": Operation(3, INTERLEAVE, CPU),
    "parts_even": Operation(2, PART, CPU),
    "parts_odd": Operation(2, PART, CPU),
    # The lanes so many places up, behind the last ones of the second vector.
    "slide": Operation(3, SLIDE, ANYWHERE),
    "iota": Operation(0, IOTA, ANYWHERE),  # 0, 1, 2, ... by lane
    "mask_below": Operation(1, MASK_BELOW, ANYWHERE),  # lane < n
    "thread": Operation(0, NUMBERED, CUDA),  # which of its block's this is
    "block": Operation(0, NUMBERED, CUDA),  # which of the launch's this is
    "shuffle_xor": Operation(2, SHUFFLE, CUDA),  # from the lane i ^ mask of the warp
    "shuffle_down": Operation(2, SHUFFLE, CUDA),  # from the lane i + delta
    # From a lane known at run time, of this lane's `width` neighbours, a power of two.
    "shuffle": Operation(3, FETCH, CUDA),
    "any_warp": Operation(1, VOTE, CUDA),  # whether it holds in any of 32 threads
    "any_block": Operation(1, VOTE, CUDA),  # in any of the block's: a barrier as well
    "exp2_approx": Operation(1, SINGLE, CUDA),  # relative error 2**-22, no denormals
}


def operation(op: str) -> Operation | None:
    """Return what is known of an operation; None where there is none of that name."""
    row = OPERATIONS.get(op)
    if row is not None:
        return _of_row(row)
    if op.startswith("reduce_") and op[7:] in OPERATIONS:  # of lanes, in any order
        return _of_lanes(OPERATIONS[op[7:]])
    return OWN.get(op)


@cache
def _of_lanes(row: Op) -> Operation:
    """Return the reduction of a vector's lanes by an operation of two operands."""
    rule = Rule(
        f"a vector of {' or '.join(sorted(row.kinds))} gives a scalar",
        lambda _, v: typed(v.dtype) if v.dtype.kind in row.kinds else None,
    )
    return Operation(1, rule, ANYWHERE)


@cache
def _of_row(row: Op) -> Operation:
    """Return an elementwise operation: its types follow from its row."""
    if row.name in UNLIKE:
        return Operation(row.arity, UNLIKE[row.name], ANYWHERE)
    if row.result == "bits":
        return Operation(row.arity, BITCAST, ANYWHERE)
    if row.result == "bool" and row.arity == 2:
        return Operation(row.arity, COMPARISON, ANYWHERE)
    names = sorted(each.name for each in row.only) or sorted(row.kinds)
    sentence = f"arguments are {' or '.join(names)} of one type, the result's"
    same = _same(row.only or row.kinds)
    if row.result != "bool":
        return Operation(row.arity, Rule(sentence, same), ANYWHERE)
    sentence = sentence.replace("the result's", "the result bool of its lanes")

    def flags(stated: Type | None, *args: Type) -> Type | None:
        found = same(stated, *args)
        return found and typed(bool_, found.lanes)

    return Operation(row.arity, Rule(sentence, flags), ANYWHERE)
