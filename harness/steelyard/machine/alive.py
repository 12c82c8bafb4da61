"""Signs of life: between launches a process says that it goes on to whoever waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(slots=True)
class Signs:
    """Report a step, unless another was reported less than ``seconds`` before."""

    tell: Callable[[], None] = lambda: None
    seconds: float = math.inf
    _last: float = 0.0

    def step(self) -> None:
        """Begin another step, such as a launch: the one before has ended."""
        now = monotonic()
        if now - self._last > self.seconds:
            self._last = now
            self.tell()


SIGNS = Signs()
"""This process's: nobody waits, unless it says so."""
