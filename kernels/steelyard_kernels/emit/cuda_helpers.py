"""The device functions that emitted CUDA C++ may call, and which of them call which.

Conversions are PTX's own, which round once, to nearest, ties to even, keep denormals
and infinities, and give a NaN for a NaN (its payload and sign go: 0x7fff). PTX ISA,
"Data Movement and Conversion Instructions: cvt": `.rn` "mantissa LSB rounds to nearest
even", "subnormal numbers are supported" unless `.ftz`; to bf16 from sm_80 on. `min.NaN`
and `max.NaN` (sm_80 on) give NaN if either operand is one. A sum of two halves rounds
once, to what the float32 sum rounds to: see `expression.halves`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from steelyard_kernels.emit import cuda_tiles, cuda_warps
from steelyard_kernels.emit.cuda_text import OF_HALVES
from steelyard_kernels.ir.effects import AHEAD

# What the blocks of a launch hand over: see `schedule.handing`. A word has half of a value
# and a mark above it, written and read at once. Nothing else is handed over with it, so
# that it orders nothing: relaxed, at the scope of the GPU.
TURN: Final = """long long take_turn(long long *count) {
  long long turn;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;"
    : "=l"(turn) : "l"(count) : "memory");
  return turn;
}"""

_PUT: Final = """void hand_over_word(long long *to, unsigned half) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;"
    :: "l"(to), "l"(1ull << 32 | half) : "memory");
}"""

_NARROW: Final = {
    "float": ("__float_as_uint(value)", "__uint_as_float((unsigned)bits)"),
    "int": ("(unsigned)value", "(int)bits"),
    "unsigned int": ("value", "(unsigned)bits"),
}
_WIDE: Final = {
    "double": ("__double_as_longlong(value)", "__longlong_as_double(bits)"),
    "long long": ("value", "bits"),
    "unsigned long long": ("value", "bits"),
}

OVER: Final = (
    _PUT,
    *(
        f"""void hand_over(long long *to, {ctype} value) {{
  hand_over_word(to, {bits});
}}"""
        for ctype, (bits, _) in _NARROW.items()
    ),
    *(
        f"""void hand_over(long long *to, {ctype} value) {{
  unsigned long long bits = {bits};
  hand_over_word(to, (unsigned)bits);
  hand_over_word(to + 1, (unsigned)(bits >> 32));
}}"""
        for ctype, (bits, _) in _WIDE.items()
    ),
)


def _taken(ctype: str, value: str, each: int) -> str:
    """Return what waits for values: all loads are on their way before one is looked at."""
    return f"""void take_over({ctype} *to, const long long *from, long long step, int count) {{
  unsigned long long words[{AHEAD}][{each}];
  bool waits;
  do {{
    waits = false;
#pragma unroll
    for (int k = 0; k < {AHEAD * each}; k++) {{
      unsigned long long word = 1ull << 32;
      if (k / {each} < count) {{
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
          : "=l"(word) : "l"(from + k / {each} * step + k % {each}) : "memory");
      }}
      words[k / {each}][k % {each}] = word;
    }}
#pragma unroll
    for (int k = 0; k < {AHEAD * each}; k++) {{
      waits |= !(words[k / {each}][k % {each}] >> 32);
    }}
  }} while (waits);
#pragma unroll
  for (int k = 0; k < {AHEAD}; k++) {{
    unsigned long long bits = (unsigned)words[k][0];
    if ({each} > 1) bits |= words[k][{each - 1}] << 32;
    to[k] = {value};
  }}
}}"""


TAKEN: Final = (
    *(_taken(ctype, value, 1) for ctype, (_, value) in _NARROW.items()),
    *(_taken(ctype, value, 2) for ctype, (_, value) in _WIDE.items()),
)


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


def _of_halves(name: str) -> str:
    """Spell an operation on one half, or on two; sums of bfloat16 by sm_80's products."""
    op, half = name.split("_")
    pair = half.endswith("x2")
    type_, letter = ("unsigned", "r") if pair else ("unsigned short", "h")
    takes = f'"{letter}"(a), "{letter}"(b)'
    if op in {"min", "max"}:
        text = f"{op}.NaN.{half} %0, %1, %2;"
    elif half.startswith("bf16"):
        one = {"add": 0x3F80, "sub": 0xBF80}[op] * (0x10001 if pair else 1)
        text = f"fma.rn.{half} %0, %2, %3, %1;"
        takes += f', "{letter}"(({type_}){one:#x})'
    else:
        text = f"{op}.rn.{half} %0, %1, %2;"
    return f"""{type_} {name}({type_} a, {type_} b) {{
  {type_} r;
  asm("{text}" : "={letter}"(r) : {takes});
  return r;
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
        ("unsigned int", "__uint2float_rz"),
        ("long long", "__ll2float_rz"),
        ("unsigned long long", "__ull2float_rz"),
    )
)

# What the next iteration of a loop waits for: few steps wait for each other, no branch.
# Below zero it is t / (1 + t) of t = exp(-|x|), whose power of two comes in two steps:
# it may be denormal. NaN comes back with the second one. PTX ISA, "ex2" and "rcp":
# relative errors of 2**-22.5 for ex2.approx, 2**-23 for rcp.approx of float32, and the
# upper 20 bits of a float64, which one cubic step makes 60.
_APPROX: Final = (
    """float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    """float rcp_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}""",
    """double rcp_approx(double x) {
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
  return r;
}""",
)


