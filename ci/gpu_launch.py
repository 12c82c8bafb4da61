"""What a launch from Python costs on this machine's GPU, as JSON.

``python ci/gpu_launch.py`` prints microseconds: a call of Python that launches once,
against the same launches from a native loop over cuLaunchKernel, each with the last
synchronise; and the host's time a node of submitting a graph. The campaign calls
`measure`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter_ns

from steelyard_device import cuda

CALLS = 10_000
ROUNDS = 11
NODES = (20, 100, 1000)
SUBMITTED = 200
"""Nodes at least that are handed over to an idle GPU, by as many calls as that takes: of
one call alone, reading the clock would be a part."""


def measure(context: cuda.Context) -> dict[str, object]:
    """Return medians over `ROUNDS`, in which both kinds of launches take turns."""
    null = cuda.null(context)

    def called() -> None:
        launch = null.launch
        for _ in range(CALLS):
            launch(1)
        null.wait()

    def looped() -> None:
        null.launch(CALLS)
        null.wait()

    pairs = [(_seconds(called), _seconds(looped)) for _ in range(ROUNDS + 1)][1:]
    python, native = (
        statistics.median(each) * 1e6 / CALLS for each in zip(*pairs, strict=True)
    )
    return {
        "calls": CALLS,
        "python_us": round(python, 4),
        "native_us": round(native, 4),
        "ratio": round(statistics.median(a / b for a, b in pairs), 4),
        "graph_us_per_node": {
            nodes: round(_submitting(null, nodes), 5) for nodes in NODES
        },
        "gpu": context.device.name,
    }


def _submitting(null: cuda.Launch, nodes: int) -> float:
    """Return the host's microseconds a node of handing a graph over to an idle GPU."""
    graph, runs = cuda.Graph(null, nodes), max(1, SUBMITTED // nodes)

    def submitted() -> None:
        for _ in range(runs):
            graph.launch()

    times = []
    for _ in range(100):
        graph.wait()
        times.append(_seconds(submitted))
    return statistics.median(times) * 1e6 / (runs * nodes)


def _seconds(work: Callable[[], None]) -> float:
    start = perf_counter_ns()
    work()
    return (perf_counter_ns() - start) / 1e9


def main() -> None:
    """Print one object."""
    sys.stdout.write(json.dumps(measure(cuda.context()), indent=2) + "\n")


if __name__ == "__main__":
    main()
