"""Work of known length shows whether the scale is straight, on the CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call
from steelyard.prepare.work import BoundOnCall
from steelyard_device import cpu, cuda


class Delay(BoundOnCall):
    """A native kernel of ``steps`` multiply-adds, each waiting for the one before."""

    def bind(self, result: NDArray[np.float32], *, steps: int) -> cpu.Launch:
        """Pack the launch."""
        return cpu.delay(steps, result)


class Nothing(BoundOnCall):
    """A native kernel that returns at once, on one thread or all."""

    def bind(self, _unused: NDArray[np.float32], *, threads: int) -> cpu.Launch:
        """Pack the launch."""
        return cpu.null(threads)


def _steps64(result: Any, steps: int) -> Any:
    # x[k+1] = a x[k] + b from 1, in closed form; the kernel rounds each step to float32.
    a, b = 1 - 2.0**-9, 2.0**-10
    fixed = b / (1 - a)
    return np.full_like(result, fixed + (1 - fixed) * a**steps)


@benchmark(steps=[1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000])
def delay(b: Builder, steps: int) -> Call:
    """N dependent steps: time must grow by the same amount with each."""
    result = b.inout(1, "float32", dist="uniform")
    b.check(lambda result: _steps64(result, steps), result, rtol=1e-4)
    b.count(bytes=0, operations=2 * steps, items=steps)
    b.mode("kernel/warm/dependent")
    return b.launch(Delay(), result, steps=steps)


@benchmark(threads=sorted({1, cpu.pool_size()}))
def nothing(b: Builder, threads: int) -> Call:
    """Launch nothing: what is left is the hand-over."""
    unused = b.input(1)
    b.count(bytes=0, operations=0)
    b.mode("kernel/warm", "kernel/warm/dependent", "per_launch/warm")
    return b.launch(Nothing(), unused, threads=threads)


class DeviceDelay:
    """Dependent multiply-adds by one thread of a GPU, which counts its own cycles."""

    def __init__(self, delay: cuda.Delay, context: cuda.Context) -> None:
        self._delay = delay
        self.context, self.stream = context, context.stream
        self.launch, self.wait = delay.launch, delay.wait

    def ready(self) -> None:
        """Nothing sleeps."""

    def facts(self) -> dict[str, Any]:
        """Return what the last launch says of itself; it waits for it."""
        cycles, nanoseconds = self._delay.cycles(), self._delay.nanoseconds()
        return {"steps": self._delay.steps, "cycles": cycles, "own_ns": nanoseconds}


class OnGpu(BoundOnCall):
    """A probe of the device layer, for `Builder.launch`: ``steps`` or nothing."""

    def bind(self, unused: Any, *, steps: int) -> DeviceDelay | cuda.Launch:
        """Make the launch."""
        context = unused.context
        if not steps:
            return cuda.null(context)
        return DeviceDelay(cuda.Delay(context, steps), context)


@benchmark(steps=[1 << n for n in range(10, 21, 2)])
def gpu_delay(b: Builder, steps: int) -> Call:
    """N dependent steps on a GPU; fact ``cycles`` is what clock64 counted of them."""
    b.on("cuda")
    unused = b.input(1)
    b.count(bytes=0, operations=2 * steps, items=steps)
    b.mode("kernel/warm")
    return b.launch(OnGpu(), unused, steps=steps)


@benchmark
def gpu_nothing(b: Builder) -> Call:
    """Launch nothing on a GPU: the hand-over, and what clocks read of it."""
    b.on("cuda")
    unused = b.input(1)
    b.count(bytes=0, operations=0)
    b.mode("kernel/warm", "kernel/cold", "latency/warm")
    b.mode("per_launch/warm/1000", "per_launch/warm/graph/1000")
    return b.launch(OnGpu(), unused, steps=0)
