"""Whether one kernel can be, and what launches cost in nanoseconds.

Memory against arithmetic, and the hand-over: this decides between one kernel and several.
One kernel may walk a reduction again for each index of another, or multiply what no tile
takes.

A loop is one kernel that holds all in registers, or launches in each turn. The models of
schedules say what a turn takes. Building counts too: text that holds values grows with
their elements, and is compiled for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf, prod
from typing import Final

from steelyard_kernels import cost
from steelyard_kernels.dtypes import float32
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Loop,
    Node,
    Program,
    Result,
    loops,
)
from steelyard_kernels.expression.rows import in_memory
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.nest.axes import Nest, one_space
from steelyard_kernels.nest.carried import outline
from steelyard_kernels.nest.carried.registers import MOST_ELEMENTS
from steelyard_kernels.nest.carried.tensor import elements, spelled
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reads import walks_of
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.plan.products import is_product
from steelyard_kernels.schedule.aliasing import updates_in_place
from steelyard_kernels.schedule.contraction import product_of
from steelyard_kernels.schedule.gpu import WARP, Gpu
from steelyard_kernels.schedule.model import CACHE_RATE, FORK_JOIN_NS, Machine
from steelyard_kernels.schedule.model_carries import UNKNOWN_LENGTH
from steelyard_kernels.schedule.model_product import model
from steelyard_kernels.schedule.recipes.contraction import on_gpu
from steelyard_kernels.schedule.schedule import Sought, unheard
from steelyard_kernels.schedule.search import fused_tilings, tiled
from steelyard_kernels.schedule.strategies import (
    FEW,
    WALKED,
    best,
    heuristic,
    lower,
    strategy,
)
from steelyard_kernels.schedule.weighted import weighted_of

# Of rows that are reduced behind a product, by a launch (with its hand-over) and in its
# kernel: of 128 and 192 columns on an H200.
FOLLOWS_NS: Final = 1700.0
REDUCES_NS: Final = 900.0
FULL: Final = 1024  # threads of a multiprocessor that are as quick as twice as many
SERIAL_NS: Final = 10e3  # some launches
CLIFF: Final = 1.25  # times as long as apart: models of lines differ by as much
FAR: Final = 4.0  # times what memory and arithmetic take
EXACT_RATE: Final = 1.7  # operations of a lane by FMA: half of two a cycle
HANDED_NS: Final = 800.0  # from one launch to the next, beside a kernel's own time


def _rates(device: Machine | Gpu) -> tuple[float, float, float, float]:
    """Return bytes and operations a nanosecond, of tiles and of others, and a launch.

    To a factor of two: products take 60 operations of a core and 40 % of tensor cores'
    peak, others 8 and 10,000 (this project's suites); a launch on a GPU's stream 2 us.
    """
    if isinstance(device, Gpu):
        return device.memory_rate, 0.4 * device.product_rate, 1e4, 2000.0
    threads = device.threads
    return CACHE_RATE * threads, 60.0 * threads, 8.0 * threads, FORK_JOIN_NS


def predicted(program: Program, device: Machine | Gpu) -> float:
    """Return what a launch of a program takes, in nanoseconds.

    Of several products in a kernel a model says so, and of one by FMA. What no nest is,
    loops and many small values, is taken to compute each value once.
    """
    memory, rate, others, launch = _rates(device)
    operations, nest = cost.operations(program), _nest(program)
    if nest is not None and isinstance(device, Gpu):
        every = fused_tilings(nest, device, unheard)
        if several := min([x.predict(device).total for x in every], default=0.0):
            return HANDED_NS + several
        if is_tiled(program, device) and _is_exact(nest):
            return HANDED_NS + best(program, device)[1].total
    if not is_tiled(program, device):
        rate = others * (_busy(nest, device) if nest else 1.0)
        operations += 2 * _walked(nest) * program.copies if nest else 0
    again = _again(nest) * program.copies / others if nest else 0.0
    return launch + max(cost.bytes_moved(program) / memory, operations / rate + again)


def _again(nest: Nest) -> int:
    """Return the operations by which nodes are computed more often than once an element.

    A value is computed in the loops up to the last axis that it varies with.
    """
    counts = dict[int, int]()
    for value in nest.values:
        if isinstance(node := value.node, Apply):
            last = max(value.axes, default=-1) + 1
            times = prod(nest.extents[:last]) if last <= nest.space else 0
            own = counts.setdefault(node.number, -prod(node.shape))
            counts[node.number] = own + times
    return sum([max(each, 0) for each in counts.values()])


def _nest(program: Program) -> Nest | None:
    """Return the nest that a program is; None for what is none."""
    try:
        return nest_of(program)
    except KernelError:
        return None


def _is_exact(nest: Nest) -> bool:
    """Say whether a nest is a product that threads multiply by FMA."""
    whole = product_of(nest)
    return not isinstance(whole, str) and whole.exact


@lru_cache(maxsize=16)  # launches are joined, then looked at
def is_tiled(program: Program, device: Machine | Gpu) -> bool:
    """Say whether a GPU's tiles, or a CPU's blocks of registers, multiply in a kernel."""
    nest = _nest(program)
    if nest is None:
        return False
    every = tiled(nest, device, Sought(likely=True))
    return next(every, None) is not None


def weighted_scores(program: Program, gpu: Gpu) -> int:
    """Return of how many products a kernel makes weights of sums; 0 if none does."""
    nest = _nest(program) if one_space(program) else None
    whole = weighted_of(nest) if nest else "has several spaces"
    if isinstance(whole, str) or not is_tiled(program, gpu):
        return 0
    return len(whole.scores)


def reduces_rows(program: Program, alone: Program, gpu: Gpu) -> bool:
    """Say whether one kernel had better reduce rows of a product than a launch behind it.

    `alone` is the product without that.
    """
    took = list[float]()
    for each in (program, alone):
        try:
            whole = product_of(nest_of(each)) if one_space(each) else ""
        except KernelError:
            return False
        if isinstance(whole, str) or whole.sums.reduces is (each is alone):
            return False
        nest = whole.nest
        every = on_gpu(nest, gpu, Sought(likely=True))
        predict = model(nest, gpu)
        took.append(min((predict(one).total for one in every), default=inf))
        if took[0] == inf:
            return False  # no tile holds a row
    behind = FOLLOWS_NS + 2 * cost.bytes_moved(alone) / gpu.memory_rate
    return took[0] + REDUCES_NS <= took[1] + behind


def _busy(nest: Nest, device: Machine | Gpu) -> float:
    """Return the share of a device's threads that walk a nest.

    All do where one axis is reduced, which they share. Of several a thread has those of one
    output: a mean of 2800 maxima of 32 took one of an H200's 1 ms, and two launches 4 us.
    """
    if len(_reduced(nest) - nest.lined) < 2:
        return 1.0
    full = device.multiprocessors * FULL if isinstance(device, Gpu) else device.threads
    return min(1.0, prod(nest.extents[: nest.space]) / full)


def _reduced(nest: Nest) -> frozenset[int]:
    """Return the axes that reductions walk."""
    return frozenset[int]().union(*[value.over for value in nest.values])


@lru_cache(maxsize=64)  # launches are compared with those that they join
def modelled(program: Program, device: Machine | Gpu) -> float:
    """Return what a launch takes by the models of schedules; inf where it has none."""
    try:
        return best(program, device)[1].total
    except KernelError:
        return inf


def is_serial(program: Program, device: Machine | Gpu) -> bool:
    """Say whether threads walk for long, each for itself, what others walk beside them.

    Or whether a product by FMA takes twice as long as one that keeps half of a GPU busy.
    """
    nest = _nest(program)
    if nest is None:
        return False
    if is_tiled(program, device):
        if not (isinstance(device, Gpu) and _is_exact(nest)):
            return False
        return modelled(program, device) > 2 * _exact(nest, device) + SERIAL_NS
    if _is_shared(nest, device):
        return False
    taken = modelled(program, device)
    if taken > SERIAL_NS and isinstance(device, Gpu) and _busy(nest, device) == 1:
        return taken > FAR * predicted(program, device)
    return taken > SERIAL_NS


def _exact(nest: Nest, gpu: Gpu) -> float:
    """Return what a product by FMA takes that keeps half of a GPU busy."""
    whole = product_of(nest)
    assert not isinstance(whole, str)
    rate = gpu.multiprocessors * gpu.fma_lanes(whole.added) * EXACT_RATE
    operations = cost.operations(nest.program) / rate
    return max(cost.bytes_moved(nest.program) / gpu.memory_rate, operations)


def _is_shared(nest: Nest, device: Machine | Gpu) -> bool:
    """Say whether enough rows are walked, each alone: on a GPU along one axis."""
    rows, *walked = nest.extents[: nest.outer], *nest.extents[nest.outer :]
    each = frozenset(range(nest.outer))
    alone = all(value.axes >= each for value in nest.values if value.over)
    if isinstance(device, Gpu):
        alone = alone and len(walked) == 1 and prod(rows) >= FEW
    return alone or not walked


def is_cliff(program: Program, apart: Iterable[Program], device: Machine | Gpu) -> bool:
    """Say whether one kernel walks for longer than launches apart.

    All of 15 that were modelled to take twice as long were slower on an H200.
    """
    if not is_serial(program, device):
        return False
    own = sum([modelled(each, device) for each in apart])
    return modelled(program, device) > CLIFF * own


def _walked(nest: Nest) -> int:
    """Return how many values all reductions take in."""
    return sum([prod([nest.extents[k] for k in axes]) for axes in walks_of(nest)])


def is_kernel(program: Program) -> bool:
    """Say whether a program has schedules, of products if it has one."""
    try:
        kind = strategy(program)
        if kind == "carries" or not one_space(program):
            return False
        nest = nest_of(program)
    except KernelError:
        return False
    if not updates_in_place(nest, rows=kind == "rows"):
        return False
    if any(map(is_product, program.nodes)):
        return not isinstance(contraction_of(nest), str)
    return True


def has_schedule(program: Program, device: Machine | Gpu) -> bool:
    """Say whether one kernel fits the device, which may lack memory for whole lines."""
    if not any(isinstance(node, Along) for node in program.nodes):
        return True
    try:
        heuristic(program, device)
    except KernelError:
        return False
    return True


# Of a launch behind another, natively: on a GPU's stream, and on one core.
LAUNCH_NS: Final = 2000.0
CALL_NS: Final = 25.0
# Building takes so long for each statement that holds values in registers, and for a
# kernel that walks memory, which is launched as often as `model.BUILD_NS` says. Of 24
# loops: 0.1 to 0.2 ms on a CPU, 0.5 to 1 ms for a GPU, and far more for thousands of moves.
STATEMENT_NS: Final = 1.2e5
GPU_STATEMENT_NS: Final = 7e5
KERNEL_NS: Final = 2.5e7
GPU_KERNEL_NS: Final = 6e7
LAUNCHES: Final = 5000
MOST_TEXT: Final = 4000
"""Statements of one kernel: twice as many took 3 s for a GPU, six times as many 90."""


def in_registers(program: Program, device: Machine | Gpu) -> float:
    """Return what one kernel that holds all values takes; infinite if there is none."""
    text = _text(program, device)
    if not _is_held(program) or (text > MOST_TEXT and not program.chains):
        return inf  # chains gain more than that: registers take them side by side
    gpu = isinstance(device, Gpu)
    built = text * (GPU_STATEMENT_NS if gpu else STATEMENT_NS) / LAUNCHES
    try:
        found = best(program, device)[1].total + built
        if any(isinstance(n, Result) and n.stacks for n in _inner(program)):
            lower(program, heuristic(program, device), device)  # is there memory for it
    except KernelError:
        return inf
    return found


def _text(program: Program, device: Machine | Gpu) -> int:
    """Return about how many statements one kernel that holds all values has."""
    width = WARP if isinstance(device, Gpu) else device.lanes(float32.bytes)
    every = [node for node in everywhere(program.nodes) if not in_memory(node)]
    return sum([spelled(node, width) for node in every])


def _is_held(program: Program) -> bool:
    """Say whether registers hold each value that is computed with."""
    held, every = outline.in_registers(program), [*everywhere(program.nodes)]
    if any(isinstance(node, WALKED) for node in every):
        return False
    sizes = [elements(n) for n in every if n.number in held]
    return max(sizes, default=0) <= MOST_ELEMENTS


def _inner(program: Program) -> Iterator[Node]:
    """Yield the nodes of loops' bodies."""
    for loop in loops(program.nodes):
        yield from everywhere(loop.nodes)


def turns_of(loop: Loop) -> int:
    """Return how many turns a loop is taken to have."""
    return loop.length if isinstance(loop.length, int) else UNKNOWN_LENGTH


def least_in_turns(program: Program, device: Machine | Gpu) -> float:
    """Return what launches take at least: one in each turn."""
    launch = LAUNCH_NS if isinstance(device, Gpu) else CALL_NS
    return launch * sum(map(turns_of, loops(program.nodes)))


def in_turns(plan: Plan, device: Machine | Gpu) -> float:
    """Return what launches take, some of which are repeated."""
    gpu, total = isinstance(device, Gpu), 0.0
    launch = LAUNCH_NS if gpu else CALL_NS
    for numbers in plan.distinct:
        times = sum([plan.times(number, UNKNOWN_LENGTH) for number in numbers])
        program = plan.launches[numbers[0]].program
        each = best(program, device)[1].total * (1 if gpu else program.copies)
        built = GPU_KERNEL_NS if gpu else KERNEL_NS
        total += times * (launch + each) + built / LAUNCHES
    return total
