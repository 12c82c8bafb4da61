"""CUDA C++ of the kernels in `peaks`, and what they are made of."""

from __future__ import annotations

from itertools import product

UNROLLS = (1, 2, 4, 8)
"""16-byte words that a thread of a copy has on their way at once."""

THREADS = (64, 256, 512)
HINTS = ("", "streaming")

CHAINS = 8
"""Independent multiply-adds of a thread: enough to hide the latency of each, together
with all the warps that a multiprocessor holds."""

UNROLLED = 32
"""Of each chain, in a turn of the loop."""

BATCH = 16
"""Matrix instructions of a warp group in a turn: its wait at the end hides behind the
other group's."""

ROWS, COLUMNS = 64, 256
"""Of the largest matrix instruction of Hopper."""

STEP_BYTES = 32
"""Of K that one matrix instruction takes, whatever the dtype."""


RANDOM = r"""
extern "C" __global__ void random_words(
    unsigned* words, unsigned long long count, unsigned keep, unsigned put) {
  const unsigned long long step = 1ull * gridDim.x * blockDim.x;
  for (unsigned long long i = 1ull * blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += step) {
    unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull;  // splitmix64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    words[i] = (unsigned)(x ^ x >> 31) & keep | put;
  }
}
"""

_COPY_ENTRY = r"""
extern "C" __global__ void {NAME}(
    const uint4* from, uint4* to, unsigned long long count) {
  const unsigned long long first =
      1ull * blockIdx.x * blockDim.x * {UNROLL} + threadIdx.x;
  uint4 held[{UNROLL}];
  #pragma unroll
  for (int i = 0; i < {UNROLL}; ++i)
    if (first + i * blockDim.x < count) held[i] = {LOAD}(from + first + i * blockDim.x);
  #pragma unroll
  for (int i = 0; i < {UNROLL}; ++i)
    if (first + i * blockDim.x < count) {STORE}(to + first + i * blockDim.x, held[i]);
}
"""

_PLAIN = r"""
__device__ __forceinline__ uint4 load(const uint4* at) { return *at; }
__device__ __forceinline__ void store(uint4* at, uint4 value) { *at = value; }
"""

COPY = _PLAIN + "".join(
    _COPY_ENTRY.replace("{NAME}", f"copy{hint}{unroll}")
    .replace("{UNROLL}", str(unroll))
    .replace("{LOAD}", "__ldcs" if hint else "load")
    .replace("{STORE}", "__stcs" if hint else "store")
    for unroll, hint in product(UNROLLS, HINTS)
)

CHAINED = (
    ("float32", "f", 1, range(50, 200)),
    ("float64", "d", 1, range(50, 200)),
    ("float16", "r", 2, range(53, 100)),
    ("bfloat16", "r", 2, range(80, 100)),
)
"""Dtype, letter of its register in assembly, numbers in one, and the GPUs that have it.

Halves stop where matrix units are Blackwell's, which nothing here uses: what cannot be
measured is not known, and multiply-adds are no bound of it.
"""

_FMA = {
    "float32": ("float", "fma.rn.f32", "-1.0f", "0.7f + 1e-3f * seed"),
    "float64": ("double", "fma.rn.f64", "-1.0", "0.7 + 1e-3 * seed"),
    "float16": ("unsigned", "fma.rn.f16x2", "0xbc00bc00u", "0x38003801u + 3 * seed"),
    "bfloat16": ("unsigned", "fma.rn.bf16x2", "0xbf80bf80u", "0x3f003f01u + seed % 64"),
}
"""Type, instruction, minus one, and a number of each thread."""


def fma(dtype: str, register: str) -> str:
    """Return chains of x = b - x: the bits change each time, and never settle."""
    kind, instruction, minus, number = _FMA[dtype]
    step = (
        f'asm volatile("{instruction} %0, %0, %1, %2;" : "+{register}"(x[chain]) '
        f': "{register}"(a), "{register}"(b));'
    )
    return rf"""
extern "C" __global__ void __launch_bounds__(256) fma_{dtype}(
    long long turns, unsigned long long* out) {{
  const unsigned seed = threadIdx.x;
  {kind} a = {minus}, b = {number}, x[{CHAINS}];
  #pragma unroll
  for (int chain = 0; chain < {CHAINS}; ++chain) x[chain] = b + ({kind})chain;
  #pragma unroll 1
  for (long long turn = 0; turn < turns; ++turn) {{
    #pragma unroll
    for (int step = 0; step < {UNROLLED}; ++step)
      #pragma unroll
      for (int chain = 0; chain < {CHAINS}; ++chain) {step}
  }}
  {kind} sum = x[0];
  #pragma unroll
  for (int chain = 1; chain < {CHAINS}; ++chain) sum = sum + x[chain];
  if (turns < 0) *out = (unsigned long long)sum;  // never: the compiler cannot know
}}
"""


MATRICES = (
    ("float16", "m64n256k16.f32.f16.f16", 0x83FF83FF, 0x38003800),
    ("bfloat16", "m64n256k16.f32.bf16.bf16", 0x807F807F, 0x3F003F00),
    ("tfloat32", "m64n256k8.f32.tf32.tf32", 0x807FFFFF, 0x3F000000),
    ("float8_e4m3", "m64n256k32.f32.e4m3.e4m3", 0x87878787, 0x30303030),
    ("int8", "m64n256k32.s32.s8.s8", 0xFFFFFFFF, 0),
)
"""Dtype, matrix instruction of Hopper (wgmma), and the bits of its random numbers."""

