"""What programs that carry state cost: the way through them, and what is issued on it.

An iteration takes what it issues, or the longest way of operations that wait for one
another from carry to carry, whichever is longer: of one chain of small values that is
the way. Here is how a program's parts add up on any target, and what they are on a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

from steelyard_kernels.dtypes import float64
from steelyard_kernels.expression.expr import (
    Apply,
    Dot,
    Loop,
    Node,
    Program,
    Reduce,
    Result,
    loops,
)
from steelyard_kernels.nest.carried.outline import Outline, outline
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.carries import Knobs, knobs_of
from steelyard_kernels.schedule.model import (
    BUILD_NS,
    ITERATION_NS,
    OPERATION_NS,
    Machine,
    Prediction,
    sharing_terms,
)
from steelyard_kernels.schedule.schedule import Schedule

UNKNOWN_LENGTH: Final = 1000  # of a loop whose length the launch says
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


@dataclass(frozen=True, slots=True)
class Work:
    """Time from what is given to what is wanted, and issued in all; statements of text."""

    way: float = 0.0
    issued: float = 0.0
    text: float = 0.0

    def then(self, other: Work) -> Work:
        """Return this and, after it, the other."""
        return Work(
            self.way + other.way, self.issued + other.issued, self.text + other.text
        )


class Costs(ABC):
    """Counts what a program's parts cost, each once for all schedules it is alike for.

    `reorders`: operations start as soon as their operands are there, also those of the
    next iteration; else those of one turn of a loop at best.
    """

    reorders: ClassVar[bool]
    turn: ClassVar[float]  # what a turn of a loop issues by itself

    def __init__(self) -> None:
        self._outlines: dict[tuple[int, bool], Outline] = {}
        self._works: dict[tuple[int, ...], Work] = {}

    @abstractmethod
    def cost(self, node: Node, knobs: Knobs) -> Work:
        """Return what one node costs that is no loop's result."""

    @abstractmethod
    def share(self, parts: Outline, knobs: Knobs) -> Work:
        """Return an iteration's share of what is computed ahead."""

    @abstractmethod
    def text(self, each: Work, share: Work, turn: int) -> float:
        """Return the statements of a loop of so many iterations a turn."""

    def _known(self, make: Callable[[], Work], *key: int) -> Work:
        if key not in self._works:
            self._works[key] = make()
        return self._works[key]

    def program(self, program: Program, knobs: Knobs) -> Work:
        """Return what a chain costs: its nodes one after another, each loop once."""
        plain = [node for node in program.nodes if not isinstance(node, Result)]

        def outside() -> Work:
            works = [self._node(node, knobs) for node in plain]
            issued = sum(work.issued for work in works)
            way = issued if self.reorders else sum(work.way for work in works)
            return Work(way, issued, sum(work.text for work in works))

        total = self._known(outside, -1, knobs.width, knobs.across)
        for loop in loops(program.nodes):
            total = total.then(self._loop(loop, knobs))
        return total

    def _node(self, node: Node, knobs: Knobs) -> Work:
        if isinstance(node, Result):
            return self._loop(node.loop, knobs)
        key = node.number, knobs.width, knobs.across
        return self._known(lambda: self.cost(node, knobs), *key)

    def outline(self, loop: Loop, *, ahead: bool) -> Outline:
        """Return the parts of a loop of which all results are wanted."""
        key = id(loop), ahead
        if key not in self._outlines:
            places = range(len(loop.nexts) + len(loop.stacked))
            self._outlines[key] = outline(loop, places, ahead=ahead)
        return self._outlines[key]

    def _loop(self, loop: Loop, knobs: Knobs) -> Work:
        """Return what all iterations cost."""
        shape = knobs.width, knobs.across, knobs.ahead, knobs.unroll
        return self._known(lambda: self._iterations(loop, knobs), id(loop), *shape)

    def _iterations(self, loop: Loop, knobs: Knobs) -> Work:
        inner = any(isinstance(node, Result) for node in loop.nodes)
        turn = loop.unroll or (1 if inner else knobs.unroll)
        parts = self.outline(loop, ahead=knobs.ahead > 1)
        shape = id(loop), knobs.width, knobs.across, int(knobs.ahead > 1)
        key = (*shape, knobs.ahead, knobs.unroll) if inner else shape
        late = {carry.number for carry in loop.carries}
        both = self._known(lambda: self._way(loop, parts, knobs, set()), *key, 0, 0)
        last = self._known(lambda: self._way(loop, parts, knobs, late), *key, 1, 1)
        way = last.way
        if not self.reorders:  # what needs no carry is done for all of a turn together
            apart = (both.way - last.way) + (both.issued - last.issued) * (turn - 1)
            way = min(both.way, last.way + apart / turn)
        share = self.share(parts, knobs) if parts.kept else Work()
        issued = both.issued + share.issued + self.turn / turn
        way = max(way, issued) if self.reorders else way + share.way
        text = self.text(both, share, turn)
        length = loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH
        return Work(way * length, issued * length, text)

    def _way(self, loop: Loop, parts: Outline, knobs: Knobs, late: set[int]) -> Work:
        """Return the way through an iteration; of what needs one of `late`, if any."""
        ready: dict[int, float] = {}
        ended: dict[int, float] = {}  # when an inner loop is done
        issued, text, every = 0.0, 0.0, not late
        for part in (parts.each, parts.condition):
            for node in part.nodes:
                reads = [arg.number for arg in part.reads(node)]
                if not every and not late.intersection(reads):
                    continue
                late.add(node.number)
                begun = max((ready.get(number, 0.0) for number in reads), default=0.0)
                if isinstance(node, Result) and id(node.loop) in ended:
                    ready[node.number] = ended[id(node.loop)]
                    continue
                work = self._node(node, knobs)
                ready[node.number] = begun + work.way
                issued += work.issued
                text += work.text
                if isinstance(node, Result):
                    ended[id(node.loop)] = ready[node.number]
        ends = (*loop.nexts, *([] if loop.condition is None else [loop.condition]))
        way = max((ready.get(node.number, 0.0) for node in ends), default=0.0)
        return Work(way, issued, text)


