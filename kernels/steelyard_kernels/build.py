"""From a program to loaded machine code, phase by phase; failures are data.

    Program --schedule--> loops.Kernel --verify--> --emit--> text --> code --> Function

`build` never raises for a candidate: it returns `Built` or `Failed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from time import perf_counter_ns
from typing import Final, TypeAlias, TypeVar

from steelyard_device import cpu, llvm
from steelyard_device.cpu import Function
from steelyard_kernels.cache import Compiled, compiled
from steelyard_kernels.emit.llvm import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Program
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.strategies import (
    Schedule,
    heuristic,
    lower,
    strategy,
)
from steelyard_kernels.verify import verify

_T = TypeVar("_T")

ENTRY: Final = "kernel"  # the same for all, so that a hash does not depend on names
TARGET: Final = "cpu"


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code: its entry, what its slots take, how many threads (0: all)."""

    code: bytes
    entry: str
    slots: tuple[Slot, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel that can be launched.

    `phases` are (name, nanoseconds) in order; a phase that a cache saved is missing.
    `code_hash` is of the object's bytes and depends on no name of the kernel.
    """

    program: Program
    strategy: str
    schedule: Schedule
    target: str
    text: str
    binary: Binary
    code_hash: str
    phases: tuple[tuple[str, int], ...]
    function: Function


@dataclass(frozen=True, slots=True)
class Failed:
    """A build that came to nothing: in which phase, and why in one sentence."""

    name: str
    schedule: Schedule | None
    target: str
    phase: str
    error: str
    cause: Exception
    phases: tuple[tuple[str, int], ...]


Recorder: TypeAlias = list[tuple[str, int]]


@cache
def machine() -> Machine:
    """Describe this machine to the schedules."""
    return Machine(llvm.host().vector_bytes, cpu.pool_size())


def check_target(name: str, target: str) -> None:
    """Raise KernelError for a target that nothing emits for."""
    if target != TARGET:
        raise KernelError(
            f"{name}: target {target} is not known, expected {TARGET}; leave target out."
        )


class _Phases:
    """Times named phases; the last one begun is where an error happened."""

    def __init__(self, done: Recorder) -> None:
        self.done = done
        self.current = ""

    def run(self, name: str, function: Callable[[], _T]) -> _T:
        """Run one phase."""
        self.current = name
        started = perf_counter_ns()
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
    target: str = TARGET,
    aligned: bool = True,
    cached: bool = True,
) -> Built | Failed:
    """Build a program, or what tracing gives, under a schedule or the heuristic's.

    `aligned` says that every output starts on a cache line; `cached` that code made
    before from the same text may be used.
    """
    phases = _Phases([])
    try:
        check_target(name, target)
        program = trace if isinstance(trace, Program) else phases.run("trace", trace)
        return _build(program, schedule, phases, aligned=aligned, cached=cached)
    except Exception as error:  # noqa: BLE001 - a candidate's failure is data
        return Failed(
            name,
            schedule,
            target,
            phases.current,
            str(error),
            error,
            tuple(phases.done),
        )


def _build(
    program: Program,
    schedule: Schedule | None,
    phases: _Phases,
    *,
    aligned: bool,
    cached: bool,
) -> Built:
    run = phases.run
    if schedule is None:
        schedule = run(
            "schedule", lambda: heuristic(program, machine(), aligned=aligned)
        )
    chosen = schedule
    lowered = run("lower", lambda: lower(program, chosen, aligned=aligned))
    run("verify", lambda: verify(lowered.kernel, TARGET))
    text = run("emit", lambda: emit(lowered.kernel, llvm.host()))
    found = compiled().get(text) if cached else None
    if found is None:
        found = _compile(text, phases)
        compiled()[text] = found
    binary = Binary(found.code, ENTRY, lowered.slots, lowered.threads)
    return Built(
        program,
        strategy(program),
        schedule,
        TARGET,
        text,
        binary,
        found.code_hash,
        tuple(phases.done),
        found.function,
    )


def _compile(text: str, phases: _Phases) -> Compiled:
    phases.current = "codegen"
    code = llvm.assemble(text, _llvm_phases(phases))
    code_hash = blake2b(code, digest_size=16).hexdigest()
    function = phases.run("link", lambda: cpu.load(code, ENTRY))
    return Compiled(code, code_hash, function)


def _llvm_phases(phases: _Phases) -> Callable[[str, int], None]:
    """Tell LLVM's own verification from ours."""

    def record(name: str, nanoseconds: int) -> None:
        phases.record("check" if name == "verify" else name, nanoseconds)

    return record
