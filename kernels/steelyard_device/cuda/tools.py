"""Questions to buffers that stay on the GPU: only the answers travel.

Each is asked in the order of the context's stream and waits for its answer. They read
at the memory's speed from multiples of 8 bytes on, byte by byte elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard_device.cuda import kept
from steelyard_device.cuda.launch import Launch
from steelyard_device.cuda.memory import Buffer, View, copy_of
from steelyard_device.errors import DeviceError

_BLOCK = 256
_BLOCKS_EACH = 8
"""Of a multiprocessor: all the threads it can have."""

_PATTERN = 16
"""The longest pattern in bytes: an element of the widest dtype."""

_EXPONENTS = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float32": 0x7F800000,
    "float64": 0x7FF0000000000000,
}
"""The bits of the exponent of a float."""


def checksum(buffer: View) -> int:
    """Return 64 bits that depend on every byte, on their order and number.

    One changed word of 8 bytes always changes them; more, but for a chance of 2^-64.
    """
    (total,) = _answer(buffer, "steelyard_checksum", (), buffer.nbytes // 8)
    return (total + buffer.nbytes * 0x9E3779B97F4A7C15) % (1 << 64)


def holds_only(buffer: View, pattern: bytes) -> bool:
    """Whether every byte is that of ``pattern``, again and again from the start on.

    Raises:
        DeviceError: the pattern's length does not divide 16.
    """
    if not pattern or _PATTERN % len(pattern):
        raise DeviceError(
            f"a pattern of {len(pattern)} bytes is not looked for: give one of 1, 2, "
            "4, 8 or 16."
        )
    words = pattern * (_PATTERN // len(pattern))
    (others,) = _answer(
        buffer, "steelyard_others", (words[:8], words[8:]), buffer.nbytes // 8
    )
    return others == 0


def differing(a: View, b: View) -> int:
    """Return how many elements of two buffers are not the same bits.

    Raises:
        DeviceError: shape or dtype differ.
    """
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise DeviceError(
            f"{a.dtype} {a.shape} and {b.dtype} {b.shape} are not compared: give two "
            "buffers of one shape and dtype."
        )
    size = a.dtype.itemsize
    entry = "steelyard_differing" if size in {1, 2, 4, 8} else "steelyard_items"
    (count,) = _answer(a, entry, (b.address, size), a.nbytes // min(size, 8))
    return count


def normal_count(buffer: View) -> tuple[int, bool]:
    """Return how many floats are normal numbers, and whether all are the same bits.

    Zeros, denormals, infinities and NaN are not normal.

    Raises:
        DeviceError: the elements are no such floats.
    """
    size = buffer.dtype.itemsize
    if buffer.dtype.name not in _EXPONENTS:
        raise DeviceError(
            f"normal numbers of {buffer.dtype} are not counted: give "
            f"{', '.join(_EXPONENTS)}."
        )
    slots = (size, _EXPONENTS[buffer.dtype.name])
    normal, others = _answer(
        buffer, "steelyard_normal", slots, buffer.nbytes // 8, results=2
    )
    return normal, others == 0


def gather(
    buffer: View, rows: Sequence[int] | NDArray[np.integer[Any]]
) -> NDArray[Any]:
    """Return some rows of the first axis, in the order asked for; a scalar has one.

    Raises:
        DeviceError: there is no such row.
    """
    height, *rest = buffer.shape or (1,)
    asked = np.asarray(rows, np.int64).reshape(-1)
    if asked.size and not 0 <= asked.min() <= asked.max() < height:
        raise DeviceError(
            f"rows {asked.min()} to {asked.max()} were asked for, expected 0 to "
            f"{height - 1}: ask for rows that there are."
        )
    shape = (asked.size, *rest)
    taken = Buffer(buffer.context, shape, buffer.dtype)
    if taken.nbytes:
        row = taken.nbytes // asked.size
        places = copy_of(buffer.context, asked)
        unit = next(u for u in (8, 4, 2, 1) if not (row | buffer.address) % u)
        slots = (buffer.address, taken.address, places.address, row // unit, unit)
        function = kept.function(buffer.context, TEXT, "steelyard_gather")
        Launch(function, slots, grid=asked.size, block=_BLOCK).launch()
    return taken.read()


def _answer(
    buffer: View,
    entry: str,
    slots: tuple[int | bytes, ...],
    work: int,
    results: int = 1,
) -> list[int]:
    """Run a kernel over a buffer with threads for ``work``, and return its words."""
    context = buffer.context
    words = Buffer(context, (results,), np.uint64)
    words.fill(0)
    most = _BLOCKS_EACH * context.device.multiprocessors
    Launch(
        kept.function(context, TEXT, entry),
        (buffer.address, buffer.nbytes, *slots, words.address),
        grid=min(max(-(-work // _BLOCK), 1), most),
        block=_BLOCK,
    ).launch()
    answer: list[int] = words.read().tolist()
    return answer


TEXT = r"""
typedef unsigned long long u64;
typedef const unsigned char* bytes;

