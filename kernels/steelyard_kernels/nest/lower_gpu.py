"""The lowering of a nest under a schedule, for GPUs.

A block has the first loop's factors. Where its threads share no other loop each owns so
many vectors, a block's width apart; a block whose vectors all exist asks nothing further,
the last one walks its vectors one by one, then has a thread for each element that fills
no vector. Where other loops share the threads, all of them meet in reductions: those
beyond the last index repeat it and store nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Buffer, Operand, Var
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.gpu_emitter import VECTOR_BYTES, GpuEmitter
from steelyard_kernels.nest.reads import Passes, deviates
from steelyard_kernels.nest.reduce import reduce
from steelyard_kernels.nest.transposition import Transposition
from steelyard_kernels.schedule import gpu
from steelyard_kernels.schedule.cluster import Hand
from steelyard_kernels.schedule.order import residue
from steelyard_kernels.schedule.parameters import Lowered, arguments
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.schedule.transposition import blocks, transposed_of


def lower(nest: Nest, schedule: Schedule, *, aligned: bool) -> Lowered:
    """Return the loop-level kernel of a legal schedule; see `nest.lower`."""
    args = arguments(nest.program, VECTOR_BYTES if aligned else 0)
    b = Builder(gpu.index_type(nest.program))
    extent, cut = Var("extent", b.index), schedule.cuts[0]
    emitter = GpuEmitter(
        nest, schedule, args, b, target="cuda", extent=extent, reduce=reduce
    )
    emitter.level(0)
    per_block, counts = cut.size, {extent: emitter.extent_of(0)}
    every = -(-emitter.extent_of(0) // cut.size) * schedule.cluster
    if of := transposed_of(nest) if schedule.keep is Place.SHARED else None:
        Transposition(emitter, nest, schedule, of).emit()
        per_block, counts[extent] = 1, blocks(nest, schedule)
    elif schedule.blocks:
        _Resident(emitter, cut, extent).emit()
        stay = min(schedule.blocks, every)
        per_block, counts[Var("blocks", b.index)] = 1, stay
    elif any(each.at(Place.THREAD) > 1 for each in schedule.cuts[1:]):
        _Team(emitter, cut, extent).emit()
        if schedule.cluster > 1:
            per_block, counts[Var("blocks", b.index)] = 1, every
    else:
        _Block(emitter, cut, extent).emit()
    threads = schedule.threads
    kernel = b.kernel(
        "kernel",
        (*args.order, *counts),
        threads=threads,
        registers=schedule.registers or gpu.most_registers(threads),
    )
    slots = [gpu.extent_slot(b.index, count) for count in counts.values()]
    rooms = [room for room in _rooms(b.body) if room.space == "shared"]
    _, shared = ir.shared_places(rooms)
    shared = shared if shared > gpu.STATIC_SHARED else 0
    kernel = replace(kernel, shared=shared, cluster=schedule.cluster)
    return Lowered(kernel, (*args.slots, *slots), threads, per_block, shared)


def _rooms(body: Iterable[ir.Statement]) -> Iterator[Buffer]:
    """Yield the memory that statements allocate, in order."""
    for each in body:
        if isinstance(each, ir.Alloc):
            yield each.buffer
        elif isinstance(each, ir.For | ir.If):
            yield from _rooms(each.body)
            yield from _rooms(each.orelse if isinstance(each, ir.If) else ())


class _Shared:
    """A loop that blocks share, of which one thread does some."""

    def __init__(self, emitter: GpuEmitter, cut: Cut, extent: Var) -> None:
        self.b = emitter.b
        self.emitter = emitter
        self.cut = cut
        self.extent = extent


class _Team(_Shared):
    """Emits what one thread does where several walk one index of the first loop."""

    def emit(self) -> None:
        """Emit a block's indices, inside of the loops that one turn has all of."""
        self.emitter.back = self._back()
        with self.emitter.held():
            places, live = self._places(self._start())
            lanes = self.cut.at(Place.VECTOR)
            with self.emitter.opened(0, places, lanes, (), live):
                self.emitter.inside()

    def _back(self) -> Operand | None:
        """Emit how far a thread's row begins behind a vector of memory; None: on one."""
        b, lanes = self.b, self.emitter.cuts[-1].at(Place.VECTOR)
        step = residue(self.emitter.nest, lanes) if lanes > 1 else 0
        if not step:
            return None
        row, _ = self._row(self._start())
        if self.emitter.extent_of(0) % self.cut.size:
            row = b.at("minimum", row, b.at("subtract", self.extent, 1))
        return b.at("rem", b.at("multiply", b.at("rem", row, lanes), step), lanes)

    def _start(self) -> Operand:
        """Emit the first index of a block, or of a cluster's blocks."""
        b, hand = self.b, self.emitter.hand
        if hand is not None:
            return self._turn(hand)
        tile = b.at("div", b.block(), self.emitter.schedule.cluster)
        return b.at("multiply", tile, self.cut.size)

    def _turn(self, hand: Hand) -> Operand:
        """Emit the row of a block's turn: they are taken from the last on in reverse."""
        node = self.emitter.nest.handed
        if node is None or not node.reverse:
            return hand.turn
        return self.b.at("subtract", self.b.at("subtract", self.extent, 1), hand.turn)

    def _row(self, at: Operand) -> tuple[Operand, Operand]:
        """Emit a thread's row of those from one on, and whether there is one."""
        row = at
        if 0 in self.emitter.threads.number:
            row = self.b.at("add", row, self.emitter.threads.number[0])
        return row, self.b.let("less", row, self.extent)

    def _places(self, at: Operand) -> tuple[list[Operand], list[Operand | None]]:
        """Emit a thread's places from `at` on; none is the last one once more."""
        b, cut = self.b, self.cut
        lanes, own = cut.at(Place.VECTOR), self.emitter.threads.number.get(0)
        width = cut.at(Place.THREAD) * lanes
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


