"""From a program to code, phase by phase; failures are data.

    Program --schedule--> loops.Kernel --verify--> --emit--> text --compile--> Code

What goes wrong becomes a `Failure` where candidates are built (`group.programs`,
`group.build`). `prepare` goes as far as the text, so that a group of candidates can be
compiled together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from steelyard_device.errors import CompileError
from steelyard_device.timings import span
from steelyard_kernels.artifact import Artifact, Code, Failure, Times
from steelyard_kernels.building.cache import LEVELS, compiled, keeps, recall, remember
from steelyard_kernels.errors import sentence
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule.parameters import Lowered, side_by_side
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, Target, device
from steelyard_kernels.toolchains import toolchain

_T = TypeVar("_T")

ALL_LEVELS: Final = frozenset(LEVELS)


class Phases:
    """Times named phases; the last one begun is where an error happened."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.current = ""

    def add(self, done: Times) -> None:
        """Add another build's phases up with these."""
        times = dict(self.done)
        for name, taken in done:
            times[name] = times.get(name, 0) + taken
        self.done = list(times.items())

    def run(self, name: str, function: Callable[[], _T]) -> _T:
        """Run one phase."""
        self.current = name
        started = perf_counter_ns()
        with span(name):
            result = function()
        self.done.append((name, perf_counter_ns() - started))
        return result


class Request(Struct, frozen=True):
    """A program to be built for a target, and the phases that have been timed.

    Without a `schedule` it is the heuristic's. `aligned` says that every output starts
    on a cache line, on a GPU every array; `levels` which caches may be asked and told.
    """

    program: Program
    schedule: Schedule | None
    target: Target
    aligned: bool = True
    levels: frozenset[str] = ALL_LEVELS
    phases: Phases = field(default_factory=Phases)


def tuned(program: Program, target: Target, *, aligned: bool) -> Schedule | None:
    """Return the schedule that a file has for a program, where one is named."""
    if not is_tuned() or not aligned:
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


def build_kernel(asked: Request, named: str) -> Artifact:
    """Build one kernel, kept on disk under a name if there is one; raises what failed."""
    made, phases = prepare(asked), asked.phases
    try:
        code = _code(made, asked)
    except CompileError as error:
        if named and phases.current == "compile":  # linking may lack memory
            name = asked.program.name
            remember(named, failed(name, made.schedule, made.target, phases, error))
        raise
    built = replace(made, code=code, phases=tuple(phases.done))
    if named:
        phases.run("keep", lambda: remember(named, built))
    return built


def is_tuned() -> bool:
    """Say whether a file of schedules is named."""
    return "STEELYARD_TUNED" in os.environ


def plan_of(asked: Request) -> Plan | None:
    """Return the launches of a program; None where it is one kernel, as most are.

    Raises KernelError where the request's are none of it.
    """
    from steelyard_kernels.schedule.strategies import is_one

    simple, machine = simplify(asked.program), device(asked.target)
    parts = asked.schedule.launches if asked.schedule else ()
    if not parts and is_one(simple):
        return None
    from steelyard_kernels.plan.partition import given, partition

    if parts:
        return asked.phases.run("partition", lambda: given(simple, machine, parts))
    return asked.phases.run("partition", lambda: partition(simple, machine))


def restore(asked: Request) -> tuple[str, Artifact | None]:
    """Return a build's key on disk, empty if that is not asked, and what is there.

    Raises KernelError, with the compiler's sentence, for what it refused before.
    """
    phases = asked.phases
    if "disk" not in asked.levels or not keeps():
        return "", None
    named, known = phases.run("look up", lambda: _recalled(asked))
    if known is None:
        return named, None
    if isinstance(known, Failure):
        phases.current = known.phase
        raise known.cause
    with span("restore"):
        return named, linked(known, asked)


def linked(known: Artifact, asked: Request) -> Artifact:
    """Return a build that was kept with its code loaded."""
    place = known.target, known.text
    code = compiled().get(place) if "code" in asked.levels else None
    if code is None:
        code = compiled()[place] = loaded(known.code, asked.target, asked.phases)
    return replace(known, code=code, phases=tuple(asked.phases.done))


def _recalled(asked: Request) -> tuple[str, Artifact | Failure | None]:
    program, target = asked.program, asked.target
    with span("key"):
        # Late: how soon a process has its first kernel is measured.
        from steelyard_kernels.building.keys import key

        named = key(program, asked.schedule, target, aligned=asked.aligned)
    with span("read"):
        return named, recall(named, program, str(target))


def lowered(asked: Request) -> tuple[Schedule, Lowered]:
    """Go as far as verified loops under a schedule, or the heuristic's."""
    from steelyard_kernels.ir.verify import verify  # not for what was kept
    from steelyard_kernels.schedule.strategies import heuristic, lower

    run, where, aligned = asked.phases.run, device(asked.target), asked.aligned
    simple = run("simplify", lambda: simplify(asked.program))
    chosen = asked.schedule or run(
        "schedule", lambda: heuristic(simple, where, aligned=aligned)
    )
    made = run("lower", lambda: lower(simple, chosen, where, aligned=aligned))
    run("verify", lambda: verify(made.kernel, asked.target.family))
    copies = asked.program.copies
    return chosen, replace(made, kernel=replace(made.kernel, copies=copies))


def prepare(asked: Request) -> Artifact:
    """Go as far as a candidate's text; raises what made it impossible."""
    chosen, made = lowered(asked)
    emit = toolchain(asked.target).emit
    text = asked.phases.run("emit", lambda: emit(made.kernel))
    slots = side_by_side(made.slots, asked.program)
    how = slots, made.threads, made.per_block, made.shared
    return Artifact(asked.program, chosen, str(asked.target), text, *how)


def _code(made: Artifact, asked: Request) -> Code:
    """Return a text's code, from this process's memory or the compiler."""
    place, target, phases = (made.target, made.text), asked.target, asked.phases
    found = compiled().get(place) if "code" in asked.levels else None
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
