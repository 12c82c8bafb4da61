"""The tables of README.md that were weighed on a GPU (ci/gpu_bars.py keeps the runs)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from readme_results import RESULTS, Suite, bar_table, provenance, ratio, table, time

from steelyard import units

COLD: Final = "kernel/cold"
WARM: Final = "kernel/warm"
BATCHES: Final = (1, 10, 100, 1000)
RESULT_OF: Final = {
    "allocated": "asked of the driver in each call",
    "pooled": "from the library's pool",
    "preallocated": "preallocated",
    "slab": "a slice of one slab",
}
WAITS: Final = {"each": "every call", "batch": "the batch"}
PEERS: Final = ("copy", "torch_eager", "inductor", "triton", "ours")


def bars() -> Iterator[str]:
    """Every bar of ci/gpu_bars.py with its figure."""
    yield from bar_table(RESULTS / "h200-bars.json")


def dispatch() -> Iterator[str]:
    """Say what a call costs by who allocates and when it is waited for (iree#17012)."""
    suite = _suite("dispatch")
    yield provenance(suite)
    yield ""
    kernel = "matmul" if any("matmul" in case for case, _ in suite.trials) else "add"
    heads = ["result", "waited for", "1 call", *(f"{n} calls" for n in BATCHES[1:])]
    lines = [
        [
            place,
            shown,
            *_batches(suite, f"kernel={kernel},result={result},wait={wait}"),
        ]
        for result, place in RESULT_OF.items()
        for wait, shown in WAITS.items()
    ]
    itself = f"gpu_dispatch[kernel={kernel},result=preallocated,wait=batch]"
    graphs = [_at(suite, itself, f"per_launch/warm/graph/{n}") for n in BATCHES]
    lines.append(["preallocated", "a graph of the batch", *_cells(suite, graphs)])
    yield from table([*heads, "CPU a call, of 100", "calls/s, of 1000"], lines)
    yield ""
    yield (
        f"The kernel itself takes {time(suite.time(itself, WARM))} warm and "
        f"{time(suite.time(itself, COLD))} cold."
    )


Key = tuple[str, str]


def _batches(suite: Suite, axes: str) -> list[str]:
    case = f"gpu_dispatch[{axes}]"
    modes = [f"per_launch/warm/{n}".removesuffix("/1") for n in BATCHES]
    return _cells(suite, [_at(suite, case, mode) for mode in modes])


def _at(suite: Suite, case: str, mode: str) -> Key | None:
    return (case, mode) if (case, mode) in suite.trials else None


def _cells(suite: Suite, rows: list[Key | None]) -> list[str]:
    """Return the times of batches, then processor time and calls a second."""
    times = [suite.time(*row) if row else None for row in rows]
    of_100, last = rows[BATCHES.index(100)], times[-1]
    processor = suite.fact(*of_100, "cpu") if of_100 else None
    return [
        *(units.duration(found.value) if found else "-" for found in times),
        units.duration(processor) if processor else "-",
        f"{1e9 / last.value:,.0f}" if last else "-",
    ]


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
    """Show what three harnesses say of the same three kernels."""
    document = json.loads((RESULTS / "h200-harnesses.json").read_text())
    rows = document["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row))
    yield from table(names, [[_plain(row.get(name)) for name in names] for row in rows])


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


def registers() -> Iterator[str]:
    """Show what limits of registers buy and cost."""
    suite = _suite("registers")
    yield provenance(suite)
    yield ""
    lines = [
        [
            str(trials[-1]["axes"]["hidden"]),
            str(trials[-1].get("schedule") or "-"),
            str(trials[-1]["axes"]["registers"] or "none"),
            time(suite.time(case, mode)),
            *(
                _plain(trials[-1].get(name))
                for name in ("registers", "spill_bytes", "blocks_per_multiprocessor")
            ),
            _eligible(trials[-1]),
        ]
        for (case, mode), trials in sorted(suite.trials.items(), key=_as_declared)
    ]
    heads = ["hidden", "schedule", "limit", "cold", "registers", "spills", "blocks"]
    yield from table([*heads, "eligible warps"], lines)


def _eligible(trial: Mapping[str, Any]) -> str:
    found = (trial.get("ncu") or {}).get("eligible_warps")
    return "unknown" if found is None else f"{found:.2f}"


def _suite(name: str) -> Suite:
    return Suite(json.loads((RESULTS / f"h200-{name}.json").read_text()))


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "gpu-bars": bars,
    "gpu-dispatch": dispatch,
    "gpu-layernorm": layernorm,
    "gpu-harnesses": harnesses,
    "gpu-inputs": inputs,
    "gpu-registers": registers,
}
