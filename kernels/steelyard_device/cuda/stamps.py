"""Marks in a stream at which a multiprocessor writes down its cycles and the time.

Between two of them, cycles over nanoseconds is the frequency that it ran at, as nvbench
finds it: no query of the driver stands between samples.
"""

from __future__ import annotations

import numpy as np

from steelyard_device.cuda import kept
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.launch import Launch
from steelyard_device.cuda.memory import Buffer
from steelyard_device.errors import DeviceError


class Stamps:
    """Places for ``capacity`` stamps on the context's stream."""

    def __init__(self, context: Context, capacity: int) -> None:
        self.capacity = capacity
        self._marks = Buffer(context, (max(capacity, 1), 2), np.int64)
        self._marks.fill(0)
        function = kept.function(context, TEXT, "steelyard_stamp")
        # Of as many blocks as there are multiprocessors, an idle GPU puts one on each.
        blocks = context.device.multiprocessors
        slots = (self._marks.address, 0)
        self._launch = Launch(function, slots, grid=blocks, block=1)

    def stamp(self, place: int) -> None:
        """Submit the stamp of a place; a later one at the same place replaces it."""
        if not 0 <= place < self.capacity:
            raise DeviceError(
                f"there is no place {place} for a stamp, expected 0 to "
                f"{self.capacity - 1}: ask for more places."
            )
        self._launch.set(1, place)
        self._launch.launch()

    def read(self, count: int) -> list[tuple[int, int]]:
        """Return cycles and nanoseconds of the first ``count`` places; waits for them.

        All places are empty after. Both count from moments of their own: only
        differences mean anything. A place never stamped, or whose stamp found
        multiprocessor 0 taken, reads (0, 0).
        """
        marks = self._marks.read()[:count]
        self._marks.fill(0)  # a stamp that is missed later must not read as this one
        return [(cycles, nanoseconds) for cycles, nanoseconds in marks.tolist()]


TEXT = r"""
extern "C" __global__ void steelyard_stamp(longlong2* marks, long long place) {
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  if (multiprocessor) return;
  long long cycles, nanoseconds;
  asm volatile("mov.u64 %0, %%clock64;\n\tmov.u64 %1, %%globaltimer;"
               : "=l"(cycles), "=l"(nanoseconds));
  marks[place] = make_longlong2(cycles, nanoseconds);
}
"""
