"""The operations of the loop IR as CUDA C++ lines: tables, and what is no template.

Half arithmetic is done in float32 and rounded after every operation, as on the CPU
(see `llvm_operations`), but for sums, which are the same by halves. Divisions and roots are correctly rounded: NVRTC's own default
(-prec-div, -prec-sqrt). Functions are the CUDA library's, which handle NaN, infinities
and denormals in full range, but for sigmoid, softplus, erf of float32, and sinpi and cospi
of float64, which are ours (`cuda_helpers`; 0.76 ulp seen of the last two). Largest errors in ulp from the correctly rounded result (CUDA
Programming Guide, "Mathematical Functions", tables 47 to 51 and 55: as NVIDIA has seen
them, without proof; ours by their steps' errors), and instructions seen for sm_90a:

              exp     log     rsqrt   expm1   log1p   tanh    sinpi   cospi
    float32   2, 10   1, 28   2, 4    1, 24   1, 33   2, 17   1, 25   1, 25
    float64   1, 61   1, 84   1, 49   1, 77   1, 231  1, 102  1, 42   1, 43

              sin     cos     erf     erf_inv  sigmoid  softplus
    float32   2, 117  2, 118  2, 21   2, 31    6, 29    4, 45
    float64   2, 204  2, 205  2, 123  5, 324   7, 85    4, 157

Of float64 sin and cos reduce large angles, from about 1e5 on, through 40 bytes of local
memory a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.emit.cuda_template import Template, declare, rounded
from steelyard_kernels.emit.cuda_text import SHORT, is_packed, parts, scalar
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.loops import Type
from steelyard_kernels.ops import OPERATIONS

INSIDE: Final = {  # shifts by a constant that leaves bits
    "inside_bitwise_left_shift": "({t})(({w}){a} << {b})",
    "inside_shift_right_logical": "({t})(({u}){a} >> {b})",
}
PAIRS: Final = {  # on one half, or on two: what float32 would round to the same
    "negative": ("{a} ^ 0x8000", "{a} ^ 0x80008000u"),
    "abs": ("{a} & 0x7fff", "{a} & 0x7fff7fffu"),
    "add": ("add_{h}({a}, {b})", "add_{h}x2({a}, {b})"),
    "subtract": ("sub_{h}({a}, {b})", "sub_{h}x2({a}, {b})"),
    "maximum": ("max_{h}({a}, {b})", "max_{h}x2({a}, {b})"),
    "minimum": ("min_{h}({a}, {b})", "min_{h}x2({a}, {b})"),
}
BITS: Final = frozenset(  # take halves as they are; all else takes float32 twins
    {
        *("where", "splat", "extract"),
        *("shuffle_xor", "shuffle_down", "shuffle"),
        *PAIRS,
        *("reduce_maximum", "reduce_minimum"),
    }
)


Names: TypeAlias = Sequence[str]  # of one argument: a placeholder a lane or part


class _Call(NamedTuple):
    """An operation that is no template of a lane, with its arguments' names and types."""

    op: str
    names: list[list[str]]
    types: tuple[Type, ...]
    result: Type


@cache
def template(op: str, result: Type, *given: Any) -> Template:
    """Return the lines of an operation: `{0}` is its result, `{1}` the first argument.

    `given` are the arguments' types, each followed by whether it is `uniform`, without
    parts: flat, because this is looked up for every statement. Halves come as float32
    twins, but for operations in BITS. `index_` before an operation says that it is on
    indices, which do not wrap. Raises `Unsupported`.
    """
    types: tuple[Type, ...] = given[::2]
    names = [
        [f"{{{at}}}"] * type_.lanes
        if uniform
        else [f"{{{at}}}_{k}" for k in range(type_.lanes)]
        for at, (type_, uniform) in enumerate(zip(types, given[1::2], strict=True), 1)
    ]
    shape = SHAPES.get(op)
    if shape is not None:
        return declare(result, shape(_Call(op, names, types, result)))
    if op in BITS and result.dtype in dtypes.HALVES:
        return declare(result, _of_halves(op, names, types[0], result))
    if op == "cast":
        values = _cast(names[0], types[0].dtype, result.dtype)
    elif op.startswith("reduce_"):
        values = [_tree(op.removeprefix("reduce_"), types[0].dtype, names[0])]
    else:
        values = [one(op, types[0].dtype, lane) for lane in zip(*names, strict=True)]
    return declare(result, rounded(values, result))


def _of_halves(op: str, names: list[list[str]], given: Type, result: Type) -> list[str]:
    """Return the parts of an operation on bits of halves, or of reducing them by it."""
    single, pair = PAIRS[op.removeprefix("reduce_")]
    name = SHORT[result.dtype]
    if op in PAIRS:
        text = pair if is_packed(result) else single
        args = zip(*[each[: parts(result)] for each in names], strict=True)
        return [text.format(h=name, **dict(zip("ab", a, strict=False))) for a in args]
    values = names[0][: parts(given)]
    while len(values) > 1:
        half = len(values) // 2
        ends = zip(values[:half], values[half:], strict=True)
        values = [pair.format(h=name, a=a, b=b) for a, b in ends]
    low, high = f"(unsigned short)({values[0]})", f"({values[0]}) >> 16"
    return [single.format(h=name, a=low, b=high)]


