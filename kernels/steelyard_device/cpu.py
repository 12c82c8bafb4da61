"""Launch loaded code on this machine's cores, alone or on a pinned native pool."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from msgspec import Struct

from steelyard_device import caches, memory, native
from steelyard_device.errors import DeviceError
from steelyard_device.native_language import own
from steelyard_device.threads import Once

WORDS = memory.LINE // 8
"""8-byte words of a cache line."""

SPINS = 20_000
"""Looks at the generation before a thread sleeps: about 0.3 ms, longer than the gap
between two launches of a measured kernel, shorter than anyone would miss the core."""


class Function(Struct, frozen=True):
    """A loaded entry point with the signature that ``native`` documents."""

    name: str
    address: int


def load(code: bytes, entry: str) -> Function:
    """Load object ``code`` and return its ``entry``.

    Raises:
        LLVMError: the code cannot be linked or has no such entry.
    """
    from steelyard_device import llvm  # llvmlite takes long to import

    return Function(entry, llvm.link(code, [entry])[entry])


@functools.cache
def cpus() -> tuple[int, ...]:
    """Return the processors of this process's affinity mask, as first seen."""
    return tuple(sorted(os.sched_getaffinity(0)))


def pool_size() -> int:
    """Return how many threads a parallel launch uses, the caller included."""
    return len(cpus())


def pinned() -> AbstractContextManager[None]:
    """Keep the calling thread on the first processor of the mask.

    Threads that other libraries start inside inherit this; let them start theirs
    before.
    """
    return _on(cpus()[:1])


def unpinned() -> AbstractContextManager[None]:
    """Let the calling thread run anywhere in the mask, as do processes it starts."""
    return _on(cpus())


