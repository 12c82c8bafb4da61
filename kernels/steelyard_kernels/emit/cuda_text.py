"""Spelling CUDA C++: types, literals, names, and a writer of lines.

A scalar is a C variable; a half or float8 is its bits, an `unsigned short` or `char`. A
vector is one variable a lane (`v3_0`, `v3_1`), of halves one a pair of lanes (an
`unsigned`, lane 0 low): memory moves in words of 16 bytes, and what is packed stays
packed. NVRTC made the same instructions of 30 operations on 8 lanes from variables in
72 ms, from structs in 87 and from arrays in 103. A vector whose lanes are all one
scalar is that scalar: it has no parts (`uniform`). In memory a bool is a byte.
"""

from __future__ import annotations

import math
import re
from ctypes import c_float
from functools import cache
from typing import Final, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.emit import cuda_tiles
from steelyard_kernels.expression.rounding import round_constant
from steelyard_kernels.ir.loops import Const, Operand, Type, Var
from steelyard_kernels.ops import OPERATIONS

SHORT: Final = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}  # in a helper's name
KEYWORDS: Final = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char
    char8_t char16_t char32_t class compl concept const const_cast consteval constexpr
    constinit continue co_await co_return co_yield decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed
    sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while xor xor_eq""".split()  # noqa: SIM905 - a list of words
)
OF_HALVES: Final = tuple(  # one, or two at once
    f"{op}_{half}{pair}"
    for op in ("min", "max", "add", "sub")
    for half in SHORT.values()
    for pair in ("", "x2")
)
CALLED: Final = frozenset(  # what our text calls or reads; vectors are float4, uint2
    """threadIdx blockIdx uint longlong ulonglong exp2_approx rcp_approx round_to_odd f16_low
    f16_high f16_round f16_pack bf16_low bf16_high bf16_round bf16_pack linux unix NULL
    Tensor dynamic_memory""".split()  # noqa: SIM905 - as above
).union(cuda_tiles.HELPERS, OF_HALVES) | {
    name
    for row in OPERATIONS.values()
    for text in row.cuda.values()
    for name in re.findall(
        r"\w+(?=\()", text.replace("{f}", "") + text.replace("{f}", "f")
    )
}

Ref: TypeAlias = tuple[str, bool]  # a value's spelling, and whether it has no parts


@cache
def parts(type_: Type) -> int:
    """Return how many C variables hold a value."""
    return type_.lanes // 2 if is_packed(type_) else type_.lanes


@cache
def is_packed(type_: Type) -> bool:
    """Say whether a value is pairs of halves."""
    return type_.dtype in dtypes.HALVES and type_.lanes > 1


@cache
def register(type_: Type) -> str:
    """Return the C type of one part of a value."""
    return "unsigned" if is_packed(type_) else type_.dtype.cuda


def memory(dtype: DType) -> str:
    """Return the C type of an element in memory."""
    return "unsigned char" if dtype is dtypes.bool_ else dtype.cuda


@cache
def local(name: str) -> str:
    """Spell a name that the builder made, `x.12`, as `x12`; "" for any other.

    The number is unique in a kernel and what precedes it ends in a letter, so no two
    names or lanes (`x12_0`) can be spelled alike; `parameter` gives no such name.
    """
    base, _, number = name.rpartition(".")
    if not base or not number.isdecimal():
        return ""
    base = ascii_only(base).rstrip("_0123456789") or "v"
    reserved = base in KEYWORDS or base in CALLED
    return f"{base}v{number}" if reserved else f"{base}{number}"


@cache
def parameter(name: str) -> str:
    """Spell a name that a user chose; what C++ or our text has taken gets a `_`."""
    spelled = ascii_only(name)
    if spelled in KEYWORDS or spelled in CALLED:
        return f"{spelled}_"
    clean = spelled.isidentifier() and spelled[0] != "_" and "__" not in spelled
    plain = spelled == name and clean and not spelled[-1].isdecimal()
    return spelled if plain else f"{spelled}_"


def ascii_only(name: str) -> str:
    """Respell what C++ would not take in a name: a user's parameter `λ`."""
    if name.isidentifier() and name.isascii():
        return name
    return re.sub(r"\W", lambda c: f"U{ord(c[0]):04X}", name, flags=re.ASCII)


