"""The native half of a launch: pool, launch loop, clock and probes.

Every kernel has one signature, ``void (ptr args, ptr ticket, i32 index, i32 count)``:
``args`` are 8-byte slots, ``ticket`` is a line of counters zeroed before each launch, from
which the threads claim chunks, ``index`` is the thread's number out of ``count``.

The pool's threads spin on the generation in its gate, then sleep on it with a futex. The
caller takes part as thread 0 and waits for the others the same way. Of a launch whose
work is claimed by ticket it waits only for those that began: where its own part found no
chunk left, a thread that comes later has nothing to do and finds the gate shut.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Final

from steelyard_device.errors import DeviceError

if TYPE_CHECKING:
    from steelyard_device.llvm import Host

CLEAR: Final = "store <8 x i64> zeroinitializer, ptr {}, align 64"  # a ticket
ENTRIES: Final = ("pool_worker", "launch_many", "window", "null", "both", "fork_join")
PROBES: Final = ("delay", "walk")

# Per architecture: the number of the futex call, a spin hint, and a fence that later
# instructions wait for: LLVM's functions with their argument.
_ARCHITECTURES: Final = {
    "x86_64": (202, "x86.sse2.pause()", "x86.sse2.lfence()"),
    "aarch64": (98, "aarch64.hint(i32 1)", "aarch64.isb(i32 15)"),
}


# The gate's bits: the launch's number in the upper half, and in the lower one whether
# threads may enter, whether all are expected, and how many are inside or expected.
_OPEN, _EXPECTED, _INSIDE = 1 << 31, 1 << 30, (1 << 30) - 1
_GATE: Final = {
    "OPEN": _OPEN,
    "EXPECTED": _EXPECTED,
    "INSIDE": _INSIDE,
    "SHUT": ~_OPEN,
    "ONE": 1 << 32,
    "GENERATION": -(1 << 32),
}


def source(host: Host) -> tuple[str, dict[str, str]]:
    """Return the native half for ``host``, and what it calls by names in capitals.

    Raises:
        DeviceError: no launch code is known for the host's architecture.
    """
    try:
        futex, pause, fence = _ARCHITECTURES[host.architecture]
    except KeyError:
        known = ", ".join(_ARCHITECTURES)
        raise DeviceError(
            f"this machine is {host.architecture}; kernels can be launched on "
            f"{known}. Measure Python callables here instead."
        ) from None
    declared = [re.sub(r" \d+", "", f"declare void @llvm.{f}") for f in (pause, fence)]
    # Of the word, what to do, and a number: 128 waits while that is there, 129 wakes so many.
    call = f"call i64 (i64, ...) @syscall(i64 {futex}, ptr {{}}, i32 {{}}, i32 {{}}"
    return "\n".join([*map(repr, declared), _SOURCE]), {
        "FUTEX": f"{call}, ptr null, ptr null, i32 0)",
        "PAUSE": f"call void @llvm.{pause}",
        "FENCE": f"call void @llvm.{fence}",
        "CLEAR": CLEAR,
        **{name: str(bits) for name, bits in _GATE.items()},
    }


CLOCK: Final = """
class Time:
    seconds: i64
    rest: i64

def clock_gettime(clock: i32, time: ptr[Time]) -> i32: ...

def now(clock: i32) -> i64:
    time = room(Time, 1, 8)
    clock_gettime(clock, time)
    return time.seconds * 1000000000 + time.rest
"""


class Pool(ctypes.Structure):
    """What threads of a pool share: what workers write has cache lines of its own.

    The rest is the caller's. One caller at a time owns the pool: Python threads release
    the GIL when they launch.
    """

    _fields_ = (
        ("gate", ctypes.c_int64),
        ("_line0", ctypes.c_int32 * 14),
        ("sleepers", ctypes.c_int32),
        ("_line1", ctypes.c_int32 * 15),
        ("caller_sleeps", ctypes.c_int32),
        ("_line2", ctypes.c_int32 * 15),
        ("owner", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("spins", ctypes.c_int32),
        ("_unused", ctypes.c_int32),
        ("function", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
    )


class Slot(ctypes.Structure):
    """What a thread of a pool is told."""

    _fields_ = (("pool", ctypes.c_void_p), ("index", ctypes.c_int32))


_KINDS: Final[dict[object, str]] = {
    ctypes.c_void_p: "ptr",
    ctypes.c_int64: "i64",
    ctypes.c_int32: "i32",
    ctypes.c_uint32: "i32",
}


def struct(of: type[ctypes.Structure], **known: str) -> str:
    """Return a structure as native code has it; of some fields more is `known`."""
    lines = [f"class {of.__name__}:"]
    for name, kind, *_ in of._fields_:
        several = f'"[{getattr(kind, "_length_", 0)} x i32]"'
        lines.append(f"    {name}: {known.get(name) or _KINDS.get(kind, several)}")
    return "\n".join([*lines, ""])


# Launch is what `cpu.Launch` packs: behind the ticket are the ticks of a window, and whether
# work is claimed.
_SOURCE: Final = (
    CLOCK
    + struct(Pool, function="fn[void]")
    + struct(Slot, pool="ptr[Pool]")
    + """
class Launch:
    pool: ptr[Pool]
    function: fn[void]
    args: ptr
    ticket: ptr
    start: i64
    stop: i64
    claims: i64

"declare i64 @syscall(i64, ...)"

def generation_of(pool: ptr[Pool]) -> ptr:
    return address(ptr[i32](pool)[1])