__device__ u64 gathered(bytes at, u64 i, u64 nbytes) {
  u64 word = 0;
  for (int k = 0; k < 8 && 8 * i + k < nbytes; ++k)
    word |= (u64)at[8 * i + k] << 8 * k;
  return word;
}

// Calls use(i, word) for all words of 8 bytes, the last filled up with zeros.
template <class Use> __device__ void each(bytes at, u64 nbytes, bool aligned, Use use) {
  const u64 first = 1ull * blockIdx.x * blockDim.x + threadIdx.x;
  const u64 step = 1ull * gridDim.x * blockDim.x;
  const u64 whole = aligned ? nbytes / 8 : 0;
  #pragma unroll 4
  for (u64 i = first; i < whole; i += step) use(i, ((const u64*)at)[i]);
  for (u64 i = whole + first; i < (nbytes + 7) / 8; i += step)
    use(i, gathered(at, i, nbytes));
}

__device__ bool straight(bytes at) { return (u64)at % 8 == 0; }

__device__ void give(u64 mine, u64* result) {
  for (int far = 16; far; far /= 2) mine += __shfl_down_sync(~0u, mine, far);
  if (threadIdx.x % 32 == 0 && mine) atomicAdd(result, mine);
}

extern "C" __global__ void steelyard_checksum(bytes at, u64 nbytes, u64* result) {
  u64 sum = 0;
  each(at, nbytes, straight(at), [&](u64 i, u64 word) {
    word ^= (i + 1) * 0x9E3779B97F4A7C15ull;  // then splitmix64's finaliser
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ word >> 27) * 0x94D049BB133111EBull;
    sum += word ^ word >> 31;
  });
  give(sum, result);
}

extern "C" __global__ void steelyard_others(
    bytes at, u64 nbytes, u64 even, u64 odd, u64* result) {
  u64 count = 0;
  each(at, nbytes, straight(at), [&](u64 i, u64 word) {
    const u64 left = nbytes - 8 * i;
    const u64 mask = left < 8 ? (1ull << 8 * left) - 1 : ~0ull;
    count += ((word ^ (i % 2 ? odd : even)) & mask) != 0;
  });
  give(count, result);
}

extern "C" __global__ void steelyard_differing(
    bytes a, u64 nbytes, bytes b, u64 size, u64* result) {
  const bool aligned = straight(a) && straight(b);
  const u64 mask = size < 8 ? (1ull << 8 * size) - 1 : ~0ull;
  u64 count = 0;
  each(a, nbytes, aligned, [&](u64 i, u64 word) {
    const bool whole = aligned && 8 * i + 8 <= nbytes;
    u64 other = word ^ (whole ? ((const u64*)b)[i] : gathered(b, i, nbytes));
    for (u64 k = 0; other && k < 8; k += size) count += (other >> 8 * k & mask) != 0;
  });
  give(count, result);
}

extern "C" __global__ void steelyard_items(
    bytes a, u64 nbytes, bytes b, u64 size, u64* result) {
  const u64 step = 1ull * gridDim.x * blockDim.x;
  u64 count = 0;
  for (u64 i = 1ull * blockIdx.x * blockDim.x + threadIdx.x; i < nbytes / size;
       i += step) {
    bool other = false;
    for (u64 k = i * size; k < i * size + size; ++k) other |= a[k] != b[k];
    count += other;
  }
  give(count, result);
}

extern "C" __global__ void steelyard_normal(
    bytes at, u64 nbytes, u64 size, u64 exponent, u64* result) {
  const u64 mask = size < 8 ? (1ull << 8 * size) - 1 : ~0ull;
  const u64 first = gathered(at, 0, size < nbytes ? size : nbytes);
  u64 normal = 0, others = 0;
  each(at, nbytes, straight(at), [&](u64 i, u64 word) {
    for (u64 k = 0; k < 8 && 8 * i + k < nbytes; k += size) {
      const u64 bits = word >> 8 * k & mask;
      normal += (bits & exponent) != 0 && (bits & exponent) != exponent;
      others += bits != first;
    }
  });
  give(normal, result);
  give(others, result + 1);
}

template <class Unit> __device__ void copy(
    bytes from, unsigned char* to, long long row, u64 count) {
  const Unit* source = (const Unit*)from + row * count;
  Unit* target = (Unit*)to + blockIdx.x * count;
  for (u64 i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}

extern "C" __global__ void steelyard_gather(
    bytes from, unsigned char* to, const long long* rows, u64 count, u64 unit) {
  const long long row = rows[blockIdx.x];
  if (unit == 8) copy<u64>(from, to, row, count);
  else if (unit == 4) copy<unsigned>(from, to, row, count);
  else if (unit == 2) copy<unsigned short>(from, to, row, count);
  else copy<unsigned char>(from, to, row, count);
}
"""
