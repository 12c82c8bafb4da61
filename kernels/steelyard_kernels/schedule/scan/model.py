"""Candidates of the scan strategy on a CPU, and what each is predicted to cost.

An iteration takes its arithmetic, or the longest way of operations that wait for one
another from carry to carry, whichever is longer: for one chain of small values that is
the way. What no carry is needed for runs in its shadow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import float64
from steelyard_kernels.expression.expr import (
    Apply,
    Dot,
    Loop,
    Node,
    Program,
    Reduce,
    Result,
    Shape,
    everywhere,
    loops,
    operands,
)
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.model import (
    BUILD_NS,
    ITERATION_NS,
    OPERATION_NS,
    Machine,
    Prediction,
    sharing_terms,
)
from steelyard_kernels.schedule.scan.outline import (
    in_memory,
    in_registers,
    outline,
    stored,
)
from steelyard_kernels.schedule.scan.schedule import (
    Scan,
    steps_together,
)

# One operation of a chain in which each waits for the one before: four cycles of 4 GHz.
LATENCY_NS: Final = 1.0
# A sum across lanes: a shuffle and an addition for each halving.
HALVING_NS: Final = 1.8
# A scalar operation, of which a core does twice as many as of vectors.
SCALAR_NS: Final = 0.08
DOUBLE: Final = 1.5  # polynomials of float64 are longer
# A value's way through memory from where it was computed ahead.
FETCH_NS: Final = 0.4
# Statements that a loop is beside its operations, and one that computes ahead.
LOOP_STATEMENTS: Final = 10
# What chains side by side load and store, an instruction a lane: text of which code
# generation takes the square. 5,900 lines took 4 s.
MOST_APART: Final = 512
# How long a loop is taken to be whose length the launch says.
UNKNOWN_LENGTH: Final = 1000

Work: TypeAlias = dict[Shape, float]  # operations by the shape of their results


@dataclass(frozen=True, slots=True)
class _Profile:
    """What a loop's iterations do: `whole` in one, or `each` beside what is `ahead`."""

    length: int
    unroll: int
    whole: Work
    each: Work
    ahead: Work
    kept: int
    way: tuple[Node, ...]  # what waits for a carry, in order
    ends: tuple[Node, ...]
    carries: frozenset[int]
    inner: tuple[_Profile, ...]


def candidates(
    program: Program, machine: Machine, *, aligned: bool = True
) -> tuple[Scan, ...]:
    """Return every legal schedule worth trying, in order."""
    del aligned  # nothing streams
    return _candidates(program, machine, [_profile(x) for x in loops(program.nodes)])


