"""Weigh on a GPU what the project promises there, and print each bar with its figure.

    python ci/gpu_bars.py [--only NAME]... [--seconds N] [--commit HASH] --out FOLDER

Everything is measured by the product, in runs of its own suites. FOLDER gets
``h200-bars.json`` (figures beside command, commit and machine; the GPU's name decides
the prefix) and the runs whose tables README.md shows, as ``steelyard run --json`` wrote
them. A section that fails is told and the others go on; what a file has of sections not
weighed now stays.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

import click
import gpu_ncu
from bars import Bar
from gpu_rows import BOTH, COLD, WARM, Campaign, agreeing, known, line, script
from sections import hold

from steelyard.analyse import agreement
from steelyard.analyse.rows import block_estimate
from steelyard.machine import gpu_choice as gpu
from steelyard_device import cuda


def delay(campaign: Campaign) -> Iterator[Bar]:
    """Hold CUPTI against kernels of known cycles, and events against CUPTI's slope."""
    for clock, limit in (("cupti", 0.005), ("events", 0.005)):
        found = campaign.weigh(
            "suites/probes.py", "-k", "gpu_delay", "--clock", clock, "--blocks", "3"
        )
        points = [
            (known(trial), block_estimate(trial).value)
            for row in found.rows
            for trial in row.trials
        ]
        slope, intercept = line(points)
        apart = max(abs(y - slope * x - intercept) for x, y in points)
        yield Bar(
            f"{clock} against N dependent multiply-adds that count their cycles "
            f"(clock64 at the stamped frequency), {points[0][0] / 1e3:.1f} us to "
            f"{points[-1][0] / 1e6:.1f} ms: slope",
            "1 ± 0.5 %",
            f"{slope:.5f}, intercept {intercept:.0f} ns, at most {apart:.0f} ns from it",
            abs(slope - 1) <= limit,
            found.command,
        )


def ncu(campaign: Campaign) -> Iterator[Bar]:
    """Hold the kernel column against Nsight Compute's own time."""
    found = campaign.weigh(
        "suites/gpu.py",
        "-p",
        "n=1048576,3145728,16777216,67108864,134217728",
        "-k",
        "gpu_copy",
        *BOTH,
        "--blocks",
        "3",
    )
    gaps = [
        (row.estimate.value, theirs)
        for row in found.rows
        if row.estimate is not None
        and (theirs := gpu_ncu.nanoseconds(row.trials[0])) is not None
    ]
    long = [(ours, theirs) for ours, theirs in gaps if ours >= 30e3]
    short = [(ours, theirs) for ours, theirs in gaps if ours < 30e3]
    worst = max((abs(ours / theirs - 1) for ours, theirs in long), default=None)
    below = ", ".join(
        f"{(theirs - ours) / 1e3:+.2f} at {ours / 1e3:.1f} us" for ours, theirs in short
    )
    yield Bar(
        "kernel column against ncu's gpu__time_duration, the median of "
        f"{gpu_ncu.LAUNCHES} launches, copies of 30 us and more",
        "<= 3 %",
        f"{'nothing read' if worst is None else f'{100 * worst:.1f} %'}"
        f" of {len(long)}; ncu beside us below: {below or 'nothing read'}",
        None if worst is None else worst <= 0.03,
        found.command,
    )


def coverage(campaign: Campaign) -> Iterator[Bar]:
    """Have events read beside CUPTI: the same buffers, in the same process.

    What CUPTI says is taken for the truth, so it is asked to be surer than usual: of long
    kernels it would have settled at twenty windows.
    """
    cases = (
        "gpu_copy or gpu_peers_matmul and torch or "
        "gpu_layernorm and ours and (hidden=768 or hidden=5140)"
    )
    asked = ("suites/gpu.py", "suites/peers.py", "-k", cases, *BOTH)
    found = campaign.weigh(*asked, "--clock", "all", *SURE, "--blocks", "7")
    read = [
        (f"{row.case} {row.mode}", agreement.readings(trial))
        for row in found.rows
        for trial in row.trials
    ]
    read = [(name, one) for name, one in read if "events" in one]
    pairs = [(one["events"], one["cupti"].value) for _, one in read]
    for name, one in read:
        event, truth = one["events"], one["cupti"]
        if not event.low <= truth.value <= event.high:
            click.echo(
                f"outside: {name} cupti {truth.value:.0f} ± "
                f"{(truth.high - truth.low) / 2:.0f}, events {event.value:.0f} ± "
                f"{(event.high - event.low) / 2:.0f}",
                err=True,
            )
    met = sum(
        one["events"].low <= one["cupti"].high
        and one["cupti"].low <= one["events"].high
        for _, one in read
    )
    held = sum(one.low <= value <= one.high for one, value in pairs)
    allowed = [((e.high - e.low) / 2, 200 + 0.01 * value) for e, value in pairs]
    narrow = sum(half <= room for half, room in allowed)
    wide = max((half - room for half, room in allowed), default=0.0)
    yield Bar(
        f"kernel column by events against CUPTI's, {len(pairs)} case-runs in 7 "
        "processes (copy of 12 sizes, cuBLAS, LayerNorm; warm and cold): error bar "
        "holds the truth; half-width",
        ">= 95 %; <= 0.2 us + 1 %",
        f"{100 * held / max(len(pairs), 1):.1f} % ({100 * met / max(len(pairs), 1):.1f} % "
        f"with CUPTI's own error bar); {narrow} of {len(pairs)} so narrow, the widest "
        f"{wide / 1e3:+.2f} us from it",
        len(pairs) > 0 and held >= 0.95 * len(pairs) and narrow == len(pairs),
        found.command,
    )


