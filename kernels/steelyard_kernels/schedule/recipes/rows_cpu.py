"""The recipe of rows that are reduced along the last axis: rows go to cores.

A row is walked by vectors, several rows at a time where what varies with the last axis
alone is read once for all of them. What walks keep stays on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.keep import has_rows, planner
from steelyard_kernels.schedule.legality import (
    kept_problem,
    stores_in_parts,
    streaming_problem,
)
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.model_cpu import Hints
from steelyard_kernels.schedule.order import in_order
from steelyard_kernels.schedule.schedule import Cut, Place, Refuse, Schedule, Sought

# Rows a thread takes at a time; 32 was the best of 4 to 64 for LayerNorm of 1024 rows by
# two cores of an AMD EPYC (Zen 5), 4 shares out few rows.
SHARING: Final = ((4, Place.CORE), (32, Place.CORE), (32, Place.SERIAL))
MANY: Final = 256  # rows a thread that are shared by the most
# Rows and vectors at a time whose accumulators fit: 32 vector registers, half for values.
BLOCKS: Final = (4, 2, 1)
UNROLLS: Final = (1, 2)
ACCUMULATORS: Final = 16


def fits(nest: Nest) -> bool:
    """Say whether a nest has rows, and vectors along them."""
    return has_rows(nest) and in_order(nest, len(nest.extents) - 1)


def on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a CPU.

    Those `likely` to be best take variances in one pass, and many rows by all cores.
    """
    stores: dict[int, list[tuple[bool, int]]] = {}
    likely = sought.likely
    for hints in _hints(nest, likely=likely):
        for rows, unroll in _shapes(nest, machine, hints, sought.refuse):
            for turns, place in _sharing(nest, machine, likely=likely):
                sharing = -(-turns // rows), place
                cuts = cpu_cuts(nest, machine, (rows, unroll), sharing)
                if place is Place.SERIAL:
                    yield Schedule(cuts, False, 0, 0, *hints)
                    continue
                if rows not in stores:
                    aligned = sought.aligned
                    stores[rows] = _stores(nest, machine, cuts, aligned=aligned)
                for streaming, prefetch in stores[rows]:
                    yield Schedule(cuts, streaming, prefetch, 0, *hints)


def _sharing(
    nest: Nest, machine: Machine, *, likely: bool
) -> tuple[tuple[int, Place], ...]:
    """Return how rows are shared: many neither by few at a time nor by no one."""
    many = prod(nest.extents[:-1]) >= MANY * machine.threads
    return SHARING[1:2] if likely and many else SHARING


def cpu_cuts(
    nest: Nest, machine: Machine, shape: tuple[int, int], sharing: tuple[int, Place]
) -> tuple[Cut, ...]:
    """Cut all axes but the last as one by rows, the last by vectors."""
    rows, unroll = shape
    outer = (1, Place.VECTOR), (rows, Place.REGISTER), sharing
    row = (machine.lanes(4), Place.VECTOR), (unroll, Place.REGISTER), (1, Place.SERIAL)
    return Cut(nest.axes[:-1], outer), Cut(nest.axes[-1], row)


def _hints(nest: Nest, *, likely: bool) -> Iterator[Hints]:
    """Yield what may be kept, hoisted and taken in one pass, the most of it first."""
    plan, stack = planner(nest), Place.STACK
    kept = plan.kept(Schedule((), keep=stack, hoist=stack, one_pass=plan.variances))
    keeps: list[Place | None] = [stack, None] if kept.slots else [None]
    hoists: list[Place | None] = [stack, None] if kept.columns.values else [None]
    passes = [True, False] if plan.variances else [False]
    if likely:
        passes = passes[:1]
    yield from product(keeps, hoists, passes)


def _shapes(
    nest: Nest, machine: Machine, hints: Hints, refuse: Refuse
) -> list[tuple[int, int]]:
    """Return (rows, vectors) at a time whose accumulators fit registers, and the stack."""
    most = max(planner(nest).accumulators(one_pass=hints[2]), default=0)
    found = []
    for rows, unroll in product(BLOCKS, UNROLLS):
        many = rows * unroll
        cuts = cpu_cuts(nest, machine, (rows, unroll), (1, Place.CORE))
        schedule = Schedule(cuts, False, 0, 0, *hints)
        why = kept_problem(nest, schedule, "cpu")
        if many > 1 and many * most > ACCUMULATORS:
            why = f"has {many * most} accumulators; choose {ACCUMULATORS} at most"
        if rows > prod(nest.extents[:-1]):
            why = f"takes {rows} rows of {prod(nest.extents[:-1])}; choose fewer"
        if why:
            refuse(schedule, why)
        else:
            found.append((rows, unroll))
    return found


def _stores(
    nest: Nest, machine: Machine, cuts: tuple[Cut, ...], *, aligned: bool
) -> list[tuple[bool, int]]:
    """Return (streaming, prefetch) that may pay: asking for the next rows, or for none."""
    last = len(nest.extents) - 1
    if last >= nest.space:
        return [(False, 0)]  # no row is stored
    problem = streaming_problem(nest, Schedule(cuts, streaming=True), aligned=aligned)
    stays = bool(problem) or stores_in_parts(nest, cuts, machine)
    widest = max([array.node.dtype.bytes for array in nest.streams], default=0)
    ahead = cuts[0].at(Place.REGISTER) * nest.extents[last] * widest
    return list(product([False] if stays else [False, True], sorted({0, ahead})))
