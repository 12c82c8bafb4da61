"""The native half of a GPU launch: the loop over cuLaunchKernel, the clock.

Several launches are issued in turn, so that arguments rotate without Python between
them. It takes the driver's entry points from a table: they are found once a process.
"""

from __future__ import annotations

import ctypes
from typing import Final

from steelyard_device import turns
from steelyard_device.cuda import driver
from steelyard_device.native import CLOCK, struct
from steelyard_device.native_language import own
from steelyard_device.threads import Once

CALLS = (
    "cuLaunchKernel",
    "cuStreamSynchronize",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuGraphLaunch",
    "cuStreamIsCapturing",
    "cuMemcpyDtoHAsync",
    "cuTensorMapReplaceAddress",
)
"""What the loop calls, in the order of its table."""

_VERSION = 12000
"""The CUDA release whose variants of `CALLS` are asked for: their signatures are
those that the text below declares."""


CAPTURING: Final = 900
"""CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, which a graph's launch returns, and has not tried,
while its stream is recorded: a graph cannot be recorded so, its kernels can."""


class Entry(ctypes.Structure):
    """One kernel with its packed arguments."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("parameters", ctypes.c_void_p),
    )


class Batch(ctypes.Structure):
    """Entries that are launched in turn on one stream; ``next`` is whose turn it is."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("entries", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("start", ctypes.c_int64),
        ("stop", ctypes.c_int64),
    )


ENTRIES: Final = {
    f"{kind}_{what}": f"run(batch, count, {issue}, {what == 'window'})"
    for kind, issue in (
        ("cuda", "issue"),
        ("cuda_graph", "issue_graph"),
        ("cuda_series", "issue_series"),
    )
    for what in ("launch", "window")
}
"""Functions of a batch and a number, which return the driver's status.

A window reads CLOCK_MONOTONIC before the first launch and when the stream has nothing
left to do. A batch of graphs has the graph's handle for its entries, one of a series the
table of its order: see `turns`.
"""


@Once
def addresses() -> dict[str, int]:
    """Assemble the functions, on first use, and return where they are by name."""
    return own(_SOURCE, [*ENTRIES], {**turns.GIVEN, "CAPTURING": str(CAPTURING)})


@Once
def calls() -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of `CALLS` in the driver.

    Raises:
        DeviceError: the driver lacks one.
    """
    table = ctypes.c_void_p * len(CALLS)
    return table(*[driver.address(name, _VERSION) for name in CALLS])


_SOURCE: Final = (
    CLOCK
    + turns.SOURCE
    + struct(Batch, calls="ptr[Calls]")
    + struct(Entry)
    + "\n    ".join(["class Calls:", *[f"{name}: fn[i32]" for name in CALLS]])
    + """

def run(batch: ptr[Batch], count: i64, how: fn[i32], timed: i1) -> i32:
    "The thread may have another context, or none: ours is put on top meanwhile."
    calls = batch.calls
    seen = room(ptr, 1, 8)
    status = calls.cuCtxGetCurrent(seen)
    if status != 0:
        return status
    ours = seen[0] == batch.context
    if not ours:
        status = calls.cuCtxPushCurrent(batch.context)
        if status != 0:
            return status
    if timed:
        start = now(1)
        status = how(batch, count)
        if status == 0:
            status = calls.cuStreamSynchronize(batch.stream)
            batch.stop = now(1)
            batch.start = start
    else:
        status = how(batch, count)
    if not ours:
        calls.cuCtxPopCurrent(seen)
    return status

def launch_one(batch: ptr[Batch], of: ptr[Entry]) -> i32:
    grid = ptr[i32](address(of.grid))
    block = ptr[i32](address(of.block))
    return batch.calls.cuLaunchKernel(
        of.function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
        of.shared, batch.stream, of.parameters, null)

def issue(batch: ptr[Batch], count: i64) -> i32:
    turn = batch.next
    status = i32(0)
    for i in range(count):
        status = launch_one(batch, ptr[ptr[Entry]](batch.entries)[turn])
        if status != 0:
            break
        turn = turn + 1
        if turn == batch.count:
            turn = 0
    batch.next = turn
    return status

def issue_graph(batch: ptr[Batch], count: i64) -> i32:
    state = room(i32, 1, 4)
    state[0] = 0
    batch.calls.cuStreamIsCapturing(batch.stream, state)
    if state[0] != 0:
        return i32(CAPTURING)
    for i in range(count):
        status = batch.calls.cuGraphLaunch(batch.entries, batch.stream)
        if status != 0:
            return status
    return i32(0)

def issue_series(batch: ptr[Batch], count: i64) -> i32:
    for i in range(count):
        status = turns(batch, batch.entries, 0)
        if status != 0:
            return status
    return i32(0)

def turns_launch(batch: ptr[Batch], table: ptr, record: ptr[ptr]) -> i32:
    return launch_one(batch, record[1])

def turns_read(batch: ptr[Batch], to: ptr, where: ptr, size: i64) -> i32:
    "What was submitted has to be done before it is read."
    status = batch.calls.cuMemcpyDtoHAsync(to, where, size, batch.stream)
    if status != 0:
        return status
    return batch.calls.cuStreamSynchronize(batch.stream)

def turns_move(batch: ptr[Batch], tensor: ptr, where: i64) -> i32:
    "The driver takes tensors where they are aligned."
    near = room(i64, 16, 64)
    memcpy(near, tensor, 128)
    status = batch.calls.cuTensorMapReplaceAddress(near, where)
    memcpy(tensor, near, 128)
    return status
"""
    + "".join(
        f"def {name}(batch: ptr[Batch], count: i64) -> i32:\n    return {runs}\n"
        for name, runs in ENTRIES.items()
    )
)
