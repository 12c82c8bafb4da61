"""Append a delay of known length to every launch, for the self-test to detect.

A file of JSON that the variable `FILE` names has the multiply-adds, each waiting for the
one before, that stand behind every launch of a case. Work with none behind it is launched
in the same way, so that two sides differ in nothing but their number.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from steelyard.measure.prepared import PreparedCase
from steelyard.prepare.work import DeviceWork, NativeWork, Work
from steelyard_device import cpu, cuda

FILE: Final = "STEELYARD_INJECTED"

LENGTH: Final = 10_000
"""Multiply-adds by which the time of one is measured: tens of microseconds."""

WINDOWS: Final = 101

HASH: Final = "code_hash"
"""The fact that tells code apart; work with more behind it has another, unknown one."""


@runtime_checkable
class Extensible(Work, Protocol):
    """Native work that another launch can follow without Python between them."""

    def then(self, other: cpu.Launch) -> NativeWork:
        """Return a launch of both."""
        ...


class Delay:
    """Multiply-adds on the CPU, with the memory that their result goes to."""

    def __init__(self, steps: int) -> None:
        self._result = np.zeros(1, np.float32)
        self.native = cpu.delay(steps, self._result)

    def launch(self, count: int = 1) -> None:
        """Run them, ``count`` times."""
        self.native.launch(count)


class DelayedWork:
    """Work of which each launch has another behind it."""

    def __init__(self, bound: Work, steps: int) -> None:
        self.work, self._steps = bound, steps
        self.wait, self.ready = bound.wait, bound.ready

    def facts(self) -> Mapping[str, Any]:
        """Say what the work says, but for the hash of its code, and what was delayed."""
        known = {n: fact for n, fact in self.work.facts().items() if n != HASH}
        return known | {"injected": self._steps}


class DelayedNative(DelayedWork):
    """Both as one native launch."""

    def __init__(self, bound: Extensible, steps: int) -> None:
        super().__init__(bound, steps)
        self._behind = Delay(steps)
        both = bound.then(self._behind.native)
        self.launch, self.window, self.null = both.launch, both.window, both.null


class DelayedCall(DelayedWork):
    """Both in turn, from Python."""

    def __init__(self, bound: Work, behind: Delay | cuda.Delay, steps: int) -> None:
        super().__init__(bound, steps)
        self._behind = behind

    def launch(self, count: int = 1) -> None:
        """Submit both, ``count`` times."""
        first, second = self.work.launch, self._behind.launch
        for _ in repeat(None, count):
            first(1)
            second(1)


class DelayedDevice(DelayedCall):
    """Both on the stream of a GPU."""

    def __init__(
        self, bound: DeviceWork, behind: Delay | cuda.Delay, steps: int
    ) -> None:
        super().__init__(bound, behind, steps)
        self.context, self.stream = bound.context, bound.stream


def inject_delay(prepared: PreparedCase) -> None:
    """Put the work that is asked for behind a case's own, if any is."""
    steps = asked(prepared.case.id)
    if steps is not None and prepared.launched:
        prepared.work = delayed(prepared.work, steps)


def asked(case: str) -> int | None:
    """Return how many multiply-adds are to stand behind a case's launches, if any."""
    return _asked(os.environ.get(FILE, "")).get(case)


def bare(bound: Work) -> Work:
    """Return work without what was delayed behind it."""
    return bound.work if isinstance(bound, DelayedWork) else bound


def delayed(bound: Work, steps: int) -> Work:
    """Return work with so many multiply-adds behind each launch."""
    if isinstance(bound, DeviceWork):
        delay = cuda.Delay(bound.context, steps, bound.stream)
        return DelayedDevice(bound, delay, steps)
    if isinstance(bound, Extensible):
        return DelayedNative(bound, steps)
    return DelayedCall(bound, Delay(steps), steps)


@functools.cache
def _asked(path: str) -> Mapping[str, int]:
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}


def step_ns() -> float:
    """Return the nanoseconds of one multiply-add of the CPU's."""
    delay = Delay(LENGTH)
    with cpu.pinned():
        windows = [delay.native.window(1) for _ in range(WINDOWS)]
    return statistics.median(stop - start for start, stop in windows) / LENGTH


def device_step_ns(index: int) -> float:
    """Return the nanoseconds of one multiply-add of a GPU's, by its own timer."""
    delay = cuda.Delay(cuda.context(index), LENGTH)
    times = []
    for _ in range(WINDOWS):
        delay.launch(1)
        times.append(delay.nanoseconds())
    return statistics.median(times) / delay.steps
