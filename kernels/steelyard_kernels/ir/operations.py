"""The operations of the loop IR: those of `ops`, and those of lanes, threads and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from steelyard_kernels.dtypes import HALVES, bool_, float32, int32, int64
from steelyard_kernels.ir.loops import Type, typed
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import SAME_WIDTH, Op

Types: TypeAlias = tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A typing rule: its sentence, and the result's type (None: broken).

    `result` gets the arguments' types and the type the statement states, which
    an operation that chooses its own result (cast, splat, iota) hands back.
    """

    sentence: str
    result: Callable[[Types, Type | None], Type | None]


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table: what the verifier checks and the emitters spell."""

    arity: int
    rule: Rule
    targets: frozenset[str]


def is_index(type_: object) -> bool:
    """Say whether a type is that of indices."""
    return type_ in {typed(int64), typed(int32)}


def _number(_args: Types, stated: Type | None) -> Type | None:
    return stated if stated and is_index(stated) else None


def _same(kinds: tuple[str, ...]) -> Callable[[Types, Type | None], Type | None]:
    """All arguments of one type of these kinds, and so is the result."""

    def result(args: Types, _stated: Type | None) -> Type | None:
        first = args[0]
        if first.dtype.kind not in kinds:
            return None
        for other in args:
            if other is not first:
                return None
        return first

    return result


def _fused(args: Types, stated: Type | None) -> Type | None:
    return None if args[0].dtype in HALVES else _same(("float",))(args, stated)


def _single(args: Types, _stated: Type | None) -> Type | None:
    return args[0] if args[0].dtype is float32 else None


def _comparison(args: Types, _stated: Type | None) -> Type | None:
    a, b = args
    return typed(bool_, a.lanes) if a == b else None


def _select(args: Types, _stated: Type | None) -> Type | None:
    condition, a, b = args
    fits = condition.dtype is bool_ and condition.lanes in {1, a.lanes}
    return a if fits and a == b else None


def _cast(args: Types, stated: Type | None) -> Type | None:
    return stated if stated and stated.lanes == args[0].lanes else None


def _bits(args: Types, stated: Type | None) -> Type | None:
    """Give the stated type, or the other one, of as many bits."""
    (given,) = args
    dtype = stated.dtype if stated else SAME_WIDTH.get(given.dtype)
    fits = dtype and dtype.bytes == given.dtype.bytes
    return typed(dtype, given.lanes) if dtype and fits else None


def _splat(args: Types, stated: Type | None) -> Type | None:
    fits = stated and args[0].lanes == 1 and stated.dtype is args[0].dtype
    return stated if fits else None


def _extract(args: Types, _stated: Type | None) -> Type | None:
    vector, lane = args
    fits = is_index(lane)
    return typed(vector.dtype) if fits else None


def _insert(args: Types, _stated: Type | None) -> Type | None:
    vector, value, lane = args
    fits = is_index(lane) and value is typed(vector.dtype)
    return vector if fits else None


def _interleave(args: Types, _stated: Type | None) -> Type | None:
    first, second, count = args
    fits = first is second and first.lanes > 1 and is_index(count)
    return first if fits else None


def _part(args: Types, _stated: Type | None) -> Type | None:
    first, second = args
    return first if first is second and first.lanes > 1 else None


def _slide(args: Types, _stated: Type | None) -> Type | None:
    vector, before, count = args
    return vector if vector is before and is_index(count) else None


def _iota(_args: Types, stated: Type | None) -> Type | None:
    return stated if stated and stated.dtype.kind == "int" else None


def _reduce(kinds: tuple[str, ...]) -> Callable[[Types, Type | None], Type | None]:
    def result(args: Types, _stated: Type | None) -> Type | None:
        (vector,) = args
        return typed(vector.dtype) if vector.dtype.kind in kinds else None

    return result


def _mask_below(args: Types, stated: Type | None) -> Type | None:
    fits = stated and stated.dtype is bool_ and is_index(args[0])
    return stated if fits else None


def _shuffle(args: Types, _stated: Type | None) -> Type | None:
    value, lane = args
    return value if is_index(lane) else None


def _fetch(args: Types, _stated: Type | None) -> Type | None:
    value, lane, width = args
    return value if is_index(lane) and is_index(width) else None


def _vote(args: Types, _stated: Type | None) -> Type | None:
    return args[0] if args[0] is typed(bool_) else None


FUSED = Rule("arguments are float32 or float64 of one type, the result's", _fused)
SINGLE = Rule("the argument is float32, and so is the result", _single)
COMPARISON = Rule(
    "arguments are of one type, the result bool of its lanes", _comparison
)
FAR = Rule("float32 gives int32, float64 int64", _bits)
BITCAST = Rule("a value gives one of as many bits", _bits)
SELECT = Rule("a bool of one or all lanes chooses from two of one type", _select)
CAST = Rule("the result has the argument's lanes", _cast)
SPLAT = Rule("a scalar goes to every lane of its own dtype", _splat)
EXTRACT = Rule("a vector and a constant lane give a scalar", _extract)
INSERT = Rule("a vector, its scalar and a constant lane give the vector", _insert)
INTERLEAVE = Rule(
    "two vectors of one type and a constant count give one of it", _interleave
)
PART = Rule("two vectors of one type give one of it", _part)
SLIDE = Rule("two vectors of one type and a constant index give one of it", _slide)
IOTA = Rule("the result is an integer", _iota)
MASK_BELOW = Rule("an index gives a bool vector", _mask_below)
SHUFFLE = Rule("a value and a lane, an index, give the value's type", _shuffle)
FETCH = Rule("a value, a lane and a width, indices, give the value's type", _fetch)
VOTE = Rule("a scalar bool gives a scalar bool", _vote)
NUMBERED = Rule("the result is an index", _number)

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
    kinds = tuple(sorted(row.kinds))
    sentence = f"a vector of {' or '.join(kinds)} gives a scalar"
    return Operation(1, Rule(sentence, _reduce(kinds)), ANYWHERE)


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
    if row.result == "bool":
        sentence = sentence.replace("the result's", "the result bool of its lanes")

    def result(args: Types, _stated: Type | None) -> Type | None:
        first = args[0]
        if first.dtype.kind not in row.kinds or (
            row.only and first.dtype not in row.only
        ):
            return None
        for other in args:
            if other is not first:
                return None
        return typed(bool_, first.lanes) if row.result == "bool" else first

    return Operation(row.arity, Rule(sentence, result), ANYWHERE)
