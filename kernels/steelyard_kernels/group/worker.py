"""Who compiles a job: this process, or one that can be killed and replaced.

NVRTC lets threads overlap, so it runs in this process; LLVM does not. Nothing stops
LLVM, and NVRTC 13.5, stopped at an unlucky moment, ends its process: a time limit needs
one of its own too, and so does a second build of NVRTC.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Final, Protocol

from msgspec import Struct, field

from steelyard_device.errors import Cancelled, DeviceError
from steelyard_device.spans import Span
from steelyard_device.timings import record, span
from steelyard_kernels.artifact import Code
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains import toolchain


class Job(Struct, frozen=True):
    """Candidates to be compiled together: each one's entry and text.

    `seconds` is the limit of all of them together; `timed` asks for spans.
    """

    parts: tuple[tuple[str, str], ...]
    target: Target
    seconds: float | None = None
    timed: bool = False


class Reply(Struct, frozen=True):
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


GRACE: Final = 0.5
"""Seconds that a worker may answer after its limit: NVRTC 13.0 stops within 0.4."""

START: Final = 60.0
"""Seconds that a process may take to start, which is half of one where all is well."""


def _answers(
    process: subprocess.Popen[bytes], connection: Connection, limit: float | None
) -> bool:
    """Say whether there is an answer within so many seconds.

    Those for which the process waits for a processor do not count: others are at work.
    """
    began, before, left = perf_counter_ns(), _waited(process), limit
    while not connection.poll(left):
        passed = perf_counter_ns() - began - (_waited(process) - before)
        left = (limit or 0.0) - passed / 1e9
        if left <= 0:
            return False
    return True


def _waited(process: subprocess.Popen[bytes]) -> int:
    """Return the nanoseconds for which it waited for a processor; 0 if that is unknown."""
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0


class Worker(Protocol):
    """Compiles one job at a time."""

    def compile(self, job: Job) -> Reply:
        """Compile a job; errors are data."""
        ...

    def close(self) -> None:
        """End; from any thread, also while a job is under way."""
        ...


class Here:
    """A worker that is this process."""

    def compile(self, job: Job) -> Reply:
        """Compile on the calling thread."""
        return compile_job(job)

    def close(self) -> None:
        """Do nothing: there is nobody to end."""


def command(kind: str, nvrtc: str | None = None) -> tuple[str, ...]:
    """Return how a process for a kind of target is started, but for its descriptor."""
    module = "steelyard_kernels.group.serve"
    return (sys.executable, "-m", module, kind, nvrtc or "")


class Process:
    """A worker that is a process of its own, started when first needed.

    It is killed when it does not answer in time, and replaced for the next job.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = arguments
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def compile(self, job: Job) -> Reply:
        """Compile in the process."""
        try:
            with span("start process"):
                process, connection = self._running or self._start()
        except DeviceError as error:
            return Reply(refused={entry: error for entry, _ in job.parts})
        limit = None if job.seconds is None else job.seconds + GRACE
        started = perf_counter_ns()
        try:
            connection.send(job)
            stopped = not _answers(process, connection, limit)
            if not stopped:
                reply: Reply = connection.recv()
                record("process", started, perf_counter_ns() - started, reply.spans)
                return reply
            why = (
                f"the compilation did not stop at its time limit of {job.seconds:g} s "
                "and its process was killed: allow it more, or drop this candidate."
            )
        except (EOFError, OSError):
            passed = (perf_counter_ns() - started) / 1e9
            stopped = job.seconds is not None and passed >= job.seconds
            late = ", after its time limit" if stopped else ""
            why = (
                f"the compiler's process ended with status {process.wait()} before it "
                f"answered{late}: see what it wrote to stderr, and drop this candidate."
            )
        self.close()
        return Reply(error=DeviceError(why), stopped=stopped, died=not stopped)

    def close(self) -> None:
        """Kill the process; it holds nothing that others miss."""
        running, self._running = self._running, None
        if running is not None:
            process, connection = running
            process.kill()
            process.wait()
            connection.close()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start the process and wait until it can compile."""
        ours, theirs = Pipe()
        number = theirs.fileno()
        process = subprocess.Popen(
            [*self.arguments, str(number)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
        )
        theirs.close()
        self._running = process, ours
        try:
            problem = ours.recv() if ours.poll(START) else f"not ready in {START:g} s"
        except (EOFError, OSError):
            problem = f"it ended with status {process.wait()}"
        if problem is None:
            return process, ours
        self.close()
        if isinstance(problem, DeviceError):
            raise problem
        raise DeviceError(
            f"a process to compile in did not start ({problem}): see what it wrote to "
            "stderr, or try with fewer threads."
        )
