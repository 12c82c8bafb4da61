"""Emits the values of a nest: each in the innermost loop that it varies with.

What no inner loop changes is emitted before that is opened: values, where in an array a
loop begins, and single values in all lanes. An open loop has one or more places at a
time, each a vector or a single index; a value is emitted once for each combination of
places of the loops that it varies with.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

from steelyard_kernels.expression.expr import Arange, Input, Scalar
from steelyard_kernels.ir.builder import Builder, Index
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.nest.axes import Nest, Stored, Strides, Value
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.values import fusions
from steelyard_kernels.schedule.values import lower as lower_node

if TYPE_CHECKING:
    from steelyard_kernels.schedule.parameters import Arguments

# Which of its places each open loop is at, outermost first.
At: TypeAlias = tuple[int, ...]

VECTOR_BYTES: Final = 16  # the widest load and store of a GPU's thread


@dataclass(frozen=True, slots=True)
class Open:
    """The places of an open loop, each the index of its first lane."""

    places: Sequence[Operand]
    lanes: int
    mask: Operand | None


class Emitter:
    """Emits one nest under one schedule.

    `alignment` is what the address of every streaming store is a multiple of; on a GPU
    that of any vector follows from its width.
    """

    def __init__(
        self,
        nest: Nest,
        schedule: Schedule,
        args: Arguments,
        b: Builder,
        *,
        target: str,
        alignment: int = 0,
    ) -> None:
        self.nest = nest
        self.schedule = schedule
        self.args = args
        self.b = b
        self.target = target
        self.alignment = alignment
        # A CPU's loops are opened one in the other; of a GPU's threads all are open.
        self._hoists = target == "cpu"
        self.open: list[Open] = []
        self.known: list[dict[object, Operand]] = [{}]
        self.axes = [tuple(map(nest.axes.index, cut.axes)) for cut in schedule.cuts]
        self._loop = {axis: k for k, axes in enumerate(self.axes) for axis in axes}
        self._vectors = [cut.at(Place.VECTOR) > 1 for cut in schedule.cuts]
        level = {value.node.number: value.axes for value in nest.values}
        stored = {output.value.node.number for output in nest.outputs}
        self._walked: dict[Strides, At] = {}
        self.fused = fusions(nest.program.nodes, level, stored)
        gone = {fusion.product for fusion in self.fused.values()}
        self.levels: list[list[Value]] = [[] for _ in range(len(self.axes) + 1)]
        self.loops: list[At] = []
        for value in nest.values:
            self.loops.append(self._varies(value.axes))
            if value.node.number not in gone:
                self.levels[_depth(self.loops[-1])].append(value)
        self._stores: list[list[int]] = [[] for _ in self.levels]
        for place, output in enumerate(nest.outputs):
            depth = _depth(self._walks(output.strides))
            self._stores[depth if self._hoists else -1].append(place)

    def _varies(self, axes: Iterable[int]) -> At:
        return tuple(sorted({self._loop[axis] for axis in axes}))

    def _walks(self, strides: Strides) -> At:
        """Return the loops that walk an array."""
        found = self._walked.get(strides)
        if found is None:
            found = self._varies([axis for axis, step in enumerate(strides) if step])
            self._walked[strides] = found
        return found

    # loops

    @contextmanager
    def opened(
        self, places: Sequence[Operand], lanes: int, mask: Operand | None = None
    ) -> Iterator[None]:
        """Open the next loop at some of its places, of which each is a vector."""
        self.open.append(Open(places, lanes, mask))
        self.known.append({})
        yield
        self.known.pop()
        self.open.pop()

    def level(self) -> None:
        """Emit the values and stores for which the open loops suffice."""
        depth = len(self.open)
        values = self.levels[depth]
        every = list(product(*[range(len(loop.places)) for loop in self.open]))
        if self._hoists and depth < len(self.axes):
            self._begin(every)
        if self.target == "cpu":
            for at in every:
                self._emit(values, at)
            for at in every:
                self._store(depth, at)
        else:  # all loads in flight before the first is waited for
            for at in every:
                self._emit([value for value in values if value.source], at)
            for at in every:
                self._emit(values, at)
                self._store(depth, at)
        if self._hoists and depth < len(self.axes):
            self._spread(values, every)

    def _begin(self, every: Iterable[At]) -> None:
        """Emit where the arrays begin that both open and closed loops walk."""
        depth = len(self.open)
        arrays = [value.strides for value in self.nest.values if value.source]
        for strides in dict.fromkeys(
            [*arrays, *[o.strides for o in self.nest.outputs]]
        ):
            walked = self._walks(strides)
            if walked and walked[0] < depth <= walked[-1]:
                for at in every:
                    self.offset(strides, at)

    def _spread(self, values: Iterable[Value], every: Iterable[At]) -> None:
        """Emit in all lanes what vectors of closed loops read."""
        depth = len(self.open)
        if True not in self._vectors[depth:]:
            return
        loop = self._vectors.index(True)
        axis, lanes = self.axes[loop][-1], self.schedule.cuts[loop].at(Place.VECTOR)
        inner = [v for level in self.levels[depth + 1 :] for v in level]
        wanted = {
            arg.number
            for v in inner
            if axis in v.axes
            for arg in self.reads(v).values()
        }
        wanted |= {o.value.number for o in self.nest.outputs if o.strides[axis]}
        for value in values:
            if value.number in wanted:
                for at in every:
                    self.at(value, at, lanes)

    # values

    def reads(self, value: Value) -> Mapping[int, Value]:
        """Return what a value is made of, by operands' numbers.

        Of a product that it takes up, these are the factors.
        """
        fusion = self.fused.get(value.node.number)
        if fusion is None:
            return value.args
        taken, (a, b, c) = value.args[fusion.product], (fusion.a, fusion.b, fusion.c)
        return {
            a.number: taken.args[a.number],
            b.number: taken.args[b.number],
            c.number: value.args[c.number],
        }

    def _emit(self, values: Iterable[Value], at: At) -> None:
        known = self.known[-1]
        for value in values:
            key = self._key(value, at)
            if key not in known:
                known[key] = self._value(value, at)

    def _key(self, value: Value, at: At) -> tuple[int, ...]:
        return value.number, *[at[loop] for loop in self.loops[value.number]]

    def _found(self, key: object) -> Operand | None:
        for known in reversed(self.known):
            if key in known:
                return known[key]
        return None

    def at(self, value: Value, at: At, lanes: int) -> Operand:
        """Return a value at one place of the open loops, in so many lanes."""
        key = self._key(value, at)
        found = self._found(key)
        assert found is not None, value.node
        if found.type.lanes == lanes:
            return found
        spread = self._found((lanes, key))
        if spread is None:
            spread = self.known[-1][lanes, key] = self.b.splat(found, lanes)
        return spread

    def lanes(self, axes: Container[int]) -> int:
        """Return the lanes of what varies with axes: 1, or those of the open vectors."""
        for loop, opened in zip(self.axes, self.open, strict=False):
            if opened.lanes > 1 and loop[-1] in axes:
                return opened.lanes
        return 1

    def _value(self, value: Value, at: At) -> Operand:
        node, lanes = value.node, self.lanes(value.axes)
        if value.source is not None:
            return self._load(value, value.source, at, lanes)
        if isinstance(node, Scalar):
            return self.args.scalars[node.name]
        env = {n: self.at(arg, at, lanes) for n, arg in self.reads(value).items()}
        return lower_node(self.b, env, node, lanes, self.fused, target=self.target)

    # memory

    def _load(self, value: Value, of: Input | Arange, at: At, lanes: int) -> Operand:
        """Emit the elements of an array, or of 0, 1, 2, ..."""
        b, dtype = self.b, value.node.dtype
        start = b.number(self.offset(value.strides, at))
        if isinstance(of, Arange):
            first = b.cast(start, dtype)
            if lanes == 1:
                return first
            return b.let("add", b.splat(first, lanes), b.iota(lanes, dtype))
        buffer, mask = self.args.inputs[of.index], self._mask(self.loops[value.number])
        if self.schedule.prefetch and mask is None and lanes > 1:
            b.prefetch(
                buffer, b.at("add", start, self.schedule.prefetch // dtype.bytes)
            )
        return b.load(buffer, start, lanes, mask, self._aligned(dtype.bytes, lanes))

    def _store(self, depth: int, at: At) -> None:
        """Emit the stores for which so many open loops suffice."""
        for place in self._stores[depth]:
            output, buffer = self.nest.outputs[place], self.args.outputs[place]
            lanes = self.lanes([axis for axis, by in enumerate(output.strides) if by])
            value = self.at(output.value, at, lanes)
            start = self.offset(output.strides, at)
            if self.target == "cpu":
                mask = self._mask(self._walks(output.strides))
                wide, alignment = True, self.alignment
            else:
                mask = self._first(output, at, lanes)
                wide, alignment = lanes > 1, self._aligned(buffer.dtype.bytes, lanes)
            streams = self.schedule.streaming and wide and mask is None
            if self.target == "cpu" and not streams:
                alignment = 0
            self.b.store(
                buffer, start, value, mask, streaming=streams, alignment=alignment
            )

    def _mask(self, loops: At) -> Operand | None:
        """Return the mask of the open loop, of some, that has one."""
        for loop in loops:
            if self.open[loop].mask is not None:
                return self.open[loop].mask
        return None

    def _first(self, output: Stored, at: At, lanes: int) -> Operand | None:
        """Emit whether this thread is the first that has an output's element."""
        b, mask = self.b, None
        for loop, axes in enumerate(self.axes[: len(self.open)]):
            own = [axis for axis in axes if output.strides[axis]]
            if len(own) == len(axes):
                continue
            place = self.open[loop].places[at[loop]]
            inner = self._dense(axes)
            walk = tuple(
                [
                    step if axis in own else 0
                    for axis, step in zip(axes, inner, strict=True)
                ]
            )
            first = b.number(self._along(loop, at, walk))
            same = b.splat(b.let("equal", place, first), lanes)
            mask = same if mask is None else b.let("bitwise_and", mask, same)
        return mask

    def _aligned(self, element: int, lanes: int) -> int:
        """Return what a vector's address is a multiple of; 0: of one element."""
        if self.target == "cpu" or lanes == 1:
            return 0
        return min(VECTOR_BYTES, lanes * element)

    def offset(self, strides: Strides, at: At, within: int | None = None) -> Index:
        """Emit where an array is walked by now, by the open loops from without."""
        loops = [k for k in self._walks(strides) if within is None or k < within]
        if not loops or loops[0] >= len(self.open):
            return 0
        loop = max([k for k in loops if k < len(self.open)])
        key = (strides, *[at[k] for k in loops if k <= loop])
        found = self._found(key)
        if found is None:
            outer = self.offset(strides, at, loop)
            walk = tuple([strides[axis] for axis in self.axes[loop]])
            found = self.b.number(self.b.at("add", outer, self._along(loop, at, walk)))
            self.known[-1][key] = found
        return found

    def _along(self, loop: int, at: At, walk: Strides) -> Index:
        """Emit how far a walk along a loop's axes is at one of its places."""
        b, place = self.b, self.open[loop].places[at[loop]]
        dense = self._dense(self.axes[loop])
        if walk == tuple([walk[-1] * step for step in dense]):
            return b.at("multiply", place, walk[-1])
        total: Index = 0
        for k, step in reversed(list(enumerate(walk))):
            if step:
                position = self._position(loop, k, dense[k], at)
                total = b.at("add", b.at("multiply", position, step), total)
        return total

    def _dense(self, axes: Sequence[int]) -> Strides:
        """Return the strides of a row-major array of some axes."""
        extents = [self.nest.extents[axis] for axis in axes]
        return tuple([prod(extents[k + 1 :]) for k in range(len(extents))])

    def _position(self, loop: int, k: int, inner: int, at: At) -> Operand:
        """Emit the index along an axis of a loop, inside of which are so many."""
        key = ("position", loop, k, at[loop])
        found = self._found(key)
        if found is None:
            b = self.b
            found = b.at("div", self.open[loop].places[at[loop]], inner)
            if k:
                found = b.at("rem", found, self.nest.extents[self.axes[loop][k]])
            self.known[-1][key] = found
        return found


def _depth(loops: At) -> int:
    """Return how many loops must be open for what varies with these."""
    return loops[-1] + 1 if loops else 0
