"""Measure one case in one mode in this process: from a case to a trial."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter_ns, time_ns
from types import ModuleType
from typing import Any

from steelyard.analyse import doubts
from steelyard.analyse.trial import ClockFacts, Trial
from steelyard.clocks import Clock
from steelyard.clocks.host import HostClock
from steelyard.declare.benchmark import FAILURES, sentence
from steelyard.declare.mode import Mode
from steelyard.declare.plan import Settings
from steelyard.machine import facts as machine
from steelyard.machine import neighbours
from steelyard.machine.neighbours import Neighbours
from steelyard.machine.ticks import seen_tick
from steelyard.measure import (
    audit,
    interleave,
    ledger,
    sampler,
    stream,
)
from steelyard.measure.failed import failed
from steelyard.measure.instruments import Instruments
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.sampler import Record
from steelyard.prepare import inputs, work
from steelyard_device import cpu, cuda


@dataclass(slots=True)
class Measurement:
    """What is measured, and what it has come to so far: all is kept if it goes wrong."""

    prepared: PreparedCase
    mode: Mode
    scale: Instruments
    settings: Settings
    block: int = 0
    position: int = 0
    clock: ClockFacts = field(default_factory=HostClock.nothing)
    record: Record = field(default_factory=Record)
    floors: dict[str, float] = field(default_factory=dict)
    ledger: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    error: str | None = interleave.OTHER
    """Until its windows are taken: whoever stops before that gives up for it."""
    _began: int = field(default_factory=perf_counter_ns)
    _before: Mapping[str, Any] = field(init=False)
    """The state of the GPU."""
    _others: Neighbours = field(init=False)

    def __post_init__(self) -> None:
        prepared = self.prepared
        self.extra = {
            "began_ns": time_ns(),
            "mhz": [machine.clock_mhz()],
            "checked": prepared.checked,
            "launched": prepared.launched,
            "working_set": _working_set(prepared),
            "huge_bytes": prepared.buffers.huge_bytes,
        }
        self._before = _gpu().before(self.gpu) if self.gpu else {}
        self._others = Neighbours()

    @property
    def seed(self) -> int:
        """What draws the windows that are checked."""
        return self.settings.seed + self.position

    @property
    def gpu(self) -> cuda.Context | None:
        """Where the work runs; None on the CPU."""
        bound = self.prepared.work
        return bound.context if isinstance(bound, work.DeviceWork) else None

    def windows(self, collected: Callable[[], int]) -> interleave.Windows:
        """Take the samples, window by window, and all that is measured beside them.

        What goes wrong becomes the trial's error. ``collected`` says what the garbage
        collector took.
        """
        with _kept(self):
            yield from _take(self, collected)

    def trial(self) -> Trial:
        """Return what the windows, and what is looked at after them, came to."""
        prepared, extra, gpu = self.prepared, self.extra, self.gpu
        if self.error is None:
            with _kept(self):
                _look(self)
        if gpu:
            extra["gpu"] = _gpu().after(gpu, self._before)
            extra["gpu"]["capped"] = extra.pop("capped", {})
            if self.error is None:  # now: the state above is not of what metering heats
                with _kept(self):
                    _energy(self)
        extra |= self._others.found()
        if changed := neighbours.rescheduled():
            extra["rescheduled"] = changed
        extra["mhz"].append(machine.clock_mhz())
        extra["wall_ns"] = perf_counter_ns() - self._began
        where = {"block": self.block, "position": self.position}
        trial = replace(
            failed(prepared.case, self.mode, self.error, **where),
            samples=self.record.samples(),
            clock=self.clock,
            floors=self.floors,
            ledger=self.ledger,
            facts=self.facts,
            hashes=prepared.hashes,
            extra=extra,
        )
        cache = gpu.device.l2_bytes if gpu else self.scale.last_level_cache
        seen = doubts.raise_doubts(trial, cache, self.settings.precision)
        return replace(trial, doubts=seen)


def _gpu() -> ModuleType:
    """Return what reads a GPU's state, which processes without one do not import."""
    from steelyard.machine import gpu_state

    return gpu_state


