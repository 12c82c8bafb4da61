"""Spelling LLVM IR: types, literals, and a writer that numbers what it appends.

In registers a float16, bfloat16 or float8 is its bits (`i16`, `i8`) and a bool an
`i1`; in memory a bool is a byte. So only conversions ever see LLVM's `half`, and none
its `bfloat`.
"""

from __future__ import annotations

import struct
from ctypes import c_float
from functools import cache

from steelyard_device.llvm import Host
from steelyard_kernels.dtypes import DType, bits, bool_, float32, float64
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.loops import Const, Type

SUFFIX = {"float": "f32", "double": "f64"}  # in an intrinsic's name; i32 is i32


@cache
def spell(element: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` elements: `float`, `<16 x float>`."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@cache
def register(type_: Type) -> str:
    """Return the LLVM type of a value in registers."""
    return spell(type_.dtype.llvm, type_.lanes)


@cache
def memory(type_: Type) -> str:
    """Return the LLVM type of a value in memory."""
    return spell("i8" if type_.dtype is bool_ else type_.dtype.llvm, type_.lanes)


@cache
def mangle(element: str, lanes: int) -> str:
    """Return a type as an intrinsic's name has it: `f32`, `v16f32`."""
    suffix = SUFFIX.get(element, element)
    return suffix if lanes == 1 else f"v{lanes}{suffix}"


def literal(const: Const) -> str:
    """Return a constant as an operand (without its type)."""
    number = scalar(const.value, const.type.dtype)
    return everywhere(number, const.type.dtype.llvm, const.type.lanes)


def everywhere(number: str, element: str, lanes: int) -> str:
    """Return a scalar literal for every lane."""
    return number if lanes == 1 else f"splat ({element} {number})"


def scalar(value: float, dtype: DType) -> str:
    """Return a number rounded to `dtype` as LLVM spells it."""
    if dtype is float32 or dtype is float64:
        exact = c_float(value).value if dtype is float32 else value
        return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
    if dtype is bool_:
        return "true" if value else "false"
    if dtype.kind == "int":
        return str(int(value))
    return str(bits(value, dtype))


class Writer:
    """The lines of one function and what they need declared.

    `wide` remembers, for the innermost open body, the float32 twin of each half
    value, so that a value is widened once however often it is used.
    """

    __slots__ = ("block", "count", "declared", "host", "lines", "wide")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.lines: list[str] = []
        self.count = 0
        self.block = "entry"
        self.declared: dict[str, None] = {}
        self.wide: dict[tuple[str, Type], str] = {}

    def fresh(self) -> int:
        """Return a number that no temporary or label has had."""
        self.count += 1
        return self.count

    def put(self, expression: str) -> str:
        """Append `%.N = expression` and return `%.N`."""
        self.count += 1
        name = f"%.{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        """Open the basic block `name`."""
        self.lines.append(f"{name}:")
        self.block = name

    def call(
        self, result: str, name: str, *args: tuple[str, str], flags: str = ""
    ) -> str:
        """Declare an intrinsic and return the call of it as an expression.

        `args` are (type, value); the name is without `llvm.`'s at sign.
        """
        types = ", ".join([type_ for type_, _ in args])
        self.declared[f"declare {result} @{name}({types})"] = None
        values = ", ".join([f"{type_} {value}" for type_, value in args])
        return f"call {flags}{result} @{name}({values})"

    def needs(self, feature: str, what: str) -> None:
        """Raise `Unsupported` on an x86 machine that lacks a CPU feature."""
        x86 = self.host.architecture == "x86_64"
        if x86 and feature not in self.host.features:
            raise Unsupported(
                f"{what} needs the CPU feature {feature}, which {self.host.cpu} lacks; "
                f"use float32 or run on a newer machine."
            )
