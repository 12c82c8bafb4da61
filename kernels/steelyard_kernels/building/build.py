"""From a program to code, phase by phase; failures are data.

    Program --schedule--> loops.Kernel --verify--> --emit--> text --compile--> Code

`build` never raises for a candidate: it returns `Built` or `Failed`. `prepare` goes as
far as the text, so that a group of candidates can be compiled together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, TypeVar

from steelyard_device.errors import CompileError
from steelyard_device.timings import span
from steelyard_kernels.binary import Binary, Built, Code, Failed
from steelyard_kernels.building.cache import (
    LEVELS,
    Compiled,
    compiled,
    keeps,
    recall,
    remember,
)
from steelyard_kernels.building.record import Record, Refused
from steelyard_kernels.digest import digest
from steelyard_kernels.errors import KernelError, sentence
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.strategies import (
    Schedule,
    heuristic,
    lower,
    strategy,
)
from steelyard_kernels.targets import CPU, Target, device, parse
from steelyard_kernels.toolchains import toolchain

if TYPE_CHECKING:
    from steelyard_device.cpu import Function

_T = TypeVar("_T")

ALL_LEVELS: Final = frozenset(LEVELS)


@dataclass(frozen=True, slots=True)
class Source:
    """One candidate on its way to a compiler."""

    program: Program
    schedule: Schedule
    target: Target
    kernel: Kernel
    text: str
    slots: tuple[Slot, ...]
    threads: int
    per_block: int


class Phases:
    """Times named phases; the last one begun is where an error happened."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.current = ""

    def run(self, name: str, function: Callable[[], _T]) -> _T:
        """Run one phase."""
        self.current = name
        started = perf_counter_ns()
        with span(name):
            result = function()
        self.done.append((name, perf_counter_ns() - started))
        return result

    def record(self, name: str, nanoseconds: int) -> None:
        """Note a phase that somebody else timed."""
        self.done.append((name, nanoseconds))


def build(
    trace: Program | Callable[[], Program],
    schedule: Schedule | None = None,
    *,
    name: str = "kernel",
    target: str = CPU,
    aligned: bool = True,
    levels: frozenset[str] = ALL_LEVELS,
) -> Built | Failed:
    """Build a program, or what tracing gives, under a schedule or the heuristic's.

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


def failed(
    name: str,
    schedule: Schedule | None,
    target: str,
    phases: Phases,
    error: BaseException,
) -> Failed:
    """Return a build that ended in an error."""
    done = tuple(phases.done)
    return Failed(name, schedule, target, phases.current, sentence(error), error, done)


def _build(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
) -> Built:
    named, restored = restore(
        program, schedule, target, phases, aligned=aligned, levels=levels
    )
    if restored is not None:
        return restored
    source = prepare(program, schedule, target, phases, aligned=aligned)
    try:
        code, function = _code(source, phases, reuse="code" in levels)
    except CompileError as error:
        if named and phases.current == "compile":  # linking may lack memory
            refused = Refused(source.schedule, phases.current, str(error))
            remember(named, refused)
        raise
    with span("put together"):
        built = finish(source, code, function, phases)
    if named:
        phases.run("keep", lambda: keep(named, built))
    return built


def restore(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
    levels: frozenset[str],
) -> tuple[str, Built | None]:
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
    if isinstance(known, Refused):
        phases.current = known.phase
        raise KernelError(known.error)
    with span("restore"):
        reuse = "code" in levels
        return named, _restored(program, target, known, phases, reuse=reuse)


def _recalled(
    program: Program, schedule: Schedule | None, target: Target, *, aligned: bool
) -> tuple[str, tuple[Record, bytes] | Refused | None]:
    with span("key"):
        from steelyard_kernels.building.keys import (
            key,  # the first kernel of a process is a bar
        )

        named = key(program, schedule, target, aligned=aligned)
    with span("read"):
        return named, recall(named)


def prepare(
    program: Program,
    schedule: Schedule | None,
    target: Target,
    phases: Phases,
    *,
    aligned: bool,
) -> Source:
    """Go as far as a candidate's text; raises what made it impossible."""
    run = phases.run
    simple = run("simplify", lambda: simplify(program))
    if schedule is None:
        schedule = run(
            "schedule", lambda: heuristic(simple, device(target), aligned=aligned)
        )
    chosen = schedule
    lowered = run(
        "lower", lambda: lower(simple, chosen, device(target), aligned=aligned)
    )
    run("verify", lambda: verify(lowered.kernel, target.family))
    text = run("emit", lambda: toolchain(target).emit(lowered.kernel))
    return Source(
        program,
        chosen,
        target,
        lowered.kernel,
        text,
        lowered.slots,
        lowered.threads,
        lowered.per_block,
    )


def _code(
    source: Source, phases: Phases, *, reuse: bool
) -> tuple[Code, Function | None]:
    """Return a text's code, from this process's memory or the compiler."""
    place = (str(source.target), source.text)
    found = compiled().get(place) if reuse else None
    if found is None:
        phases.current = "compile"
        with span("compile"):
            chain = toolchain(source.target)
            code = chain.compile_text(source.text, source.target, phases.record)
        found = Compiled(code, loaded(code, source.target, phases))
        compiled()[place] = found
    return found.made, found.function


def loaded(code: Code, target: Target, phases: Phases) -> Function | None:
    """Load code that is this machine's own."""
    if target.kind != CPU:
        return None
    from steelyard_device import cpu

    return phases.run("link", lambda: cpu.load(code.image, code.entry))


def finish(
    source: Source, code: Code, function: Function | None, phases: Phases
) -> Built:
    """Put a candidate and its code together."""
    return Built(
        source.program,
        strategy(source.program),
        source.schedule,
        str(source.target),
        source.text,
        Binary(code.image, code.entry, source.slots, source.threads, source.per_block),
        code,
        tuple(phases.done),
        function,
    )


def keep(named: str, built: Built, *, with_image: bool = True) -> None:
    """Write a build to disk; its image may be there already, of others of a group."""
    binary = built.binary
    record = Record(
        built.schedule,
        built.text,
        binary.slots,
        binary.threads,
        binary.per_block,
        digest(binary.code),
        built.made,
    )
    remember(named, record, binary.code if with_image else None)


def _restored(
    program: Program,
    target: Target,
    known: tuple[Record, bytes],
    phases: Phases,
    *,
    reuse: bool,
) -> Built:
    """Return what the disk had, with this process's code for it if there is any."""
    record, image = known
    place = (str(target), record.text)
    found = compiled().get(place) if reuse else None
    if found is None:
        made = replace(record.made, image=image)
        found = compiled()[place] = Compiled(made, loaded(made, target, phases))
    made = found.made
    with span("put together"):
        return Built(
            program,
            strategy(program),
            record.schedule,
            str(target),
            record.text,
            Binary(
                made.image, made.entry, record.slots, record.threads, record.per_block
            ),
            made,
            tuple(phases.done),
            found.function,
        )
