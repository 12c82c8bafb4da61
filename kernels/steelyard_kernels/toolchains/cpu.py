"""The processor of this machine: LLVM IR, compiled by LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import perf_counter_ns
from typing import Final

from steelyard_device import timings
from steelyard_device.errors import DeviceError
from steelyard_kernels.artifact import Code, digest
from steelyard_kernels.emit import ENTRY
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import codes
from steelyard_kernels.toolchains.codes import given
from steelyard_kernels.toolchains.costs import Costs

COSTS: Final = Costs(program=0.001, character=3e-7, kernel=0.002)
"""A program is a message: each candidate is compiled alone."""

THREADS: Final = False
TEXTS: Final = {"llvm": given}


def emit(kernel: Kernel) -> str:
    """Return LLVM IR for this machine."""
    from steelyard_device import llvm
    from steelyard_kernels.emit.llvm import emit as emit_llvm

    return emit_llvm(kernel, llvm.host())


def compile_text(text: str, _target: Target) -> Code:
    """Compile to an object file."""
    from steelyard_device import llvm

    phases: list[tuple[str, int]] = []

    def named(phase: str, nanoseconds: int) -> None:
        name = codes.unlike_ours(phase)
        phases.append((name, nanoseconds))
        timings.record(name, perf_counter_ns() - nanoseconds, nanoseconds)

    started = perf_counter_ns()
    image = llvm.assemble(text, named)
    taken = perf_counter_ns() - started
    hashed = digest(image)
    return Code(image, ENTRY, hashed, compiler(), taken, phases=tuple(phases))


def compile_many(
    parts: Sequence[tuple[str, str]], target: Target, _seconds: float | None
) -> dict[str, Code | DeviceError]:
    """Compile texts one by one; nothing stops LLVM."""
    return codes.one_by_one(compile_text, parts, target)


@cache
def compiler() -> str:
    """Return LLVM's version, and that of who built it."""
    import llvmlite
    import llvmlite.binding

    version = ".".join(map(str, llvmlite.binding.llvm_version_info))
    return f"llvm {version} llvmlite {llvmlite.__version__}"


def settings(_target: Target) -> str:
    """Return what this machine is to LLVM and to schedules."""
    from steelyard_device import caches, cpu, llvm

    host = llvm.host()
    features = ",".join(sorted(host.features))
    cores = f"{cpu.pool_size()} {caches.second()}"
    return f"{host.triple} {host.cpu} {features} {cores}"


def preload(_library: str | None) -> None:
    """Load LLVM."""
    from steelyard_device import llvm

    llvm.host()
