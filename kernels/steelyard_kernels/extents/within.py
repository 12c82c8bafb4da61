"""A proof that a kernel for many extents reads and writes its arrays alone.

Each index is a polynomial of the extents, of loops' variables and of what threads are
told (see `ranges`); conditions and masks around an access are facts about these. Memory
that is no array is checked as well: a block's, a thread's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import gcd, prod
from typing import Final, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import int32, int64
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.extents.arithmetic import FOUND, NONE, ONE, Extents, less, number
from steelyard_kernels.extents.common import Common
from steelyard_kernels.extents.formulas import Formula, Point
from steelyard_kernels.extents.ranges import (
    Polynomial,
    Ranges,
    constant,
    plus,
    times,
    whole,
)
from steelyard_kernels.extents.served import RuntimeSlot
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var
from steelyard_kernels.ir.printing import statement_text

Facts: TypeAlias = list[Polynomial]  # at least 0 where a condition holds

WAITS: Final = ("mma_", "computed")
"""What effects on registers begin with that say how many groups they wait for."""


def prove(made: Common, least: Point, most: Point) -> None:
    """Raise Unsupported unless all accesses are within arrays from extents to others."""
    ranges = Ranges()
    try:
        _prove(made, least, most, ranges)
    except Unsupported:
        if not ranges.rests:
            raise
        _prove(made, least, most, Ranges(apart=True))


def _prove(made: Common, least: Point, most: Point, ranges: Ranges) -> None:
    kernel = made.lowered.kernel
    extents, values = Extents(ranges, least, most), dict[Operand, Polynomial]()
    for parameter, slot in zip(kernel.parameters, made.slots, strict=True):
        if isinstance(parameter, Var) and slot.slot.kind == "extent":
            values[parameter] = extents.of(slot.index)
    for formula in made.counts:
        if not ranges.holds(extents.of(formula)):
            raise Unsupported("a number would be below 0 at fewer elements")
    sizes = {name: extents.of(formula) for name, formula in made.arrays.items()}
    for slot in made.slots:
        _described(slot, extents, sizes)
    each = made.lowered.per_block
    blocks = extents.cut(made.slots[-1].index, each) if each else ONE
    ranges.base()
    Within(ranges, values, sizes, blocks).kernel(kernel)


def _described(
    slot: RuntimeSlot, extents: Extents, sizes: Mapping[str, Polynomial]
) -> None:
    """Raise Unsupported for a tensor, as bulk copies see it, that is beside its array."""
    tensor = slot.slot.tensor
    if tensor is None:
        return
    last = constant(tensor.first)
    strides = [Formula(1), *slot.strides]  # in bytes but the first
    item = dtypes.of(tensor.dtype).bytes
    for extent, stride in zip(slot.extents, strides, strict=True):
        share = Fraction(1, 1 if stride is strides[0] else item)
        behind = plus(NONE, extents.of(stride), share)
        last = plus(last, times(plus(extents.of(extent), ONE, -1), behind))
    if not extents.ranges.holds(less(last, sizes[f"input {slot.slot.index}"])):
        raise Unsupported(f"{tensor.name} may lie beside its array at some extents")


def fits(needed: Formula, room: int, bounds: Point) -> bool:
    """Say whether a formula is at most a number at all extents up to bounds."""
    ranges = Ranges()
    extents = Extents(ranges, (1,) * len(bounds), bounds)
    return ranges.holds(plus(constant(room), extents.of(needed), -1))


class Within:
    """Walks a kernel's statements and checks each access.

    `values` are what its parameters are, `arrays` the elements of those that are arrays.
    """

    def __init__(
        self,
        ranges: Ranges,
        values: Mapping[Operand, Polynomial],
        arrays: Mapping[str, Polynomial],
        blocks: Polynomial,
    ) -> None:
        self.ranges, self.arrays, self.checks = ranges, arrays, True
        self.values = dict(values)
        self.blocks, self.threads = blocks, ONE
        self.conditions: dict[Operand, tuple[Facts, Facts]] = {}
        self.some: dict[Operand, Polynomial] = {}  # what counts are that are not 0
        self.shared: dict[str, Polynomial] = {}
        self.ends: dict[Operand, tuple[Polynomial, Polynomial]] = {}
        self.rings: dict[Operand, tuple[Polynomial, Polynomial, Polynomial]] = {}

    def kernel(self, kernel: Kernel) -> None:
        """Raise Unsupported for the first access that may be beside its array."""
        self.threads = constant(kernel.threads)
        self.body(kernel.body)

    def of(self, operand: Operand) -> Polynomial:
        """Return what an integer is."""
        if isinstance(operand, Const):
            return constant(int(operand.value))
        if operand not in self.values:
            self.values[operand] = self.ranges.atom()
        return self.values[operand]

    def below(self, name: str, count: Polynomial) -> Polynomial:
        """Return the one number from 0 on of a name: a lane, a thread, a block."""
        if name not in self.shared:
            self.shared[name] = self.ranges.between(NONE, plus(count, ONE, -1))
        return self.shared[name]

    def lane(self, type_: Type) -> Polynomial:
        """Return which lane of a type it is."""
        lanes = type_.lanes
        return NONE if lanes == 1 else self.below(str(lanes), constant(lanes))

    def body(self, statements: Iterable[ir.Statement]) -> None:
        """Check statements in order."""
        for statement in statements:
            self.statement(statement)

    def statement(self, at: ir.Statement) -> None:  # noqa: C901 - one case a statement
        """Check one."""
        match at:
            case ir.Let() if at.var.type.dtype.kind == "int":
                self.values[at.var] = self.let(at)
            case ir.Let() if at.var.type.dtype.kind == "bool":
                self.conditions[at.var] = self.condition(at)
            case ir.Load():
                self.access(at, at.var.type)
            case ir.Store():
                self.access(at, at.value.type)
            case ir.Parallel():
                self.parallel(at)
            case ir.If():
                self.either(at)
            case ir.For():
                self.loop(at)
            case ir.Effect():
                self.effect(at)
            case ir.Multiply():
                for tile in (*at.rows, at.columns):
                    if isinstance(tile, ir.Tile):
                        first = plus(self.of(tile.index), constant(tile.first))
                        self.inside(at, tile.buffer, first)
            case _:
                pass

    def let(self, at: ir.Let) -> Polynomial:
        """Return what an integer operation gives."""
        if at.op == "thread":
            return self.below(at.op, self.threads)
        if at.op == "block":
            return self.below(at.op, self.blocks)
        if at.op == "iota":
            return self.lane(at.var.type)
        args = [x for x in at.args if x.type.dtype.kind == "int"]
        if at.op == "where":
            both = (self.of(args[0]), self.of(args[1]))
            if not any(both[1].values()):  # none but where a condition holds
                self.conditions[at.var] = self.condition(at)
                self.some[at.var] = self.some.get(args[0], both[0])
            if at.args[0] in self.ends and self.ends[at.args[0]][0] == both[1]:
                self.rings[at.var] = *both, self.ends[at.args[0]][1]
            return self.ranges.atom([both], [both])
        if at.op == "maximum" and self.of(args[1]) == NONE:
            self.some[at.var] = self.of(args[0])
        exact = {int32, int64}.issuperset([x.type.dtype for x in (at.var, *at.args)])
        if at.op not in FOUND or not exact:
            return self.ranges.atom()
        return FOUND[at.op](self.ranges, *map(self.of, args))

    def condition(self, at: ir.Let) -> tuple[Facts, Facts]:
        """Return what holds where a condition does, and where it does not."""
        if at.op == "mask_below":
            count, lane = self.of(at.args[0]), self.lane(at.var.type)
            return [less(lane, count)], [plus(lane, count, -1)]
        if at.args and at.args[0].type.dtype.kind == "int":
            return self.compared(at)
        every = [self.conditions.get(arg, ([], [])) for arg in at.args]
        match at.op:
            case "splat":
                return every[0]
            case "logical_not":
                return every[0][1], every[0][0]
            case "bitwise_and" | "where":
                return [*every[0][0], *every[1][0]], []
            case "bitwise_or":
                return [], [*every[0][1], *every[1][1]]
        return [], []

    def compared(self, at: ir.Let) -> tuple[Facts, Facts]:
        """Return the facts of a comparison of integers."""
        a, b = map(self.of, at.args)
        if at.op in {"greater", "less_equal"}:
            a, b = b, a
        below, same = less(a, b), [plus(a, b, -1), plus(b, a, -1)]
        match at.op:
            case "greater" if a == NONE and at.args[0] in self.some:
                held = self.conditions.get(at.args[0], ([], []))[0]
                return [less(NONE, self.some[at.args[0]]), *held], []
            case "less" | "greater":
                return [below], same[:1]
            case "less_equal" | "greater_equal":
                return same[:1], [below]
            case "equal":
                self.ends[at.var] = a, b
                return same, []
            case "not_equal":
                return [], same
        return [], []

    def access(self, at: ir.Load | ir.Store, type_: Type) -> None:
        """Check all lanes that a mask allows."""
        facts = self.conditions[at.mask][0] if at.mask in self.conditions else []
        if any(fact.keys() == {()} and fact[()] < 0 for fact in facts):
            return  # nowhere, as of an array beside one that begins behind it
        with self.ranges.assuming(facts):
            self.inside(at, at.buffer, plus(self.of(at.index), self.lane(type_)))

    def inside(self, at: ir.Statement, buffer: Buffer, index: Polynomial) -> None:
        """Raise Unsupported for an index that may be none of a buffer's."""
        if not self.checks:
            return
        extent = self.arrays.get(buffer.name) or self.of(buffer.extent)
        if not (self.ranges.holds(index) and self.ranges.holds(less(index, extent))):
            raise Unsupported(
                f"`{statement_text(at)}` may lie beside {buffer.name} at some extents"
            )

    def effect(self, at: ir.Effect) -> None:
        """Check the buffers of an effect, each at the index behind it."""
        if at.op.startswith(WAITS):
            return
        for buffer, behind in zip(at.args, at.args[1:], strict=False):
            if not isinstance(buffer, Buffer) or isinstance(behind, Buffer | ir.Tensor):
                continue
            index, facts = self.of(behind), Facts()
            if at.op == "copy_async":  # zeros for those that are not copied
                count = at.args[4 if buffer is at.args[0] else 5]
                assert not isinstance(count, Buffer | ir.Tensor)
                element = self.ranges.between(NONE)
                some = self.some.get(count, self.of(count))
                facts = [less(element, some), less(NONE, some)]
                facts += self.conditions.get(count, ([], []))[0]
                index = plus(index, element)
            elif at.op.startswith("tensor_copy") and buffer is at.args[0]:
                assert isinstance(at.args[2], ir.Tensor)
                box = constant(prod(at.args[2].box))
                index = plus(index, self.ranges.between(NONE, less(NONE, box)))
            with self.ranges.assuming(facts):
                self.inside(at, buffer, index)

    def either(self, at: ir.If) -> None:
        """Check both bodies, each where its condition holds."""
        facts = self.conditions.get(at.condition, ([], []))
        for own, body in zip(facts, (at.body, at.orelse), strict=True):
            with self.ranges.assuming(own):
                self.body(body)
        for var, *both in zip(at.results, at.values, at.else_values, strict=True):
            if var.type.dtype.kind == "int":
                ways = (self.of(both[0]), self.of(both[1]))
                self.values[var] = self.ranges.atom([ways], [ways])

    def parallel(self, at: ir.Parallel) -> None:
        """Check what a thread does with its chunk: a whole one, or the last."""
        extent = self.of(at.extent)
        low, high = NONE, extent
        if at.threads != 1:
            last = plus(NONE, plus(extent, ONE, -1), Fraction(1, at.chunk))
            low = times(constant(at.chunk), self.ranges.between(NONE, last))
            unit = gcd(at.chunk, *[int(n) for n in extent.values()])
            ends = [plus(NONE, each, Fraction(1, unit)) for each in (low, extent)]
            high = times(constant(unit), self.ranges.between(*ends))
        self.values[at.low], self.values[at.high] = low, high
        self.body(at.body)

    def loop(self, at: ir.For) -> None:
        """Check a body, whose variables grow by as much each time or stay within bounds."""
        start, step = self.of(at.start), Fraction(1, at.step)
        last = plus(plus(self.of(at.stop), ONE, -1), start, -1)
        last = whole(plus({}, last, step), up=False)
        turn = self.ranges.between(NONE, last, *number(self.ranges.most(last)))
        self.values[at.var] = plus(start, turn, at.step)
        held = [
            (var, self.of(first), after, result)
            for (var, first), after, result in zip(
                at.carried, at.yields, at.results, strict=True
            )
            if var.type.dtype.kind == "int"
        ]
        grows: dict[Var, Polynomial | None] = {}
        if held:
            grows = self.growth(at, [each[:3] for each in held], max(max(turn)))
        turns = self.ranges.atom([(NONE,)], [(plus(last, ONE), NONE)])
        for var, first, _, _ in held:
            by = grows[var]
            if by is not None:
                self.values[var] = plus(first, times(by, turn))
        self.body(at.body)
        for var, first, _, result in held:
            by = grows[var]
            self.values[result] = (
                self.values[var] if by is None else plus(first, times(by, turns))
            )

    def growth(
        self, at: ir.For, held: list[tuple[Var, Polynomial, Operand]], inner: int
    ) -> dict[Var, Polynomial | None]:
        """Return by what variables grow each time; None, and their bounds, of others.

        Atoms from `inner` on may have another value each time.
        """
        checks, self.checks = self.checks, False
        fresh: dict[Operand, Polynomial]
        fresh = {var: self.ranges.atom() for var, _, _ in held}
        self.values.update(fresh)
        self.body(at.body)
        self.checks = checks
        found: dict[Var, Polynomial | None] = {}
        for var, first, after in held:
            value = self.of(after)
            by = plus(value, fresh[var], -1)
            found[var] = by if all(max(m, default=-1) < inner for m in by) else None
            if self.turns(var, first, after):
                continue
            low = number(min(map(self.ranges.least, (value, first))))
            high = number(max(map(self.ranges.most, (value, first))))
            self.values[var] = self.ranges.atom(
                [(x,) for x in low], [(x,) for x in high]
            )
        return found

    def turns(self, var: Var, first: Polynomial, after: Operand) -> bool:
        """Tell of a number that starts anew where the next one would be an end."""
        if after not in self.rings:
            return False
        anew, value, end = self.rings[after]
        within = [plus(value, self.of(var), -1) == ONE, not set(end) - {()}]
        within += [self.ranges.holds(each) for each in (first, anew)]
        within += [self.ranges.holds(less(each, end)) for each in (first, anew)]
        if all(within):
            self.values[var] = self.ranges.between(NONE, plus(end, ONE, -1))
        return all(within)
