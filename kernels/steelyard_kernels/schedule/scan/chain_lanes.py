"""Chains side by side: each lane of a CPU's vectors has one, each element a vector.

Many chains of small values fill vectors whatever a chain's shapes are, and no sum goes
across lanes. They take turns together: one that is done waits for the others.
"""

from __future__ import annotations

from steelyard_kernels.dtypes import DType
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.schedule.scan.lanes import CpuLanes
from steelyard_kernels.schedule.scan.tensor import BESIDE, View, contiguous


class ChainLanes(CpuLanes):
    """`chains` chains from a first one on; what all have alike is a scalar.

    Where fewer are left the last one is in several lanes, and stored as often.
    """

    in_step = True

    def __init__(self, b: Builder, chains: int) -> None:
        super().__init__(b, 1, 0)
        self.chains = chains
        self.steps: list[Operand] = []  # from the first chain to each lane's
        self.apart: dict[int, list[Operand]] = {}

    def place(self, first: Operand, end: Operand) -> None:
        """Emit which chains these are: from `first` on, and none from `end` on."""
        b = self.b
        most = b.at("subtract", b.at("subtract", end, 1), first)
        self.apart = {}
        self.steps = [b.at("minimum", most, lane) for lane in range(self.chains)]

    def splat(self, scalar: Operand) -> Operand:
        """Return a scalar for every chain."""
        return self.b.splat(scalar, self.chains)

    def any(self, flag: Operand) -> Operand:
        """Emit whether a flag holds for any chain."""
        return self.b.let("reduce_bitwise_or", self.splat(flag))

    def scratch(self, name: str, dtype: DType, extent: int) -> tuple[Buffer, Operand]:
        """Return memory for all of the chains, which lie beside one another in it."""
        return super().scratch(name, dtype, extent * self.chains)

    def beside(self, buffer: Buffer, base: Operand, shape: tuple[int, ...]) -> View:
        """Return the view of scratch memory."""
        strides = tuple([stride * self.chains for stride in contiguous(shape)])
        return View(buffer, base, shape, strides, BESIDE)

    def load_apart(self, buffer: Buffer, index: Index, apart: int) -> Operand:
        """Emit the load of an element of every chain, whose arrays lie `apart`."""
        b = self.b
        if apart == BESIDE:
            return b.load(buffer, index, self.chains)
        vector: Operand | None = None
        for lane, step in enumerate(self._steps(apart)):
            value = b.load(buffer, b.at("add", index, step))
            if vector is None:
                vector = self.splat(value)
            else:
                vector = b.let("insert", vector, value, b.number(lane))
        assert vector is not None
        return vector

    def store_apart(
        self, buffer: Buffer, index: Index, apart: int, value: Operand
    ) -> None:
        """Emit the store of an element of every chain."""
        b, vector = self.b, self.splat(value)
        if apart == BESIDE:
            b.store(buffer, index, vector)
            return
        for lane, step in enumerate(self._steps(apart)):
            one = b.let("extract", vector, b.number(lane))
            b.store(buffer, b.at("add", index, step), one)

    def _steps(self, apart: int) -> list[Operand]:
        """Return how far each lane's array lies from the first; see `arrays`."""
        return self.apart[apart]

    def arrays(self, apart: int) -> None:
        """Emit, where a chain's array is first named, where each lane's begins."""
        if apart not in self.apart:
            steps = [self.b.at("multiply", step, apart) for step in self.steps]
            self.apart[apart] = steps
