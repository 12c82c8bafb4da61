"""What can be chosen of: candidates by recipes, and the model that ranks them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache, partial
from itertools import chain

from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.nest.axes import Nest, beyond
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import model_cpu, model_gpu, model_product
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.legality import (
    fused,
    lines_problem,
    loops_problem,
    rounding_problem,
)
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.model_team import Team
from steelyard_kernels.schedule.order import again
from steelyard_kernels.schedule.recipes import (
    contraction,
    loops,
    pointwise,
    rows,
    rows_cpu,
    transposition,
)
from steelyard_kernels.schedule.recipes.attention import AttentionTiling
from steelyard_kernels.schedule.recipes.attention_blocks import attended
from steelyard_kernels.schedule.schedule import Place, Refuse, Schedule, Sought


def space(
    program: Program,
    device: Machine | Gpu,
    sought: Sought,
    *,
    carries: bool,
) -> tuple[Iterator[Schedule], model_cpu.Model]:
    """Return the legal schedules worth trying, in order, and what predicts a launch.

    `carries`: the program is held in registers (see `strategies.strategy`).
    """
    if program.copies > 1 and isinstance(device, Gpu):
        device = device.part(program.copies)
    if carries:  # of which few programs are
        from steelyard_kernels.schedule import model_carries, model_carries_gpu
        from steelyard_kernels.schedule.recipes import carries as of_carries

        if isinstance(device, Gpu):
            model = model_carries_gpu.model(program, device)
            return of_carries.on_gpu(program), model
        model = model_carries.model(program, device)
        return of_carries.on_cpu(program, device), model
    nest = nest_of(program)
    if isinstance(device, Gpu):
        proposed = _on_gpu(nest, device, sought)
    else:
        proposed = _on_cpu(nest, device, sought)
    if nest.lines or again(nest):
        proposed = _with_room(nest, device, proposed)
    return proposed, _model(nest, device)


def _with_room(
    nest: Nest, device: Machine | Gpu, proposed: Iterator[Schedule]
) -> Iterator[Schedule]:
    """Return the schedules that can keep a nest's lines, and add up alike.

    Raises Unsupported for none.
    """
    target, found = "cuda" if isinstance(device, Gpu) else "cpu", []
    why = "has no schedule"
    for schedule in proposed:
        why = ""
        if not (schedule.multiplies_tiles or schedule.multiplies_blocks):
            why = loops_problem(nest, schedule) or lines_problem(nest, schedule, target)
            why = why or rounding_problem(nest, schedule)
        if not why:
            found.append(schedule)
    if not found:
        raise Unsupported(f"{nest.program.name}: the program {why}.")
    return iter(found)


def _on_gpu(nest: Nest, gpu: Gpu, sought: Sought) -> Iterator[Schedule]:
    passes = partial(pointwise.on_gpu, nest, gpu, sought)
    if not beyond(nest.program):  # one pass over the outputs' elements
        return passes()
    tiles = [*tiled(nest, gpu, sought)]
    if tiles and sought.likely and Place.FMA not in tiles[0].places:
        return iter(tiles)  # nothing is as fast as tensor cores
    kept = nest.lines or nest.merged or nest.running
    walked = bool(kept) or any(v.over for v in nest.values)
    if not walked:
        return chain(transposition.on_gpu(nest, gpu, sought), passes())
    team = _team(nest)
    teams = rows.on_gpu(team, gpu, sought)
    if nest.handed is None:
        return chain(tiles, teams, loops.on_gpu(nest, gpu))
    handing = list(teams)
    if not handing:
        why = "no block has all of what it would hand over"
        raise Unsupported(f"{nest.program.name}: {why}.")
    return iter(handing)


def fused_tilings(nest: Nest, gpu: Gpu, refuse: Refuse) -> list[AttentionTiling]:
    """Return the legal tilings of several products of one kernel; none where it has not."""
    found = fused(nest)
    if isinstance(found, str) or not gpu.cores:
        return []
    kind, whole = found
    every = []
    for tiling in kind.proposed(whole, gpu):
        if why := tiling.problem(gpu):
            refuse(tiling.schedule, why)
        else:
            every.append(tiling)
    return every


def tiled(nest: Nest, device: Machine | Gpu, sought: Sought) -> Iterator[Schedule]:
    """Yield the schedules that multiply by tensor cores, or by a CPU's registers."""
    if isinstance(device, Gpu):
        yield from contraction.on_gpu(nest, device, sought)
        if sought.aligned:
            every = fused_tilings(nest, device, sought.refuse)
            yield from (tiling.schedule for tiling in every)
        return
    from steelyard_kernels.schedule.recipes import attention_blocks, blocks

    yield from blocks.on_cpu(nest, device, sought)
    yield from attention_blocks.on_cpu(nest, device, sought)


def _on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    if not beyond(nest.program):
        return pointwise.on_cpu(nest, machine, sought)
    blocked = tiled(nest, machine, sought)
    if rows_cpu.fits(nest):
        return chain(blocked, rows_cpu.on_cpu(nest, machine, sought))
    squares = transposition.on_cpu(nest, machine, sought)
    return chain(blocked, squares, loops.on_cpu(nest, machine))


def estimated_registers(program: Program, schedule: Schedule, *, carries: bool) -> int:
    """Return how many registers a GPU's thread is estimated to need."""
    if carries:
        from steelyard_kernels.schedule import model_carries_gpu

        return model_carries_gpu.estimate_registers(program, schedule)
    nest = nest_of(program)
    if schedule.multiplies_tiles:
        tiling = _fused(nest, schedule)
        return (
            tiling.registers
            if tiling
            else model_product.estimate_registers(nest, schedule)
        )
    if any(cut.at(Place.THREAD) > 1 for cut in schedule.cuts[1:]):
        return _team(nest).registers(schedule)
    return model_gpu.estimate_registers(nest, schedule)


@lru_cache(maxsize=2)  # asked for to propose schedules, then to rank them
def _team(nest: Nest) -> Team:
    return Team(nest)


def _of_blocks(nest: Nest, machine: Machine) -> model_cpu.Model:
    from steelyard_kernels.schedule import model_blocks
    from steelyard_kernels.schedule.recipes import attention_blocks

    if isinstance(attended(nest), str):
        return model_blocks.model(nest, machine)
    return attention_blocks.model(nest, machine)


def _model(nest: Nest, device: Machine | Gpu) -> model_cpu.Model:
    if not isinstance(device, Gpu):
        of_blocks = cache(partial(_of_blocks, nest, device))
        of_loops = (
            model_cpu.Rows(nest, device).predict
            if rows_cpu.fits(nest)
            else model_cpu.model(nest, device)
        )
        return lambda schedule: (
            of_blocks() if schedule.multiplies_blocks else of_loops
        )(schedule)
    if not any(value.over or value.runs is not None for value in nest.values):
        return model_gpu.model(nest, device)
    of_team = partial(_team(nest).predict, device)

    @cache
    def of_product() -> model_cpu.Model:
        return model_product.model(nest, device)

    def predict(schedule: Schedule) -> Prediction:
        if not schedule.multiplies_tiles:
            return of_team(schedule)
        tiling = _fused(nest, schedule)
        return tiling.predict(device) if tiling else of_product()(schedule)

    return predict


def _fused(nest: Nest, schedule: Schedule) -> AttentionTiling | None:
    """Return the tiling of several products that a legal schedule says; None for one."""
    found = fused(nest)
    return None if isinstance(found, str) else found[0].read(found[1], schedule)
