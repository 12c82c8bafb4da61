"""Measure what a GPU does at most, once for each GPU and driver.

Run as ``python -m steelyard.measure.gpu_peaks GPU``, which prints the table of `peaks`: a
process of its own, so that the run's has no context, and a fault there is not the run's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse import peaks, stats
from steelyard.clocks import in_queues
from steelyard.errors import SteelyardError
from steelyard.machine import children

if TYPE_CHECKING:
    from steelyard.clocks import DeviceClock
    from steelyard_device import cuda
    from steelyard_device.cuda.peaks import Copies

SMALLEST: Final = 1 << 10
LARGEST: Final = 1 << 30
"""Bytes read and written by a copy: from a launch's own time to all of memory's rate."""

CHOOSING: Final = 11
"""Windows by which the fastest of the copies of one size is found."""

WINDOWS: Final = 60
"""Windows of the fastest, read anew: the best of many readings is too good."""

RATES: Final = 15
"""Windows of half a millisecond of one operation."""

PATIENCE: Final = 120
"""Seconds; it takes about seven, and longer where kernels are compiled first."""


def measure(context: cuda.Context, clock: DeviceClock) -> dict[str, Any]:
    """Return the table of `peaks` of a GPU."""
    from steelyard_device import cuda
    from steelyard_device.cuda import peaks as kernels

    flush = cuda.Flush(context)
    copies = kernels.Copies(context, LARGEST)
    found: dict[str, dict[str, float]] = {"warm": {}, "cold": {}}
    size = SMALLEST
    while size <= LARGEST:
        found["warm"][str(size)] = _fastest(clock, copies, size, None)
        found["cold"][str(size)] = _fastest(clock, copies, size, flush)
        size *= 2
    rates: dict[str, dict[str, float]] = {}
    for rate in kernels.rates(context):
        nanoseconds = read(clock, rate.launch, RATES, None)
        rates.setdefault(rate.dtype, {})[rate.units] = (
            rate.operations / nanoseconds * 1e9
        )
    return {
        "method": peaks.METHOD,
        "gpu": context.device.name,
        "clock": clock.facts.id,
        "uncertainty": clock.facts.uncertainty,
        "drift": clock.facts.drift,
        "copy": found,
        "rates": rates,
    }


def _fastest(
    clock: DeviceClock, copies: Copies, size: int, flush: Callable[[], None] | None
) -> float:
    """Return the nanoseconds of the best shape of a copy."""
    best = min(
        copies.launches(size), key=lambda copy: read(clock, copy, CHOOSING, flush)
    )
    return read(clock, best, WINDOWS, flush)


def read(
    clock: DeviceClock,
    work: cuda.Launch,
    windows: int,
    flush: Callable[[], None] | None,
) -> float:
    """Return the nanoseconds of one launch: cold behind a flush, else warm."""

    def ahead(_window: int) -> None:
        if flush is None:
            work.launch(1)
        else:
            flush()

    ticks = [r.ticks for r in in_queues(clock, work, windows, ahead)]
    found = stats.summarise(ticks, 1, clock.facts.quantum).estimate
    return found.value - clock.facts_in("warm" if flush is None else "cold").offset


def in_its_process(index: int) -> dict[str, Any]:
    """Measure a GPU's peaks in a process of their own, and keep them.

    Raises:
        SteelyardError: that process failed, in its own words.
    """
    command = [sys.executable, "-m", "steelyard.measure.gpu_peaks", str(index)]
    try:
        done = children.run(command, PATIENCE)
    except subprocess.TimeoutExpired:
        raise SteelyardError(
            f"the peaks of GPU {index} were not measured within {PATIENCE} s; see with "
            "nvidia-smi who else uses it, or give --peaks off."
        ) from None
    if done.code:
        said = done.reason() or "nothing was said"
        raise SteelyardError(
            f"the peaks of GPU {index} could not be measured ({said}); the run goes on "
            "with --peaks off."
        )
    found: dict[str, Any] = json.loads(done.output)
    return found


def main() -> None:
    """Measure one GPU, keep its table and print it."""
    from steelyard.clocks import gpu as clocks
    from steelyard.machine import gpu_choice as gpu
    from steelyard_device import cuda

    context = cuda.context(int(sys.argv[1]))
    table = measure(context, clocks.clocks(context, "auto")[0])
    gpu.keep(gpu.peaks_files(context.device.uuid)[table["clock"]], table)
    sys.stdout.write(json.dumps(table))


if __name__ == "__main__":
    main()
