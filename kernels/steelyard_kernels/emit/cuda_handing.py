"""CUDA C++ of what the blocks of a launch hand over: see `schedule.handing`.

A word has half of a value and a mark above it, written and read at once. Nothing else is
handed over with it, so that it orders nothing: relaxed, at the scope of the GPU.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels.ir.effects import AHEAD

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
