"""What the lowerings of tiles share: parameters, shared memory, barriers and copies.

A block's last threads, or its first if it has no others, have one that copies tiles to
shared memory. A stage is full when all bytes of its copies are there, and empty when
every warpgroup has read it: mbarriers count both, by phases whose parity changes
whenever all stages have been used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Operand, Tensor, Tile, Var
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.gpu_emitter import VECTOR_BYTES, GpuEmitter
from steelyard_kernels.nest.reduce import reduce
from steelyard_kernels.schedule import gpu
from steelyard_kernels.schedule.contraction import HALF, LINE, UNIT, Factor
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.parameters import Lowered, Slot, arguments
from steelyard_kernels.schedule.product_tiling import GROUP, Tiling
from steelyard_kernels.schedule.tile import Carried


class Tiles:
    """Emits one block of a tiling; `factors` are its arrays by their names."""

    emits: type[GpuEmitter] = GpuEmitter

    def __init__(self, tiling: Tiling, factors: Mapping[str, Factor]) -> None:
        self.tiling, self.product = tiling, tiling.product
        self.factors = factors
        program = self.product.nest.program
        self.args = arguments(program, VECTOR_BYTES)
        self.b = b = Builder(gpu.index_type(program))
        self.extent = Var("extent", b.index)
        self.emitter = self.emits(
            self.product.nest,
            tiling.schedule,
            self.args,
            b,
            target="cuda",
            extent=self.extent,
            reduce=reduce,
        )
        self.tensors: dict[str, Tensor] = {}
        self.memory = {
            name: b.alloc(name, dtype, count, "shared", alignment)
            for name, dtype, count, alignment in tiling.memory()
        }
        self.thread, self.block = b.thread(), b.block()
        self.group: Operand = b.number(0)
        self.own: Operand = self.thread  # of those that multiply one part of the depth

    def describe(
        self, name: str, extents: tuple[int, int], box: tuple[int, int]
    ) -> None:
        """Have copies see a factor by boxes: its own extent and depth, then its batch."""
        factor, place = self.factors[name], len(self.tensors)
        own, depth = extents
        size = factor.source.dtype.bytes
        along = (own, depth) if factor.across else (depth, own)
        every = zip(self.product.batch, factor.shared, strict=True)
        sizes = [-(-n // k) for n, k in every]
        batch = [pair for pair in zip(sizes, factor.batch, strict=True) if pair[1] > 0]
        self.tensors[name] = Tensor(
            f"{factor.source.name}.{place}",
            factor.source.dtype.name,
            factor.first,
            (*along, *[size for size, _ in batch]),
            (factor.pitch * size, *[step * size for _, step in batch]),
            (*box, *[1] * len(batch)),
            box[0] * size,
        )

    def copy(
        self,
        name: str,
        to: Operand,
        barrier: tuple[str, Operand],
        corner: tuple[Operand, Operand],
        matrix: tuple[Operand, ...],
        *blocks: Operand,
    ) -> None:
        """Emit the copy of a factor's box from its own index and depth on.

        To as many blocks of the cluster as a number has bits, where there is one.
        """
        factor, tensor = self.factors[name], self.tensors[name]
        batch = zip(matrix, factor.shared, factor.batch, strict=True)
        along = corner if factor.across else corner[::-1]
        where = self.memory[name], to, tensor, self.memory[barrier[0]], barrier[1]
        others = [self.b.at("div", at, shared) for at, shared, step in batch if step]
        places = (*along, *others)
        name = "tensor_share" if blocks else "tensor_copy"
        self.b.effect(f"{name}_{len(places)}", *where, *blocks, *places)

    def lowered(self, values: Iterable[Value], others: Sequence[Factor]) -> Lowered:
        """Close the kernel: its parameters are what values and other factors read."""
        tiling, b = self.tiling, self.b
        read = {getattr(value.source, "index", None) for value in values}
        read |= {factor.source.index for factor in others}
        kept = {one.name for i, one in self.args.inputs.items() if i in read}
        kept |= {buffer.name for buffer in self.args.outputs} | self.args.scalars.keys()
        pairs = [
            (parameter, slot)
            for parameter, slot in zip(self.args.order, self.args.slots, strict=True)
            if slot.kind == "scalar" or parameter.name in kept
        ]
        slots = []
        for name, tensor in self.tensors.items():
            source = self.factors[name].source
            slots.append(Slot("tensor", source.index, source.name, "t", tensor))
        order = (*self.tensors.values(), *[p for p, _ in pairs], self.extent)
        slots += [*[s for _, s in pairs], gpu.extent_slot(b.index, tiling.grid)]
        kernel = replace(
            b.kernel("kernel", order, threads=tiling.threads),
            resident=1,
            cluster=tiling.cluster,
            shared=tiling.shared,
        )
        return Lowered(kernel, tuple(slots), tiling.threads, 1, tiling.shared)

    def barrier(self, what: str, name: str, stage: Operand | int, *args: int) -> None:
        """Emit an operation on a stage's mbarrier."""
        numbers = [self.b.number(each) for each in (stage, *args)]
        self.b.effect(f"mbarrier_{what}", self.memory[name], *numbers)

    def tiles(
        self, body: Callable[[Operand, Carried], Carried], carried: Carried
    ) -> None:
        """Emit a body for the number of each tile of this block."""
        b, tiling, cluster = self.b, self.tiling, self.tiling.cluster
        if not tiling.blocks:
            body(b.at("div", self.block, cluster), carried)
            return
        first, apart = b.at("div", self.block, cluster), tiling.blocks // cluster
        with b.loop(first, tiling.turns, apart, *carried, unroll=1) as loop:
            loop.yields(*body(loop.var, loop.carried))

    def piece(
        self, name: str, factor: Factor, first: Operand, width: int, k: int
    ) -> Tile:
        """Emit where a step's part of an instruction begins, and how it lies."""
        product = self.product
        row = width * HALF if factor.across else LINE
        further = k * product.deep * (width if factor.across else 1)
        leading = product.step * row if factor.across else UNIT
        memory = self.memory[name]
        return Tile(memory, first, further, row, factor.across, leading, 8 * row)

    def matrix(self, index: Operand) -> tuple[Operand, ...]:
        """Emit where a matrix is along each axis of the batch."""
        b, found = self.b, list[Operand]()
        for extent in reversed(self.product.batch[1:]):
            found.append(b.at("rem", index, extent))
            index = b.at("div", index, extent)
        return (index, *reversed(found)) if self.product.batch else ()

    def number_groups(self) -> None:
        """Emit which warpgroup this is: known to be one number in all lanes of a warp."""
        b = self.b
        if self.tiling.groups > 1:
            group = b.at("div", self.own, GROUP)
            zero = b.number(0)
            self.group = b.let("shuffle", group, zero, b.number(WARP), name="i")

    def leads(self) -> Operand:
        """Emit whether this is the first thread of its warpgroup."""
        b = self.b
        return b.let("equal", b.at("rem", self.thread, GROUP), b.number(0))

    def after(self, stage: Operand, *parities: Operand) -> Carried:
        """Emit the next stage, and its parity where there is one."""
        b = self.b
        following = b.at("add", stage, 1)
        wraps = b.let("equal", following, b.number(self.tiling.stages))
        others = [b.at("subtract", 1, parity) for parity in parities]
        return (
            b.let("where", wraps, b.number(0), following),
            *[
                b.let("where", wraps, other, parity)
                for other, parity in zip(others, parities, strict=True)
            ],
        )
