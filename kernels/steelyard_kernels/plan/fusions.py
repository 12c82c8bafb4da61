"""Launches that become one: of products that a kernel does together, then of neighbours.

A launch that reads what another writes becomes a part of it where one kernel can do
both: it saves the reading. So do launches that read the same. What nobody else reads is
stored no more. No rule here says what a schedule takes, and none joins what is predicted
to take longer together.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import cache, partial
from itertools import islice, pairwise
from math import prod
from typing import Final

from steelyard_kernels.expression.expr import Input, Node, Reduce, Result
from steelyard_kernels.plan.cuts import MOVED
from steelyard_kernels.plan.groups import Groups, numbers
from steelyard_kernels.plan.pieces import Group, computed
from steelyard_kernels.plan.products import is_product
from steelyard_kernels.plan.rates import (
    has_schedule,
    is_kernel,
    is_serial,
    is_tiled,
    modelled,
    reduces_rows,
    weighted_scores,
)
from steelyard_kernels.schedule.cores import WGMMA
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.strategies import is_one

PRODUCTS: Final = range(2, 5)  # of a launch: of weights, and what these are made of


def fuse(groups: Groups) -> None:
    """Join launches where one kernel does what several do."""
    for between in (
        True,
        False,
    ):  # rows first: one product of several is no launch less
        for group in list(groups.every):
            _attend(groups, group, between=between)
    if isinstance(groups.device, Gpu) and WGMMA in groups.device.cores:
        groups.try_out(Weights(groups).weigh)
    for group in list(groups.every):
        _follow(groups, group)
    for group in list(groups.every):
        _hold(groups, group)
    _merge(groups)


def _attend(groups: Groups, group: Group, *, between: bool) -> None:
    """Have one launch weigh values by a softmax of scores, where a kernel does.

    It is made of a product that it waits for and, where there is something `between`, of
    all of that. Nobody else reads these.
    """
    chain = [group] if group in groups.every and groups.multiplies(group) else []
    scores = dict[Group, None]()
    waits: dict[Group, list[Group]] = {}
    for each in chain:  # which grows
        waits[each] = before = groups.before(each)
        scores |= dict.fromkeys(filter(groups.multiplies, before))
        known = {*chain, *scores}
        chain += [x for x in before if x not in known]
    for first in scores:
        every = [first]
        for each in every:  # which grows
            every += [x for x in chain if x not in every and each in waits[x]]
        if (len(every) > 2) is between and all(
            groups.is_within(x, every) for x in every if x is not group
        ):
            program = groups.together(*every)
            tiled = groups.once(is_tiled, program, groups.device)
            if tiled and groups.saves(program, *every):
                groups.join(*every)
                return


def _follow(groups: Groups, group: Group) -> None:
    """Have rows of a product reduced where it is computed, if a kernel does both."""
    gpu, reads = groups.device, group.reads if group in groups.every else ()
    for writer in [groups.alone(read, group) for read in reads]:
        if writer is None or not isinstance(gpu, Gpu) or groups.multiplies(group):
            continue
        both = groups.together(writer, group), groups.program(writer)
        if groups.once(reduces_rows, *both, gpu):
            groups.join(writer, group)
            return


def _hold(groups: Groups, group: Group) -> None:
    """Store what a launch reduces, where each block or thread would for itself."""
    program = groups.program(group)
    if groups.once(is_serial, program, groups.device):
        every = computed(group.values, groups.memory(group))
        rows = [node for node in every if isinstance(node, Reduce)]
        store = partial(groups.store, rows, "threads read it side by side")
        groups.try_out(store, modelled)


def _merge(groups: Groups) -> None:
    """Join launches of common reductions, then readers to writers, then neighbours."""
    first: dict[int, Node] = {}
    for node in [group.values[0] for group in groups.every]:
        for number in sorted(groups.of[node.number].needs - {MOVED}):
            one = groups.of[first.setdefault(number, node).number]
            own = groups.of[node.number]
            if one is not own and not groups.apart(one, own):
                _share(groups, one, own)
    for node in [group.values[0] for group in groups.every]:
        for read in reversed(groups.of[node.number].reads):
            writer, own = groups.of.get(read.number), groups.of[node.number]
            if writer is not None and writer is not own and not isinstance(read, Input):
                _try(groups, writer, own)
    for node in groups.cuts.program.nodes:
        for one, other in pairwise(groups.readers(node)):
            alike = one.is_elementwise == other.is_elementwise
            if one in groups.every and other in groups.every and alike:
                _try(groups, one, other)


def _share(groups: Groups, one: Group, other: Group) -> None:
    """Join two launches of a common reduction; a loop gives all of its results."""
    if any(isinstance(node, Result) for node in (*one.values, *other.values)):
        groups.join(one, other)
    else:
        _join(groups, one, other)


def _try(groups: Groups, one: Group, other: Group) -> None:
    """Join two launches unless one is read elsewhere, or another lies between them.

    Those of several products have no reductions in common with others.
    """
    cuts, needs = groups.cuts, one.needs | other.needs
    joint = cuts.joint(needs) or needs in {one.needs, other.needs}
    if joint and groups.still(one, other) and not groups.apart(one, other):
        _join(groups, one, other)


def _join(groups: Groups, one: Group, other: Group) -> None:
    """Join two launches if a kernel can do both, and is predicted to be as quick."""
    if one.again or other.again or groups.body(one) or groups.body(other):
        return
    program = groups.together(one, other)
    kernel = (
        groups.once(is_one, program)
        or groups.once(is_kernel, program)
        or groups.once(is_tiled, program, groups.device)
    )
    fits = kernel and groups.once(has_schedule, program, groups.device)
    if fits and groups.saves(program, one, other):
        groups.join(one, other)


class Weights:
    """Has weights computed again by what multiplies them, in place of memory."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self._of_size: dict[int, set[int]] = {}  # by elements
        for node in groups.cuts.program.nodes:
            self._of_size.setdefault(prod(node.shape), set()).add(node.number)

    def weigh(self) -> None:
        """Have all that multiply computed weights compute these again, if kernels do.

        What they are made of but products, one value a row, is stored for that; what
        nobody reads then is not. The last ones come first: these may be made of others.
        """
        groups, weighed = self.groups, cache(self._weighed)
        every = {read.number: read for group in groups.every for read in group.reads}
        for number in sorted(every.keys() & groups.of.keys(), reverse=True):
            weights, readers = every[number], groups.readers(every[number])
            if isinstance(weights, Reduce) and not is_product(weights):
                continue  # one value a row
            size = prod(weights.shape)
            if weights.number in groups.own or not all(
                weighed(group, size)[0] for group in readers
            ):
                continue
            found = [weighed(group, size) for group in readers]
            for group, (again, rows) in zip(readers, found, strict=True):
                groups.store(rows, "weights are made of it")
                self._beside(group, again)
            groups.forget()
            weighed.cache_clear()
        self._total()
        groups.forget()

    def _weighed(self, group: Group, size: int) -> tuple[frozenset[int], list[Node]]:
        """Return the matrices that a launch may compute again, and the rows that it reads.

        Matrices are of a size; there are none where no kernel sums rows so.
        """
        groups, stored = self.groups, self.groups.stored.keys()
        again = frozenset(self._of_size[size] & stored) - numbers(group.values)
        memory, every = stored - again, groups.cuts.products
        products = (n for n in computed(group.values, memory) if n.number in every)
        if len([*islice(products, PRODUCTS.stop)]) not in PRODUCTS:
            return frozenset(), []
        nodes, _ = groups.pieces.inside(group.values, memory)
        rows: list[Node] = [
            n for n in nodes if isinstance(n, Reduce) and not is_product(n)
        ]
        memory = memory.union(n.number for n in rows)
        fits = self._scores(group.values, memory)
        return (again if fits else frozenset()), rows

    def _scores(self, values: list[Node], memory: AbstractSet[int]) -> int:
        """Return of how many products a kernel makes weights; 0 if none does."""
        program, _ = self.groups.pieces.of(values, memory)
        return self.groups.once(weighted_scores, program, self.groups.device)

    def _beside(self, group: Group, again: frozenset[int]) -> None:
        """Have a launch weigh sums, with another one that does if a kernel does both."""
        groups, values, needs = self.groups, group.values, group.needs
        memory = groups.stored.keys() - again
        reads = numbers(groups.pieces.inside(values, memory)[1])
        for other in [g for g in groups.every if g.again and reads & numbers(g.reads)]:
            joined = again | other.again
            both = sorted([*values, *other.values], key=lambda n: n.number)
            memory = groups.stored.keys() - joined
            three = both, values, other.values
            every, *apart = [self._scores(each, memory) for each in three]
            if 0 < every <= max(apart) and not groups.apart(group, other):
                groups.drop(other)
                values, needs, again = both, needs | other.needs, joined
                break
        groups.drop(group)
        groups.add(Group(values, needs, again))

    def _total(self) -> None:
        """Have rows that weights are made of totalled without matrices, if a kernel does."""
        groups = self.groups
        weighted = [group for group in groups.every if group.again]
        again = frozenset[int]().union(*[group.again for group in weighted])
        read = dict.fromkeys(node for group in weighted for node in group.reads)
        rows = [n for n in read if isinstance(n, Reduce) and n.number in groups.of]
        own = list(dict.fromkeys(groups.of[n.number] for n in rows))
        others = [g for g in groups.every if g not in own and again & numbers(g.reads)]
        launches: list[list[Group]] = []
        for group in own:
            fits = [x for x in launches if not groups.apart(group, *x)]
            if not fits:
                launches.append([])
            (fits or launches)[0 if fits else -1].append(group)
        values = [[n for group in one for n in group.values] for one in launches]
        memory = groups.stored.keys() - again
        alone = all(numbers(group.values) <= again for group in others)
        if alone and all(self._scores(each, memory) for each in values):
            for one, nodes in zip(launches, values, strict=True):
                for group in one:
                    groups.drop(group)
                needs = frozenset[int]().union(*[group.needs for group in one])
                groups.add(Group(nodes, needs, again))
