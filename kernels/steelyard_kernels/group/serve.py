"""A process that compiles: jobs come from a connection, each is answered.

python -m steelyard_kernels.group.serve KIND NVRTC DESCRIPTOR
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from msgspec.structs import replace

from steelyard_device.errors import DeviceError
from steelyard_device.timings import timings
from steelyard_kernels.group.worker import Job, Reply, compile_job
from steelyard_kernels.toolchains import TOOLCHAINS


def main(kind: str, nvrtc: str, descriptor: int) -> None:
    """Serve jobs until the other end is closed."""
    with Connection(descriptor) as connection:
        connection.send(_problem(kind, nvrtc))
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            connection.send(_answer(job))


def _problem(kind: str, path: str) -> DeviceError | None:
    """Load the compiler, which is no candidate's time; return why it cannot be."""
    try:
        TOOLCHAINS[kind].preload(path or None)
    except DeviceError as error:
        return error
    return None


def _answer(job: Job) -> Reply:
    """Compile a job, with the spans of it if they are wanted."""
    if not job.timed:
        return compile_job(job)
    with timings() as recorded:
        reply = compile_job(job)
    return replace(reply, spans=recorded.spans())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
