"""Marks for a profiler outside this process: which launches it is to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from steelyard_device.cuda import driver
from steelyard_device.cuda.device import Context


@contextmanager
def marked(context: Context) -> Iterator[None]:
    """Have a profiler started with ``--profile-from-start off`` look within a ``with``.

    Without a profiler it does nothing.
    """
    with driver.current(context.handle):
        driver.call("starting the profiler", "cuProfilerStart")
        try:
            yield
        finally:
            driver.bindings().cuProfilerStop()  # unchecked: it would hide a fault
