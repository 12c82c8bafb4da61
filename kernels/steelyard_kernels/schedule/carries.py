"""Schedules of programs that carry state: chains, iterations and elements as axes.

    i:core16 j:v8.r2.serial k:v4.r1    threads take 16 chains at a time; 8 iterations'
                                       share that needs no carry at once, 2 iterations
                                       a turn of a loop; values in vectors of 4
    i:v16.core j:r1.serial k:r1        each lane has a chain, each element is a vector
    i:thread2.grid j:v16.r4.serial k:thread16.r1
                                       on a GPU: blocks of 2 chains of 16 threads each

A program has one such axis of each kind, i, j and k in this order: all of its loops and
all of its values are cut alike. What vectors or threads do not take of the elements is
in registers.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.schedule.gpu import WARP, registers_problem
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

AXES: Final = ("i", "j", "k")
MOST_LANES: Final = 64  # of the loop IR's vectors
MOST_UNROLL: Final = {"cpu": 64, "cuda": 16}
GROUPS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # threads of a GPU's chain
MOST_THREADS: Final = 256  # of a block: what is in step within one has one size
# Where the factors of chains, iterations and elements may go, and where the rest goes.
PLACES: Final = {
    "cpu": ({Place.VECTOR}, {Place.VECTOR, Place.REGISTER}, {Place.VECTOR}),
    "cuda": ({Place.THREAD}, {Place.VECTOR, Place.REGISTER}, {Place.THREAD}),
}
RESTS: Final = {
    "cpu": ({Place.CORE, Place.SERIAL}, {Place.SERIAL}, {Place.REGISTER}),
    "cuda": ({Place.GRID}, {Place.SERIAL}, {Place.REGISTER}),
}


class Knobs(Struct, frozen=True):
    """What a schedule says of chains, iterations and elements.

    `width` elements are side by side, in lanes or threads, and so are `across` chains in
    a CPU's lanes and `chains` in a GPU's block. `ahead` iterations are computed at once
    but for what carries are needed for, `unroll` are one turn of a loop.
    """

    width: int
    across: int = 1
    chains: int = 1
    ahead: int = 1
    unroll: int = 1

    @property
    def threads(self) -> int:
        """The threads of a GPU's block: whole warps, whose rest repeats the last chain."""
        return -(-self.width * self.chains // WARP) * WARP

    @property
    def span(self) -> int:
        """How many iterations a GPU computes at once: by a warp's lanes, or a group's.

        A chain that has its warp alone uses the lanes of those that repeat it.
        """
        return WARP if self.chains == 1 else min(self.width, WARP)


def knobs_of(schedule: Schedule) -> Knobs:
    """Return what a legal schedule says."""
    chains, turns, elements = schedule.cuts
    return Knobs(
        elements.at(Place.VECTOR) * elements.at(Place.THREAD),
        chains.at(Place.VECTOR),
        chains.at(Place.THREAD),
        turns.at(Place.VECTOR),
        turns.at(Place.REGISTER),
    )


def on_cpu(knobs: Knobs, place: Place, chunk: int = 1) -> Schedule:
    """Return a CPU's schedule; threads take `chunk` vectors of chains at a time."""
    across = ((knobs.across, Place.VECTOR),) * (knobs.across > 1)
    lanes = ((knobs.width, Place.VECTOR),) * (knobs.width > 1)
    return _schedule((*across, (chunk, place)), lanes, knobs)


def on_gpu(knobs: Knobs) -> Schedule:
    """Return a GPU's schedule."""
    chains = (knobs.chains, Place.THREAD), (1, Place.GRID)
    return _schedule(chains, ((knobs.width, Place.THREAD),), knobs)


Factors = tuple[tuple[int, Place], ...]
"""Of one axis, innermost first."""


def _schedule(chains: Factors, elements: Factors, knobs: Knobs) -> Schedule:
    ahead = ((knobs.ahead, Place.VECTOR),) * (knobs.ahead > 1)
    turns = (*ahead, (knobs.unroll, Place.REGISTER), (1, Place.SERIAL))
    parts = (chains, turns, (*elements, (1, Place.REGISTER)))
    cuts = tuple(Cut(axis, part) for axis, part in zip(AXES, parts, strict=True))
    return Schedule(cuts)


def check(program: Program, schedule: Schedule, target: str) -> None:
    """Raise KernelError where a schedule does not fit a program on a kind of target."""
    why = problem(program, schedule, target)
    if why:
        raise KernelError(
            f"{program.name}: schedule {schedule.label} {why}, or leave the schedule out."
        )


def problem(program: Program, schedule: Schedule, target: str) -> str:
    """Say why a schedule does not fit, and what to choose instead; "" if it does."""
    if tuple(cut.axes for cut in schedule.cuts) != AXES:
        return (
            "is not of chains i, iterations j and elements k; cut these, in this order"
        )
    for cut, inner, rest in zip(
        schedule.cuts, PLACES[target], RESTS[target], strict=True
    ):
        places = [place for _, place in cut.factors]
        if not places or places[-1] not in rest or not inner.issuperset(places[:-1]):
            offered = f"{', '.join(sorted(inner))} and then {' or '.join(sorted(rest))}"
            return (
                f"puts {cut.label} elsewhere than a {target} has it; choose {offered}"
            )
    knobs = knobs_of(schedule)
    if knobs.unroll not in range(1, MOST_UNROLL[target] + 1):
        wanted = f"1 to {MOST_UNROLL[target]}"
        return f"has {knobs.unroll} iterations a turn; choose {wanted}"
    if target == "cpu":
        return _cpu_problem(program, knobs, schedule.cuts[0].factors[-1][0])
    return _gpu_problem(program, knobs) or registers_problem(
        schedule.registers, knobs.threads
    )


def _cpu_problem(program: Program, knobs: Knobs, chunk: int) -> str:
    sides = {"lanes": knobs.width, "ahead": knobs.ahead, "across": knobs.across}
    for name, value in sides.items():
        if value not in range(1, MOST_LANES + 1) or value & (value - 1):
            return f"has {name} {value}; choose a power of two up to {MOST_LANES}"
    if chunk < 1:
        return f"has {chunk} chains a turn of a thread; choose 1 or more"
    if knobs.across > 1 and knobs.ahead * knobs.width > 1:
        return "has vectors of chains and of others; choose one of both"
    if knobs.across > 1 and not steps_together(program):
        return (
            "gives each lane a chain, but there are none, or they go to different "
            "rows; choose single chains"
        )
    return ""


def _gpu_problem(program: Program, knobs: Knobs) -> str:
    group, chains = knobs.width, knobs.chains
    if group not in GROUPS:
        return f"has {group} threads a chain; choose a power of two up to {GROUPS[-1]}"
    most = MOST_THREADS // group if group <= WARP else 1
    if chains not in range(1, most + 1):
        wanted = f"1 to {most}" if most > 1 else "1"
        return f"has {chains} chains of {group} threads a block; choose {wanted}"
    if knobs.ahead not in {1, knobs.span}:
        return f"computes {knobs.ahead} iterations ahead; choose {knobs.span} or none"
    if chains > 1 and not program.chains:
        return f"has {chains} chains a block of a program of one; choose 1"
    if chains > 1 and not equally_often(program):
        return "has chains side by side whose loops differ in length; choose 1"
    return ""


def steps_together(program: Program) -> bool:
    """Say whether chains may be lanes: all look at the same rows, equally often."""
    if program.chains < 2 or not equally_often(program):
        return False
    known = _alike(program)
    return all(
        (node.index if isinstance(node, expr.Row) else node.which).number in known
        for node in everywhere(program.nodes)
        if isinstance(node, expr.Row | expr.Gather)
    )


def equally_often(program: Program) -> bool:
    """Say whether every loop surely has as many iterations in each chain.

    A condition may end it earlier in some: they wait for the others.
    """
    known = _alike(program)
    return all(
        isinstance(node.loop.length, int) or node.loop.length.number in known
        for node in everywhere(program.nodes)
        if isinstance(node, expr.Result)
    )


def _alike(program: Program) -> set[int]:
    """Return the numbers of nodes that are surely the same for every chain."""
    known = {node.number for node in program.scalars}
    for node in everywhere(program.nodes):
        if isinstance(node, expr.Constant | expr.Parameter):
            alike = isinstance(node, expr.Constant) or node.role == "index"
        else:
            reads = expr.operands(node)
            alike = isinstance(node, expr.Apply | expr.Cast) and all(
                arg.number in known for arg in reads
            )
        if alike:
            known.add(node.number)
    return known
