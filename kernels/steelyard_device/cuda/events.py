"""Marks in a stream that the GPU stamps with its time when it comes to them."""

from __future__ import annotations

from steelyard_device.cuda import driver
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import call


class Event:
    """A mark that can be recorded again and again."""

    __slots__ = ("__weakref__", "_handle", "context")

    def __init__(self, context: Context) -> None:
        self.context = context
        with driver.current(context.handle):
            self._handle = int(call("making an event", "cuEventCreate", 0))
        driver.owned(self, context.handle, "cuEventDestroy", self._handle)

    def record(self, stream: int | None = None) -> None:
        """Put the mark behind everything on a stream, the context's own by default."""
        handle = self.context.stream if stream is None else stream
        with driver.current(self.context.handle):
            call("recording an event", "cuEventRecord", self._handle, handle)

    def hold(self, stream: int) -> None:
        """Have what is submitted to a stream from now on wait for the mark."""
        with driver.current(self.context.handle):
            call("ordering two streams", "cuStreamWaitEvent", stream, self._handle, 0)

    def wait(self) -> None:
        """Return when the GPU has passed the mark."""
        with driver.current(self.context.handle):
            call("waiting for an event", "cuEventSynchronize", self._handle)

    def passed(self) -> bool:
        """Whether the GPU has passed the mark."""
        names = driver.bindings()
        with driver.current(self.context.handle):
            (status,) = names.cuEventQuery(self._handle)
        if int(status) not in {0, names.CUresult.CUDA_ERROR_NOT_READY}:
            raise driver.failure("asking for an event", int(status))
        return not int(status)

    def since(self, before: Event) -> float:
        """Return the nanoseconds from ``before`` to this mark, both passed."""
        asked = "reading the time between two events"
        with driver.current(self.context.handle):
            milliseconds: float = call(
                asked, "cuEventElapsedTime", before._handle, self._handle
            )
        return milliseconds * 1e6


class EventPair:
    """Two marks round what is measured, and the time between them."""

    __slots__ = ("after", "before")

    def __init__(self, context: Context) -> None:
        self.before, self.after = Event(context), Event(context)

    def nanoseconds(self) -> float:
        """Return the nanoseconds between the two, both passed."""
        return self.after.since(self.before)
