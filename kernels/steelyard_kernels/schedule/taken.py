"""What cuts take of a nest at a time, where a GPU's threads walk its loops side by side.

Models ask for it with every schedule: it is counted in one walk over all factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from msgspec import Struct

from steelyard_kernels.nest.axes import NAMES
from steelyard_kernels.schedule.gpu import WARP
from steelyard_kernels.schedule.schedule import Cut, Place


class Taken(Struct, eq=False):
    """What cuts take, the first and those of inner loops, and by how many threads.

    `turns` are the blocks of a launch, or its clusters, `rows` those of a thread, whose
    turns along inner loops are `walks` of `vectors` in all; `held` says that one turn has
    all. `size` are its elements at a time, `along` those of the last loop, `inner` the
    threads of inner loops. `beside` are elements side by side of the loop that lies
    nearest.
    """

    turns: int
    threads: int
    cluster: int
    rows: int
    lanes: int
    size: int
    along: int
    vectors: int
    walks: int
    inner: int
    beside: int
    held: bool

    @property
    def warps(self) -> int:
        """The warps that walk inner loops together."""
        return -(-self.inner // WARP)


def taken_of(
    extents: Sequence[int],
    within: Sequence[frozenset[int]],
    near: Mapping[str, int],
    cuts: tuple[Cut, ...],
    _: None,
) -> Taken:
    """Count what cuts take of loops of some extents.

    `within` are the axes of inner loops that are walked within one another, `near` says how
    near neighbours lie along each.
    """
    size = most = inner = side = cluster = turns = rows = 1
    loops: list[tuple[int, int, int]] = []  # the axis, vectors and turns of each
    along, beside, nearest, walked, held = 1, 1, None, False, True
    for place, cut in enumerate(cuts):
        extent = prod([extents[NAMES.index(axis)] for axis in cut.axes])
        lanes = registers = threads = blocks = whole = 1
        for factor, at in reversed(cut.factors):  # the first at a place counts
            whole *= factor
            if at is Place.VECTOR:
                lanes = factor
            elif at is Place.REGISTER:
                registers = factor
            elif at is Place.THREAD:
                threads = factor
            elif at is Place.CLUSTER:
                blocks = factor
        most, cluster = max(most, lanes), max(cluster, blocks)
        along = lanes * registers
        size *= along
        distance = near[cut.axes[-1]]
        if nearest is None or distance < nearest:
            nearest, beside = distance, lanes * threads
        if not place:
            rows, turns, side = registers, -(-extent // whole), threads
            continue
        vectors = -(-extent // (lanes * threads * blocks))
        loops.append((NAMES.index(cut.axes[-1]), vectors, -(-extent // whole)))
        inner *= threads
        walked |= threads > 1
        held &= threads == 1 or whole >= extent
    vectors = sum([prod([n for k, n, _ in loops if k in walk]) for walk in within])
    walks = sum([prod([n for k, _, n in loops if k in walk]) for walk in within])
    first = turns, side * inner, cluster, rows, most, size
    return Taken(*first, along, vectors, walks, inner, beside, walked and held)
