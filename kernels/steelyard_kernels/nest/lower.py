"""The lowering of a nest under a schedule: its loops, for CPUs and GPUs.

On a CPU the first loop is shared by threads, by chunks whose bounds only the launch
knows: one binary serves all extents of its axes. The others are walked in turn. Vectors
are unrolled, then single, then one is masked.

On a GPU a block has the first loop's factors. A thread owns so many vectors, a block's
width apart; a block whose vectors all exist asks nothing further, the last one walks its
vectors one by one, then has a thread for each element that fills no vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Operand, Var
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.emitter import VECTOR_BYTES, Emitter
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reduce import reduce
from steelyard_kernels.schedule import gpu
from steelyard_kernels.schedule.legality import check, stores_aligned
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.parameters import Lowered, arguments, extent_slot
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.schedule.tile import Carried, tile_runtime


def nothing(program: Program, threads: int) -> Lowered:
    """Return the kernel of a program that has no element to compute."""
    args = arguments(program)
    kernel = Builder().kernel("kernel", args.order, threads=threads)
    return Lowered(kernel, args.slots, threads or 1)


def lower(
    program: Program, schedule: Schedule, target: str, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel for a kind of target, "cpu" or "cuda".

    `aligned`: every output starts on a cache line, on a GPU every array at 16 bytes.
    Raises KernelError for a schedule that does not fit.
    """
    nest = nest_of(program)
    check(nest, schedule, target, aligned=aligned)
    if target == "cpu":
        return _on_cpu(nest, schedule, aligned=aligned)
    return _on_gpu(nest, schedule, aligned=aligned)


def _extent(nest: Nest, cut: Cut) -> int:
    return prod([nest.extents[nest.axes.index(axis)] for axis in cut.axes])


def _on_cpu(nest: Nest, schedule: Schedule, *, aligned: bool) -> Lowered:
    args = arguments(nest.program, LINE if aligned else 0)
    b, first = Builder(), schedule.cuts[0]
    extent = Var("extent" if len(schedule.cuts) == 1 else "rows", INDEX)
    emitter = Emitter(
        nest,
        schedule,
        args,
        b,
        target="cpu",
        extent=extent,
        reduce=reduce,
        alignment=stores_aligned(nest, schedule),
    )
    lanes = first.at(Place.VECTOR)

    def inside(at: Operand, vectors: int, mask: Operand | None, _: Carried) -> Carried:
        places = [b.at("add", at, lanes * u) for u in range(vectors)]
        with emitter.opened(0, places, lanes, mask):
            _inner(emitter)
        return ()

    emitter.level(0)
    emitter.hoist()
    step = lanes, first.at(Place.REGISTER)
    with b.parallel(extent, first.size, schedule.threads) as (low, high):
        whole = lanes == 1 and _extent(nest, first) % first.at(Place.REGISTER) == 0
        tile_runtime(b, low, high, step, inside, whole=whole)
    if schedule.streaming:
        b.fence()
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, extent_slot(_extent(nest, first)))
    return Lowered(kernel, slots, schedule.threads)


def _inner(emitter: Emitter, depth: int = 1) -> None:
    """Emit what is inside of so many open loops, and the next of them."""
    emitter.level(depth)
    if depth < emitter.depth:

        def body(_vectors: int, _carried: Carried) -> Carried:
            _inner(emitter, depth + 1)
            return ()

        emitter.walk(depth, body)


def _on_gpu(nest: Nest, schedule: Schedule, *, aligned: bool) -> Lowered:
    args = arguments(nest.program, VECTOR_BYTES if aligned else 0)
    b = Builder(gpu.index_type(nest.program))
    extent, cut = Var("extent", b.index), schedule.cuts[0]
    emitter = Emitter(
        nest, schedule, args, b, target="cuda", extent=extent, reduce=reduce
    )
    emitter.level(0)
    block = _Block(emitter, cut, extent)
    block.emit()
    threads = schedule.threads
    kernel = b.kernel(
        "kernel",
        (*args.order, block.extent),
        threads=threads,
        registers=schedule.registers or gpu.most_registers(threads),
    )
    slots = (*args.slots, gpu.extent_slot(b.index, _extent(nest, cut)))
    return Lowered(kernel, slots, threads, cut.size)


class _Block:
    """Emits what one thread does of a loop that blocks share."""

    def __init__(self, emitter: Emitter, cut: Cut, extent: Var) -> None:
        self.b = emitter.b
        self.emitter = emitter
        self.cut = cut
        self.extent = extent

    def emit(self) -> None:
        """Emit the vectors of a thread."""
        b, cut = self.b, self.cut
        thread = b.thread()
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
            _inner(self.emitter)
