"""What a schedule is predicted to cost: terms with units, and the machine they mean.

Predictions rank schedules of one program; they are not promises. Terms are
nanoseconds of one launch that finds its operands in no cache when they are larger
than `RESIDENT_BYTES`, and mostly in the last-level cache otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, TypeVar

from msgspec import Struct

from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.schedule.schedule import Cut, Schedule

H = TypeVar("H")
T = TypeVar("T")

# One core's share of memory and of the last-level cache, bytes a nanosecond. The
# reference machine is two cores of an AMD EPYC (Zen 5, AVX-512): together they copy at
# 58 GB/s from memory, and at about twice that while the operands stay in its last-level
# cache.
MEMORY_RATE: Final = 29.0
CACHE_RATE: Final = 60.0
# Operands below this stay in the last-level cache between launches, unless somebody
# clears it: three quarters of the reference machine's 32 MiB. There, float16 rows of
# 4096 and 5140 (17 and 21 MB) were slower with streaming stores, warm and cold alike.
RESIDENT_BYTES: Final = 24 << 20
# The last-level cache of the machines that the rates are from: what stores leave there is
# written back later, by others, and costs this part of what it does beyond: copies of 3 to
# 21 MB took 1.23 to 1.4 times as long as by streaming stores (Zen 3).
LAST_BYTES: Final = 32 << 20
LATER: Final = 0.5
# What a core's streaming stores drain at beside reads from cache: streaming copies of
# 3 to 17 MB that stay in cache wrote 28 to 80 GB/s with two cores, as the host's memory
# was more or less busy.
STREAM_RATE: Final = 16.0
# How much of that time shows all the same where arithmetic takes longer: float16 rows of
# 768 hid nearly all of it.
DRAIN_SHARE: Final = 0.05
# A launch that finds its operands in cache counts once, one that does not counts so
# much beside it: among schedules of about one warm time the better cold one is taken.
# Fewer launches find their operands there the nearer these come to `RESIDENT_BYTES`, and
# nearly all do that fit in the cores' own caches.
COLD_SHARE: Final = 0.5
NEAR_COLD_SHARE: Final = 0.1
# A fork and join of the native pool from Python on the reference machine, measured over
# empty work: 0.6 us, of which 0.15 us are the pool's own.
FORK_JOIN_NS: Final = 600.0
# One atomic addition on a line that another core holds.
CLAIM_NS: Final = 50.0
# A vector operation, at two a cycle and 3 GHz; and what a loop iteration adds: two of
# the six micro-operations of a cycle.
OPERATION_NS: Final = 0.17
ITERATION_NS: Final = 0.1
# The share of the last chunk that one thread waits for another that is as fast.
JITTER: Final = 0.1
# How much of the shorter of memory time and arithmetic hides behind the longer: the
# loads of a vector run ahead of its arithmetic, but a row waits for its reductions.
OVERLAP: Final = 0.7
# The part of memory time that prefetching the next rows saves, of 2 to 30 % seen for
# LayerNorm and softmax of 1024 rows from memory; and what it costs rows that are in cache,
# and those whose stores fetch lines too (Zen 3: up to 38 %).
PREFETCH_SAVING: Final = 0.12
AHEAD_COST: Final = 0.005
PREFETCH_BESIDE: Final = 0.3  # saved where they are asked for beside arithmetic
# Memory time that a block of n rows loses at its reductions is this / n: blocks of 1,
# 2 and 4 rows of 4096 float32 took 1.9, 1.55 and 1.48 times a copy.
ROW_STALL: Final = 0.4
# Rows of few pages share the prefetchers: walking several at once loses this share (768
# float32, cold: 1.06 times a copy by single rows, 1.15 to 1.2 by more).
PAGE_BYTES: Final = 8192
PAGE_STALL: Final = 0.2
# Building takes about 20 us for each vector operation in the text, and a kernel is
# launched perhaps 5000 times: what a longer text must win back in every launch.
BUILD_NS: Final = 4.0


STREAM_BYTES: Final = (
    16  # the least alignment a streaming store may state (loops.Store)
)
LINE: Final = 64  # bytes of a cache line on every CPU we emit for


class Machine(Struct, frozen=True):
    """What schedules need to know of a CPU: vectors, threads, a core's second cache."""

    vector_bytes: int
    threads: int
    l2_bytes: int = 1 << 20

    @property
    def registers(self) -> int:
        """How many vector registers there are: AVX-512 has 32, AVX2 has 16."""
        return 32 if self.vector_bytes > 32 else 16

    def lanes(self, element_bytes: int) -> int:
        """Return how many elements fill one vector register."""
        return max(1, self.vector_bytes // element_bytes)


class Prediction(Struct, frozen=True):
    """Named terms of a launch, in nanoseconds."""

    terms: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """The sum of the terms, in nanoseconds."""
        return sum([value for _, value in self.terms])


class Traffic(Struct, frozen=True):
    """The bytes a program moves, and those of them that it writes without reading."""

    moved: int
    fresh: int
    updates: bool

    @property
    def resident(self) -> bool:
        """Whether the operands stay in the last-level cache."""
        return self.moved <= RESIDENT_BYTES


def latest(
    make: Callable[[tuple[Cut, ...], H], T],
) -> Callable[[tuple[Cut, ...], H], T]:
    """Return a function of cuts and hints that remembers what it made last.

    Schedules are ranked one after another, and neighbours differ in little.
    """
    known: tuple[tuple[Cut, ...], H, T] | None = None

    def ask(cuts: tuple[Cut, ...], hints: H) -> T:
        nonlocal known
        if known is None or known[0] is not cuts or known[1] != hints:
            known = cuts, hints, make(cuts, hints)
        return known[2]

    return ask


def traffic(program: Program) -> Traffic:
    """Count a program's bytes."""
    fresh = sum(
        output.value.dtype.bytes * prod(output.value.shape)
        for output in program.outputs
        if output.updates is None
    )
    updates = any(output.updates is not None for output in program.outputs)
    return Traffic(bytes_moved(program), fresh, updates)


def memory_term(bytes_: Traffic, schedule: Schedule, machine: Machine) -> float:
    """Return the nanoseconds that moving the operands takes.

    A store that is not streaming first reads the line it writes, unless the program
    reads it anyway; a streaming store of a small output pays memory's rate.
    """
    if bytes_.resident:
        return max(cached_term(bytes_, schedule, machine))
    return cold_term(bytes_, schedule, machine)


def cached_term(
    bytes_: Traffic, schedule: Schedule, machine: Machine
) -> tuple[float, float]:
    """Return the nanoseconds of moving cached operands, and of draining stores.

    The second is 0 unless stores stream; it needs no core to wait.
    """
    threads = machine.threads if schedule.threads == 0 else 1
    drained = bytes_.fresh / (STREAM_RATE * threads) if schedule.streaming else 0.0
    return bytes_.moved / (CACHE_RATE * threads), drained


def cold_term(bytes_: Traffic, schedule: Schedule, machine: Machine) -> float:
    """Return the nanoseconds of moving operands that are in no cache."""
    threads = machine.threads if schedule.threads == 0 else 1
    allocated = 0.0 if schedule.streaming else float(bytes_.fresh)
    if bytes_.fresh <= LAST_BYTES:
        allocated *= LATER
    if schedule.streaming and bytes_.updates:
        allocated = bytes_.moved  # throws out lines just read: seen 1.5 times as slow
    return (bytes_.moved + allocated) / (MEMORY_RATE * threads)


def sharing_terms(
    schedule: Schedule, machine: Machine, chunks: int, work: float
) -> tuple[tuple[str, float], ...]:
    """Return what handing `chunks` to threads costs: fork and join, claims, waiting.

    `work` is each thread's nanoseconds if all share evenly. Threads wait when chunks
    do not divide by threads, and otherwise for a part of the last chunk.
    """
    if schedule.threads == 1:
        return (("fork and join", 0.0), ("claims", 0.0), ("waiting", 0.0))
    threads = machine.threads
    rounds = -(-chunks // threads)
    uneven = rounds * threads / chunks - 1
    jitter = JITTER * threads / chunks
    return (
        ("fork and join", FORK_JOIN_NS),
        ("claims", CLAIM_NS * rounds),
        ("waiting", work * max(uneven, jitter)),
    )


def bounded(
    terms: Sequence[tuple[str, float]],
    moved: Traffic,
    schedule: Schedule,
    machine: Machine,
    chunks: int,
) -> Prediction:
    """Return what takes as long as its `terms`, or its memory if that takes longer.

    The term of memory is what it takes beyond the others.
    """
    work = max(
        sum([taken for _, taken in terms]), memory_term(moved, schedule, machine)
    )
    left = work
    for _, taken in terms:
        left -= taken
    sharing = sharing_terms(schedule, machine, chunks, work)
    return Prediction((*terms, ("memory", left), *sharing))


def together(memory: float, computing: float) -> float:
    """Return the nanoseconds of memory traffic and arithmetic that overlap in part."""
    return max(memory, computing) + (1 - OVERLAP) * min(memory, computing)