@contextmanager
def _on(processors: Sequence[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def slot(value: float, code: str) -> int:
    """Encode a scalar for an argument slot; ``code`` is a ``struct`` format letter.

    Raises:
        DeviceError: the value does not fit the format.
    """
    try:
        packed = struct.pack(f"<{code}", value)
    except (struct.error, OverflowError) as error:
        raise DeviceError(
            f"{value!r} does not fit a scalar of format {code!r}: {error}. "
            "Pass a value in its range."
        ) from None
    return int.from_bytes(packed, "little")


class Launch:
    """One function with its packed arguments, ready to run any number of times.

    ``slots`` are buffer addresses and encoded scalars in parameter order, 8 bytes
    each; the caller keeps the buffers alive. ``threads`` is 1, or `pool_size()`. Work
    that ``claims`` its chunks by ticket is done when all are, and waits for no thread
    that never began; otherwise every thread takes part.
    """

    __slots__ = (
        "_address",
        "_first",
        "_kept",
        "_launch",
        "_threads",
        "_window",
        "_words",
    )

    def __init__(
        self,
        function: Function,
        slots: Sequence[int],
        threads: int,
        *,
        claims: bool = False,
    ) -> None:
        if threads not in {1, pool_size()}:
            raise DeviceError(
                f"{function.name} was to run on {threads} threads; a launch uses 1 "
                f"or all {pool_size()} of the mask. Choose one of these."
            )
        library = _library()
        self._launch = library.launch_many
        self._window = library.window
        self._threads = threads
        # One block from a cache line on: what `native` calls %launch, the ticket on a
        # line of its own, and the arguments.
        words = (ctypes.c_uint64 * (3 * WORDS + len(slots)))()
        first = -ctypes.addressof(words) % memory.LINE // 8
        address = ctypes.addressof(words) + 8 * first
        ticket, args = address + memory.LINE, address + 2 * memory.LINE
        group = pool().address if threads > 1 else 0
        words[first : first + 4] = [group, function.address, args, ticket]
        words[first + 6] = claims
        at = first + 2 * WORDS
        words[at : at + len(slots)] = list(slots)
        self._words, self._first, self._address = words, first, address
        self._kept: tuple[Launch, ...] = ()

    def launch(self, count: int = 1, *, dependent: bool = False) -> None:
        """Run ``count`` launches one after another; they are done on return."""
        self._launch(self._address, count, dependent)

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Run ``count`` launches between two reads of the clock, all in native code.

        Returns CLOCK_MONOTONIC in nanoseconds before and after. ``dependent`` puts a
        fence behind each launch, so that none starts before the last has ended.
        """
        self._window(self._address, count, dependent)
        at = self._first + 4
        return self._words[at], self._words[at + 1]

    def wait(self) -> None:
        """Return when all launches are done: at once, they were on return."""

    def ready(self) -> None:
        """Wake the pool with an empty launch, so that the next one finds it spinning."""
        if self._threads > 1:
            null(pool_size()).launch()

    def then(self, other: Launch) -> Launch:
        """Return a launch of this and then ``other``, on this one's threads.

        Each thread does its part of one and all of the other between fences, so that
        their times add up; the other must claim no chunks, which are this one's.
        """
        made = Launch(
            _library().both,
            (*self._called(), *other._called()),
            self._threads,
            claims=bool(self._words[self._first + 6]),
        )
        made._kept = self, other
        return made

    def _called(self) -> tuple[int, int]:
        """Return the addresses of the function and of its arguments."""
        return self._words[self._first + 1], self._words[self._first + 2]

    def null(self) -> Launch:
        """Return a launch of nothing on the same threads: the floor of this one."""
        return null(self._threads)

    def facts(self) -> dict[str, object]:
        """Say how it is launched; what the code does is its maker's to tell."""
        return {"threads": self._threads}


@functools.lru_cache(maxsize=2)
def null(threads: int = 1) -> Launch:
    """Return a launch that does nothing: the floor of the hand-over."""
    return Launch(_library().null, (), threads)


def fork_join() -> int:
    """Return the address of what launches a function on a pool once.

    It takes the pool, the function, its arguments, a ticket on a line of its own, and
    whether its work is claimed, as `Launch` says it.
    """
    return _library().fork_join


def delay(steps: int, result: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Launch:
    """Return a launch of ``steps`` dependent multiply-adds: work of known length.

    The last value goes to ``result[0]``, so that the work cannot be skipped.
    """
    return Launch(_probes()["delay"], (steps, result.ctypes.data), 1)


class Flush:
    """Walks ``nbytes`` of memory, reading only: cores of one last-level cache share it.

    One core alone would leave the private caches of the others as they were; writing
    would leave dirty lines for the next kernel to pay for.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        # The walk takes two lines a step and at least one step.
        self._memory = np.ones(-(-max(nbytes, 1) // 128) * 16, np.uint64)
        self._sums = memory.empty((8 * pool_size(),), np.uint64)
        first = self._memory.ctypes.data
        parts = caches.parts(self._memory.nbytes, list(map(caches.last, cpus())))
        self._parts = np.array(parts, np.uint64) + np.uint64(first)
        addresses = (self._parts.ctypes.data, self._sums.ctypes.data)
        self._walk = Launch(_probes()["walk"], addresses, pool_size())

    def __call__(self) -> None:
        """Walk once, the caller on a processor of its own like the others."""
        with pinned():
            self._walk.launch()


class Pool:
    """Threads that wait for launches, one pinned to each processor but the first."""

    def __init__(self, processors: Sequence[int]) -> None:
        self._processors = processors
        self._room = memory.empty((ctypes.sizeof(native.Pool),), np.uint8)
        self._room[:] = 0
        self._state = native.Pool.from_buffer(self._room.data)
        self.address = self._room.ctypes.data
        self._state.workers = len(processors)
        self._state.spins = SPINS
        self._slots = [native.Slot(self.address, 1 + i) for i in range(len(processors))]
        self.start()

    def start(self) -> None:
        """Start the threads, which find no launch under way."""
        self._state.gate = self._state.sleepers = self._state.owner = 0
        places = zip(self._slots, self._processors, strict=True)
        self._threads = [
            _start_thread(_library().worker.address, slot_, processor)
            for slot_, processor in places
        ]

    def used(self) -> tuple[int, int]:
        """Return a number that each launch changes, and the threads' nanoseconds."""
        clocks = map(time.pthread_getcpuclockid, self._threads)
        return self._state.gate >> 32, sum(map(time.clock_gettime_ns, clocks))


@Once
def pool() -> Pool:
    """Return this process's pool, made on first use."""
    return Pool(cpus()[1:])


def pool_used() -> tuple[int, int]:
    """Return a number that each launch on the pool changes, and its processor time (ns).

    Threads also use their processors for a while after a launch, looking for the next.
    """
    for each in pool.made():
        return each.used()
    return 0, 0


def _after_fork() -> None:
    # A child has the pool's memory but none of its threads; launches packed before the
    # fork point to that memory, so new threads take their places in it.
    for each in pool.made():
        each.start()


os.register_at_fork(after_in_child=_after_fork)


class _Library(Struct, frozen=True):
    launch_many: ctypes._CFunctionType
    window: ctypes._CFunctionType
    worker: Function
    null: Function
    both: Function
    fork_join: int


@Once
def _library() -> _Library:
    from steelyard_device import llvm  # llvmlite takes long to import

    source, given = native.source(llvm.host())
    at = own(source, native.ENTRIES, given)
    pointer, int64, int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    return _Library(
        launch_many=ctypes.CFUNCTYPE(None, pointer, int64, int32)(at["launch_many"]),
        window=ctypes.CFUNCTYPE(None, pointer, int64, int32)(at["window"]),
        worker=Function("pool_worker", at["pool_worker"]),
        null=Function("null", at["null"]),
        both=Function("both", at["both"]),
        fork_join=at["fork_join"],
    )


@Once
def _probes() -> dict[str, Function]:
    at = own(native.PROBES_SOURCE, native.PROBES)
    return {name: Function(name, address) for name, address in at.items()}


def _start_thread(entry: int, slot_: native.Slot, processor: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    thread = ctypes.c_ulong()
    failed = libc.pthread_create(
        ctypes.byref(thread), None, ctypes.c_void_p(entry), ctypes.byref(slot_)
    )
    if failed:
        raise DeviceError(
            f"a thread of the pool could not be started: {os.strerror(failed)}. "
            "Raise the limit on processes (ulimit -u)."
        )
    mask = (ctypes.c_uint8 * 128)()  # sizeof(cpu_set_t)
    mask[processor // 8] = 1 << processor % 8
    libc.pthread_setaffinity_np(thread, ctypes.sizeof(mask), mask)
    libc.pthread_detach(thread)
    return thread.value
