"""From a candidate's text to its code: LLVM for this machine, NVRTC or LLVM for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from steelyard_device import timings
from steelyard_device.timings import listening, span
from steelyard_kernels.binary import Code
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.keys import compiler, digest
from steelyard_kernels.targets import CPU, NVPTX, Target

if TYPE_CHECKING:
    from steelyard_device.cubin import Resources
    from steelyard_device.nvrtc import Compiled

ENTRY: Final = "kernel"  # the same for all, so that a hash does not depend on names

Recorder = Callable[[str, int], None]
"""Told the name of each finished phase and its nanoseconds."""


def compile_text(text: str, target: Target, record: Recorder) -> Code:
    """Compile one candidate whose entry is `ENTRY`.

    Raises LLVMError or DeviceError with the compiler's own message.
    """
    if target.kind == CPU:
        return _llvm(text, target, record)
    if target.kind == NVPTX:
        return _nvptx(text, target, record)
    return _nvrtc(text, target, record)


def _llvm(text: str, target: Target, record: Recorder) -> Code:
    from steelyard_device import llvm

    def named(name: str, nanoseconds: int) -> None:
        name = _unlike_ours(name)
        record(name, nanoseconds)
        timings.record(name, perf_counter_ns() - nanoseconds, nanoseconds)

    started = perf_counter_ns()
    code = llvm.assemble(text, named)
    taken = perf_counter_ns() - started
    return Code(code, ENTRY, digest(code), compiler(target), taken)


def _unlike_ours(phase: str) -> str:
    """Return LLVM's name of a phase; we have a "verify" of our own."""
    return "check" if phase == "verify" else phase


def _nvptx(text: str, target: Target, record: Recorder) -> Code:
    from steelyard_device import nvptx

    started = perf_counter_ns()
    compiled = nvptx.compile(text, target.arch)
    for phase in compiled.phases:
        name = _unlike_ours(phase.name)
        record(name, phase.nanoseconds)
        timings.record(name, started + phase.start, phase.nanoseconds)
    with span("read cubin"):
        return code_of(compiled, ENTRY, target)


def _nvrtc(text: str, target: Target, record: Recorder) -> Code:
    from steelyard_device import nvrtc

    started = perf_counter_ns()
    compiled = nvrtc.compile(text, target.arch, phases=listening())
    record("nvrtc", compiled.nanoseconds)
    told(compiled, started)
    with span("read cubin"):
        return code_of(compiled, ENTRY, target)


def told(compiled: Compiled, started: int) -> None:
    """Record what NVRTC says of its own time, within a span that began at `started`."""
    inside: list[tuple[tuple[str, ...], int, int]] = []
    path: tuple[str, ...] = ()
    for phase in compiled.phases:
        path = (*path[: phase.depth], phase.name)
        inside.append((path, started + phase.start, phase.nanoseconds))
    timings.record("nvrtc", started, compiled.nanoseconds, inside)
    end = started + compiled.nanoseconds
    timings.record("program and log", end, perf_counter_ns() - end)


def code_of(
    compiled: Compiled,
    entry: str,
    target: Target,
    *,
    every: dict[str, Resources] | None = None,
) -> Code:
    """Return one entry of a cubin, with what it needs of a GPU.

    `every` is what was read of the cubin, where more than one entry is wanted.
    """
    from steelyard_device import cubin

    found = (every or cubin.read(compiled.cubin)).get(entry)
    if found is None:
        raise CompilerBug(f"the cubin has no entry {entry}; report it with its source.")
    logged = {log.entry: log for log in compiled.kernels}.get(entry)
    return Code(
        compiled.cubin,
        entry,
        found.code_hash,
        compiler(target),
        logged.nanoseconds if logged else compiled.nanoseconds,
        found,
        logged.spill_stores if logged else 0,
        logged.spill_loads if logged else 0,
    )
