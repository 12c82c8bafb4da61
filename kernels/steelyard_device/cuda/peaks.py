"""Kernels that do as much as a GPU can: copies, multiply-adds, matrix instructions.

What they reach is measured; nothing here is a figure of a data sheet. All data is
random, because a GPU moves and multiplies repeated bits for less power.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import numpy as np

from steelyard_device.cuda import kept
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.launch import Launch
from steelyard_device.cuda.memory import Buffer
from steelyard_device.cuda.module import Function, load

UNROLLS = (1, 2, 4, 8)
"""16-byte words that a thread of a copy has on their way at once."""

THREADS = (256, 512)
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


@dataclass(frozen=True, slots=True)
class Rate:
    """A launch that does nothing but operations of one dtype."""

    dtype: str
    units: str
    """``fma``, or ``tensor`` for the matrix units."""
    launch: Launch
    operations: int
    buffers: tuple[Buffer, ...]
    """What its arguments point to."""


class Copies:
    """Copies of random data: several shapes, of which the fastest is the peak."""

    def __init__(self, context: Context, largest: int) -> None:
        """Take memory for copies that read and write ``largest`` bytes in all."""
        self._context = context
        self._from = _random(context, largest // 2, 0xFFFFFFFF, 0)
        self._to = Buffer(context, (largest // 2,), np.uint8)

    def launches(self, nbytes: int) -> tuple[Launch, ...]:
        """Return every shape's copy that reads and writes ``nbytes`` in all."""
        count = nbytes // 2 // 16
        slots = (self._from.address, self._to.address, count)
        return tuple(
            Launch(
                _function(self._context, f"copy{hint}{unroll}", _COPY_TEXT),
                slots,
                grid=-(-count // (unroll * threads)),
                block=threads,
            )
            for unroll, threads, hint in product(UNROLLS, THREADS, HINTS)
        )


def rates(context: Context, turns: int = 256) -> tuple[Rate, ...]:
    """Return a launch for each dtype and unit that the GPU has; longer with ``turns``."""
    generation = int(re.sub(r"\D", "", context.device.arch))
    chains = [kind for kind in _CHAINED if generation >= kind[-1]]
    found = [_chained(context, *kind[:3], turns) for kind in chains]
    if context.device.arch == "sm_90a":
        found += [_grouped(context, kind, turns) for kind in _MATRICES]
    return tuple(found)


def _chained(
    context: Context, dtype: str, register: str, lanes: int, turns: int
) -> Rate:
    blocks, threads = 8 * context.device.multiprocessors, 256
    out = Buffer(context, (1,), np.uint64)
    function = _function(context, f"fma_{dtype}", _fma_text(dtype, register))
    launch = Launch(function, (turns, out.address), grid=blocks, block=threads)
    each = 2 * lanes * CHAINS * UNROLLED * turns
    return Rate(dtype, "fma", launch, each * blocks * threads, (out,))


def _grouped(context: Context, what: tuple[str, str, int, int], turns: int) -> Rate:
    dtype, kind, keep, put = what
    seeds = _random(context, 2 * ROWS * 128 + COLUMNS * 128, keep, put)
    out = Buffer(context, (1,), np.uint64)
    function = _function(context, f"mma_{dtype}", _mma_text(dtype, kind))
    slots = (turns, seeds.address, out.address)
    blocks = context.device.multiprocessors
    launch = Launch(function, slots, grid=blocks, block=256)
    depth = int(re.findall(r"k(\d+)", kind)[0])
    each = 2 * ROWS * COLUMNS * depth * BATCH * turns
    return Rate(dtype, "tensor", launch, 2 * each * blocks, (seeds, out))


def _random(context: Context, nbytes: int, keep: int, put: int) -> Buffer:
    """Return random words: bits in ``keep`` vary and those in ``put`` are set.

    That makes numbers of any dtype between 0.5 and 1, of either sign.
    """
    found = Buffer(context, (nbytes,), np.uint8)
    function = _function(context, "random_words", _RANDOM_TEXT)
    slots = (found.address, nbytes // 4, keep, put)
    Launch(function, slots, grid=8 * context.device.multiprocessors, block=256).launch()
    return found


def _function(context: Context, entry: str, text: str) -> Function:
    cubin = kept.cubin(text, context.device.arch)
    return load(context, cubin).function(entry)


_RANDOM_TEXT = r"""
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

_COPY_TEXT = _PLAIN + "".join(
    _COPY_ENTRY.replace("{NAME}", f"copy{hint}{unroll}")
    .replace("{UNROLL}", str(unroll))
    .replace("{LOAD}", "__ldcs" if hint else "load")
    .replace("{STORE}", "__stcs" if hint else "store")
    for unroll, hint in product(UNROLLS, HINTS)
)

_CHAINED = (
    ("float32", "f", 1, 50),
    ("float64", "d", 1, 50),
    ("float16", "r", 2, 53),
    ("bfloat16", "r", 2, 80),
)
"""Dtype, letter of its register in assembly, numbers in one, first GPUs that have it."""

_FMA = {
    "float32": ("float", "fma.rn.f32", "-1.0f", "0.7f + 1e-3f * seed"),
    "float64": ("double", "fma.rn.f64", "-1.0", "0.7 + 1e-3 * seed"),
    "float16": ("unsigned", "fma.rn.f16x2", "0xbc00bc00u", "0x38003801u + 3 * seed"),
    "bfloat16": ("unsigned", "fma.rn.bf16x2", "0xbf80bf80u", "0x3f003f01u + seed % 64"),
}
"""Type, instruction, minus one, and a number of each thread."""


def _fma_text(dtype: str, register: str) -> str:
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


_MATRICES = (
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


def _mma_text(dtype: str, kind: str) -> str:
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