def measure_case(
    prepared: PreparedCase,
    mode: Mode,
    scale: Instruments,
    settings: Settings,
    *,
    block: int = 0,
    position: int = 0,
    drive: interleave.Drive = interleave.alone,
) -> Trial:
    """Measure a prepared case; what goes wrong becomes the trial's error."""
    taken = Measurement(prepared, mode, scale, settings, block, position)
    with placed(prepared), sampler.no_collection() as collected:
        drive(taken.windows(collected))
    return taken.trial()


@contextmanager
def _kept(taken: Measurement) -> Iterator[None]:
    """Do a step of a trial; what goes wrong becomes its error."""
    try:
        yield
        taken.error = None
    except FAILURES as failure:
        taken.error = sentence(failure)


def _take(taken: Measurement, collected: Callable[[], int]) -> interleave.Windows:
    """Take the samples and everything that is measured beside them."""
    prepared, mode = taken.prepared, taken.mode
    taken.facts = prepared.facts()
    if isinstance(prepared.work, work.DeviceWork) and mode.quantity == "kernel":
        yield from _in_queues(taken, prepared.work)
    else:
        yield from _by_the_host(taken)
    empty = statistics.median(taken.clock.floor or (0,))
    taken.floors |= {"empty": float(empty), "call": _call_floor(taken)}
    taken.extra |= {"gc_ns": collected(), "collapsed": _collapsed(prepared)}
    if mode.quantity == "latency" and mode.cache == "warm":
        taken.ledger = _ledger(taken)
    if mode.quantity != "build":
        taken.extra |= _audit(taken)
    if mode.quantity == "build":
        taken.facts = prepared.facts()  # of the last build, no longer of the first
    if mode.cache == "first":
        taken.ledger = ledger.first(prepared.starts)
        taken.facts |= _second(prepared)


def _look(taken: Measurement) -> None:
    """Look at what the work did, where nothing is timed any more."""
    taken.extra |= _set_aside(taken)
    if taken.settings.allocations and taken.prepared.launched:
        taken.extra["allocations"] = audit.allocations(taken.prepared)
        taken.prepared.buffers.restore()


def _call_floor(taken: Measurement) -> float:
    """Return the nanoseconds of a call around nothing, as this work is called."""
    bound = taken.prepared.work
    if not isinstance(bound, work.CallableWork):
        return taken.scale.empty_call
    taken.extra["called"], floor = ledger.call_floor(bound)
    return floor


def _in_queues(taken: Measurement, bound: work.DeviceWork) -> interleave.Windows:
    """Measure a kernel on a GPU by the GPU's clocks."""
    from steelyard.measure import gpu_stream  # a process without a GPU starts sooner

    device, settings = taken.scale.on(bound.context), taken.settings
    clock, *_ = device.clocks(settings.clock)
    taken.clock = clock.facts_in(taken.mode.cache)
    taken.extra |= yield from gpu_stream.queued(
        taken.prepared,
        bound,
        taken.mode,
        device,
        settings,
        record=taken.record,
        seed=taken.seed,
    )
    if kernels := taken.extra.pop("kernels"):  # not every clock sees them
        taken.facts["kernels"] = kernels
    taken.floors["null"] = device.null(clock)


def _audit(taken: Measurement) -> dict[str, Any]:
    """Look whether the work does all of its work, by launches that are not timed."""
    prepared, mode = taken.prepared, taken.mode
    flush = None
    if mode.cache == "cold" and not isinstance(prepared.work, work.DeviceWork):
        flush = stream.flushing(prepared, mode, taken.scale)
    found = audit.audit(prepared, flush)
    return {"audit": found} if found else {}


def _set_aside(taken: Measurement) -> dict[str, Any]:
    """Say why a flush does not make a GPU's cache cold, if the work saw to that.

    Lines that persist are let go of once a trial; each launch may ask for them again.
    """
    bound = taken.prepared.work
    cold = taken.mode.cache == "cold" and taken.mode.quantity != "build"
    if not (cold and isinstance(bound, work.DeviceWork)):
        return {}
    nbytes = taken.scale.on(bound.context).persisting()
    why = f"{nbytes} bytes of the L2 cache are set aside for lines that no flush evicts"
    return {"wrong_cache": why} if nbytes else {}


