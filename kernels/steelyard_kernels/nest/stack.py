"""Values of rows kept on the stack of a CPU's thread: a row of each for every open one."""

from __future__ import annotations

from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.keep import Kept
from steelyard_kernels.schedule.model import LINE


class Stack:
    """The kept values of a nest: rows of whole vectors, so that none has a tail.

    Rows of one value begin a line apart from each other's cache sets.
    """

    def __init__(
        self, b: Builder, kept: Kept, extent: int, lanes: int, rows: int
    ) -> None:
        self.b = b
        self.pitch = -(-extent // lanes) * lanes + LINE
        room = [b.alloc("kept", dtype, rows * self.pitch) for dtype in kept.dtypes]
        self._buffers: dict[int, Buffer] = {
            number: room[slot] for number, slot in kept.slots.items()
        }
        for value in kept.columns.kept:
            column = b.alloc("column", value.node.dtype, self.pitch)
            self._buffers[value.number] = column

    def load(self, value: Value, row: Index, at: Operand, lanes: int) -> Operand:
        """Emit the elements of a kept value; `row` is 0 of what all rows share."""
        return self.b.load(self._buffers[value.number], self._place(row, at), lanes)

    def store(self, value: Value, row: Index, at: Operand, elements: Operand) -> None:
        """Emit keeping a value's elements, among them those of a tail's dead lanes."""
        self.b.store(self._buffers[value.number], self._place(row, at), elements)

    def _place(self, row: Index, at: Operand) -> Index:
        return self.b.at("add", at, self.b.at("multiply", row, self.pitch))
