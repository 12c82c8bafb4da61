"""What a GPU did and when, by CUPTI: the GPU's own time of kernels, copies and fills.

A recorder's windows say which activities are whose. CUPTI numbers the calls of a
process; a window lies between the numbers of two calls of its own, and nothing goes by
a kernel's name.
"""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, NamedTuple

from steelyard_device import install
from steelyard_device.cuda import driver
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import call
from steelyard_device.errors import DeviceError
from steelyard_device.threads import Once

BUFFER = 8 << 20
"""Bytes of a buffer of records: some 40,000 of them, more than a queue of windows has,
so that CUPTI hands none over while windows run."""

MOST = 200_000
"""Activities kept until they are collected. More are counted and refused: a recording
that nobody collects must not fill the memory."""

_KINDS = {"CONCURRENT_KERNEL": "kernel", "MEMCPY": "memcpy", "MEMSET": "memset"}

_WAYS = {1: "in", 2: "out"}
"""CUpti_ActivityMemcpyKind: HTOD and DTOH."""

_MARK = "cuCtxGetApiVersion"
"""A driver's call that does nothing and that programs do not make: its number is that
of a window's edge."""


class Activity(NamedTuple):
    """Something the GPU did; its times in nanoseconds of CLOCK_REALTIME.

    Durations are whole ticks of the GPU (32 ns on an H200), give or take 1 ns: CUPTI
    converts both ends. It is a tuple because there are thousands to make.
    """

    kind: str
    """``kernel``, ``memcpy`` or ``memset``."""
    name: str
    """A kernel's, as its compiler mangled it; else the kind."""
    start: int
    end: int
    stream: int
    """As CUPTI numbers a context's streams: ``Recorder.stream`` is ours."""
    context: int
    correlation: int
    """The number of the call that submitted it; all nodes of a graph share one."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    """Per thread, as they are given out: 16 to a kernel that uses 4."""
    shared: int
    """Bytes per block, static and dynamic."""
    nbytes: int
    """Copied or filled."""
    way: str = ""
    """``in`` of a copy from the host to the GPU, ``out`` of one back."""


def missing() -> str | None:
    """Say in a sentence why CUPTI cannot be used in this process; None if it can.

    It subscribes to find out, which costs the first time (0.25 s on an H200's host,
    mostly the import), and whoever else wants CUPTI later is refused.
    """
    try:
        _session()
    except DeviceError as error:
        return str(error)
    return None


def now() -> int:
    """Read the clock that activities are told in, nanoseconds; raises as `Recorder`."""
    read: int = _session().cupti.get_timestamp()
    return read


def detach() -> None:
    """Take CUPTI out of this process, until something is recorded again.

    Once it has recorded, every launch costs a quarter more on the host (2.95 us, then
    3.75 on an H200's), recording or not: detach before launches are timed there.

    Raises:
        DeviceError: a recording is on.
    """
    for session in _session.made():
        session.detach()


class Recorder:
    """Records what is submitted in windows, in all streams and from all threads.

    The process has one subscription that all recorders share; one of them records at a
    time. ``context`` and ``stream`` are CUPTI's numbers of ours, from the last
    recording on; ``version`` is that of CUPTI's bindings.

    Raises:
        DeviceError: CUPTI is not here, or somebody else has it.
    """

    def __init__(self, context: Context) -> None:
        self._session = _session()
        self._of = context
        self.context = self.stream = 0
        self.version = _version()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record within a ``with``; elsewhere launches cost what they do without.

        Raises:
            DeviceError: another recording is on, or the process was forked.
        """
        self._session.begin()
        try:
            cupti, handle = self._session.cupti, self._of.handle
            self.context = cupti.get_context_id(handle)
            self.stream = cupti.get_stream_id_ex(handle, self._of.stream, 0)
            yield
        finally:
            self._session.end()

    @contextmanager
    def window(self, number: int) -> Iterator[None]:
        """Count what is submitted within a ``with`` to window ``number``."""
        first = self._mark()
        place = self._session.open(number, first)
        try:
            yield
        finally:
            self._session.close(place, self._mark())

    def collect(self) -> dict[int, tuple[Activity, ...]]:
        """Return the activities of each window, by their start; they are then forgotten.

        Everything submitted in windows is done before: wait first.

        Raises:
            DeviceError: records were dropped, or activities are not done.
        """
        with driver.current(self._of.handle):
            return self._session.collect()

    def _mark(self) -> int:
        """Return the number of a call made now."""
        self._session.last_mark = 0
        call("marking a window for CUPTI", _MARK, self._of.handle)
        if not self._session.last_mark:
            raise DeviceError(
                "CUPTI does not tell of calls made here: end other profilers of this "
                "process, or measure with the clock of events."
            )
        return self._session.last_mark


class _Session:
    """The process's subscription, with what was recorded and not collected yet."""

    def __init__(self, cupti: Any) -> None:
        self.cupti = cupti
        self.process = os.getpid()
        self.last_mark = 0
        self._recording = False
        self._kinds = {cupti.ActivityKind[kind]: word for kind, word in _KINDS.items()}
        self._windows: list[list[int]] = []
        """First and last number and the window's, in the order of submission."""
        self._found: list[Activity] = []
        self._refused = 0
        self._attached = False
        self._attach()

    def _attach(self) -> None:
        cupti = self.cupti
        domain, mark = cupti.CallbackDomain.DRIVER_API, cupti.DriverApiTraceCbid[_MARK]
        with _said(cupti, "subscribing"):
            subscriber = cupti.subscribe(self._called, None)
            cupti.enable_callback(1, subscriber, domain, mark)
            cupti.activity_register_callbacks(lambda: (BUFFER, 0), self._take)
        self._attached = True

    def detach(self) -> None:
        if self._recording:
            raise DeviceError(
                "CUPTI is not detached while it records: leave the recording before."
            )
        if self._attached and os.getpid() == self.process:
            self._attached = False
            with _said(self.cupti, "detaching"):
                self.cupti.activity_flush_all(1)
                self.cupti.finalize()
            self._found, self._windows, self._refused = [], [], 0  # numbers start anew

    def _called(self, _user: object, _domain: int, _number: int, call: Any) -> None:
        """Keep the number of a mark; both its beginning and its end come here."""
        self.last_mark = call.correlation_id

    def begin(self) -> None:
        if os.getpid() != self.process:
            raise DeviceError(
                "this process was forked from one that records with CUPTI, which does "
                "not outlive a fork: start processes with multiprocessing's spawn."
            )
        with _RECORDING:
            if self._recording:
                raise DeviceError(
                    "another recording of this process is on: end it before, CUPTI "
                    "serves one at a time."
                )
            self._recording = True
        try:
            if not self._attached:
                self._attach()
            with _said(self.cupti, "recording"):
                for kind in self._kinds:
                    self.cupti.activity_enable(kind)
        except DeviceError:
            self._recording = False
            raise

    def end(self) -> None:
        for kind in self._kinds:
            self.cupti.activity_disable(kind)
        self._recording = False

    def open(self, number: int, first: int) -> int:
        self._windows.append([first, 1 << 32, number])
        return len(self._windows) - 1

    def close(self, place: int, last: int) -> None:
        self._windows[place][1] = last

    def collect(self) -> dict[int, tuple[Activity, ...]]:
        dropped = ctypes.c_size_t()
        with _said(self.cupti, "collecting"):
            self.cupti.activity_flush_all(1)  # buffers that are not full too
            self.cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(dropped))
        found, windows, refused = self._found, self._windows, self._refused
        self._found, self._windows, self._refused = [], [], 0
        if lost := dropped.value + refused:
            raise DeviceError(
                f"CUPTI lost {lost} records beside {len(found)} that are here: collect "
                "after fewer launches."
            )
        if any(not each.start or not each.end for each in found):
            raise DeviceError(
                "some activities that were recorded are not done: wait for the stream "
                "before they are collected."
            )
        return _by_window(found, windows)

    def _take(self, records: list[Any]) -> None:
        """Keep what lies in windows; CUPTI takes the memory back after."""
        firsts = [first for first, *_ in self._windows]
        for record in records:
            kind = self._kinds.get(record.kind)
            if kind is None:
                continue
            if _window(firsts, self._windows, record.correlation_id) is None:
                continue
            if len(self._found) >= MOST:
                self._refused += 1
                continue
            self._found.append(_activity(kind, record))


