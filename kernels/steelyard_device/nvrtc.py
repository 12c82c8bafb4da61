"""CUDA C++ text to a cubin in this process, without a GPU or a driver, through NVRTC.

A process has one NVRTC: the one ``load`` chose, or the one cuda.bindings finds. All
calls release the interpreter while the compiler works, so that threads overlap.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from msgspec import Struct

from steelyard_device import native, nvrtc_log
from steelyard_device.errors import Cancelled, CompileError, DeviceError
from steelyard_device.native_language import own
from steelyard_device.nvrtc_library import Compiler, bindings, compiler, load
from steelyard_device.nvrtc_log import Diagnostic, KernelLog, Phase
from steelyard_device.threads import Once, compiling

__all__ = [
    "ARCHITECTURES",
    "Compiled",
    "Compiler",
    "Diagnostic",
    "KernelLog",
    "NVRTCError",
    "Phase",
    "check_arch",
    "compile",
    "compiler",
    "load",
    "options_for",
    "ptx",
]

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""What is built for by default: the data centre and desktop parts since Ampere."""

_PROGRAM = b"kernel.cu"


class NVRTCError(CompileError):
    """NVRTC refused a program: its errors, and all that it wrote."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...], log: str) -> None:
        super().__init__(diagnostics, log)  # what a pickle hands to the next process
        self.diagnostics = diagnostics
        self.log = log

    def __str__(self) -> str:
        """Say in one sentence what was refused first."""
        if not self.diagnostics:
            lines = self.log.strip().splitlines() or ["it gave no reason"]
            return f"NVRTC refused the program: {lines[0]}"
        first, *others = self.diagnostics
        where = f"{first.source}({first.line})" if first.line else first.source
        more = f" (and {len(others)} more, see its log)" if others else ""
        return f"NVRTC refused the program: {where}: {first.message}{more}"


class Compiled(Struct, frozen=True):
    """What became of a program."""

    cubin: bytes
    log: str
    nanoseconds: int
    """Time in NVRTC's compilation proper."""
    kernels: tuple[KernelLog, ...]
    phases: tuple[Phase, ...]
    """Empty unless asked for."""


def options_for(arch: str) -> tuple[str, ...]:
    """Return the options every program is compiled with, a part of cache keys."""
    return (
        f"-arch={arch}",
        "--no-cache",  # cold is cold; a hit would also drop the log of ptxas
        "-minimal",  # a fifth faster: without builtins that no kernel of ours uses
        "-modify-stack-limit=false",  # the limit is the process's, and we have threads
        "-fmad=false",  # what the program says is what is computed
        "--ptxas-options=-v",
    )


def check_arch(arch: str) -> None:
    """Check that code can be made for ``arch``, such as ``sm_90a``.

    Raises:
        DeviceError: NVRTC does not know the architecture.
    """
    match = re.fullmatch(r"sm_([1-9]\d{1,2})[af]?", arch)
    if match is None or int(match[1]) not in _supported():
        known = ", ".join(f"sm_{number}" for number in _supported())
        raise DeviceError(
            f"NVRTC {compiler().version} makes no code for {arch!r}: it knows {known}, "
            "and variants of the newer ones such as sm_90a."
        )


@Once
def _supported() -> tuple[int, ...]:
    _, numbers = bindings().nvrtcGetSupportedArchs()
    return tuple(numbers)


def compile(  # noqa: A001 - read as nvrtc.compile
    text: str,
    arch: str,
    *,
    options: Sequence[str] = (),
    seconds: float | None = None,
    phases: bool = False,
) -> Compiled:
    """Compile CUDA C++ ``text`` for ``arch``, ``options`` after the canonical ones.

    A program that takes more than ``seconds`` of a processor is stopped, about 20 ms late
    by NVRTC 13.5 and 0.4 s by 13.0; stopped at some moments 13.5 ends the process with
    SIGSEGV. With ``phases`` the compiler says what each part of it took.

    Raises:
        NVRTCError: the program is not legal, or an option is not.
        Cancelled: it took more than ``seconds``.
        DeviceError: there is no NVRTC, it does not know ``arch``, or it lacked
            something, such as memory, that it may have another time.
    """
    check_arch(arch)
    with _program(text) as program, _memory() as times:
        flags = [*options_for(arch), *options]
        if phases:
            flags.append(f"-time={times}")
        deadline = None if seconds is None else _stop_after(program, seconds)
        nanoseconds = _run(program, flags, deadline)
        log = _log(program)
        kernels = nvrtc_log.kernels(log)
        return Compiled(
            cubin=_bytes(program, "CUBIN"),
            log=log,
            nanoseconds=nanoseconds,
            kernels=kernels,
            phases=nvrtc_log.phases(times.read_text("utf-8"), kernels, nanoseconds),
        )


