"""Recording what a GPU does, by fakes of CUPTI and the driver; no GPU is needed."""

# ruff: noqa: D102 - the fake's methods are what the real ones are
import ctypes
import enum
import os
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
from host_memory_gpu import CONTEXT
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import install
from steelyard_device.cuda import activity
from steelyard_device.cuda import driver as cuda_driver
from steelyard_device.cuda.activity import Recorder
from steelyard_device.errors import DeviceError

KINDS = enum.IntEnum(
    "ActivityKind", {"MEMCPY": 1, "MEMSET": 2, "CONCURRENT_KERNEL": 10}
)


class CuptiError(Exception):
    """What the bindings raise."""


class Cupti:
    """Stands in for the bindings: numbers calls, and hands records over at a flush."""

    ActivityKind = KINDS
    CallbackDomain = SimpleNamespace(DRIVER_API=1)
    DriverApiTraceCbid = {activity._MARK: 7}  # noqa: RUF012 - as an enum is indexed
    cuptiError = CuptiError  # noqa: N815 - the bindings' own name

    def __init__(self):
        self.number = 0
        self.enabled = set()
        self.records = []
        self.dropped = 0
        self.attached = 0
        self.refusal = None
        self.callback = None

    def subscribe(self, callback, _):
        if self.refusal:
            raise CuptiError(self.refusal)
        self.callback, self.attached = callback, self.attached + 1
        return "subscriber"

    def enable_callback(self, enable, subscriber, domain, number):
        assert (enable, subscriber, domain, number) == (1, "subscriber", 1, 7)

    def activity_register_callbacks(self, requested, completed):
        assert requested()[0] >= 1 << 20
        self.completed = completed

    def activity_enable(self, kind):
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_flush_all(self, flag):
        assert flag == 1
        records, self.records = self.records, []
        for half in (records[::2], records[1::2]):  # buffers keep no order
            self.completed(half)

    def activity_get_num_dropped_records(self, context, stream, address):
        assert (context, stream) == (0, 0)
        ctypes.c_size_t.from_address(address).value = self.dropped

    def get_context_id(self, context):
        assert context == CONTEXT.handle
        return 1

    def get_stream_id_ex(self, context, stream, per_thread):
        assert (context, stream, per_thread) == (CONTEXT.handle, CONTEXT.stream, 0)
        return 13

    def get_timestamp(self):
        return 12345

    def finalize(self):
        self.callback, self.attached, self.number = None, self.attached - 1, 0

    def marked(self, context):
        """Stand in for the driver's call: it has a number when somebody listens."""
        assert context == CONTEXT.handle
        if self.callback:
            self.number += 1
            for _ in ("enter", "exit"):
                seen = SimpleNamespace(correlation_id=self.number)
                self.callback(None, 1, 7, seen)
        return 0, 3020

    def submit(self, name="kernel", kind=KINDS.CONCURRENT_KERNEL, nodes=1, **fields):
        """Submit a kernel, a copy or a graph of ``nodes``; recorded if that is on."""
        if kind not in self.enabled:
            return
        self.number += 1
        at = 1000 * self.number
        for node in range(nodes):
            told = {"start": at + 32 * node, "end": at + 32 * node + 31, **fields}
            self.records.append(record(kind, name, self.number, **told))


def record(kind, name, number, start, end):
    """Return what CUPTI tells of one activity."""
    both = {"correlation_id": number, "start": start, "end": end}
    where = {"kind": kind, "stream_id": 13, "context_id": 1}
    if kind != KINDS.CONCURRENT_KERNEL:
        return SimpleNamespace(**both, **where, bytes=64, copy_kind=2)
    shape = {f"{what}_{axis}": 2 for what in ("grid", "block") for axis in "xyz"}
    memory = {"static_shared_memory": 100, "dynamic_shared_memory": 28}
    return SimpleNamespace(
        **both, **where, **shape, **memory, name=name, registers_per_thread=16
    )


