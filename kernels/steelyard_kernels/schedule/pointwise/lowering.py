"""Lowering of any fused broadcast to one pass over its outputs.

The space is collapsed; the innermost axis is walked by vectors (unrolled, then
single, then one masked tail), the others as rows. Extents of a collapsed space with
one axis are a runtime parameter, and so is the number of rows otherwise: one binary
serves every size that differs only there.
"""

from __future__ import annotations

from collections.abc import Mapping

from steelyard_kernels.expression.expr import Input, Node, Program, Scalar
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Kernel, Operand, Var
from steelyard_kernels.schedule.model import LINE
from steelyard_kernels.schedule.parameters import (
    Arguments,
    Lowered,
    arguments,
    extent_slot,
)
from steelyard_kernels.schedule.pointwise.levels import ELEMENT, ONCE, ROW, levels
from steelyard_kernels.schedule.pointwise.operands import (
    fetched,
    smaller,
    source,
    stored,
)
from steelyard_kernels.schedule.pointwise.schedule import (
    Pointwise,
    check_program,
    check_streaming,
    space_of,
    store_alignment,
)
from steelyard_kernels.schedule.space import Space, offset, rows
from steelyard_kernels.schedule.tile import Body, Carried, tile_constant, tile_runtime
from steelyard_kernels.schedule.values import Env, operand, spread
from steelyard_kernels.schedule.values import lower as lower_node


def nothing(program: Program) -> Lowered:
    """Return the kernel of a program that has no element to compute."""
    args = arguments(program)
    return Lowered(Builder().kernel("kernel", args.order), args.slots, 1)


def lower(program: Program, schedule: Pointwise, *, aligned: bool = True) -> Lowered:
    """Return the loop-level kernel; `aligned`: every output starts on a cache line."""
    check_program(program)
    args = arguments(program, LINE if aligned else 0)
    space = space_of(program)
    check_streaming(program, schedule, space, aligned=aligned)
    emitter = _Emitter(program, schedule, args, space)
    extent = space.extents[0] if len(space.extents) == 1 else rows(space)
    kernel = emitter.kernel()
    slots = (*args.slots, extent_slot(extent))
    return Lowered(kernel, slots, schedule.threads)