def ptx(text: str, arch: str) -> str:
    """Return the PTX that ``text`` becomes on its way to ``arch``, for people to read.

    Raises:
        NVRTCError, DeviceError: as ``compile`` does.
    """
    check_arch(arch)
    with _program(text) as program:
        _run(program, [*options_for(arch)], None)
        return _bytes(program, "PTX").decode().rstrip("\0")


@contextmanager
def _memory() -> Iterator[Path]:
    """Give a file in memory, of which nothing is left however the process ends.

    NVRTC writes its phases to it.

    Its nested trace (``--fdevice-time-trace``) would say more, but a process that asks
    for it twice is often ended by it: with ``std::length_error`` or a segmentation
    fault, by NVRTC 13.5 as soon as the second program has some dozens of kernels.
    """
    handle = os.memfd_create("nvrtc")
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


@contextmanager
def _program(text: str) -> Iterator[Any]:
    """Create NVRTC's program of ``text`` and destroy it on every path."""
    if "\0" in text:
        raise DeviceError(
            f"the program has a NUL character at {text.index(chr(0))}, where NVRTC "
            "would end it: remove it."
        )
    source = text.encode("utf-8", "surrogatepass")
    nvrtc = bindings()
    with compiling():
        program = _checked(nvrtc.nvrtcCreateProgram(source, _PROGRAM, 0, [], []))
        try:
            yield program
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def _run(program: Any, flags: list[str], deadline: ctypes.c_int64 | None) -> int:
    """Compile and return the nanoseconds it took."""
    nvrtc = bindings()
    encoded = [flag.encode() for flag in flags]
    started = perf_counter_ns()
    (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    nanoseconds = perf_counter_ns() - started
    kinds = nvrtc.nvrtcResult
    if result == kinds.NVRTC_ERROR_CANCELLED and deadline is not None:
        raise Cancelled(
            f"the compilation was stopped after {nanoseconds / 1e9:.3f} s, at its time "
            "limit: allow it more, or drop this candidate."
        )
    if result not in {kinds.NVRTC_ERROR_COMPILATION, kinds.NVRTC_ERROR_INVALID_OPTION}:
        _checked((result,))
        return nanoseconds
    log = _log(program)
    # ptxas names lines of the PTX, which exists when it was ptxas that failed.
    ptx = _bytes(program, "PTX").decode(errors="replace")
    raise NVRTCError(nvrtc_log.diagnostics(log, ptx), log or result.name)


def _log(program: Any) -> str:
    """Return what the compiler wrote.

    When ptxas fails its errors stand behind a NUL in the middle of the log.
    """
    parts = _bytes(program, "ProgramLog").decode(errors="replace").split("\0")
    return "".join(parts).strip()


def _bytes(program: Any, what: str) -> bytes:
    """Return the ``CUBIN``, ``PTX`` or ``ProgramLog`` of a program.

    NVIDIA's own way, filling ``b" " * size``, writes into an interned object when the
    size is 1, as an empty log's is: every ``b" "`` of the process is then a NUL.
    """
    nvrtc = bindings()
    size = _checked(getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytearray(size)
    if size:
        _checked(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return bytes(buffer)


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return what NVRTC answered.

    Raises:
        DeviceError: it answered with an error.
    """
    result, *values = answer
    if result != bindings().nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(
            f"NVRTC {compiler().version} failed with {result.name}: a smaller program "
            "may need less of what it lacks."
        )
    return values[0] if values else None


_STOP = (
    native.CLOCK
    + """
def nvrtc_stop(deadline: ptr[i64], reserved: ptr) -> i32:
    return i32(now(3) >= deadline[0])
"""
)
"""Whether this thread's processor time has reached a deadline, asked thousands of times
a second: on a busy machine a program needs no more of that.

In native code, where it costs nothing that can be seen: a Python function waits for the
interpreter, and beside a busy thread its 600 calls made a trivial kernel's 27 ms 1.9 s.
"""


@Once
def _stop() -> int:
    """Return the address of the function that NVRTC asks whether to go on."""
    return own(_STOP, ["nvrtc_stop"])["nvrtc_stop"]


def _stop_after(program: Any, seconds: float) -> ctypes.c_int64:
    """Stop the program's compilation by this thread after ``seconds`` of a processor.

    The deadline that is returned must live as long as the program.
    """
    if not seconds >= 0:
        raise DeviceError(
            f"a time limit of {seconds} s is no time: give 0 or more seconds, or None."
        )
    stop = _stop()  # made on first use, which is not the program's time
    # A century is as good as no limit, and fits.
    deadline = ctypes.c_int64(thread_time_ns() + round(min(seconds, 3e9) * 1e9))
    address = ctypes.addressof(deadline)
    _checked(bindings().nvrtcSetFlowCallback(program, stop, address))
    return deadline
