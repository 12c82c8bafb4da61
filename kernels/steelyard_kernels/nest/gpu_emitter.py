"""Emits the values of a nest for one thread of a GPU.

A block's threads share loops. What is walked in turns is a loop of each thread over its
own vectors; where one turn has all of an axis, its vectors are open from the start for
good, and what one reduction computed of them is still in registers for the next. Loads
are all on their way before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from math import prod
from typing import Any, Final

from steelyard_kernels.expression.expr import Arange, Input
from steelyard_kernels.ir.builder import Index
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.axes import Stored, Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.nest.offsets import At
from steelyard_kernels.nest.threads import Threads
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.tile import Carried

VECTOR_BYTES: Final = 16  # the widest load and store of a thread
SHORT: Final = 128  # values that a thread adds up by itself: a mean is true to some ulp


class GpuEmitter(Emitter):
    """Emits one nest under one schedule, for a thread of a block."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.threads = Threads(self.nest, self.schedule, self.b)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Open the loops, but the first, of which one turn has all: for good."""
        with ExitStack() as opened:
            for loop, cut in list(enumerate(self.cuts))[1:]:
                extent = self.extent_of(loop)
                if 0 < extent <= cut.size:
                    opened.enter_context(self._turn(loop, 0, extent))
            yield

    # loops

    def walk(
        self,
        loop: int,
        body: Callable[[int, Carried], Carried],
        first: Carried = (),
    ) -> Carried:
        """Emit a walk by a block's threads: whole turns, then what is left of one."""
        if loop in self.open:
            return body(len(self.open[loop].places), first)
        b, size, extent = self.b, self.cuts[loop].size, self.extent_of(loop)
        whole = extent // size * size
        carried = first
        if whole:
            self.threads.within += 1
            with (
                b.loop(0, whole, size, *carried) as turn,
                self._turn(loop, turn.var, size),
            ):
                turn.yields(*body(len(self.open[loop].places), turn.carried))
            self.threads.within -= 1
            carried = turn.results
        if whole < extent:
            with self._turn(loop, whole, extent - whole):
                carried = body(len(self.open[loop].places), carried)
        return carried

    def _turn(self, loop: int, at: Index, left: int) -> AbstractContextManager[None]:
        """Open a loop at a thread's places of the `left` elements from `at` on."""
        cut = self.cuts[loop]
        places, masks = self.threads.places(loop, cut, at, left, self.extent)
        return self.opened(loop, places, cut.at(Place.VECTOR), masks)

    def across(
        self, loops: Iterable[int], combines: Sequence[str], totals: list[Operand]
    ) -> list[Operand]:
        """Emit what totals of some loops come to over all threads that walk these."""
        return self.threads.across(loops, combines, totals)

    def is_near(self, loops: Iterable[int]) -> bool:
        """Say whether means over loops are true to some ulp, added up in short parts."""
        own = [self.extent_of(k) // self.cuts[k].at(Place.THREAD) for k in loops]
        return prod(own) <= SHORT

    # values

    def emit(
        self,
        values: Sequence[Value],
        every: Sequence[At],
        end_with: Callable[[At], None] | None = None,
    ) -> None:
        """Emit values, operands first, loads of what the first loop walks before others.

        What all of its indices share is in a cache, and waits there for its use.
        """
        loads = [
            v for v in values if isinstance(v.source, Input | Arange) and not v.step
        ]
        for at in every:
            self._each([v for v in loads if 0 in self.loops[v.number]], at)
        super().emit(values, every, end_with)

    def _each(self, values: Sequence[Value], at: At) -> None:
        super()._each([v for v in values if not self.is_known(v, at)], at)

    def _emit_and_store(
        self, values: Sequence[Value], every: Sequence[At], depth: int
    ) -> None:
        self.emit(values, every, partial(self._store, depth))

    # memory

    def aligned(self, element: int, lanes: int) -> int:
        """Return what a vector's address is a multiple of, in bytes; 0: of one element."""
        return min(VECTOR_BYTES, lanes * element) if lanes > 1 else 0

    def _store(self, depth: int, at: At) -> None:
        """Emit the stores for which so many open loops suffice, each once."""
        for place in self._stores[depth]:
            output, buffer = self.nest.outputs[place], self.args.outputs[place]
            walked = self.walks(output.offset)
            if any(here and k and k not in walked for k, here in enumerate(at)):
                continue  # the same as at an earlier place
            lanes = self.lanes(output.offset.axes)
            value = self.at(output.value, at, lanes)
            start, mask = self.offset(output.offset, at), self._mine(output, at, lanes)
            streams = self.schedule.streaming and lanes > 1 and mask is None
            alignment = self.aligned(buffer.dtype.bytes, lanes)
            self.b.store(
                buffer, start, value, mask, streaming=streams, alignment=alignment
            )

    def _mine(self, output: Stored, at: At, lanes: int) -> Operand | None:
        """Emit whether this thread is the first that has an output's element."""
        stored = output.offset.axes
        mask = self.mask(self.walks(output.offset), at)
        mask = self.b.both(mask, self.open[0].live[at[0]])
        for loop, axes in enumerate(self.axes):
            if stored.issuperset(axes):
                continue
            first = self.threads.first(loop) if loop else self.is_first(stored, at)
            mask = self.b.both(mask, first)
        return None if mask is None else self.b.splat(mask, lanes)
