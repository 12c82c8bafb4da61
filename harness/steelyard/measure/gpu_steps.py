"""Size the sampling queue of a GPU case, and set up each window."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse import agreement
from steelyard.clocks import DeviceClock, Reading, in_queues
from steelyard.declare.config import ALL
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.measure import gpu_sampler as device_sampler
from steelyard.measure import sampler
from steelyard.measure.gpu_instruments import WINDOWS, GpuInstruments
from steelyard.measure.gpu_sampler import Steps
from steelyard.measure.sampler import LONGEST_WARM_UP
from steelyard.measure.steps import stopping_of
from steelyard_device.cuda import activity
from steelyard_device.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.declare.mode import Mode
    from steelyard.declare.settings import Settings
    from steelyard.measure.prepared import PreparedCase
    from steelyard.prepare.work import DeviceWork

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


def queued(
    prepared: PreparedCase,
    weighed: DeviceWork,
    mode: Mode,
    gpu: GpuInstruments,
    settings: Settings,
    *,
    record: sampler.Record,
    seed: int,
) -> dict[str, Any]:
    """Sample a kernel on a GPU, by its clocks; return what is reported beside the samples."""
    clock, *others = gpu.clocks(settings.clock)
    steps, each = steps_of(prepared, weighed, mode, gpu, clock)
    waits = prepared.facts().get("synchronises")  # nobody can record what waits
    compared = settings.clock == ALL and not waits
    half = COMPARED // 2
    before = beside(steps, others, mode, each, times=half)[0] if compared else {}
    told = device_sampler.QueueStats()
    stopping = stopping_of(settings, 1, clock.facts)  # its time begins now
    steps = replace(steps, finished=stopping.finished)
    with gpu.capped() as capped:
        device_sampler.sample(steps, record, seed, told)
    extra: dict[str, Any] = {
        "settled": stopping.settled,
        "expired": told.expired,
        "kernels": told.kernels or (0 if waits else gpu.kernels(weighed)),
        "capped": capped,
    }
    if mode.cache == "cold":
        extra["l2_flush_bytes"] = gpu.flush.nbytes
    if others and not waits:
        kernels = max(1, extra["kernels"])
        times = half if compared else 1
        read, left_out = beside(steps, others, mode, each, kernels, times=times)
        for name in before.keys() & read.keys():
            read[name]["ticks"][:0] = before[name]["ticks"]
        extra |= {"clocks": read, "clocks_left_out": left_out}
    return extra


def steps_of(
    prepared: PreparedCase,
    weighed: DeviceWork,
    mode: Mode,
    scale: GpuInstruments,
    clock: DeviceClock,
) -> tuple[Steps, float]:
    """Return the steps of a trial and about how many nanoseconds a launch takes.

    Raises:
        BenchmarkError: the clock cannot read this mode.
    """
    if not clock.serves(mode.cache):
        raise BenchmarkError(
            f"the clock {clock.facts.id} does not read kernels that are {mode.cache}. "
            "Measure it in another mode, or leave --clock out."
        )
    cold = mode.cache == "cold"
    scale.release_lines()
    steps = Steps(
        work=weighed,
        clock=clock,
        stamps=scale.stamps,
        windows=1,
        lead=_nothing,
        touch=_nothing,
        restore=prepared.buffers.restore,
        settle=scale.flush if cold else _nothing,
        finished=lambda _: True,
        poison=prepared.buffers.poison,
        check=prepared.check,
    )
    return _sized(steps, prepared, scale.flush, cold=cold)


def _sized(
    steps: Steps, prepared: PreparedCase, flush: Callable[[], None], *, cold: bool
) -> tuple[Steps, float]:
    """Choose windows and warming by a few untimed queues."""
    _probe(steps, 1)  # loads what is loaded at first use
    wall, readings = _probe(steps, 1)
    kernels = max(1, readings[0].kernels)
    updates = len(prepared.description.handles_of("inout"))
    several = min(PROBES, steps.clock.capacity(kernels + updates))
    single = several < 2 or prepared.facts().get("synchronises") or wall > LONG
    window = wall
    if not single:
        more, readings = _probe(steps, several)
        window = max(more - wall, 0) // (several - 1)
    ticks = statistics.median(r.ticks for r in readings)
    each = max(ticks - steps.clock.facts.offset, 1.0)
    touches = not cold and each <= LONGEST_WARM_UP
    window += round(touches * each)
    submitted = (1 + touches) * kernels + updates
    room = min(steps.clock.capacity(submitted), QUEUE // max(window, 1), WINDOWS)
    sized = replace(
        steps,
        lead=_lead(steps, flush, each, kernels),
        windows=1 if single else max(1, room),
        touch=(lambda: steps.work.launch(1)) if touches else _nothing,
    )
    return sized, each


def _lead(
    steps: Steps, flush: Callable[[], None], each: float, kernels: int
) -> Callable[[], None]:
    """Return what loads the GPU for `LEAD`; a launch that is longer needs none."""
    times = math.ceil(LEAD / (each + FLUSHING)) if each < LEAD else 0
    times = min(times, ROOM // (kernels + 1))

    def lead() -> None:
        for _ in range(times):
            flush()
            steps.work.launch(1)

    return lead


def _probe(steps: Steps, windows: int) -> tuple[int, list[Reading]]:
    """Return the host's nanoseconds of an untimed queue, and what was read."""
    began = perf_counter_ns()
    submit = device_sampler.ahead(steps)
    readings = steps.clock.read(steps.work, windows, submit)
    return perf_counter_ns() - began, readings


def beside(
    steps: Steps,
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
            submit = device_sampler.ahead(steps)
            readings = in_queues(clock, steps.work, windows, submit, 2 * kernels)
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


def _nothing() -> None:
    """Submit nothing."""
