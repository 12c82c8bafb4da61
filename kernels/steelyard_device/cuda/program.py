"""What a whole program has a GPU do, by CUPTI: for programs that nobody rewrote.

Unlike `activity` it marks no windows and calls nobody back: records are turned into
events when the program is over, or when `BUFFER` bytes of them are full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import time_ns
from typing import Any, Final, NamedTuple

from steelyard_device import install
from steelyard_device.cuda.capture import Capture
from steelyard_device.errors import DeviceError

BUFFER: Final = 64 << 20
"""Bytes of a buffer of records: some 300,000, whose turning into events takes seconds."""

MOST: Final = 5_000_000
"""Events kept; more are counted."""

KINDS: Final = {
    "CONCURRENT_KERNEL": "kernel",
    "MEMCPY": "copy",
    "MEMSET": "fill",
    "MEMORY2": "memory",
    "SYNCHRONIZATION": "wait",
}

DEAR: Final = frozenset({"memory", "wait"})
"""Kinds that are recorded only where they are asked for. On an H200's host a launch by
PyTorch took 7.0 us, 7.8 to 8.1 with the others recorded, 8.5 with memory too, and 10.3
once waits were. What is left is the kernels' own records, whatever the buffers: 0.9 us a
launch with those alone, of buffers of any size and place, and 0.4 once they are switched
off."""

COPIES: Final = {1: "in", 2: "out"}
"""CUpti_ActivityMemcpyKind: HTOD and DTOH; any other stays on GPUs."""

MEMORY: Final = {1: "allocated", 2: "freed"}
"""CUpti_ActivityMemoryOperationType."""


class Event(NamedTuple):
    """Something that the GPU did, or was asked for; nanoseconds of CLOCK_REALTIME."""

    kind: str
    """One of `KINDS`."""
    name: str
    """A kernel's, as its compiler mangled it; ``in``, ``out``, ``allocated``, ..."""
    start: int
    end: int
    stream: int
    nbytes: int


class Recorder:
    """Records what this process has its GPUs do, from `begin` to `end`.

    ``every`` kind, or all but `DEAR`.

    Raises:
        DeviceError: CUPTI is not here, or somebody else has it.
    """

    def __init__(self, *, every: bool = False) -> None:
        try:
            from cupti import cupti
        except ImportError as error:
            raise DeviceError(
                f"there is no CUPTI here ({error}): {install.command('cupti')}."
            ) from error
        self._cupti: Any = cupti
        kinds = cupti.ActivityKind
        self._kinds = {
            getattr(kinds, name): word
            for name, word in KINDS.items()
            if every or word not in DEAR
        }
        self._found: list[Event] = []
        self.captured: Capture | None = None
        """What waits for a launch, once `capture` was asked for it."""
        self.refused = 0
        """Events beyond `MOST`, and activities that were not done at the end."""

    def now(self) -> int:
        """Read the clock of the events."""
        return int(self._cupti.get_timestamp())

    def capture(self, wanted: Callable[[str], bool], number: int) -> None:
        """Have launch ``number`` of kernels that are wanted captured; see `Capture`."""
        with self._said("capturing"):
            self.captured = Capture(self._cupti, wanted, number)
            self.captured.begin()

    def begin(self) -> None:
        """Record from now on."""
        with self._said("recording"):
            self._cupti.activity_register_callbacks(lambda: (BUFFER, 0), self._take)
            for kind in self._kinds:
                self._cupti.activity_enable(kind)

    def end(self) -> list[Event]:
        """Wait for what is under way, and return everything by its start."""
        cupti = self._cupti
        with self._said("collecting"):
            for kind, word in self._kinds.items():
                if word in DEAR:  # what follows is not the program's
                    cupti.activity_disable(kind)
            _wait()
            cupti.activity_flush_all(1)
            for kind in self._kinds:
                cupti.activity_disable(kind)
        return sorted(self._found, key=lambda event: event.start)

    def _take(self, records: Sequence[Any]) -> None:
        room = MOST - len(self._found)
        self.refused += max(0, len(records) - room)
        for record in records[:room]:
            word = self._kinds.get(record.kind)
            if word is not None:
                event = _event(word, record)
                if event.end:
                    self._found.append(event)
                else:
                    self.refused += 1

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._cupti.cuptiError, RuntimeError) as error:
            raise DeviceError(
                f"{doing} with CUPTI failed ({error}): end other profilers of this "
                f"process, or {install.command('cupti')}."
            ) from error


def _event(word: str, record: Any) -> Event:
    if word == "kernel":
        where = record.start, record.end, record.stream_id
        return Event(word, record.name, *where, 0)
    if word == "memory":
        name = MEMORY.get(int(record.memory_operation_type), "other")
        return Event(word, name, record.timestamp, record.timestamp, 0, record.bytes)
    if word == "wait":
        return Event(word, "wait", record.start, record.end, record.stream_id, 0)
    name = COPIES.get(int(record.copy_kind), "within") if word == "copy" else "fill"
    return Event(word, name, record.start, record.end, record.stream_id, record.bytes)


def _wait() -> None:
    """Wait for the current context, if there is a driver and a context."""
    with suppress(ImportError, RuntimeError):
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        driver.cuCtxSynchronize()


def host_now() -> int:
    """Read the clock of events without CUPTI."""
    return time_ns()
