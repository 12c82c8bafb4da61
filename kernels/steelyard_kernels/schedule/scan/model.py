"""Candidates of the scan strategy on a CPU, and what each is predicted to cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from steelyard_kernels.expr import (
    Apply,
    Dot,
    Loop,
    Node,
    Program,
    Reduce,
    everywhere,
    loops,
    operands,
)
from steelyard_kernels.schedule.model import (
    BUILD_NS,
    ITERATION_NS,
    OPERATION_NS,
    Machine,
    Prediction,
    sharing_terms,
)
from steelyard_kernels.schedule.scan.layout import layout
from steelyard_kernels.schedule.scan.outline import outline
from steelyard_kernels.schedule.scan.schedule import Scan, check_program

# One operation of a chain in which each waits for the one before: four cycles of 3 GHz.
LATENCY_NS: Final = 1.3
# A sum across lanes: a shuffle and an addition for each halving.
HALVING_NS: Final = 2.3
# A value's way through memory from where it was computed ahead.
FETCH_NS: Final = 0.4
# How long a loop is taken to be whose length the launch says.
UNKNOWN_LENGTH: Final = 1000
# Operations of a core, and how many of them wait for one another, where not one.
WEIGHTS: Final = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "sinpi", "cospi"), 20.0),
    **dict.fromkeys(("tanh", "sigmoid", "softplus", "erf_inv"), 25.0),
    **dict.fromkeys(("divide", "sqrt", "rsqrt"), 6.0),
}
DEPTHS: Final = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "sinpi", "cospi"), 12.0),
    **dict.fromkeys(("tanh", "sigmoid", "softplus", "erf_inv"), 18.0),
    **dict.fromkeys(("divide", "sqrt", "rsqrt"), 4.0),
}
# Chains that a thread takes at a time: a loop of many iterations is long by itself.
CHUNKS: Final = (1, 16)


def candidates(
    program: Program, machine: Machine, *, aligned: bool = True
) -> tuple[Scan, ...]:
    """Return every legal schedule worth trying, in order."""
    del aligned  # nothing streams
    check_program(program)
    full = machine.lanes(_element_bytes(program))
    found = loops(program.nodes)
    aheads = (0, full) if any(outline(x, (), ahead=True).kept for x in found) else (0,)
    unrolls = (1, 2, 4) if found else (1,)
    sharings = ((0, 1), (0, 16), (1, 1)) if program.chains > 1 else ((1, 1),)
    widths = sorted({max(1, full // 4), max(1, full // 2), full})
    return tuple(
        Scan(lanes, unroll, ahead, threads, chunk)
        for lanes in widths
        for unroll in unrolls
        for ahead in aheads
        for threads, chunk in sharings
    )


class _Times:
    """Adds up what nodes take, in nanoseconds, and how many statements they are.

    `waiting` is what an iteration's chain of operations, each of which needs the one
    before, takes longer than its arithmetic.
    """

    def __init__(self, schedule: Scan, machine: Machine) -> None:
        self.schedule = schedule
        self.machine = machine
        self.waiting = 0.0
        self.statements = 0

    def of(self, nodes: Sequence[Node]) -> float:
        """Return the arithmetic of nodes and of the loops among them."""
        total = sum(self._arithmetic(node, self.schedule.lanes) for node in nodes)
        return total + sum(self._loop(loop) for loop in loops(nodes))

    def _loop(self, loop: Loop) -> float:
        """Return the arithmetic of a loop; adds what its iterations wait."""
        schedule = self.schedule
        length = loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH
        before, self.waiting = self.waiting, 0.0
        places = range(len(loop.nexts) + len(loop.stacked))
        parts = outline(loop, places, ahead=schedule.ahead > 1)
        each = self.of(parts.each.nodes) + self.of(parts.condition.nodes)
        unroll = loop.unroll or schedule.unroll
        self.statements += int(each / OPERATION_NS) * (unroll + (unroll > 1))
        each += ITERATION_NS / unroll + FETCH_NS * len(parts.kept)
        if parts.kept:
            side = sum(self._arithmetic(node, 1) for node in parts.ahead.nodes)
            each += side * self._registers(schedule.ahead) / schedule.ahead
        waits = self.waiting + max(0.0, _latency(loop, schedule.lanes) - each)
        self.waiting = before + waits * length
        return each * length

    def _arithmetic(self, node: Node, lanes: int) -> float:
        """Return what one node's vectors take."""
        weight = _weight(node)
        if isinstance(node, Dot):
            weight *= node.b.shape[0]
        vectors = len(layout(node.shape, lanes)) if prod(node.shape) > 1 else 1
        return weight * vectors * OPERATION_NS * self._registers(lanes)

    def _registers(self, lanes: int) -> float:
        return max(1.0, lanes * 4 / self.machine.vector_bytes)


def _weight(node: Node) -> float:
    """Return how many operations of a core a node is, for one vector."""
    if isinstance(node, Apply):
        return WEIGHTS.get(node.op, 1.0)
    return 1.0 if isinstance(node, Dot | Reduce) else 0.0


def _latency(loop: Loop, lanes: int) -> float:
    """Return what an iteration takes where every operation waits for its operands."""
    done: dict[int, float] = {carry.number: 0.0 for carry in loop.carries}
    for node in loop.nodes:
        reads = [done[arg.number] for arg in operands(node) if arg.number in done]
        if not reads:
            continue  # needs no carry: done beside the others
        depth = DEPTHS.get(node.op, 1.0) if isinstance(node, Apply) else 1.0
        took = depth * LATENCY_NS
        if isinstance(node, Dot | Reduce):
            source = node.b if isinstance(node, Dot) else node.arg
            longest = max((*source.shape, 1))
            took += min(longest, lanes).bit_length() * HALVING_NS
            took += longest / lanes * OPERATION_NS
        done[node.number] = max(reads) + took
    return max((done.get(node.number, 0.0) for node in loop.nexts), default=0.0)


def _element_bytes(program: Program) -> int:
    """Return the size of the widest floats, of which a register holds fewest."""
    return max(
        (
            node.dtype.bytes
            for node in everywhere(program.nodes)
            if node.dtype.kind == "float"
        ),
        default=4,
    )


def model(program: Program, schedule: Scan, machine: Machine) -> Prediction:
    """Predict one launch."""
    chains = max(1, program.chains)
    threads = machine.threads if schedule.threads == 0 else 1
    times = _Times(schedule, machine)
    work = times.of(program.nodes) * chains / threads
    chunks = -(-chains // schedule.chunk)
    return Prediction(
        (
            ("waiting for operands", times.waiting * chains / threads),
            ("arithmetic", work),
            ("build share", times.statements * BUILD_NS),
            *sharing_terms(schedule, machine, chunks, work),
        )
    )


def heuristic(program: Program, machine: Machine, *, aligned: bool = True) -> Scan:
    """Return the best predicted candidate."""
    ranked = rank(program, machine, aligned=aligned)
    return min(ranked, key=lambda row: row[1].total)[0]


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Scan, Prediction]]:
    """Return every candidate with its prediction, in order."""
    return [
        (schedule, model(program, schedule, machine))
        for schedule in candidates(program, machine, aligned=aligned)
    ]
