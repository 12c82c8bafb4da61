"""Programs as launches: which kernels, in which order, with which memory between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.batched import batched
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.plan.bodies import Body
from steelyard_kernels.plan.chunks import by_axes, in_chunks
from steelyard_kernels.plan.cuts import Cuts
from steelyard_kernels.plan.fusions import fuse
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.homes import Laid, reason_of
from steelyard_kernels.plan.launches import Launch, Plan
from steelyard_kernels.plan.orders import with_short_orders
from steelyard_kernels.plan.parts import Given
from steelyard_kernels.plan.pieces import Group, Pieces
from steelyard_kernels.plan.products import widened
from steelyard_kernels.plan.rates import (
    has_schedule,
    in_registers,
    in_turns,
    is_cliff,
    is_kernel,
    is_serial,
    least_in_turns,
    modelled,
    predicted,
    turns_of,
)
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.schedule import Part
from steelyard_kernels.schedule.strategies import is_one

MOST_NESTED: Final = 4
"""Launches that one kernel is weighed against: more would walk within walks within."""


def partition(program: Program, device: Machine | Gpu) -> Plan | None:
    """Return the launches of a simplified program; None if it is one kernel."""
    if program.chains or expr.loops(program.nodes):
        return _of_loops(program, device)
    return _of_nests(program, device)


def given(program: Program, device: Machine | Gpu, parts: Sequence[Part]) -> Plan:
    """Return the launches that a partition of a simplified program says.

    Raises KernelError for one that is of another program, or has no order, and for any but
    the found one of a program with loops.
    """
    found = groups_of(program, device)
    if not expr.loops(found.cuts.program.nodes):
        return planned(Given(found, parts))
    plan = planned(found)
    if {*parts} != {*plan.parts}:
        raise KernelError(
            f"{program.name}: it has loops, and launches {plan.schedule.label!r} alone; "
            "leave the partition out, or give this one."
        )
    return plan


def groups_of(program: Program, device: Machine | Gpu) -> Groups:
    """Return which values share a launch, totals handed over where that has schedules."""
    program = _shown(batched(program) if program.chains else program)
    return _of_widened(_widened(program, device), device)


def _of_widened(program: Program, device: Machine | Gpu) -> Groups:
    """Return launches, of reductions axis by axis where few threads walked for long."""
    found = _handing(program, device)
    if not any(is_serial(found.program(each), device) for each in found.every):
        return found
    others = by_axes(program, neighbours=True), by_axes(program, parts=True)
    every = [found, *[_handing(other, device) for other in others]]
    return min(every, key=lambda each: _modelled(each, device))


def _modelled(groups: Groups, device: Machine | Gpu) -> float:
    return sum([modelled(groups.program(each), device) for each in groups.every])


def _handing(program: Program, device: Machine | Gpu) -> Groups:
    found = _groups_of(program, device, hands=True)
    if any(isinstance(node, expr.Handed) for node in found.cuts.program.nodes):
        every = [launch.program for launch in planned(found).launches]
        handed = [e for e in every if any(isinstance(n, expr.Handed) for n in e.nodes)]
        if not all(has_schedule(each, device) for each in handed):
            return _groups_of(program, device, hands=False)
    return found


def _shown(program: Program) -> Program:
    """Return a program of loops without its own memory: the plan has that."""
    if not any(output.hidden for output in program.outputs):
        return program
    shown = [output for output in program.outputs if not output.hidden]
    return replace(program, outputs=tuple(shown))


def _groups_of(program: Program, device: Machine | Gpu, *, hands: bool) -> Groups:
    program = with_short_orders(in_chunks(program, device, hands=hands), device)
    bodies = _bodies(program, device)
    repeated = {number: body.stored for number, body in bodies.items()}
    gpu, first = _with_cores(device), dict[int, str]()
    cuts = Cuts(program, first, gpu=gpu, repeated=repeated)
    while cuts.late:
        first |= cuts.late
        cuts = Cuts(program, first, gpu=gpu, repeated=repeated)
    groups = Groups(cuts, device, bodies)
    fuse(groups)
    return groups


def _with_cores(device: Machine | Gpu) -> Gpu | None:
    return device if isinstance(device, Gpu) and device.cores else None


def _widened(program: Program, device: Machine | Gpu) -> Program:
    """Return a program whose factors are such as tensor cores multiply, if there are any."""
    gpu = _with_cores(device)
    return widened(program, gpu) if gpu else program


def planned(groups: Groups) -> Plan:
    """Return launches in their order, with memory between them."""
    return _Placing(groups).plan()


def _of_loops(program: Program, device: Machine | Gpu) -> Plan | None:
    """Return the launches of loops and chains; None if one kernel had better hold all."""
    one = in_registers(program, device)
    if one <= least_in_turns(program, device):
        return None
    if program.chains:
        plan: Plan | None = _plan_of(batched(program), device)
    else:
        plan = _of_nests(_shown(program), device)
    if plan is None or one == inf:
        return plan
    apart = program.chains > 1 or plan.repeats
    return plan if apart and in_turns(plan, device) < one else None


def _of_nests(program: Program, device: Machine | Gpu) -> Plan | None:
    program = _widened(program, device)
    groups = _of_widened(_shown(program), device)
    plan = planned(groups)
    single = sum(each.program.copies for each in plan.launches) == 1
    if single and not expr.loops(program.nodes):
        return None
    chunked = groups.cuts.program is not program
    return plan if chunked or _walks_apart(program, plan, device) else None


def _bodies(program: Program, device: Machine | Gpu) -> dict[int, Body]:
    """Return the loops that had better be launches in each turn, by their ids."""
    planner = partial(_plan_of, device=device)
    found = {}
    for loop in expr.loops(program.nodes):
        body = Body(loop, program.name, planner)
        results = [
            n for n in program.nodes if isinstance(n, expr.Result) and n.loop is loop
        ]
        memory = {node.number for node in body.stored}
        alone, _ = Pieces(program.name).of(results, memory)
        one, least = in_registers(alone, device), least_in_turns(alone, device)
        if one == inf or (least < one and _of_body(body, device) < one):
            found[id(loop)] = body
    return found


def _of_body(body: Body, device: Machine | Gpu) -> float:
    """Return what all turns of a loop take as launches."""
    parts = [part for part in (body.turn, body.condition) if part is not None]
    each = sum([in_turns(part.plan, device) for part in parts])
    return each * turns_of(body.loop)


def _plan_of(program: Program, device: Machine | Gpu) -> Plan:
    """Return the launches of a program, which may be one."""
    plan = None if is_one(program) else partition(program, device)
    return _alone(program) if plan is None else plan


def _alone(program: Program) -> Plan:
    """Return a program that is one kernel as one launch."""
    values, inputs = [output.value for output in program.outputs], program.inputs
    read = {node.number for node in program.nodes}
    into = [None if o.updates is None else inputs[o.updates] for o in program.outputs]
    updates = [node.number if node and node.number in read else None for node in into]
    made, reads = Pieces(program.name).of(values, set(), updates)
    homes = [node.name for node in reads if isinstance(node, expr.Input)]
    names = [output.name for output in program.outputs]
    reason = reason_of(program.nodes, values)
    place = {node.number: k for k, node in enumerate(program.nodes)}
    parts = (Part(tuple(sorted({place[stored(o).number] for o in program.outputs}))),)
    launch = Launch(made, tuple(homes), tuple(names), reason)
    return Plan((launch,), (), 0, 0, parts)


def _walks_apart(program: Program, plan: Plan, device: Machine | Gpu) -> bool:
    """Say whether launches beat the one kernel that there may be."""
    if len(plan.launches) > MOST_NESTED or not is_kernel(program):
        return True
    if not has_schedule(program, device):
        return True
    if not all(is_kernel(launch.program) for launch in plan.launches):
        return True  # registers hold what has no prediction
    apart = sum(predicted(each.program, device) for each in plan.launches)
    if predicted(program, device) > apart:
        return True
    return is_cliff(program, [each.program for each in plan.launches], device)


class _Placing:
    """Which values lie where others are: in arrays that outputs update, in buffers."""

    def __init__(self, groups: Groups) -> None:
        self.program, self.groups = groups.cuts.program, groups
        self.copied = [o for o in self.program.outputs if not self._fits_in_place(o)]

    def _fits_in_place(self, output: expr.Output) -> bool:
        """Say whether a launch may overwrite an input; others that read it come before."""
        if output.updates is None:
            return True
        groups, value = self.groups, stored(output)
        source = self.program.inputs[output.updates]
        writer = groups.of[value.number]
        if source in writer.reads and not self._overwrites(writer, value, source):
            return False
        return groups.put_behind(writer, groups.readers(source))

    def plan(self) -> Plan:
        """Return all launches in order, copies of what could not be overwritten last.

        Equal ones are side by side where they can be, and values lie where one was that
        is read for the last time unless that takes more memory.
        """
        order = self.groups.order()
        apart = self._laid(order, {})
        over = self._over(order)
        within = self._laid(order, over) if over else apart
        return within if within.size <= apart.size else apart

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
        for read in reads:
            alike = (read.shape, read.dtype) == (node.shape, node.dtype)
            if isinstance(read, expr.Input) or not alike:
                continue
            if self._overwrites(group, node, read):
                return read
        return None

    def _overwrites(self, group: Group, value: Node, read: Node) -> bool:
        """Say whether a launch may store a value where it reads another; turns do not."""
        groups = self.groups
        if groups.body(group):
            return False
        into = [read.number if each is value else None for each in group.values]
        made, _ = groups.pieces.of(group.values, groups.memory(group), into)
        return groups.once(is_kernel, made)

    def _laid(self, order: Sequence[Group], over: Mapping[int, Node]) -> Plan:
        """Return the plan in which some values are written over others."""
        return Laid(self.groups, order, over, self.copied).plan()
