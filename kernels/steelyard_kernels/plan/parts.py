"""Partitions as data: launches by the places of what they store, and launches of these."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard_kernels.errors import CompilerBug, KernelError
from steelyard_kernels.expression.expr import Input
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.pieces import Group
from steelyard_kernels.schedule.schedule import Part, Schedule


def parts_of(groups: Groups) -> tuple[Part, ...]:
    """Return a partition as data, of which `Given` makes the same launches again."""
    place = {node.number: k for k, node in enumerate(groups.cuts.program.nodes)}
    return tuple(
        Part(
            tuple(place[node.number] for node in group.values),
            tuple(sorted(place[n] for n in group.again & groups.stored.keys())),
        )
        for group in groups.order()
    )


class Given(Groups):
    """The launches that a partition says; raises KernelError for none of the program."""

    def __init__(self, found: Groups, parts: Sequence[Part]) -> None:
        self._parts = parts
        super().__init__(found.cuts, found.device, found.bodies)

    def find(self) -> None:
        """Have launches store what the partition says."""
        nodes, parts = self.cuts.program.nodes, self._parts
        every = [nodes[place].number for place in self._places(len(nodes))]
        reasons = self.cuts.reasons
        self.stored = {n: reasons.get(n, "a partition stores it") for n in every}
        if not self.own <= self.stored.keys():
            raise self._refusal("leaves outputs out; store each")
        for part in parts:
            values = [nodes[place] for place in sorted(part.values)]
            again = frozenset(nodes[place].number for place in part.again)
            self.add(Group(values, frozenset(), again))
        read = [node for group in self.every for node in group.reads]
        if any(not isinstance(n, Input) and n.number not in self.stored for n in read):
            raise self._refusal("leaves out what turns of a loop read; store that too")
        try:
            self.order()
        except CompilerBug:
            raise self._refusal(
                "has launches that wait for one another; store a value apart"
            ) from None

    def _places(self, count: int) -> list[int]:
        """Return which values are stored."""
        places = [place for part in self._parts for place in part.values]
        known = [*places, *[place for part in self._parts for place in part.again]]
        if not all(0 <= place < count for place in known):
            raise self._refusal(f"has values beyond 0 to {count - 1}; name others")
        if len(set(places)) < len(places) or not all(p.values for p in self._parts):
            raise self._refusal("stores values twice, or none; store each once")
        return places

    def _refusal(self, why: str) -> KernelError:
        label = Schedule((), launches=tuple(self._parts)).label
        return KernelError(
            f"{self.cuts.program.name}: {label} {why}, or take a partition of `steelyard "
            "tune --list`."
        )
