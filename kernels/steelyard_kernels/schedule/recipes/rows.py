"""The recipe of nests whose reduced axes are walked by threads side by side, on GPUs.

Along rows a warp or a block has a row, or a few; what the next walk needs stays in
registers where one turn has all of a row. Across rows, where neighbours in memory are not
reduced together, a warp has neighbours and a block's warps what is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd, prod
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.nest.axes import NAMES, Nest
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.schedule.gpu import (
    MAX_THREADS,
    VECTOR_BYTES,
    WARP,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.legality import SHARED_BYTES, problem
from steelyard_kernels.schedule.legality_gpu import (
    MOST_HELD,
    are_behind,
    cluster_problem,
    unordered,
)
from steelyard_kernels.schedule.lines import line_bytes
from steelyard_kernels.schedule.model_team import NEAR_BYTES, Team, allowance
from steelyard_kernels.schedule.order import in_order
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule, Sought

# Threads of a row that are always worth trying; others fit a number of vectors each.
THREADS: Final = (32, 64, 128, 256, 512, 1024)
FITTED: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12)
BEHIND: Final = (
    *FITTED,
    9,
)  # of clusters: an argmax of 50257 halves took .85 of the time
# Warps side by side in a block: one for few rows, and more.
SIDES: Final = (1, 2, 4, 8, 16)
FEW_SIDES: Final = (1, 4)  # that are likely to be best
UNROLLS: Final = (1, 2)
# Elements that a thread holds of all its rows at most: code grows with them, and the
# compiler takes 0.3 s.
MOST_ELEMENTS: Final = 80
MOST_OF_A_WARP: Final = 40  # of two rows
# Two warps with more were 4 % slower than four with half of it, and more than 256 threads
# 5 to 11 % than still more: rows of 3000 halves and 20480 float32 on an H200.
FEW_ELEMENTS: Final = 36
SURE: Final = 256
# Rows of up to so many elements have been held by blocks of a thread's FEW_ELEMENTS. Where
# they share four columns of halves blocks that stay took .88 of that at 12288 elements, and
# 1.08 at 14336, where less than a fifth of the first-level cache is left beside these.
SURE_HELD: Final = 28 << 10
SURE_BESIDE: Final = 8 << 10  # beside MANY bytes of columns an element
MANY: Final = 8
MOST_COLUMNS: Final = 200 << 10  # bytes of all blocks of a multiprocessor
# Vectors of so many bytes along rows that begin anywhere are better than wider ones that
# the first and the last elements do not fill.
NARROW_BYTES: Final = 8
HALVES: Final = 8  # lanes of the widest vectors of halves
LEAST_BUSY: Final = 0.8  # of a row's threads, in all turns
IN_FLIGHT: Final = (1, 2, 4)  # vectors of a row that is walked in turns
ACROSS: Final = (8, 16, 32)  # threads of neighbours across rows
DOWN: Final = (4, 8, 16, 32, 64)  # threads of what is reduced there
# Blocks that share a row, where there are clusters.
TOGETHER: Final = (2, 4, 8)
# Of each block of clusters that stay: by 128 and 160 threads rows of 33000 halves took 1.1
# times as long. They have not paid where rows share nothing: a softmax of 50257 halves took
# 1.03 times as long, a logsumexp 1.6.
STAYING: Final = range(256, 385)
LONG: Final = 24 << 10  # elements of such a row: of 20480 one block was quicker
SMALL: Final = range(160, 417)  # threads of each block
# A row is walked with fewer registers as well, if those are enough: a fifth less than it
# needs is worth trying, and may spill; no less is the same code.
LIMIT_SHARE: Final = 0.8


def on_gpu(team: Team, gpu: Gpu, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal schedules of a GPU; those `likely` to be best are fewer.

    With fewer registers than they need these are those of which one block would fit a
    multiprocessor: rows of 16384 halves took 128 us so and 162 alone.
    """
    nest, aligned, likely = team.nest, sought.aligned, sought.likely
    shared = nest.outer
    if not is_by_rows(nest, shared):
        return
    (axis,) = {*range(shared, len(nest.extents))} - nest.lined
    frame = _Frame(team, shared, axis, aligned=aligned)
    walks = nest.lines or nest.alone or nest.running  # what is read of may lie anywhere
    for cuts in (
        frame.across(gpu) if frame.is_across else frame.along(gpu, likely=likely)
    ):
        schedule = Schedule(cuts)
        threads, need = team.taken(schedule).threads, team.registers(schedule)
        most = allowance(need, threads)
        needs = f"needs {need} registers a thread, has {most}; choose fewer vectors"
        own = (
            problem(nest, schedule, "cuda", aligned=aligned)
            if walks
            else unordered(nest, schedule)
        )
        if why := needs if need > most else own:
            sought.refuse(schedule, why)
            continue
        if frame.is_behind(schedule) and not are_behind(nest, schedule):
            continue
        if team.taken(schedule).cluster > 1 and cluster_problem(nest, schedule):
            continue
        limits, resident = [most], gpu.blocks_resident(threads, most)
        lean = team.least_registers(schedule)
        if lean and gpu.blocks_resident(threads, lean) > resident:
            limits.append(lean)
        fewer = most_registers(threads * (resident + 1))
        if LIMIT_SHARE * need <= fewer < need and (resident < 2 or not likely):
            limits.append(fewer)
        for limit in dict.fromkeys(limits):
            yield Schedule(cuts, registers=limit)
    if not (frame.is_across or nest.lines or nest.running):
        yield from frame.resident(gpu, likely=likely)