def one(op: str, dtype: DType, args: Sequence[str]) -> str:
    """Return one lane of an operation on arguments of `dtype`."""
    name = op.removeprefix("index_")
    row = OPERATIONS.get(name)
    text = INSIDE.get(name)
    if row is not None:  # indices do not wrap: C++'s own arithmetic
        text = row.text("cuda", dtype if name == op else dtypes.float32)
    if text is None:
        raise Unsupported(
            f"{op} of {dtype.name} does not exist on target cuda; "
            f"choose a schedule made for cuda."
        )
    how = {"t": dtype.cuda, "f": "" if dtype is dtypes.float64 else "f"}
    if dtype.kind == "int":
        word = dtypes.uint64 if dtype.bytes == dtypes.uint64.bytes else dtypes.uint32
        how |= {"u": dtypes.unsigned(dtype).cuda, "w": word.cuda}
    return text.format(**how, **dict(zip("abc", args, strict=False)))


def _cast(names: Names, source: DType, target: DType) -> list[str]:
    """Convert lanes; to a half, as far as the float32 that is then rounded to it."""
    source = dtypes.float32 if source in dtypes.HALVES else source
    if target in dtypes.HALVES:
        if source.digits > dtypes.float32.digits:
            return [f"round_to_odd({a})" for a in names]
        target = dtypes.float32
    if source is target:
        return list(names)
    if target is dtypes.bool_:
        return [f"{a} != 0" for a in names]
    if source.kind == "float" and target.kind == "int":
        return [_truncated(a, source, target) for a in names]
    return [f"({target.cuda}){a}" for a in names]


def _truncated(a: str, source: DType, target: DType) -> str:
    """Convert a float to an integer, or to the nearest bound.

    NaN gives 0 as on the CPU: PTX's does so only where neither side has 64 bits.
    """
    sign = "" if target.signed else "u"
    word = "ll" if target.bytes == dtypes.int64.bytes else "int"
    value = f"__{source.cuda}2{sign}{word}_rz({a})"
    if target.bytes < dtypes.int32.bytes:
        ends = f"{target.smallest}", f"{target.largest}"
        value = f"max(min(__{source.cuda}2int_rz({a}), {ends[1]}), {ends[0]})"
    return f"{a} == {a} ? {value} : 0"


def _bitcast(of: _Call) -> list[str]:
    function = {
        (dtypes.float32, dtypes.int32): "__float_as_int",
        (dtypes.float64, dtypes.int64): "__double_as_longlong",
        (dtypes.int32, dtypes.float32): "__int_as_float",
        (dtypes.int64, dtypes.float64): "__longlong_as_double",
    }.get((of.types[0].dtype, of.result.dtype), f"({of.result.dtype.cuda})")
    return [f"{function}({a})" for a in of.names[0]]


def _tree(op: str, dtype: DType, names: Names) -> str:
    """Reduce lanes pairwise."""
    values = list(names)
    while len(values) > 1:
        half = len(values) // 2
        pairs = zip(values[:half], values[half:], strict=True)
        values = [f"({one(op, dtype, pair)})" for pair in pairs]
    return values[0]


def _select(of: _Call) -> list[str]:
    flags, a, b = of.names
    whole = of.types[0].lanes == 1 or flags[0] == flags[-1]
    if whole or not is_packed(of.result):
        flags = flags * parts(of.result) if of.types[0].lanes == 1 else flags
        sides = zip(flags, a, b, strict=False)
        return [f"{flag} ? {x} : {y}" for flag, x, y in sides][: parts(of.result)]
    return [
        f"({flags[2 * k]} ? {a[k]} : {b[k]}) & 0xffffu"
        f" | ({flags[2 * k + 1]} ? {a[k]} : {b[k]}) & 0xffff0000u"
        for k in range(parts(of.result))
    ]


def _from_lanes(how: str) -> Callable[[_Call], list[str]]:
    """Take a value's parts from other lanes: which, by the names behind it."""

    def shape(of: _Call) -> list[str]:
        value, *which = of.names
        behind = ", ".join([names[0] for names in which])
        return [
            f"__shfl_{how}sync(0xffffffffu, {part}, {behind})"
            for part in value[: parts(of.result)]
        ]

    return shape


SHAPES: Final[dict[str, Callable[[_Call], list[str]]]] = {
    "bitcast": _bitcast,
    "where": _select,
    # One half packed twice: only splats of halves are more than their scalar.
    "splat": lambda of: [f"{of.names[0][0]} * 0x10001u"] * parts(of.result),
    "iota": lambda of: [scalar(k, of.result.dtype) for k in range(of.result.lanes)],
    "mask_below": lambda of: [
        f"{lane} < {of.names[0][0]}" for lane in range(of.result.lanes)
    ],
    **dict.fromkeys(
        ("thread", "block"), lambda of: [f"({of.result.dtype.cuda}){of.op}Idx.x"]
    ),
    "shuffle_xor": _from_lanes("xor_"),
    "shuffle_down": _from_lanes("down_"),
    "shuffle": _from_lanes(""),
    "any_warp": lambda of: [f"__any_sync(0xffffffffu, {of.names[0][0]}) != 0"],
    "any_block": lambda of: [f"__syncthreads_or({of.names[0][0]}) != 0"],
    "exp2_approx": lambda of: [f"{of.op}({a})" for a in of.names[0]],
}