def _estrin(coefficients: Sequence[str], x: str) -> tuple[str, str]:
    """Return the lines of x's powers, and a polynomial of them, lowest power first."""
    values, lines, name, power = list(coefficients), "", x, 1
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else []
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [f"fma({high}, {x}, {low})" for low, high in pairs] + odd
        if len(values) > 1:
            power *= 2
            lines += f"  double {name}{power} = {x} * {x};\n"
            x = f"{name}{power}"
    return lines, values[0]


_POWERS, _EXP = _estrin(
    ["1.0", "1.0", *(repr(1 / math.factorial(k)) for k in range(2, 14))], "r"
)
SIGMOID: Final = (
    """float sigmoid(float x) {
  float a = fmaxf(-fabsf(x), -104.0f);
  float shifted = fmaf(a, 1.44269502f, 12582912.0f), n = shifted - 12582912.0f;
  float f = fmaf(a, 1.92596303e-8f, fmaf(a, 1.44269502f, -n));
  float e = exp2_approx(f);
  int power = __float_as_int(shifted) - 0x4b400000, half = power >> 1;
  float t = __int_as_float(__float_as_int(e) + max(power, -126) * 0x800000);
  float below = e * __int_as_float((half + 127) << 23);
  float rest = __int_as_float((power - half + 127) << 23);
  float above = x >= 0.0f ? 1.0f : below * (x < 0.0f ? rest : x);
  float d = 1.0f + t, y = rcp_approx(d);
  return above * fmaf(y, fmaf(-d, y, 1.0f), y);
}""",
    f"""double sigmoid(double x) {{
  double a = fmax(-fabs(x), -746.0);
  double shifted = fma(a, {1 / math.log(2)!r}, 6755399441055744.0);
  double n = shifted - 6755399441055744.0;
  double r = fma(n, -1.90821492927058770002e-10, fma(n, -6.93147180369123816490e-01, a));
{_POWERS}  double e = {_EXP};
  int power = (int)__double_as_longlong(shifted), half = power >> 1;
  double t = __longlong_as_double(
    __double_as_longlong(e) + max(power, -1022) * (1ll << 52));
  double below = e * __longlong_as_double((half + 1023ll) << 52);
  double rest = __longlong_as_double((power - half + 1023ll) << 52);
  double above = x >= 0.0 ? 1.0 : below * (x < 0.0 ? rest : x);
  double d = 1.0 + t, y = rcp_approx(d), off = fma(-d, y, 1.0);
  y = fma(y, fma(off, off, off), y);
  return above * y;
}}""",
)
# The library's log1p of float64 is longer than its exp and log together. What 1 + t
# lost is put back as log' has it, lost / (1 + t), of which lost * (1 - t) is near enough:
# it is a quarter of an ulp off at most.
SOFTPLUS: Final = (
    """float softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}""",
    """double softplus(double x) {
  double t = exp(-fabs(x)), u = 1.0 + t, lost = t - (u - 1.0);
  return (x > 0.0 ? x : 0.0) + (log(u) + fma(-lost, t, lost));
}""",
)

