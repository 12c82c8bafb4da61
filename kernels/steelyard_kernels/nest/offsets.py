"""Open loops, and where in an array their places are."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from math import prod
from typing import TypeAlias

from msgspec import Struct

from steelyard_kernels.expression.indices import Index as Offset
from steelyard_kernels.expression.indices import Part
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.axes import Guard, Nest, Value
from steelyard_kernels.schedule.schedule import Cut

# Which of its places each loop is at, in the schedule's order; 0 of closed ones.
At: TypeAlias = tuple[int, ...]


class Open(Struct, frozen=True):
    """The places of an open loop, each the index of its first lane.

    `masks` say which lanes of each exist, None: all; of places that `live` is false of,
    which repeat another's, nothing is stored.
    """

    places: Sequence[Operand]
    lanes: int
    masks: Sequence[Operand | None]
    live: Sequence[Operand | None]


class Loops:
    """The loops of a nest's cuts: which are open, and what is known inside of them.

    `known` has, for each loop that is open and once before, what was emitted there.
    """

    def __init__(self, nest: Nest, cuts: Sequence[Cut], b: Builder) -> None:
        self.nest = nest
        self.b = b
        self.axes = [tuple(map(nest.axes.index, cut.axes)) for cut in cuts]
        self.open: dict[int, Open] = {}  # in the order of opening
        self.known: list[dict[object, Operand]] = [{}]
        self._loop = {axis: k for k, axes in enumerate(self.axes) for axis in axes}
        self._walked: dict[Offset, tuple[int, ...]] = {}
        self.loops = [self.loops_of(value.axes) for value in nest.values]

    def loops_of(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Return the loops of some axes."""
        return tuple(sorted({self._loop[axis] for axis in axes}))

    def walks(self, offset: Offset) -> tuple[int, ...]:
        """Return the loops that an offset varies with."""
        found = self._walked.get(offset)
        if found is None:
            found = self._walked[offset] = self.loops_of(offset.axes)
        return found

    @contextmanager
    def opened(
        self,
        loop: int,
        places: Sequence[Operand],
        lanes: int,
        masks: Sequence[Operand | None] = (),
        live: Sequence[Operand | None] = (),
    ) -> Iterator[None]:
        """Open a loop at some of its places, of which each is a vector.

        Of the loops that are open, offsets add up the outer ones' first.
        """
        every = (None,) * len(places)
        self.open[loop] = Open(places, lanes, masks or every, live or every)
        if loop == 0:
            self.open = dict(sorted(self.open.items()))
        self.known.append({})
        yield
        self.known.pop()
        del self.open[loop]

    @contextmanager
    def together(
        self, places: Mapping[int, tuple[Sequence[Operand], int]]
    ) -> Iterator[None]:
        """Open several loops, each at some of its places and in so many lanes."""
        with ExitStack() as opened:
            for loop in sorted(places):
                opened.enter_context(self.opened(loop, *places[loop]))
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Forget behind it what was emitted in it."""
        self.known.append({})
        yield
        self.known.pop()

    def every(self) -> list[At]:
        """Return the combinations of places of the open loops."""
        counts = [
            len(self.open[k].places) if k in self.open else 1
            for k in range(len(self.axes))
        ]
        return list(product(*map(range, counts)))

    def found(self, key: object) -> Operand | None:
        """Return what is known here by a key."""
        for known in reversed(self.known):
            if key in known:
                return known[key]
        return None

    def offset(self, offset: Offset, at: At) -> Index:
        """Emit where an array is walked by now, by the open loops from without."""
        walked = self.walks(offset)
        return self._offset(offset, at, [k for k in self.open if k in walked])

    def _offset(self, offset: Offset, at: At, loops: list[int]) -> Index:
        if not loops:
            return offset.constant
        loop, walked = loops[-1], self.axes[loops[-1]]
        key = (offset, *[(k, at[k]) for k in loops])
        found = self.found(key)
        if found is None:
            b = self.b
            outer = self._offset(offset, at, loops[:-1])
            terms = dict(offset.terms)
            walk = tuple([terms.get(axis, 0) for axis in walked])
            found = b.number(b.at("add", outer, self.along(loop, at, walk)))
            ready = {axis for k in loops for axis in self.axes[k]}
            for term, step in offset.terms:
                if isinstance(term, Part):
                    axes = term.index.axes
                    if axes <= ready and axes.intersection(walked):
                        part = b.at("multiply", self._part(term, at), step)
                        found = b.at("add", found, part)
            self.known[-1][key] = found
        return found

    def _part(self, part: Part, at: At) -> Operand:
        """Emit a part of an index, rounding down: the index is made positive first."""
        b = self.b
        found = b.number(self.offset(part.index, at))
        low, _ = part.index.bounds(self.nest.extents)
        unit = part.divisor * (part.modulus or 1)
        below = -(low // unit) if low < 0 else 0
        found = b.at("add", found, below * unit)
        found = b.at("div", found, part.divisor)
        if part.modulus:
            return b.at("rem", found, part.modulus)
        return b.at("add", found, -below)

    def along(self, loop: int, at: At, walk: Sequence[int]) -> Index:
        """Emit how far a walk along a loop's axes is at one of its places."""
        b, place = self.b, self.open[loop].places[at[loop]]
        if not any(walk):
            return 0
        dense = self.dense(self.axes[loop])
        if list(walk) == [walk[-1] * step for step in dense]:
            return b.at("multiply", place, walk[-1])
        total: Index = 0
        for k, step in reversed(list(enumerate(walk))):
            if step:
                position = self._position(loop, k, dense[k], at)
                total = b.at("add", b.at("multiply", position, step), total)
        return total

    def dense(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of a row-major array of some axes."""
        extents = [self.nest.extents[axis] for axis in axes]
        return tuple([prod(extents[k + 1 :]) for k in range(len(extents))])

    def know_positions(self, loop: int, positions: Sequence[Operand]) -> None:
        """Remember the indices along the axes of an open loop at its only place."""
        for k, position in enumerate(positions):
            self.known[-1]["position", loop, k, 0] = position

    def _position(self, loop: int, k: int, inner: int, at: At) -> Operand:
        """Emit the index along an axis of a loop, inside of which are so many."""
        key = ("position", loop, k, at[loop])
        found = self.found(key)
        if found is None:
            b = self.b
            found = b.at("div", self.open[loop].places[at[loop]], inner)
            if k:
                found = b.at("rem", found, self.nest.extents[self.axes[loop][k]])
            self.known[-1][key] = found
        return found

    def lanes(self, axes: Container[int]) -> int:
        """Return the lanes of what varies with axes: 1, or those of the open vectors."""
        for loop, opened in self.open.items():
            if opened.lanes > 1 and self.axes[loop][-1] in axes:
                return opened.lanes
        return 1

    def mask(self, loops: Iterable[int], at: At) -> Operand | None:
        """Emit which lanes exist of the places of some open loops; None: all."""
        found: Operand | None = None
        for loop in loops:
            found = self.b.both(found, self.open[loop].masks[at[loop]])
        return found

    def is_first(self, stored: frozenset[int], at: At) -> Operand:
        """Emit whether the first loop is at the first place of those along some axes."""
        b, axes = self.b, self.axes[0]
        own = tuple(
            [n * (k in stored) for n, k in zip(self.dense(axes), axes, strict=True)]
        )
        first = b.number(self.along(0, at, own))
        return b.let("equal", self.open[0].places[at[0]], first)

    def is_ready(self, value: Value) -> bool:
        """Say whether the loops are open that a value varies with."""
        return all(loop in self.open for loop in self.loops[value.number])

    def guard(self, guards: Sequence[Guard], at: At, lanes: int) -> Operand:
        """Emit which of so many lanes lie inside of their array."""
        b = self.b
        found: Operand | None = None
        for index, extent in guards:
            low, high = index.bounds(self.nest.extents)
            place = b.number(self.offset(index, at))
            if lanes > 1 and self.lanes(index.axes) > 1:  # one step a lane
                if low < 0:
                    before = b.mask_below(b.at("subtract", 0, place), lanes)
                    found = b.both(found, b.let("logical_not", before))
                if high >= extent:
                    rest = b.at("subtract", extent, place)
                    found = b.both(found, b.mask_below(rest, lanes))
                continue
            checks = [("greater_equal", 0)] * (low < 0)
            checks += [("less", extent)] * (high >= extent)
            for op, limit in checks:
                found = b.both(found, b.let(op, place, b.number(limit)))
        assert found is not None
        return b.splat(found, lanes)
