"""What a schedule is predicted to cost: terms with units, and the machine they mean.

Predictions rank schedules of one program; they are not promises. Terms are
nanoseconds of one launch that finds its operands in no cache when they are larger
than `RESIDENT_BYTES`, and in the last-level cache otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expr import Program

# One core's share of memory and of the last-level cache, bytes a nanosecond: two
# cores of the reference machine copy at 58 GB/s from memory (FACTS.md 2), and at
# about twice that while the operands stay in its last-level cache.
MEMORY_RATE: Final = 29.0
CACHE_RATE: Final = 60.0
# Operands below this stay cached between launches: half of the smallest last-level
# cache (8 MiB a core complex) we expect, the other half being somebody else's.
RESIDENT_BYTES: Final = 4 << 20
# A fork and join of the native pool from Python (FACTS.md 2).
FORK_JOIN_NS: Final = 600.0
# One atomic addition on a line that another core holds.
CLAIM_NS: Final = 50.0
# A vector operation, at two a cycle and 3 GHz, and what a loop iteration adds.
OPERATION_NS: Final = 0.17
ITERATION_NS: Final = 0.35
# The share of the last chunk that one thread waits for another that is as fast.
JITTER: Final = 0.1
# How much of the shorter of memory time and arithmetic hides behind the longer: the
# loads of a vector run ahead of its arithmetic, but a row waits for its reductions.
OVERLAP: Final = 0.7
# The part of memory time that prefetching the next rows saves: the lower end of
# 5-20 % seen for normalization (FACTS.md 2).
PREFETCH_SAVING: Final = 0.05


@dataclass(frozen=True, slots=True)
class Machine:
    """What schedules need to know of a CPU: its vectors and its threads."""

    vector_bytes: int
    threads: int

    def lanes(self, element_bytes: int) -> int:
        """Return how many elements fill one vector register."""
        return max(1, self.vector_bytes // element_bytes)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Named terms of a launch, in nanoseconds."""

    terms: tuple[tuple[str, float], ...]

    @property
    def total(self) -> float:
        """The sum of the terms, in nanoseconds."""
        return sum(value for _, value in self.terms)


class Schedule(Protocol):
    """What all schedules have: a strategy's knobs, ordered, with a short name."""

    @property
    def label(self) -> str:
        """A short name for tables."""

    @property
    def threads(self) -> int:
        """How many threads run it; 0 means all."""

    @property
    def streaming(self) -> bool:
        """Whether stores go round the caches."""


def memory_term(program: Program, schedule: Schedule, machine: Machine) -> float:
    """Return the nanoseconds that moving the operands takes.

    A store that is not streaming first reads the line it writes, unless the program
    reads it anyway; a streaming store of a small output pays memory's rate.
    """
    threads = machine.threads if schedule.threads == 0 else 1
    moved = bytes_moved(program)
    fresh = sum(
        output.value.dtype.bytes * _elements(output.value.shape)
        for output in program.outputs
        if output.updates is None
    )
    if moved <= RESIDENT_BYTES:
        rate = CACHE_RATE * threads
        evicted = fresh / (MEMORY_RATE * threads) if schedule.streaming else 0.0
        return moved / rate + evicted
    allocated = 0 if schedule.streaming else fresh
    updated = sum(o.updates is not None for o in program.outputs)
    if schedule.streaming and updated:
        allocated = moved  # throws lines out that were just read: seen twice as slow
    return (moved + allocated) / (MEMORY_RATE * threads)


def _elements(shape: Iterable[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


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


def together(memory: float, computing: float) -> float:
    """Return the nanoseconds of memory traffic and arithmetic that overlap in part."""
    return max(memory, computing) + (1 - OVERLAP) * min(memory, computing)
