"""Whether a schedule fits a nest on a kind of target; errors say what to choose."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Final

from steelyard_kernels.errors import KernelError
from steelyard_kernels.nest.axes import NAMES, Nest, names_of
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.keep import has_columns, has_rows, planner, total_bytes
from steelyard_kernels.schedule import contraction, product_tiling
from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.contraction import Product
from steelyard_kernels.schedule.cores import EVERY
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.legality_gpu import (
    cluster_problem,
    gpu_problem,
    out_of_order,
    resident_problem,
    tile_problem,
)
from steelyard_kernels.schedule.lines import line_bytes
from steelyard_kernels.schedule.model import LINE, STREAM_BYTES, Machine
from steelyard_kernels.schedule.order import again, in_order, reduced_outside
from steelyard_kernels.schedule.product_tiling import Tiling
from steelyard_kernels.schedule.recipes.attention import AttentionTiling, columns_of
from steelyard_kernels.schedule.recipes.weighted import WeightedTiling
from steelyard_kernels.schedule.schedule import LAST, Cut, Place, Schedule
from steelyard_kernels.schedule.transposition import squares_problem
from steelyard_kernels.schedule.weighted import weighted_of

if TYPE_CHECKING:
    from steelyard_kernels.schedule.blocking import Blocking

# Where values of rows may stay.
KEEPS: Final = {
    "cpu": frozenset({Place.STACK}),
    "cuda": frozenset({Place.SHARED}),
}
# Of rows, and of columns: a megabyte of a pool thread's stack is nothing to worry about;
# more would no longer fit beside the rows in a core's second-level cache.
SCRATCH_BYTES: Final = 512 << 10
# Of lines along an axis: half of a stack that has eight megabytes, and of a GPU's part of
# what the driver sets aside for all that may run at once.
SHARED_BYTES: Final = 40 << 10  # of 48 KiB, with what reductions meet in
LINES_BYTES: Final = {"cpu": 4 << 20, "cuda": 4 << 10}
PLACES: Final = {
    "cpu": {Place.VECTOR, Place.REGISTER, Place.STACK, Place.SERIAL, Place.CORE},
    "cuda": {
        *(Place.VECTOR, Place.REGISTER, Place.THREAD, Place.CLUSTER),
        *(Place.GRID, Place.SERIAL),
    },
}


def check(nest: Nest, schedule: Schedule, target: str, *, aligned: bool) -> None:
    """Raise KernelError where a schedule does not fit."""
    why = problem(nest, schedule, target, aligned=aligned)
    if why:
        raise _refused(nest, schedule, why)


def _refused(nest: Nest, schedule: Schedule, why: str) -> KernelError:
    return KernelError(
        f"{nest.program.name}: schedule {schedule.label} {why}, "
        "or leave the schedule out."
    )


def tiling_for(nest: Nest, schedule: Schedule, gpu: Gpu, *, aligned: bool) -> Tiling:
    """Return the tiling of products that a schedule says; raises KernelError."""
    product, found = contraction.product_of(nest), fused(nest)
    tiling: Tiling | None
    if not isinstance(found, str):
        kind, whole = found
        tiling = kind.read(whole, schedule)
        like: Tiling = kind(whole, 1, columns_of(whole), 1, keys=64)
    elif isinstance(product, str):
        either = f"the program {product}, and {found}"
        why = f"multiplies tiles, but {either}; choose another candidate"
        raise _refused(nest, schedule, why)
    else:
        tiling = product_tiling.tiling_of(product, schedule)
        first, *_ = gpu.multipliers(exact=product.exact) or EVERY
        like = Tiling(product, 1, 64, 4, cores=first)
    if tiling is None:
        label = like.schedule.label
        why = f"cuts products unlike {label}; change only the numbers of that"
        raise _refused(nest, schedule, why)
    why = _tiles_problem(tiling, gpu, aligned=aligned)
    if isinstance(tiling, AttentionTiling):
        why = why or tiling.problem(gpu)
    else:
        why = why or product_tiling.problem(tiling, gpu)
    if why:
        raise _refused(nest, schedule, why)
    return tiling


def fused(nest: Nest) -> tuple[type[AttentionTiling], Product] | str:
    """Return several products of one kernel and what tiles them, or why there are none."""
    whole = attention_of(nest)
    if not isinstance(whole, str):
        return AttentionTiling, whole
    sums = weighted_of(nest)
    return whole if isinstance(sums, str) else (WeightedTiling, sums)


def _tiles_problem(tiling: Tiling, gpu: Gpu, *, aligned: bool) -> str:
    """Say why no tiling fits, and what to choose instead; "" if some may."""
    if not (tiling.product.exact or gpu.multiplies(tiling.product.dtype)):
        return f"multiplies tiles of {tiling.product.dtype}, which {gpu.arch} cannot"
    if tiling.cores not in gpu.multipliers(exact=tiling.product.exact):
        return (
            f"multiplies tiles by {tiling.cores.name}, which code for this target has not; "
            "choose one of the target's candidates"
        )
    if not aligned:
        return (
            f"copies from arrays at multiples of {contraction.UNIT} bytes, and one does not "
            "start there; align it, choose a schedule of threads"
        )
    return ""


def blocking_for(nest: Nest, schedule: Schedule, machine: Machine) -> Blocking:
    """Return the blocking of sums of products, or of attention, that a schedule says.

    Raises KernelError for one that does not fit.
    """
    from steelyard_kernels.schedule import blocking  # few programs have one
    from steelyard_kernels.schedule.recipes import attention_blocks

    product, whole = contraction_of(nest), attention_blocks.attended(nest)
    found: Blocking | None
    lanes = machine.lanes(4)
    if not isinstance(whole, str):
        found = attention_blocks.blocking_of(whole, schedule)
        like: Blocking = attention_blocks.AttentionBlocking(
            whole.sums, 12, lanes, 2, 8, 2, 8 * lanes, weighing=whole, beside=2
        )
    elif isinstance(product, str):
        why = f"multiplies blocks, but the program {product}; choose another candidate"
        raise _refused(nest, schedule, why)
    else:
        found = blocking.blocking_of(product, schedule)
        like = blocking.Blocking(product, 12, lanes, 2, 8, 8, 256)
    if found is None:
        label = like.schedule.label
        why = f"cuts a product unlike {label}; change only the numbers of that"
        raise _refused(nest, schedule, why)
    if isinstance(found, attention_blocks.AttentionBlocking):
        why = attention_blocks.problem(found, machine)
    else:
        why = blocking.problem(found, machine)
    if why:
        raise _refused(nest, schedule, why)
    return found


def problem(nest: Nest, schedule: Schedule, target: str, *, aligned: bool) -> str:
    """Say why a schedule does not fit, and what to choose instead; "" if it does."""
    cut = "".join([cut.axes for cut in schedule.cuts])
    if cut != nest.axes:
        has = ", ".join(nest.axes)
        return (
            f"cuts the axes {cut}, and the program has {has}; cut each of them once, in "
            "this order"
        )
    for each in schedule.cuts:
        why = _factors_problem(each, target)
        if why:
            return why
    if target == "cuda" and schedule.keep is Place.SHARED:
        why = tile_problem(nest, schedule)
    elif target == "cpu" and schedule.keep is Place.REGISTER:
        why = squares_problem(nest, schedule)
    else:
        why = loops_problem(nest, schedule) or lines_problem(nest, schedule, target)
        why = why or rounding_problem(nest, schedule)
        why = why or kept_problem(nest, schedule, target)
        why = why or columns_problem(nest, schedule)
    if target == "cuda" and schedule.blocks:
        why = why or resident_problem(nest, schedule)
    if target == "cuda" and schedule.cluster > 1:
        why = why or cluster_problem(nest, schedule)
    if why:
        return why
    if target == "cpu":
        return streaming_problem(nest, schedule, aligned=aligned)
    return gpu_problem(nest, schedule, aligned=aligned)


def _factors_problem(cut: Cut, target: str) -> str:
    """Say which factor of a loop a kind of target has not."""
    places = [place for _, place in cut.factors]
    for factor, place in cut.factors:
        if place not in PLACES[target]:
            offered = ", ".join(sorted(PLACES[target]))
            return f"puts {cut.axes} at {place} on a {target}; choose of {offered}"
        if factor < 1:
            return f"cuts {cut.axes} by {factor}; choose 1 or more"
    if [place in LAST for place in places] != [False] * (len(places) - 1) + [True]:
        last = ", ".join(sorted(LAST & PLACES[target]))
        return f"does not say once, at its end, where {cut.axes} goes; choose of {last}"
    return ""


def loops_problem(nest: Nest, schedule: Schedule) -> str:
    """Say which loop cannot be what it is to be."""
    together = reduced_outside(nest)
    for number, cut in enumerate(schedule.cuts):
        axes = [NAMES.index(name) for name in cut.axes]
        shared = cut.place is not Place.SERIAL
        if (number and shared) or (len(axes) > 1 and not nest.is_plain(axes)):
            return f"has {cut.axes} as one loop or shared; walk each axis in turn"
        if cut.at(Place.VECTOR) > 1 and not in_order(nest, axes[-1]):
            return out_of_order(cut.axes)
        several = cut.at(Place.VECTOR) * cut.at(Place.REGISTER) > 1
        if several and together.intersection(axes):
            return (
                f"takes several of {cut.axes} at a time, which is reduced outside of other "
                "axes; choose 1"
            )
        several |= number > 0 and cut.at(Place.THREAD) > 1
        if several and nest.alone & {*axes}:
            return (
                f"takes several of {cut.axes} at a time, for each of which a line is kept; "
                "choose 1"
            )
        if cut.at(Place.VECTOR) > 1 and nest.merged & {*axes}:
            return (
                f"takes vectors of {cut.axes}, along which lines are merged; choose 1"
            )
    wide = {a for c in schedule.cuts if c.at(Place.VECTOR) > 1 for a in c.axes[-1]}
    for value in nest.values if len(wide) > 1 else ():
        names = {NAMES[axis] for axis in (*value.axes, *value.over)}
        if len(names & wide) > 1:
            return f"has vectors along {' and '.join(sorted(names & wide))}; choose one"
    return ""


def rounding_problem(nest: Nest, schedule: Schedule) -> str:
    """Say which total would be rounded otherwise where it is computed again.

    It is compared with others there, as with the largest of them, which is one of these.
    """
    cuts = {name: cut.factors for cut in schedule.cuts for name in cut.axes}
    for axes in again(nest):
        names = names_of(axes)
        if len({cuts[name] for name in names}) > 1:
            return (
                f"adds up the same along {' and '.join(names)} in several orders; cut them "
                "alike"
            )
    return ""


def lines_problem(nest: Nest, schedule: Schedule, target: str) -> str:
    """Say why a thread, or a block, cannot keep lines, and what to do instead."""
    if not nest.lines:
        return ""
    inner = prod([cut.at(Place.THREAD) for cut in schedule.cuts[1:]])
    size, most, who = (
        line_bytes(nest, cpu=target == "cpu"),
        LINES_BYTES[target],
        "thread",
    )
    if inner > 1:
        size, most, who = schedule.threads // inner * size, SHARED_BYTES, "block"
    if size <= most:
        return ""
    return (
        f"keeps {size} bytes of whole lines along an axis, a {who} has room for {most}; "
        "split the axis"
    )


def kept_problem(nest: Nest, schedule: Schedule, target: str) -> str:
    """Say why values cannot stay between walks, or a variance be taken in one."""
    hints = {hint for hint in (schedule.keep, schedule.hoist) if hint is not None}
    if not hints and not schedule.one_pass:
        return ""
    if len(schedule.cuts) != 2 or not has_rows(nest):
        return (
            "keeps values of rows, or takes their variance in one pass; this takes "
            "reductions along the last axis and all other axes as one loop"
        )
    if not hints <= KEEPS[target]:
        return f"keeps values at {' and '.join(sorted(hints))} on a {target}, which it cannot; choose no place"
    if target == "cuda":
        if schedule.keep is not None or (schedule.hoist and not schedule.blocks):
            return "keeps what blocks have that take one row; hoist it with more blocks"
        return ""
    kept = planner(nest).kept(schedule)
    rows = schedule.cuts[0].at(Place.REGISTER)
    size = max(rows * kept.row_bytes, kept.column_bytes) * nest.extents[-1]
    if size > SCRATCH_BYTES:
        return (
            f"keeps {size} bytes of rows or columns on a thread's stack, of which at most "
            f"{SCRATCH_BYTES} of each stay near the core; keep fewer rows, or none"
        )
    return ""


def columns_problem(nest: Nest, schedule: Schedule) -> str:
    """Say why a loop's reductions cannot stay on the stack, and what to do instead."""
    held = [cut for cut in schedule.cuts if cut.stacked]
    if not held:
        return ""
    last = nest.space - 1
    alone = [cut.axes for cut in schedule.cuts[1:]] == list(nest.axes[max(1, last) :])
    if not has_columns(nest) or held[1:] or held[0].axes != NAMES[last] or not alone:
        return (
            f"keeps what is reduced along {held[0].axes} on the stack; this takes "
            "reductions of columns along the last of the outputs' axes, and all other of "
            "these as one loop"
        )
    size = held[0].size * total_bytes(nest)
    if size > SCRATCH_BYTES:
        return (
            f"keeps {size} bytes of columns on a thread's stack, of which at most "
            f"{SCRATCH_BYTES} stay near the core; keep fewer"
        )
    return ""


