"""Programs as launches: which kernels, in which order, with which memory between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Dot,
    Handed,
    Input,
    Node,
    Output,
    Program,
    Reduce,
    loops,
)
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.plan import buffers
from steelyard_kernels.plan.abreast import abreast
from steelyard_kernels.plan.chunks import in_chunks
from steelyard_kernels.plan.cuts import WALKS, Cuts, nbytes
from steelyard_kernels.plan.fusions import fuse
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.launches import Buffer, Home, Launch, Plan
from steelyard_kernels.plan.pieces import Group, copying, inside
from steelyard_kernels.plan.products import is_product, widened
from steelyard_kernels.plan.rates import is_kernel, predicted
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.strategies import heuristic, lower

MOST_NESTED: Final = 4
"""Launches that one kernel is weighed against: more would walk within walks within."""


def partition(program: Program, device: Machine | Gpu) -> Plan | None:
    """Return the launches of a simplified program; None if it is one kernel."""
    if loops(program.nodes):
        if _is_lowered(program, device):
            return None
        shown = [output for output in program.outputs if not output.hidden]
        program = replace(program, outputs=tuple(shown))  # the plan has memory
    found = _partition(program, device, hands=True)
    for launch in found.launches if found else ():
        handed = any(isinstance(node, Handed) for node in launch.program.nodes)
        if handed and not _has_schedule(launch.program, device):
            return _partition(program, device, hands=False)
    return found


def _partition(program: Program, device: Machine | Gpu, *, hands: bool) -> Plan | None:
    gpu = device if isinstance(device, Gpu) and device.cores else None
    whole = widened(program, gpu) if gpu else program
    program = in_chunks(whole, device, hands=hands)
    cuts, first = Cuts(program, gpu=gpu), dict[int, str]()
    while cuts.late:
        first |= cuts.late
        cuts = Cuts(program, first, gpu=gpu)
    groups = Groups(cuts, device)
    fuse(groups)
    plan = _Planned(program, groups).plan()
    if sum(each.program.copies for each in plan.launches) == 1:
        return None
    apart = program is not whole or _walks_apart(program, plan, device)
    return plan if apart else None


def _walks_apart(program: Program, plan: Plan, device: Machine | Gpu) -> bool:
    """Say whether launches beat the one kernel that there may be."""
    if len(plan.launches) > MOST_NESTED or not is_kernel(program):
        return True
    if not _has_schedule(program, device):
        return True
    if not all(is_kernel(launch.program) for launch in plan.launches):
        return True  # registers hold what has no prediction
    apart = sum(predicted(each.program, device) for each in plan.launches)
    return predicted(program, device) > apart


def _has_schedule(program: Program, device: Machine | Gpu) -> bool:
    """Say whether one kernel fits the device, which may lack memory for whole lines."""
    if not any(isinstance(node, Along) for node in program.nodes):
        return True
    try:
        heuristic(program, device)
    except KernelError:
        return False
    return True


def _is_lowered(program: Program, device: Machine | Gpu) -> bool:
    """Say whether one kernel's registers hold all that lies in no memory."""
    try:
        lower(program, heuristic(program, device), device)
    except KernelError:
        return False
    return True


