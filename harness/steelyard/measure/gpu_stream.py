"""Windows of a kernel on a GPU, in queues that nobody waits within.

A queue is a few milliseconds of windows, submitted at once and waited for at its end:
between what leads to a window and its launch the GPU waits for no host.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse import agreement
from steelyard.clocks import DeviceClock, Expired, Reading, in_queues
from steelyard.declare.config import ALL
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.measure.gpu_instruments import WINDOWS, GpuInstruments, frequencies
from steelyard.measure.sampler import Record, Sampling, preemptions, sample, stopping_of
from steelyard.measure.stream import LONGEST_WARM_UP
from steelyard_device.cuda import activity
from steelyard_device.errors import DeviceError

if TYPE_CHECKING:
    from steelyard.declare.mode import Mode
    from steelyard.declare.plan import Settings
    from steelyard.measure.prepared import PreparedCase
    from steelyard.prepare.work import DeviceWork
    from steelyard_device.cuda.stamps import Stamps

EXPIRIES: Final = 8
"""Queues that may outlast their spin before the trial fails: each costs its seconds, and
halves all that follow. A clock that sees no kernels takes a launch for one of them."""


QUEUE: Final = 4_000_000
"""Nanoseconds of windows in a queue: long beside the wait at its end, short beside the
budget of a trial, so that settled cases stop soon."""

PROBES: Final = 5
"""Windows whose time, less that of one alone, says how many a queue has."""

LONG: Final = 10_000_000
"""Nanoseconds of a window that is a queue by itself; nothing is gained by more."""

LEAD: Final = 300_000
"""Nanoseconds of load that lead a queue: an H200 that begins to be busy runs at 96 to 98 %
of its clock for some 80 of the first 160 us, which would be the first windows'."""

ROOM: Final = 64
"""Kernels of a lead at most: a queue behind a spin has few places left for them."""

CHECKS: Final = 33
"""Windows that other clocks read of each trial: their ticks are estimated like any."""

CHECKING: Final = 20_000_000
"""Nanoseconds after which another clock reads no more: of long kernels a few windows say
as much."""

COMPARED: Final = 10
"""Times both where clocks are asked to be compared: a pair of events round a cold launch
scatters by 0.45 us. Half of them come before the trial's own samples and half after, so
that what drifts meanwhile is in neither's favour."""

FEWEST: Final = 3
"""Windows of another clock, however long a kernel is."""

FLUSHING: Final = 100_000
"""About what leads to a cold window, in nanoseconds."""


def _nothing() -> None:
    """Submit nothing."""