_TAILS = {
    "float16": ", 1, 1, 0, 0",
    "bfloat16": ", 1, 1, 0, 0",
    "tfloat32": ", 1, 1",
    "float8_e4m3": ", 1, 1",
    "int8": "",
}
"""Signs and transpositions, as far as the instruction of a dtype knows them."""


Warp = tuple[str, str, int, int, int, str, range]

WARP_MATRICES: tuple[Warp, ...] = (
    ("float64", "m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, "dd", range(80, 90)),
    ("float64", "m16n8k16.row.col.f64.f64.f64.f64", 8, 4, 4, "dd", range(90, 200)),
    ("float16", "m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, "rf", range(80, 90)),
    ("bfloat16", "m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, 4, "rf", range(80, 90)),
    ("tfloat32", "m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, "rf", range(80, 90)),
    ("int8", "m16n8k32.row.col.s32.s8.s8.s32", 4, 2, 4, "rr", range(80, 90)),
)
"""Dtype, matrix instruction of a warp (mma), registers of A, B and C, the letters of
theirs in assembly, and the GPUs that have no faster one."""

BITS = {dtype: (keep, put) for dtype, _, keep, put in MATRICES} | {
    "float64": (0xFFFFFFFF, 0)
}

WARP_CHAINS = 4
"""Independent products of a warp."""


def warp_matrix(
    dtype: str, kind: str, counts: tuple[int, int, int], letters: str
) -> str:
    """Return warps that multiply fragments in registers, over and over."""
    names = {"r": "int", "f": "float", "d": "double"}
    factor, total = (names[letter] for letter in letters)
    a, b, c = counts
    places = iter(range(a + b + c))
    d, left, right = (
        ", ".join(f"%{next(places)}" for _ in range(count)) for count in (c, a, b)
    )
    held = ", ".join(f'"+{letters[1]}"(d[chain][{i}])' for i in range(c))
    given = ", ".join(f'"{letters[0]}"(x[{i}])' for i in range(a + b))
    number = "(int)seeds[i] * 0x1p-31" if letters[0] == "d" else "(int)seeds[i]"
    return rf"""
extern "C" __global__ void __launch_bounds__(256) mma_{dtype}(
    long long turns, const unsigned* seeds, unsigned long long* out) {{
  {factor} x[{a + b}];
  {total} d[{WARP_CHAINS}][{c}];
  #pragma unroll
  for (int place = 0; place < {a + b}; ++place) {{
    const int i = place * 256 + threadIdx.x;
    x[place] = {number};
  }}
  #pragma unroll
  for (int i = 0; i < {WARP_CHAINS * c}; ++i) d[i / {c}][i % {c}] = 0;
  #pragma unroll 1
  for (long long turn = 0; turn < turns; ++turn) {{
    #pragma unroll
    for (int step = 0; step < {BATCH}; ++step)
      #pragma unroll
      for (int chain = 0; chain < {WARP_CHAINS}; ++chain)
        asm volatile("mma.sync.aligned.{kind} {{{d}}}, {{{left}}}, {{{right}}}, {{{d}}};"
                     : {held} : {given});
  }}
  {total} sum = 0;
  #pragma unroll
  for (int i = 0; i < {WARP_CHAINS * c}; ++i) sum += d[i / {c}][i % {c}];
  if (turns < 0) *out = (unsigned long long)sum;  // never: the compiler cannot know
}}
"""


def matrix(dtype: str, kind: str) -> str:
    """Return two warp groups that multiply tiles in shared memory, over and over.

    A tile has 128 bytes of K, swizzled as the hardware likes it; where in it an element
    lies matters to nobody here.
    """
    whole = dtype == "int8"
    count = COLUMNS // 2
    places = ", ".join(f"%{i}" for i in range(count))
    held = ", ".join(f'"+{"r" if whole else "f"}"(d[{i}])' for i in range(count))
    accumulate = (
        f'asm volatile("wgmma.mma_async.sync.aligned.{kind} {{{places}}}, %{count}, '
        f'%{count + 1}, 1{_TAILS[dtype]};" : {held} : "l"(a + k), "l"(b + k));'
    )
    return rf"""
extern "C" __global__ void __launch_bounds__(256, 1) mma_{dtype}(
    long long turns, const uint4* seeds, unsigned long long* out) {{
  __shared__ alignas(1024) uint4 tiles[{(2 * ROWS * 128 + COLUMNS * 128) // 16}];
  for (int i = threadIdx.x; i < sizeof tiles / 16; i += blockDim.x) tiles[i] = seeds[i];
  __syncthreads();
  asm volatile("fence.proxy.async;" ::: "memory");
  const unsigned base = (unsigned)__cvta_generic_to_shared(tiles);
  const unsigned group = threadIdx.x / 128;
  // 128-byte swizzle; 1024 bytes from one group of eight rows to the next.
  const unsigned long long shape = 1ull << 62 | 64ull << 32 | 1ull << 16;
  const unsigned long long a = shape | (base + group * {ROWS * 128} & 0x3FFFF) >> 4;
  const unsigned long long b = shape | (base + {2 * ROWS * 128} & 0x3FFFF) >> 4;
  {"int" if whole else "float"} d[{count}];
  #pragma unroll
  for (int i = 0; i < {count}; ++i) d[i] = 0;
  #pragma unroll 1
  for (long long turn = 0; turn < turns; ++turn) {{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int step = 0; step < {BATCH}; ++step) {{
      const unsigned long long k = step % 4 * {STEP_BYTES // 16};
      {accumulate}
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }}
  {"int" if whole else "float"} sum = 0;
  #pragma unroll
  for (int i = 0; i < {count}; ++i) sum += d[i];
  if (turns < 0) *out = (unsigned long long)sum;  // never: the compiler cannot know
}}
"""
