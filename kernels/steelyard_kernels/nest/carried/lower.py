"""The lowering of programs that carry state, and of small values of any shapes.

On a CPU threads share the chains, of which each is one thread's or one lane's; what does
not differ by chain is computed once for each share. On a GPU a block has some chains,
each a group of threads; how many chains there are is a runtime parameter, and in which
order a thread does its work is `order`'s.

emitter = ProgramEmitter(program, arguments, lanes, knobs)
emitter.once()                -- what all chains have in common
emitter.chain(number)         -- one chain: its nodes, its loops, then its outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec.structs import replace

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Operand, Type, Var
from steelyard_kernels.nest.carried.emitter import Emitter
from steelyard_kernels.nest.carried.gpu_lanes import GpuLanes
from steelyard_kernels.nest.carried.lanes import ChainLanes, Lanes
from steelyard_kernels.nest.carried.loop import LoopEmitter
from steelyard_kernels.nest.carried.order import ordered
from steelyard_kernels.nest.carried.outline import Body, body, in_registers, varying
from steelyard_kernels.nest.carried.tensor import ROLLED, Memory, Tensor, Value, whole
from steelyard_kernels.schedule import gpu, parameters
from steelyard_kernels.schedule.carries import Knobs, check, knobs_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.parameters import Arguments, Lowered, arguments
from steelyard_kernels.schedule.schedule import Schedule


class ProgramEmitter(Emitter):
    """Emits a program's nodes, its loops and what they store.

    What is computed with is loaded where it is defined; other memory is only looked at
    in part.
    """

    def __init__(
        self, program: Program, args: Arguments, lanes: Lanes, knobs: Knobs
    ) -> None:
        super().__init__(program.name, lanes)
        self.program = program
        self.args = args
        self.knobs = knobs
        self.registers = in_registers(program)
        self.varying = varying(program)
        self.number: Operand = self.b.number(0)  # of the chain
        self.wanted: dict[int, list[expr.Result]] = {}

    def once(self) -> None:
        """Emit what does not differ by chain."""
        self._part([n for n in self.program.nodes if n.number not in self.varying])

    def chain(self, number: Operand) -> None:
        """Emit one chain and the stores of its outputs."""
        self.number = number
        self._part([n for n in self.program.nodes if n.number in self.varying])
        for place, output in enumerate(self.program.outputs):
            value = output.each
            if not (isinstance(value, expr.Result) and value.stacks):
                self.store(self._output(place), self.tensor(value))

    def _part(self, nodes: Sequence[Node]) -> None:
        """Emit nodes; on a GPU all threads have read behind them what is overwritten.

        That is of a whole block: its last chain may be repeated by another warp of it.
        """
        kept = [output.each for output in self.program.outputs]
        here = {node.number for node in nodes}
        for node in self.program.nodes:
            if node.number not in here:
                kept += expr.operands(node)
        self.run(body(nodes, kept))
        updates = any(output.updates is not None for output in self.program.outputs)
        if updates and self.target == "cuda":
            self.b.effect("barrier")

    def run(self, body: Body) -> None:
        """Emit nodes in order, and with a loop's first result all that is wanted of it."""
        for node in body.nodes:
            if isinstance(node, expr.Result):
                found = self.wanted.setdefault(id(node.loop), [])
                if node not in found:
                    found.append(node)
                self.env.pop(node.number, None)  # of the iteration before
        super().run(body)

    def emit(self, node: Node) -> None:
        """Emit one node; one of memory is read here if it is computed with."""
        if isinstance(node, expr.Result) and node.number in self.env:
            return  # with the first of its loop
        super().emit(node)
        if node.number in self.registers:
            self.tensor(node)

    # Memory.

    def _chain(self, node: expr.Chain) -> Value:
        value = self.env[node.arg.number]
        assert isinstance(value, Memory)
        return self._own(value)

    def _own(self, array: Memory) -> Memory:
        """Return a chain's part of an array whose first axis is the chains."""
        return self.lanes.own(array.row(self.b, self.number), array.strides[0])

    def _output(self, place: int) -> Memory:
        """Return this chain's part of an output."""
        value = self.program.outputs[place].value
        view = whole(self.args.outputs[place], self.b.number(0), value.shape)
        return self._own(view) if isinstance(value, expr.Chains) else view

    def _stacks(self, result: expr.Result) -> list[Memory]:
        """Return where a loop's rows are kept: in outputs, or in scratch memory."""
        found = [
            self._output(place)
            for place, output in enumerate(self.program.outputs)
            if output.each is result
        ]
        return found or [self.lanes.scratch(result.dtype, result.shape)]

    def _result(self, node: expr.Result) -> Value:
        """Emit a whole loop where the first of its results is asked for."""
        results = self.wanted[id(node.loop)]
        stacks = {
            result.place: self._stacks(result) for result in results if result.stacks
        }
        rolled, self.rolled = self.rolled, max(self.rolled, ROLLED)
        last = LoopEmitter(self, self.knobs, node.loop, stacks).emit()
        self.rolled = rolled
        if stacks:
            self.lanes.settle()
        for result in results:
            self.env[result.number] = (
                stacks[result.place][0] if result.stacks else last[result.place]
            )
        return self.env[node.number]

    rules: ClassVar[Mapping[type, Callable[..., Value]]] = {
        **Emitter.rules,
        expr.Chain: _chain,
        expr.Chains: lambda e, node: e.env[node.arg.number],
        expr.Input: lambda e, node: whole(
            e.args.inputs[node.index], e.b.number(0), node.shape
        ),
        expr.Result: _result,
        expr.Scalar: lambda e, node: Tensor(
            (), (e.args.scalars[node.name],), same=True
        ),
    }


