"""A chain with its memory and its loops, on any target's lanes.

walker = Walker(program, arguments, lanes, Turns(unroll=2, ahead=True), "cpu")
walker.once()                 -- what all chains have in common
walker.chain(number)          -- one chain: its nodes, then its outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from steelyard_kernels.expression.expr import (
    Chain,
    Chains,
    Input,
    Node,
    Program,
    Result,
    Scalar,
    operands,
)
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.schedule.parameters import Arguments
from steelyard_kernels.schedule.scan.chain_lanes import ChainLanes
from steelyard_kernels.schedule.scan.emitter import Emitter
from steelyard_kernels.schedule.scan.lanes import Lanes
from steelyard_kernels.schedule.scan.looping import LoopEmitter, Turns
from steelyard_kernels.schedule.scan.outline import (
    Body,
    body,
    in_registers,
    stored,
    varying,
)
from steelyard_kernels.schedule.scan.registers import ROLLED_OFTEN
from steelyard_kernels.schedule.scan.tensor import Tensor, Value, View, whole


class Walker(Emitter):
    """Emits a program's nodes, its loops and what they store."""

    lanes: Lanes

    def __init__(
        self,
        program: Program,
        args: Arguments,
        lanes: Lanes,
        turns: Turns,
        target: str,
    ) -> None:
        super().__init__(program.name, lanes, target)
        self.program = program
        self.args = args
        self.turns = turns
        self.registers = in_registers(program)
        self.varying = varying(program)
        self.number: Operand = self.b.number(0)  # of the chain
        self.wanted: dict[int, list[Result]] = {}
        self.rules |= {
            Input: self._input,
            Scalar: self._scalar,
            Chain: self._chain,
            Chains: lambda node: self.env[node.arg.number],
            Result: self._result,
        }

    def once(self) -> None:
        """Emit what does not differ by chain."""
        self._part([n for n in self.program.nodes if n.number not in self.varying])

    def chain(self, number: Operand) -> None:
        """Emit one chain and the stores of its outputs."""
        self.number = number
        self._part([n for n in self.program.nodes if n.number in self.varying])
        for place, output in enumerate(self.program.outputs):
            value = stored(output.value)
            if not (isinstance(value, Result) and value.stacks):
                view = self._output(place)
                self.store(view, self.tensor(value))

    def _part(self, nodes: Sequence[Node]) -> None:
        kept = [stored(output.value) for output in self.program.outputs]
        here = {node.number for node in nodes}
        for node in self.program.nodes:
            if node.number not in here:
                kept += operands(node)
        self.run(body(nodes, kept))

    def run(self, body: Body) -> None:
        """Emit nodes in order, loading what is computed with where it is defined."""
        for node in body.nodes:
            if isinstance(node, Result):
                found = self.wanted.setdefault(id(node.loop), [])
                if node not in found:
                    found.append(node)
                self.env.pop(node.number, None)  # of the iteration before
        super().run(body)

    def emit(self, node: Node) -> None:
        """Emit one node; one of memory is read here if it is computed with."""
        if isinstance(node, Result) and node.number in self.env:
            return  # with the first of its loop
        super().emit(node)
        if node.number in self.registers:
            self.tensor(node)

    # Memory.

    def _input(self, node: Input) -> Value:
        return whole(self.args.inputs[node.index], self.b.number(0), node.shape)

    def _scalar(self, node: Scalar) -> Value:
        return Tensor((), (self.args.scalars[node.name],), same=True)

    def _chain(self, node: Chain) -> Value:
        value = self.env[node.arg.number]
        assert isinstance(value, View)
        return self._own(value)

    def _own(self, array: View) -> View:
        """Return a chain's part of an array whose first axis is the chains."""
        part = array.row(self.b, self.number)
        if isinstance(self.lanes, ChainLanes):
            self.lanes.arrays(array.strides[0])
            return replace(part, apart=array.strides[0])
        return part

    def _output(self, place: int) -> View:
        """Return this chain's part of an output."""
        value = self.program.outputs[place].value
        view = whole(self.args.outputs[place], self.b.number(0), value.shape)
        return self._own(view) if isinstance(value, Chains) else view

    def _stacks(self, result: Result) -> list[View]:
        """Return where a loop's rows are kept: in outputs, or in scratch memory."""
        found = [
            self._output(place)
            for place, output in enumerate(self.program.outputs)
            if stored(output.value) is result
        ]
        if not found:
            size = prod(result.shape)
            buffer, base = self.lanes.scratch("rows", result.dtype, size)
            if isinstance(self.lanes, ChainLanes):
                return [self.lanes.beside(buffer, base, result.shape)]
            found = [whole(buffer, base, result.shape)]
        return found

    # Loops.

    def _result(self, node: Result) -> Value:
        """Emit a whole loop where the first of its results is asked for."""
        loop, results = node.loop, self.wanted[id(node.loop)]
        stacks = {
            result.place: self._stacks(result) for result in results if result.stacks
        }
        rolled, self.rolled = self.rolled, ROLLED_OFTEN
        last = LoopEmitter(self, self.lanes, self.turns, loop, stacks).emit()
        self.rolled = rolled
        if stacks:
            self.lanes.settle()
        for result in results:
            self.env[result.number] = (
                stacks[result.place][0] if result.stacks else last[result.place]
            )
        return self.env[node.number]