def stores_aligned(nest: Nest, schedule: Schedule) -> int:
    """Return what the address of each vector store is a multiple of, in bytes; 0: of any.

    Smaller outputs are stored too often for stores that go round the caches, but for one
    value a row.
    """
    last, alignment = nest.space - 1, LINE
    (cut,) = [cut for cut in schedule.cuts if NAMES[last] in cut.axes]
    row = cut.axes if schedule.keep is Place.REGISTER else NAMES[last]
    for output in nest.outputs:
        if len(output.offset.axes) < nest.space and not has_rows(nest):
            return 0
        size = output.value.node.dtype.bytes
        if last in output.offset.axes:
            alignment = gcd(alignment, cut.at(Place.VECTOR) * size)
            if nest.space > 1:
                alignment = gcd(alignment, nest.extent_of(row) * size)
    return alignment


def stores_in_parts(nest: Nest, cuts: Sequence[Cut], machine: Machine) -> bool:
    """Say whether lines of several rows or outputs are stored in parts, in turn.

    Until such lines are whole, loads from addresses that end in the same twelve bits wait:
    on an EPYC (Zen 3, AVX2) three outputs of 8 MB took 0.95 to 8.1 ms by stores that go
    round the caches, as arrays lay, and 1.4 by others; LayerNorm 0.8 to 5.4, and 1.0.
    """
    (cut,) = [cut for cut in cuts if NAMES[nest.space - 1] in cut.axes]
    sizes = [out.value.node.dtype.bytes for out in nest.outputs]
    stored = min(cut.at(Place.VECTOR) * min(sizes), machine.vector_bytes)
    rows = cuts[0].at(Place.REGISTER) if len(cuts) > 1 else 1
    return rows * len(sizes) > 1 and stored < LINE


def streaming_problem(nest: Nest, schedule: Schedule, *, aligned: bool) -> str:
    """Say why a CPU's streaming store could not state its alignment; "" if it can."""
    if not schedule.streaming:
        return ""
    if not aligned:
        return (
            f"streams, but an output does not start at a multiple of {LINE} bytes; "
            "align it, choose a schedule without streaming"
        )
    alignment = stores_aligned(nest, schedule)
    if alignment < STREAM_BYTES:
        return (
            f"streams to addresses aligned to {alignment} bytes, at least {STREAM_BYTES} "
            "are needed; choose a schedule without streaming"
        )
    return ""
