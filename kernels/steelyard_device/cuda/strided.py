"""Copies between arrays of one shape whose elements lie anywhere.

Neighbours of the one array are seldom those of the other: a block reads a square along the
axis on which the source is densest and writes it along the destination's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from steelyard_device.cuda import kept
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.launch import Launch
from steelyard_device.errors import DeviceError

MOST_AXES: Final = 16
"""Of the arrays, neighbours that both walk alike taken as one."""

SIDE: Final = 32
_ROWS: Final = 8
_BLOCK: Final = 256
_MOST_BLOCKS: Final = 1 << 30


class Lying(NamedTuple):
    """Where an array lies: its first element, and what is between neighbours, in bytes."""

    address: int
    strides: tuple[int, ...]


def copy(
    context: Context,
    shape: Sequence[int],
    itemsize: int,
    to: Lying,
    source: Lying,
    *,
    stream: int,
) -> Launch:
    """Return the launch of a copy of an array that has elements.

    Raises:
        DeviceError: elements are of no size that is copied, or the axes are too many.
    """
    count = math.prod(shape)
    axes = _merged(shape, to.strides, source.strides)
    if itemsize not in {1, 2, 4, 8} or len(axes) > MOST_AXES:
        raise DeviceError(
            f"an array of shape {tuple(shape)} with elements of {itemsize} bytes is not "
            f"copied: pass one of 1 to 8 bytes and {MOST_AXES} axes at most."
        )
    near = min(range(len(axes)), key=lambda k: abs(axes[k][2]))
    last = min(range(len(axes)), key=lambda k: abs(axes[k][1]))
    extents, steps, other = zip(*axes, strict=True)
    tiles = [-(-n // SIDE) if k in {near, last} else n for k, n in enumerate(extents)]
    blocks = math.prod(tiles) if near != last else -(-count // _BLOCK)
    fields = *_padded(extents), *_padded(steps), *_padded(other)
    layout = struct.pack(f"<4q{3 * MOST_AXES}q", count, len(axes), near, last, *fields)
    name = f"steelyard_{'tiles' if near != last else 'elements'}_{itemsize}"
    slots = to.address, source.address, layout
    return Launch(
        kept.function(context, _text(), name),
        slots,
        grid=min(blocks, _MOST_BLOCKS),
        block=_BLOCK,
        stream=stream,
    )


def _merged(
    shape: Sequence[int], to: Sequence[int], source: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return extents with both steps, outermost first, neighbours as one where both can."""
    found: list[tuple[int, int, int]] = []
    for extent, *steps in zip(shape, to, source, strict=True):
        if extent == 1:
            continue
        if found and found[-1][1:] == (extent * steps[0], extent * steps[1]):
            found[-1] = found[-1][0] * extent, steps[0], steps[1]
        else:
            found.append((extent, steps[0], steps[1]))
    return found or [(1, 0, 0)]


def _padded(numbers: Sequence[int]) -> list[int]:
    return [*numbers, *[0] * (MOST_AXES - len(numbers))]


def _text() -> str:
    """Return CUDA C++ of the copies of all sizes."""
    types = {
        1: "unsigned char",
        2: "unsigned short",
        4: "unsigned",
        8: "unsigned long long",
    }
    named = {"AXES": MOST_AXES, "SIDE": SIDE, "ROWS": _ROWS, "BLOCK": _BLOCK}
    text = _HEAD + "".join(
        _COPIES.replace("SIZE", str(size)).replace("TYPE", type_)
        for size, type_ in types.items()
    )
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


_HEAD: Final = """
typedef long long wide;
struct Layout {
  wide count, rank, near, last, extents[{AXES}], to[{AXES}], from[{AXES}];
};
"""

_COPIES: Final = """
extern "C" __global__ void steelyard_elements_SIZE(char *to, const char *from,
                                                   const Layout at) {
  for (wide k = blockIdx.x * {BLOCK}ll + threadIdx.x; k < at.count;
       k += gridDim.x * {BLOCK}ll) {
    wide left = k, there = 0, here = 0;
    for (int axis = at.rank - 1; axis >= 0; axis--) {
      wide extent = at.extents[axis], index;
      if ((left | extent) >> 32) {
        index = left % extent;
        left /= extent;
      } else {
        index = (unsigned)left % (unsigned)extent;
        left = (unsigned)left / (unsigned)extent;
      }
      there += index * at.to[axis];
      here += index * at.from[axis];
    }
    *(TYPE *)(to + there) = *(const TYPE *)(from + here);
  }
}
extern "C" __global__ void steelyard_tiles_SIZE(char *to, const char *from,
                                                const Layout at) {
  __shared__ TYPE tile[{SIDE}][{SIDE} + 1];
  int near = at.near, last = at.last;
  int x = threadIdx.x % {SIDE}, y = threadIdx.x / {SIDE};
  wide count = 1;
  for (int axis = 0; axis < at.rank; axis++) {
    bool square = axis == near || axis == last;
    count *= square ? (at.extents[axis] + {SIDE} - 1) / {SIDE} : at.extents[axis];
  }
  for (wide block = blockIdx.x; block < count; block += gridDim.x) {
    wide left = block, a = 0, b = 0;
    const char *source = from;
    char *target = to;
    for (int axis = at.rank - 1; axis >= 0; axis--) {
      bool square = axis == near || axis == last;
      wide tiles = square ? (at.extents[axis] + {SIDE} - 1) / {SIDE} : at.extents[axis];
      wide index = left % tiles;
      left /= tiles;
      if (axis == near) {
        a = index * {SIDE};
      } else if (axis == last) {
        b = index * {SIDE};
      } else {
        source += index * at.from[axis];
        target += index * at.to[axis];
      }
    }
    for (int row = y; row < {SIDE}; row += {ROWS}) {
      if (a + x < at.extents[near] && b + row < at.extents[last]) {
        tile[row][x] = *(const TYPE *)(source + (a + x) * at.from[near] +
                                       (b + row) * at.from[last]);
      }
    }
    __syncthreads();
    for (int row = y; row < {SIDE}; row += {ROWS}) {
      if (a + row < at.extents[near] && b + x < at.extents[last]) {
        *(TYPE *)(target + (a + row) * at.to[near] + (b + x) * at.to[last]) =
            tile[x][row];
      }
    }
    __syncthreads();
  }
}
"""
