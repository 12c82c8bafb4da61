"""A loop on any target's lanes: blocks computed ahead, turns, and single iterations.

It is blocks of iterations where something is computed ahead for them, turns of
`unroll` iterations and the rest one by one; all of them run exactly as often as the
loop says.
"""

from __future__ import annotations

from math import prod
from typing import TypeAlias

from steelyard_kernels.dtypes import HALVES, int64
from steelyard_kernels.expression.expr import Dot, Node, Result
from steelyard_kernels.expression.expr import Loop as ExprLoop
from steelyard_kernels.ir.builder import Index, Loop
from steelyard_kernels.ir.loops import Buffer, Const, Operand
from steelyard_kernels.nest.carried.emitter import Emitter
from steelyard_kernels.nest.carried.outline import Outline, outline
from steelyard_kernels.nest.carried.tensor import Memory, Tensor, Value, layout
from steelyard_kernels.schedule.carries import Knobs

_ROW = Tensor((1,), ())  # any row of a product's left side
State: TypeAlias = tuple[Operand, ...]


class LoopEmitter:
    """Emits one loop; its state is the carries and, behind a condition, a flag."""

    def __init__(
        self,
        emitter: Emitter,
        knobs: Knobs,
        loop: ExprLoop,
        stacks: dict[int, list[Memory]],
    ) -> None:
        self.w = emitter
        self.b = emitter.b
        self.lanes = emitter.lanes
        self.loop = loop
        self.stacks = stacks
        ahead = knobs.ahead > 1
        self.outline: Outline = outline(loop, stacks, ahead=ahead)
        self.shapes = [carry.shape for carry in loop.carries]
        inner = any(isinstance(node, Result) for node in loop.nodes)
        self.unroll = loop.unroll or (1 if inner else knobs.unroll)
        self.kept: list[tuple[Node, list[Operand | Buffer]]] = []
        self.base: Index = 0  # of the block, where values are fetched by turn

    def emit(self) -> list[Tensor]:
        """Emit it all and return the carries at its end."""
        w, b, loop = self.w, self.b, self.loop
        if isinstance(loop.length, int):
            stop: Operand = b.number(loop.length)
        else:
            stop = b.cast(w.tensor(loop.length).vectors[0], b.index.dtype)
        state = tuple([x for node in loop.inits for x in self._flat(w.tensor(node))])
        self._spill_free()
        if loop.condition is not None:
            goes = self._goes_on(state, b.number(0))
            state = (*state, goes)
            if not isinstance(goes, Const):
                some = self.lanes.any(goes)
                stop = b.let("where", some, stop, b.number(0))
        if self.outline.kept:
            state = self._blocks(stop, state)
        else:
            state = self._iterations(b.number(0), stop, state)
        return self._joined(state)

    def _spill_free(self) -> None:
        """Emit before all iterations what products walk of outer matrices in memory."""
        w, outer = self.w, {node.number for node in self.loop.free}
        for node in self.outline.each.nodes:
            if isinstance(node, Dot) and node.b.number in outer:
                matrix = w.tensor(node.b)
                if node.dtype not in HALVES and w.walks_memory(_ROW, matrix):
                    w.spilled(matrix, w.lanes.width)

    def _blocks(self, stop: Operand, state: State) -> State:
        """Emit blocks of `span` iterations, behind what is computed ahead for them."""
        b, span = self.b, self.lanes.span
        even = isinstance(stop, Const) and stop.value % span == 0
        free = self._free_elements()
        with b.loop(b.number(0), stop, span, *state) as block, self.w.scope():
            self._compute_ahead(free, block.var)
            left = b.at("subtract", stop, block.var)
            count = b.number(span) if even else b.at("minimum", left, span)
            self.base = block.var
            inner = self._iterations(b.number(0), count, block.carried)
            self._close(block, inner)
        self.base = 0
        return block.results

    def _free_elements(self) -> dict[int, Value]:
        """Return what is read ahead of outer values, element by element."""
        w, part = self.w, self.outline.ahead
        outer = {node.number: node for node in self.loop.free}
        found: dict[int, Value] = {}
        for number in {arg.number for node in part.nodes for arg in part.reads(node)}:
            if number in outer:
                value = w.tensor(outer[number])
                if not value.same:
                    elements, order = w.elements(value), layout(value.shape, 1)
                    vectors = tuple([elements[e] for (e,) in order])
                    value = Tensor(value.shape, vectors)
                found[number] = value
        return found

    def _compute_ahead(self, free: dict[int, Value], base: Operand) -> None:
        """Emit what a block's iterations need of no carry, all at once."""
        b = self.b
        side = self.w.beside(free)
        turns = self.lanes.turns(int64)
        start = side.spread(b.cast(base, int64), turns.type.lanes)
        index = b.let("add", turns, start)
        side.env[self.loop.index.number] = Tensor((), (index,), same=True)
        side.run(self.outline.ahead)
        self.kept = [
            (node, [self.lanes.keep(x) for x in side.tensor(node).vectors])
            for node in self.outline.kept
        ]

    def _fetch(self, at: Operand) -> None:
        """Emit, for one iteration, the reads of what was computed ahead."""
        w = self.w
        for node, kept in self.kept:
            scalars = [self.lanes.fetch(part, at) for part in kept]
            if len(scalars) == 1:
                w.env[node.number] = Tensor(node.shape, tuple(scalars), same=True)
                continue
            found = dict(zip(layout(node.shape, 1), scalars, strict=True))
            elements = [found[e,] for e in range(len(scalars))]
            w.env[node.number] = w.scattered(elements, node.shape)

    def _iterations(self, start: Operand, stop: Operand, state: State) -> State:
        """Emit the loop from `start` to `stop` by turns, then the rest one by one."""
        b, unroll = self.b, self.unroll
        if unroll == 1:
            return self._turns(start, stop, 1, state)
        turns = b.at("div", b.at("subtract", stop, start), unroll)
        middle = b.at("add", start, b.at("multiply", turns, unroll))
        state = self._turns(start, middle, unroll, state)
        if _none(middle, stop):
            return state
        if self.loop.condition is not None:
            stop = b.let("where", self.lanes.any(state[-1]), stop, middle)
        return self._turns(middle, stop, 1, state)

    def _turns(self, start: Operand, stop: Operand, count: int, state: State) -> State:
        """Emit a loop of `count` iterations a turn."""
        b = self.b
        if _none(start, stop):
            return state
        with b.loop(start, stop, count, *state) as turn, self.w.scope():
            inner: State = turn.carried
            for place in range(count):
                at = b.at("add", turn.var, place)
                inner = self._iteration(at, inner, surely=place == 0)
            self._close(turn, inner)
        return turn.results

    def _close(self, loop: Loop, state: State) -> None:
        """State what a loop carries on, and that it ends with its condition."""
        until = None
        if self.loop.condition is not None:
            until = self.b.let("logical_not", self.lanes.any(state[-1]))
        loop.yields(*state, until=until)

    def _iteration(self, at: Operand, state: State, *, surely: bool) -> State:
        """Emit one iteration; unless it `surely` runs a finished chain keeps all."""
        b = self.b
        index = b.at("add", self.base, at)
        nexts = self._next(index, at, state)
        if self.loop.condition is None:
            return nexts
        goes = self._goes_on(nexts, b.at("add", index, 1))
        if surely and not self.lanes.in_step:
            return (*nexts, goes)
        *carries, live = state
        chosen = [
            b.let("where", live, new, old)
            for new, old in zip(nexts, carries, strict=True)
        ]
        return (*chosen, b.let("bitwise_and", live, goes))

    def _bind(self, state: State, index: Operand) -> None:
        """Give the loop's parameters their values."""
        w, loop = self.w, self.loop
        for carry, value in zip(loop.carries, self._joined(state), strict=True):
            w.env[carry.number] = value
        number = self.b.cast(index, int64)
        w.env[loop.index.number] = Tensor((), (number,), same=True)

    def _goes_on(self, state: State, index: Operand) -> Operand:
        """Emit whether the iteration at `index` is to run."""
        assert self.loop.condition is not None
        self._bind(state, index)
        self.w.run(self.outline.condition)
        flag = self.w.tensor(self.loop.condition).vectors[0]
        return self.lanes.splat(flag) if self.lanes.in_step else flag

    def _next(self, index: Operand, at: Operand, state: State) -> State:
        """Emit an iteration's values and stores; returns its carries."""
        w, loop = self.w, self.loop
        self._bind(state, index)
        self._fetch(at)
        w.run(self.outline.each)
        for place, views in self.stacks.items():
            row = index
            if loop.reverse:
                assert isinstance(loop.length, int)
                row = self.b.at("subtract", self.b.number(loop.length - 1), index)
            value = w.tensor(loop.stacked[place - len(loop.nexts)])
            for view in views:
                w.store(view.row(self.b, row), value)
        return tuple([x for node in loop.nexts for x in self._flat(w.tensor(node))])

    def _flat(self, value: Tensor) -> State:
        """Return the operands that the loop carries of a value."""
        if prod(value.shape) == 1 and not self.lanes.in_step:
            return value.vectors
        count = 1 if prod(value.shape) == 1 else len(self.w.checked(value.shape))
        return tuple([self.lanes.splat(value.vector(k)) for k in range(count)])

    def _joined(self, state: State) -> list[Tensor]:
        """Return the values of what the loop carries."""
        found, first = [], 0
        for shape in self.shapes:
            last = first + len(layout(shape, self.lanes.width))
            found.append(Tensor(shape, state[first:last], prod(shape) == 1))
            first = last
        return found


def _none(start: Operand, stop: Operand) -> bool:
    """Say whether no iteration lies between two bounds that are known."""
    if isinstance(start, Const) and isinstance(stop, Const):
        return start.value >= stop.value
    return False
