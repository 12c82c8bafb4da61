"""Kernels that do as much as a GPU can: copies, multiply-adds, matrix instructions.

What they reach is measured; nothing here is a figure of a data sheet. All data is
random, because a GPU moves and multiplies repeated bits for less power.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np
from msgspec import Struct

from steelyard_device.cuda import kept
from steelyard_device.cuda import peaks_text as text
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.launch import Launch
from steelyard_device.cuda.memory import Buffer


class Rate(Struct, frozen=True):
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
                kept.function(self._context, text.COPY, f"copy{hint}{unroll}"),
                slots,
                grid=-(-count // (unroll * threads)),
                block=threads,
            )
            for unroll, threads, hint in product(text.UNROLLS, text.THREADS, text.HINTS)
        )


def rates(context: Context, turns: int = 256) -> tuple[Rate, ...]:
    """Return a launch for each dtype and unit that the GPU has; longer with ``turns``."""
    generation = int(re.sub(r"\D", "", context.device.arch))
    chains = [kind for kind in text.CHAINED if generation in kind[-1]]
    found = [_chained(context, *kind[:3], turns) for kind in chains]
    if context.device.arch == "sm_90a":
        found += [_grouped(context, kind, turns) for kind in text.MATRICES]
    warps = [kind for kind in text.WARP_MATRICES if generation in kind[-1]]
    found += [_warped(context, kind, turns) for kind in warps]
    return tuple(found)


def _chained(
    context: Context, dtype: str, register: str, lanes: int, turns: int
) -> Rate:
    blocks, threads = 8 * context.device.multiprocessors, 256
    out = Buffer(context, (1,), np.uint64)
    function = kept.function(context, text.fma(dtype, register), f"fma_{dtype}")
    launch = Launch(function, (turns, out.address), grid=blocks, block=threads)
    each = 2 * lanes * text.CHAINS * text.UNROLLED * turns
    return Rate(dtype, "fma", launch, each * blocks * threads, (out,))


def _grouped(context: Context, what: tuple[str, str, int, int], turns: int) -> Rate:
    dtype, kind, keep, put = what
    seeds = _random(context, 2 * text.ROWS * 128 + text.COLUMNS * 128, keep, put)
    out = Buffer(context, (1,), np.uint64)
    function = kept.function(context, text.matrix(dtype, kind), f"mma_{dtype}")
    slots = (turns, seeds.address, out.address)
    blocks = context.device.multiprocessors
    launch = Launch(function, slots, grid=blocks, block=256)
    depth = int(re.findall(r"k(\d+)", kind)[0])
    each = 2 * text.ROWS * text.COLUMNS * depth * text.BATCH * turns
    return Rate(dtype, "tensor", launch, 2 * each * blocks, (seeds, out))


def _warped(context: Context, what: text.Warp, turns: int) -> Rate:
    dtype, kind, a, b, c, letters, _ = what
    seeds = _random(context, 4 * 256 * (a + b), *text.BITS[dtype])
    out = Buffer(context, (1,), np.uint64)
    program = text.warp_matrix(dtype, kind, (a, b, c), letters)
    function = kept.function(context, program, f"mma_{dtype}")
    blocks, threads = 2 * context.device.multiprocessors, 256
    slots = (turns, seeds.address, out.address)
    launch = Launch(function, slots, grid=blocks, block=threads)
    m, n, k = map(int, re.findall(r"[mnk](\d+)", kind)[:3])
    each = 2 * m * n * k * text.WARP_CHAINS * text.BATCH * turns
    return Rate(dtype, "tensor", launch, each * blocks * threads // 32, (seeds, out))


def _random(context: Context, nbytes: int, keep: int, put: int) -> Buffer:
    """Return random words: bits in ``keep`` vary and those in ``put`` are set.

    That makes numbers of any dtype between 0.5 and 1, of either sign.
    """
    found = Buffer(context, (nbytes,), np.uint8)
    function = kept.function(context, text.RANDOM, "random_words")
    slots = (found.address, nbytes // 4, keep, put)
    Launch(function, slots, grid=8 * context.device.multiprocessors, block=256).launch()
    return found
