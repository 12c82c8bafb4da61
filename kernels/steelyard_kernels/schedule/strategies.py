"""Choosing a schedule: which recipe fits a program, and what it offers on a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import inf, prod
from typing import Final, TypeAlias

from steelyard_kernels.errors import CompilerBug, KernelError, Unsupported
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.rows import in_memory
from steelyard_kernels.expression.simplify import in_halves
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.monoids import MONOIDS
from steelyard_kernels.nest.axes import beyond, one_space, stored
from steelyard_kernels.nest.places import walks
from steelyard_kernels.schedule.aliasing import check_updates, in_place
from steelyard_kernels.schedule.gpu import WARP, Gpu
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.schedule import Refuse, Schedule, Sought, unheard

Device: TypeAlias = Machine | Gpu

LONG: Final = 1 << 20
"""Elements: some hundred microseconds of a core, which a launch is nothing beside."""

MOST_HELD: Final = 8192
"""Elements of all values, products of sums among them, that registers hold better than
launches, an eighth of them in one value.

A launch more costs 20 ns on a CPU and 2 us on a GPU; a text of so many is built in a
second, one of 24,000 in 2.3 (that of 60 launches in 0.4).
"""


WALKED: Final = expr.Segments, expr.Merge
"""What only walks over memory compute, and no registers hold."""

FEW: Final = 128
"""Rows that leave multiprocessors idle, and elements of a row that are soon walked."""


@lru_cache(maxsize=2)  # every phase of a build asks
def strategy(program: Program) -> str:
    """Return the name of the recipe that fits: by what kinds of nodes there are.

    Elementwise ones, with reductions of rows or without, then all others of one space;
    loops that carry state, and small results of several shapes, are held in registers.
    """
    others = beyond(program)
    rows = all(isinstance(node, expr.Reduce) and node.of_rows for node in others)
    counts = any(isinstance(node, expr.Arange | expr.Reshape) for node in program.nodes)
    if others and rows and not counts:
        return "rows"
    if all(map(walks, others)):
        fits = is_nothing(program) or (one_space(program) and in_place(program))
        if fits or not _are_small(program):
            return "loops" if others else "pointwise"
    return "carries"


def _are_small(program: Program) -> bool:
    """Say whether all outputs fit in registers."""
    shapes = {stored(output).shape for output in program.outputs}
    from steelyard_kernels.nest.carried.registers import MOST_ELEMENTS

    return max(map(prod, shapes)) <= MOST_ELEMENTS


def is_nothing(program: Program) -> bool:
    """Say whether a program has no element to compute."""
    return all(0 in output.value.shape for output in program.outputs)


def is_one(program: Program) -> bool:
    """Say whether a program is one kernel for certain, without a look at its parts."""
    if program.chains or any(isinstance(node, expr.Result) for node in program.nodes):
        return _is_held(_computed(program)) and _updates_late(program)
    if any(map(is_long, program.nodes)):
        return False
    kind = strategy(program)
    if is_nothing(program):
        return True
    if kind == "carries":
        return _is_held(program.nodes) or not all(map(walks, beyond(program)))
    reduced = [node for node in program.nodes if isinstance(node, expr.Reduce)]
    walked = {node.arg.shape for node in reduced}
    if kind == "loops" or not one_space(program) or len(walked) > 1:
        return False  # of several axes a thread may have all but one
    if any(prod(n.shape) < FEW and prod(n.arg.shape) >= FEW * FEW for n in reduced):
        return False  # which few threads walk, or each for itself
    return in_place(program, rows=kind == "rows")


def _is_held(nodes: Iterable[Node]) -> bool:
    """Say whether registers hold all that nodes compute better than launches would."""
    every = [*nodes]
    if any(isinstance(node, WALKED) for node in every):
        return False
    sizes = [*map(_products, every)]
    return sum(sizes) <= MOST_HELD and max(sizes, default=0) <= MOST_HELD // 8


def _computed(program: Program) -> Iterator[Node]:
    """Yield what a program with loops computes, and what of memory it computes with."""
    for node in everywhere(program.nodes):
        if not (in_memory(node) or isinstance(node, expr.Chains)):
            yield node
            if isinstance(
                node,
                expr.Apply
                | expr.Cast
                | expr.Broadcast
                | expr.Reduce
                | expr.Dot
                | expr.Along,
            ):
                yield from filter(in_memory, expr.operands(node))
    for value in [output.each for output in program.outputs]:
        if in_memory(value) and not (isinstance(value, expr.Result) and value.stacks):
            yield value


def _updates_late(program: Program) -> bool:
    """Say whether no chain or thread, of any device, overwrites what others still read."""
    try:
        check_updates(program, "carries", "cuda")
    except Unsupported:
        return False
    return True


def is_long(node: Node, least: int = LONG) -> bool:
    """Say whether a node reduces so many elements to one that a core is not enough."""
    return (
        isinstance(node, expr.Reduce)
        and prod(node.shape) == 1
        and prod(node.arg.shape) >= least
        and not MONOIDS[node.op].moments
    )


def _products(node: Node) -> int:
    """Return how many elements a node has, a sum of products those that it adds up.

    Of an order they are those that each element is compared with.
    """
    times = node.b.shape[0] if isinstance(node, expr.Dot) else 1
    if isinstance(node, expr.Along) and node.op == "order":
        times = node.shape[node.axis]
    return prod(node.shape) * times


def rank(
    program: Program,
    device: Device,
    *,
    aligned: bool = True,
    refuse: Refuse = unheard,
) -> list[tuple[Schedule, Prediction]]:
    """Return every candidate with its prediction, the best predicted first.

    `refuse` hears of the schedules that were tried beside them.
    """
    every, predict = _space(program, device, Sought(aligned, refuse=refuse))
    ranked = [(schedule, predict(schedule)) for schedule in every]
    return sorted(ranked, key=lambda row: row[1].total)  # stable: ties keep order


def candidates(
    program: Program, device: Device, *, aligned: bool = True
) -> tuple[Schedule, ...]:
    """Return every legal schedule worth trying, in order."""
    every, _ = _space(program, device, Sought(aligned))
    return tuple(every)


def heuristic(program: Program, device: Device, *, aligned: bool = True) -> Schedule:
    """Return the best predicted of the candidates that are likely to be it."""
    return best(program, device, aligned=aligned)[0]


def best(
    program: Program, device: Device, *, aligned: bool = True
) -> tuple[Schedule, Prediction]:
    """Return the heuristic's choice with its prediction."""
    likely, predict = _space(program, device, Sought(aligned, likely=True))
    found: tuple[Schedule, Prediction] | None = None
    least = inf
    for schedule in likely:
        prediction = predict(schedule)
        total = prediction.total
        if found is None or total < least:  # of equal ones the first
            found, least = (schedule, prediction), total
    if found is None:
        raise CompilerBug(f"{program.name}: no schedule is likely.")
    return found


