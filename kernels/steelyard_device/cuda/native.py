"""The native half of a GPU launch, as LLVM IR: the loop over cuLaunchKernel, the clock.

Several launches are issued in turn, so that arguments rotate without Python between
them. It takes the driver's entry points from a table: they are found once a process.
"""

from __future__ import annotations

import ctypes
from typing import Final

from steelyard_device import turns
from steelyard_device.cuda.driver import call
from steelyard_device.errors import DeviceError
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


KINDS = ("cuda", "cuda_graph", "cuda_series")
ENTRIES = tuple(f"{kind}_{what}" for kind in KINDS for what in ("launch", "window"))
"""Functions of a batch and a number, which return the driver's status.

A window reads CLOCK_MONOTONIC before the first launch and when the stream has nothing
left to do. A batch of graphs has the graph's handle for its entries, one of a series the
table of its order: see `turns`.
"""


@Once
def addresses() -> dict[str, int]:
    """Assemble the functions, on first use, and return where they are by name."""
    from steelyard_device import llvm  # llvmlite takes long to import

    return llvm.own(_TEXT + turns.TEXT, ENTRIES)


@Once
def calls() -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of `CALLS` in the driver.

    Raises:
        DeviceError: the driver lacks one.
    """
    table = (ctypes.c_void_p * len(CALLS))()
    for place, name in enumerate(CALLS):
        asked = f"finding {name} in the CUDA driver"
        found = call(asked, "cuGetProcAddress", name.encode(), _VERSION, 0)
        if not found[0]:
            raise DeviceError(
                f"this CUDA driver has no {name} of CUDA {_VERSION // 1000}: install a "
                "newer one."
            )
        table[place] = int(found[0])
    return table


_TEXT = r"""
%batch = type { ptr, ptr, ptr, ptr, i64, i64, i64, i64 }
%entry = type { ptr, [3 x i32], [3 x i32], i32, ptr }
%timespec = type { i64, i64 }

declare i32 @clock_gettime(i32, ptr)

define i32 @cuda_launch(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue, i1 false)
  ret i32 %status
}

define i32 @cuda_window(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue, i1 true)
  ret i32 %status
}

define i32 @cuda_graph_launch(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue_graph, i1 false)
  ret i32 %status
}

define i32 @cuda_graph_window(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue_graph, i1 true)
  ret i32 %status
}

define i32 @cuda_series_launch(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue_series, i1 false)
  ret i32 %status
}

define i32 @cuda_series_window(ptr %batch, i64 %count) {
  %status = call i32 @run(ptr %batch, i64 %count, ptr @issue_series, i1 true)
  ret i32 %status
}

define internal i64 @now() {
  %time = alloca %timespec
  %failed = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest = load i64 at %timespec, ptr %time, i32 0, i32 1
  %scaled = mul i64 %seconds, 1000000000
  %ticks = add i64 %scaled, %rest
  ret i64 %ticks
}

; The thread may have another context, or none: ours is put on top meanwhile.
define internal i32 @run(ptr %batch, i64 %count, ptr %issue, i1 %timed) {
entry:
  %seen.at = alloca ptr
  %calls = load ptr, ptr %batch
  %context = load ptr at %batch, ptr %batch, i32 0, i32 1
  %get = load ptr at ptr, ptr %calls, i32 2
  %got = call i32 %get(ptr %seen.at)
  %unknown = icmp ne i32 %got, 0
  br i1 %unknown, label %refused, label %known
known:
  %seen = load ptr, ptr %seen.at
  %ours = icmp eq ptr %seen, %context
  br i1 %ours, label %inside, label %enter
enter:
  %push = load ptr at ptr, ptr %calls, i32 3
  %pushed = call i32 %push(ptr %context)
  %outside = icmp ne i32 %pushed, 0
  br i1 %outside, label %refused, label %inside
refused:
  %refusal = phi i32 [ %got, %entry ], [ %pushed, %enter ]
  ret i32 %refusal
inside:
  br i1 %timed, label %measured, label %plain
plain:
  %issued = call i32 %issue(ptr %batch, i64 %count)
  br label %leave
measured:
  %start = call i64 @now()
  %submitted = call i32 %issue(ptr %batch, i64 %count)
  %lost = icmp ne i32 %submitted, 0
  br i1 %lost, label %leave, label %finish
finish:
  %stream = load ptr at %batch, ptr %batch, i32 0, i32 2
  %wait = load ptr at ptr, ptr %calls, i32 1
  %waited = call i32 %wait(ptr %stream)
  %stop = call i64 @now()
  store i64 %start at %batch, ptr %batch, i32 0, i32 6
  store i64 %stop at %batch, ptr %batch, i32 0, i32 7
  br label %leave
leave:
  %status = phi i32 [ %issued, %plain ], [ %submitted, %measured ], [ %waited, %finish ]
  br i1 %ours, label %exit, label %pop
pop:
  %pop.at = getelementptr ptr, ptr %calls, i32 4
  %pop.call = load ptr, ptr %pop.at
  %popped = call i32 %pop.call(ptr %seen.at)
  br label %exit
exit:
  ret i32 %status
}