class _Emitter:
    """Emits one program under one schedule."""

    def __init__(
        self, program: Program, schedule: Pointwise, args: Arguments, space: Space
    ) -> None:
        self.b = Builder()
        self.program = program
        self.schedule = schedule
        self.args = args
        self.space = space
        self.levels = levels(program, space)
        # by an output's place, the smaller ones' in the space
        first = len(space.strides) - len(smaller(program))
        self.small = {place: first + k for k, place in enumerate(smaller(program))}
        self.alignment = store_alignment(program, schedule.lanes, space)
        self.extent = Var("extent" if len(space.extents) == 1 else "rows", INDEX)

    def kernel(self) -> Kernel:
        """Emit the whole kernel; its last parameter is the runtime extent."""
        b, schedule = self.b, self.schedule
        flat = len(self.space.extents) == 1
        extent = self.extent
        env: Env = {}
        single: Env = {}
        self._scalars(env, single, ONCE, {})
        step = schedule.lanes * schedule.unroll
        if flat:
            chunk = -(-schedule.chunk // step) * step
            with b.parallel(extent, chunk, schedule.threads) as (low, high):
                starts = dict.fromkeys(range(len(self.space.strides)), 0)
                body = self._body(env, starts, 0)
                tile_runtime(b, low, high, (schedule.lanes, schedule.unroll), body)
        else:
            chunk = max(1, schedule.chunk // self.space.extents[-1])
            with (
                b.parallel(extent, chunk, schedule.threads) as (low, high),
                b.loop(low, high, 1) as row,
            ):
                self._row(dict(env), single, row.var)
        if schedule.streaming:
            b.fence()
        return b.kernel("kernel", (*self.args.order, extent))

    def _row(self, env: Env, single: Env, row: Operand) -> None:
        """Emit one row: where each operand's row starts, then the row's elements."""
        b, schedule, space = self.b, self.schedule, self.space
        starts: dict[int, Operand | int] = {
            place: offset(b, space.extents[:-1], strides[:-1], row)
            for place, strides in enumerate(space.strides)
        }
        out = b.at("multiply", row, space.extents[-1])
        self._scalars(env, dict(single), ROW, starts)
        step = schedule.lanes, schedule.unroll
        body = self._body(env, starts, out)
        tile_constant(b, space.extents[-1], step, body, (), positive=self.extent)

    def _scalars(
        self, env: Env, single: Env, level: int, starts: dict[int, Operand | int]
    ) -> None:
        """Emit what is computed less often than for every element, then spread it.

        `single` has the values before: rows compute with what is spread for elements.
        """
        b = self.b
        for node in self.levels.at[level]:
            if node.number in self.levels.operands:
                at = starts.get(self.levels.operands[node.number], 0)
                single[node.number] = fetched(b, self.args, node, at, 1)
            elif isinstance(node, Scalar):
                single[node.number] = self.args.scalars[node.name]
            else:
                single[node.number] = lower_node(b, single, node, 1, self.levels.fused)
            env[node.number] = single[node.number]
        for place, walk in self.small.items():
            output = self.program.outputs[place]
            walks = self.space.strides[walk]
            if not walks[-1] and level == (ROW if any(walks) else ONCE):
                value = operand(b, single, stored(output), 1)
                b.store(self.args.outputs[place], starts.get(walk, 0), value)
        wanted = self.levels.wanted
        ready = [node.number for node in self.levels.at[level] if node.number in wanted]
        spread(b, env, ready, self.schedule.lanes)

    def _body(
        self, env: Env, starts: Mapping[int, Operand | int], out: Operand | int
    ) -> Body:
        """Return what emits the elements from `at` on, stores last."""
        b, lanes = self.b, self.schedule.lanes

        def body(
            at: Operand, vectors: int, mask: Operand | None, _: Carried
        ) -> Carried:
            places = [b.at("add", at, lanes * u) for u in range(vectors)]
            done = [self._elements(env, starts, place, mask) for place in places]
            for place, values in zip(places, done, strict=True):
                self._store(values, starts, b.at("add", out, place), place, mask)
            return ()

        return body

    def _elements(
        self,
        env: Env,
        starts: Mapping[int, Operand | int],
        at: Operand,
        mask: Operand | None,
    ) -> Env:
        """Emit one vector of every element-level node."""
        b, lanes = self.b, self.schedule.lanes
        env = dict(env)
        for node in self.levels.at[ELEMENT]:
            if node.number in self.levels.operands:
                place = b.at("add", starts[self.levels.operands[node.number]], at)
                self._prefetch(node, place, mask)
                env[node.number] = fetched(b, self.args, node, place, lanes, mask)
            else:
                env[node.number] = lower_node(b, env, node, lanes, self.levels.fused)
        return env

    def _prefetch(self, node: Node, at: Operand, mask: Operand | None) -> None:
        of = source(node)
        if self.schedule.prefetch and mask is None and isinstance(of, Input):
            ahead = self.schedule.prefetch // node.dtype.bytes
            buffer = self.args.inputs[of.index]
            self.b.prefetch(buffer, self.b.at("add", at, ahead))

    def _store(
        self,
        env: Env,
        starts: Mapping[int, Operand | int],
        full: Operand,
        place: Operand,
        mask: Operand | None,
    ) -> None:
        b, schedule = self.b, self.schedule
        pairs = zip(self.program.outputs, self.args.outputs, strict=True)
        for number, (output, buffer) in enumerate(pairs):
            walk = self.small.get(number)
            if walk is not None and not self.space.strides[walk][-1]:
                continue  # with its row
            at = full if walk is None else b.at("add", starts[walk], place)
            value = operand(b, env, stored(output), schedule.lanes)
            streams = schedule.streaming and mask is None
            alignment = self.alignment if streams else 0
            b.store(buffer, at, value, mask, streaming=streams, alignment=alignment)