SURE: Final = ("--precision", "0.1")
PROCESSES: Final = 10


def processes(campaign: Campaign) -> Iterator[Bar]:
    """Weigh the same cases in ten fresh processes: a block is one."""
    found = campaign.weigh(
        "suites/gpu.py", "-k",
        "n=4194304 or n=16777216 or n=26214400 or n=67108864 or gpu_softmax or "
        "gpu_layernorm and not hidden=20480",
        *BOTH, *SURE, "--blocks", str(PROCESSES),
    )  # fmt: skip
    for mode, limit in ((WARM, 0.01), (COLD, 0.02)):
        kept = {
            row.case: agreeing(row, limit)
            for row in found.rows
            if row.mode == mode and row.estimate and row.estimate.value >= 5e3
        }
        good = [case for case, share in kept.items() if share >= 0.9]
        worst = min(kept, key=lambda case: kept[case], default="none")
        yield Bar(
            f"{PROCESSES} fresh processes, {len(kept)} cases from 5 us up, {mode}: "
            f"within {100 * limit:.0f} % or one tick of their median in 9 of 10",
            "every case",
            f"{len(good)} of {len(kept)} cases; least {worst}: "
            f"{100 * kept.get(worst, 0):.0f} %",
            len(good) == len(kept) > 0,
            found.command,
        )


def cost(campaign: Campaign) -> Iterator[Bar]:
    """Say what the harness costs, cases of at most 64 MB at the default budget."""
    began = perf_counter()
    found = campaign.weigh(
        "suites/gpu.py", *BOTH, "-k",
        "not (n=16777216 or n=26214400 or n=67108864 or n=134217728 or hidden=4096 or "
        "hidden=5140 or hidden=20480 or cols=4096)",
    )  # fmt: skip
    wall = perf_counter() - began
    trials = sum(len(row.trials) for row in found.rows)
    yield Bar(
        "harness on a GPU: wall over trials, cases of at most 64 MB, everything in",
        "<= 0.3 s",
        f"{wall / max(trials, 1):.2f} s ({trials} trials in {wall:.0f} s)",
        trials > 0 and wall / trials <= 0.3,
        found.command,
    )


def launch(_campaign: Campaign) -> Iterator[Bar]:
    """Hold a launch from Python against the native loop, and count a graph's nodes."""
    said, command = script("gpu_launch.py"), "python ci/gpu_launch.py"
    yield Bar(
        f"one Python call, one launch: {said['calls']:,} calls and the last synchronise "
        "over a native loop of cuLaunchKernel",
        "<= 1.15 x",
        f"{said['ratio']:.3f} x ({said['python_us']:.2f} over {said['native_us']:.2f} us)",
        said["ratio"] <= 1.15,
        command,
    )
    nodes = said["graph_us_per_node"]
    yield Bar(
        "graph: host time a node",
        "<= 0.1 us",
        ", ".join(f"{each:.3f} us of {count}" for count, each in nodes.items()),
        max(nodes.values()) <= 0.1,
        command,
    )


def adam(campaign: Campaign) -> Iterator[Bar]:
    """Adam against an in-place scale of its streams, and what a small call costs."""
    found = campaign.weigh(
        *("suites/gpu.py", "-k", "gpu_adam", "-p", f"n={1 << 24}"),
        *("--mode", COLD, "--blocks", "8"),
    )
    ours, scale = (f"gpu_adam[n={1 << 24},impl={impl}]" for impl in ("ours", "scale"))
    ratio = found.ratio(scale, [ours], COLD)
    yield Bar(
        "adam 16.8 M float32, cold: rate over that of an in-place three-stream scale",
        ">= 95 %",
        f"{100 * ratio.value:.1f} % [{100 * ratio.low:.1f}, {100 * ratio.high:.1f}]",
        ratio.value >= 0.95,
        found.command,
    )
    # Alone: in a process that CUPTI has recorded in, every launch costs the host more.
    small = "gpu_adam[n=100,impl=ours]"
    modes = ("latency/warm/1000", "per_launch/warm/1000")
    found = campaign.weigh(
        *("suites/gpu.py", "-k", small, "--blocks", "6"),
        *(word for mode in modes for word in ("--mode", mode)),
    )
    call, bound = (found.row(small, mode).estimate for mode in modes)
    assert call is not None
    assert bound is not None
    yield Bar(
        "adam, 100 elements: one call of 1000, the last waited for",
        "<= 3.5 us",
        f"{call.value / 1e3:.2f} us; bound once {bound.value / 1e3:.2f} us",
        call.value <= 3500,
        found.command,
    )