# sin(pi x + pi quarters / 2), r the rest of x behind its quarter turn: r pi + r g or
# 1 - z pi**2 / 2 + z g, z = r**2, by one polynomial whose terms are looked up. pi and
# half its square come with what their rounding lost, z and the sum as well. Terms in z
# from the highest one interpolate where an error's Chebyshev polynomial is 0: 2**-56 of
# the result. Zeros of the sine have the sign of x, those of the cosine none (IEEE
# 754-2019, 9.2.1), as the library's of float32 have.
SIN_HALF_TURNS: Final = """double sin_half_turns(double x, int quarters) {
  alignas(16) static const double both[16] = {
    4.615922041339977e-04, -7.370033779948168e-03, 8.214587012565461e-02,
    -5.992645289747337e-01, 2.550164039874005, -5.16771278004996,
    1.2246467991473532e-16, 3.141592653589793,
    -1.037126902948455e-04, 1.9294962712296342e-03, -2.5806888150552758e-02,
    2.3533063029088822e-01, -1.3352627688539331, 4.058712126416766,
    -3.1326477543698557e-16, -4.934802200544679};
  double left = fma(rint(0.5 * x), -2.0, x);
  double shifted = fma(left, 2.0, 6755399441055744.0);
  double r = fma(shifted - 6755399441055744.0, -0.5, left), z = r * r;
  int quarter = (int)__double_as_longlong(shifted) + quarters, odd = quarter & 1;
  const double *c = both + (odd << 3);
  double g = fma(fma(fma(fma(fma(fma(c[0], z, c[1]), z, c[2]), z, c[3]), z, c[4]), z,
    c[5]), z, c[6]);
  double m = odd ? z : r, m_low = odd ? fma(r, r, -z) : 0.0, one = odd ? 1.0 : 0.0;
  double near = fma(m, c[7], one), more = fma(-m, c[7], near - one);
  double value = near + fma(g, m, fma(m_low, c[7], -more));
  long long sign = __double_as_longlong(x) >> 63 << 63;
  return __longlong_as_double(value == 0.0 ? (quarters ? 0 : sign) :
    __double_as_longlong(value) ^ (long long)(quarter & 2) << 62);
}"""

# Below the bound x + x p(x**2), above it 1 - 2**q(|x|): what the library does, but both by
# polynomials without a choice of coefficients, which takes a GPU longer than multiplying.
# p and q are off by 2**-26 and 2**-34 of the result, and that by 1.7 ulp at most where
# 2**q is off by 2**-22.5; 1.36 seen on an H200. The highest power has q go on to -inf.
_BELOW: Final = "-0.00060903549f, 0.0050119618f, -0.026778908f, 0.11282141f, -0.37612525f, 0.12837915f"
_ABOVE: Final = (
    "-3.0049187e-05f, 0.0006223676f, -0.0059962003f, 0.036183663f, -0.15612899f, "
    "-0.91380429f, -1.6295073f, 0.00024410917f"
)


def _horner(x: str, coefficients: str) -> str:
    first, *rest = coefficients.split(", ")
    for each in rest:
        first = f"fmaf({first}, {x}, {each})"
    return first


ERF: Final = f"""float erf_single(float x) {{
  float a = fabsf(x), t = x * x, below = fmaf({_horner("t", _BELOW)}, x, x);
  float above = copysignf(1.0f - exp2_approx({_horner("a", _ABOVE)}), x);
  return a < 0.9f ? below : above;
}}"""

HELPERS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (text,) for name, text in _HALF.items()},
    **{f"{name}_round": (_round(name),) for name in ("f16", "bf16")},
    **{f"{name}_pack": (_pack(name),) for name in ("f16", "bf16")},
    **{name: (_of_halves(name),) for name in OF_HALVES},
    "min_nan": _extremum("min", "<"),
    "max_nan": _extremum("max", ">"),
    "round_to_odd": _ODD,
    "exp2_approx": _APPROX[:1],
    "sigmoid": (*_APPROX, *SIGMOID),
    "softplus": SOFTPLUS,
    "erf_single": (_APPROX[0], ERF),
    "sin_half_turns": (SIN_HALF_TURNS,),
    **{name: (text,) for name, text in cuda_tiles.HELPERS.items()},
    **{name: (text,) for name, text in cuda_warps.HELPERS.items()},
    "store_far": cuda_tiles.FAR,
    "store_far_one": cuda_tiles.FAR_ONE,
    "take_turn": (TURN,),
    "hand_over": OVER,
    "take_over": TAKEN,
}


_HEAD: Final = "static __device__ __forceinline__ "


def preamble(used: Collection[str], *, doubles: bool = True) -> str:
    """Return the functions that are used, in one order whatever used them.

    `doubles`: those of float64 too, which take a compiler longest to read.
    """
    texts = [
        text
        for name, texts in HELPERS.items()
        if name in used
        for text in texts
        if doubles or "double" not in text
    ]
    for name in sorted(set(used) - HELPERS.keys()):
        by_warp = name.startswith(cuda_warps.NAME)
        texts.append((cuda_warps if by_warp else cuda_tiles).helper(name))
    return "".join([f"{_HEAD}{text}\n" for text in dict.fromkeys(texts)])


def functions(preamble: str) -> list[str]:
    """Return the functions of a preamble, each whole."""
    return [f"{_HEAD}{text}" for text in preamble.split(_HEAD)[1:]]
