"""What a worker is given and gives back: texts, and code or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    the worker's process ended.
    """

    made: dict[str, Code] = field(default_factory=dict)
    refused: dict[str, DeviceError] = field(default_factory=dict)
    error: Exception | None = None
    stopped: bool = False
    died: bool = False
    spans: tuple[Span, ...] = ()


def compile_job(job: Job) -> Reply:
    """Compile a job in this process; errors are data."""
    try:
        found = toolchain(job.target).compile_many(job.parts, job.target, job.seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, some candidate has it
        return Reply(error=error, stopped=isinstance(error, Cancelled))
    made = {entry: each for entry, each in found.items() if isinstance(each, Code)}
    refused = {entry: e for entry, e in found.items() if not isinstance(e, Code)}
    return Reply(made, refused)
