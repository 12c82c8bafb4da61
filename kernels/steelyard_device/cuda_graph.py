"""Many launches as one: a CUDA graph, made once and updated in place."""

from __future__ import annotations

import weakref
from typing import Any

from steelyard_device import cuda_driver
from steelyard_device.cuda_device import Context
from steelyard_device.cuda_driver import call
from steelyard_device.cuda_launch import Launch, Rotation


class Graph:
    """``count`` launches of a launch, or of several in turn, submitted by one call.

    Each node waits for the one before it. Arguments are those that the launches had
    when the graph was made or last updated.
    """

    def __init__(self, launches: Launch | Rotation, count: int) -> None:
        self.launches = launches
        self.count = count
        self._asked = f"making a graph of {count} launches"
        self.context, self.stream = launches.context, launches.stream
        with cuda_driver.current(self.context.handle):
            graph = self._captured()
            try:
                handle = int(call(self._asked, "cuGraphInstantiate", graph, 0))
            finally:
                call(self._asked, "cuGraphDestroy", graph)
            self._handle = handle
            release = weakref.finalize(self, _destroy, self.context, handle)
            release.atexit = False  # the driver may be gone by then
            call(self._asked, "cuGraphUpload", handle, self.stream)

    def update(self) -> None:
        """Take the launches' arguments of now, and a rotation's next turns.

        Raises:
            CUDAError: the graph is running on another stream, or lost.
        """
        asked = f"updating a graph of {self.count} launches"
        with cuda_driver.current(self.context.handle):
            graph = self._captured()
            try:
                call(asked, "cuGraphExecUpdate", self._handle, graph)
            finally:
                call(asked, "cuGraphDestroy", graph)

    def launch(self, count: int = 1) -> None:
        """Submit all launches of the graph, ``count`` times."""
        asked = f"launching a graph of {self.count} launches"
        with cuda_driver.current(self.context.handle):
            for _ in range(count):
                call(asked, "cuGraphLaunch", self._handle, self.stream)

    def wait(self) -> None:
        """Return when everything on the stream is done."""
        self.context.wait(self.stream)

    def _captured(self) -> Any:
        """Record the launches, which native code issues, instead of running them."""
        mode = cuda_driver.attribute(
            "CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
        )
        call(self._asked, "cuStreamBeginCapture", self.stream, mode)
        try:
            self.launches.launch(self.count)
        finally:  # a stream left capturing would take nothing else
            graph = call(self._asked, "cuStreamEndCapture", self.stream)
        return graph


def _destroy(context: Context, handle: int) -> None:
    with cuda_driver.current(context.handle):
        cuda_driver.bindings().cuGraphExecDestroy(handle)
