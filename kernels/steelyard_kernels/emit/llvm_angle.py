"""Large angles as quarter turns and what is left of them, exactly.

x * 2 / pi in integers as wide as its digits need: of the digits of 2 / pi those that
neither make multiples of four quarter turns nor are too low to matter. Payne and Hanek,
"Radian Reduction for Trigonometric Functions" (SIGNUM Newsletter, 1983). No float64 is
closer to a multiple of pi / 2 than 2**-62, so that of 190 digits after the point more
than 60 count. Off by 0.5001 ulp at most on 2000 angles of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.emit.llvm_text import Writer, mangle, register, spell
from steelyard_kernels.ir.loops import Type

DIGITS: Final = 1192  # of 2 / pi, as many as the largest float64 needs
TWO_OVER_PI: Final = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424d"
    "d2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639"
    "835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f46"
    "3f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc",
    16,
)
HALF_PI: Final = 0xC90FDAA22168C235  # in units of 2**-63
LEAST: Final = -35  # the last bit's power of two, of angles from 2**17 on

# x = mantissa * 2**power; turns = quarter turns * 2**190, but for multiples of four.
ONE: Final = f"""define internal {{ double, i64 }} @far(double %x) {{
  %word = bitcast double %x to i64
  %signless = and i64 %word, {(1 << 63) - 1}
  %exponent = lshr i64 %signless, 52
  %unit = sub i64 %exponent, 1075
  %power = call i64 @llvm.smax.i64(i64 %unit, i64 {LEAST})
  %fraction = and i64 %word, {(1 << 52) - 1}
  %mantissa = or i64 %fraction, {1 << 52}
  %low = sub i64 {DIGITS - 190}, %power
  %up = add i64 %low, 7
  %byte = lshr i64 %up, 3
  %bit = shl i64 %byte, 3
  %above = sub i64 %bit, %low
  %scaled = shl i64 %mantissa, %above
  %at = getelementptr i8, ptr @far.two_over_pi, i64 %byte
  %digits = load i192, ptr %at, align 1
  %factor = zext i64 %scaled to i192
  %turns = mul i192 %digits, %factor
  %rounded = add i192 %turns, {1 << 189}
  %near = lshr i192 %rounded, 190
  %quarters = trunc i192 %near to i64
  %rest = shl i192 %turns, 2
  %below = icmp slt i192 %rest, 0
  %opposite = sub i192 0, %rest
  %size = select i1 %below, i192 %opposite, i192 %rest
  %zeros = call i192 @llvm.ctlz.i192(i192 %size, i1 false)
  %normal = shl i192 %size, %zeros
  %top = lshr i192 %normal, 128
  %first = trunc i192 %top to i128
  %product = mul i128 %first, {HALF_PI}
  %upper = lshr i128 %product, 64
  %radians = trunc i128 %upper to i64
  %float = uitofp i64 %radians to double
  %lost = trunc i192 %zeros to i64
  %biased = sub i64 {1023 - 63}, %lost
  %shifted = shl i64 %biased, 52
  %scale = bitcast i64 %shifted to double
  %r = fmul double %float, %scale
  %negative = icmp slt i64 %word, 0
  %other = xor i1 %negative, %below
  %minus = fneg double %r
  %signed = select i1 %other, double %minus, double %r
  %back = sub i64 0, %quarters
  %turned = select i1 %negative, i64 %back, i64 %quarters
  %none = fmul double %x, 0.0
  %angle = fadd double %signed, %none
  %half = insertvalue {{ double, i64 }} poison, double %angle, 0
  %both = insertvalue {{ double, i64 }} %half, i64 %turned, 1
  ret {{ double, i64 }} %both
}}"""  # infinities become NaN when they are multiplied by zero
NEEDED: Final = (
    f"@far.two_over_pi = internal constant i{DIGITS + 88} {TWO_OVER_PI}",
    "declare i64 @llvm.smax.i64(i64, i64)",
    "declare i192 @llvm.ctlz.i192(i192, i1)",
    ONE,
)


def from_afar(part: int) -> Callable[[Writer, list[str], Type, Type], str]:
    """Return how to spell r, from -pi / 4 to pi / 4 (0), or x - r in quarter turns (1).

    The number is right but for multiples of four. Lanes below 2**17 have no meaning;
    infinities and NaN give NaN.
    """

    def spelled(w: Writer, args: list[str], type_: Type, _result: Type) -> str:
        name = f"far.{mangle(type_.dtype.llvm, type_.lanes)}"
        w.declared |= dict.fromkeys((*NEEDED, _of_every_lane(w, name, type_)))
        pair = _pair(type_)
        both = w.put(f"call {pair} @{name}({register(type_)} {args[0]})")
        return f"extractvalue {pair} {both}, {part}"

    return spelled


def _word(type_: Type) -> str:
    return "i32" if type_.dtype is float32 else "i64"


def _pair(type_: Type) -> str:
    return f"{{ {register(type_)}, {spell(_word(type_), type_.lanes)} }}"


def _of_every_lane(outer: Writer, name: str, type_: Type) -> str:
    """Return the definition of a function that asks `ONE` for every lane."""
    w = type(outer)(outer.host)
    r = quarter = "poison"
    element, whole = type_.dtype.llvm, register(type_)
    word = _word(type_)
    words = spell(word, type_.lanes)
    for lane in range(type_.lanes):
        x = "%x"
        if type_.lanes > 1:
            x = w.put(f"extractelement {whole} %x, i64 {lane}")
        if type_.dtype is float32:
            x = w.put(f"fpext float {x} to double")
        both = w.put(f"call {{ double, i64 }} @far(double {x})")
        angle = w.put(f"extractvalue {{ double, i64 }} {both}, 0")
        turned = w.put(f"extractvalue {{ double, i64 }} {both}, 1")
        if type_.dtype is float32:
            angle = w.put(f"fptrunc double {angle} to float")
            turned = w.put(f"trunc i64 {turned} to i32")
        if type_.lanes > 1:
            angle = w.put(f"insertelement {whole} {r}, {element} {angle}, i64 {lane}")
            turned = w.put(
                f"insertelement {words} {quarter}, {word} {turned}, i64 {lane}"
            )
        r, quarter = angle, turned
    pair = _pair(type_)
    half = w.put(f"insertvalue {pair} poison, {whole} {r}, 0")
    full = w.put(f"insertvalue {pair} {half}, {words} {quarter}, 1")
    w.do(f"ret {pair} {full}")
    lines = "\n".join(w.lines)
    return f"define internal {pair} @{name}({whole} %x) {{\n{lines}\n}}"
