"""Schedules: how the axes of a nest are cut, where each piece runs, and a few hints.

    i:v16.r2.core4096 stream      i = 16 lanes x 2 vectors an iteration; the iterations
                                  go to the cores, 4096 elements at a time
    ij:core8 k:v16.r2.serial      axes i and j as one loop, k inside it
    ijk:v4.r2.thread128.grid      blocks of 128 threads with 2 vectors of 4 each
    i:grid j:v8.r3.thread352.cluster4.serial
                                  four blocks walk a row together
    i:r4.core8 j:v16.r2.serial keep-stack
                                  4 rows at a time; what a second walk of them needs of the
                                  first stays on the stack
    i:v16.r4.stack16.core j:r8.serial
                                  8 rows at a time, added up along 1024 columns on the stack

    launches 14 20+31 26          three launches of a program, of which one stores two values

Those of matrix products are described in `product_tiling`, of a CPU's in `blocking`, those
of loops that carry state in `carries`.

A schedule is data: it is compared, hashed, printed and kept as JSON, and knows no
program. `schedule.legality` says whether one fits a nest and a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from math import prod
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct

from steelyard_kernels.errors import KernelError


class Place(StrEnum):
    """Where a piece of an axis runs."""

    VECTOR = "v"  # lanes of one instruction
    REGISTER = "r"  # vectors of one iteration
    STACK = "stack"  # memory of a CPU's thread
    SHARED = "shared"  # memory of a GPU's block
    MMA = "mma"  # rows, columns or depth of a tensor core's instruction
    FMA = "fma"  # those that a warpgroup's threads multiply at a time
    THREAD = "thread"  # threads of a GPU's block
    WARP = "warp"  # its warps, or groups of four, that issue one instruction
    PIPELINE = "pipeline"  # steps that are on their way to shared memory
    CLUSTER = "cluster"  # blocks that run together
    SERIAL = "serial"  # iterations, one after another
    CORE = "core"  # threads of the CPU's pool
    GRID = "grid"  # blocks of a GPU's launch

    def __repr__(self) -> str:
        return f"Place.{self.name}"


# Where the rest of an axis goes, behind all of its factors.
LAST = frozenset({Place.SERIAL, Place.CORE, Place.GRID})
LAUNCHES = "launches"
"""The first word of a partition's label."""


class Cut(Struct, frozen=True, order=True):
    """One loop: axes, outermost first, as one index, and its factors, innermost first.

    The product of the factors is taken at a time; the last factor's place, one of
    LAST, takes those times.
    """

    axes: str
    factors: tuple[tuple[int, Place], ...]

    def at(self, place: Place) -> int:
        """Return the factor at a place; 1 if there is none."""
        for factor, at in self.factors:
            if at is place:
                return factor
        return 1

    @property
    def place(self) -> Place:
        """Where the rest of the axes goes."""
        return self.factors[-1][1]

    @property
    def size(self) -> int:
        """How many indices are taken at a time."""
        return prod([factor for factor, _ in self.factors])

    @property
    def stacked(self) -> bool:
        """Whether some of it is on the stack of a CPU's thread."""
        return Place.STACK in [at for _, at in self.factors]

    @property
    def beside(self) -> int:
        """The threads that are at neighbouring vectors of it, of all blocks of a cluster."""
        return self.at(Place.THREAD) * self.at(Place.CLUSTER)

    @property
    def label(self) -> str:
        """The cut in a word."""
        shown = [
            place if place in LAST and factor == 1 else f"{place}{factor}"
            for factor, place in self.factors
        ]
        return f"{self.axes}:{'.'.join(shown)}"


