"""The device functions that emitted CUDA C++ may call, and which of them call which.

Conversions are PTX's own, which round once, to nearest, ties to even, keep denormals
and infinities, and give a NaN for a NaN (its payload and sign go: 0x7fff). PTX ISA,
"Data Movement and Conversion Instructions: cvt": `.rn` "mantissa LSB rounds to nearest
even", "subnormal numbers are supported" unless `.ftz`; to bf16 from sm_80 on. `min.NaN`
and `max.NaN` (sm_80 on) give NaN if either operand is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_HALF: Final = {
    "f16_low": """float f16_low(unsigned pair) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"((unsigned short)pair));
  return wide;
}""",
    "f16_high": """float f16_high(unsigned pair) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"((unsigned short)(pair >> 16)));
  return wide;
}""",
    "bf16_low": """float bf16_low(unsigned pair) {
  return __uint_as_float(pair << 16);
}""",
    "bf16_high": """float bf16_high(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}""",
}


def _round(name: str) -> str:
    return f"""unsigned short {name}_round(float wide) {{
  unsigned short half;
  asm("cvt.rn.{name}.f32 %0, %1;" : "=h"(half) : "f"(wide));
  return half;
}}"""


def _pack(name: str) -> str:
    return f"""unsigned {name}_pack(float low, float high) {{
  unsigned pair;
  asm("cvt.rn.{name}x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}}"""


def _extremum(op: str, sign: str) -> tuple[str, str]:
    """Spell min or max for float32 and float64, which has no instruction for it."""
    return (
        f"""float {op}_nan(float a, float b) {{
  float r;
  asm("{op}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}}""",
        f"""double {op}_nan(double a, double b) {{
  return a {sign} b || a != a ? a : b;
}}""",
    )


# A second rounding, to nearest, of what was rounded to odd gives what one rounding would
# (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008): towards
# zero, with the last bit set if that was inexact. An integer's float32 is no larger
# than it, so that it goes back exactly.
_ODD: Final = tuple(
    f"""float round_to_odd({type_} exact) {{
  float near = {convert}(exact);
  return ({type_})near == exact ? near : __int_as_float(__float_as_int(near) | 1);
}}"""
    for type_, convert in (
        ("double", "__double2float_rz"),
        ("int", "__int2float_rz"),
        ("long long", "__ll2float_rz"),
    )
)

HELPERS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (text,) for name, text in _HALF.items()},
    **{f"{name}_round": (_round(name),) for name in ("f16", "bf16")},
    **{f"{name}_pack": (_pack(name),) for name in ("f16", "bf16")},
    "min_nan": _extremum("min", "<"),
    "max_nan": _extremum("max", ">"),
    "round_to_odd": _ODD,
}


_HEAD: Final = "static __device__ __forceinline__ "


def preamble(used: Collection[str]) -> str:
    """Return the functions that are used, in one order whatever used them."""
    return "".join(
        f"{_HEAD}{text}\n"
        for name, texts in HELPERS.items()
        if name in used
        for text in texts
    )


def functions(preamble: str) -> list[str]:
    """Return the functions of a preamble, each whole."""
    return [f"{_HEAD}{text}" for text in preamble.split(_HEAD)[1:]]
