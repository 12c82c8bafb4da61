"""What a worker is given and gives back: texts, and code or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

from steelyard_device.errors import Cancelled, DeviceError
from steelyard_device.spans import Span
from steelyard_kernels.artifact import Code
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import toolchain


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
class Reply:
    """What became of a job, by entry; an entry in neither is worth another try.

    `error` is one that names no candidate; `stopped` says that time was up, `died` that
    the worker's process ended. `nanoseconds` are the compiler's.
    """

    made: dict[str, Code] = field(default_factory=dict)
    refused: dict[str, DeviceError] = field(default_factory=dict)
    error: Exception | None = None
    stopped: bool = False
    died: bool = False
    nanoseconds: int = 0
    spans: tuple[Span, ...] = ()


def compile_job(job: Job) -> Reply:
    """Compile a job in this process; errors are data."""
    started = perf_counter_ns()
    try:
        found = toolchain(job.target).compile_many(job.parts, job.target, job.seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, some candidate has it
        stopped, taken = isinstance(error, Cancelled), perf_counter_ns() - started
        return Reply(error=error, stopped=stopped, nanoseconds=taken)
    made = {entry: each for entry, each in found.items() if isinstance(each, Code)}
    refused = {entry: e for entry, e in found.items() if not isinstance(e, Code)}
    taken = sum(each.nanoseconds for each in made.values())
    return Reply(made, refused, nanoseconds=taken or perf_counter_ns() - started)
