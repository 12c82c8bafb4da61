"""The native half of a launch, as LLVM IR: pool, launch loop, clock and probes.

Every kernel has one signature, ``void (ptr args, ptr ticket, i32 index, i32 count)``:
``args`` are 8-byte slots, ``ticket`` is a line of counters zeroed before each launch, from
which the threads claim chunks, ``index`` is the thread's number out of ``count``.

The pool's threads spin on the generation in its gate, then sleep on it with a futex. The
caller takes part as thread 0 and waits for the others the same way. Of a launch whose
work is claimed by ticket it waits only for those that began: where its own part found no
chunk left, a thread that comes later has nothing to do and finds the gate shut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard_device.errors import DeviceError

if TYPE_CHECKING:
    from steelyard_device.llvm import Host

ENTRIES = ("pool_worker", "launch_many", "window", "null", "both", "fork_join")
PROBES = ("delay", "walk")

# Per architecture: the number of the futex call, a spin hint, and a fence that
# later instructions wait for.
_ARCHITECTURES = {
    "x86_64": (
        202,
        "call void @llvm.x86.sse2.pause()",
        "call void @llvm.x86.sse2.lfence()",
        "declare void @llvm.x86.sse2.pause()\ndeclare void @llvm.x86.sse2.lfence()",
    ),
    "aarch64": (
        98,
        "call void @llvm.aarch64.hint(i32 1)",
        "call void @llvm.aarch64.isb(i32 15)",
        "declare void @llvm.aarch64.hint(i32)\ndeclare void @llvm.aarch64.isb(i32)",
    ),
}


# The gate's bits: the launch's number in the upper half, and in the lower one whether
# threads may enter, whether all are expected, and how many are inside or expected.
_OPEN, _EXPECTED, _INSIDE = 1 << 31, 1 << 30, (1 << 30) - 1
_GATE = {
    "open": str(_OPEN),
    "expected": str(_EXPECTED),
    "state": str(_OPEN | _EXPECTED),
    "inside": str(_INSIDE),
    "shut": str(~_OPEN),
    "one": str(1 << 32),
    "generation": str(-(1 << 32)),
}


def text(host: Host) -> str:
    """Return the LLVM IR of the native half for ``host``.

    Raises:
        DeviceError: no launch code is known for the host's architecture.
    """
    try:
        futex, pause, fence, declarations = _ARCHITECTURES[host.architecture]
    except KeyError:
        known = ", ".join(_ARCHITECTURES)
        raise DeviceError(
            f"this machine is {host.architecture}; kernels can be launched on "
            f"{known}. Measure Python callables here instead."
        ) from None
    words = {
        "declarations": declarations,
        "futex": str(futex),
        "pause": pause,
        "fence": fence,
        **_GATE,
    }
    text = _TEMPLATE
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


# Field numbers of %pool match `cpu._PoolState`, those of %launch what `cpu.Launch`
# packs: behind the ticket are the ticks of a window, and whether work is claimed.
# What workers write stands on cache lines of its own; the rest is the caller's. One
# caller at a time owns the pool: Python threads release the GIL when they launch.
_TEMPLATE = r"""
%pool = type { i64, [14 x i32], i32, [15 x i32], i32, [15 x i32], i32, i32, i32, i32, ptr, ptr, ptr }
%slot = type { ptr, i32 }
%launch = type { ptr, ptr, ptr, ptr, i64, i64, i64 }
%timespec = type { i64, i64 }

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
{declarations}

define ptr @pool_worker(ptr %slot) {
entry:
  %pool = load ptr at %slot, ptr %slot, i32 0, i32 0
  %index = load i32 at %slot, ptr %slot, i32 0, i32 1
  %gate = getelementptr %pool, ptr %pool, i32 0, i32 0
  %generation.at = getelementptr i32, ptr %gate, i32 1
  %sleepers = getelementptr %pool, ptr %pool, i32 0, i32 2
  %caller.sleeps = getelementptr %pool, ptr %pool, i32 0, i32 4
  %workers.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %spins.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  %function.at = getelementptr %pool, ptr %pool, i32 0, i32 10
  %args.at = getelementptr %pool, ptr %pool, i32 0, i32 11
  %ticket.at = getelementptr %pool, ptr %pool, i32 0, i32 12
  %workers = load i32, ptr %workers.at
  %spins = load i32, ptr %spins.at
  %count = add i32 %workers, 1
  br label %wait
wait:
  %last = phi i32 [ 0, %entry ], [ %generation, %done ], [ %generation, %seen ], [ %last, %sleep ]
  br label %spin
spin:
  %i = phi i32 [ 0, %wait ], [ %i.next, %again ]
  %now = load atomic i64, ptr %gate acquire, align 8
  %high = lshr i64 %now, 32
  %generation = trunc i64 %high to i32
  %new = icmp ne i32 %generation, %last
  br i1 %new, label %seen, label %idle
idle:
  %tired = icmp sge i32 %i, %spins
  br i1 %tired, label %sleep, label %again
again:
  {pause}
  %i.next = add i32 %i, 1
  br label %spin
sleep:
  store atomic i32 1, ptr %sleepers seq_cst, align 4
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %generation.at, i32 128, i32 %last, ptr null, ptr null, i32 0)
  br label %wait
