"""What programs that carry state cost: the way through them, and what is issued on it.

An iteration takes what it issues, or the longest way of operations that wait for one
another from carry to carry, whichever is longer: of one chain of small values that is
the way. Here is how a program's parts add up on any target, and what they are on a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import float64
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.nest.carried.outline import Outline, of_all
from steelyard_kernels.nest.carried.tensor import line_steps
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule import model as terms
from steelyard_kernels.schedule.carries import Knobs, knobs_of
from steelyard_kernels.schedule.model import Machine, Prediction
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


class Work(Struct, frozen=True):
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
        self._bodies: dict[tuple[int, bool], Body] = {}
        self._works: dict[tuple[int, ...], Work] = {}
        self._nodes: dict[tuple[int, int], dict[int, Work]] = defaultdict(dict)

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

        def outside() -> Work:
            plain = [
                node for node in program.nodes if not isinstance(node, expr.Result)
            ]
            works = [self.node(node, knobs) for node in plain]
            total = _sum(works)
            return replace(total, way=total.issued) if self.reorders else total

        total = self._known(outside, -1, knobs.width, knobs.across)
        for loop in expr.loops(program.nodes):
            total = total.then(self._loop(loop, knobs))
        return total

    def node(self, node: Node, knobs: Knobs) -> Work:
        """Return what one node costs, a result of a loop all of it."""
        if isinstance(node, expr.Result):
            return self._loop(node.loop, knobs)
        known = self._nodes[knobs.width, knobs.across]
        found = known.get(node.number)
        if found is None:
            found = known[node.number] = self.cost(node, knobs)
        return found

    def _loop(self, loop: expr.Loop, knobs: Knobs) -> Work:
        """Return what all iterations cost."""
        shape = knobs.width, knobs.across, knobs.ahead, knobs.unroll
        return self._known(lambda: self._iterations(loop, knobs), id(loop), *shape)

    def _iterations(self, loop: expr.Loop, knobs: Knobs) -> Work:
        ahead = knobs.ahead > 1
        if (id(loop), ahead) not in self._bodies:
            self._bodies[id(loop), ahead] = Body.of(loop, ahead=ahead)
        body = self._bodies[id(loop), ahead]
        turn = loop.unroll or (1 if body.nested else knobs.unroll)
        key = id(loop), knobs.width, knobs.across, knobs.ahead
        share = Work()
        if body.parts.kept:
            share = self._known(lambda: self.share(body.parts, knobs), *key)
        key = *key[:3], ahead, *((knobs.ahead, knobs.unroll) if body.nested else ())
        both = self._known(lambda: self._way(body, body.steps, knobs), *key, 0, 0)
        last = self._known(lambda: self._way(body, body.late, knobs), *key, 1, 1)
        way = last.way
        if not self.reorders:  # what needs no carry is done for all of a turn together
            apart = (both.way - last.way) + (both.issued - last.issued) * (turn - 1)
            way = min(both.way, last.way + apart / turn)
        issued = both.issued + share.issued + self.turn / turn
        way = max(way, issued) if self.reorders else way + share.way
        text = self.text(both, share, turn)
        length = loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH
        return Work(way * length, issued * length, text)

    def _way(self, body: Body, steps: Sequence[Step], knobs: Knobs) -> Work:
        """Return the way through some steps of an iteration, and what they issue."""
        ready: dict[int, float] = {}
        works = []
        for number, node, reads in steps:
            begun = max([ready.get(read, 0.0) for read in reads], default=0.0)
            if node is not None:
                works.append(self.node(node, knobs))
                begun += works[-1].way
            ready[number] = begun
        way = max([ready.get(number, 0.0) for number in body.ends], default=0.0)
        return replace(_sum(works), way=way)


def _sum(works: Sequence[Work]) -> Work:
    """Return what works cost one after another."""
    return Work(
        sum([work.way for work in works]),
        sum([work.issued for work in works]),
        sum([work.text for work in works]),
    )


Step = tuple[int, Node | None, tuple[int, ...]]
"""A node's number, itself if it costs anything, and the numbers of what it reads."""


class Body(Struct, frozen=True):
    """What an iteration does: all `steps`, those that wait for a carry, what it ends at."""

    parts: Outline
    steps: tuple[Step, ...]
    late: tuple[Step, ...]
    ends: tuple[int, ...]
    nested: bool

    @classmethod
    def of(cls, loop: expr.Loop, *, ahead: bool) -> Body:
        """Sort a loop of which all results are wanted; inner loops are done once."""
        parts = of_all(loop, ahead=ahead)
        waits = {carry.number for carry in loop.carries}
        first: dict[int, int] = {}  # of the results of each inner loop
        steps: list[Step] = []
        late: list[Step] = []
        for part in (parts.each, parts.condition):
            for node in part.nodes:
                step: Step = (
                    node.number,
                    node,
                    tuple([n.number for n in part.reads(node)]),
                )
                if isinstance(node, expr.Result):
                    begun = first.setdefault(id(node.loop), node.number)
                    if begun != node.number:
                        step = node.number, None, (begun,)
                steps.append(step)
                if not waits.isdisjoint(step[2]):
                    waits.add(node.number)
                    late.append(step)
        ends = [*loop.nexts, *([] if loop.condition is None else [loop.condition])]
        numbers = tuple([node.number for node in ends])
        return cls(parts, tuple(steps), tuple(late), numbers, bool(first))


class CpuCosts(Costs):
    """Nanoseconds of one core."""

    reorders = True
    turn = terms.ITERATION_NS

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def cost(self, node: Node, knobs: Knobs) -> Work:
        """Return what one node costs on vectors of so many lanes."""
        shape, count, way = node.shape, 1.0, LATENCY_NS
        if isinstance(node, expr.Apply):
            cost = OPERATIONS[node.op].cost
            longer = DOUBLE if node.dtype is float64 and cost.slow else 1.0
            count, way = cost.cpu * longer, cost.depth * longer * LATENCY_NS
        elif isinstance(node, expr.Dot):
            count = node.b.shape[0]
            way += self._total(node.b.shape[0], knobs.width)
        elif isinstance(node, expr.Reduce):
            shape = node.arg.shape
            way += self._total(shape[-1], knobs.width)
        elif isinstance(node, expr.Along):
            steps, every = line_steps(node)
            return Work(steps * LATENCY_NS, every * SCALAR_NS, every)
        else:
            return Work()
        extent, size = max((*shape, 1)), prod(shape)
        if size <= 1:
            each = terms.OPERATION_NS if knobs.across > 1 else SCALAR_NS
            return Work(way, count * each, count)
        text = count * (size // extent * -(-extent // knobs.width))
        return Work(way, text * terms.OPERATION_NS * self._registers(knobs.width), text)

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
        text = sum([self.node(node, alone).text for node in parts.ahead.nodes])
        side = text * terms.OPERATION_NS * self._registers(knobs.ahead) / knobs.ahead
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
                ("build share", cost.text * terms.BUILD_NS),
                *terms.sharing_terms(schedule, machine, turns, cost.way * share),
            )
        )

    return predict