WIDTHS: Final = "768,1024,1280,1536,1600,2048,2560,4096,5140,12288,16384,20480"


def layernorm(campaign: Campaign) -> Iterator[Bar]:
    """LayerNorm at the seeds' widths against PyTorch eager and a copy."""
    found = campaign.weigh(
        "suites/peers.py", "-k", "gpu_peers_layernorm", "-p", f"hidden={WIDTHS}",
        "--mode", COLD, "--blocks", "2", keep="layernorm",
    )  # fmt: skip
    against: dict[str, dict[int, float]] = {"torch_eager": {}, "copy": {}}
    for impl, ratios in against.items():
        for hidden in map(int, WIDTHS.split(",")):
            case = f"gpu_peers_layernorm[hidden={hidden},impl="
            if {f"{case}{impl}]", f"{case}ours]"} <= {one.case for one in found.rows}:
                ratios[hidden] = found.ratio(
                    f"{case}{impl}]", [f"{case}ours]"], COLD
                ).value
    for impl, limit, bar in (
        ("torch_eager", 1.0, "> 1 x at all 12 widths"),
        ("copy", 0.75, ">= 0.75 at all 12 widths"),
    ):
        ratios = against[impl]
        least = min(ratios, key=lambda hidden: ratios[hidden], default=0)
        figure = f"least {ratios[least]:.2f} at {least}" if ratios else "no rows"
        yield Bar(
            f"LayerNorm, 8192 float16 rows, cold: {impl}'s time over ours",
            bar,
            f"{figure}; {sum(r >= limit for r in ratios.values())} of {len(ratios)}",
            len(ratios) == 12 and ratios[least] >= limit if ratios else None,
            found.command,
        )


def harnesses(campaign: Campaign) -> Iterator[Bar]:
    """Let do_bench, nvbench and steelyard weigh the same three kernels."""
    said = script("three_harnesses.py")
    place = campaign.folder / f"{campaign.prefix}-harnesses.json"
    place.write_text(json.dumps(said, indent=2) + "\n")
    yield from ()


SHOWN: Final[dict[str, tuple[str, ...]]] = {
    "peers": ("suites/peers.py", "-k", "matmul or adam", "--blocks", "3"),
    "dispatch": ("suites/dispatch.py", "-k", "gpu_", "--blocks", "3"),
    "inputs": ("suites/inputs.py", "--blocks", "3"),
    "registers": (
        *("suites/registers.py", "-p", "hidden=5140", "-p", "rank=1,3"),
        *("-p", "registers=0,32,40,56,80", "--blocks", "3", "--profile", "ncu"),
    ),
}
"""Runs that README.md shows, without a bar."""


def tables(campaign: Campaign, name: str) -> Iterator[Bar]:
    """Weigh what stands in a table of README.md; it has no bar."""
    campaign.weigh(*SHOWN[name], keep=name)
    yield from ()


BARS: Final[dict[str, Callable[[Campaign], Iterator[Bar]]]] = {
    "delay": delay,
    "ncu": ncu,
    "coverage": coverage,
    "processes": processes,
    "cost": cost,
    "launch": launch,
    "adam": adam,
    "layernorm": layernorm,
    "harnesses": harnesses,
    **{name: functools.partial(tables, name=name) for name in SHOWN},
}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(BARS)))
@click.option("--seconds", type=float, help="Begin no section after so many.")
@click.option("--commit", help="What is weighed, where no checkout says so.")
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True
)
def main(
    only: Sequence[str], seconds: float | None, commit: str | None, folder: Path
) -> None:
    """Weigh the bars, print them, and end with 1 if one is missed."""
    folder.mkdir(parents=True, exist_ok=True)
    (prefix,) = re.findall(r"[a-z]+\d+", cuda.device().name.lower())[:1] or ["gpu"]
    campaign = Campaign(folder.resolve(), prefix, commit or "")
    out = folder / f"{prefix}-bars.json"
    command = "python ci/gpu_bars.py"
    sys.exit(
        hold(
            campaign,
            BARS,
            only,
            out,
            command=command,
            seconds=seconds,
            gpu=gpu.facts(0),
        )
    )


if __name__ == "__main__":
    main()
