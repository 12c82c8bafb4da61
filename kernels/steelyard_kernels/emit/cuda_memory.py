"""Loads and stores as CUDA C++ lines: vectors go as words of up to 16 bytes.

A word is CUDA's own vector type (`float4`, `uint2`): one instruction each. What is
known to be less aligned goes lane by lane. Register and stack buffers are arrays of
the values' parts, halves in pairs, so that they live in registers as vectors do.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.emit.cuda_template import Template, declare, own
from steelyard_kernels.emit.cuda_text import is_packed, memory, parts, register
from steelyard_kernels.ir.loops import Buffer, Type, typed

WORD: Final = 16  # bytes of the widest access
FIELDS: Final = "xyzw"
WORDS: Final = {  # what a word is made of; smaller elements go as bits
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.int32: "int",
    dtypes.int64: "longlong",
    dtypes.uint32: "uint",
    dtypes.uint64: "ulonglong",
}
PRIVATE: Final = frozenset({"register", "stack"})


@cache
def load(type_: Type, how: str, mask: str, *, packed: bool) -> Template:
    """Return a load of `{0}` from `{1} + {2}`, zero where the mask `{3}` is false.

    `how` is "private", "word:BYTES" or "lanes"; `mask` is "none", "all" (one condition
    for the whole) or "lanes"; `packed` says that a private buffer holds pairs.
    """
    if how == "lanes" or (mask == "lanes" and (how == "private" or type_.lanes == 1)):
        return declare(type_, _by_lane(type_, mask, packed=packed))
    if how == "private":
        before: list[str] = []
        values = _private(type_, packed=packed)
    else:
        before, values = _words(type_, int(how.removeprefix("word:")))
    if mask == "none":
        return Template((*before, *declare(type_, values).lines))
    zeros = declare(type_, ["0"] * parts(type_)).lines
    pairs = zip(own(type_), values, strict=True)
    assigned = ", ".join(f"{name} = {value}" for name, value in pairs)
    inside = [f"  {line}" for line in (*before, f"{assigned};")]
    if mask == "lanes":
        single = zip(own(type_), _by_lane(type_, mask, packed=packed), strict=True)
        apart = ", ".join(f"{name} = {value}" for name, value in single)
        inside += ["}} else {{", f"  {apart};"]
    return Template((*zeros, f"if ({_all(type_, mask)}) {{{{", *inside, "}}"))


def _all(type_: Type, mask: str) -> str:
    """Return the condition that all lanes of a mask are true."""
    if mask == "all":
        return "{3}"
    return " && ".join([f"{{3}}_{k}" for k in range(type_.lanes)])


@cache
def store(type_: Type, how: str, mask: str, *, packed: bool, uniform: bool) -> Template:
    """Return a store of `{0}` to `{1} + {2}` where the mask `{3}` is true; see `load`."""
    lanes = type_.lanes
    apart: tuple[str, ...] = ()
    if how == "lanes" or mask == "lanes":
        guard = ""
        if mask != "none":
            guard = "if ({3}_%d) " if mask == "lanes" and lanes > 1 else "if ({3}) "
        each = _lane_stores(type_, packed=packed, uniform=uniform)
        apart = tuple(guard.replace("%d", str(k)) + line for k, line in enumerate(each))
        if not how.startswith("word"):
            return Template(apart)
    values = ["{0}"] * parts(type_) if uniform else own(type_)
    if how == "private":
        lines = _private_stores(type_, values, packed=packed)
    else:
        size = int(how.removeprefix("word:"))
        lines = _word_stores(type_, values, size)
    if mask != "none":
        lines = [f"if ({_all(type_, mask)}) {{{{", *[f"  {line}" for line in lines]]
        lines += ["}} else {{", *[f"  {line}" for line in apart]] if apart else []
        lines.append("}}")
    return Template(tuple(lines))


def access(buffer: Buffer, lanes: int, alignment: int) -> str:
    """Return how a vector goes to or from a buffer: see `load`."""
    dtype = buffer.dtype
    if buffer.space in PRIVATE:
        pairs = dtype in dtypes.HALVES and lanes > 1 and alignment < 4
        return "lanes" if pairs else "private"
    size = min(WORD, alignment, lanes * dtype.bytes)
    return f"word:{size}" if size > dtype.bytes else "lanes"


def array(buffer: Buffer, name: str, extent: int) -> str:
    """Return the declaration of a block's or thread's own memory."""
    if buffer.space == "shared":
        element = memory(buffer.dtype)
        return f"__shared__ alignas({WORD}) {element} {name}[{max(extent, 1)}];"
    if buffer.dtype in dtypes.HALVES:
        return f"alignas({WORD}) unsigned {name}[{max(extent + 1, 2) // 2}];"
    return f"alignas({WORD}) {register(typed(buffer.dtype))} {name}[{max(extent, 1)}];"


def _word(type_: Type, size: int) -> tuple[str, int]:
    """Return the C type of a word of `size` bytes, and how many fields it has."""
    bits = type_.dtype not in WORDS
    width = 4 if bits else type_.dtype.bytes
    fields = max(size // width, 1)
    if bits and size < 4:
        return "unsigned short", 1
    if fields == 1:
        return "unsigned" if bits else register(typed(type_.dtype)), 1
    return f"{'uint' if bits else WORDS[type_.dtype]}{fields}", fields


def _at(index: str, offset: int) -> str:
    return f"{{1}} + {index} + {offset}" if offset else f"{{1}} + {index}"


def _words(type_: Type, size: int) -> tuple[list[str], list[str]]:
    """Return the loads of a vector's words, and its parts by their fields."""
    word, fields = _word(type_, size)
    per_word = size // type_.dtype.bytes
    before, pieces = [], []
    for k in range(type_.lanes // per_word):
        name = f"{{0}}w_{k}"
        before.append(f"{word} {name} = *(const {word} *)({_at('{2}', k * per_word)});")
        pieces += (
            [f"{name}.{FIELDS[j]}" for j in range(fields)] if fields > 1 else [name]
        )
    if type_.dtype in WORDS or is_packed(type_):
        return before, pieces
    firsts = range(0, min(size, 4), type_.dtype.bytes)  # bytes of a field
    bits = [f"({piece} >> {8 * first}" for piece in pieces for first in firsts]
    if type_.dtype is dtypes.bool_:
        return before, [f"{each} & 255) != 0" for each in bits]
    return before, [f"({type_.dtype.cuda}){each})" for each in bits]


def _word_stores(type_: Type, values: list[str], size: int) -> list[str]:
    word, fields = _word(type_, size)
    element = type_.dtype.bytes
    if type_.dtype not in WORDS and not is_packed(type_):
        count = min(size, 4) // element
        values = [
            " | ".join(
                f"{_bits(v, type_.dtype)} << {8 * element * j}"
                for j, v in enumerate(values[k : k + count])
            )
            for k in range(0, len(values), count)
        ]
    per_word = size // element
    lines = []
    for k in range(type_.lanes // per_word):
        given = ", ".join(values[k * fields : (k + 1) * fields])
        value = f"{word}{{{{{given}}}}}" if fields > 1 else given
        to = f"({word} *)({_at('{2}', k * per_word)})"
        lines.append(f"*{to} = {value};")
    return lines


def _bits(value: str, dtype: DType) -> str:
    """Return an element's bits, zeros above them."""
    bare = (
        f"({dtypes.unsigned(dtype).cuda})"
        if dtype.kind == "int" and dtype.signed
        else ""
    )
    return f"(unsigned){bare}{value}"


def _private(type_: Type, *, packed: bool) -> list[str]:
    """Return a value's parts in an array of them."""
    if not packed:
        return [f"{{1}}[{{2}} + {k}]" if k else "{1}[{2}]" for k in range(parts(type_))]
    if type_.lanes == 1:
        return [_half("{2}")]
    return [f"{{1}}[{{2}} / 2 + {k}]" for k in range(parts(type_))]


def _half(index: str) -> str:
    """Cut one half from a pair in an array."""
    return f"(unsigned short)({{1}}[{index} / 2] >> {index} % 2 * 16)"


def _private_stores(type_: Type, values: list[str], *, packed: bool) -> list[str]:
    if packed and type_.lanes == 1:
        return [_store_half("{2}", values[0])]
    return [
        f"{place} = {value};"
        for place, value in zip(_private(type_, packed=packed), values, strict=True)
    ]


def _store_half(index: str, value: str) -> str:
    """Replace one half of a pair in an array."""
    pair = f"{{1}}[{index} / 2]"
    return (
        f"{pair} = {index} % 2 ? {pair} & 0xffffu | (unsigned){value} << 16 "
        f": {pair} & 0xffff0000u | {value};"
    )


def _by_lane(type_: Type, mask: str, *, packed: bool) -> list[str]:
    """Return a value's parts, each lane loaded by itself, behind its mask."""
    lanes = []
    for k in range(type_.lanes):
        index = _lane_index(k, packed=packed)
        value = _half(index) if packed else f"{{1}}[{index}]"
        if type_.dtype is dtypes.bool_:
            value = f"{value} != 0"
        if mask != "none":
            single = mask == "all" or type_.lanes == 1
            flag = "{3}" if single else f"{{3}}_{k}"
            value = f"{flag} ? {value} : 0"
        lanes.append(value)
    if not is_packed(type_):
        return lanes
    return [
        f"({low}) | (unsigned)({high}) << 16"
        for low, high in zip(lanes[::2], lanes[1::2], strict=True)
    ]


def _lane_index(lane: int, *, packed: bool) -> str:
    if not lane:
        return "{2}"
    return f"({{2}} + {lane})" if packed else f"{{2}} + {lane}"


def _lane_stores(type_: Type, *, packed: bool, uniform: bool) -> list[str]:
    """Return one store a lane."""
    lines = []
    for k in range(type_.lanes):
        index = _lane_index(k, packed=packed)
        part = "{0}" if uniform else f"{{0}}_{k // 2 if is_packed(type_) else k}"
        if is_packed(type_):
            part = (
                f"(unsigned short)({part} >> 16)"
                if k % 2
                else f"(unsigned short){part}"
            )
        if packed:
            lines.append(_store_half(index, part))
        else:
            lines.append(f"{{1}}[{index}] = {part};")
    return lines
