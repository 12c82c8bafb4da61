"""Which stored values share a launch: those of the same reductions, readers with writers.

A launch that reads what another writes becomes a part of it where one kernel can do
both: it saves the reading. So do launches that read the same. Whether one kernel can is
asked of the nest: no rule here says what a schedule takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from math import prod
from types import MappingProxyType
from typing import Final

from steelyard_kernels.errors import CompilerBug, KernelError
from steelyard_kernels.expression.expr import (
    Gather,
    Input,
    Node,
    Program,
    Reduce,
    Result,
    operands,
)
from steelyard_kernels.nest.axes import one_space, stored
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan.bodies import Body
from steelyard_kernels.plan.cuts import MOVED, Cuts, is_product, is_still
from steelyard_kernels.plan.pieces import Group, Pieces, computed, inside
from steelyard_kernels.plan.rates import is_attention, is_kernel, reduces_rows
from steelyard_kernels.schedule.cores import WGMMA
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.recipes.weighted import WeightedTiling
from steelyard_kernels.schedule.strategies import is_one
from steelyard_kernels.schedule.weighted import weighted_of

PRODUCTS: Final = range(2, 5)  # of a launch: of weights, and what these are made of


class Groups:
    """The launches of a program's stored values, as `merge` leaves them.

    Loops of `bodies`, by their ids, are launches that are repeated.
    """

    def __init__(
        self,
        cuts: Cuts,
        device: Machine | Gpu,
        bodies: Mapping[int, Body] = MappingProxyType({}),
    ) -> None:
        self.cuts, self.bodies = cuts, bodies
        self.stored = set(cuts.reasons)
        self.pieces = Pieces(cuts.program.name)
        self.device = device
        self.own = {stored(output).number for output in cuts.program.outputs}
        self._legal: dict[object, int] = {}
        self.every: list[Group] = []
        self.of: dict[int, Group] = {}  # by the number of a value that it stores
        self._readers: dict[int, list[Group]] = {}  # by what they read
        self._attends = partial(is_attention, gpu=isinstance(device, Gpu))
        self.find()

    def find(self) -> None:
        """Have launches store all values, and join them."""
        cuts, device = self.cuts, self.device
        for number in sorted(cuts.reasons):
            node = cuts.nodes[number]
            self.add(Group([node], cuts.needs(node)))
        if isinstance(device, Machine) or device.cores:
            for group in list(self.every):
                self._attend(group)
        if isinstance(device, Gpu) and WGMMA in device.cores:
            self._weigh()
        for group in list(self.every):
            self._follow(group)
        self.merge()

    def memory(self, group: Group) -> set[int]:
        """Return the numbers of the stored values that a launch may read."""
        return self.stored - group.again

    def add(self, group: Group) -> None:
        """Have a launch store values, of others in memory."""
        _, group.reads = inside(group.values, self.memory(group))
        self.every.append(group)
        self.of |= {node.number: group for node in group.values}
        for node in group.reads:
            self._readers.setdefault(node.number, []).append(group)

    def _drop(self, group: Group) -> None:
        self.every.remove(group)
        for node in group.reads:
            self._readers[node.number].remove(group)

    def readers(self, node: Node) -> Sequence[Group]:
        """Return the launches that read a node, in the order of `every`."""
        return tuple(self._readers.get(node.number, ()))

    def _attend(self, group: Group) -> None:
        """Have one launch weigh values by a softmax of scores, where a kernel does."""
        for weights in group.reads if self._multiplies(group) else ():
            softmax = self._alone(weights, group)
            if softmax is None or self._multiplies(softmax):
                continue
            for logits in softmax.reads:
                scores = self._alone(logits, softmax)
                if scores is None or not self._multiplies(scores):
                    continue
                memory = self.stored - {weights.number, logits.number}
                program, _ = self.pieces.of(group.values, memory)
                if self.once(program, self._attends):
                    self._fuse(group, (scores, softmax), memory)
                    return

    def _follow(self, group: Group) -> None:
        """Have rows of a product reduced where it is computed, if a kernel does both."""
        gpu, reads = self.device, group.reads if group in self.every else ()
        for writer in [self._alone(read, group) for read in reads]:
            if writer is None or not isinstance(gpu, Gpu) or self._multiplies(group):
                continue
            memory = self.stored - _numbers(writer.values)
            alone, _ = self.pieces.of(writer.values, self.stored)
            program, _ = self.pieces.of(group.values, memory)
            key = id(alone), id(program)
            if key not in self._legal:
                self._legal[key] = reduces_rows(program, alone, gpu)
            if self._legal[key]:
                self._fuse(group, (writer,), memory)
                return

    def _fuse(self, group: Group, others: Sequence[Group], memory: set[int]) -> None:
        """Have a launch compute what others stored for it alone."""
        self.stored = memory
        for one in (*others, group):
            self._drop(one)
        needs = group.needs.union(*[one.needs for one in others])
        self.add(Group(group.values, needs))

    def _multiplies(self, group: Group) -> bool:
        nodes = self.cuts.nodes
        return any(is_product(nodes[n]) for n in group.needs - {MOVED})

    def _weigh(self) -> None:
        """Have all that multiply computed weights compute these again, if kernels do.

        What they are made of but products, one value a row, is stored for that; what
        nobody reads then is not.
        """
        every = dict.fromkeys(read for group in self.every for read in group.reads)
        for weights in [read for read in every if read.number in self.of]:
            readers = self.readers(weights)
            found = [self._weighed(group, prod(weights.shape)) for group in readers]
            kept = weights.number in self.own or not all(again for again, _ in found)
            for group, (again, rows) in zip(readers, found, strict=True):
                if not kept:
                    self._store(rows)
                    self._beside(group, again)
        self._forget()
        self._total()
        self._forget()

    def _forget(self) -> None:
        """Drop the launches of what nobody reads, one after the other."""
        while dead := [group for group in self.every if not self._is_read(group)]:
            for group in dead:
                self._drop(group)
                self.stored -= {node.number for node in group.values}

    def _total(self) -> None:
        """Have rows that weights are made of totalled without matrices, if a kernel does."""
        weighted = [group for group in self.every if group.again]
        again = frozenset[int]().union(*[group.again for group in weighted])
        read = dict.fromkeys(node for group in weighted for node in group.reads)
        rows = [n for n in read if isinstance(n, Reduce) and n.number in self.of]
        own = list(dict.fromkeys(self.of[n.number] for n in rows))
        others = [g for g in self.every if g not in own and again & _numbers(g.reads)]
        launches: list[list[Group]] = []
        for group in own:
            fits = [x for x in launches if not self._apart(group, *x)]
            if not fits:
                launches.append([])
            (fits or launches)[0 if fits else -1].append(group)
        values = [[n for group in one for n in group.values] for one in launches]
        programs = [self.pieces.of(each, self.stored - again)[0] for each in values]
        alone = all(_numbers(group.values) <= again for group in others)
        if alone and all(self.once(program, self._scores) for program in programs):
            for one, nodes in zip(launches, values, strict=True):
                for group in one:
                    self._drop(group)
                needs = frozenset[int]().union(*[group.needs for group in one])
                self.add(Group(nodes, needs, again))

    def _weighed(self, group: Group, size: int) -> tuple[frozenset[int], list[Node]]:
        """Return the matrices that a launch may compute again, and the rows that it reads.

        Matrices are of a size; there are none where no kernel sums rows so.
        """
        own = {node.number for node in group.values}
        sizes = {n: prod(self.cuts.nodes[n].shape) for n in self.stored - own}
        again = frozenset([n for n, each in sizes.items() if each == size])
        memory = self.stored - again
        products = filter(is_product, computed(group.values, memory))
        if len([*islice(products, PRODUCTS.stop)]) not in PRODUCTS:
            return frozenset(), []
        nodes, _ = inside(group.values, memory)
        rows: list[Node] = [
            n for n in nodes if isinstance(n, Reduce) and not is_product(n)
        ]
        memory = memory.union(n.number for n in rows)
        program, _ = self.pieces.of(group.values, memory)
        return (again if self.once(program, self._scores) else frozenset()), rows

    def _store(self, nodes: Iterable[Node]) -> None:
        """Have launches of their own store some values."""
        for node in nodes:
            if node.number not in self.stored:
                self.stored.add(node.number)
                self.cuts.reasons[node.number] = "weights are made of it"
                for group in [g for g in self.every if node.number in g.needs]:
                    self._drop(group)
                    self.add(group)
                self.add(Group([node], self.cuts.needs(node)))

    def _beside(self, group: Group, again: frozenset[int]) -> None:
        """Have a launch weigh sums, with another one that does if a kernel does both."""
        values, needs = group.values, group.needs
        reads = _numbers(inside(values, self.stored - again)[1])
        for other in [g for g in self.every if g.again and reads & _numbers(g.reads)]:
            joined = again | other.again
            both = sorted([*values, *other.values], key=lambda n: n.number)
            three = both, values, other.values
            programs = [self.pieces.of(each, self.stored - joined)[0] for each in three]
            every, *apart = [self.once(each, self._scores) for each in programs]
            if 0 < every <= max(apart) and not self._apart(group, other):
                self._drop(other)
                values, needs, again = both, needs | other.needs, joined
                break
        self._drop(group)
        self.add(Group(values, needs, again))

    def _is_read(self, group: Group) -> bool:
        """Say whether another launch reads what one stores, or it is the program's."""
        readers = [each for node in group.values for each in self.readers(node)]
        return bool(readers) or bool(self.own & _numbers(group.values))

    def _scores(self, program: Program) -> int:
        """Return of how many products a kernel makes weights of sums; 0 if none does."""
        try:
            nest = nest_of(program) if one_space(program) else None
        except KernelError:
            return 0
        whole = weighted_of(nest) if nest else "has several spaces"
        if nest is None or isinstance(whole, str) or not isinstance(self.device, Gpu):
            return 0
        every = WeightedTiling.proposed(whole, self.device)
        fits = any(not tiling.problem(self.device) for tiling in every)
        return len(whole.scores) if fits else 0

    def _alone(self, node: Node, reader: Group) -> Group | None:
        """Return the launch that stores a value alone, if one other alone reads it."""
        group = self.of.get(node.number)
        alone = group is not None and group.values == [node]
        alone = alone and self.readers(node) == (reader,)
        return group if alone and not isinstance(node, Input) else None

    def merge(self) -> None:
        """Join launches of common reductions, then readers to writers, then neighbours."""
        first: dict[int, Node] = {}
        for node in [group.values[0] for group in self.every]:
            for number in sorted(self.of[node.number].needs - {MOVED}):
                one = self.of[first.setdefault(number, node).number]
                own = self.of[node.number]
                if one is not own and not self._apart(one, own):
                    self._share(one, own)
        for node in [group.values[0] for group in self.every]:
            for read in reversed(self.of[node.number].reads):
                writer, own = self.of.get(read.number), self.of[node.number]
                if writer not in {None, own} and not isinstance(read, Input):
                    self._try(self.of[read.number], own)
        for node in self.cuts.program.nodes:
            for one, other in pairwise(self.readers(node)):
                alike = one.is_elementwise == other.is_elementwise
                if one in self.every and other in self.every and alike:
                    self._try(one, other)

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
            before = [each for each in self._before(group) if id(each) not in done]
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

    def _before(self, group: Group) -> list[Group]:
        """Return the launches that write what one reads, and those it must wait for."""
        found = [
            self.of[node.number]
            for node in group.reads
            if node.number in self.of and not isinstance(node, Input)
        ]
        return list(dict.fromkeys([*found, *group.behind]))

    def _join(self, one: Group, other: Group) -> None:
        """Have one launch store the values of two."""
        self._drop(one)
        self._drop(other)
        values = sorted([*one.values, *other.values], key=lambda node: node.number)
        self.add(Group(values, one.needs | other.needs))

    def _share(self, one: Group, other: Group) -> None:
        """Join two launches of a common reduction unless both are too much for a kernel."""
        values = [*one.values, *other.values]
        if one.again or other.again:
            return
        if (
            any(isinstance(node, Result) for node in values)
            or self.fits(values, is_one)
            or self.fits(values, is_kernel)
        ):  # one loop gives both
            self._join(one, other)

    def _try(self, one: Group, other: Group) -> None:
        """Join two launches if one kernel can do both and none lies between them."""
        needs = one.needs | other.needs
        if (
            not (one.again or other.again)
            and self.cuts.joint(needs)
            and self._still(one, other)
            and not self._apart(one, other)
            and self.fits([*one.values, *other.values], is_kernel)
        ):
            self._join(one, other)

    def _still(self, one: Group, other: Group) -> bool:
        """Say whether what one stores is read at the places where the other computes."""
        own = {node.number for node in one.values}
        nodes, _ = inside(other.values, self.stored)
        behind = set(own)
        for node in nodes:
            if any(arg.number in behind for arg in operands(node)):
                beside = isinstance(node, Gather) and node.arg.number not in behind
                if not (beside or is_still(node)):
                    return False
                behind.add(node.number)
        return True

    def put_behind(self, writer: Group, readers: Iterable[Group]) -> bool:
        """Have a launch wait for others; False where one of these waits for it."""
        others = [each for each in readers if each is not writer]
        if any(self._waits(each, writer) for each in others):
            return False
        writer.behind += others
        return True

    def _waits(self, last: Group, first: Group) -> bool:
        return first in self._before(last) or self._between((first, last), last)

    def _apart(self, *every: Group) -> bool:
        """Say whether another launch lies between some, in either order."""
        return any(self._between(every, last) for last in every)

    def _between(self, own: Sequence[Group], last: Group) -> bool:
        """Say whether another launch waits for one of some, and the last for that."""
        pending = [each for each in self._before(last) if each not in own]
        looked: set[int] = set()
        while pending:
            group = pending.pop()
            if group in own:
                return True
            if id(group) not in looked:
                looked.add(id(group))
                pending += self._before(group)
        return False

    def fits(self, values: Iterable[Node], test: Callable[[Program], bool]) -> bool:
        """Say whether one kernel that passes a test gives some values."""
        ordered = sorted(values, key=lambda node: node.number)
        program, _ = self.pieces.of(ordered, self.stored)
        return bool(self.once(program, test))

    def once(self, program: Program, test: Callable[[Program], int]) -> int:
        """Ask of a piece once."""
        key = test, id(program)
        if key not in self._legal:
            self._legal[key] = test(program)
        return self._legal[key]


def _numbers(nodes: Iterable[Node]) -> set[int]:
    return {node.number for node in nodes}
