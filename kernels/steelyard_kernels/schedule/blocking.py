"""Sums of products by a CPU's registers: how one is blocked.

    i:r12.stack20.core j:v16.r2.stack8.core k:stack256.serial

A core takes 20 x 12 rows and 8 x 32 columns at a time, in steps of 256 along k: it copies
both factors' parts to its stack, where they lie in order, in the dtype of the sums. Of
those it multiplies 12 rows by 32 columns at a time, whose sums are in registers. A factor
at `serial` instead of `stack` is read where it lies. Goto and van de Geijn, "Anatomy of
high-performance matrix multiplication", 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels.expression.expr import Cast, Input
from steelyard_kernels.nest.axes import Value, names_of
from steelyard_kernels.nest.contraction import Contraction, in_order, in_rows
from steelyard_kernels.schedule.contraction import keeps
from steelyard_kernels.schedule.model import LINE, Machine
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

# Bytes of a thread's stack, which has 8 MiB, and 2 where a shell says "unlimited".
MOST_STACK: Final = 1 << 20
LANES: Final = (1, 2, 4, 8, 16, 32, 64)
Pieces: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, Place], ...]]
"""Axes, and how they are cut."""


class Panel(Struct, frozen=True):
    """A part of a factor as it lies while it is multiplied.

    `axes` are those of its rows or columns. `across`: elements along these are neighbours,
    or else those along the depth. `lanes` are copied at a time, `turned`: along the depth
    though they lie across, `by_rows`: up to the end of the last axis. Elements are
    `pitch` from row to row.
    """

    value: Value
    axes: tuple[int, ...]
    copied: bool
    across: bool
    turned: bool
    by_rows: bool
    lanes: int
    pitch: int
    size: int


class Blocking(Struct, frozen=True, eq=False):
    """Sums of products cut as a schedule says.

    `rows` by `vectors` of `lanes` columns are multiplied at a time, `down` and `over` of
    these by one core in steps of `depth`; `copies` says of both factors whether they are
    copied, `shared` whether all cores take part; these take `turns` tiles at a time,
    where there are outer axes.
    """

    product: Contraction
    rows: int
    lanes: int
    vectors: int
    down: int
    over: int
    depth: int
    copies: tuple[bool, bool] = (True, True)
    shared: bool = True
    turns: int = 1

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        rest = (1, Place.CORE if self.shared else Place.SERIAL)
        near = [Place.STACK if copied else Place.SERIAL for copied in self.copies]
        product = self.product
        every: list[Pieces] = [
            (product.outer, ((self.turns, rest[1]),)),
            (product.rows, ((self.rows, Place.REGISTER), (self.down, near[0]), rest)),
            (
                product.columns,
                (
                    (self.lanes, Place.VECTOR),
                    (self.vectors, Place.REGISTER),
                    (self.over, near[1]),
                    rest,
                ),
            ),
            (product.depth, ((self.depth, Place.STACK), (1, Place.SERIAL))),
        ]
        return scheduled(every)

    @property
    def columns(self) -> int:
        """Columns that are multiplied at a time."""
        return self.lanes * self.vectors

    @property
    def masked(self) -> bool:
        """Whether columns are read where they lie and end within a block: not in panels."""
        product = self.product
        own = product.walks(lying(product.right).offset, product.columns)
        ends = product.extents[2] % self.columns
        return not self.copies[1] and own is not None and ends > 0

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns that a core takes at a time."""
        return self.rows * self.down, self.columns * self.over

    @property
    def blocks(self) -> tuple[int, int, int]:
        """How many tiles there are: of the outer axes, along the rows and the columns."""
        outer, m, n, _ = self.product.extents
        tall, wide = self.tile
        return outer, -(-m // tall), -(-n // wide)

    @property
    def steps(self) -> int:
        """Steps along the depth."""
        return -(-self.product.extents[3] // self.depth)

    def panels(self) -> tuple[Panel, Panel]:
        """Return how both factors lie while they are multiplied."""
        product = self.product
        values = (product.left, product.rows), (product.right, product.columns)
        found = [
            self._panel(
                *both, self.tile[side], copied=self.copies[side], last=side == 1
            )
            for side, both in enumerate(values)
        ]
        return found[0], found[1]

    def _panel(
        self,
        value: Value,
        axes: tuple[int, ...],
        block: int,
        *,
        copied: bool,
        last: bool,
    ) -> Panel:
        """Return how a factor lies; `last`: its vectors lie along its own axes."""
        product, lanes = self.product, self.lanes
        made = product.made_of[last]
        own = in_order(product, made, axes, lanes) and (
            len(axes) == 1 or last or block % lanes == 0
        )
        deep = in_order(product, made, product.depth, lanes) and (
            self.steps == 1 or self.depth % lanes == 0
        )
        across = last or own or not deep
        by_rows = last and not own and not deep and in_rows(made, axes)
        row = (block if across else self.depth) + lanes * by_rows
        lines = -(-row * product.dtype.bytes // LINE) | 1
        pitch = lines * LINE // product.dtype.bytes  # an odd number of lines
        count = -(-self.depth // lanes) * lanes if across else block
        return Panel(
            value,
            axes,
            copied,
            across,
            across and not own and deep,
            by_rows,
            lanes if own or deep or by_rows else 1,
            pitch,
            pitch * count,
        )

    @property
    def sums(self) -> tuple[int, int]:
        """Rows of the sums that are kept, and elements from row to row."""
        if self.steps == 1:
            return self.rows, self.columns
        tall, wide = self.tile
        lines = -(-wide * self.product.dtype.bytes // LINE) | 1
        return tall, lines * LINE // self.product.dtype.bytes

    @property
    def stack(self) -> int:
        """Bytes of a thread's stack."""
        copied = sum(panel.size for panel in self.panels() if panel.copied)
        return (copied + prod(self.sums)) * self.product.dtype.bytes


def scheduled(every: Sequence[Pieces]) -> Schedule:
    """Return the schedule that cuts axes so, without those that a nest has not."""
    return Schedule(tuple(Cut(names_of(axes), cut) for axes, cut in every if axes))


def blocking_of(product: Contraction, schedule: Schedule) -> Blocking | None:
    """Return the blocking that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    every = product.rows, product.columns, product.depth
    rows, columns, depth = (cuts.get(names_of(axes)) for axes in every)
    if rows is None or columns is None or depth is None:
        return None
    near = [
        cut.factors[-2] if len(cut.factors) > 1 else None for cut in (rows, columns)
    ]
    if near[0] is None or near[1] is None:
        return None
    found = Blocking(
        product,
        rows.at(Place.REGISTER),
        columns.at(Place.VECTOR),
        columns.at(Place.REGISTER),
        near[0][0],
        near[1][0],
        depth.at(Place.STACK),
        (near[0][1] is Place.STACK, near[1][1] is Place.STACK),
        schedule.threads == 0,
        schedule.cuts[0].factors[-1][0],
    )
    return found if found.schedule == schedule else None


def problem(blocking: Blocking, machine: Machine) -> str:
    """Say why a blocking does not fit, and what to choose instead; "" if it does."""
    product = blocking.product
    if why := registers_problem(blocking, machine):
        return why
    outputs = [o.offset for o in product.nest.outputs]
    if blocking.lanes > 1 and not (
        in_order(product, product.behind, product.columns, blocking.lanes)
        and all(product.walks(o, product.columns) == 1 for o in outputs)
    ):
        return (
            "walks columns by vectors, along which an array behind the sums does not lie "
            "in order; choose 1 lane"
        )
    for copied, panel in zip(blocking.copies, blocking.panels(), strict=True):
        why = "" if copied else _in_place_problem(blocking, panel)
        if why:
            return why
    if blocking.stack > MOST_STACK:
        return (
            f"needs {blocking.stack} bytes of a thread's stack, of which it takes "
            f"{MOST_STACK}; choose smaller tiles, or fewer steps of the depth at a time"
        )
    return ""


def registers_problem(blocking: Blocking, machine: Machine) -> str:
    """Say why a block of sums does not fit the registers."""
    (tall, wide), dtype = blocking.tile, blocking.product.dtype
    if min(tall, wide, blocking.depth) < 1:
        return (
            f"takes {tall} rows, {wide} columns and {blocking.depth} of the depth at a "
            "time; choose 1 or more of each"
        )
    if blocking.lanes not in LANES or blocking.lanes * dtype.bytes > LINE:
        wanted = ", ".join(str(n) for n in LANES if n * dtype.bytes <= LINE)
        return f"has vectors of {blocking.lanes} {dtype}; choose {wanted}"
    needed, most = registers(blocking, machine), machine.registers
    if needed > most:
        return (
            f"needs {needed} vector registers for the sums of {blocking.rows} x "
            f"{blocking.columns}, and there are {most}; choose fewer rows or columns"
        )
    return ""


def _in_place_problem(blocking: Blocking, panel: Panel) -> str:
    """Say why a factor cannot be multiplied where it lies."""
    product, value = blocking.product, lying(panel.value)
    last = panel.axes == product.columns
    source = value.source if not value.guards and not value.step else None
    own, deep = (product.walks(value.offset, a) for a in (panel.axes, product.depth))
    if last and len(panel.axes) == 1 and (own is None or deep == blocking.columns):
        own = value.offset.step(panel.axes[0], blocking.columns)
    elif value.node.dtype is not product.dtype:
        source = None
    if not isinstance(source, Input):
        return (
            f"multiplies where it lies what is no array of {product.dtype}; copy it to "
            "the stack"
        )
    if own is None or deep is None or (last and own != 1):
        return f"has no rows of neighbours in {source.name}; copy it to the stack"
    if not last and product.extents[1] % blocking.rows:
        return (
            f"takes {blocking.rows} rows of {product.extents[1]} at a time where they "
            "lie; choose a divisor, or copy them to the stack"
        )
    return ""


def lying(value: Value) -> Value:
    """Return the value that a factor is, perhaps of fewer bytes."""
    while isinstance(value.node, Cast) and not value.guards and keeps(value.node):
        (value,) = value.args.values()
    return value


def registers(blocking: Blocking, machine: Machine) -> int:
    """Return how many vector registers the sums, factors and masks of a step take."""
    each = -(-blocking.lanes * blocking.product.dtype.bytes // machine.vector_bytes)
    masks = blocking.vectors + 1 if blocking.masked else 0  # LLVM compares in each step
    return (blocking.rows + 1) * blocking.vectors * each + masks + 1
