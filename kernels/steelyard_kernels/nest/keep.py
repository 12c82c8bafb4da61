"""What stays between the walks along a nest's last axis, and which walks there are.

Rows are walked once for the reductions that wait for nothing, once for those that wait
for these, and so on, then for their outputs. What a walk computes and a later one reads
again can stay where it is near; so can what varies with the last axis alone, for all
rows. Values of arrays are read where they lie: their rows are in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.structure import closure
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import reached
from steelyard_kernels.nest.reads import Reads, deviates, reads_of, terms
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.schedule import Place, Schedule


class Walk(Struct, frozen=True):
    """A walk along the last axis: what it emits, operands first.

    Of `values` it reads `loads` from where they were kept, and keeps `stores`.
    """

    values: tuple[Value, ...]
    loads: frozenset[int] = frozenset()
    stores: frozenset[int] = frozenset()

    @property
    def computed(self) -> list[Value]:
        """The values that it computes, or reads from arrays."""
        return [value for value in self.values if value.number not in self.loads]

    @property
    def kept(self) -> list[Value]:
        """The values that it keeps."""
        return [value for value in self.values if value.number in self.stores]


class Kept(Struct, frozen=True):
    """All walks along the last axis, and where the values lie that they keep.

    `reductions` has, by the first reduction of each group, its walk and, of variances,
    that over deviations. `columns` computes what is hoisted, once for all rows. `slots`
    are the numbers of the places of what is kept for a row, `dtypes` what lies at each.
    """

    columns: Walk
    reductions: Mapping[int, tuple[Walk, Walk | None]]
    outputs: Walk
    slots: Mapping[int, int]
    dtypes: tuple[DType, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes that are kept for an element of a row."""
        return sum([dtype.bytes for dtype in self.dtypes])

    @property
    def column_bytes(self) -> int:
        """The bytes that are kept for an element of all rows."""
        return sum([value.node.dtype.bytes for value in self.columns.kept])

    @property
    def walks(self) -> list[Walk]:
        """All walks in order, without those over deviations."""
        return [*(walk for walk, _ in self.reductions.values()), self.outputs]

    @property
    def asking(self) -> Walk | None:
        """The walk that asks for rows to come; None: that of the outputs does.

        It has most to compute: it is a later one than the first, which waits for memory,
        and keeps what it computes. Softmax of 1024 x 4096 float32 took 0.74 of the time
        by it (Zen 3).
        """
        return next((walk for walk in self.walks[1:] if walk.stores), None)


@lru_cache(maxsize=2)  # a build asks for it with every candidate
def planner(nest: Nest) -> Planner:
    """Return what finds the walks of a nest that has rows."""
    return Planner(nest, reads_of(nest))


@lru_cache(maxsize=2)  # every candidate asks
def has_rows(nest: Nest) -> bool:
    """Say whether all reductions are along the last axis, of rows along the others."""
    last = len(nest.extents) - 1
    return (
        last > 0
        and nest.is_plain(range(last))
        and not (nest.lines or nest.alone)
        and any(value.over for value in nest.values)
        and all(value.over in {(), (last,)} for value in nest.values)
    )


def has_columns(nest: Nest) -> bool:
    """Say whether all reductions are along the same axes, of columns along the last other.

    None of them needs another one, or a second walk.
    """
    every = [value for value in nest.values if value.over]
    if not every or nest.inner or nest.lines or nest.alone or nest.running:
        return False
    (over, axes), reads = (every[0].over, every[0].axes), reads_of(nest)
    needed = reached(nest, [arg for v in every for arg in reads.outside(v)], set())
    return nest.space - 1 in axes and not any(
        (v.over, v.axes) != (over, axes) or deviates(v) or v in needed for v in every
    )


def total_bytes(nest: Nest) -> int:
    """Return the bytes of what the reductions of a column are added up in."""
    every = [value for value in nest.values if value.over]
    found = {t for v in every for t in terms(v, reads_of(nest), one_pass=False)}
    return sum(term.dtype.bytes for term in found)


class _Step(Struct, frozen=True):
    """A walk to be: the values it is for, and whether others rely on what it reads."""

    first: int
    goals: tuple[Value, ...]
    counts: bool = True


