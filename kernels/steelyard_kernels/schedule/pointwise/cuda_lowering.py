"""Lowering of any fused broadcast to what one thread of a GPU does.

A thread owns `unroll` vectors, a block's width apart, of the flattened outputs, and
loads all of them before it computes. Where an operand's elements lie comes from the
collapsed space, whose extents are constants; how many elements there are is a runtime
parameter. A block whose vectors all exist asks nothing further; the last block walks
its vectors one by one, then has a thread for each element that fills no vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from steelyard_kernels.expression.expr import Program, Scalar
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import Kernel, Operand, Var
from steelyard_kernels.schedule.gpu import (
    VECTOR_BYTES,
    extent_slot,
    index_type,
    most_registers,
)
from steelyard_kernels.schedule.parameters import Arguments, Lowered, arguments
from steelyard_kernels.schedule.pointwise.cuda import NOTHING, CudaPointwise, check
from steelyard_kernels.schedule.pointwise.levels import (
    ELEMENT,
    ONCE,
    ROW,
    Levels,
    levels,
)
from steelyard_kernels.schedule.pointwise.operands import fetched, smaller, stored
from steelyard_kernels.schedule.pointwise.schedule import check_program, space_of
from steelyard_kernels.schedule.space import Space
from steelyard_kernels.schedule.values import Env, operand, spread
from steelyard_kernels.schedule.values import lower as lower_node


def nothing(program: Program) -> Lowered:
    """Return the kernel of a program that has no element to compute."""
    args = arguments(program)
    kernel = Builder().kernel("kernel", args.order, threads=NOTHING.threads)
    return Lowered(kernel, args.slots, NOTHING.threads)


def lower(
    program: Program, schedule: CudaPointwise, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel; `aligned`: every array starts at 16 bytes."""
    check_program(program)
    space = space_of(program)
    check(program, schedule, space, aligned=aligned)
    args = arguments(program, VECTOR_BYTES if aligned else 0)
    kernel = _Emitter(program, schedule, args, space).kernel()
    slots = (*args.slots, extent_slot(index_type(program), prod(space.extents)))
    return Lowered(kernel, slots, schedule.threads, schedule.per_block)


