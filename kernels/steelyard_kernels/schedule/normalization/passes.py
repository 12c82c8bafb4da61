"""Programs with reductions, cut into passes over a block of rows.

A value depends on the row, on the column (the reduced last axis), on both or on
neither; its depth is how many reductions it waits for. Pass p computes the
reductions of depth p + 1 and everything for every element that they need; what a
later pass needs again is kept in registers, or computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import (
    Apply,
    Input,
    Node,
    Program,
    Reduce,
    operands,
    users,
)
from steelyard_kernels.monoids import MONOIDS, Monoid
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.normalization.outline import (
    COLUMN,
    ELEMENT,
    Outline,
    outline,
)
from steelyard_kernels.schedule.normalization.space import squeezed
from steelyard_kernels.schedule.variance import expand_variance

# The reductions that one walk of sums serves.
ADDED: Final = frozenset(row.name for row in MONOIDS.values() if row.combine == "add")

# What passes keep of what later ones need: "wide" has what is needed, "packed" the fewest
# bytes that are cheap to go on from, NOTHING nothing.
NOTHING: Final = "reload"


@dataclass(frozen=True, slots=True)
class Sum:
    """What one pass accumulates over a row of `arg`.

    `kind` is a row of MONOIDS, or "moments" (sum and sum of squares, of the difference
    to a shift if the schedule has one). `ops` are the reductions it serves, `factors`
    the two whose product a sum adds up without forming it first.
    """

    kind: str
    arg: Node
    ops: frozenset[str]
    factors: tuple[Node, Node] | None = None

    @property
    def reads(self) -> tuple[Node, ...]:
        """What must exist for every element."""
        return self.factors or (self.arg,)

    @property
    def monoid(self) -> Monoid:
        """By what two accumulators become one, and what they start from."""
        return MONOIDS["var" if self.kind == "moments" else self.kind]

    @property
    def accumulators(self) -> int:
        """How many numbers it adds up."""
        return 2 if self.kind == "moments" else 1


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk over a row evaluates, in order; `loads` are those that were kept."""

    columns: tuple[Node, ...]
    elements: tuple[Node, ...]
    loads: frozenset[int]


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over a row: its goals, and what it evaluates to reach them.

    `outputs` are positions of outputs that it writes, `stores` the elements that it
    keeps. `again` is a second walk over the moments' arguments, for rows where the
    first cancelled.
    """

    sums: tuple[Sum, ...]
    reduces: tuple[Reduce, ...]
    outputs: tuple[int, ...]
    walk: Walk
    stores: frozenset[int]
    again: Walk | None


@dataclass(frozen=True, slots=True)
class Rows(Outline):
    """A program as passes over its rows.

    `scratch` gives each kept node its slot, `slots` each slot's dtype.
    """

    passes: tuple[Pass, ...]
    scratch: dict[int, int]
    slots: tuple[dtypes.DType, ...]


def rewalked(rows: Rows) -> bool:
    """Say whether a second walk may read a row that its pass has overwritten."""
    updates = any(output.updates is not None for output in rows.program.outputs)
    return updates and any(each.again and each.outputs for each in rows.passes)


def passes_of(program: Program, statistics: str, keep: str, *, corrected: bool) -> Rows:
    """Cut a program into passes; `keep` says what they keep for later ones.

    Raises Unsupported for programs whose rows do not line up.
    """
    if statistics == "two_pass":
        program = expand_variance(program, corrected=corrected)
    return cut(outline(program), keep=keep)


def cut(found: Outline, *, keep: str) -> Rows:
    """Cut an outlined program into passes; `keep` says what they keep."""
    cutter = _Cutter(found.program, found.places, found.depths, keep=keep)
    passes = cutter.passes()
    return Rows(
        found.program,
        found.extent,
        found.rows,
        found.space,
        found.inputs,
        found.places,
        found.depths,
        passes,
        cutter.scratch,
        tuple(cutter.slots),
    )


class _Cutter:
    """Cuts a program into passes, one after another."""

    def __init__(
        self,
        program: Program,
        places: dict[int, int],
        depths: dict[int, int],
        *,
        keep: str,
    ) -> None:
        self.program = program
        self.places = places
        self.depths = depths
        self.keep = keep
        self.count = users(program.nodes)
        for output in program.outputs:  # an output is a use
            number = output.value.number
            self.count[number] = self.count.get(number, 0) + 1
        self.scratch: dict[int, int] = {}
        self.slots: list[dtypes.DType] = []
        self.stored: dict[int, int] = {}  # by node, the pass that keeps it
        self.bytes = {node.number: node.dtype.bytes for node in program.nodes}

    def passes(self) -> tuple[Pass, ...]:
        """Return all passes."""
        reduces: dict[int, list[Reduce]] = {}
        for node in self.program.nodes:
            if isinstance(node, Reduce):
                reduces.setdefault(self.depths[node.arg.number], []).append(node)
        lost = squeezed(self.program.nodes)
        outputs = [
            place
            for place, output in enumerate(self.program.outputs)
            if self.is_wide(output.value, lost)
        ]
        depth = [self.depths[self.program.outputs[o].value.number] for o in outputs]
        last = max([*reduces, *depth], default=0)
        sums = [_sums(reduces.get(p, ()), self.count) for p in range(last + 1)]
        goals = [_goals(each) for each in sums]
        goals[last] += [self.program.outputs[place].value for place in outputs]
        made = []
        for p in range(last + 1):
            walk = self.walk(goals[p])
            moments = [each.arg for each in sums[p] if each.kind == "moments"]
            again = self.walk(moments) if moments else None
            stores = self.frontier(walk, goals[p + 1 :], p)
            made.append(
                Pass(
                    sums[p],
                    tuple(reduces.get(p, ())),
                    tuple(outputs) if p == last else (),
                    walk,
                    frozenset(stores),
                    again,
                )
            )
        self.allot(made)
        return tuple(made)

    def is_wide(self, node: Node, lost: set[int]) -> bool:
        """Say whether an output has a value for every element of a row."""
        extent = max(
            (n.arg.shape[-1] for n in self.program.nodes if isinstance(n, Reduce)),
            default=1,
        )
        return (
            node.number not in lost
            and bool(node.shape)
            and node.shape[-1] == extent
            and extent != 1
        )

    def walk(self, goals: Sequence[Node]) -> Walk:
        """Return what reaching the goals evaluates, given what is kept by now."""
        columns: dict[int, Node] = {}
        elements: dict[int, Node] = {}
        loads: set[int] = set()
        pending = list(goals)
        while pending:
            node = pending.pop()
            place = self.places[node.number]
            if node.number in self.stored:
                loads.add(node.number)
                elements[node.number] = node
            elif place in {COLUMN, ELEMENT}:
                found = columns if place == COLUMN else elements
                if node.number not in found:
                    found[node.number] = node
                    pending.extend(operands(node))
        return Walk(_ordered(columns), _ordered(elements), frozenset(loads))

    def frontier(
        self, walk: Walk, later: Sequence[Sequence[Node]], index: int
    ) -> set[int]:
        """Return what the walk evaluates and a later one would evaluate again."""
        if self.keep == NOTHING:
            return set()
        here = {node.number for node in walk.elements if node.number not in walk.loads}
        found: set[int] = set()
        seen: set[int] = set()
        pending = [node for goals in later for node in goals]
        while pending:
            node = pending.pop()
            if node.number in here:
                found |= (
                    self.narrowest(node) if self.keep == "packed" else {node.number}
                )
            elif node.number not in seen and node.number not in self.stored:
                seen.add(node.number)
                if not isinstance(node, Reduce):
                    pending.extend(operands(node))
        for number in found:
            self.stored[number] = index
        return found

    def narrowest(self, node: Node) -> set[int]:
        """Return the elements of fewest bytes that a node is cheap to compute from.

        Halves stay as they are: what is below one mostly fills as many registers.
        """
        if node.number in self.stored:
            return set()
        here = {node.number}
        costly = isinstance(node, Apply) and OPERATIONS[node.op].cost.slow
        if isinstance(node, Input) or node.dtype in dtypes.HALVES or costly:
            return here
        below: set[int] = set()
        for arg in operands(node):
            if self.places[arg.number] == ELEMENT:
                below |= self.narrowest(arg)
        size = sum(self.bytes[number] for number in below)
        return below if size < node.dtype.bytes else here

    def allot(self, passes: Sequence[Pass]) -> None:
        """Give each kept node a scratch slot, used again once its node is dead."""
        dtype_of = {node.number: node.dtype for node in self.program.nodes}
        last: dict[int, int] = {}  # by node, twice its last pass, odd in `again`
        for index, each in enumerate(passes):
            for number in each.walk.loads:
                last[number] = max(last.get(number, 0), 2 * index)
            for number in each.again.loads if each.again else ():
                last[number] = max(last.get(number, 0), 2 * index + 1)
        free_after: list[int] = []
        for index, each in enumerate(passes):
            for number in sorted(each.stores):
                dtype = dtype_of[number]
                for slot, until in enumerate(free_after):
                    if until <= 2 * index and self.slots[slot] is dtype:
                        break
                else:
                    slot = len(free_after)
                    free_after.append(0)
                    self.slots.append(dtype)
                self.scratch[number] = slot
                free_after[slot] = last[number]


def _sums(reduces: Iterable[Reduce], count: dict[int, int]) -> tuple[Sum, ...]:
    """Return what a pass accumulates: once for each argument and kind."""
    wanted: dict[int, set[str]] = {}
    args: dict[int, Node] = {}
    for node in reduces:
        wanted.setdefault(node.arg.number, set()).add(node.op)
        args[node.arg.number] = node.arg
    found = []
    for number, ops in wanted.items():
        arg = args[number]
        if "var" in ops:
            found.append(Sum("moments", arg, frozenset(ops & ADDED)))
        elif ops & ADDED:
            factors = _factors(arg, ops, count)
            found.append(Sum("sum", arg, frozenset(ops & ADDED), factors))
        found += [Sum(op, arg, frozenset({op})) for op in sorted(ops - ADDED)]
    return tuple(found)


def _factors(
    arg: Node, ops: set[str], count: dict[int, int]
) -> tuple[Node, Node] | None:
    """Return the factors of a product that only this sum needs."""
    if (
        isinstance(arg, Apply)
        and arg.op == "multiply"
        and arg.dtype in {dtypes.float32, dtypes.float64}
        and count[arg.number] == len(ops)
        and not ops - ADDED
    ):
        return arg.args[0], arg.args[1]
    return None


def _goals(sums: Iterable[Sum]) -> list[Node]:
    goals: list[Node] = []
    for each in sums:
        goals += each.reads
    return goals


def _ordered(nodes: dict[int, Node]) -> tuple[Node, ...]:
    return tuple(nodes[number] for number in sorted(nodes))
