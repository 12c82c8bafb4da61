"""Many launches as one: CUDA graphs, made once and updated in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from steelyard_device.cuda import driver, native
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.driver import call
from steelyard_device.cuda.issue import Issued
from steelyard_device.cuda.launch import Launch, Rotation


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


def activities(launches: Launches) -> int:
    """Return how many kernels, copies and fills one launch is; nothing is run.

    Raises:
        CUDAError: it cannot be recorded, as where it waits for the GPU. What the launch
            raises while it is recorded passes through.
    """
    with driver.current(launches.context.handle):
        graph = _captured(launches, 1)
        try:
            return _count(graph)
        finally:
            driver.bindings().cuGraphDestroy(graph)


def _count(graph: Any) -> int:
    """Count the nodes that keep the GPU busy, and those of graphs within."""
    asked = "counting the nodes of a graph"
    types = driver.attribute("CUgraphNodeType")
    busy = {
        types.CU_GRAPH_NODE_TYPE_KERNEL,
        types.CU_GRAPH_NODE_TYPE_MEMCPY,
        types.CU_GRAPH_NODE_TYPE_MEMSET,
    }
    _, number = call(asked, "cuGraphGetNodes", graph, 0)
    nodes, _ = call(asked, "cuGraphGetNodes", graph, number)
    found = 0
    for node in nodes:
        kind = call(asked, "cuGraphNodeGetType", node)
        if kind == types.CU_GRAPH_NODE_TYPE_GRAPH:
            found += _count(call(asked, "cuGraphChildGraphNodeGetGraph", node))
        found += kind in busy
    return found


class Chain(Issued):
    """Different launches one after another as one: a graph on the stream of the first.

    Each waits for the one before it. `take` gives the graph the arguments that one of
    ``launches`` has by now; runs that were submitted before keep what they had. Where the
    stream is recorded into another graph, that gets the launches.
    """

    __slots__ = ("__weakref__", "_apart", "_handle", "_nodes", "launches")

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        context, stream = launches[0].context, launches[0].stream
        shown = f"a graph of {len(launches)} kernels"
        asked = f"making {shown}"
        with driver.current(context.handle):
            graph = call(asked, "cuGraphCreate", 0)
            driver.owned(self, context.handle, "cuGraphDestroy", graph)
            self._nodes: list[tuple[Any, Any]] = []
            for each in launches:
                before = [node for node, _ in self._nodes[-1:]]
                kernel = _node_of(each.entries[0])
                node = call(
                    asked, "cuGraphAddKernelNode", graph, before, len(before), kernel
                )
                self._nodes.append((node, kernel))
            made = call(asked, "cuGraphInstantiate", graph, 0)
            self._handle = int(made)
            driver.owned(self, context.handle, "cuGraphExecDestroy", self._handle)
            call(asked, "cuGraphUpload", self._handle, stream)
        super().__init__(context, shown, stream, self._handle, kind="cuda_graph")
        self._apart = Rotation(launches)
        whole, apart, kernels = self.submit, self._apart.submit, len(launches)

        def submit(count: int) -> int:
            code = whole(count)
            return apart(count * kernels) if code == native.CAPTURING else code

        self.submit = submit

    def take(self, number: int) -> None:
        """Give later runs the arguments that a launch has now."""
        asked = f"updating {self._shown}"
        with driver.current(self.context.handle):
            set_ = "cuGraphExecKernelNodeSetParams"
            call(asked, set_, self._handle, *self._nodes[number])


def _node_of(entry: native.Entry) -> Any:
    """Return what the driver calls a kernel with its arguments, which stay where they are."""
    made = driver.bindings().CUDA_KERNEL_NODE_PARAMS()
    made.func = driver.attribute("CUfunction")(entry.function)
    made.gridDimX, made.gridDimY, made.gridDimZ = entry.grid
    made.blockDimX, made.blockDimY, made.blockDimZ = entry.block
    made.sharedMemBytes, made.kernelParams = entry.shared, entry.parameters
    return made


class Graph(Issued):
    """``nodes`` launches of a launch, or of several in turn, submitted as one.

    Each node waits for the one before it. Arguments are those that the launches had
    when the graph was made or last updated. What a launch raises while it is recorded
    passes through. It runs on ``stream``, by default that of the launches.
    """

    __slots__ = ("__weakref__", "_handle", "launches", "nodes")

    def __init__(
        self, launches: Launches, nodes: int, stream: int | None = None
    ) -> None:
        self.launches, self.nodes = launches, nodes
        context = launches.context
        stream = launches.stream if stream is None else stream
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