class _Planned:
    """Homes of the values that launches store."""

    def __init__(self, program: Program, groups: Groups) -> None:
        self.program, self.groups = program, groups
        self.outputs: dict[int, list[Output]] = {}
        for output in program.outputs:
            self.outputs.setdefault(stored(output).number, []).append(output)
        self.copied = [o for o in program.outputs if not self._fits_in_place(o)]

    def _fits_in_place(self, output: Output) -> bool:
        """Say whether a launch may overwrite an input; others that read it come before."""
        if output.updates is None:
            return True
        groups, value = self.groups, stored(output)
        source = self.program.inputs[output.updates]
        writer = groups.of[value.number]
        if source in writer.reads:
            into = [source.number if node is value else None for node in writer.values]
            made, _ = groups.pieces.of(writer.values, groups.memory(writer), into)
            if not groups.once(is_kernel, made):
                return False
        return groups.put_behind(writer, groups.readers(source))

    def plan(self) -> Plan:
        """Return all launches in order, copies of what could not be overwritten last.

        Equal ones are side by side where they can be, and values lie where one was that
        is read for the last time if that takes less memory.
        """
        order = self.groups.order()
        apart = self._plan(order, {})
        over = self._over(order)
        within = self._plan(order, over) if over else apart
        return within if within.size < apart.size else apart

    def _over(self, order: Sequence[Group]) -> dict[int, Node]:
        """Return the values that may overwrite another one, by number, with that one.

        It is as large, of the same dtype, and read by no later launch; and a kernel that
        reads it updates it in place.
        """
        last = {read.number: group for group in order for read in group.reads}
        kept = {stored(output).number for output in self.program.outputs}
        found: dict[int, Node] = {}
        for group in order:
            dying = {
                read.number: read
                for read in group.reads
                if last[read.number] is group and read.number not in kept
            }
            for node in group.values:
                read = self._under(group, node, dying.values())
                if read is not None and node.number not in kept:
                    found[node.number] = dying.pop(read.number)
        return found

    def _under(self, group: Group, node: Node, reads: Iterable[Node]) -> Node | None:
        """Return which of some stored values a launch may overwrite with another."""
        memory = self.groups.memory(group)
        for read in reads:
            alike = (read.shape, read.dtype) == (node.shape, node.dtype)
            if isinstance(read, Input) or not alike:
                continue
            into = [read.number if each is node else None for each in group.values]
            made, _ = self.groups.pieces.of(group.values, memory, into)
            if self.groups.once(is_kernel, made):
                return read
        return None

    def _plan(self, order: Sequence[Group], over: dict[int, Node]) -> Plan:
        """Return the plan in which some values are written over others."""
        buffered: list[Node] = []
        homes: dict[int, Home] = {}
        for node in [node for group in order for node in group.values]:
            own = self._own(node)
            if node.number in over:
                homes[node.number] = homes[over[node.number].number]
                continue
            homes[node.number] = own[0].name if own else len(buffered)
            buffered += [] if own else [node]
        launches = [self._launch(group, homes, over) for group in order]
        launches += [self._copy(each, stored(each), homes) for each in self.copied]
        inputs = self.program.inputs
        updates = {
            output.name: inputs[output.updates].name
            for output in self.program.outputs
            if output.updates is not None
        }
        return self._placed(abreast(launches, updates), buffered)

    def _own(self, node: Node) -> list[Output]:
        """Return the outputs that a value is written to by the launch that computes it."""
        return [o for o in self.outputs.get(node.number, ()) if o not in self.copied]

    def _launch(
        self, group: Group, homes: dict[int, Home], over: dict[int, Node]
    ) -> Launch:
        values: list[Node] = []
        writes: list[Home] = []
        updates: list[int | None] = []
        for node in group.values:
            every: list[Output | None] = [*self._own(node)]
            for output in every or [None]:
                values.append(node)
                writes.append(homes[node.number] if output is None else output.name)
                into = None if output is None else output.updates
                source: Node | None = (
                    None if into is None else self.program.inputs[into]
                )
                source = over.get(node.number) if output is None else source
                updates.append(
                    source.number if source and source in group.reads else None
                )
        made, read = self.groups.pieces.of(values, self.groups.memory(group), updates)
        reads = tuple(
            node.name if isinstance(node, Input) else homes[node.number]
            for node in read
        )
        return Launch(made, reads, tuple(writes), _reason(group, self.groups))

    def _copy(self, output: Output, value: Node, homes: dict[int, Home]) -> Launch:
        made = copying(self.program.name, value)
        return Launch(
            made,
            (homes[value.number],),
            (output.name,),
            "copied: others read it before",
        )

    def _placed(self, launches: Sequence[Launch], buffered: Sequence[Node]) -> Plan:
        """Return the launches with places of the values that lie in the workspace."""
        lives: dict[Home, list[int]] = {}
        for number, launch in enumerate(launches):
            for home in (*launch.writes, *launch.reads):
                lives.setdefault(home, []).append(number)
        every = [
            buffers.Life(nbytes(node), min(lives[home]), max(lives[home]))
            for home, node in enumerate(buffered)
        ]
        offsets, size = buffers.placed(every)
        reasons = self.groups.stored
        found = tuple(
            Buffer(*life, offset, reasons[node.number])
            for node, life, offset in zip(buffered, every, offsets, strict=True)
        )
        return Plan(tuple(launches), found, size, buffers.bound(every))


def _reason(group: Group, groups: Groups) -> str:
    """Return what a launch computes, and the traffic that its parts save together."""
    nodes, _ = inside(group.values, groups.memory(group))
    products = [node for node in nodes if is_product(node)]
    reductions = [node for node in nodes if isinstance(node, WALKS)]
    names = dict.fromkeys(node.op for node in nodes if isinstance(node, Apply))
    own = {node.number for node in group.values}
    saved = sum(2 * nbytes(node) for node in reductions if node.number not in own)
    what = "loops" if loops(nodes) else "elementwise"
    if group.again:
        shown = " and ".join("x".join(map(str, node.shape)) for node in group.values)
        what = f"weighted sums {shown}"
    elif len(products) > 1:
        what = f"attention {'x'.join(map(str, products[0].shape))}"
    elif products:
        (product,) = products
        depth = product.a.shape[-1] if isinstance(product, Dot) else 0
        if isinstance(product, Reduce):
            depth = nbytes(product.arg) // product.arg.dtype.bytes
            depth //= max(1, nbytes(product) // product.dtype.bytes)
        what = f"product {'x'.join(map(str, product.shape))} of depth {depth}"
        names.pop("multiply", None) if isinstance(product, Reduce) else None
    elif reductions:
        what = "rows: " + ", ".join(
            dict.fromkeys(n.op for n in reductions if isinstance(n, Reduce | Along))
        )
    fused = f" with {', '.join(names)}" if names and reductions else ""
    gain = f": saves {_size(saved)}" if fused and saved else ""
    return f"{what}{fused}{gain}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