class Planner:
    """Finds what the walks of a nest with rows keep, under the hints of schedules."""

    def __init__(self, nest: Nest, reads: Reads) -> None:
        self.nest = nest
        self.reads = reads
        self.last = len(nest.extents) - 1
        self.groups = self._grouped()
        self._known: dict[tuple[Place | None, Place | None, bool], Kept] = {}

    def kept(self, schedule: Schedule) -> Kept:
        """Return all walks, with what a schedule keeps and hoists."""
        hints = schedule.keep, schedule.hoist, schedule.one_pass
        found = self._known.get(hints)
        if found is None:
            found = self._known[hints] = self._kept(schedule)
        return found

    @property
    def variances(self) -> bool:
        """Whether there are any."""
        return any(map(deviates, self.nest.values))

    def accumulators(self, *, one_pass: bool) -> list[int]:
        """Return how many numbers each group of reductions adds up at a place."""
        return [
            len({t for v in group for t in terms(v, self.reads, one_pass=one_pass)})
            for group in self.groups
        ]

    def _kept(self, schedule: Schedule) -> Kept:
        keep = schedule.keep is not None
        steps = self._steps(one_pass=schedule.one_pass)
        columns = self._columns() if schedule.hoist is not None else Walk(())
        stored = set(columns.stores)
        found: list[Walk] = []
        for place, step in enumerate(steps):
            values = self._walked(step.goals, stored)
            loads = {value.number for value in values if value.number in stored}
            stores: set[int] = set()
            if keep and step.counts:
                later = [
                    goal for s in steps[place + 1 :] if s.counts for goal in s.goals
                ]
                stores = self._frontier(values, later, stored)
                stored |= stores
            found.append(Walk(tuple(values), frozenset(loads), frozenset(stores)))
        slots, dtypes = _allotted(found)
        walks: dict[int, tuple[Walk, Walk | None]] = {}
        for step, walk in zip(steps[:-1], found[:-1], strict=True):
            before = walks.get(step.first)
            walks[step.first] = (walk, None) if before is None else (before[0], walk)
        return Kept(columns, walks, found[-1], slots, dtypes)

    def _grouped(self) -> list[list[Value]]:
        """Return the groups of reductions that a row is walked for, in order."""
        rows = [v for v in self.nest.values if self.last not in v.axes]
        outside = {v.number for v in rows if not v.axes}
        rows = [v for v in rows if v.axes]
        found: list[list[Value]] = []
        known = set(outside)
        for place, value in enumerate(rows):
            if value.over and value.number not in known:
                found.append(
                    self.reads.together(rows[place:], lambda v: v.number in known)
                )
                known.update(each.number for each in found[-1])
            known.add(value.number)
        return found

    def _steps(self, *, one_pass: bool) -> list[_Step]:
        steps = []
        for group in self.groups:
            goals = tuple([arg for v in group for arg in self.reads.of(v).values()])
            steps.append(_Step(group[0].number, goals))
            again = [v for v in group if deviates(v)]
            if again:
                goals = tuple([arg for v in again for arg in v.args.values()])
                steps.append(_Step(group[0].number, goals, counts=not one_pass))
        stored = [output.value for output in self.nest.outputs]
        return [*steps, _Step(-1, tuple(stored))]

    def _walked(self, goals: Iterable[Value], kept: Container[int]) -> list[Value]:
        """Return what a walk to some goals emits, but not beyond what is kept."""
        return closure(
            goals,
            lambda v: () if v.number in kept else self.reads.of(v).values(),
            lambda v: self.last in v.axes,
        )

    def _frontier(
        self, values: Sequence[Value], later: Iterable[Value], kept: Container[int]
    ) -> set[int]:
        """Return what a walk computes and later ones would compute again."""
        # Arrays have a place, columns another.
        own = [v for v in values if v.source is None and len(v.axes) > 1]
        here = {v.number for v in own if v.number not in kept}
        found: set[int] = set()
        seen: set[int] = set()
        pending = list(later)
        while pending:
            value = pending.pop()
            if value.number in here:
                found.add(value.number)
            elif value.number not in seen and value.number not in kept:
                seen.add(value.number)
                if not value.over:
                    pending += self.reads.of(value).values()
        return found

    def _columns(self) -> Walk:
        """Return the walk that computes what varies with the last axis alone.

        It keeps what rows read of that, but arrays.
        """
        read = {output.value.number for output in self.nest.outputs}
        for value in self.nest.values:
            if len(value.axes) > 1 or value.over:
                read |= {arg.number for arg in self.reads.of(value).values()}
        kept = [
            value
            for value in self.nest.values
            if value.axes == {self.last}
            and value.source is None
            and value.number in read
        ]
        stores = frozenset([value.number for value in kept])
        return Walk(tuple(self._walked(kept, ())), stores=stores)


def _allotted(walks: Sequence[Walk]) -> tuple[Mapping[int, int], tuple[DType, ...]]:
    """Give each kept value a slot, used again once its value is dead."""
    dtype_of = {v.number: v.node.dtype for walk in walks for v in walk.values}
    last = {number: k for k, walk in enumerate(walks) for number in walk.loads}
    slots: dict[int, int] = {}
    dtypes: list[DType] = []
    free_after: list[int] = []
    for place, walk in enumerate(walks):
        for number in sorted(walk.stores):
            dtype = dtype_of[number]
            for slot, until in enumerate(free_after):
                if until <= place and dtypes[slot] is dtype:
                    break
            else:
                slot = len(free_after)
                free_after.append(0)
                dtypes.append(dtype)
            slots[number] = slot
            free_after[slot] = last[number]
    return slots, tuple(dtypes)


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