def _energy(taken: Measurement) -> None:
    """Meter launches back to back, where that is asked for and can be had."""
    from steelyard.measure import gpu_instruments

    prepared, bound = taken.prepared, taken.prepared.work
    wanted = taken.mode.quantity == "kernel" and gpu_instruments.wants_energy(
        taken.settings, prepared.case.axes
    )
    if not (wanted and isinstance(bound, work.DeviceWork)):
        return
    each = statistics.median(taken.record.samples().per_launch())
    metered = gpu_instruments.measured_energy(bound.context, bound, each)
    prepared.buffers.restore()
    if metered:
        taken.extra["gpu"]["energy"] = metered


def _by_the_host(taken: Measurement) -> interleave.Windows:
    """Measure what a clock of the host reads."""
    clock = taken.scale.clock(taken.prepared.work, taken.mode)
    taken.clock = clock.facts
    taken.extra |= yield from stream.called(
        taken.prepared,
        taken.mode,
        taken.scale,
        clock,
        taken.settings,
        record=taken.record,
        seed=taken.seed,
    )
    taken.floors |= _null(taken.prepared, clock)
    if taken.mode.quantity != "build":
        taken.extra["spans"] = taken.record.spans()
    seen = seen_tick(taken.record.ticks)
    if seen > clock.facts.quantum:  # it says that it ticks finer than it does
        taken.clock = replace(clock.facts, quantum=seen)


def placed(prepared: PreparedCase) -> AbstractContextManager[None]:
    """Pin the caller of native work, whose threads have processors of their own.

    A callable may start threads in each call; they would inherit the one processor and
    read as slow as if there were no other. So would the driver's, and other libraries',
    beside work on a GPU, which has no pool of ours.
    """
    native = isinstance(prepared.work, work.NativeWork)
    device = isinstance(prepared.work, work.DeviceWork)
    return cpu.pinned() if native and not device else nullcontext()


def _ledger(taken: Measurement) -> dict[str, float]:
    prepared = taken.prepared
    described, buffers, bound = (
        prepared.description,
        prepared.buffers,
        prepared.work,
    )
    allocated = taken.mode.flavour == "allocated"
    if isinstance(bound, work.DeviceWork):
        if taken.mode.batch > 1:
            return {}  # calls of a batch overlap: their parts do not add up
        from steelyard.measure import gpu_ledger as device_ledger

        # CUPTI would hook into the calls that are measured beside it.
        clock, *_ = taken.scale.on(bound.context).clocks("events")
        parts = device_ledger.parts(
            described, buffers, bound, clock, allocated=allocated
        )
    else:
        parts = ledger.parts(described, buffers, bound, allocated=allocated)
    prepared.buffers.restore()
    return ledger.close(parts, statistics.median(taken.record.samples().per_launch()))


def _second(prepared: PreparedCase) -> dict[str, float]:
    """Return what a second build took in the fresh processes that made one."""
    times = [s[ledger.SECOND] for s in prepared.starts if ledger.SECOND in s]
    return {"second_kernel_ns": float(statistics.median(times))} if times else {}


def _null(prepared: PreparedCase, clock: Clock) -> dict[str, float]:
    """Return the median nanoseconds of native work that does nothing, where it is."""
    bound = prepared.work
    if not isinstance(bound, work.NativeWork):
        return {}
    nothing = bound.null()
    windows = [clock.window(nothing, 1, dependent=False) for _ in range(21)]
    return {"null": float(statistics.median(stop - start for start, stop in windows))}


def _working_set(prepared: PreparedCase) -> int:
    """Return the bytes that pass through the caches from one warm window to the next.

    In-place arguments count twice: restoring them reads their first data.
    """
    buffers = prepared.buffers
    updated = prepared.description.handles_of("inout")
    copies: int = sum(buffers.arrays[handle.name].nbytes for handle in updated)
    return buffers.nbytes + copies


def _collapsed(prepared: PreparedCase) -> bool:
    """Look at the inputs, and what the last window left of in-place arguments."""
    given = [h for h in prepared.buffers.handles if h.role != "output"]
    if given and all(inputs.is_constant(handle) for handle in given):
        return True
    left = prepared.description.handles_of("inout")
    after = any(prepared.buffers.collapsed(h.name) for h in left)
    prepared.buffers.restore()
    before = any(prepared.buffers.collapsed(h.name) for h in left)
    return after and not before