@contextmanager
def faked():
    """Record with the fakes, in a process that has not subscribed."""
    fake = Cupti()
    package = ModuleType("cupti")
    package.cupti = fake
    calls = SimpleNamespace(
        cuCtxGetCurrent=lambda: (0, CONTEXT.handle), cuCtxGetApiVersion=fake.marked
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupti", package)
        patch.setattr(cuda_driver, "bindings", lambda: calls)
        activity._session.cache_clear()
        yield fake
    activity._session.cache_clear()


@pytest.fixture
def cupti():
    """Record with the fakes."""
    with faked() as fake:
        yield fake


def names(found):
    """Return the names of each window's activities."""
    return {number: [each.name for each in acts] for number, acts in found.items()}


def test_windows_have_what_was_submitted_in_them(cupti):
    """And nothing else, whatever its name; one without anything is empty."""
    recorder = Recorder(CONTEXT)
    cupti.submit("before")
    with recorder.recording():
        cupti.submit("flush")
        with recorder.window(7):
            cupti.submit("flush")
            cupti.submit("kernel")
        cupti.submit("kernel")
        with recorder.window(3):
            pass
        with recorder.window(9):
            cupti.submit("graph", nodes=3)
            cupti.submit(kind=KINDS.MEMCPY)
            cupti.submit(kind=KINDS.MEMSET)
    cupti.submit("after")
    assert names(recorder.collect()) == {
        7: ["flush", "kernel"],
        3: [],
        9: ["graph", "graph", "graph", "memcpy", "memset"],
    }
    assert recorder.collect() == {}
    assert not cupti.enabled


def test_an_activity_says_what_and_where(cupti):
    """A copy has bytes, a kernel its shape and what it takes."""
    recorder = Recorder(CONTEXT)
    with recorder.recording(), recorder.window(0):
        cupti.submit("_Z3addPf")
        cupti.submit(kind=KINDS.MEMCPY)
    kernel, copy = recorder.collect()[0]
    assert kernel == (
        *("kernel", "_Z3addPf", 2000, 2031, 13, 1, 2),
        *((2, 2, 2), (2, 2, 2), 16, 128, 0, ""),
    )
    assert (copy.kind, copy.way, copy.nbytes, copy.correlation) == (
        *("memcpy", "out", 64),
        3,
    )
    assert (recorder.stream, recorder.context) == (13, 1)
    assert activity.now() == 12345


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_windows_are_told_apart_however_many_there_are(counts):
    """Of any number of activities in them and between."""
    with faked() as fake:
        recorder = Recorder(CONTEXT)
        with recorder.recording():
            for number, (between, within) in enumerate(counts):
                for _ in range(between):
                    fake.submit("between")
                with recorder.window(number):
                    for _ in range(within):
                        fake.submit(f"of {number}")
        found = recorder.collect()
    assert names(found) == {
        number: [f"of {number}"] * within for number, (_, within) in enumerate(counts)
    }
    starts = [each.start for acts in found.values() for each in acts]
    assert starts == sorted(starts)


def test_a_window_is_closed_when_its_work_fails(cupti):
    """What follows is not its."""
    recorder = Recorder(CONTEXT)

    def failing():
        with recorder.window(0):
            cupti.submit("mine")
            raise ZeroDivisionError

    with recorder.recording():
        with pytest.raises(ZeroDivisionError):
            failing()
        cupti.submit("not mine")
    assert names(recorder.collect()) == {0: ["mine"]}


def test_records_handed_over_meanwhile_are_kept(cupti):
    """Of a window that is open, too."""
    recorder = Recorder(CONTEXT)
    with recorder.recording():
        with recorder.window(0):
            cupti.submit("early")
            cupti.activity_flush_all(1)
            cupti.submit("late")
        cupti.submit("between")
        cupti.activity_flush_all(1)
    assert names(recorder.collect()) == {0: ["early", "late"]}


@pytest.mark.parametrize("dropped", [1, 300])
def test_lost_records_are_an_error(cupti, dropped):
    """A window that lacks some would read too fast; the next collect is good."""
    recorder = Recorder(CONTEXT)
    with recorder.recording(), recorder.window(0):
        cupti.submit()
    cupti.dropped = dropped
    with pytest.raises(DeviceError, match=f"lost {dropped} records beside 1"):
        recorder.collect()
    cupti.dropped = 0
    assert recorder.collect() == {}


def test_no_more_is_kept_than_is_said(cupti, monkeypatch):
    """And what is refused is counted."""
    monkeypatch.setattr(activity, "MOST", 10)
    recorder = Recorder(CONTEXT)
    with recorder.recording(), recorder.window(0):
        for _ in range(13):
            cupti.submit()
    with pytest.raises(DeviceError, match="lost 3 records beside 10"):
        recorder.collect()


@pytest.mark.parametrize("times", [{"end": 0}, {"start": 0}])
def test_what_is_not_done_is_not_collected(cupti, times):
    """CUPTI has no time of it yet."""
    recorder = Recorder(CONTEXT)
    with recorder.recording(), recorder.window(0):
        cupti.submit(**times)
    with pytest.raises(DeviceError, match="wait for the stream"):
        recorder.collect()


def test_recorders_share_what_a_process_has_once(cupti):
    """One subscription, and one recording at a time; the first goes on."""
    first, second = Recorder(CONTEXT), Recorder(CONTEXT)
    assert cupti.attached == 1
    with first.recording():
        with pytest.raises(DeviceError, match="another recording"), second.recording():
            pass
        with first.window(0):
            cupti.submit()
    with second.recording(), second.window(1):
        cupti.submit()
    assert names(second.collect()) == {0: ["kernel"], 1: ["kernel"]}


def test_detaching_lasts_until_the_next_recording(cupti):
    """Numbers start anew then, and what was not collected is gone."""
    activity.detach()
    recorder = Recorder(CONTEXT)
    for number in range(3):
        with recorder.recording(), recorder.window(number):
            cupti.submit()
        if number:
            assert names(recorder.collect()) == {number: ["kernel"]}
        activity.detach()
        activity.detach()
        assert cupti.attached == 0
    with recorder.recording():
        assert cupti.attached == 1
        with pytest.raises(DeviceError, match="not detached while it records"):
            activity.detach()


def test_somebody_else_has_cupti(cupti):
    """One sentence with CUPTI's own word; free again, it can be had."""
    cupti.refusal = "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"
    said = activity.missing()
    assert said.startswith("subscribing with CUPTI failed with ERROR_MULTIPLE")
    assert "torch.profiler" in said
    with pytest.raises(DeviceError, match="ERROR_MULTIPLE"):
        Recorder(CONTEXT)
    cupti.refusal = None
    assert activity.missing() is None


def test_without_bindings_the_extra_is_named(cupti, monkeypatch):
    """And a library that cannot be loaded is told of."""
    monkeypatch.setitem(sys.modules, "cupti", None)
    assert install.command("cupti") in activity.missing()

    def unloadable(*_):
        raise RuntimeError("libcupti.so.13 is not found")

    package = ModuleType("cupti")
    package.cupti = cupti
    monkeypatch.setattr(cupti, "subscribe", unloadable)
    monkeypatch.setitem(sys.modules, "cupti", package)
    assert "(libcupti.so.13 is not found)" in activity.missing()


def test_without_a_driver_nothing_is_imported(cupti, monkeypatch):
    """Its sentence is the driver's."""

    def lacking():
        raise DeviceError("this machine has no CUDA driver.")

    monkeypatch.setattr(cuda_driver, "bindings", lacking)
    assert activity.missing() == "this machine has no CUDA driver."


def test_a_fork_is_told_to_start_anew(cupti, monkeypatch):
    """CUPTI does not outlive it, as CUDA does not."""
    recorder = Recorder(CONTEXT)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with (
        pytest.raises(DeviceError, match="does not outlive a fork"),
        recorder.recording(),
    ):
        pass
    activity.detach()
    assert cupti.attached == 1


def test_marks_that_nobody_tells_of_are_an_error(cupti):
    """Windows without edges would take each other's activities."""
    recorder = Recorder(CONTEXT)
    with recorder.recording():
        cupti.callback = None
        with (
            pytest.raises(DeviceError, match="does not tell"),
            recorder.window(0),
        ):
            pass