seen:
  %state = and i64 %now, {state}
  %closed = icmp eq i64 %state, 0
  br i1 %closed, label %wait, label %enter
enter:
  %counted.bit = and i64 %now, {expected}
  %counted = icmp ne i64 %counted.bit, 0
  br i1 %counted, label %go, label %claim
claim:
  %more = add i64 %now, 1
  %swap = cmpxchg ptr %gate, i64 %now, i64 %more seq_cst monotonic
  %in = extractvalue { i64, i1 } %swap, 1
  br i1 %in, label %go, label %again
go:
  %function = load ptr, ptr %function.at
  %args = load ptr, ptr %args.at
  %ticket = load ptr, ptr %ticket.at
  call void %function(ptr %args, ptr %ticket, i32 %index, i32 %count)
  %before = atomicrmw sub ptr %gate, i64 1 seq_cst
  %left = and i64 %before, {inside}
  %final = icmp eq i64 %left, 1
  br i1 %final, label %caller, label %done
caller:
  %asleep = load atomic i32, ptr %caller.sleeps seq_cst, align 4
  %must.wake = icmp ne i32 %asleep, 0
  br i1 %must.wake, label %wake, label %done
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr %gate, i32 129, i32 1, ptr null, ptr null, i32 0)
  br label %done
done:
  br label %wait
}

define void @fork_join(ptr %pool, ptr %function, ptr %args, ptr %ticket, i64 %claims) {
entry:
  %gate = getelementptr %pool, ptr %pool, i32 0, i32 0
  %generation.at = getelementptr i32, ptr %gate, i32 1
  %sleepers = getelementptr %pool, ptr %pool, i32 0, i32 2
  %caller.sleeps = getelementptr %pool, ptr %pool, i32 0, i32 4
  %owner = getelementptr %pool, ptr %pool, i32 0, i32 6
  %workers.at = getelementptr %pool, ptr %pool, i32 0, i32 7
  %spins.at = getelementptr %pool, ptr %pool, i32 0, i32 8
  %function.at = getelementptr %pool, ptr %pool, i32 0, i32 10
  %args.at = getelementptr %pool, ptr %pool, i32 0, i32 11
  %ticket.at = getelementptr %pool, ptr %pool, i32 0, i32 12
  %workers = load i32, ptr %workers.at
  %spins = load i32, ptr %spins.at
  %count = add i32 %workers, 1
  %all = zext i32 %workers to i64
  %all.expected = or i64 %all, {expected}
  %optional = icmp ne i64 %claims, 0
  %low = select i1 %optional, i64 {open}, i64 %all.expected
  br label %own
own:
  %swap = cmpxchg ptr %owner, i32 0, i32 1 acquire monotonic
  %owned = extractvalue { i32, i1 } %swap, 1
  br i1 %owned, label %fork, label %other
other:
  {pause}
  br label %own
fork:
  store <8 x i64> zeroinitializer, ptr %ticket, align 64
  store ptr %function, ptr %function.at
  store ptr %args, ptr %args.at
  store ptr %ticket, ptr %ticket.at
  store i32 0, ptr %caller.sleeps
  %last = load atomic i64, ptr %gate monotonic, align 8
  %last.generation = and i64 %last, {generation}
  %next.generation = add i64 %last.generation, {one}
  %begun = or i64 %next.generation, %low
  store atomic i64 %begun, ptr %gate seq_cst, align 8
  %sleeping = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp ne i32 %sleeping, 0
  br i1 %any, label %wake, label %mine
wake:
  store atomic i32 0, ptr %sleepers seq_cst, align 4
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr %generation.at, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %mine
mine:
  call void %function(ptr %args, ptr %ticket, i32 0, i32 %count)
  %shut = atomicrmw and ptr %gate, i64 {shut} seq_cst
  br label %wait
wait:
  br label %join
join:
  %i = phi i32 [ 0, %wait ], [ %i.next, %again ]
  %seen = load atomic i64, ptr %gate acquire, align 8
  %left = and i64 %seen, {inside}
  %joined = icmp eq i64 %left, 0
  br i1 %joined, label %exit, label %idle
idle:
  %tired = icmp sge i32 %i, %spins
  br i1 %tired, label %sleep, label %again
again:
  {pause}
  %i.next = add i32 %i, 1
  br label %join
sleep:
  store atomic i32 1, ptr %caller.sleeps seq_cst, align 4
  %again.seen = load atomic i64, ptr %gate seq_cst, align 8
  %still = and i64 %again.seen, {inside}
  %over = icmp eq i64 %still, 0
  br i1 %over, label %exit, label %futex
futex:
  %expected = trunc i64 %again.seen to i32
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %gate, i32 128, i32 %expected, ptr null, ptr null, i32 0)
  br label %wait