MOST_ITERATIONS: Final = 1 << 30  # that an int32 index surely counts


def lower(program: Program, schedule: Schedule, device: Machine | Gpu) -> Lowered:
    """Return the loop-level kernel for a device.

    Raises KernelError for a schedule that does not fit the program, and Unsupported for
    values that no chain can hold.
    """
    check(program, schedule, "cuda" if isinstance(device, Gpu) else "cpu")
    knobs = knobs_of(schedule)
    if isinstance(device, Gpu):
        return _on_gpu(program, schedule, knobs, device.multiprocessors)
    return _on_cpu(program, schedule, knobs)


def _on_cpu(program: Program, schedule: Schedule, knobs: Knobs) -> Lowered:
    args, b = arguments(program), Builder()
    across = ChainLanes(b, knobs.across) if knobs.across > 1 else None
    lanes = across or Lanes(b, knobs.width, knobs.ahead)
    emitter = ProgramEmitter(program, args, lanes, knobs)
    if not program.chains:
        emitter.once()
        emitter.chain(b.number(0))
        return Lowered(b.kernel("kernel", args.order), args.slots, 1)
    extent = Var("extent", INDEX)
    with b.parallel(extent, schedule.cuts[0].size, schedule.threads) as (low, high):
        emitter.once()
        with b.loop(low, high, knobs.across) as chain, emitter.scope():
            if across is not None:
                across.place(chain.var, high)
            emitter.chain(chain.var)
    kernel = b.kernel("kernel", (*args.order, extent))
    slots = (*args.slots, parameters.extent_slot(program.chains))
    return Lowered(kernel, slots, schedule.threads)


def _on_gpu(
    program: Program, schedule: Schedule, knobs: Knobs, multiprocessors: int
) -> Lowered:
    args, b = arguments(program), Builder(_index(program))
    extent = Var("extent", b.index) if program.chains else None
    lanes = GpuLanes(b, knobs, extent)
    emitter = ProgramEmitter(program, args, lanes, knobs)
    emitter.once()
    emitter.chain(lanes.chain)
    threads = knobs.threads
    made = b.kernel(
        "kernel",
        args.order if extent is None else (*args.order, extent),
        threads=threads,
        registers=schedule.registers or gpu.most_registers(threads),
    )
    body = ordered(made.body, knobs.width)
    blocks = -(-max(1, program.chains) // knobs.chains)
    resident = _resident(-(-blocks // multiprocessors), threads)
    kernel = replace(made, body=body, resident=resident)
    if extent is None:
        return Lowered(kernel, args.slots, threads)
    slots = (*args.slots, gpu.extent_slot(b.index, program.chains))
    return Lowered(kernel, slots, threads, knobs.chains)


def _resident(each: int, threads: int) -> int:
    """Return the blocks that a multiprocessor is to hold; 0 leaves it to the compiler.

    They are the `each` that come to one, where they fit whatever registers they take. Told of
    none, ptxas holds a thread at 96 registers or so, that more blocks fit than there
    are, and computes one after another what could wait side by side: on an H200 the
    way forward and back of `library.noisy_mlp` took 4.35 ms so in float64, and takes
    3.28 ms with this.
    """
    fit = gpu.REGISTERS // ((gpu.MOST_REGISTERS + 1) * threads)
    return each if each <= fit else 0


def _index(program: Program) -> Type:
    """Return the type of indices: int32 where it surely counts elements and turns."""
    for loop in expr.loops(everywhere(program.nodes)):
        if not isinstance(loop.length, int) or loop.length > MOST_ITERATIONS:
            return INDEX
    return gpu.index_type(program)
