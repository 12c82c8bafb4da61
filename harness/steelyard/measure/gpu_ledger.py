"""Where the time of one call on a GPU went.

===============  ==================================================================
``allocate``     memory of the pool for the outputs, and giving it back
``pack``         what a call takes longer than a bound launch: finding the binary,
                 checking and packing the arguments
``submit``       from Python to the return of the launch
``kernel``       the GPU's own time, by the clock of kernels
``synchronise``  waiting longer than that: starting, and telling the host of the end
``untracked``    the whole less all of these; below zero if parts overlap
===============  ==================================================================
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.clocks import DeviceClock
from steelyard.measure.ledger import per_call
from steelyard.prepare.work import Bindable, DeviceWork, allocating, allocator, calling

if TYPE_CHECKING:
    from steelyard.declare.benchmark import Description
    from steelyard.prepare.buffers import Buffers


CALLS: Final = 101
"""A median of them says tenths of a microsecond."""

READINGS: Final = 45
"""Of the kernel: one pair of events scatters by 0.7 us, their median by a tenth of it."""


def parts(
    description: Description,
    buffers: Buffers,
    work: DeviceWork,
    clock: DeviceClock,
    *,
    allocated: bool,
) -> dict[str, float]:
    """Return the nanoseconds per call of each part."""
    found = {"allocate": _allocating(description, buffers)} if allocated else {}
    submit, wait = _halves(work.launch, work.wait, buffers.restore)
    if work.facts().get("synchronises"):  # nothing can be told from outside
        return found | {"kernel": submit + wait}
    kernel = _kernel(work, clock, buffers.restore)
    found |= {"submit": submit, "kernel": kernel, "synchronise": wait - kernel}
    target: Any = description.call.target
    if isinstance(target, Bindable) and callable(target):
        call = (allocating if allocated else calling)(description, buffers)
        called, _ = _halves(call, work.wait, buffers.restore)
        found["pack"] = called - submit - found.get("allocate", 0.0)
    return found


def _allocating(description: Description, buffers: Buffers) -> float:
    form = description.call.form
    fresh = [
        allocator(handle, buffers, form) for handle in description.handles_of("output")
    ]

    def allocate(count: int) -> None:
        for _ in range(count):
            for one in fresh:
                one()

    return per_call(allocate)


def _halves(
    launch: Callable[[], object], wait: Callable[[], None], before: Callable[[], None]
) -> tuple[float, float]:
    """Return the median nanoseconds of submitting one launch and of waiting for it."""
    submits, waits = [], []
    for _ in range(CALLS):
        before()
        wait()
        start = perf_counter_ns()
        launch()
        submitted = perf_counter_ns()
        wait()
        submits.append(submitted - start)
        waits.append(perf_counter_ns() - submitted)
    return float(statistics.median(submits)), float(statistics.median(waits))


def _kernel(work: DeviceWork, clock: DeviceClock, before: Callable[[], None]) -> float:
    """Return the kernel's time in a call: caches are as the call before left them."""

    def ahead(_place: int) -> None:
        work.launch(1)
        before()

    windows = min(READINGS, clock.capacity(4))
    readings = clock.read(work, windows, ahead)
    ticks = statistics.median(reading.ticks for reading in readings)
    return max(ticks - clock.facts.offset, 0.0)
