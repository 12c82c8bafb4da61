"""Other partitions of a program than the one that is found: a step away from it each.

A launch's values are stored by one launch each; what several launches became one for is
stored again; two that read one another, or the same, become one; or what one stores is
computed by all that read it. Equal launches change together: what is done for one layer
of a model is done for all. Programs with loops have no other than the one that is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import inf
from typing import Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Node, Program, loops
from steelyard_kernels.expression.structure import structure
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.homes import reason_of
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.plan.partition import groups_of, planned
from steelyard_kernels.plan.parts import Given, parts_of
from steelyard_kernels.plan.pieces import Group, computed
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.schedule import Part, Refuse, Schedule
from steelyard_kernels.schedule.strategies import best

WORTH: Final = 4.0
"""Times as long as the found one by which another may be predicted, to be tried."""

Step = tuple[str, list[Part]]
"""How a partition differs from the one that is found, in words, and its launches."""


def alternatives(
    program: Program, device: Machine | Gpu, refuse: Refuse
) -> Iterator[tuple[Schedule, Prediction, str]]:
    """Yield a simplified program's partitions, each with how it differs: the found first.

    Predictions are sums of the launches'. `refuse` hears of those of which a launch has no
    schedule, or a far slower one.
    """
    groups, known = groups_of(program, device), dict[object, float | KernelError]()
    seen, most = set[Schedule](), inf
    for words, parts in _Steps(groups).every():
        schedule = Schedule((), launches=tuple(parts))
        try:
            plan = planned(Given(groups, parts))
            total = _predicted(plan, device, known)
        except KernelError as error:
            refuse(schedule, f"{words}: {error}")
            continue
        most = min(most, WORTH * total)
        if total > most:
            refuse(schedule, f"{words}: takes over {WORTH:g} times as long, predicted")
        elif plan.schedule not in seen:
            seen.add(plan.schedule)
            yield plan.schedule, Prediction((("launches", total),)), words


def _predicted(
    plan: Plan, device: Machine | Gpu, known: dict[object, float | KernelError]
) -> float:
    """Return what all launches are predicted to take; raises KernelError for none."""
    total = 0.0
    for launch in plan.launches:
        what = structure(launch.program)
        if what not in known:
            try:
                known[what] = best(launch.program, device)[1].total
            except KernelError as error:
                known[what] = error
        found = known[what]
        if isinstance(found, KernelError):
            raise found
        total += found
    return total


class _Steps:
    """The partitions a step away, by the launches of each kind."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.place = {n.number: k for k, n in enumerate(groups.cuts.program.nodes)}
        self.launches = groups.order()
        self.parts = dict(zip(map(id, self.launches), parts_of(groups), strict=True))
        self.kinds: dict[int, list[Group]] = {}
        for group in self.launches:
            self.kinds.setdefault(self._kind(group), []).append(group)

    def every(self) -> Iterator[Step]:
        """Yield the partition that is found, and all others."""
        yield "as it is found", [*self.parts.values()]
        if loops(self.groups.cuts.program.nodes):
            return  # turns read what other launches store
        for alike in self.kinds.values():
            what = self._what(alike[0])
            if len(alike[0].values) > 1:
                single = [[node] for group in alike for node in group.values]
                yield f"apart: {what}", self._instead(alike, single)
            again = {n.number: n for group in alike for n in self._fused(group)}
            if again:
                stored = [
                    *[[node] for node in again.values()],
                    *[g.values for g in alike],
                ]
                yield f"apart: {what}", self._instead(alike, stored)
            given = self.groups.own  # what launches store for outputs
            inner = [g for g in alike if not any(n.number in given for n in g.values)]
            if inner:
                yield f"by its readers: {what}", self._instead(inner, [])
        for pairs in self._pairs():
            both = [group for pair in pairs for group in pair]
            joined = [[*one.values, *other.values] for one, other in pairs]
            words = " with ".join(map(self._what, pairs[0]))
            yield f"as one: {words}", self._instead(both, joined)

    def _pairs(self) -> Iterable[list[tuple[Group, Group]]]:
        """Return launches that read one another or the same, those of equal pairs together."""
        found: dict[tuple[int, int], list[tuple[Group, Group]]] = {}
        for pair in combinations(self.launches, 2):
            one, other = pair
            ends = {n.number for n in (*one.reads, *one.values)}
            if any(n.number in ends for n in other.reads):
                alike = found.setdefault((self._kind(one), self._kind(other)), [])
                if not any(
                    group in other_pair for other_pair in alike for group in pair
                ):
                    alike.append(pair)
        return found.values()

    def _fused(self, group: Group) -> Iterator[Node]:
        """Yield what was to be stored, and a launch computes for itself."""
        groups = self.groups
        for node in computed(group.values, groups.memory(group)):
            own = node in group.values
            if node.number in groups.cuts.reasons and not own:
                yield node

    def _instead(
        self, old: Sequence[Group], new: Iterable[Sequence[Node]]
    ) -> list[Part]:
        """Return the partition with launches of other values in the place of some."""
        kept = [self.parts[id(each)] for each in self.launches if each not in old]
        places = [sorted(self.place[node.number] for node in values) for values in new]
        return [*kept, *[Part(tuple(each)) for each in places]]

    def _kind(self, group: Group) -> int:
        made, _ = self.groups.pieces.of(group.values, self.groups.memory(group))
        return id(made)

    def _what(self, group: Group) -> str:
        memory = self.groups.memory(group)
        nodes, _ = self.groups.pieces.inside(group.values, memory)
        return reason_of(nodes, group.values, again=bool(group.again))
