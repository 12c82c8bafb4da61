"""The tables of README.md and docs that were weighed on a GPU (ci/gpu_bars.py keeps the runs)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from readme_results import (
    RESULTS,
    Key,
    Suite,
    across,
    bar_table,
    ledger,
    provenance,
    ratio,
    table,
    time,
)

from steelyard import units
from steelyard.analyse.stats import Estimate

COLD: Final = "kernel/cold"
WARM: Final = "kernel/warm"
BATCH: Final = "per_launch/warm/100"
GRAPH: Final = "per_launch/warm/graph/100"
PEERS: Final = ("copy", "torch_eager", "inductor", "triton", "ours")


def bars() -> Iterator[str]:
    """Every bar of ci/gpu_bars.py with its figure."""
    yield from bar_table(RESULTS / "h200-bars.json")


def dispatch() -> Iterator[str]:
    """Say what a call costs by who allocates and when it is waited for (iree#17012)."""
    suite = _suite("dispatch")
    yield provenance(suite)
    yield ""
    shown = _thread(suite)
    for one in across(suite, "mode", lambda case, mode: shown(case) and _told(mode)):
        yield from one.markdown()


def _told(mode: str) -> bool:
    """Say whether a mode is in the first table: of graphs only the largest batch is."""
    batch = "graph" not in mode or mode.endswith("/1000")
    return mode == WARM or (mode.startswith("per_launch") and batch)


def _thread(suite: Suite) -> Callable[[str], bool]:
    """Return what says whether a case is of the thread's kernel, or the one there is."""
    kernel = "matmul" if any("matmul" in case for case, _ in suite.trials) else "add"
    return lambda case: f"kernel={kernel}," in case


def call() -> Iterator[str]:
    """Take the dearest call apart, in words: each part is a difference of two rows."""
    suite = _suite("dispatch")
    shown = _thread(suite)
    kernel = next(case for case, _ in suite.trials if shown(case))
    kernel = kernel.partition("[")[2].partition(",")[0]

    def found(result: str, wait: str, mode: str = BATCH) -> Estimate | None:
        return suite.time(f"gpu_dispatch[{kernel},result={result},wait={wait}]", mode)

    rows = [
        found("allocated", "each"),
        found("preallocated", "each"),
        found("preallocated", "batch"),
        found("preallocated", "batch", GRAPH),
    ]
    itself = found("preallocated", "batch", WARM)
    known = [row for row in rows if row is not None]
    if len(known) < len(rows) or itself is None:
        return
    parts = [_difference(new, base) for new, base in pairwise(known)]
    yield (
        f"So of a call of {units.duration(known[0].value)}, a hundred in a batch, "
        f"{parts[0]} are memory, asked of the driver and given back each time; "
        f"{parts[1]} are waiting for every call instead of for the batch; {parts[2]} "
        "are what the host takes to submit it, beyond the kernel that runs meanwhile; "
        f"and {time(known[3])} are the kernel with its hand-over, as a graph has them. "
        f"The kernel alone takes {time(itself)}."
    )


def _difference(new: Estimate, base: Estimate) -> str:
    """Write how much more one time is than another: both errors are in it."""
    half = math.hypot(*(one.half_width * one.value for one in (new, base)))
    return f"{(new.value - base.value) / 1e3:.2f} ± {half / 1e3:.2f} us"


def ledgers() -> Iterator[str]:
    """Show the parts of a call that is waited for."""
    suite = _suite("dispatch")
    yield provenance(suite)
    yield ""
    yield from ledger(suite, lambda case, _: case.startswith("gpu_dispatch"))


def example() -> Iterator[str]:
    """Show one kernel of several libraries: the README's first table."""
    suite = _suite("peers")
    yield provenance(suite)
    for one in across(suite, "impl", lambda case, _: "adam[n=16777216," in case):
        yield ""
        yield from one.markdown()


def layernorm() -> Iterator[str]:
    """Set LayerNorm's widths beside a copy and what else users would take."""
    suite = _suite("layernorm")
    yield provenance(suite)
    yield ""
    cases = {case for case, _ in suite.trials}
    shown = [impl for impl in PEERS if any(f"impl={impl}]" in case for case in cases)]
    widths = sorted(
        {int(w) for case in cases for w in re.findall(r"hidden=(\d+)", case)}
    )
    lines = []
    for hidden in widths:
        point = f"gpu_peers_layernorm[hidden={hidden},impl="
        ours = f"{point}ours]"
        found = suite.time(ours, COLD)
        moved = suite.fact(ours, COLD, "bytes") if found else 0
        lines.append(
            [
                str(hidden),
                *(time(suite.time(f"{point}{impl}]", COLD)) for impl in shown),
                f"{moved / found.value / 1e3:.2f}" if found else "-",
                ratio(suite.ratio(f"{point}copy]", ours, COLD)),
            ]
        )
    yield from table(["hidden", *shown, "TB/s, ours", "copy / ours"], lines)


def harnesses() -> Iterator[str]:
    """Show what three harnesses report for the same three kernels."""
    document = json.loads((RESULTS / "h200-harnesses.json").read_text())
    gpu, versions = document["gpu"], document["versions"]
    known = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield (
        f"`python ci/three_harnesses.py` on {gpu['name']} (driver {gpu['driver']}), "
        f"{known}"
    )
    yield ""
    heads = ["kernel, caches", *HARNESSES.values()]
    yield from table(heads, [_harness_row(row) for row in document["rows"]])


HARNESSES: Final[Mapping[str, str]] = {
    "truth": "CUPTI by PyTorch's profiler",
    "steelyard": "steelyard",
    "steelyard by events": "steelyard, no CUPTI",
    "do_bench": "do_bench",
    "nvbench": "nvbench",
}


def _harness_row(row: Mapping[str, Any]) -> list[str]:
    cells = [", ".join(filter(None, (row["kernel"], row["caches"])))]
    for name in HARNESSES:
        margin = row.get(f"{name}, ±")
        shown = _plain(row.get(f"{name}, us"))
        cells.append(shown if margin is None else f"{shown} ± {margin:.2f}")
    return cells


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def inputs() -> Iterator[str]:
    """Show what data costs: time beside watts."""
    suite = _suite("inputs")
    yield provenance(suite)
    yield ""
    lines = []
    for (case, mode), trials in sorted(suite.trials.items(), key=_as_declared):
        watts, joules = _known(trials, "watts"), _known(trials, "joules")
        megahertz = trials[-1].get("mhz")
        lines.append(
            [
                case,
                time(suite.time(case, mode)),
                f"{watts:.0f}" if watts else "-",
                units.energy(joules) if joules else "-",
                f"{megahertz:.0f}" if megahertz else "-",
            ]
        )
    yield from table(["case", "time", "W", "energy a launch", "MHz"], lines)


DATA: Final = ("normal", "pattern", "constant")


def _as_declared(row: tuple[Key, list[Mapping[str, Any]]]) -> tuple[Any, ...]:
    """Order rows by benchmark and axes, whatever order the plan had; data by `DATA`."""
    (case, _), trials = row
    axes = trials[-1]["axes"].values()
    return case.partition("[")[0], *(DATA.index(v) if v in DATA else v for v in axes)


def _known(trials: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return what the blocks that weighed it say: energy takes long, and one is enough."""
    return next((trial[name] for trial in trials if trial.get(name)), None)


def _suite(name: str) -> Suite:
    return Suite(json.loads((RESULTS / f"h200-{name}.json").read_text()))


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "example": example,
    "gpu-bars": bars,
    "gpu-dispatch": dispatch,
    "gpu-call": call,
    "gpu-ledger": ledgers,
    "gpu-layernorm": layernorm,
    "gpu-harnesses": harnesses,
    "gpu-inputs": inputs,
}