def scalar(value: float, dtype: DType) -> str:
    """Return a number rounded to `dtype` as C++ spells it; a half's bits."""
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    if dtype.kind == "int":
        return _integer(int(value), dtype)
    if dtype.llvm[0] == "i":  # its bits
        return f"({dtype.cuda}){dtypes.bits(value, dtype)}"
    return _float(value, dtype)


def _integer(number: int, dtype: DType) -> str:
    suffix = {4: "", 8: "ll"}.get(dtype.bytes)
    if suffix is None:  # C++ has none shorter than an int
        return f"({dtype.cuda}){number}"
    suffix = suffix if dtype.signed else f"u{suffix}"
    if number == dtype.smallest < 0:  # its absolute value does not fit
        return f"({number + 1}{suffix} - 1)"
    return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"


def _float(value: float, dtype: DType) -> str:
    single = dtype is dtypes.float32
    exact = c_float(value).value if single else float(value)
    if math.isfinite(exact):
        text = f"{exact!r}f" if single else repr(exact)
        return f"({text})" if text[0] == "-" else text
    if single:
        return f"__int_as_float(0x{dtypes.bits(exact, dtype):08x})"
    return f"__longlong_as_double(0x{dtypes.bits(exact, dtype):016x}ll)"


class Writer:
    """The lines of one kernel, what its names are spelled as, and helpers it needs.

    `twins` remembers, for the innermost open body, the float32 twin of each half
    value, so that a value is widened once however often it is used.
    """

    __slots__ = ("helpers", "indent", "lines", "refs", "taken", "twins")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = "  "
        self.refs: dict[str, Ref] = {}  # by the IR's name
        self.taken: set[str] = set()
        self.twins: dict[str, Ref] = {}  # by the spelling of the half value
        self.helpers: set[str] = set()

    def name(self, name: str) -> str:
        """Spell a new name as nothing else in the kernel is."""
        spelled = local(name)
        if spelled:
            return spelled
        spelled = parameter(name)
        while spelled in self.taken:
            spelled += "_"
        self.taken.add(spelled)
        return spelled

    def define(self, var: Var) -> str:
        """Spell a new variable, whose lanes have parts."""
        spelled = self.name(var.name)
        self.refs[var.name] = spelled, var.type.lanes == 1
        return spelled

    def ref(self, operand: Operand) -> Ref:
        """Return an operand's spelling: a half constant's is bits, packed in pairs."""
        if isinstance(operand, Const):
            return literal(operand), True
        return self.refs[operand.name]

    def do(self, line: str) -> None:
        """Append one line."""
        self.lines.append(self.indent + line)

    def open(self, line: str) -> None:
        """Append a line that opens a block."""
        self.lines.append(f"{self.indent}{line} {{")
        self.indent += "  "

    def close(self, line: str = "}") -> None:
        """Close the innermost block."""
        self.indent = self.indent[:-2]
        self.lines.append(self.indent + line)


def literal(const: Const) -> str:
    """Return a constant's spelling, the same for every part."""
    if const.value:
        return _literal(const.value, const.type)
    return _literal.__wrapped__(const.value, const.type)  # 0.0 is -0.0 to a cache


@cache
def _literal(value: float, type_: Type) -> str:
    if not is_packed(type_):
        return scalar(value, type_.dtype)
    half = dtypes.bits(value, type_.dtype)
    return f"0x{half << 16 | half:08x}u"


def widened(const: Const) -> str:
    """Return a half constant as the float32 it is."""
    return scalar(round_constant(const.value, const.type.dtype), dtypes.float32)
