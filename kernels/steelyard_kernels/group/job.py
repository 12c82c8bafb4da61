"""What a worker is given and gives back: texts, and code or why there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from steelyard_device.errors import DeviceError
from steelyard_device.spans import Span
from steelyard_device.timings import listening, span
from steelyard_kernels.binary import Code
from steelyard_kernels.compilers import ENTRY, code_of, compile_text, told
from steelyard_kernels.targets import CUDA, Target

if TYPE_CHECKING:
    from steelyard_device.nvrtc import Compiled, NVRTCError


@dataclass(frozen=True, slots=True)
class Job:
    """Candidates to be compiled together: each one's entry and text.

    `seconds` is the limit of all of them together; `timed` asks for spans.
    """

    parts: tuple[tuple[str, str], ...]
    target: Target
    seconds: float | None = None
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """One candidate's code, and the phases of its compilation in nanoseconds."""

    code: Code
    phases: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a job, by entry; an entry in neither is worth another try.

    `error` is one that names no candidate; `stopped` says that time was up, `died` that
    the worker's process ended. `nanoseconds` are the compiler's.
    """

    made: dict[str, Made] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    error: Exception | None = None
    stopped: bool = False
    died: bool = False
    nanoseconds: int = 0
    spans: tuple[Span, ...] = ()


def compile_job(job: Job) -> Reply:
    """Compile a job in this process; errors are data."""
    started = perf_counter_ns()
    try:
        return _together(job) if job.target.kind == CUDA else _each(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, some candidate has it
        return Reply(error=error, nanoseconds=perf_counter_ns() - started)


def _each(job: Job) -> Reply:
    """LLVM: a module costs nothing, so each candidate is one of its own."""
    made: dict[str, Made] = {}
    refused: dict[str, Exception] = {}
    started = perf_counter_ns()
    for entry, text in job.parts:
        phases: list[tuple[str, int]] = []
        try:
            code = compile_text(
                text, job.target, lambda *phase, to=phases: to.append(phase)
            )
            made[entry] = Made(code, tuple(phases))
        except DeviceError as error:
            refused[entry] = error
    return Reply(made, refused, nanoseconds=perf_counter_ns() - started)


def _together(job: Job) -> Reply:
    """NVRTC: one program of all candidates."""
    from steelyard_device import nvrtc

    program = combined(job.parts)
    started = perf_counter_ns()
    try:
        compiled = nvrtc.compile(
            program, job.target.arch, seconds=job.seconds, phases=listening()
        )
    except nvrtc.Cancelled as error:
        taken = perf_counter_ns() - started
        return Reply(error=error, stopped=True, nanoseconds=taken)
    except nvrtc.NVRTCError as error:
        taken = perf_counter_ns() - started
        refused = blamed(error, [entry for entry, _ in job.parts])
        return Reply({}, refused, None if refused else error, nanoseconds=taken)
    told(compiled, started)
    with span("read cubin"):
        made = codes(compiled, job)
    return Reply(made, nanoseconds=compiled.nanoseconds)


_OWN: Final = f'#line 1 "{ENTRY}"\n'
"""Before it are functions that candidates share, behind it is what is its own."""

_HEAD: Final = re.compile(
    rf'^(extern "C" __global__ void [^\n]*?)\b{ENTRY}\(', re.MULTILINE
)
_FUNCTION: Final = re.compile(r"^(?=static __device__ )", re.MULTILINE)


def combined(parts: Sequence[tuple[str, str]]) -> str:
    """Return one program of candidates: shared functions once, then each by its entry.

    Each part begins as its entry's line 1, which is what the compiler's messages name.
    """
    shared: dict[str, None] = {}
    own = []
    for entry, text in parts:
        functions, _, kernel = text.rpartition(_OWN)
        shared |= dict.fromkeys(_FUNCTION.split(functions))
        renamed = _HEAD.sub(rf"\g<1>{entry}(", kernel, count=1)
        own.append(f'#line 1 "{entry}"\n{renamed}')
    return "".join([*shared, *own])


def blamed(error: NVRTCError, entries: Sequence[str]) -> dict[str, Exception]:
    """Return each named candidate's own errors, as if it had been compiled alone."""
    found: dict[str, Exception] = {}
    for entry in entries:
        own = tuple(
            replace(each, source=ENTRY, message=each.message.replace(entry, ENTRY))
            for each in error.diagnostics
            if each.source == entry
        )
        if own:
            found[entry] = type(error)(own, error.log)
    return found


def codes(compiled: Compiled, job: Job) -> dict[str, Made]:
    """Return each candidate's code: the whole cubin and its entry.

    Its time is what ptxas says, and of the rest a share by its text: the front end is
    one for all. So the times of a group add up to the group's.
    """
    from steelyard_device import cubin

    every = cubin.read(compiled.cubin)
    logs = {log.entry: log for log in compiled.kernels}
    rest = compiled.nanoseconds - sum(log.nanoseconds for log in compiled.kernels)
    share = max(rest, 0) / sum(len(text) for _, text in job.parts)
    made = {}
    for entry, text in job.parts:
        code = code_of(compiled, entry, job.target, every=every)
        taken = logs[entry].nanoseconds + round(share * len(text))
        made[entry] = Made(replace(code, nanoseconds=taken), (("nvrtc", taken),))
    return made
