"""Programs to builds: one kernel by itself, the kernels of several launches together.

    Program --plan_of--> Plan --distinct--> Program* --build_all--> Artifact

Equal launches are one kernel; those of a program are compiled at the same time, as
candidates are.

Plans of several launches lie on disk beside their kernels' builds. A process that finds
one neither partitions the program nor asks what its kernels are known by. A plan lies
under the program's own key, which has all that it depends on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from steelyard_kernels.artifact import Artifact, Code, Failure, digest
from steelyard_kernels.building.build import (
    ALL_LEVELS,
    Phases,
    Request,
    build_kernel,
    failed,
    is_tuned,
    linked,
    plan_of,
    restore,
    tuned,
)
from steelyard_kernels.building.cache import disk, recall
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.plan.order import ordered
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, device, parse


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

    `aligned` and `levels` are a `Request`'s.
    """
    phases = Phases()
    try:
        where = parse(target)
        program = trace if isinstance(trace, Program) else phases.run("trace", trace)
        return _build(Request(program, schedule, where, aligned, levels, phases))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a failure is data
        return failed(name, schedule, target, phases, error)


def _build(asked: Request) -> Artifact:
    found = asked.schedule or tuned(asked.program, asked.target, aligned=asked.aligned)
    by = "caller" if asked.schedule else "tuning" if found else "heuristic"
    asked = replace(asked, schedule=found)
    named, made = restore(asked)
    if made is None:
        loops = found and not found.launches
        made = None if loops else _launches(asked, named)
        made = made or build_kernel(asked, named)
    return replace(made, chosen_by=by)


def _launches(asked: Request, named: str) -> Artifact | None:
    """Return a build of several launches, kept or new; None where it is one kernel."""
    kept = named and not is_tuned()  # of whose parts a file may have schedules
    found = recalled(asked, named) if kept else None
    if found:
        return composed(asked, *found)
    plan = plan_of(asked)
    if plan is None:
        return None
    made = together(asked, plan)
    if kept:
        asked.phases.run("keep", lambda: keep(asked, named, plan))
    return made


def explained(program: Program, target: str, constant: Iterable[str] = ()) -> str:
    """Return the model's table of the best schedules: why one was chosen.

    Of several launches also what each is for, and a table of each distinct kernel; of
    arrays that are `constant` what is stored of these.
    """
    from steelyard_kernels.schedule.strategies import explain

    where = parse(target)
    if constant:
        from steelyard_kernels.plan.constants import split

        found = split(program, {name: name for name in constant}, device(where))
        return found.text() + explained(found.rest, target)
    chosen = tuned(program, where, aligned=True)
    plan = plan_of(Request(program, chosen, where))
    if plan is None:
        return explain(simplify(program), device(where))
    every = [plan.launches[first].program for first, *_ in plan.distinct]
    return plan.text() + "".join([explain(each, device(where)) for each in every])


def together(asked: Request, plan: Plan) -> Artifact:
    """Return a build of several launches; raises what one of them failed by."""
    from steelyard_kernels.group.batch import Candidate
    from steelyard_kernels.group.build import build_all

    program, target, phases = asked.program, asked.target, asked.phases
    kernels = [plan.launches[first] for first, *_ in plan.distinct]
    chosen = [
        tuned(each.program, target, aligned=asked.aligned and each.aligned)
        for each in kernels
    ]
    batch = build_all(
        [
            Candidate(program.name, each.program, schedule, each.aligned)
            for each, schedule in zip(kernels, chosen, strict=True)
        ],
        target=str(target),
        aligned=asked.aligned,
        levels=asked.levels,
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
    return composed(asked, plan, every)


def composed(asked: Request, plan: Plan, parts: tuple[Artifact, ...]) -> Artifact:
    """Return a build of launches that are built: slots behind one another, one hash."""
    scalars = {node.name for node in asked.program.scalars}
    slots, order = ordered(plan, [part.slots for part in parts], scalars)
    distinct = list({part.text: part for part in parts}.values())
    code = Code(
        b"",
        "",
        digest("".join(part.code_hash for part in parts).encode()),
        parts[0].code.compiler,
        sum(part.code.nanoseconds for part in distinct),
    )
    texts = "\n".join(part.text for part in distinct)
    how = plan.schedule, str(asked.target), texts, slots, 0, 0
    made = Artifact(asked.program, *how, code=code, plan=plan, parts=parts, order=order)
    return replace(made, phases=tuple(asked.phases.done))


def keep(asked: Request, named: str, plan: Plan) -> None:
    """Keep the plan of a program by its key, with the key of each kernel's build.

    One of programs that are too deep to be written is made again each time.
    """
    from steelyard_kernels.building.keys import key  # late, as in `build`

    kernels = []
    for numbers in plan.distinct:
        launch = plan.launches[numbers[0]]
        aligned = asked.aligned and launch.aligned
        name = key(launch.program, None, asked.target, aligned=aligned)
        kernels.append((name, tuple(numbers)))
    with suppress(RecursionError):
        disk().put(_place(named), pickle.dumps((plan, kernels)))


def recalled(asked: Request, named: str) -> tuple[Plan, tuple[Artifact, ...]] | None:
    """Return a program's plan and the build of each launch; None unless all are kept."""
    found = disk().get(_place(named))
    if found is None:
        return None
    kernels: list[tuple[str, tuple[int, ...]]]
    plan, kernels = pickle.loads(found)  # noqa: S301 # the disk vouches for every byte
    parts: dict[int, Artifact] = {}
    for name, numbers in kernels:
        program = plan.launches[numbers[0]].program
        made = recall(name, program, str(asked.target))
        if not isinstance(made, Artifact):
            return None
        own = replace(asked, phases=Phases())
        made = replace(linked(made, own), chosen_by="heuristic")
        asked.phases.add(made.phases)
        for number in numbers:
            parts[number] = replace(made, program=plan.launches[number].program)
    return plan, tuple([parts[number] for number in range(len(plan.launches))])


def _place(named: str) -> str:
    return digest(f"launches of {named}".encode())