class _Emitter:
    """Emits one program under one schedule."""

    def __init__(
        self, program: Program, schedule: CudaPointwise, args: Arguments, space: Space
    ) -> None:
        self.b = Builder(index_type(program))
        self.program = program
        self.schedule = schedule
        self.args = args
        self.space = space
        self.levels: Levels = levels(program, space)
        # by an output's place, the smaller ones' in the space
        first = len(space.strides) - len(smaller(program))
        self.small = {place: first + k for k, place in enumerate(smaller(program))}
        self.extent = Var("extent", self.b.index)

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the number of elements."""
        b, schedule = self.b, self.schedule
        env: Env = {}
        self._loads(env, ONCE, {}, 1)
        self._values(env, ONCE, 1)
        thread = b.thread()
        first = b.at("multiply", b.block(), schedule.per_block)
        at = b.at("add", first, b.at("multiply", thread, schedule.lanes))
        if schedule.unroll == 1:
            self._single(env, thread, first, at)
        else:
            self._several(env, thread, first, at)
        return b.kernel(
            "kernel",
            (*self.args.order, self.extent),
            threads=schedule.threads,
            registers=schedule.registers or most_registers(schedule.threads),
        )

    def _single(self, env: Env, thread: Operand, first: Operand, at: Operand) -> None:
        """Emit one vector a thread, where there is one."""
        b, schedule = self.b, self.schedule
        whole = self._whole()
        with b.branch(b.let("less", at, whole)):
            self._body(env, [at], schedule.lanes)
        if whole is not self.extent:
            behind = b.at("add", first, schedule.per_block)
            with b.branch(b.let("greater", behind, self.extent)):
                self._rest(env, thread, whole)

    def _several(self, env: Env, thread: Operand, first: Operand, at: Operand) -> None:
        """Emit a full block's vectors together, the last block's one by one."""
        b, schedule = self.b, self.schedule
        width = schedule.threads * schedule.lanes
        behind = b.at("add", first, schedule.per_block)
        with b.branch(b.let("less_equal", behind, self.extent)) as full:
            places = [b.at("add", at, width * u) for u in range(schedule.unroll)]
            self._body(env, places, schedule.lanes)
            full.otherwise()
            whole = self._whole()
            with b.loop(at, whole, width, unroll=1) as loop:
                self._body(env, [loop.var], schedule.lanes)
            if whole is not self.extent:
                self._rest(env, thread, whole)

    def _whole(self) -> Operand:
        """Emit how many elements fill vectors: all in rows, which vectors divide."""
        lanes = self.schedule.lanes
        if lanes == 1 or len(self.space.extents) > 1:
            return self.extent
        return self.b.at("multiply", self.b.at("div", self.extent, lanes), lanes)

    def _rest(self, env: Env, thread: Operand, whole: Operand) -> None:
        """Emit the last block's elements that fill no vector, one a thread."""
        at = self.b.at("add", whole, thread)
        with self.b.branch(self.b.let("less", at, self.extent)):
            self._body(env, [at], 1)

    def _body(self, once: Env, places: Sequence[Operand], lanes: int) -> None:
        """Emit the vectors that begin at these elements: load all, then finish each."""
        b, wanted = self.b, self.levels.wanted
        single = dict(once)
        once = dict(once)
        spread(b, once, [number for number in once if number in wanted], lanes)
        envs = []
        for at in places:
            env = dict(once)
            starts = self._starts(at)
            self._loads(env, ROW, starts, 1)
            self._loads(env, ELEMENT, starts, lanes)
            envs.append((env, starts))
        rows = [n.number for n in self.levels.at[ROW] if n.number in wanted]
        for at, (env, starts) in zip(places, envs, strict=True):
            self._values(env, ROW, 1)
            self._store_small(env | single, starts, at, 0)
            spread(b, env, rows, lanes)
            self._values(env, ELEMENT, lanes)
            self._store(env, at, lanes)
            self._store_small(env, starts, at, lanes)

    def _store_small(
        self, env: Env, starts: Mapping[int, Operand], at: Operand, lanes: int
    ) -> None:
        """Emit the stores of smaller outputs, each by the first thread that has it.

        `lanes` 0: of those that do not differ along a row.
        """
        b, dense = self.b, _dense(self.space)
        for place, walk in self.small.items():
            strides = self.space.strides[walk]
            if bool(strides[-1]) != bool(lanes):
                continue
            output, buffer = self.program.outputs[place], self.args.outputs[place]
            value = operand(b, env, stored(output), lanes or 1)
            axes = _axes(strides)
            first: Operand | int = 0
            for axis, position in self._positions(at, set(axes)).items():
                first = b.at("add", b.at("multiply", position, dense[axis]), first)
            mask = b.splat(b.let("equal", at, b.at("add", first, 0)), lanes or 1)
            aligned = _alignment(lanes, output.value.dtype.bytes)
            b.store(buffer, starts[walk], value, mask, alignment=aligned)

    def _starts(self, at: Operand) -> dict[int, Operand]:
        """Emit, by an operand's place in the space, where it has this element."""
        b, space = self.b, self.space
        starts: dict[tuple[int, ...], Operand] = {_dense(space): at}
        walks = set(space.strides) - set(starts)
        positions = self._positions(
            at, {axis for walk in walks for axis in _axes(walk)}
        )
        for walk in space.strides:
            if walk not in starts:
                total: Operand | int = 0
                for axis in _axes(walk):
                    step = b.at("multiply", positions[axis], walk[axis])
                    total = b.at("add", step, total)
                starts[walk] = b.at("add", total, 0)
        return {place: starts[walk] for place, walk in enumerate(space.strides)}

    def _positions(self, at: Operand, axes: set[int]) -> dict[int, Operand]:
        """Emit an element's position along these axes, the innermost first."""
        b, extents = self.b, self.space.extents
        positions: dict[int, Operand] = {}
        inner = 1
        for axis in range(len(extents) - 1, -1, -1):
            if axis in axes:
                at, inner = b.at("div", at, inner), 1
                positions[axis] = b.at("rem", at, extents[axis]) if axis else at
            inner *= extents[axis]
        return positions

    def _loads(
        self, env: Env, level: int, starts: dict[int, Operand], lanes: int
    ) -> None:
        """Emit the loads of a level."""
        for node in self.levels.at[level]:
            if node.number in self.levels.operands:
                at = starts.get(self.levels.operands[node.number], 0)
                aligned = _alignment(lanes, node.dtype.bytes)
                env[node.number] = fetched(
                    self.b, self.args, node, at, lanes, alignment=aligned
                )

    def _values(self, env: Env, level: int, lanes: int) -> None:
        """Emit what a level computes."""
        for node in self.levels.at[level]:
            if isinstance(node, Scalar):
                env[node.number] = self.args.scalars[node.name]
            elif node.number not in self.levels.operands:
                fused = self.levels.fused
                env[node.number] = lower_node(
                    self.b, env, node, lanes, fused, target="cuda"
                )

    def _store(self, env: Env, at: Operand, lanes: int) -> None:
        streaming = self.schedule.streaming and lanes > 1
        pairs = zip(self.program.outputs, self.args.outputs, strict=True)
        for place, (output, buffer) in enumerate(pairs):
            if place in self.small:
                continue
            value = operand(self.b, env, stored(output), lanes)
            aligned = _alignment(lanes, output.value.dtype.bytes)
            self.b.store(buffer, at, value, streaming=streaming, alignment=aligned)


def _dense(space: Space) -> tuple[int, ...]:
    """Return the strides of the outputs, whose elements are in the space's order."""
    return tuple(prod(space.extents[axis + 1 :]) for axis in range(len(space.extents)))


def _axes(walk: Sequence[int]) -> list[int]:
    return [axis for axis, stride in enumerate(walk) if stride]


def _alignment(lanes: int, element_bytes: int) -> int:
    """Return what a vector's address is a multiple of; 0 for a single element."""
    return min(VECTOR_BYTES, lanes * element_bytes) if lanes > 1 else 0
