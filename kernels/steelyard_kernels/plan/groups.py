"""Which stored values share a launch, with what it reads and what it waits for.

`fusions` joins them: every change must be one kernel, which is asked of the nest and its
schedules, and must be predicted to take no longer than the launches that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.plan.bodies import Body
from steelyard_kernels.plan.cuts import Cuts, is_still
from steelyard_kernels.plan.pieces import Group, Pieces
from steelyard_kernels.plan.rates import is_cliff, predicted
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine

T = TypeVar("T")
Rate: TypeAlias = Callable[[Program, Machine | Gpu], float]


class Groups:
    """The launches of a program's stored values: at first one for each.

    `stored` says of each value in memory, by its number, why it is there. Loops of
    `bodies`, by their ids, are launches that are repeated.
    """

    def __init__(
        self,
        cuts: Cuts,
        device: Machine | Gpu,
        bodies: Mapping[int, Body] = MappingProxyType({}),
    ) -> None:
        self.cuts, self.device, self.bodies = cuts, device, bodies
        self.stored = dict(cuts.reasons)
        self.pieces = Pieces(cuts.program.name)
        self.own = {stored(output).number for output in cuts.program.outputs}
        self.every: list[Group] = []
        self.of: dict[int, Group] = {}  # by the number of a value that it computes
        self._readers: dict[int, list[Group]] = {}  # by what they read
        self._known: dict[object, Any] = {}
        self.find()

    def find(self) -> None:
        """Have a launch store each value."""
        for number in sorted(self.stored):
            node = self.cuts.nodes[number]
            self.add(Group([node], self.cuts.needs(node)))

    def memory(self, group: Group) -> AbstractSet[int]:
        """Return the numbers of the stored values that a launch may read."""
        stored = self.stored.keys()
        return stored - group.again if group.again else stored

    def add(self, group: Group) -> None:
        """Add a launch."""
        group.program, group.reason, group.reads = None, "", self._reads(group)
        self.every.append(group)
        self.of |= {node.number: group for node in group.values}
        for node in group.reads:
            self._readers.setdefault(node.number, []).append(group)

    def _reads(self, group: Group) -> list[Node]:
        """Return what a launch reads; what a loop's turns read is in memory before."""
        body = self.body(group)
        if body is not None:
            return [*body.memory]
        return self.pieces.inside(group.values, self.memory(group))[1]

    def drop(self, group: Group) -> None:
        """Take a launch out."""
        self.every.remove(group)
        for node in group.reads:
            self._readers[node.number].remove(group)

    def readers(self, node: Node) -> Sequence[Group]:
        """Return the launches that read a node, in the order of `every`."""
        return tuple(self._readers.get(node.number, ()))

    def multiplies(self, group: Group) -> bool:
        """Say whether a launch has a product."""
        return not self.cuts.products.isdisjoint(group.needs)

    def body(self, group: Group) -> Body | None:
        """Return the loop whose turns' launches a launch stands for, if there is one."""
        own = [id(node.loop) for node in group.values if isinstance(node, expr.Result)]
        return next((self.bodies[loop] for loop in own if loop in self.bodies), None)

    def alone(self, node: Node, reader: Group) -> Group | None:
        """Return the launch that stores a value alone, if one other alone reads it."""
        group = self.of.get(node.number)
        alone = group is not None and group.values == [node]
        alone = alone and self.readers(node) == (reader,)
        return group if alone and not isinstance(node, expr.Input) else None

    def store(self, nodes: Iterable[Node], why: str) -> None:
        """Have launches of their own store some values."""
        for node in nodes:
            if node.number not in self.stored:
                self.stored[node.number] = why
                for group in [g for g in self.every if node.number in g.needs]:
                    self.drop(group)
                    self.add(group)
                self.add(Group([node], self.cuts.needs(node)))

    def together(self, *groups: Group) -> Program:
        """Return what one launch would compute that does what several do."""
        values = self._wanted(*groups)
        gone = {number for group in groups for number in numbers(group.values)}
        return self.pieces.of(values, self.stored.keys() - gone)[0]

    def join(self, *groups: Group) -> None:
        """Have one launch do what several do."""
        values = self._wanted(*groups)
        every = [number for number, group in self.of.items() if group in groups]
        for group in groups:
            self.drop(group)
            for number in numbers(group.values) - numbers(values):
                del self.stored[number]
        needs = frozenset[int]().union(*[group.needs for group in groups])
        self.add(Group(values, needs))
        self.of |= dict.fromkeys(every, self.every[-1])

    def forget(self) -> None:
        """Drop the launches of what nobody reads, one after the other."""
        while dead := [group for group in self.every if not self._wanted(group)]:
            for group in dead:
                self.drop(group)
                for node in group.values:
                    del self.stored[node.number]

    def is_within(self, group: Group, others: Container[Group]) -> bool:
        """Say whether other launches alone read what one stores."""
        own = {*self.own} & numbers(group.values)
        return not own and not any(self._read_by(n, others) for n in group.values)

    def _wanted(self, *groups: Group) -> list[Node]:
        """Return the values of launches that others read, or that are the program's."""
        every = [node for group in groups for node in group.values]
        found = [n for n in every if n.number in self.own or self._read_by(n, groups)]
        return sorted(found, key=lambda node: node.number)

    def _read_by(self, node: Node, groups: Container[Group]) -> bool:
        """Say whether a launch beside some reads a value."""
        return any(group not in groups for group in self.readers(node))

    def try_out(self, change: Callable[[], None], of: Rate = predicted) -> None:
        """Make a change that stays where it saves time, which is predicted or modelled."""
        stored, every = dict(self.stored), [*self.every]
        taken = self._taken(every, of)
        change()
        if self._taken(self.every, of) > taken:
            self.stored, self.every, self.of, self._readers = stored, [], {}, {}
            for group in every:
                self.add(group)

    def saves(self, program: Program, *groups: Group) -> bool:
        """Say whether one kernel is predicted to take no longer than launches apart."""
        if self.once(predicted, program, self.device) > self._taken(groups):
            return False
        return not is_cliff(program, map(self.program, groups), self.device)

    def _taken(self, groups: Iterable[Group], of: Rate = predicted) -> float:
        """Return what launches are predicted to take one after the other."""
        programs = [self.program(group) for group in groups]
        return sum([self.once(of, each, self.device) for each in programs])

    def program(self, group: Group) -> Program:
        """Return what a launch computes as a program."""
        if group.program is None:
            group.program, _ = self.pieces.of(group.values, self.memory(group))
        return group.program

    def once(self, test: Callable[..., T], *args: object) -> T:
        """Ask of pieces once: tests and what they are given stay as they are."""
        key = test, *map(id, args)
        if key not in self._known:
            self._known[key] = test(*args)
        found: T = self._known[key]
        return found

    def order(self) -> list[Group]:
        """Return the launches, each behind those that it reads.

        Raises CompilerBug where two wait for each other.
        """
        done: dict[int, None] = {}
        opened: set[int] = set()
        found: list[Group] = []
        pending = sorted(self.every, key=self._order, reverse=True)
        while pending:
            group = pending.pop()
            if id(group) in done:
                continue
            before = [each for each in self.before(group) if id(each) not in done]
            if before:
                if id(group) in opened:
                    raise CompilerBug(
                        f"{self.cuts.program.name}: launches wait for one another; "
                        "report it with the kernel."
                    )
                opened.add(id(group))
                pending.append(group)
                pending += sorted(before, key=self._order, reverse=True)
            else:
                done[id(group)] = None
                found.append(group)
        return found

    @staticmethod
    def _order(group: Group) -> int:
        return max(node.number for node in group.values)

    def before(self, *groups: Group) -> list[Group]:
        """Return the launches that write what some read, and those they must wait for."""
        found = [
            self.of[node.number]
            for group in groups
            for node in group.reads
            if node.number in self.of and not isinstance(node, expr.Input)
        ]
        found += [each for group in groups for each in group.behind]
        return [each for each in dict.fromkeys(found) if each not in groups]

    def still(self, one: Group, other: Group) -> bool:
        """Say whether what one stores is read at the places where the other computes."""
        own = {node.number for node in one.values}
        nodes, _ = self.pieces.inside(other.values, self.stored.keys())
        behind = set(own)
        for node in nodes:
            if any(arg.number in behind for arg in expr.operands(node)):
                beside = isinstance(node, expr.Gather) and node.arg.number not in behind
                if not (beside or is_still(node)):
                    return False
                behind.add(node.number)
        return True

    def put_behind(self, writer: Group, readers: Iterable[Group]) -> bool:
        """Have a launch wait for others; False where one of these waits for it."""
        others = [each for each in readers if each is not writer]
        if any(
            writer in self.before(each) or self._between((writer, each), each)
            for each in others
        ):
            return False
        writer.behind += others
        return True

    def apart(self, *every: Group) -> bool:
        """Say whether another launch lies between some, in either order."""
        return any(self._between(every, last) for last in every)

    def _between(self, own: Sequence[Group], last: Group) -> bool:
        """Say whether another launch waits for one of some, and the last for that."""
        pending = [each for each in self.before(last) if each not in own]
        looked: set[int] = set()
        while pending:
            group = pending.pop()
            if group in own:
                return True
            if id(group) not in looked:
                looked.add(id(group))
                pending += self.before(group)
        return False


def numbers(nodes: Iterable[Node]) -> set[int]:
    """Return the numbers of some nodes."""
    return {node.number for node in nodes}
