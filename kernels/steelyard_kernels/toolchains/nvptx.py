"""A GPU, sooner: LLVM IR through LLVM's PTX and nvJitLink, a kernel at a time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from steelyard_device import timings
from steelyard_device.errors import DeviceError
from steelyard_device.timings import span
from steelyard_kernels.artifact import Code
from steelyard_kernels.emit import ENTRY
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import codes
from steelyard_kernels.toolchains.codes import disassembled, given
from steelyard_kernels.toolchains.costs import Costs


def ptx(text: str, target: Target) -> str:
    """Return LLVM's PTX."""
    from steelyard_device import nvptx

    return nvptx.assembly(text, target.arch)


def sass(text: str, target: Target) -> str:
    """Return what ptxas makes of it."""
    from steelyard_device import nvptx

    return disassembled(nvptx.compile(text, target.arch).cubin)


COSTS: Final = Costs(program=0.001, character=3e-7, kernel=0.006)
"""A program is a message: each candidate is compiled alone."""

THREADS: Final = False
TEXTS: Final = {"llvm": given, "ptx": ptx, "sass": sass}


def emit(kernel: Kernel) -> str:
    """Return LLVM IR, the same for all architectures."""
    from steelyard_kernels.emit.nvptx import emit as emit_nvptx

    return emit_nvptx(kernel, entry=ENTRY)


def compile_text(text: str, target: Target) -> Code:
    """Compile to a cubin."""
    from steelyard_device import cubin, nvptx

    started = perf_counter_ns()
    compiled = nvptx.compile(text, target.arch)
    phases = []
    for phase in compiled.phases:
        phases.append((codes.unlike_ours(phase.name), phase.nanoseconds))
        timings.record(phases[-1][0], started + phase.start, phase.nanoseconds)
    with span("read cubin"):
        every = cubin.read(compiled.cubin)
        return codes.code_of(compiled, ENTRY, compiler(), every, tuple(phases))


def compile_many(
    parts: Sequence[tuple[str, str]], target: Target, _seconds: float | None
) -> dict[str, Code | DeviceError]:
    """Compile texts one by one; nothing stops LLVM."""
    return codes.one_by_one(compile_text, parts, target)


def compiler() -> str:
    """Return the versions of LLVM and nvJitLink."""
    from steelyard_device import nvptx

    return nvptx.compiler()


def settings(target: Target) -> str:
    """Return the target: it is all that both are told."""
    return str(target)


def preload(_library: str | None) -> None:
    """Load both."""
    compiler()
