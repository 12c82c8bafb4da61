"""What a launch from Python costs on this machine's GPU, as JSON.

``python ci/gpu_launch.py`` prints microseconds: a call of Python that launches once,
against the same launches from a native loop over cuLaunchKernel, each with the last
synchronise; the host's time a node of submitting a graph; and, where PyTorch is, a call
of a kernel on its tensors against ``torch.add(out=)``, in turn.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter_ns

from steelyard_device import cuda
from steelyard_kernels import kernel
from steelyard_kernels.array import Array

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
        "on_tensors": on_tensors(),
        "gpu": context.device.name,
    }


@kernel
def add(x: Array, y: Array) -> Array:
    """Return x + y."""
    return x + y


def on_tensors(elements: int = 100) -> dict[str, object] | None:
    """Return what a call takes, ours and PyTorch's in turn; None without PyTorch.

    ``recognised`` says that native code did it: without that a call goes through Python.
    """
    try:
        import torch
    except ImportError:
        return None
    x, y, out = (torch.rand(elements, device="cuda") for _ in range(3))
    expected = torch.add(x, y)
    for _ in range(4):
        add(x, y, out=out)
    if not torch.equal(out, expected):
        raise SystemExit("a call on tensors gave another result than torch.add.")
    times: dict[str, list[float]] = {"ours": [], "torch": [], "ours_allocated": []}
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: add(x, y, out=out),
        "torch": lambda: torch.add(x, y, out=out),
        "ours_allocated": lambda: add(x, y),
    }
    for _ in range(ROUNDS + 1):
        for name, call in calls.items():

            def often(call: Callable[[], object] = call) -> None:
                for _ in range(CALLS // 10):
                    call()

            times[name].append(_seconds(often) * 1e7 / CALLS)
            torch.cuda.synchronize()
    ours, theirs = times["ours"][1:], times["torch"][1:]
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        **{f"{name}_us": round(statistics.median(t), 3) for name, t in times.items()},
        "ours_over_torch": round(ratio, 3),
        "recognised": type(add.__call__).__name__ == "builtin_function_or_method",
        "torch": torch.__version__,
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
