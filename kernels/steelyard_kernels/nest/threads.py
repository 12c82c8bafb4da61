"""How a GPU's loops share the threads of a block, and which vectors are a thread's own.

Neighbours of one loop are side by side where arrays lie most densely along its axis, so
that a warp's accesses meet in few lines of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.axes import NAMES, Nest
from steelyard_kernels.schedule.cluster import Cluster
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.schedule.warp import Group, across_group, prefix_of_group

FAR = 1 << 62  # along an axis without one step


class Threads:
    """The threads of a block, by the number of the loop that they share.

    Where a cluster shares it, `number` counts those of its blocks before this one, too.
    `within` counts the open loops that are walked in turns: what these reduce through
    shared memory ends with a barrier, so that slots are free for the next turn.
    """

    def __init__(self, nest: Nest, schedule: Schedule, b: Builder) -> None:
        self.b = b
        self.loops = len(schedule.cuts)
        self.within = 0
        self.groups: dict[int, Group] = {}
        self.number: dict[int, Operand] = {}
        self.lent: set[int] = set()  # loops that another's threads walk
        shared = [k for k, c in enumerate(schedule.cuts) if c.at(Place.THREAD) > 1]
        axes = [NAMES.index(cut.axes[-1]) for cut in schedule.cuts]
        shared.sort(key=lambda k: nearness(nest, axes[k]))
        distance = 1
        thread = b.thread() if shared else b.number(0)
        for loop in shared:
            count = schedule.cuts[loop].at(Place.THREAD)
            self.groups[loop] = Group(thread, count, distance, schedule.threads)
            own = b.at("div", thread, distance)
            distance *= count
            last = distance == schedule.threads
            self.number[loop] = own if last else b.at("rem", own, count)
        self.cuts = schedule.cuts
        inner = [loop for loop in shared if loop]
        if len(inner) == 1:
            self._lend(nest, inner[0])
        self.cluster: Cluster | None = None
        for loop in inner:
            if (blocks := self.cuts[loop].at(Place.CLUSTER)) > 1:
                exchanges = 2 * len([value for value in nest.values if value.over])
                self.cluster = Cluster(b, self.groups[loop], blocks, exchanges)
                before = b.at("multiply", self.cluster.rank, self.groups[loop].count)
                self.number[loop] = b.at("add", before, self.number[loop])

    def _lend(self, nest: Nest, loop: int) -> None:
        """Have a loop's threads walk the lines of axes of their own, before it is opened.

        All of them walk one line: the places of those around it are each thread's own.
        They cannot where they reduce together for each element of the line.
        """
        cuts = list(self.cuts)
        own = set(map(NAMES.index, cuts[loop].axes))
        reduced = [value.axes for value in nest.values if own & {*value.over}]
        lines = nest.lined - nest.alone.union(*reduced)
        for k, cut in enumerate(cuts):
            if NAMES.index(cut.axes[0]) in lines:
                self.groups[k], self.number[k] = self.groups[loop], self.number[loop]
                threads = self.groups[loop].count, Place.THREAD
                cuts[k] = Cut(cut.axes, (threads, *cut.factors[-1:]))
                self.lent.add(k)
        self.cuts = tuple(cuts)

    def first(self, loop: int) -> Operand | None:
        """Emit whether this is the first thread of a loop; None: there is one."""
        if loop not in self.number or loop in self.lent:
            return None
        return self.b.let("equal", self.number[loop], self.b.number(0))

    def places_behind(
        self, cut: Cut, at: Index, back: Operand
    ) -> tuple[list[Operand], list[Operand | None]]:
        """Emit a turn's vectors of a row that begins `back` behind a vector of memory.

        They are whole: the first of the row is none of them, see `places_about`.
        """
        begin = self.b.at("subtract", self._begin(cut), back)
        begin = self.b.at("add", self.b.at("add", begin, cut.at(Place.VECTOR)), at)
        starts = range(0, cut.size, self._width(cut))
        return [self.b.at("add", begin, k) for k in starts], [None] * len(starts)

    def places_about(
        self, cut: Cut, at: int, back: Operand, extent: int
    ) -> tuple[list[Operand], list[Operand | None]]:
        """Emit the last turn's: the first vector of the row, and those left from `at` on.

        Neither the first nor the last is whole.
        """
        b, lanes, width = self.b, cut.at(Place.VECTOR), self._width(cut)
        own = self._begin(cut)
        begin = b.at("subtract", own, back)
        places, masks = list[Operand](), list[Operand | None]()
        for start in range(0, extent - at + lanes - 1, width):
            place = b.at("add", begin, at + start)
            mask: Operand | None = None
            if start == 0:
                if at:
                    is_first = b.let("equal", own, b.number(0))
                    place = b.let("where", is_first, begin, place)
                before = b.mask_below(b.at("subtract", 0, place), lanes)
                mask = b.let("logical_not", before)
            if at + start + width > extent:
                rest = b.mask_below(b.at("subtract", extent, place), lanes)
                mask = b.both(mask, rest)
            places.append(place)
            masks.append(mask)
        return places, masks

    def _width(self, cut: Cut) -> int:
        return cut.beside * cut.at(Place.VECTOR)

    def _begin(self, cut: Cut) -> Operand:
        """Emit where a thread's first vector begins, of the last loop."""
        own = self.number.get(self.loops - 1, self.b.number(0))
        return self.b.at("multiply", own, cut.at(Place.VECTOR))

    def places(
        self, loop: int, cut: Cut, at: Index, left: int, positive: Operand
    ) -> tuple[list[Operand], list[Operand | None]]:
        """Emit where a thread's vectors begin of the `left` elements from `at` on.

        With each goes the mask of those of its lanes that exist, None: all.
        """
        b, lanes = self.b, cut.at(Place.VECTOR)
        width = cut.beside * lanes
        begin = b.number(at)
        if loop in self.number:
            begin = b.at("add", b.at("multiply", self.number[loop], lanes), begin)
        starts = range(0, min(left, cut.size), width)
        masks = [self._below(loop, left - k, width, lanes, positive) for k in starts]
        return [b.at("add", begin, k) for k in starts], masks

    def _below(
        self, loop: int, left: int, width: int, lanes: int, positive: Operand
    ) -> Operand | None:
        """Emit which lanes are among the first `left`, None: all of every thread."""
        b = self.b
        if left >= width:
            return None
        if loop not in self.number:
            live = b.at("minimum", positive, 1) if left == 1 else b.number(left)
            return b.mask_below(live, lanes)  # see `tile.tile_constant`
        own = self.number[loop]
        if left % lanes == 0:
            return b.splat(b.let("less", own, b.number(left // lanes)), lanes)
        begin = b.at("multiply", own, lanes)
        return b.mask_below(b.at("subtract", left, begin), lanes)

    def across(
        self, loops: Iterable[int], combines: Sequence[str], totals: Sequence[Operand]
    ) -> list[Operand]:
        """Emit the reductions of values over the threads of loops."""
        found = list(totals)
        for loop, group in self.groups.items():
            if loop not in loops:
                continue
            meets = group.parts > 1
            found = across_group(self.b, group, combines, found)
            if meets and self.within:
                self.b.effect("barrier")
            if self.cluster is not None and group is self.cluster.group:
                found = self.cluster.across(combines, found)
        return found

    def prefix(
        self, loop: int, combine: str, values: Sequence[Operand], neutral: float
    ) -> tuple[list[Operand], Operand]:
        """Emit the total before each value of a loop's threads, and that of all."""
        group = self.groups[loop]
        found = prefix_of_group(self.b, group, combine, values, neutral)
        if group.parts > 1 and self.within:
            self.b.effect("barrier")
        return found


def nearness(nest: Nest, axis: int) -> int:
    """Return the elements that neighbours along an axis are apart, the fewest.

    Of arrays along most axes: one value a row is next to nothing.
    """
    offsets = [v.offset for v in nest.values if isinstance(v.source, Input)]
    offsets += [output.offset for output in nest.outputs]
    most = max([len(each.axes) for each in offsets], default=0)
    steps = [each.step(axis) for each in offsets if len(each.axes) == most]
    return min([abs(step) for step in steps if step] or [FAR])