define internal i32 @launch_one(ptr %launch, ptr %stream, ptr %this) {
  %function = load ptr, ptr %this
  %gx = load i32 at %entry, ptr %this, i32 0, i32 1, i32 0
  %gy = load i32 at %entry, ptr %this, i32 0, i32 1, i32 1
  %gz = load i32 at %entry, ptr %this, i32 0, i32 1, i32 2
  %bx = load i32 at %entry, ptr %this, i32 0, i32 2, i32 0
  %by = load i32 at %entry, ptr %this, i32 0, i32 2, i32 1
  %bz = load i32 at %entry, ptr %this, i32 0, i32 2, i32 2
  %shared = load i32 at %entry, ptr %this, i32 0, i32 3
  %parameters = load ptr at %entry, ptr %this, i32 0, i32 4
  %status = call i32 %launch(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, ptr %stream, ptr %parameters, ptr null)
  ret i32 %status
}

define internal i32 @issue(ptr %batch, i64 %count) {
entry:
  %calls = load ptr, ptr %batch
  %launch = load ptr, ptr %calls
  %stream = load ptr at %batch, ptr %batch, i32 0, i32 2
  %entries = load ptr at %batch, ptr %batch, i32 0, i32 3
  %entries.count = load i64 at %batch, ptr %batch, i32 0, i32 4
  %next.at = getelementptr %batch, ptr %batch, i32 0, i32 5
  %first = load i64, ptr %next.at
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %one, label %none
one:
  %i = phi i64 [ 0, %entry ], [ %i.next, %launched ]
  %turn = phi i64 [ %first, %entry ], [ %turn.next, %launched ]
  %entry.at = getelementptr ptr, ptr %entries, i64 %turn
  %this = load ptr, ptr %entry.at
  %status = call i32 @launch_one(ptr %launch, ptr %stream, ptr %this)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %stopped, label %launched
launched:
  %turn.up = add i64 %turn, 1
  %round = icmp eq i64 %turn.up, %entries.count
  %turn.next = select i1 %round, i64 0, i64 %turn.up
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %one, label %stopped
stopped:
  %turn.last = phi i64 [ %turn, %one ], [ %turn.next, %launched ]
  store i64 %turn.last, ptr %next.at
  ret i32 %status
none:
  ret i32 0
}

define internal i32 @issue_series(ptr %batch, i64 %count) {
entry:
  %table = load ptr at %batch, ptr %batch, i32 0, i32 3
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %i.next = add i64 %i, 1
  %status = call i32 @turns(ptr %batch, ptr %table, i64 0)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %lost, label %next
lost:
  ret i32 %status
done:
  ret i32 0
}

define internal i32 @turns_launch(ptr %batch, ptr %table, ptr %record) {
  %calls = load ptr, ptr %batch
  %launch = load ptr, ptr %calls
  %stream = load ptr at %batch, ptr %batch, i32 0, i32 2
  %entry = load ptr at i64, ptr %record, i64 1
  %status = call i32 @launch_one(ptr %launch, ptr %stream, ptr %entry)
  ret i32 %status
}

; What was submitted has to be done before it is read.
define internal i32 @turns_read(ptr %batch, ptr %room, ptr %address, i64 %size) {
entry:
  %calls = load ptr, ptr %batch
  %stream = load ptr at %batch, ptr %batch, i32 0, i32 2
  %copy = load ptr at ptr, ptr %calls, i32 7
  %copied = call i32 %copy(ptr %room, ptr %address, i64 %size, ptr %stream)
  %failed = icmp ne i32 %copied, 0
  br i1 %failed, label %lost, label %wait
lost:
  ret i32 %copied
wait:
  %wait.at = getelementptr ptr, ptr %calls, i32 1
  %wait.call = load ptr, ptr %wait.at
  %waited = call i32 %wait.call(ptr %stream)
  ret i32 %waited
}

; The driver takes tensors where they are aligned.
define internal i32 @turns_move(ptr %batch, ptr %tensor, i64 %address) {
  %room = alloca [128 x i8], align 64
  %calls = load ptr, ptr %batch
  %replace = load ptr at ptr, ptr %calls, i32 8
  call void @llvm.memcpy.p0.p0.i64(ptr %room, ptr %tensor, i64 128, i1 false)
  %status = call i32 %replace(ptr %room, i64 %address)
  call void @llvm.memcpy.p0.p0.i64(ptr %tensor, ptr %room, i64 128, i1 false)
  ret i32 %status
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i32 @issue_graph(ptr %batch, i64 %count) {
entry:
  %state = alloca i32
  store i32 0, ptr %state
  %calls = load ptr, ptr %batch
  %launch = load ptr at ptr, ptr %calls, i32 5
  %stream = load ptr at %batch, ptr %batch, i32 0, i32 2
  %graph = load ptr at %batch, ptr %batch, i32 0, i32 3
  %asked = load ptr at ptr, ptr %calls, i32 6
  %unknown = call i32 %asked(ptr %stream, ptr %state)
  %seen = load i32, ptr %state
  %recorded = icmp ne i32 %seen, 0
  %any = icmp sgt i64 %count, 0
  br i1 %recorded, label %apart, label %begin
apart:
  ret i32 900
begin:
  br i1 %any, label %one, label %none
one:
  %i = phi i64 [ 0, %begin ], [ %i.next, %launched ]
  %status = call i32 %launch(ptr %graph, ptr %stream)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %stopped, label %launched
launched:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %one, label %stopped
stopped:
  ret i32 %status
none:
  ret i32 0
}
"""