def _candidates(
    program: Program, machine: Machine, found: list[_Profile]
) -> tuple[Scan, ...]:
    full = machine.lanes(_element_bytes(program))
    aheads = (0, full) if any(loop.kept for loop in found) and full > 1 else (0,)
    unrolls = (1, 2, 4) if found else (1,)
    sharings = ((0, 1), (0, 16), (1, 1)) if program.chains > 1 else ((1, 1),)
    singly = tuple(
        Scan(lanes, unroll, ahead, threads, chunk)
        for lanes in (full // 4, full // 2, full)
        if lanes >= min(4, full)
        for unroll in unrolls
        for ahead in aheads
        for threads, chunk in sharings
    )
    if not steps_together(program) or full * _apart(program) > MOST_APART:
        return singly
    return *singly, *[Scan(full, 1, 0, who, full, across=True) for who in (0, 1)]


def _apart(program: Program) -> int:
    """Count the elements of a chain that are loaded or stored, lane by lane."""
    held = in_registers(program)
    moved = [n for n in everywhere(program.nodes) if n.number in held and in_memory(n)]
    for output in program.outputs:
        value = stored(output.value)
        if isinstance(value, Result) and value.stacks:
            value = value.loop.stacked[value.place - len(value.loop.nexts)]
        moved.append(value)
    return sum(prod(node.shape) for node in moved)


def _element_bytes(program: Program) -> int:
    """Return the size of the widest floats, of which a register holds fewest."""
    return max(
        (n.dtype.bytes for n in everywhere(program.nodes) if n.dtype.kind == "float"),
        default=4,
    )


def _profile(loop: Loop) -> _Profile:
    """Sum up a loop's iterations."""
    places = range(len(loop.nexts) + len(loop.stacked))
    parts = outline(loop, places, ahead=True)
    each = (*parts.each.nodes, *parts.condition.nodes)
    waits = {carry.number for carry in loop.carries}
    way = []
    for node in loop.nodes:
        if any(arg.number in waits for arg in operands(node)):
            waits.add(node.number)
            way.append(node)
    return _Profile(
        loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH,
        loop.unroll,
        _work((*loop.nodes,)),
        _work(each),
        _work(parts.ahead.nodes),
        len(parts.kept),
        tuple(way),
        loop.nexts,
        frozenset(carry.number for carry in loop.carries),
        tuple(_profile(inner) for inner in loops(loop.nodes)),
    )


def _work(nodes: Iterable[Node]) -> Work:
    """Count the operations of nodes."""
    found: Work = {}
    for node in nodes:
        shape, count = node.shape, 0.0
        if isinstance(node, Apply):
            count = OPERATIONS[node.op].cost.cpu * _length(node)
        elif isinstance(node, Dot):
            count = node.b.shape[0]
        elif isinstance(node, Reduce):
            shape, count = node.arg.shape, 1.0
        if count:
            found[shape] = found.get(shape, 0.0) + count
    return found


def _length(node: Apply) -> float:
    """Return how much longer a function's polynomial is than float32's."""
    return DOUBLE if node.dtype is float64 and OPERATIONS[node.op].cost.slow else 1.0


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of a loop or a chain: arithmetic and waiting in ns, and statements."""

    work: float
    waiting: float
    statements: float


class _Times:
    """What work takes under a schedule's knobs."""

    def __init__(self, schedule: Scan, machine: Machine) -> None:
        self.lanes = 1 if schedule.across else schedule.lanes
        self.ahead = schedule.ahead
        self.scalar = OPERATION_NS if schedule.across else SCALAR_NS
        self.machine = machine

    def loop(self, loop: _Profile, unroll: int) -> _Cost:
        """Return what all iterations of a loop take."""
        ahead = self.ahead > 1 and loop.kept
        work, statements = self.of(loop.each if ahead else loop.whole)
        more = 0.0
        if ahead:
            side, more = self.of(loop.ahead, width=1)
            work += side * self._registers(self.ahead) / self.ahead
            work += FETCH_NS * loop.kept
        inner = [self.loop(x, 1) for x in loop.inner]
        work += sum(x.work for x in inner)
        statements += sum(x.statements for x in inner)
        turns = loop.unroll or (1 if inner else unroll)
        statements = (statements + LOOP_STATEMENTS) * (turns + (turns > 1))
        if ahead:
            statements += more + LOOP_STATEMENTS + 4 * loop.kept
        waiting = max(0.0, self._way(loop) - work) + sum(x.waiting for x in inner)
        work += ITERATION_NS / turns
        return _Cost(work * loop.length, waiting * loop.length, statements)

    def of(self, work: Work, width: int = 0) -> tuple[float, float]:
        """Return nanoseconds and statements of work, on vectors of so many lanes."""
        lanes = width or self.lanes
        time = statements = 0.0
        for shape, count in work.items():
            extent, size = max((*shape, 1)), prod(shape)
            if size <= 1:
                time += count * (OPERATION_NS if width else self.scalar)
                statements += count
                continue
            vectors = size // extent * -(-extent // lanes)
            time += count * vectors * OPERATION_NS * self._registers(lanes)
            statements += count * vectors
        return time, statements

    def _registers(self, lanes: int) -> float:
        return max(1.0, lanes * 4 / self.machine.vector_bytes)

    def _way(self, loop: _Profile) -> float:
        """Return what an iteration takes where every operation waits for operands."""
        done = dict.fromkeys(loop.carries, 0.0)
        for node in loop.way:
            start = max(done.get(arg.number, 0.0) for arg in operands(node))
            took = LATENCY_NS
            if isinstance(node, Apply):
                took *= OPERATIONS[node.op].cost.depth * _length(node)
            if isinstance(node, Dot | Reduce):
                extent = (
                    node.b.shape[0] if isinstance(node, Dot) else node.arg.shape[-1]
                )
                halvings = min(extent, self.lanes).bit_length() - 1
                vectors = -(-extent // self.lanes)
                took += halvings * HALVING_NS + (vectors - 1).bit_length() * LATENCY_NS
            done[node.number] = start + took
        return max((done.get(node.number, 0.0) for node in loop.ends), default=0.0)


def heuristic(program: Program, machine: Machine, *, aligned: bool = True) -> Scan:
    """Return the best predicted candidate."""
    ranked = rank(program, machine, aligned=aligned)
    return min(ranked, key=lambda row: row[1].total)[0]


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Scan, Prediction]]:
    """Return every candidate with its prediction, in order."""
    del aligned
    found = [_profile(loop) for loop in loops(program.nodes)]
    straight = _work(program.nodes)
    known: dict[tuple[int, int, int, bool], _Cost] = {}
    ranked = []
    for schedule in _candidates(program, machine, found):
        knobs = schedule.lanes, schedule.ahead, schedule.unroll, schedule.across
        if knobs not in known:
            times = _Times(schedule, machine)
            work, statements = times.of(straight)
            parts = [times.loop(loop, schedule.unroll) for loop in found]
            known[knobs] = _Cost(
                work + sum(part.work for part in parts),
                sum(part.waiting for part in parts),
                statements + sum(part.statements for part in parts),
            )
        ranked.append((schedule, _predict(program, schedule, machine, known[knobs])))
    return ranked


def _predict(
    program: Program, schedule: Scan, machine: Machine, cost: _Cost
) -> Prediction:
    """Predict one launch of chains that each cost so much."""
    chains = max(1, program.chains)
    groups = -(-chains // schedule.lanes) if schedule.across else chains
    share = groups / (machine.threads if schedule.threads == 0 else 1)
    work, waiting = cost.work * share, cost.waiting * share
    chunks = -(-chains // schedule.chunk)
    return Prediction(
        (
            ("arithmetic", work),
            ("waiting for operands", waiting),
            ("build share", cost.statements * BUILD_NS),
            *sharing_terms(schedule, machine, chunks, work + waiting),
        )
    )
