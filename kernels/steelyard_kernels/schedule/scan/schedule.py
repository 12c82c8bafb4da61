"""Knobs of the scan strategy on a CPU, and what a program must be for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Apply,
    Cast,
    Constant,
    Parameter,
    Program,
    Result,
    Row,
    everywhere,
    operands,
)

MOST_LANES: Final = 64  # of the loop IR's vectors
MOST_UNROLL: Final = 64


@dataclass(frozen=True, slots=True, order=True)
class Scan:
    """The knobs of one scan lowering.

    `lanes` elements a vector, `unroll` iterations a turn of a loop, `ahead` iterations
    whose carry-free values are computed at once (0: none), `threads` 1 or 0 (all),
    `chunk` chains a thread takes at a time. `across`: each lane has a chain of its own,
    and every element of its values is a vector.
    """

    strategy: ClassVar[str] = "scan"

    lanes: int
    unroll: int
    ahead: int
    threads: int
    chunk: int
    across: bool = False

    @property
    def streaming(self) -> bool:
        """Stores never go round the caches: what is small is read again soon."""
        return False

    @property
    def label(self) -> str:
        """A short name for tables."""
        who = "all" if self.threads == 0 else "one"
        ahead = f" ahead{self.ahead}" if self.ahead else ""
        how = "across" if self.across else "v"
        return f"{how}{self.lanes} u{self.unroll}{ahead} {who} c{self.chunk}"


def check(name: str, schedule: Scan) -> None:
    """Raise KernelError where knobs of kernel `name` have no meaning."""
    for knob, value, most in (
        ("lanes", schedule.lanes, MOST_LANES),
        ("ahead", schedule.ahead or 1, MOST_LANES),
    ):
        if value not in range(1, most + 1) or value & (value - 1):
            raise KernelError(
                f"{name}: schedule {schedule.label} has {knob} {value}, expected a "
                f"power of two up to {most}; leave the schedule out."
            )
    if schedule.across and schedule.ahead:
        raise KernelError(
            f"{name}: schedule {schedule.label} computes ahead across chains, expected "
            "one of both; leave the schedule out."
        )
    if schedule.unroll not in range(1, MOST_UNROLL + 1):
        raise KernelError(
            f"{name}: schedule {schedule.label} has {schedule.unroll} iterations a "
            f"turn, expected 1 to {MOST_UNROLL}; leave the schedule out."
        )


def steps_together(program: Program) -> bool:
    """Say whether chains may be lanes: all look at the same rows, equally often."""
    if program.chains < 2 or not equally_often(program):
        return False
    known = _alike(program)
    return all(
        node.index.number in known
        for node in everywhere(program.nodes)
        if isinstance(node, Row)
    )


def equally_often(program: Program) -> bool:
    """Say whether every loop surely has as many iterations in each chain.

    A condition may end it earlier in some: they wait for the others.
    """
    known = _alike(program)
    return all(
        isinstance(node.loop.length, int) or node.loop.length.number in known
        for node in everywhere(program.nodes)
        if isinstance(node, Result)
    )


def _alike(program: Program) -> set[int]:
    """Return the numbers of nodes that are surely the same for every chain."""
    known = {node.number for node in program.scalars}
    for node in everywhere(program.nodes):
        if isinstance(node, Constant | Parameter):
            alike = isinstance(node, Constant) or node.role == "index"
        else:
            reads = operands(node)
            alike = isinstance(node, Apply | Cast) and all(
                arg.number in known for arg in reads
            )
        if alike:
            known.add(node.number)
    return known
