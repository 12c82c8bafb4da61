"""What GPU clocks other than CUPTI's read beside a kernel, found in this process.

A delay tells its own time from its first instruction to its last. What a clock reads
beyond that is the clock's and the hardware's share; of those only the second is taken
from measurements made once, with CUPTI beside (`LAUNCHES`).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from steelyard.analyse.trial import ClockFacts
from steelyard.clocks import DeviceClock, Expired
from steelyard.machine.ticks import common_tick
from steelyard_device import cuda

LAUNCHES: Final[Mapping[str, float]] = {"H100": 915.0, "H200": 620.0}
"""Nanoseconds of a kernel's time before its first instruction and after its last, by a word
of the GPU's name: CUPTI less the delay's own time, the same at every length from 0.6 us to
2 ms. On an H200 560 to 608 in one process and 656 to 673 in others, on an H100 870 to 954
in six."""

LAUNCH: Final = LAUNCHES["H200"]
"""The same of GPUs on which nobody has looked."""

LAUNCH_UNKNOWN: Final = 60.0
"""By how much `LAUNCHES` may be wrong, to either side."""

FOUND_ON: Final = "H200"
"""In the names of GPUs on which the clocks' own constants were found: on an H100 those of
`globaltimer` and `graph` are 0.1 to 0.2 us off."""

DRIFT = 5e-4
"""Share by which a GPU's timer may go wrong: it differed by 4e-4 from the host's over
138 ms on an H200, the host's waiting included."""

SPIN_SECONDS = 0.25
"""A queue is filled in some 20 ms; what is not within this is thrown away."""

AHEAD = 8
"""Launches and copies that lead to a window, so many are reckoned with."""

PAIRS = 50
"""Event pairs behind an offset: one scatters by 0.3 us, their mean by 0.05."""

STEPS = 256
"""Of the delay that is timed: 0.6 us."""

NODES = 50
"""Of the shorter graph that is timed."""

GRAPHS = 8
"""Graphs in a queue: as many as surely fit."""

SHIFTS = 8
"""How many ways a window lies in what the GPU fetches ahead of itself. Windows of one
length lie alike throughout a process, and a pair round cuBLAS read 0.15 us more than its
like in one process and 0.48 in another; null kernels before each shift the next."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """What was found; nanoseconds."""

    tick: float
    """Of an event."""
    empty: tuple[int, ...]
    """Event pairs round nothing."""
    kernel: float
    """What CUPTI would say the delay takes that all this was found with."""
    pair: float
    """What an event pair reads beyond that."""


class OffsetClock(DeviceClock):
    """What clocks share that read more or less than a kernel takes."""

    def __init__(self, context: cuda.Context) -> None:
        self._context = context
        self._origin = cuda.Event(context)
        self._origin.record()

    @functools.cached_property
    def _spin(self) -> cuda.Spin:
        return cuda.Spin(self._context, seconds=SPIN_SECONDS)

    def _facts(self, kind: ClockFacts, own: float) -> ClockFacts:
        """Return facts whose offset's ``own`` part may be wrong by so much."""
        return replace(kind, uncertainty=unknown(self._context, own), drift=DRIFT)


@functools.cache
def measured(context: cuda.Context) -> Offsets:
    """Find it, once a process and GPU (10 ms)."""
    delay = cuda.Delay(context, STEPS)
    inside = []
    for _ in range(PAIRS):
        delay.launch()
        inside.append(float(delay.nanoseconds()))
    kernel = middle(inside) + launch(context)
    empty = _queue(context, delay, lambda: None)
    full = _queue(context, delay, delay.launch)
    return Offsets(
        tick=common_tick([*empty, *full]),
        empty=tuple(map(round, empty)),
        kernel=kernel,
        pair=middle(full) - kernel,
    )


def launch(context: cuda.Context) -> float:
    """Return what a kernel takes on a GPU beside its instructions, in nanoseconds."""
    name = context.device.name
    return next((found for word, found in LAUNCHES.items() if word in name), LAUNCH)


def unknown(context: cuda.Context, own: float) -> float:
    """Return by how much an offset may be wrong whose clock's ``own`` part may be so.

    On a GPU that is no `FOUND_ON` it is wider by `LAUNCH`.
    """
    return own + (LAUNCH_UNKNOWN if FOUND_ON in context.device.name else LAUNCH)


def delays(context: cuda.Context) -> list[cuda.Delay]:
    """Return delays of eight lengths, whose times show a clock's tick."""
    return [cuda.Delay(context, STEPS * length) for length in range(1, 9)]


@functools.cache
def node(context: cuda.Context) -> float:
    """Return what a node of a graph of delays takes beyond the delay's own time."""
    delay = cuda.Delay(context, STEPS)
    times = []
    for nodes in (NODES, 2 * NODES):
        graph = cuda.Graph(delay, nodes)
        graph.launch()  # the first of a process takes 0.15 ms more
        context.wait()
        found = _queue(context, delay, graph.launch, GRAPHS)
        times.append(statistics.median(found))
    return (times[1] - times[0]) / NODES - measured(context).kernel


def _queue(
    context: cuda.Context,
    delay: cuda.Delay,
    work: Callable[[], object],
    count: int = PAIRS,
) -> list[float]:
    """Return event pairs round what ``work`` submits, each behind a delay."""
    spin = cuda.Spin(context, seconds=SPIN_SECONDS)
    pairs = [cuda.EventPair(context) for _ in range(count)]
    null = cuda.null(context)
    with queued(context, spin):
        for place, pair in enumerate(pairs):
            shift(null, place)
            delay.launch()
            pair.before.record()
            work()
            pair.after.record()
    return [pair.nanoseconds() for pair in pairs]


def shift(null: cuda.Launch, place: int) -> None:
    """Submit as many null kernels as make windows lie in all `SHIFTS` ways in turn."""
    for _ in range(5 * place % SHIFTS):
        null.launch()


@contextmanager
def queued(context: cuda.Context, spin: cuda.Spin) -> Iterator[None]:
    """Hold the GPU while a ``with`` submits; then let go and wait for all of it.

    Raises:
        Expired: the spin ended before it was let go.
    """
    with spin.held():
        yield
    context.wait()
    if spin.expired:
        raise Expired(
            f"a queue of windows was not filled within {SPIN_SECONDS} s, so the GPU "
            "waited for the host: submit fewer launches, and wait for none."
        )


def middle(times: list[float]) -> float:
    """Return the mean of times without the lowest and highest tenth."""
    cut = len(times) // 10
    kept = sorted(times)[cut : len(times) - cut]
    return math.fsum(kept) / len(kept)
