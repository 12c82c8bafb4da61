"""Made-up clocks, cases and samples for the tests of measuring."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import psutil
import pytest

from steelyard import Builder, Case, benchmark
from steelyard.declare.handles import Call
from steelyard.declare.plan import Settings
from steelyard.prepare.buffers import Buffers
from steelyard.process import wire

QUICK = Settings(precision=0.5, budget=0.01)
"""Settled at the first look, or given up soon after."""


@dataclass
class FakeClock:
    """Nanoseconds that pass only when told to, or by so many at each reading."""

    time: int = 0
    step: int = 0

    def __call__(self) -> int:
        """Read the clock."""
        self.time += self.step
        return self.time


def case_of(body: Callable[..., Any]) -> Case:
    """Return the one case of a benchmark without axes."""
    return benchmark(body).cases()[0]


def negate(b: Builder) -> Call:
    """Negate an array with NumPy."""
    x = b.input(1000)
    y = b.output(1000)
    b.check(np.negative, x)
    return b.launch(np.negative, x, out=y)


def launching(
    target: Callable[..., Any], reference: Callable[..., Any] | None = None
) -> Callable[[Builder], Call]:
    """Return a benchmark's function that launches a target on ten numbers."""

    def body(b: Builder) -> Call:
        x = b.input(10)
        y = b.output(10)
        if reference is not None:
            b.check(reference, x)
        return b.launch(target, x, out=y)

    return body


def prepared(body: Callable[..., Any], seed: int = 0, **files: str) -> tuple[Any, ...]:
    """Return description and buffers of the one case of a benchmark."""
    description = case_of(body).describe()
    return description, Buffers(description.handles, seed, files)


def latencies(seed: int, count: int, *, tail: float = 0.1) -> list[float]:
    """Draw times like a kernel's: log-normal about 1000 ns, some much slower."""
    draw = random.Random(seed)
    return [
        1000 * draw.lognormvariate(0, 0.02) * (1.5 if draw.random() < tail else 1)
        for _ in range(count)
    ]


def die_when_asked(patch: pytest.MonkeyPatch, requests: Container[int]) -> None:
    """End all workers just before these of all requests are sent to one."""
    send, numbers = wire.Pipe.send, count(1)

    def sent(pipe: wire.Pipe, message: wire.Message) -> None:
        if next(numbers) in requests:
            for keeper in psutil.Process().children():
                for worker in keeper.children():
                    worker.kill()
        send(pipe, message)

    patch.setattr(wire.Pipe, "send", sent)
