"""Knobs of the pointwise strategy, its space, and what a program must be for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import Program, Reduce
from steelyard_kernels.schedule.model import LINE, STREAM_BYTES
from steelyard_kernels.schedule.pointwise.operands import (
    full_shape,
    one_pass,
    others,
    read,
    smaller,
    stored,
)
from steelyard_kernels.schedule.space import Space, collapse, strides_of


@dataclass(frozen=True, slots=True, order=True)
class Pointwise:
    """The knobs of one pointwise lowering.

    `lanes` elements a vector, `unroll` vectors an iteration, `threads` 1 or 0 (all),
    `chunk` iterations' worth of elements (or rows) a thread takes at a time,
    `streaming` stores round the caches, `prefetch` bytes ahead (0: none).
    """

    strategy: ClassVar[str] = "pointwise"

    lanes: int
    unroll: int
    threads: int
    chunk: int
    streaming: bool
    prefetch: int

    @property
    def label(self) -> str:
        """A short name for tables."""
        who = "all" if self.threads == 0 else "one"
        stores = " stream" if self.streaming else ""
        ahead = f" ahead{self.prefetch}" if self.prefetch else ""
        return f"v{self.lanes}x{self.unroll} {who} c{self.chunk}{stores}{ahead}"


# The schedule of a program that has no element to compute.
NOTHING: Final = Pointwise(1, 1, 1, 1, streaming=False, prefetch=0)


def check_program(program: Program) -> None:
    """Raise Unsupported for programs that are not one pass over one output shape."""
    for node in others(program):
        what = node.op if isinstance(node, Reduce) else type(node).__name__.lower()
        raise Unsupported(
            f"{program.name}: pointwise computes element by element, which {what} is "
            "not; leave the schedule out, or use one of another strategy."
        )
    if not one_pass(program):
        shapes = {stored(output).shape for output in program.outputs}
        shown = " and ".join(str(shape) for shape in sorted(shapes))
        raise Unsupported(
            f"{program.name}: outputs have shapes {shown}, one pass gives "
            "those that broadcast to one, with elements, and update none of the "
            "smaller; make a kernel for each."
        )


def space_of(program: Program) -> Space:
    """Collapse the outputs' space, walked by what is read, then by smaller outputs."""
    shape = full_shape(program)
    assert shape is not None
    walked = [node.shape for node in read(program)]
    walked += [stored(program.outputs[place]).shape for place in smaller(program)]
    strides = [strides_of(each, shape) for each in walked]
    space = collapse(shape, strides)
    if not space.extents:  # one element: every operand has it
        return Space((1,), ((1,),) * len(strides))
    return space


def store_alignment(program: Program, lanes: int, space: Space) -> int:
    """Return what the address of every vector store is a multiple of, in bytes; 0: of any.

    Smaller outputs are stored too often for stores that go round the caches.
    """
    if smaller(program):
        return 0
    alignment = LINE
    for output in program.outputs:
        size = output.value.dtype.bytes
        alignment = gcd(alignment, lanes * size)
        if len(space.extents) > 1:
            alignment = gcd(alignment, space.extents[-1] * size)
    return alignment


def check_aligned(kernel: str, label: str, *, aligned: bool) -> None:
    """Raise KernelError for streaming to outputs that do not start on a cache line."""
    if not aligned:
        raise KernelError(
            f"{kernel}: schedule {label} streams, but an output does not start at a "
            f"multiple of {LINE} bytes; align it, or choose a schedule without "
            "streaming."
        )


def check_streaming(
    program: Program, schedule: Pointwise, space: Space, *, aligned: bool
) -> None:
    """Raise KernelError where a streaming store could not state its alignment."""
    if not schedule.streaming:
        return
    check_aligned(program.name, schedule.label, aligned=aligned)
    alignment = store_alignment(program, schedule.lanes, space)
    if alignment < STREAM_BYTES:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} streams to addresses aligned "
            f"to {alignment} bytes, at least {STREAM_BYTES} are needed; choose a "
            "schedule without streaming."
        )