class Part(Struct, frozen=True, order=True):
    """One launch of a program: the values that it stores, by places among its nodes.

    Of those that other launches store it computes some `again`.
    """

    values: tuple[int, ...]
    again: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The launch in a word, which `partition_of` reads."""
        again = ["+".join(map(str, self.again))] if self.again else []
        return "~".join(["+".join(map(str, self.values)), *again])


class Schedule(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """The loops of a nest, outermost first, with hints; or the launches of a program.

    `streaming` stores go round the caches; `prefetch` asks, where outputs are stored, for
    what of the arrays along all axes lies so many bytes ahead in the widest of them, in
    others as many elements (0: for nothing); a GPU's thread has at most `registers` (0: what
    its block leaves to each). `keep` is where values stay that one walk along the last
    axis computes and a later one reads (None: each walk computes them), `hoist` where
    those stay that vary with the last axis alone (None: they are computed with every
    row). `one_pass` takes a variance from sums of values and of squares, and walks again
    where these cancelled; otherwise it is the mean square of deviations from the mean.
    So many `blocks` of a GPU stay and take one tile, or row, after another (0: a block for
    each). `launches` are those of a program that is several: it is their partition, and
    says nothing of the loops in each.
    """

    cuts: tuple[Cut, ...]
    streaming: bool = False
    prefetch: int = 0
    registers: int = 0
    keep: Place | None = None
    hoist: Place | None = None
    one_pass: bool = False
    blocks: int = 0
    launches: tuple[Part, ...] = ()

    @property
    def places(self) -> frozenset[Place]:
        """Where pieces of its axes run."""
        return frozenset([at for cut in self.cuts for _, at in cut.factors])

    @property
    def multiplies_tiles(self) -> bool:
        """Whether a GPU's blocks multiply tiles: see `product_tiling`."""
        return not self.places.isdisjoint({Place.MMA, Place.FMA})

    @property
    def multiplies_blocks(self) -> bool:
        """Whether a CPU's registers hold blocks of sums: see `blocking`."""
        return bool(self.cuts) and self.cuts[-1].stacked

    @property
    def columns(self) -> int | None:
        """The loop of which a CPU keeps reductions on the stack: see `nest.columns`."""
        found = [k for k, cut in enumerate(self.cuts[:-1]) if cut.stacked]
        return found[0] if found and not self.multiplies_blocks else None

    @property
    def cluster(self) -> int:
        """The blocks that run together."""
        return max([cut.at(Place.CLUSTER) for cut in self.cuts], default=1)

    @property
    def label(self) -> str:
        """A short name for tables."""
        if self.launches:
            return " ".join([LAUNCHES, *[part.label for part in self.launches]])
        words = [cut.label for cut in self.cuts] or ["nothing"]
        words += ["stream"] * self.streaming
        words += [f"ahead{self.prefetch}"] * bool(self.prefetch)
        words += [f"registers{self.registers}"] * bool(self.registers)
        words += [f"keep-{self.keep}"] * (self.keep is not None)
        words += [f"hoist-{self.hoist}"] * (self.hoist is not None)
        words += ["onepass"] * self.one_pass
        words += [f"blocks{self.blocks}"] * bool(self.blocks)
        return " ".join(words)

    @property
    def threads(self) -> int:
        """The threads of a GPU's block; on a CPU 1, or 0 for all of the pool."""
        place = self.cuts[0].factors[-1][1] if self.cuts else Place.SERIAL
        if place is Place.GRID:
            return prod([cut.at(Place.THREAD) for cut in self.cuts])
        return 0 if place is Place.CORE else 1


Refuse: TypeAlias = Callable[[Schedule, str], None]
"""Hears of each schedule that a recipe tried and refused, and why, as `legality` says."""


class Cutting(Protocol):
    """What says how a program is cut, as a schedule does."""

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        ...


C = TypeVar("C", bound=Cutting)


def legal(
    every: Iterable[C], problem: Callable[[C], str], refuse: Refuse
) -> Iterator[Schedule]:
    """Yield the schedules of what has no problem."""
    for each in every:
        if why := problem(each):
            refuse(each.schedule, why)
        else:
            yield each.schedule


def unheard(_schedule: Schedule, _why: str) -> None:
    """Hear of a refusal that nobody asked for."""


class Sought(Struct, frozen=True):
    """Which legal schedules are sought: of `aligned` arrays, all or those `likely` best.

    `refuse` hears of the others of the same kinds.
    """

    aligned: bool = True
    likely: bool = False
    refuse: Refuse = unheard


def partition_of(label: str) -> Schedule | None:
    """Read the label of a program's launches; None of another schedule.

    Raises KernelError for one that names no places.
    """
    word, *parts = label.split() or [""]
    if word != LAUNCHES:
        return None
    found = []
    for part in parts:
        values, *again = [each.split("+") for each in part.split("~")]
        if (
            not all(n.isdecimal() for each in (values, *again) for n in each)
            or again[1:]
        ):
            raise KernelError(
                f"{label}: {part} is no launch, expected places of values, such as "
                "20+31, or 20~31 where it computes 31 again."
            )
        found.append(Part(*(tuple(map(int, each)) for each in (values, *again))))
    return Schedule((), launches=tuple(found))
