"""What a recorded launch is made of, by a fake driver; no GPU is needed."""

from enum import IntEnum
from types import SimpleNamespace

import pytest

from steelyard_device.cuda import driver, graph


class Kind(IntEnum):
    """Kinds of nodes, as the driver's names begin with CU_GRAPH_NODE_TYPE_."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    GRAPH = 4
    EMPTY = 5


@pytest.fixture
def fake(monkeypatch):
    """Install a driver that records what is launched while a stream is captured.

    A graph is a list of kinds, and of graphs within.
    """
    fake = SimpleNamespace(recorded=None, destroyed=[])

    def begin(stream, mode):
        fake.recorded = []
        return (0,)

    def end(stream):
        found, fake.recorded = fake.recorded, None
        return 0, found

    kinds = {f"CU_GRAPH_NODE_TYPE_{kind.name}": kind for kind in Kind}
    functions = {
        "CUgraphNodeType": SimpleNamespace(**kinds),
        "CUstreamCaptureMode": SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
        "cuCtxGetCurrent": lambda: (0, 0xC0),
        "cuStreamBeginCapture": begin,
        "cuStreamEndCapture": end,
        "cuGraphGetNodes": lambda nodes, n: (0, nodes[:n], n or len(nodes)),
        "cuGraphNodeGetType": lambda node: (
            0,
            Kind.GRAPH if isinstance(node, list) else node,
        ),
        "cuGraphChildGraphNodeGetGraph": lambda node: (0, node),
        "cuGraphDestroy": lambda nodes: (fake.destroyed.append(nodes),),
    }
    vars(fake).update(functions)
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    return fake


def work(launch):
    """Return work that does this in each launch."""
    return SimpleNamespace(
        context=SimpleNamespace(handle=0xC0), stream=7, launch=lambda _: launch()
    )


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ([], 0),
        ([Kind.KERNEL], 1),
        ([Kind.KERNEL, Kind.EMPTY, Kind.HOST], 1),
        ([Kind.MEMSET, Kind.KERNEL, Kind.MEMCPY], 3),
        ([Kind.KERNEL, [Kind.KERNEL, [Kind.KERNEL], Kind.EMPTY]], 3),
    ],
)
def test_all_that_keeps_the_gpu_busy_is_counted(fake, nodes, count):
    """Graphs within a launch have theirs; the record is given back."""
    assert graph.activities(work(lambda: fake.recorded.extend(nodes))) == count
    assert len(fake.destroyed) == 1


def test_what_a_launch_raises_while_it_is_recorded_passes(fake):
    """And the stream records no longer."""
    with pytest.raises(ZeroDivisionError):
        graph.activities(work(lambda: 1 / 0))
    assert fake.recorded is None
    assert len(fake.destroyed) == 1
