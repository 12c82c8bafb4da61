"""Attention by a CPU's registers: how it is blocked.

    i:core j:r12.stack6.core k:v16.r2.stack2.serial l:v16.r2.stack4.serial m:stack64.serial

A core takes 6 x 12 of the queries along j at a time, and 4 x 32 of the keys along l in each
step. It copies these queries, keys and values to its stack; of 12 queries it multiplies
32 keys at a time, then their weights by 2 x 32 columns of the values along k. Rows of
queries and keys are 64 long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from steelyard_kernels.nest.axes import Nest, names_of
from steelyard_kernels.nest.contraction import in_order
from steelyard_kernels.nest.weighing import Weighing, weighing_of
from steelyard_kernels.schedule.blocking import (
    LANES,
    MOST_STACK,
    Blocking,
    Panel,
    Pieces,
    registers_problem,
    scheduled,
)
from steelyard_kernels.schedule.model import LINE, Machine
from steelyard_kernels.schedule.schedule import Place, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlocking(Blocking):
    """The product of weights and values, blocked, with that of queries and keys before.

    `depth` keys are taken in a step; `beside` vectors of their scores are multiplied at
    a time.
    """

    weighing: Weighing = field(kw_only=True)
    beside: int = field(kw_only=True)

    @property
    def scores(self) -> Blocking:
        """The product of queries and keys, with its tile's keys those of a step."""
        products = self.weighing.products
        return Blocking(
            products,
            self.rows,
            self.lanes,
            self.beside,
            self.down,
            self.depth // (self.lanes * self.beside),
            products.extents[3],
        )

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        whole, keys = self.weighing.sums, self.scores
        rest = (1, Place.CORE if self.shared else Place.SERIAL)
        vectors, serial = (self.lanes, Place.VECTOR), (1, Place.SERIAL)
        every: list[Pieces] = [
            (whole.outer, (rest,)),
            (whole.rows, ((self.rows, Place.REGISTER), (self.down, Place.STACK), rest)),
            *[
                (
                    axes,
                    (
                        vectors,
                        (each.vectors, Place.REGISTER),
                        (each.over, Place.STACK),
                        serial,
                    ),
                )
                for axes, each in ((whole.columns, self), (whole.depth, keys))
            ],
            (keys.product.depth, ((keys.depth, Place.STACK), serial)),
        ]
        return scheduled(every)

    @property
    def kept(self) -> tuple[Panel, Panel, Panel]:
        """How queries, keys and values lie on the stack."""
        return *self.scores.panels(), self.panels()[1]

    @property
    def pitch(self) -> int:
        """Elements from row to row of the weights: an odd number of lines."""
        size = self.product.dtype.bytes
        return (-(-self.depth * size // LINE) | 1) * LINE // size

    @property
    def sums(self) -> tuple[int, int]:
        """Rows of the sums that are kept, and elements from row to row."""
        (tall, wide), size = self.tile, self.product.dtype.bytes
        return tall, (-(-wide * size // LINE) | 1) * LINE // size

    @property
    def aside(self) -> int:
        """Elements that a block of rows has of what there is one a row."""
        return -(-self.rows // self.lanes) * self.lanes

    @property
    def stack(self) -> int:
        """Bytes of a thread's stack."""
        rows, pitch = self.sums
        kept = sum(panel.size for panel in self.kept) + rows * pitch
        kept += self.rows * self.pitch + (2 * self.down + 3) * self.aside
        return kept * self.product.dtype.bytes


def blocking_of(whole: Weighing, schedule: Schedule) -> AttentionBlocking | None:
    """Return the blocking that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    sums = whole.sums
    every = sums.rows, sums.columns, sums.depth
    names = [names_of(axes) for axes in every]
    if not cuts.keys() >= {*names}:
        return None
    rows, columns, keys = (cuts[name] for name in names)
    found = AttentionBlocking(
        sums,
        rows.at(Place.REGISTER),
        columns.at(Place.VECTOR),
        columns.at(Place.REGISTER),
        rows.at(Place.STACK),
        columns.at(Place.STACK),
        keys.size,
        (False, True),
        schedule.threads == 0,
        weighing=whole,
        beside=keys.at(Place.REGISTER),
    )
    fits = found.depth % (found.lanes * found.beside) == 0 and min(keys.size, rows.size)
    return found if fits and found.schedule == schedule else None


@lru_cache(maxsize=2)  # asked for to part a program, to choose a schedule, to lower
def attended(nest: Nest) -> Weighing | str:
    """Return how a nest weighs values, or why a CPU's registers do not as one kernel."""
    found = weighing_of(nest)
    if isinstance(found, str):
        return found
    lanes, sums = max(LANES), found.sums
    along = [(sums, sums.behind, sums.columns), (sums, found.between, sums.depth)]
    stored = [sums.walks(o.offset, sums.columns) for o in nest.outputs]
    if not all(in_order(*each, lanes) for each in along) or {*stored} != {1}:
        return "walks keys or columns by vectors, along which an array does not lie in order"
    if any(output.updates is not None for output in nest.program.outputs):
        return "updates an array in place; make it an output"
    return found


def problem(blocking: AttentionBlocking, machine: Machine) -> str:
    """Say why a blocking does not fit, and what to choose instead; "" if it does."""
    for each in (blocking, blocking.scores):
        if why := registers_problem(each, machine):
            return why
    if blocking.tile[1] < blocking.product.extents[2]:
        return (
            f"takes {blocking.tile[1]} of {blocking.product.extents[2]} columns of the "
            "values at a time; choose all of them"
        )
    if blocking.stack > MOST_STACK:
        return (
            f"needs {blocking.stack} bytes of a thread's stack, of which it takes "
            f"{MOST_STACK}; choose fewer queries at a time, or keys in a step"
        )
    return ""
