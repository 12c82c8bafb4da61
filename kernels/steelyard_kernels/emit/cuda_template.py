"""Templates: lines of CUDA C++ whose names are filled in for every statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.emit.cuda_helpers import HELPERS
from steelyard_kernels.emit.cuda_text import SHORT, parts, register
from steelyard_kernels.ir.loops import Type, typed

CALL: Final = re.compile(r"\w+(?=\()")  # in a line: what it calls


class Template(Struct, frozen=True):
    """Lines to `format` with the result's name and the arguments', and helpers."""

    lines: tuple[str, ...]
    helpers: frozenset[str] = frozenset()


def declare(result: Type, values: Sequence[str]) -> Template:
    """Return the declaration of a result by its parts."""
    spelled = [
        f"{name} = {value}" for name, value in zip(own(result), values, strict=True)
    ]
    line = f"{register(result)} {', '.join(spelled)};"
    return Template((line,), frozenset(CALL.findall(line)) & HELPERS.keys())


@cache
def own(result: Type) -> list[str]:
    """Return the placeholders of a result's parts."""
    if result.lanes == 1:
        return ["{0}"]
    return [f"{{0}}_{k}" for k in range(parts(result))]


def rounded(values: Sequence[str], result: Type) -> list[str]:
    """Round lanes, in float32, to a half result's parts; others are as they are."""
    if result.dtype not in HALVES:
        return list(values)
    name = SHORT[result.dtype]
    if result.lanes == 1:
        return [f"{name}_round({values[0]})"]
    pairs = zip(values[::2], values[1::2], strict=True)
    return [f"{name}_pack({low}, {high})" for low, high in pairs]


@cache
def widen(source: Type, *, uniform: bool) -> Template:
    """Return the declaration of a half value's float32 twin."""
    name = SHORT[source.dtype]
    if uniform:
        return declare(typed(float32), [f"{name}_low({{1}})"])
    values = [
        f"{name}_{half}({{1}}_{k})"
        for k in range(parts(source))
        for half in ("low", "high")
    ]
    return declare(typed(float32, source.lanes), values)


@cache
def copy(type_: Type, *, uniform: bool, declared: bool) -> Template:
    """Return the assignment of a value to a variable, which it may declare."""
    source = ["{1}" if uniform else name.replace("{0}", "{1}") for name in own(type_)]
    if declared:
        return declare(type_, source)
    pairs = zip(own(type_), source, strict=True)
    return Template((f"{', '.join(f'{a} = {b}' for a, b in pairs)};",))