def _space(
    program: Program, device: Device, sought: Sought
) -> tuple[Iterable[Schedule], Callable[[Schedule], Prediction]]:
    """Return the schedules that are sought, in order, and what predicts a launch."""
    if is_nothing(program):
        return (Schedule(()),), lambda _: Prediction(())
    from steelyard_kernels.schedule import search  # not for a build that was kept

    carries = _checked(program, device) == "carries"
    return search.space(_own(program, device), device, sought, carries=carries)


def _own(program: Program, device: Device) -> Program:
    """Return the program as a device computes it."""
    return in_halves(program) if isinstance(device, Gpu) else program


def lower(
    program: Program, schedule: Schedule, device: Device, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel of a program under a schedule."""
    kind, program = _kind(device), _own(program, device)
    from steelyard_kernels.nest import lower as nest

    if is_nothing(program):
        return nest.nothing(program, WARP if kind == "cuda" else 0)
    if _checked(program, device) == "carries":
        from steelyard_kernels.nest.carried import lower as carried

        return carried.lower(program, schedule, device)
    if schedule.multiplies_tiles and isinstance(device, Gpu):
        return nest.lower_product(program, schedule, device, aligned=aligned)
    if schedule.cluster > 1 and not (isinstance(device, Gpu) and device.clusters):
        raise KernelError(
            f"{program.name}: schedule {schedule.label} has clusters of blocks, which "
            "cuda:sm_90a alone has; choose one of the target's candidates."
        )
    if schedule.multiplies_blocks and isinstance(device, Machine):
        return nest.lower_blocks(program, schedule, device)
    return nest.lower(program, schedule, kind, aligned=aligned)


def estimated_registers(program: Program, schedule: Schedule) -> int:
    """Return how many registers a GPU's thread is estimated to need."""
    from steelyard_kernels.schedule import search

    carries = strategy(program) == "carries"
    return search.estimated_registers(in_halves(program), schedule, carries=carries)


def _kind(device: Device) -> str:
    return "cuda" if isinstance(device, Gpu) else "cpu"


def _checked(program: Program, device: Device) -> str:
    """Return the recipe that fits; raises Unsupported for updates that it cannot do."""
    fits = strategy(program)
    check_updates(program, fits, _kind(device))
    return fits


def explain(
    program: Program, device: Device, *, aligned: bool = True, top: int = 10
) -> str:
    """Return a table of the best predicted schedules and their terms, in us."""
    ranked = rank(program, device, aligned=aligned)
    if not ranked[0][1].terms:
        return f"{program.name}: nothing to compute\n"
    names = [name for name, _ in ranked[0][1].terms]
    width = max(len(schedule.label) for schedule, _ in ranked[:top])
    title = f"{min(top, len(ranked))} best predicted of {len(ranked)} schedules, in us"
    lines = [
        f"{program.name} ({strategy(program)}): the {title}",
        "  ".join([" " * width, "    total", *names]),
    ]
    for schedule, prediction in ranked[:top]:
        terms = [f"{value / 1000:{len(name)}.2f}" for name, value in prediction.terms]
        total = f"{prediction.total / 1000:9.2f}"
        lines.append("  ".join([schedule.label.ljust(width), total, *terms]))
    return "\n".join(lines) + "\n"
