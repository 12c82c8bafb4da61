"""Programs to builds: one kernel by itself, the kernels of several launches together.

    Program --plan_of--> Plan --distinct--> Program* --build_all--> Artifact

Equal launches are one kernel; those of a program are compiled at the same time, as
candidates are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from steelyard_kernels.artifact import Artifact, Code, Failure
from steelyard_kernels.building.build import (
    ALL_LEVELS,
    Phases,
    build_kernel,
    failed,
    plan_of,
    restore,
    tuned,
)
from steelyard_kernels.digest import digest
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.plan.launches import Plan, placed
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, Target, parse


def build(
    trace: Program | Callable[[], Program],
    schedule: Schedule | None = None,
    *,
    name: str = "kernel",
    target: str = CPU,
    aligned: bool = True,
    levels: frozenset[str] = ALL_LEVELS,
) -> Artifact | Failure:
    """Build a program, or what tracing gives, under a schedule: tuned, or the heuristic's.

    `aligned` says that every output starts on a cache line, on a GPU every array;
    `levels` which caches may be asked and told.
    """
    phases = Phases()
    try:
        where = parse(target)
        program = trace if isinstance(trace, Program) else phases.run("trace", trace)
        return _build(program, schedule, where, phases, aligned=aligned, levels=levels)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is data
        return failed(name, schedule, target, phases, error)


def _build(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
) -> Artifact:
    chosen = schedule or tuned(program, target, aligned=aligned)
    by = "caller" if schedule else "tuning" if chosen else "heuristic"
    named, made = restore(
        program, chosen, target, phases, aligned=aligned, levels=levels
    )
    if made is None:
        plan = None if chosen else plan_of(program, target, phases)
        if plan is None:
            made = build_kernel(
                program, chosen, target, phases, named, aligned=aligned, levels=levels
            )
        else:
            made = together(
                program, plan, target, phases, aligned=aligned, levels=levels
            )
    return replace(made, chosen_by=by)


def together(
    program: Program,
    plan: Plan,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
) -> Artifact:
    """Return a build of several launches; raises what one of them failed by."""
    from steelyard_kernels.group.batch import Candidate
    from steelyard_kernels.group.build import build_all

    kernels = [plan.launches[first].program for first, *_ in plan.distinct]
    chosen = [tuned(each, target, aligned=aligned) for each in kernels]
    batch = build_all(
        [
            Candidate(program.name, each, schedule)
            for each, schedule in zip(kernels, chosen, strict=True)
        ],
        target=str(target),
        aligned=aligned,
        levels=levels,
    )
    parts: dict[int, Artifact] = {}
    for numbers, made, schedule in zip(
        plan.distinct, batch.results, chosen, strict=True
    ):
        if isinstance(made, Failure):
            phases.current = made.phase
            raise made.cause
        phases.add(made.phases)
        by = "tuning" if schedule else "heuristic"
        for number in numbers:
            own = plan.launches[number].program
            parts[number] = replace(made, program=own, chosen_by=by)
    every = tuple(parts[number] for number in range(len(plan.launches)))
    return composed(program, plan, str(target), every, tuple(phases.done))


def composed(
    program: Program,
    plan: Plan,
    target: str,
    parts: tuple[Artifact, ...],
    phases: tuple[tuple[str, int], ...],
) -> Artifact:
    """Return a build of launches that are built: slots behind one another, one hash."""
    slots = [
        placed(slot, launch, plan)
        for launch, part in zip(plan.launches, parts, strict=True)
        for slot in part.slots
    ]
    distinct = [parts[first] for first, *_ in plan.distinct]
    code = Code(
        b"",
        "",
        digest("".join(part.code_hash for part in parts).encode()),
        parts[0].code.compiler,
        sum(part.code.nanoseconds for part in distinct),
    )
    texts = "\n".join(part.text for part in distinct)
    how = Schedule(()), target, texts, tuple(slots), 0, 0
    return Artifact(program, *how, code=code, phases=phases, plan=plan, parts=parts)