def pool_worker(slot: ptr[Slot]) -> ptr:
    pool = slot.pool
    index = slot.index
    spins = pool.spins
    count = pool.workers + 1
    last = i32(0)
    looks = i32(0)
    while True:
        now = llvm(i64, "load atomic i64, ptr {} acquire, align 8", pool)
        generation = i32(now >> 32)
        if generation == last:
            if looks < spins:
                llvm(None, PAUSE)
                looks = looks + 1
            else:
                llvm(None, "store atomic i32 1, ptr {} seq_cst, align 4", address(pool.sleepers))
                llvm(i64, FUTEX, generation_of(pool), 128, last)
                looks = i32(0)
            continue
        if (now & (OPEN | EXPECTED)) == 0:
            last = generation
            looks = i32(0)
            continue
        if (now & EXPECTED) == 0:
            swap = llvm("{ i64, i1 }", "cmpxchg ptr {}, i64 {}, i64 {} seq_cst monotonic", pool, now, now + 1)
            if not llvm(i1, "extractvalue {{ i64, i1 }} {}, 1", swap):
                llvm(None, PAUSE)
                looks = looks + 1
                continue
        pool.function(pool.args, pool.ticket, index, count)
        before = llvm(i64, "atomicrmw sub ptr {}, i64 1 seq_cst", pool)
        if (before & INSIDE) == 1:
            if llvm(i32, "load atomic i32, ptr {} seq_cst, align 4", address(pool.caller_sleeps)) != 0:
                llvm(i64, FUTEX, pool, 129, 1)
        last = generation
        looks = i32(0)

def fork_join(pool: ptr[Pool], function: fn[void], args: ptr, ticket: ptr, claims: i64):
    spins = pool.spins
    expected = i64(pool.workers) | EXPECTED
    low = OPEN if claims != 0 else expected
    while True:
        swap = llvm("{ i32, i1 }", "cmpxchg ptr {}, i32 0, i32 1 acquire monotonic", address(pool.owner))
        if llvm(i1, "extractvalue {{ i32, i1 }} {}, 1", swap):
            break
        llvm(None, PAUSE)
    llvm(None, CLEAR, ticket)
    pool.function = function
    pool.args = args
    pool.ticket = ticket
    pool.caller_sleeps = 0
    last = llvm(i64, "load atomic i64, ptr {} monotonic, align 8", pool)
    begun = (last & GENERATION) + ONE | low
    llvm(None, "store atomic i64 {}, ptr {} seq_cst, align 8", begun, pool)
    if llvm(i32, "load atomic i32, ptr {} seq_cst, align 4", address(pool.sleepers)) != 0:
        llvm(None, "store atomic i32 0, ptr {} seq_cst, align 4", address(pool.sleepers))
        llvm(i64, FUTEX, generation_of(pool), 129, 2147483647)
    function(args, ticket, i32(0), pool.workers + 1)
    llvm(i64, "atomicrmw and ptr {}, i64 {} seq_cst", pool, SHUT)
    looks = i32(0)
    while (llvm(i64, "load atomic i64, ptr {} acquire, align 8", pool) & INSIDE) != 0:
        if looks < spins:
            llvm(None, PAUSE)
            looks = looks + 1
            continue
        llvm(None, "store atomic i32 1, ptr {} seq_cst, align 4", address(pool.caller_sleeps))
        left = llvm(i64, "load atomic i64, ptr {} seq_cst, align 8", pool)
        if (left & INSIDE) == 0:
            break
        llvm(i64, FUTEX, pool, 128, i32(left))
        looks = i32(0)
    llvm(None, "store atomic i32 0, ptr {} release, align 4", address(pool.owner))

def launch_many(launch: ptr[Launch], count: i64, fenced: i32):
    pool = launch.pool
    function = launch.function
    args = launch.args
    ticket = launch.ticket
    claims = launch.claims
    for i in range(count):
        if pool == null:
            llvm(None, CLEAR, ticket)
            function(args, ticket, i32(0), i32(1))
        else:
            fork_join(pool, function, args, ticket, claims)
        if fenced:
            llvm(None, FENCE)

def window(launch: ptr[Launch], count: i64, fenced: i32):
    start = now(1)
    launch_many(launch, count, fenced)
    launch.stop = now(1)
    launch.start = start

def null(args: ptr, ticket: ptr, index: i32, count: i32):
    return

def both(args: ptr[ptr], ticket: ptr, index: i32, count: i32):
    fn[void](args[0])(args[1], ticket, index, count)
    llvm(None, FENCE)
    fn[void](args[2])(args[3], ticket, index, count)
    llvm(None, FENCE)
"""
)

# Work of known length, and a walk through memory: made when first asked for, because
# the first kernel of a process should not wait for them.
PROBES_SOURCE: Final = """
"declare float @llvm.fma.f32(float, float, float)"

def delay(args: ptr[i64], ticket: ptr, index: i32, count: i32):
    x = llvm(float, "fadd float 1.0, 0.0")
    for i in range(args[0]):
        x = llvm(float, "call float @llvm.fma.f32(float {}, float 0x3FEFF00000000000, float 0x3F50000000000000)", x)
    ptr[float](args[1])[0] = x

def walk(args: ptr[i64], ticket: ptr, index: i32, count: i32):
    part = ptr[i64](args[0])
    at = part[index * 2]
    end = part[index * 2 + 1]
    a = 0
    b = 0
    while True:
        line = ptr[i64](at)
        a = a + line[0]
        b = b + line[8]
        at = at + 128
        if at >= end:
            break
    ptr[i64](args[1])[index * 8] = a + b
"""
