"""A trial: all samples of a case in one mode in one block, and the facts beside them.

Its run says what was asked for, on which machine, by which process, and how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, TypedDict

METHOD_VERSION = 5
"""Raised whenever the way of measuring changes; trials of two methods never compare.

1. The CPU, as it was first measured.
2. GPUs: windows in queues, clocks with an offset; the estimate of a quantised clock is
   another one.
3. The CPU's buffers of 2 MiB or more lie in huge pages.
4. What the C library does with freed memory is fixed in processes that measure.
5. Callables are called with arguments by name as their user would: 0.2 us less.
"""

QUANTITIES: Final = ("kernel", "per_launch", "latency", "build")
"""What modes measure, in the order of rows."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The windows of one trial in the order they were taken; one entry each.

    Raw and integer, so that nothing has to be run again for a better formula.
    """

    ticks: tuple[int, ...]
    """Clock ticks (nanoseconds) between the two reads of the clock."""
    starts: tuple[int, ...]
    """The first read, relative to that of the first window."""
    launches: tuple[int, ...]
    """Launches (or calls, or builds) within the window."""
    cpu: tuple[int, ...]
    """Nanoseconds of processor time of the whole process around the window."""
    preemptions: tuple[int, ...]
    """Involuntary context switches of the process around the window."""
    mhz: tuple[int, ...] = ()
    """Of a GPU's multiprocessors over the window and what led to it, 0 where it was
    missed; empty where nobody reads it."""

    def __len__(self) -> int:
        return len(self.ticks)

    def per_launch(self) -> tuple[float, ...]:
        """Return each window's nanoseconds per launch."""
        return tuple(t / n for t, n in zip(self.ticks, self.launches, strict=True))


class Traits(TypedDict):
    """What is true of a clock wherever it reads: see `ClockFacts`."""

    pulsed: NotRequired[bool]
    gapped: NotRequired[bool]
    above: NotRequired[str]
    differs: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """Which clock read the windows and what it reads around nothing."""

    id: str
    version: int
    quantum: float
    """The tick: what all steps between readings are multiples of, in nanoseconds."""
    floor: tuple[int, ...]
    """Raw readings around an empty window, in nanoseconds."""
    offset: float = 0.0
    """Nanoseconds that every window reads beside its launches, known beforehand: the
    estimate is without them, the samples are as they were read."""
    uncertainty: float = 0.0
    """Nanoseconds of a window by which the offset may be wrong, to either side."""
    drift: float = 0.0
    """Share of any time by which the clock itself may be wrong."""
    pulsed: bool = False
    """Whether it reads kernels on a GPU, whose speed pulses: an H200 is 3 % slower for
    about half of every 100 us. Kernels of 10 to 200 us lie in two heaps, and a median
    between two heaps jumps from one to the other (2 % from process to process, for a copy
    of 100 MiB); the mean within `stats.FENCES` does not (0.7 %)."""
    gapped: bool = False
    """Whether it reads a launch from its first kernel to its last, gaps included."""
    above: str = ""
    """Why it may read more than another clock does."""
    differs: str = ""
    """Why it may read less or more than another clock does."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One stored row."""

    case: str
    axes: Mapping[str, Any]
    mode: str
    block: int
    position: int
    """Place in the plan."""
    worker: int
    """Process id of the worker that measured it."""
    samples: Samples
    clock: ClockFacts
    floors: Mapping[str, float]
    """Medians in nanoseconds: ``empty``, ``null`` (a null launch), ``call`` (an empty
    Python function), as far as the work has them."""
    ledger: Mapping[str, float]
    """Of a latency or a first build: nanoseconds of each part; otherwise empty."""
    facts: Mapping[str, Any]
    """What the work says of itself: bytes, operations, items, code_hash, schedule..."""
    hashes: Mapping[str, str]
    """Of benchmark source, input recipe and method; and the file and line."""
    doubts: tuple[str, ...] = ()
    error: str | None = None
    """One sentence if the case failed here; then the samples are those before it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Garbage collector time, allocations on request, flush size, wall seconds; of another
    tool's trial without samples the estimate that it ``stated``, in nanoseconds."""

    @property
    def usable(self) -> bool:
        """Whether it has samples, and all that it was to have."""
        return self.error is None and len(self.samples) > 0


UNKNOWN: Final = "unknown"
"""What a machine does not say."""

STATES: Final = ("running", "finished", "budget", "interrupted", "failed")
"""As stored; ``budget`` is a run that ended because its budget did, and a ``running`` run whose process is gone reads `KILLED`."""

KILLED: Final = "killed"


@dataclass(frozen=True, slots=True)
class Run:
    """One stored run; its trials are kept beside it."""

    uid: str
    started: str
    """ISO 8601 in UTC with microseconds, so that text order is time order."""
    command: str
    version: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    commit: str = UNKNOWN
    dirty: bool | None = None
    """Whether tracked files differed from the commit; None where unknown."""
    writer: Mapping[str, Any] = field(default_factory=dict)
    state: str = "running"
    finished: str | None = None

    @property
    def short(self) -> str:
        """The id as people type it."""
        return self.uid[:8]

    @property
    def partial(self) -> bool:
        """Whether some of its turns may be missing."""
        return self.state != "finished"

    @property
    def peaks(self) -> Mapping[str, Any]:
        """What its GPU was measured to do at most; empty where that is not known."""
        found: Mapping[str, Any] = self.machine.get("gpu", {}).get("peaks", {})
        return found
