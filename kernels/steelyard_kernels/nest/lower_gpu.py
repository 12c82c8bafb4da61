"""The lowering of a nest under a schedule, for GPUs.

A block has the first loop's factors. Where its threads share no other loop each owns so
many vectors, a block's width apart; a block whose vectors all exist asks nothing further,
the last one walks its vectors one by one, then has a thread for each element that fills
no vector. Where other loops share the threads, all of them meet in reductions: those
beyond the last index repeat it and store nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Operand, Var
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.gpu_emitter import VECTOR_BYTES, GpuEmitter
from steelyard_kernels.nest.reduce import reduce
from steelyard_kernels.schedule import gpu
from steelyard_kernels.schedule.parameters import Lowered, arguments
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule


def lower(nest: Nest, schedule: Schedule, *, aligned: bool) -> Lowered:
    """Return the loop-level kernel of a legal schedule; see `nest.lower`."""
    args = arguments(nest.program, VECTOR_BYTES if aligned else 0)
    b = Builder(gpu.index_type(nest.program))
    extent, cut = Var("extent", b.index), schedule.cuts[0]
    emitter = GpuEmitter(
        nest, schedule, args, b, target="cuda", extent=extent, reduce=reduce
    )
    emitter.level(0)
    if any(each.at(Place.THREAD) > 1 for each in schedule.cuts[1:]):
        _Team(emitter, cut, extent).emit()
    else:
        _Block(emitter, cut, extent).emit()
    threads = schedule.threads
    kernel = b.kernel(
        "kernel",
        (*args.order, extent),
        threads=threads,
        registers=schedule.registers or gpu.most_registers(threads),
    )
    slots = (*args.slots, gpu.extent_slot(b.index, emitter.extent_of(0)))
    return Lowered(kernel, slots, threads, cut.size)


class _Team:
    """Emits what one thread does where several walk one index of the first loop."""

    def __init__(self, emitter: GpuEmitter, cut: Cut, extent: Var) -> None:
        self.b = emitter.b
        self.emitter = emitter
        self.cut = cut
        self.extent = extent

    def emit(self) -> None:
        """Emit a block's indices, inside of the loops that one turn has all of."""
        with self.emitter.held():
            places, live = self._places()
            lanes = self.cut.at(Place.VECTOR)
            with self.emitter.opened(0, places, lanes, (), live):
                self.emitter.inside()

    def _places(self) -> tuple[list[Operand], list[Operand | None]]:
        """Emit a thread's places; those that are none are the last once more."""
        b, cut = self.b, self.cut
        lanes, own = cut.at(Place.VECTOR), self.emitter.threads.number.get(0)
        width = cut.at(Place.THREAD) * lanes
        at = b.at("multiply", b.block(), cut.size)
        if own is not None:
            at = b.at("add", at, b.at("multiply", own, lanes))
        places = [b.at("add", at, width * u) for u in range(cut.at(Place.REGISTER))]
        if self.emitter.extent_of(0) % cut.size == 0:
            return places, []
        last = b.at("subtract", self.extent, lanes)
        live: list[Operand | None] = [
            b.let("less", place, self.extent) for place in places
        ]
        return [b.at("minimum", place, last) for place in places], live


class _Block:
    """Emits what one thread does of a loop that blocks share."""

    def __init__(self, emitter: GpuEmitter, cut: Cut, extent: Var) -> None:
        self.b = emitter.b
        self.emitter = emitter
        self.cut = cut
        self.extent = extent

    def emit(self) -> None:
        """Emit the vectors of a thread."""
        b, cut = self.b, self.cut
        thread = self.emitter.threads.number[0]
        first = b.at("multiply", b.block(), cut.size)
        at = b.at("add", first, b.at("multiply", thread, cut.at(Place.VECTOR)))
        if cut.at(Place.REGISTER) == 1:
            self._single(thread, first, at)
        else:
            self._several(thread, first, at)

    def _single(self, thread: Operand, first: Operand, at: Operand) -> None:
        """Emit one vector a thread, where there is one."""
        b, cut = self.b, self.cut
        whole = self._whole()
        with b.branch(b.let("less", at, whole)):
            self._vectors([at], cut.at(Place.VECTOR))
        if whole is not self.extent:
            behind = b.at("add", first, cut.size)
            with b.branch(b.let("greater", behind, self.extent)):
                self._rest(thread, whole)

    def _several(self, thread: Operand, first: Operand, at: Operand) -> None:
        """Emit a full block's vectors together, the last block's one by one."""
        b, cut = self.b, self.cut
        lanes = cut.at(Place.VECTOR)
        width = cut.at(Place.THREAD) * lanes
        behind = b.at("add", first, cut.size)
        with b.branch(b.let("less_equal", behind, self.extent)) as full:
            vectors = range(cut.at(Place.REGISTER))
            self._vectors([b.at("add", at, width * u) for u in vectors], lanes)
            full.otherwise()
            whole = self._whole()
            with b.loop(at, whole, width, unroll=1) as loop:
                self._vectors([loop.var], lanes)
            if whole is not self.extent:
                self._rest(thread, whole)

    def _whole(self) -> Operand:
        """Emit how many elements fill vectors: all in rows, which vectors divide."""
        lanes = self.cut.at(Place.VECTOR)
        if lanes == 1 or len(self.cut.axes) > 1:
            return self.extent
        return self.b.at("multiply", self.b.at("div", self.extent, lanes), lanes)

    def _rest(self, thread: Operand, whole: Operand) -> None:
        """Emit the last block's elements that fill no vector, one a thread."""
        at = self.b.at("add", whole, thread)
        with self.b.branch(self.b.let("less", at, self.extent)):
            self._vectors([at], 1)

    def _vectors(self, places: Sequence[Operand], lanes: int) -> None:
        with self.emitter.opened(0, places, lanes):
            self.emitter.inside()