_RECORDING = threading.Lock()


@Once
def _session() -> _Session:
    """Subscribe, once a process."""
    driver.bindings()  # switches the compute cache off before CUPTI loads libcuda
    try:
        from cupti import cupti
    except ImportError as error:
        raise DeviceError(
            f"there is no CUPTI here ({error}): {install.command('cupti')}, or "
            "measure with the clock of events."
        ) from error
    return _Session(cupti)


def _version() -> str:
    try:
        return metadata.version("cupti-python")
    except metadata.PackageNotFoundError:
        return "unknown"


@contextmanager
def _said(cupti: Any, doing: str) -> Iterator[None]:
    """Make one sentence of what CUPTI refuses."""
    try:
        yield
    except cupti.cuptiError as error:
        raise DeviceError(
            f"{doing} with CUPTI failed with {error}: end other profilers of this "
            "process (ncu, nsys, torch.profiler), or measure with the clock of events."
        ) from error
    except RuntimeError as error:  # the library itself is not there or is too old
        raise DeviceError(
            f"{doing} with CUPTI failed ({error}): {install.command('cupti')}, or "
            "measure with the clock of events."
        ) from error


def _window(
    firsts: Sequence[int], windows: Sequence[Sequence[int]], correlation: int
) -> int | None:
    """Return the place of the window that a call lies in, None if in none."""
    place = bisect_right(firsts, correlation) - 1
    return place if place >= 0 and correlation < windows[place][1] else None


def _by_window(
    found: Sequence[Activity], windows: Sequence[Sequence[int]]
) -> dict[int, tuple[Activity, ...]]:
    """Group activities, each window's by their start; one without any is there too."""
    grouped: dict[int, list[Activity]] = {number: [] for *_, number in windows}
    firsts = [first for first, *_ in windows]
    for each in sorted(found, key=lambda each: each.start):
        place = _window(firsts, windows, each.correlation)
        if place is not None:
            grouped[windows[place][2]].append(each)
    return {number: tuple(group) for number, group in grouped.items()}


def _activity(kind: str, record: Any) -> Activity:
    """Copy a record of CUPTI's, which lives no longer than its buffer."""
    kernel = kind == "kernel"
    return Activity(
        kind,
        record.name if kernel else kind,
        record.start,
        record.end,
        record.stream_id,
        record.context_id,
        record.correlation_id,
        (record.grid_x, record.grid_y, record.grid_z) if kernel else (1, 1, 1),
        (record.block_x, record.block_y, record.block_z) if kernel else (1, 1, 1),
        record.registers_per_thread if kernel else 0,
        record.static_shared_memory + record.dynamic_shared_memory if kernel else 0,
        0 if kernel else record.bytes,
        _WAYS.get(int(record.copy_kind), "") if kind == "memcpy" else "",
    )
