"""LLVM IR text to a cubin in this process, through LLVM's NVPTX and nvJitLink.

Quicker than NVRTC for a single kernel, for there is no C++ to read and no optimiser:
programs arrive in SSA. Code generation folds constants and turns memory that is only
indexed by them into registers, ptxas (in nvJitLink) does the rest.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import llvmlite.binding as llvm

from steelyard_device import install, nvrtc_log
from steelyard_device.errors import CompileError, DeviceError
from steelyard_device.llvm import refusing
from steelyard_device.nvrtc import ARCHITECTURES, Compiled, Phase
from steelyard_device.threads import LOCK, Once, compiling

TRIPLE = "nvptx64-nvidia-cuda"
_REASON = re.compile(r"^error +: (.*)$", re.MULTILINE)  # of ptxas, without its name


def compile(text: str, arch: str) -> Compiled:  # noqa: A001 - read as nvptx.compile
    """Compile LLVM IR ``text``, its kernels ``ptx_kernel``, for ``arch``.

    What comes back is as NVRTC's: the log of ptxas and what it says of each kernel,
    phases ``parse``, ``verify``, ``codegen`` and ``link``, nanoseconds of all four.

    Raises:
        LLVMError: the text is not a legal LLVM program.
        CompileError: ptxas refused the program.
        DeviceError: no code is made for ``arch``, there is no nvJitLink, or it lacked
            something, such as memory, that it may have another time.
    """
    clock = [perf_counter_ns()]
    module = _parsed(text, arch)
    clock.append(perf_counter_ns())
    with refusing():
        module.verify()
    clock.append(perf_counter_ns())
    with LOCK:  # the process's switches may be another thread's
        ptx = _machine(arch).emit_assembly(module).encode()
    clock.append(perf_counter_ns())
    with compiling():
        cubin, log = _linked(ptx, arch)
    clock.append(perf_counter_ns())
    begun = clock[0]
    steps = zip(("parse", "verify", "codegen", "link"), clock, clock[1:], strict=False)
    return Compiled(
        cubin=cubin,
        log=log,
        nanoseconds=clock[-1] - begun,
        kernels=nvrtc_log.kernels(log),
        phases=tuple(Phase(name, a - begun, b - a, 0) for name, a, b in steps),
    )


def assembly(text: str, arch: str) -> str:
    """Return the PTX of LLVM IR ``text``; raises as `compile` does."""
    module = _parsed(text, arch)
    with refusing():
        module.verify()
    ptx: str = _machine(arch).emit_assembly(module)
    return ptx


@functools.cache
def compiler() -> str:
    """Say which builds make the code: a part of cache keys."""
    number = ".".join(map(str, llvm.llvm_version_info))
    return f"LLVM {number}, nvJitLink {'.'.join(map(str, _linker().version()))}"


def _parsed(text: str, arch: str) -> llvm.ModuleRef:
    """Read a program and give it the data layout of this LLVM, which is no text's."""
    machine = _machine(arch)
    with refusing():
        module = llvm.parse_assembly(text)
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    return module


@Once
def _machine(arch: str) -> llvm.TargetMachine:
    """Return what makes code for an architecture, in the oldest PTX that has it.

    LLVM ends the process over an architecture it does not know: only these pass.
    """
    if arch not in ARCHITECTURES:
        raise DeviceError(
            f"LLVM's PTX is made for {', '.join(ARCHITECTURES)}, not for {arch!r}: "
            "compile with NVRTC."
        )
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=arch, opt=2)


@Once
def _linker() -> Any:
    """Import the bindings and load the library.

    The driver's compute cache is switched off first, as for NVRTC, which need not load.
    """
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    try:
        from cuda.bindings import nvjitlink  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        nvjitlink.version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            "there is no nvJitLink here to assemble PTX with: "
            f"{install.command('cuda')}."
        ) from error
    return nvjitlink


def _linked(ptx: bytes, arch: str) -> tuple[bytes, str]:
    """Return the cubin of a PTX program and the log of ptxas."""
    linker = _linker()
    options = [f"-arch={arch}", "-no-cache", "-fma=0", "-Xptxas=-v"]
    with _handle(linker, options) as handle:
        try:
            linker.add_data(handle, linker.InputType.PTX, ptx, len(ptx), "kernel.ptx")
            linker.complete(handle)
        except linker.nvJitLinkError as error:
            log = _log(linker, handle, "error")
            raise _failure(log or str(error), ptx.decode(), arch) from error
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
        return bytes(cubin), _log(linker, handle, "info")


def _failure(log: str, ptx: str, arch: str) -> DeviceError:
    """Return what a log of nvJitLink says: a refusal if ptxas wrote the reason.

    Its status does not tell: too much shared memory is an internal error too.
    """
    told = [each.message for each in nvrtc_log.diagnostics(log, ptx)]
    if why := told or _REASON.findall(log):
        return CompileError(
            f"ptxas refused the program for {arch}: {why[0]}. Compile it with NVRTC."
        )
    return DeviceError(
        f"nvJitLink failed for {arch}: {log.splitlines()[0]}. Compile it with NVRTC."
    )


@contextmanager
def _handle(linker: Any, options: list[str]) -> Iterator[int]:
    """Create nvJitLink's program and destroy it on every path."""
    handle = linker.create(len(options), options)
    try:
        yield handle
    finally:
        linker.destroy(handle)


def _log(linker: Any, handle: int, which: str) -> str:
    """Return the ``info`` or ``error`` log, which ends in a NUL."""
    size = getattr(linker, f"get_{which}_log_size")(handle)
    text = bytearray(size)
    if size:
        getattr(linker, f"get_{which}_log")(handle, text)
    return text.decode(errors="replace").replace("\0", "").strip()
