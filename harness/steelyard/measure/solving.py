"""Launch a case on problems that another process posed: each once, on new data.

The launch is the one that the mode times. Outputs hold what the launch before left, so
that work which leaves them as they are, or writes only part, is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.declare.mode import Mode
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import placed
from steelyard.measure.prepared import PreparedCase
from steelyard.measure.regions import window_of
from steelyard.prepare import work
from steelyard.prepare.problems import Area, solve


class Solver:
    """A prepared case in one mode with the problems that it is to solve."""

    def __init__(
        self, prepared: PreparedCase, mode: Mode, scale: Instruments, area: Area
    ) -> None:
        self._prepared, self._area = prepared, area
        self._new: dict[str, Any] = {}
        self._launch = self._launcher(mode, scale)

    def _launcher(self, mode: Mode, scale: Instruments) -> Callable[[], Any]:
        prepared = self._prepared
        if mode.flavour == "allocated":
            described, buffers = prepared.description, prepared.buffers
            one = work.allocating(described, buffers, self._new)
        elif mode.quantity == "kernel" and isinstance(prepared.work, work.DeviceWork):
            one = prepared.work.launch
        else:
            clock = scale.clock(prepared.work, mode)
            window, _ = window_of(prepared, mode, clock)
            return lambda: window(1)

        def launch() -> None:
            one()
            prepared.work.wait()

        return launch

    def solve(self, first: int, last: int) -> None:
        """Launch on each problem of a range, and keep what was left."""
        buffers = self._prepared.buffers
        with placed(self._prepared):
            solve(
                range(first, last), self._area, buffers.write, self._launch, self._left
            )

    def _left(self, name: str) -> Any:
        new = self._new.get(name)
        return self._prepared.buffers.read(name) if new is None else _host(new)

    def end(self) -> None:
        """Give the case its own data again."""
        self._prepared.buffers.draw(self._prepared.buffers.seed)
        self._prepared.buffers.restore()
        self._prepared.buffers.poison()


def _host(array: Any) -> NDArray[Any]:
    """Return an array of any library as one of NumPy."""
    for name in ("read", "get", "cpu", "copy_to_host"):
        if not isinstance(array, np.ndarray) and hasattr(array, name):
            return np.asarray(getattr(array, name)())
    return np.asarray(array)
