"""A GPU: CUDA C++, compiled by NVRTC, many candidates in one program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import perf_counter_ns
from typing import Final

from msgspec.structs import replace

from steelyard_device import timings
from steelyard_device.errors import DeviceError
from steelyard_device.nvrtc import Compiled, NVRTCError
from steelyard_device.timings import listening, span
from steelyard_kernels.artifact import Code
from steelyard_kernels.emit import ENTRY
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import codes
from steelyard_kernels.toolchains.codes import disassembled, given
from steelyard_kernels.toolchains.costs import Costs


def ptx(text: str, target: Target) -> str:
    """Return NVRTC's PTX."""
    from steelyard_device import nvrtc

    return nvrtc.ptx(text, target.arch)


def sass(text: str, target: Target) -> str:
    """Return what ptxas makes of it."""
    from steelyard_device import nvrtc

    return disassembled(nvrtc.compile(text, target.arch).cubin)


COSTS: Final = Costs(
    program=0.016,
    character=2.4e-6,
    repeated=9e-7,
    division=6e-4,
    apart="extern __shared__",
)
"""Where a kernel of a program declares dynamic memory, ptxas pads the others' own to where
that begins: from 24 to 1024 bytes."""

THREADS: Final = True
TEXTS: Final = {"cuda": given, "ptx": ptx, "sass": sass}


def emit(kernel: Kernel) -> str:
    """Return CUDA C++, the same for all architectures."""
    from steelyard_kernels.emit.cuda import emit as emit_cuda

    return emit_cuda(kernel, entry=ENTRY)


def compile_text(text: str, target: Target) -> Code:
    """Compile to a cubin."""
    from steelyard_device import cubin, nvrtc

    started = perf_counter_ns()
    compiled = nvrtc.compile(text, target.arch, phases=listening())
    _tell(compiled, started)
    phases = (("nvrtc", compiled.nanoseconds),)
    with span("read cubin"):
        every = cubin.read(compiled.cubin)
        return codes.code_of(compiled, ENTRY, compiler(), every, phases)


def compile_many(
    parts: Sequence[tuple[str, str]], target: Target, seconds: float | None
) -> dict[str, Code | DeviceError]:
    """Compile texts as one program; if it is refused, only those to blame are done."""
    from steelyard_device import nvrtc
    from steelyard_kernels.emit.cuda import joined

    started = perf_counter_ns()
    try:
        compiled = nvrtc.compile(
            joined(parts), target.arch, seconds=seconds, phases=listening()
        )
    except nvrtc.NVRTCError as error:
        refused = _blamed(error, [entry for entry, _ in parts])
        if not refused:
            raise
        return refused
    _tell(compiled, started)
    with span("read cubin"):
        return _codes(compiled, parts)


def _tell(compiled: Compiled, started: int) -> None:
    """Record what NVRTC says of its own time, within a span that began at `started`."""
    inside: list[tuple[tuple[str, ...], int, int]] = []
    path: tuple[str, ...] = ()
    for phase in compiled.phases:
        path = (*path[: phase.depth], phase.name)
        inside.append((path, started + phase.start, phase.nanoseconds))
    timings.record("nvrtc", started, compiled.nanoseconds, inside)
    end = started + compiled.nanoseconds
    timings.record("program and log", end, perf_counter_ns() - end)


def _blamed(error: NVRTCError, entries: Sequence[str]) -> dict[str, Code | DeviceError]:
    """Return each named candidate's own errors, as if it had been compiled alone."""
    found: dict[str, Code | DeviceError] = {}
    for entry in entries:
        own = tuple(
            replace(each, source=ENTRY, message=each.message.replace(entry, ENTRY))
            for each in error.diagnostics
            if each.source == entry
        )
        if own:
            found[entry] = type(error)(own, error.log)
    return found


def _codes(
    compiled: Compiled, parts: Sequence[tuple[str, str]]
) -> dict[str, Code | DeviceError]:
    """Return each candidate's code: the whole cubin and its entry.

    Its time is what ptxas says, and of the rest a share by its text: the front end is
    one for all. So the times of a group add up to the group's.
    """
    from steelyard_device import cubin

    every = cubin.read(compiled.cubin)
    logs = {log.entry: log for log in compiled.kernels}
    rest = compiled.nanoseconds - sum(log.nanoseconds for log in compiled.kernels)
    share = max(rest, 0) / sum(len(text) for _, text in parts)
    made: dict[str, Code | DeviceError] = {}
    for entry, text in parts:
        code = codes.code_of(compiled, entry, compiler(), every)
        taken = logs[entry].nanoseconds + round(share * len(text))
        made[entry] = replace(code, nanoseconds=taken, phases=(("nvrtc", taken),))
    return made


@cache
def compiler() -> str:
    """Return the version and build of NVRTC."""
    from steelyard_device import nvrtc

    found = nvrtc.compiler()
    return f"nvrtc {found.version} {found.build}"


def settings(target: Target) -> str:
    """Return the options, in which the architecture is."""
    from steelyard_device import nvrtc

    return " ".join(nvrtc.options_for(target.arch))


def preload(library: str | None) -> None:
    """Load NVRTC, of a path if there is one."""
    from steelyard_device import nvrtc

    nvrtc.load(library)
    nvrtc.compiler()