exit:
  store atomic i32 0, ptr %owner release, align 4
  ret void
}

define void @launch_many(ptr %launch, i64 %count, i32 %fenced) {
entry:
  %pool = load ptr at %launch, ptr %launch, i32 0, i32 0
  %function = load ptr at %launch, ptr %launch, i32 0, i32 1
  %args = load ptr at %launch, ptr %launch, i32 0, i32 2
  %ticket = load ptr at %launch, ptr %launch, i32 0, i32 3
  %claims = load i64 at %launch, ptr %launch, i32 0, i32 6
  %alone = icmp eq ptr %pool, null
  %fence = icmp ne i32 %fenced, 0
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %next, label %exit
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %continue ]
  br i1 %alone, label %one, label %all
one:
  store <8 x i64> zeroinitializer, ptr %ticket, align 64
  call void %function(ptr %args, ptr %ticket, i32 0, i32 1)
  br label %launched
all:
  call void @fork_join(ptr %pool, ptr %function, ptr %args, ptr %ticket, i64 %claims)
  br label %launched
launched:
  br i1 %fence, label %fencing, label %continue
fencing:
  {fence}
  br label %continue
continue:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %next, label %exit
exit:
  ret void
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

define void @window(ptr %launch, i64 %count, i32 %fenced) {
  %start = call i64 @now()
  call void @launch_many(ptr %launch, i64 %count, i32 %fenced)
  %stop = call i64 @now()
  store i64 %start at %launch, ptr %launch, i32 0, i32 4
  store i64 %stop at %launch, ptr %launch, i32 0, i32 5
  ret void
}

define void @null(ptr %args, ptr %ticket, i32 %index, i32 %count) {
  ret void
}

define void @both(ptr %args, ptr %ticket, i32 %index, i32 %count) {
  %first = load ptr, ptr %args
  %first.args = load ptr at i64, ptr %args, i64 1
  %second = load ptr at i64, ptr %args, i64 2
  %second.args = load ptr at i64, ptr %args, i64 3
  call void %first(ptr %first.args, ptr %ticket, i32 %index, i32 %count)
  {fence}
  call void %second(ptr %second.args, ptr %ticket, i32 %index, i32 %count)
  {fence}
  ret void
}
"""

# Work of known length, and a walk through memory: made when first asked for, because
# the first kernel of a process should not wait for them.
PROBES_TEXT = r"""
declare float @llvm.fma.f32(float, float, float)

define void @delay(ptr %args, ptr %ticket, i32 %index, i32 %count) {
entry:
  %steps = load i64, ptr %args
  %result = load ptr at i64, ptr %args, i64 1
  %any = icmp sgt i64 %steps, 0
  br i1 %any, label %step, label %exit
step:
  %i = phi i64 [ 0, %entry ], [ %i.next, %step ]
  %x = phi float [ 1.0, %entry ], [ %x.next, %step ]
  %x.next = call float @llvm.fma.f32(float %x, float 0x3FEFF00000000000, float 0x3F50000000000000)
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %steps
  br i1 %more, label %step, label %exit
exit:
  %value = phi float [ 1.0, %entry ], [ %x.next, %step ]
  store float %value, ptr %result
  ret void
}

define void @walk(ptr %args, ptr %ticket, i32 %index, i32 %count) {
entry:
  %base = load ptr, ptr %args
  %bytes = load i64 at i64, ptr %args, i64 1
  %sums = load ptr at i64, ptr %args, i64 2
  br label %line
line:
  %at = phi i64 [ 0, %entry ], [ %at.next, %line ]
  %a = phi i64 [ 0, %entry ], [ %a.next, %line ]
  %b = phi i64 [ 0, %entry ], [ %b.next, %line ]
  %p = getelementptr i8, ptr %base, i64 %at
  %q = getelementptr i8, ptr %p, i64 64
  %x = load i64, ptr %p
  %y = load i64, ptr %q
  %a.next = add i64 %a, %x
  %b.next = add i64 %b, %y
  %at.next = add i64 %at, 128
  %more = icmp slt i64 %at.next, %bytes
  br i1 %more, label %line, label %exit
exit:
  %sum = add i64 %a.next, %b.next
  %line.of = mul i32 %index, 8
  store i64 %sum at i64, ptr %sums, i32 %line.of
  ret void
}
"""