class _Resident(_Team):
    """Emits what one thread does where blocks stay and take one row after another.

    What all rows share is loaded once. The arrays of the next row are on their way while
    one is walked. All rows of a thread begin as far from a vector of memory: those are
    walked by such vectors, which the first and the last elements do not fill.
    """

    def emit(self) -> None:
        """Emit a block's rows."""
        b, emitter, cut = self.b, self.emitter, self.cut
        schedule, cluster = emitter.schedule, emitter.threads.cluster
        step = cut.size * schedule.blocks // schedule.cluster
        start = self._start()
        emitter.back = self._back()
        with emitter.held():
            emitter.hoist_columns()
            arrays = [
                value
                for value in emitter.nest.values
                if isinstance(value.source, Input)
                and 0 in emitter.loops[value.number]
                and not value.step
            ]
            first = self._load(arrays, start)
            # Where two walks have a barrier each, slots are free for the next row.
            walks = len(Passes.of(emitter.nest).passes) - 1
            single = walks < 2 and not any(map(deviates, emitter.nest.values))
            emitter.threads.within += single
            if cluster is not None:
                cluster.begin()
            with b.loop(start, self.extent, step, *first, unroll=1) as turn:
                if cluster is not None:
                    cluster.turn = b.at("div", turn.var, step)
                ahead = self._load(arrays, b.at("add", turn.var, step))
                row, inside = self._row(turn.var)
                whole = emitter.extent_of(0) % cut.size == 0
                with emitter.opened(0, [row], 1, [None if whole else inside]):
                    keys = [(v, at) for v in arrays for at in emitter.every()]
                    for (value, at), known in zip(keys, turn.carried, strict=True):
                        emitter.know(value, at, known)
                    emitter.inside()
                turn.yields(*ahead)
            emitter.threads.within -= single

    def _load(self, arrays: Sequence[Value], at: Operand) -> list[Operand]:
        """Emit loads of a thread's row, if there is one: that of the block's from one on."""
        emitter = self.emitter
        row, inside = self._row(at)
        with emitter.opened(0, [row], 1, [inside]):
            every = emitter.every()
            emitter.emit(arrays, every)
            return [
                emitter.at(v, at, emitter.lanes(v.axes)) for v in arrays for at in every
            ]


class _Block(_Shared):
    """Emits what one thread does of a loop that blocks share."""

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