def is_by_rows(nest: Nest, shared: int) -> bool:
    """Say whether one axis is walked behind `shared` ones, by what threads read side by side.

    Of products they are vectors of each: a matrix's rows are read again for every column.
    """
    inner = {*range(shared, len(nest.extents))} - nest.lined
    product = contraction_of(nest)
    return (
        shared > 0
        and len(inner) == 1
        and (isinstance(product, str) or not product.rows)
    )


class _Frame:
    """Cuts a nest's loops: `shared` axes as one, threads along the one behind these."""

    def __init__(self, team: Team, shared: int, axis: int, *, aligned: bool) -> None:
        self.nest = nest = team.nest
        self.team = team
        self.shared = shared
        self.axis = axis
        self.aligned = aligned
        walked = [*nest.lined, axis]  # what a thread has of each
        self.extent = max([nest.extents[k] for k in walked])
        self.rows = prod(nest.extents[:shared])
        lines = ACROSS[0] * line_bytes(nest, cpu=False)
        nearer = team.near[NAMES[shared - 1]] < team.near[NAMES[axis]]
        self.is_across = nearer and lines <= SHARED_BYTES
        self.widths = self.lanes(axis)

    def cuts(
        self, first: tuple[tuple[int, Place], ...], along: tuple[tuple[int, Place], ...]
    ) -> tuple[Cut, ...]:
        """Return the cuts of all loops, by the factors of two of them."""
        cuts = [Cut(NAMES[: self.shared], (*first, (1, Place.GRID)))]
        for axis in range(self.shared, len(self.nest.extents)):
            factors = along if axis == self.axis else ()
            cuts.append(Cut(NAMES[axis], (*factors, (1, Place.SERIAL))))
        return tuple(cuts)

    def lanes(self, axis: int) -> tuple[int, ...]:
        """Return the lanes of vectors of 16 and of 8 bytes along an axis, the widest first."""
        nest = self.nest
        if not self.aligned or not in_order(nest, axis):
            return (1,)
        every = [(v.node, v.offset) for v in nest.values if isinstance(v.source, Input)]
        every += [(o.value.node, o.offset) for o in nest.outputs]
        sizes = [node.dtype.bytes for node, at in every if at.step(axis)]
        alone = {axis, *[k for k, extent in enumerate(nest.extents) if extent == 1]}
        along = [at for _, at in every if at.step(axis)]
        steps = [s for at in along for t, s in at.terms if t not in alone]
        steps += [at.constant for at in along]
        widest = max(sizes, default=8)
        rest = gcd(nest.extents[axis], *steps)
        wanted = {gcd(rest, size // widest) for size in (VECTOR_BYTES, 8)}
        narrow = max(wanted) * widest < NARROW_BYTES
        if narrow and axis == self.axis and self.team.residue(VECTOR_BYTES // widest):
            wanted.add(VECTOR_BYTES // widest)
        return tuple(sorted(wanted, reverse=True))

    def is_behind(self, schedule: Schedule) -> bool:
        """Say whether rows do not begin on vectors."""
        return (
            not self.is_across and self.behind(schedule.cuts[-1].at(Place.VECTOR)) > 0
        )

    def behind(self, lanes: int) -> int:
        """Return how many elements more than a row has its vectors may take up."""
        return lanes - 1 if self.team.residue(lanes) else 0

    def along(self, gpu: Gpu, *, likely: bool) -> Iterator[tuple[Cut, ...]]:
        """Yield the cuts of rows: a warp each, or a block's warps."""
        widths = self.widths
        busy = [lanes for lanes in widths if self.extent >= lanes * WARP]
        for lanes in (busy or widths[-1:]) if likely else widths:
            behind = self.behind(lanes)
            for threads in thread_choices(self.extent + behind, lanes):
                if likely and self._is_slower(lanes, threads):
                    continue
                sides = (FEW_SIDES if likely else SIDES) if threads == WARP else (1,)
                for side, unroll in product(sides, UNROLLS):
                    many = side * unroll * gpu.multiprocessors
                    if unroll > 1 and behind:
                        continue
                    if side * unroll == 1 or many <= self.rows:
                        first = (unroll, Place.REGISTER), (side, Place.THREAD)
                        for several in self._several(lanes, threads, unroll, likely):
                            vectors = (lanes, Place.VECTOR), (several, Place.REGISTER)
                            along = *vectors, (threads, Place.THREAD)
                            yield self.cuts(first, along)
            yield from self._clustered(gpu, lanes)

    def _is_slower(self, lanes: int, threads: int) -> bool:
        """Say whether a warp by itself, or narrower vectors, surely have halves sooner.

        Of 8192 rows of 1000 that share nothing: cross-entropy took 10.1 us by two warps a
        row and 9.0 by one, a logsumexp 6.2 in vectors of 16 bytes and 5.9 of 8.
        """
        *_, narrow = widths = self.widths
        held = -(-self.extent // (narrow * WARP)) * narrow
        if widths[0] < HALVES or held > MOST_OF_A_WARP or self.team.column_bytes:
            return False
        is_read = not any(o.offset.step(self.axis) for o in self.nest.outputs)
        return threads == 2 * WARP or (threads == WARP and lanes > narrow and is_read)

    def _clustered(self, gpu: Gpu, lanes: int) -> Iterator[tuple[Cut, ...]]:
        """Yield the cuts of rows that the blocks of a cluster hold together."""
        behind = self.behind(lanes)
        extent, columns = self.extent + behind, self.team.column_bytes
        if extent < LONG or not gpu.clusters or (behind and columns):
            return  # columns are read one by one: by turns of a block RMSNorm took .96
        for blocks in TOGETHER:
            counts = BEHIND if behind else FITTED
            for threads in thread_choices(-(-extent // blocks), lanes, counts):
                count = -(-extent // (lanes * threads * blocks))
                for rows in UNROLLS if columns else (1,):
                    few = count <= MOST_HELD and lanes * count * rows <= MOST_ELEMENTS
                    if threads not in SMALL or not few:
                        continue
                    vectors = (lanes, Place.VECTOR), (count, Place.REGISTER)
                    along = *vectors, (threads, Place.THREAD), (blocks, Place.CLUSTER)
                    first = (rows, Place.REGISTER), (1, Place.THREAD)
                    yield self.cuts(first, along)

    def _several(
        self, lanes: int, threads: int, unroll: int, likely: bool
    ) -> Iterator[int]:
        """Yield how many vectors a thread may have at once: all of a row's, or a few."""
        extent = self.extent + self.behind(lanes)
        count = max(1, -(-extent // (lanes * threads)))
        size, alone = count * lanes * unroll, threads == WARP and unroll > 1
        most = MOST_OF_A_WARP if alone else MOST_ELEMENTS
        if likely and (threads == 2 * WARP or threads > SURE):
            most = FEW_ELEMENTS
        if size <= most and count <= MOST_HELD:
            yield count
        if unroll == 1 and not (likely and self.extent <= SURE_HELD):
            yield from [several for several in IN_FLIGHT if several < count]

    def resident(self, gpu: Gpu, *, likely: bool) -> Iterator[Schedule]:
        """Yield the schedules of blocks that stay, as many as fit.

        They pay where rows share arrays that lie beside vectors of memory, and where no
        other block has all of a row. LayerNorm of 8192 rows of 768 to 2048 halves on an H200
        took 1.06 to 1.14 times as long by them as by blocks of few registers.
        """
        lanes, columns = self.widths[0], self.team.column_bytes
        behind = self.behind(lanes)
        most = MOST_COLUMNS if behind else NEAR_BYTES  # that one block can keep near
        wide = self.extent >= LONG or self.extent * columns > most
        long = columns and gpu.clusters and wide
        held = SURE_BESIDE if columns >= MANY else SURE_HELD
        sure = self.extent <= held and not (columns and behind)
        if likely and sure and not long:
            return
        counts = BEHIND if behind else FITTED
        for blocks in (1, *TOGETHER) if long else (1,):
            extent = -(-(self.extent + behind) // blocks)
            for threads in thread_choices(extent, lanes, counts):
                count = -(-extent // (lanes * threads))
                unlikely = blocks > 1 and threads not in STAYING
                if lanes * count > MOST_ELEMENTS or unlikely:
                    continue
                along = [(lanes, Place.VECTOR), (count, Place.REGISTER)]
                along += [(threads, Place.THREAD)]
                along += [(blocks, Place.CLUSTER)] * (blocks > 1)
                for side in (1, 4) if threads == WARP else (1,):
                    first = (1, Place.REGISTER), (side, Place.THREAD)
                    cuts = self.cuts(first, tuple(along))
                    found = Schedule(cuts, hoist=Place.SHARED if columns else None)
                    yield from self._staying(gpu, replace(found, blocks=blocks), lanes)

    def _staying(self, gpu: Gpu, schedule: Schedule, lanes: int) -> Iterator[Schedule]:
        """Yield a schedule with as many blocks as fit, if it is legal."""
        need, threads = self.team.registers(schedule), schedule.threads
        shared = self.team.shared_bytes(schedule)
        fit = gpu.blocks_resident(threads, need, shared)
        if not fit or shared > gpu.most_shared or fit * shared > MOST_COLUMNS:
            return
        side = schedule.cuts[0].size
        alike = lanes // gcd(lanes, side) if self.behind(lanes) else 1
        beside = gpu.clusters_resident(schedule.cluster, fit)  # rows at a time
        staying = max(1, beside // alike) * alike
        made = replace(
            schedule,
            registers=min(allowance(need, threads), most_registers(threads * fit)),
            blocks=staying * schedule.cluster,
        )
        many = self.rows >= staying * side * 2
        if many and not problem(self.nest, made, "cuda", aligned=self.aligned):
            yield made

    def across(self, gpu: Gpu) -> Iterator[tuple[Cut, ...]]:
        """Yield the cuts of what is reduced across neighbours.

        Blocks of a cluster share that where alone they would leave half of the
        multiprocessors idle: sums of 16384 x 1024 halves took 15 us so on an H100 and 24
        alone, 17 in vectors of 16 bytes and as long by more blocks than multiprocessors.
        """
        every = (
            self.lanes(self.shared - 1),
            ACROSS,
            DOWN,
            (*IN_FLIGHT, 8),
            (1, *TOGETHER),
        )
        for lanes, side, down, several, blocks in product(*every):
            enough = side * down in range(4 * WARP, MAX_THREADS + 1)
            if blocks > 1:
                least, count = [-(-self.rows // (lanes * n)) for n in (ACROSS[0], side)]
                idle = gpu.clusters and 2 * least <= gpu.multiprocessors
                enough &= (
                    idle and lanes < HALVES and count * blocks <= gpu.multiprocessors
                )
            if enough and several * down * blocks <= self.extent:
                first = (lanes, Place.VECTOR), (side, Place.THREAD)
                along = [(several, Place.REGISTER), (down, Place.THREAD)]
                along += [(blocks, Place.CLUSTER)] * (blocks > 1)
                yield self.cuts(first, tuple(along))


def thread_choices(
    extent: int, lanes: int, counts: tuple[int, ...] = FITTED
) -> tuple[int, ...]:
    """Return how many threads may share a row, so that most have a vector each turn.

    Where a fifth more than need be had none, they came within 2 % of the best of 20
    sizes on an H200, and a vector behind a condition is code once more.
    """
    vectors = -(-extent // lanes)
    most = min(MAX_THREADS, max(2 * WARP, -(-vectors // WARP) * WARP))
    fitted = {-(-vectors // (count * WARP)) * WARP for count in counts}
    found = [t for t in sorted(fitted | set(THREADS)) if WARP <= t <= most]
    room = {t: t * -(-vectors // t) for t in found}
    least = min(room.values()) if vectors > 2 * WARP else 0  # short: a warp, or two
    return tuple(t for t in found if not least or least >= LEAST_BUSY * room[t])