class CpuCosts(Costs):
    """Nanoseconds of one core."""

    reorders = True
    turn = ITERATION_NS

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def cost(self, node: Node, knobs: Knobs) -> Work:
        """Return what one node costs on vectors of so many lanes."""
        shape, count, way = node.shape, 1.0, LATENCY_NS
        if isinstance(node, Apply):
            cost = OPERATIONS[node.op].cost
            longer = DOUBLE if node.dtype is float64 and cost.slow else 1.0
            count, way = cost.cpu * longer, cost.depth * longer * LATENCY_NS
        elif isinstance(node, Dot):
            count = node.b.shape[0]
            way += self._total(node.b.shape[0], knobs.width)
        elif isinstance(node, Reduce):
            shape = node.arg.shape
            way += self._total(shape[-1], knobs.width)
        else:
            return Work()
        extent, size = max((*shape, 1)), prod(shape)
        if size <= 1:
            each = OPERATION_NS if knobs.across > 1 else SCALAR_NS
            return Work(way, count * each, count)
        text = count * (size // extent * -(-extent // knobs.width))
        return Work(way, text * OPERATION_NS * self._registers(knobs.width), text)

    @staticmethod
    def _total(extent: int, lanes: int) -> float:
        """Return how long a sum of so many elements takes, beyond an addition."""
        halvings = max(0, min(extent, lanes).bit_length() - 1)
        vectors = -(-extent // lanes)
        return halvings * HALVING_NS + max(0, vectors - 1).bit_length() * LATENCY_NS

    def _registers(self, lanes: int) -> float:
        return max(1.0, lanes * 4 / self.machine.vector_bytes)

    def share(self, parts: Outline, knobs: Knobs) -> Work:
        """Return an iteration's share of what is computed ahead, element by element."""
        alone = Knobs(1, across=knobs.ahead)
        text = sum(self.cost(node, alone).text for node in parts.ahead.nodes)
        side = text * OPERATION_NS * self._registers(knobs.ahead) / knobs.ahead
        kept = len(parts.kept)
        return Work(0.0, side + FETCH_NS * kept, text + LOOP_STATEMENTS + 4 * kept)

    def text(self, each: Work, share: Work, turn: int) -> float:
        """Return the statements of turns, of the iterations left, and of what is ahead."""
        return (each.text + LOOP_STATEMENTS) * (turn + (turn > 1)) + share.text


def model(program: Program, machine: Machine) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch on a CPU: its chains, and how they are shared."""
    costs, chains = CpuCosts(machine), max(1, program.chains)

    def predict(schedule: Schedule) -> Prediction:
        knobs = knobs_of(schedule)
        cost = costs.program(program, knobs)
        threads = machine.threads if schedule.threads == 0 else 1
        share = -(-chains // knobs.across) / threads
        turns = -(-chains // schedule.cuts[0].size)
        return Prediction(
            (
                ("arithmetic", cost.issued * share),
                ("waiting for operands", (cost.way - cost.issued) * share),
                ("build share", cost.text * BUILD_NS),
                *sharing_terms(schedule, machine, turns, cost.way * share),
            )
        )

    return predict
