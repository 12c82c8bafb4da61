"""From a program to code, phase by phase; failures are data.

    Program --schedule--> loops.Kernel --verify--> --emit--> text --compile--> Code

`build` never raises for a candidate: it returns an `Artifact` or a `Failure`. `prepare`
goes as far as the text, so that a group of candidates can be compiled together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Final, TypeVar

from steelyard_device.errors import CompileError
from steelyard_device.timings import span
from steelyard_kernels.artifact import Artifact, Code, Failure
from steelyard_kernels.building.cache import LEVELS, compiled, keeps, recall, remember
from steelyard_kernels.digest import digest
from steelyard_kernels.errors import sentence
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.plan.launches import Plan, placed
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.schedule.strategies import heuristic, is_one, lower
from steelyard_kernels.targets import CPU, Target, device, parse
from steelyard_kernels.toolchains import toolchain

_T = TypeVar("_T")

ALL_LEVELS: Final = frozenset(LEVELS)


class Phases:
    """Times named phases; the last one begun is where an error happened."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.current = ""

    def add(self, other: Phases) -> None:
        """Add another's phases up with these."""
        times = dict(self.done)
        for name, taken in other.done:
            times[name] = times.get(name, 0) + taken
        self.done, self.current = list(times.items()), other.current

    def run(self, name: str, function: Callable[[], _T]) -> _T:
        """Run one phase."""
        self.current = name
        started = perf_counter_ns()
        with span(name):
            result = function()
        self.done.append((name, perf_counter_ns() - started))
        return result


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


def tuned(program: Program, target: Target, *, aligned: bool) -> Schedule | None:
    """Return the schedule that a file has for a program, where one is named."""
    if "STEELYARD_TUNED" not in os.environ or not aligned:
        return None
    from steelyard_kernels.building.tuned import chosen  # few builds ask

    return chosen(program, target)


def failed(
    name: str,
    schedule: Schedule | None,
    target: str,
    phases: Phases,
    error: BaseException,
) -> Failure:
    """Return a build that ended in an error."""
    done = tuple(phases.done)
    return Failure(name, schedule, target, phases.current, sentence(error), error, done)


def _build(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
    is_part: bool = False,
) -> Artifact:
    stated, schedule = schedule, schedule or tuned(program, target, aligned=aligned)
    by = "tuning" if schedule else "heuristic"
    by = "caller" if stated else by
    named, restored = restore(
        program, schedule, target, phases, aligned=aligned, levels=levels
    )
    if restored is not None:
        return replace(restored, chosen_by=by)
    whole = not (schedule or is_part)
    plan = plan_of(program, target, phases) if whole else None
    if plan is not None:
        build_part = partial(_build, aligned=aligned, levels=levels, is_part=True)
        made = together(program, plan, target, phases, build_part)
        return replace(made, chosen_by=by)
    made = prepare(program, schedule, target, phases, aligned=aligned)
    try:
        code = _code(made, target, phases, reuse="code" in levels)
    except CompileError as error:
        if named and phases.current == "compile":  # linking may lack memory
            found = failed(program.name, made.schedule, made.target, phases, error)
            remember(named, found)
        raise
    built = replace(made, code=code, phases=tuple(phases.done), chosen_by=by)
    if named:
        phases.run("keep", lambda: remember(named, built))
    return built


def plan_of(program: Program, target: Target, phases: Phases) -> Plan | None:
    """Return the launches of a program; None where it is one kernel, as most are."""
    simple = simplify(program)
    if is_one(simple):
        return None
    from steelyard_kernels.plan.partition import partition

    return phases.run("partition", lambda: partition(simple, device(target)))


def together(
    program: Program,
    plan: Plan,
    target: Target,
    phases: Phases,
    build_part: Callable[[Program, None, Target, Phases], Artifact],
) -> Artifact:
    """Return a build of several launches, of which equal ones are built once."""
    from steelyard_kernels.building.keys import described

    built: dict[str, Artifact] = {}
    parts, slots = [], []
    for launch in plan.launches:
        known = described(launch.program)
        own = Phases()
        if known not in built:
            built[known] = build_part(launch.program, None, target, own)
        phases.add(own)
        parts.append(replace(built[known], program=launch.program))
        slots += [placed(slot, launch, plan) for slot in parts[-1].slots]
    first = parts[0].code
    code = Code(
        b"",
        "",
        digest("".join(part.code_hash for part in parts).encode()),
        first.compiler,
        sum(part.code.nanoseconds for part in built.values()),
    )
    texts = "\n".join(part.text for part in built.values())
    how = Schedule(()), str(target), texts, tuple(slots), 0, 0
    done = tuple(phases.done)
    return Artifact(
        program, *how, code=code, phases=done, plan=plan, parts=tuple(parts)
    )


def restore(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
) -> tuple[str, Artifact | None]:
    """Return a build's key on disk, empty if that is not asked, and what is there.

    Raises KernelError, with the compiler's sentence, for what it refused before.
    """
    if "disk" not in levels or not keeps():
        return "", None
    named, known = phases.run(
        "look up", lambda: _recalled(program, schedule, target, aligned=aligned)
    )
    if known is None:
        return named, None
    if isinstance(known, Failure):
        phases.current = known.phase
        raise known.cause
    with span("restore"):
        place = known.target, known.text
        code = compiled().get(place) if "code" in levels else None
        if code is None:
            code = compiled()[place] = loaded(known.code, target, phases)
        return named, replace(known, code=code, phases=tuple(phases.done))


def _recalled(
    program: Program, schedule: Schedule | None, target: Target, *, aligned: bool
) -> tuple[str, Artifact | Failure | None]:
    with span("key"):
        from steelyard_kernels.building.keys import (
            key,  # the first kernel of a process is a bar
        )

        named = key(program, schedule, target, aligned=aligned)
    with span("read"):
        return named, recall(named, program, str(target))


def lowered(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
) -> tuple[Schedule, Lowered]:
    """Go as far as verified loops under a schedule, or the heuristic's."""
    run, where = phases.run, device(target)
    simple = run("simplify", lambda: simplify(program))
    chosen = schedule or run(
        "schedule", lambda: heuristic(simple, where, aligned=aligned)
    )
    made = run("lower", lambda: lower(simple, chosen, where, aligned=aligned))
    run("verify", lambda: verify(made.kernel, target.family))
    return chosen, made


def prepare(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
) -> Artifact:
    """Go as far as a candidate's text; raises what made it impossible."""
    chosen, made = lowered(program, schedule, target, phases, aligned=aligned)
    text = phases.run("emit", lambda: toolchain(target).emit(made.kernel))
    return Artifact(
        program,
        chosen,
        str(target),
        text,
        made.slots,
        made.threads,
        made.per_block,
        made.shared,
    )


def _code(made: Artifact, target: Target, phases: Phases, *, reuse: bool) -> Code:
    """Return a text's code, from this process's memory or the compiler."""
    place = (made.target, made.text)
    found = compiled().get(place) if reuse else None
    if found is None:
        phases.current = "compile"
        with span("compile"):
            found = toolchain(target).compile_text(made.text, target)
        phases.done += found.phases
        found = compiled()[place] = loaded(found, target, phases)
    return found


def loaded(code: Code, target: Target, phases: Phases) -> Code:
    """Load code that is this machine's own."""
    if target.kind != CPU:
        return code
    from steelyard_device import cpu

    function = phases.run("link", lambda: cpu.load(code.image, code.entry))
    return replace(code, function=function)