@dataclass(slots=True)
class DeviceStream:
    """Windows of one launch each, many in a queue; what is submitted does not wait."""

    work: DeviceWork
    clock: DeviceClock
    offset: float
    """Nanoseconds that the clock reads of each window beside the launch."""
    stamps: Stamps
    restore: Callable[[], None]
    flush_caches: Callable[[], None]
    """Makes the caches cold, where that is asked for."""
    poison: Callable[[], None]
    checks: Callable[[int], None]
    """Checks the outputs of a window of so many launches; raises if they are wrong."""
    ramp_clocks: Callable[[], None] = _nothing
    """Loads the GPU before the first window of a queue; see `LEAD`."""
    warm_caches: Callable[[], None] = _nothing
    """Warms the caches by an untimed launch, where that is asked for."""
    room: int = 1
    count: int = 1
    expired: int = 0
    """Queues that were thrown away: the host had not filled them in time."""
    fits: int = sys.maxsize
    """Windows of a queue that are not too many, as far as is known."""
    kernels: int = 0
    """Activities of the GPU in a window, where the clock sees them."""

    def take(self, windows: int, record: Record, *, poison: bool) -> list[float]:
        """Take one queue into the record, in parts where it outlasts its spin."""
        if windows > self.fits:
            parts = (self.fits, windows - self.fits)
            return [t for part in parts for t in self.take(part, record, poison=poison)]
        lost, cpu = preemptions(), process_time_ns()
        try:
            readings = self.read(windows, poison=poison)
        except Expired:
            self.expired += 1
            if self.expired == EXPIRIES or windows == 1:
                raise
            self.fits = windows // 2
            return self.take(windows, record, poison=poison)
        cpu, lost = process_time_ns() - cpu, preemptions() - lost
        record.mhz += frequencies(self.stamps, windows)
        for place, one in enumerate(readings):
            # What the host was interrupted is nobody's window: the first stands for all.
            stop, missed = one.start + one.ticks, 0 if place else lost
            record.add(one.start, stop, 1, cpu // windows, missed)
        self.kernels = readings[-1].kernels
        return [max(one.ticks - self.offset, 0.0) for one in readings]

    def check(self) -> None:
        """Check the outputs of the last window."""
        self.checks(1)

    def read(self, windows: int, *, poison: bool = False) -> list[Reading]:
        """Read a queue of windows, the first of them poisoned."""

        def submit(place: int) -> None:
            self.ahead(place, poison=poison)

        return self.clock.read(self.work, windows, submit)

    def ahead(self, place: int, *, poison: bool = False) -> None:
        """Submit all that leads to a window.

        The warming launch comes first: it may change what is restored, and must not
        write what is then checked. Poison lies under the flush.
        """
        if not place:
            self.ramp_clocks()
        self.stamps.stamp(place)
        self.warm_caches()
        self.restore()
        if poison:
            self.poison()
        self.flush_caches()


def queued(
    prepared: PreparedCase,
    bound: DeviceWork,
    mode: Mode,
    gpu: GpuInstruments,
    settings: Settings,
    *,
    record: Record,
    seed: int,
) -> Generator[Sampling, None, dict[str, Any]]:
    """Sample a kernel on a GPU, by its clocks; return what is reported beside the samples."""
    clock, *others = gpu.clocks(settings.clock)
    stream, each = stream_of(prepared, bound, mode, gpu, clock)
    waits = prepared.facts().get("synchronises")  # nobody can record what waits
    compared = settings.clock == ALL and not waits
    half = COMPARED // 2
    before = beside(stream, others, mode, each, times=half)[0] if compared else {}
    stopping = stopping_of(settings, 1, clock.facts)
    with gpu.capped() as capped:
        yield from sample(stream, record, seed, stopping)
    extra: dict[str, Any] = {
        "settled": stopping.settled,
        "expired": stream.expired,
        "kernels": stream.kernels or (0 if waits else gpu.kernels(bound)),
        "capped": capped,
    }
    if mode.cache == "cold":
        extra["l2_flush_bytes"] = gpu.flush.nbytes
    if others and not waits:
        kernels = max(1, extra["kernels"])
        times = half if compared else 1
        read, left_out = beside(stream, others, mode, each, kernels, times=times)
        for name in before.keys() & read.keys():
            read[name]["ticks"][:0] = before[name]["ticks"]
        extra |= {"clocks": read, "clocks_left_out": left_out}
    return extra


def stream_of(
    prepared: PreparedCase,
    bound: DeviceWork,
    mode: Mode,
    gpu: GpuInstruments,
    clock: DeviceClock,
) -> tuple[DeviceStream, float]:
    """Return the windows of a kernel and about how many nanoseconds a launch takes.

    Raises:
        BenchmarkError: the clock cannot read this mode.
    """
    if not clock.serves(mode.cache):
        raise BenchmarkError(
            f"the clock {clock.facts.id} does not read kernels that are {mode.cache}. "
            "Measure it in another mode, or leave --clock out."
        )
    cold = mode.cache == "cold"
    gpu.release_lines()
    stream = DeviceStream(
        work=bound,
        clock=clock,
        offset=clock.facts_in(mode.cache).offset,
        stamps=gpu.stamps,
        restore=prepared.buffers.restore,
        flush_caches=gpu.flush if cold else _nothing,
        poison=prepared.buffers.poison,
        checks=prepared.check,
    )
    return stream, _size(stream, prepared, gpu.flush, cold=cold)


def _size(
    stream: DeviceStream,
    prepared: PreparedCase,
    flush: Callable[[], None],
    *,
    cold: bool,
) -> float:
    """Choose windows and warming by a few untimed queues; return a launch's time."""
    _probe(stream, 1)  # loads what is loaded at first use
    wall, readings = _probe(stream, 1)
    kernels = max(1, readings[0].kernels)
    updates = len(prepared.description.handles_of("inout"))
    several = min(PROBES, stream.clock.capacity(kernels + updates))
    single = several < 2 or prepared.facts().get("synchronises") or wall > LONG
    window = wall
    if not single:
        more, readings = _probe(stream, several)
        window = max(more - wall, 0) // (several - 1)
    each = max(statistics.median(r.ticks for r in readings) - stream.offset, 1.0)
    touches = not cold and each <= LONGEST_WARM_UP
    window += round(touches * each)
    submitted = (1 + touches) * kernels + updates
    room = min(stream.clock.capacity(submitted), QUEUE // max(window, 1), WINDOWS)
    stream.ramp_clocks = _ramp(stream.work, flush, each, kernels)
    stream.room = 1 if single else max(1, room)
    if touches:
        stream.warm_caches = lambda: stream.work.launch(1)
    return each


def _ramp(
    work: DeviceWork, flush: Callable[[], None], each: float, kernels: int
) -> Callable[[], None]:
    """Return what loads the GPU for `LEAD`; a launch that is longer needs none."""
    times = math.ceil(LEAD / (each + FLUSHING)) if each < LEAD else 0
    times = min(times, ROOM // (kernels + 1))

    def ramp_clocks() -> None:
        for _ in range(times):
            flush()
            work.launch(1)

    return ramp_clocks


def _probe(stream: DeviceStream, windows: int) -> tuple[int, list[Reading]]:
    """Return the host's nanoseconds of an untimed queue, and what was read."""
    began = perf_counter_ns()
    readings = stream.read(windows)
    return perf_counter_ns() - began, readings


def beside(
    stream: DeviceStream,
    clocks: Sequence[DeviceClock],
    mode: Mode,
    each: float,
    kernels: int = 1,
    *,
    times: int = 1,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Have other clocks read the same case of so many ``kernels`` in turn.

    Each takes ``times`` as many windows as a check does, and CUPTI is out of their way:
    recording or not, what it did to launches stays until it is taken out.

    Returns what each read, and the sentences of those that could not.
    """
    read: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    if times > 1:
        activity.detach()
    for clock in clocks:
        if not clock.serves(mode.cache):
            continue
        windows = round(times * CHECKING / (each + FLUSHING))
        windows = min(max(windows, FEWEST), times * CHECKS)
        try:
            readings = in_queues(clock, stream.work, windows, stream.ahead, 2 * kernels)
        except (SteelyardError, DeviceError) as failure:
            if getattr(failure, "lost", False):
                raise
            left_out[clock.facts.id] = str(failure)
            continue
        facts = clock.facts_in(mode.cache)
        read[facts.id] = {
            "ticks": [r.ticks for r in readings],
            **{name: getattr(facts, name) for name in agreement.FACTS},
        }
    return read, left_out
