"""Which walks along reduced axes a nest needs on a GPU, and what each computes."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from steelyard_kernels.expression.structure import closure
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.reads import Reads


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk: all values it needs that vary with walked axes, operands first.

    Of these it is the first to compute `fresh`, if earlier ones' stay where they are; then
    it reads `again` what earlier ones computed.
    """

    values: tuple[Value, ...]
    fresh: tuple[Value, ...]
    again: frozenset[int]
    reductions: int


@dataclass(frozen=True, slots=True)
class Passes:
    """The walks of a nest, in order, along its `walked` axes.

    They are those of a row, which is an index of the `space`, whose `last` axis has a row's
    neighbours (-1: there is one).
    The last one has the outputs; where these vary with no walked axis it is empty.
    """

    walked: frozenset[int]
    space: frozenset[int]
    last: int
    passes: tuple[Pass, ...]

    @classmethod
    def of(cls, nest: Nest) -> Passes:
        """Find a nest's walks: one for all reductions that wait for as many others."""
        reads = Reads(nest, narrow=True)
        walked = nest.inner.union(*[value.over for value in nest.values])
        depth: dict[int, int] = {}
        goals: dict[int, list[Value]] = {}
        count: dict[int, int] = {}
        for value in _needed(nest, reads):
            args = reads.of(value).values()
            wait = max([depth[arg.number] for arg in args], default=0)
            depth[value.number] = wait + bool(value.over)
            if value.over:
                goals.setdefault(wait, []).extend(args)
                count[wait] = count.get(wait, 0) + 1
        stored = [output.value for output in nest.outputs]
        last = max([depth[value.number] for value in stored])
        goals.setdefault(last, []).extend(stored)
        known: set[int] = set()
        found = []
        for k in range(last + 1):
            values = _inside(goals.get(k, ()), reads, walked, frozenset())
            fresh = _inside(goals.get(k, ()), reads, walked, known)
            here = [v for v in fresh if v.number not in known]
            again = frozenset([v.number for v in fresh]) & known
            found.append(Pass(values, tuple(here), again, count.get(k, 0)))
            known |= {value.number for value in here}
        rows = frozenset(range(nest.space)) - walked
        return cls(walked, rows, max(rows, default=-1), tuple(found))


def _needed(nest: Nest, reads: Reads) -> list[Value]:
    """Return all values that outputs are made of, operands first."""
    outputs = [output.value for output in nest.outputs]
    return closure(outputs, lambda value: reads.of(value).values())


def _inside(
    goals: Iterable[Value],
    reads: Reads,
    walked: AbstractSet[int],
    known: AbstractSet[int],
) -> tuple[Value, ...]:
    """Return what goals are made of that varies with walked axes, but no reductions.

    What is known is made of nothing.
    """
    found = closure(
        goals,
        lambda value: () if value.number in known else reads.of(value).values(),
        lambda value: not value.over and bool(value.axes & walked),
    )
    return tuple(found)
