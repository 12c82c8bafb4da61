"""The operations of the loop IR as LLVM expressions: tables, and what is no template.

Half arithmetic is done in float32 and rounded after every operation, which is the
correctly rounded half operation for +, -, *, / and sqrt (24 >= 2 * 11 + 2 bits:
Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from steelyard_kernels.dtypes import HALVES, DType, float32
from steelyard_kernels.emit import llvm_angle, llvm_convert
from steelyard_kernels.emit.llvm_text import (
    Writer,
    everywhere,
    mangle,
    register,
    scalar,
    spell,
)
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.loops import Type, typed
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import Op

Shape: TypeAlias = Callable[[Writer, list[str], Type, Type], str]

MOST_BITS = 512  # of a vector
PART_BYTES = 16  # of a vector, within which lanes change places in one instruction
REDUCED = {  # a vector to a scalar
    ("reduce_add", "int"): "llvm.vector.reduce.add",
    ("reduce_add", "uint"): "llvm.vector.reduce.add",
    ("reduce_minimum", "int"): "llvm.vector.reduce.smin",
    ("reduce_minimum", "uint"): "llvm.vector.reduce.umin",
    ("reduce_maximum", "int"): "llvm.vector.reduce.smax",
    ("reduce_maximum", "uint"): "llvm.vector.reduce.umax",
    ("reduce_bitwise_and", "bool"): "llvm.vector.reduce.and",
    ("reduce_bitwise_or", "bool"): "llvm.vector.reduce.or",
}


@cache
def template(row: Op, dtype: DType) -> tuple[str, str, str] | None:
    """Return how a row is spelled: an expression of type and arguments, or an intrinsic.

    The expression, or the intrinsic's name and its flags; None where it has neither.
    """
    text = row.text("llvm", dtype)
    if text is None:
        return None
    flags, found, name = text.rpartition("llvm.")
    if found:
        return "", f"{found}{name}", flags
    return (
        (text if "%" in text else f"{text} %s {', '.join(['%s'] * row.arity)}"),
        "",
        "",
    )


def expression(w: Writer, op: str, args: list[str], type_: Type, result: Type) -> str:
    """Return the LLVM expression of an operation, its last step still unnamed.

    `type_` is the first argument's type (the result's, if there is none). Raises
    `Unsupported` for an operation of another target.
    """
    dtype = type_.dtype
    if op == "cast":
        return llvm_convert.cast(w, args[0], type_, result.dtype)
    shape = SHAPES.get(op)
    if shape is not None:
        return shape(w, args, type_, result)
    if dtype in HALVES:
        return _half(w, op, args, type_, result)
    return _plain(w, op, args, type_)


def _half(w: Writer, op: str, args: list[str], type_: Type, result: Type) -> str:
    """Compute in float32; round back unless the result is a bool."""
    wide = typed(float32, type_.lanes)
    args = [llvm_convert.widened(w, arg, type_) for arg in args]
    value = _plain(w, op, args, wide)
    if result.dtype is not type_.dtype:
        return value
    return llvm_convert.narrow(w, w.put(value), result)


def _plain(w: Writer, op: str, args: list[str], type_: Type) -> str:
    """Return the expression of an operation that is computed in its own type."""
    dtype, lanes, spelled = type_.dtype, type_.lanes, register(type_)
    element = dtype.llvm
    row = OPERATIONS.get(op)
    found = template(row, dtype) if row else None
    if found is not None:
        text, name, flags = found
        if text:
            return text % (spelled, *args)
        if op == "fma":
            w.needs("fma", "a fused multiply-add")
        typed_args = [(spelled, arg) for arg in args]
        return w.call(
            spelled, f"{name}.{mangle(element, lanes)}", *typed_args, flags=flags
        )
    if op == "logical_not":
        return f"xor {spelled} {args[0]}, {everywhere('true', 'i1', lanes)}"
    if op == "abs":
        name = f"llvm.abs.{mangle(element, lanes)}"
        return w.call(spelled, name, (spelled, args[0]), ("i1", "false"))
    if op.startswith("reduce"):
        return _reduce(w, op, args[0], type_)
    raise Unsupported(
        f"{op} does not exist on target cpu; choose a schedule made for cpu."
    )


def _reduce(w: Writer, op: str, value: str, type_: Type) -> str:
    """Reduce the lanes in the order that is fastest."""
    spelled = register(type_)
    element = type_.dtype.llvm
    if type_.lanes == 1:
        return f"bitcast {spelled} {value} to {spelled}"
    name = REDUCED.get((op, type_.dtype.family))
    if name is None and (op, type_.dtype.kind) != ("reduce_add", "float"):
        return _reduce_by_halves(w, op.removeprefix("reduce_"), value, type_)
    if name is not None:
        full = f"{name}.{mangle(element, type_.lanes)}"
        return w.call(element, full, (spelled, value))
    full = f"llvm.vector.reduce.fadd.{mangle(element, type_.lanes)}"
    zero = scalar(-0.0, type_.dtype)
    return w.call(element, full, (element, zero), (spelled, value), flags="reassoc ")


def _reduce_by_halves(w: Writer, op: str, value: str, type_: Type) -> str:
    """Fold the upper half on the lower until two lanes are left, then those."""
    dtype, lanes = type_.dtype, type_.lanes
    while lanes > 1:
        whole, lanes = register(typed(dtype, lanes)), lanes // 2
        parts = []
        for first in (0, lanes):
            order = ", ".join(f"i32 {first + k}" for k in range(lanes))
            if lanes == 1:
                part = w.put(f"extractelement {whole} {value}, i64 {first}")
            else:
                part = w.put(
                    f"shufflevector {whole} {value}, {whole} poison, "
                    f"<{lanes} x i32> <{order}>"
                )
            parts.append(part)
        half = typed(dtype, lanes)
        last = _plain(w, op, parts, half)
        value = w.put(last) if lanes > 1 else last
    return value


def _splat(w: Writer, args: list[str], type_: Type, result: Type) -> str:
    if result.lanes == 1:
        return f"bitcast {register(type_)} {args[0]} to {register(type_)}"
    vector, lanes = register(result), result.lanes
    first = f"insertelement {vector} poison, {register(type_)} {args[0]}, i64 0"
    order = f"<{lanes} x i32> zeroinitializer"
    return f"shufflevector {vector} {w.put(first)}, {vector} poison, {order}"


def _extract(_w: Writer, args: list[str], type_: Type, _result: Type) -> str:
    if type_.lanes == 1:
        return f"bitcast {register(type_)} {args[0]} to {register(type_)}"
    return f"extractelement {register(type_)} {args[0]}, i64 {args[1]}"


def _insert(_w: Writer, args: list[str], type_: Type, _result: Type) -> str:
    vector, value, lane = args
    if type_.lanes == 1:
        return f"bitcast {register(type_)} {value} to {register(type_)}"
    element = type_.dtype.llvm
    return f"insertelement {register(type_)} {vector}, {element} {value}, i64 {lane}"


def _interleave(half: int) -> Shape:
    """Take so many lanes of two vectors in turn, of the first half of each part or second.

    A part is what a processor shuffles fastest: 16 bytes, or all of a shorter vector.
    """

    def interleaved(_w: Writer, args: list[str], type_: Type, _result: Type) -> str:
        lanes, count, part = type_.lanes, int(args[2]), _part(type_)
        places = [
            begin + half * part // 2 + k + each + second
            for begin in range(0, lanes, part)
            for k in range(0, part // 2, count)
            for second in (0, lanes)
            for each in range(count)
        ]
        return _shuffled(args, type_, places)

    return interleaved


def _parts(odd: int) -> Shape:
    """Take every second part of one vector, then of another."""

    def taken(_w: Writer, args: list[str], type_: Type, _result: Type) -> str:
        part = _part(type_)
        places = [
            begin + k
            for begin in range(odd * part, 2 * type_.lanes, 2 * part)
            for k in range(part)
        ]
        return _shuffled(args, type_, places)

    return taken


def _part(type_: Type) -> int:
    return min(type_.lanes, PART_BYTES // type_.dtype.bytes)


def _shuffled(args: list[str], type_: Type, places: Sequence[int]) -> str:
    """Return the lanes of two vectors at places."""
    order, vector = ", ".join([f"i32 {place}" for place in places]), register(type_)
    return (
        f"shufflevector {vector} {args[0]}, {vector} {args[1]}, "
        f"<{len(places)} x i32> <{order}>"
    )


def _slide(_w: Writer, args: list[str], type_: Type, _result: Type) -> str:
    lanes, vector, count = type_.lanes, register(type_), int(args[2])
    order = ", ".join([f"i32 {lanes - count + k}" for k in range(lanes)])
    return f"shufflevector {vector} {args[1]}, {vector} {args[0]}, <{lanes} x i32> <{order}>"


def _select(_w: Writer, args: list[str], type_: Type, result: Type) -> str:
    value = register(result)
    return f"select {register(type_)} {args[0]}, {value} {args[1]}, {value} {args[2]}"


def _iota(_w: Writer, _args: list[str], type_: Type, result: Type) -> str:
    order = _numbered(result.dtype.llvm, result.lanes)
    return f"add {register(type_)} {order}, zeroinitializer"


def _mask_below(w: Writer, args: list[str], type_: Type, result: Type) -> str:
    """Compare lanes in i32, the count brought into [0, lanes] first."""
    lanes, words = result.lanes, spell("i32", result.lanes)
    (count,) = args
    if not count.startswith("%"):
        spelled, mask = register(result), known_mask(int(count), lanes)
        return f"bitcast {spelled} {mask} to {spelled}"
    index = register(type_)
    for name, bound in (("smin", lanes), ("smax", 0)):
        pair = (index, count), (index, str(bound))
        count = w.put(w.call(index, f"llvm.{name}.{index}", *pair))
    if index != "i32":
        count = w.put(f"trunc {index} {count} to i32")
    if lanes > 1:
        first = f"insertelement {words} poison, i32 {count}, i64 0"
        order = f"<{lanes} x i32> zeroinitializer"
        count = w.put(f"shufflevector {words} {w.put(first)}, {words} poison, {order}")
    return f"icmp slt {words} {_numbered('i32', lanes)}, {count}"


def known_mask(count: int, lanes: int) -> str:
    """Return the mask of the lanes below a number."""
    flags = ["true" if lane < count else "false" for lane in range(lanes)]
    return f"<{', '.join([f'i1 {flag}' for flag in flags])}>" if lanes > 1 else flags[0]


def _shift(op: str) -> Shape:
    """Shift bits; none are left where the amount is not one of their numbers."""

    def shifted(w: Writer, args: list[str], type_: Type, _result: Type) -> str:
        spelled, flag = register(type_), spell("i1", type_.lanes)
        width, by = 8 * type_.dtype.bytes, _known(args[1], type_)
        moving = f"{op} {spelled} {args[0]}, {args[1]}"
        if by is not None and 0 <= by < width:
            return moving
        bound = everywhere(str(width), type_.dtype.llvm, type_.lanes)
        inside = w.put(f"icmp ult {spelled} {args[1]}, {bound}")
        moved = w.put(moving)
        return f"select {flag} {inside}, {spelled} {moved}, {spelled} zeroinitializer"

    return shifted


def _known(arg: str, type_: Type) -> int | None:
    """Return the integer that an argument is in every lane, if it is a literal."""
    number = arg.removeprefix(f"splat ({type_.dtype.llvm} ").removesuffix(")")
    return int(number) if number.removeprefix("-").isdecimal() else None


def _multiply_high(w: Writer, args: list[str], type_: Type, _result: Type) -> str:
    """Multiply in 64 bits."""
    words, wide = register(type_), spell("i64", type_.lanes)
    factors = []
    for arg in args:
        known = _known(arg, type_)
        if known is None:
            factors.append(w.put(f"zext {words} {arg} to {wide}"))
        else:
            factors.append(everywhere(str(known & 0xFFFFFFFF), "i64", type_.lanes))
    by = everywhere("32", "i64", type_.lanes)
    product = w.put(f"mul {wide} {', '.join(factors)}")
    high = w.put(f"lshr {wide} {product}, {by}")
    return f"trunc {wide} {high} to {words}"


def _bitcast(_w: Writer, args: list[str], type_: Type, result: Type) -> str:
    return f"bitcast {register(type_)} {args[0]} to {register(result)}"


def scales(w: Writer, type_: Type) -> bool:
    """Say whether the CPU has an instruction that scales such vectors by powers of two."""
    size = type_.lanes * type_.dtype.bytes
    return (
        "avx512vl" in w.host.features and type_.lanes > 1 and size in {16, 32, 64, 128}
    )


def _scaled(w: Writer, args: list[str], type_: Type, _result: Type) -> str:
    spelled, bits = register(type_), 8 * type_.lanes * type_.dtype.bytes
    if bits > MOST_BITS:
        count = type_.lanes // 2
        half, made = typed(type_.dtype, count), []
        for places in (range(count), range(count, 2 * count)):
            parts = [w.put(_shuffled([arg, arg], type_, places)) for arg in args]
            made.append(w.put(_scaled(w, parts, half, half)))
        return _shuffled(made, half, range(type_.lanes))
    kind = "ps" if type_.dtype is float32 else "pd"
    values = [(spelled, arg) for arg in (*args, args[0])]
    values.append((f"i{max(8, type_.lanes)}", "-1"))  # all lanes
    values += [("i32", "4")] * (bits == MOST_BITS)  # rounded as all else is
    return w.call(spelled, f"llvm.x86.avx512.mask.scalef.{kind}.{bits}", *values)


def _numbered(element: str, lanes: int) -> str:
    if lanes == 1:
        return "0"
    return f"<{', '.join([f'{element} {lane}' for lane in range(lanes)])}>"


SHAPES: dict[str, Shape] = {
    "bitwise_left_shift": _shift("shl"),
    "shift_right_logical": _shift("lshr"),
    "multiply_high": _multiply_high,
    "bitcast": _bitcast,
    "scaled": _scaled,
    "far_angle": llvm_angle.from_afar(0),
    "far_quarter": llvm_angle.from_afar(1),
    "splat": _splat,
    "extract": _extract,
    "insert": _insert,
    "where": _select,
    "interleave_low": _interleave(0),
    "interleave_high": _interleave(1),
    "parts_even": _parts(0),
    "parts_odd": _parts(1),
    "slide": _slide,
    "iota": _iota,
    "mask_below": _mask_below,
}
