"""Many launches as one: a CUDA graph, made once and updated in place."""

from __future__ import annotations

from typing import Any, Protocol

from steelyard_device.cuda import driver
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import call
from steelyard_device.cuda.issue import Issued


class Launches(Protocol):
    """Anything whose launches go to one stream: a launch, a rotation, others' work."""

    @property
    def context(self) -> Context:
        """The GPU they run on."""
        ...

    @property
    def stream(self) -> int:
        """Handle of their stream."""
        ...

    def launch(self, count: int = 1) -> None:
        """Submit ``count`` launches."""
        ...


class Graph(Issued):
    """``nodes`` launches of a launch, or of several in turn, submitted as one.

    Each node waits for the one before it. Arguments are those that the launches had
    when the graph was made or last updated. What a launch raises while it is recorded
    passes through.
    """

    __slots__ = ("__weakref__", "_handle", "launches", "nodes")

    def __init__(self, launches: Launches, nodes: int) -> None:
        self.launches, self.nodes = launches, nodes
        context, stream = launches.context, launches.stream
        shown = f"a graph of {nodes} launches"
        with driver.current(context.handle):
            graph = _captured(launches, nodes)
            try:
                made = call(f"making {shown}", "cuGraphInstantiate", graph, 0)
            finally:
                driver.bindings().cuGraphDestroy(graph)
            self._handle = int(made)
            driver.owned(self, context.handle, "cuGraphExecDestroy", self._handle)
            call(f"making {shown}", "cuGraphUpload", self._handle, stream)
        super().__init__(context, shown, stream, self._handle, kind="cuda_graph")

    def update(self) -> None:
        """Take the launches' arguments of now, and a rotation's next turns.

        Runs of the graph that were submitted before keep what they had.
        """
        asked = f"updating a graph of {self.nodes} launches"
        with driver.current(self.context.handle):
            graph = _captured(self.launches, self.nodes)
            try:
                call(asked, "cuGraphExecUpdate", self._handle, graph)
            finally:
                driver.bindings().cuGraphDestroy(graph)


def _captured(launches: Launches, nodes: int) -> Any:
    """Record launches, which native code issues, instead of running them."""
    asked = f"recording {nodes} launches"
    mode = driver.attribute("CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
    call(asked, "cuStreamBeginCapture", launches.stream, mode)
    try:
        launches.launch(nodes)
    except BaseException:  # a stream left recording would take nothing else
        _, graph = driver.bindings().cuStreamEndCapture(launches.stream)
        driver.bindings().cuGraphDestroy(graph)
        raise
    return call(asked, "cuStreamEndCapture", launches.stream)
