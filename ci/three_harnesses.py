"""Ask triton's do_bench, nvbench and steelyard for the same three kernels on a GPU.

    python ci/three_harnesses.py [do_bench | nvbench | truth]

Prints the table of README.md. All of them launch the very same PyTorch calls (``steelyard
run`` finds them in this file), each in a process of its own that nothing else was asked of,
with its own defaults, but nvbench, which gets 5 s a measurement instead of 15. The truth is what CUPTI says through PyTorch's profiler, which shares no code with us: the
kernel's own time behind launches of itself (warm), or behind a read of twice the L2
cache (cold). A harness that is not here, or fails, has a note and no figures.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click
import numpy as np

from steelyard import Builder, benchmark
from steelyard.analyse.trial import Run
from steelyard.declare.handles import Call
from steelyard.report import text
from steelyard.report.grid import Line, Sheet, grid
from steelyard.units import NOTHING

NAMES: Final = {
    "harnesses_add": "add, 64 float32",
    "harnesses_matmul": "cuBLAS 64x768x768, float16",
    "harnesses_copy": "copy, 12 MiB read and written",
}
CACHES: Final = ("cold", "warm")

COPIED: Final = (6 << 20) // 4
"""float32 elements of 6 MiB, each read and written."""

LAUNCHES: Final = 200
"""That the truth is the mean of: CUPTI's ticks of 32 ns average out."""

NVBENCH_SECONDS: Final = 5
"""nvbench gives up on a state after 15 s; on a shared machine it never gets to its 0.5 %
of noise, and a second more or less says nothing new."""

MICRO: Final = 1e6
"""Microseconds of a second."""


@benchmark
def harnesses_add(b: Builder) -> Call:
    """Add 64 elements: little more than a launch."""
    b.on("cuda")
    x, z = b.input(64, name="x"), b.input(64, name="z")
    y = b.output(64)
    b.check(np.add, x, z)
    return b.launch(_add, x, z, y, as_="torch")


@benchmark
def harnesses_matmul(b: Builder) -> Call:
    """Multiply as iree#17012 does."""
    b.on("cuda")
    x = b.input((64, 768), "float16")
    w = b.input((768, 768), "float16")
    y = b.output((64, 768), "float16")
    b.check(np.matmul, x, w)
    return b.launch(_matmul, x, w, y, as_="torch")


@benchmark
def harnesses_copy(b: Builder) -> Call:
    """Copy 6 MiB."""
    b.on("cuda")
    x = b.input(COPIED)
    y = b.output(COPIED)
    b.check(lambda x: x, x, rtol=0.0, atol=0.0)
    return b.launch(_copy, x, y, as_="torch")


def _add(x: Any, z: Any, y: Any) -> None:
    import torch

    torch.add(x, z, out=y)


def _matmul(x: Any, w: Any, y: Any) -> None:
    import torch

    torch.matmul(x, w, out=y)


def _copy(x: Any, y: Any) -> None:
    y.copy_(x)


def calls() -> dict[str, Callable[[], None]]:
    """Return the three calls with tensors of their own, of normal values."""
    import torch

    def normal(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)

    half = torch.float16
    add = normal(64), normal(64), normal(64)
    matmul = tuple(
        normal(*shape, dtype=half) for shape in ((64, 768), (768, 768), (64, 768))
    )
    copy = normal(COPIED), normal(COPIED)
    torch.cuda.synchronize()
    return {
        "harnesses_add": lambda: _add(*add),
        "harnesses_matmul": lambda: _matmul(*matmul),
        "harnesses_copy": lambda: _copy(*copy),
    }


Times = dict[str, dict[str, float]]
"""Microseconds by kernel and state of the caches."""


def do_bench() -> Times:
    """Ask triton: ``do_bench`` is cold, ``do_bench_cudagraph`` warm."""
    import torch
    from triton import testing

    found = {}
    with torch.cuda.stream(torch.cuda.Stream()):  # a graph is not of the default one
        for name, call in calls().items():
            found[name] = {
                "cold": 1e3 * testing.do_bench(call, return_mode="median"),
                "warm": 1e3 * testing.do_bench_cudagraph(call, return_mode="median"),
            }
    return found


def nvbench() -> Times:
    """Ask nvbench: its cold and its batched measurement."""
    import torch
    from cuda import bench

    def registered(name: str, call: Callable[[], None]) -> None:
        def measured(state: Any) -> None:
            stream = torch.cuda.ExternalStream(state.get_stream().addressof())

            def launch(_: Any) -> None:
                with torch.cuda.stream(stream):
                    call()

            state.exec(launch, batched=True)

        bench.register(measured).set_name(name)

    for name, call in calls().items():
        registered(name, call)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nvbench.json")
        options = ["--json", str(file), "--timeout", str(NVBENCH_SECONDS)]
        bench.run_all_benchmarks([sys.argv[0], *options])
        document = json.loads(file.read_text())
    return {
        one["name"]: _of_nvbench(one["states"][0]) for one in document["benchmarks"]
    }


def _of_nvbench(state: Mapping[str, Any]) -> dict[str, float]:
    tags = {"cold": "nv/cold/time/gpu/mean", "warm": "nv/batch/time/gpu/mean"}
    said = {one["tag"]: one["data"][0]["value"] for one in state["summaries"]}
    return {cache: MICRO * float(said[tag]) for cache, tag in tags.items()}


def truth() -> Times:
    """Ask CUPTI through PyTorch's profiler."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    read = torch.zeros(2 * l2_bytes // 4, device="cuda")
    found = {}
    for name, call in calls().items():
        alone = len(_activities(call, 10)) // 10
        found[name] = {
            "cold": _mean(call, read.sum, alone),
            "warm": _mean(call, call, alone),
        }
    return found


def _mean(call: Callable[[], None], ahead: Callable[[], Any], last: int) -> float:
    """Return the microseconds of the ``last`` activities of each round, ours."""

    def round_() -> None:
        ahead()
        call()

    times = _activities(round_, LAUNCHES)
    each = len(times) // LAUNCHES
    rounds = [times[i * each : (i + 1) * each] for i in range(LAUNCHES)]
    return statistics.fmean(sum(one[each - last :]) for one in rounds)


def _activities(call: Callable[[], None], count: int) -> list[float]:
    """Return the microseconds of all that the GPU does in ``count`` calls, in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    events = [one for one in seen.events() if one.device_type == device]
    if not events or len(events) % count:
        raise RuntimeError(f"{len(events)} activities in {count} calls")
    events.sort(key=lambda one: one.time_range.start)
    return [one.device_time for one in events]


PARTS: Final[Mapping[str, Callable[[], Times]]] = {
    "do_bench": do_bench,
    "nvbench": nvbench,
    "truth": truth,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody reports, and the seconds of its whole process."""

    times: Times
    half_widths: Times
    seconds: float
    note: str = ""
    run: Run | None = None


def asked(part: str) -> Answer:
    """Run one part in a process of its own."""
    began = perf_counter()
    command = [sys.executable, __file__, part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    spent = perf_counter() - began
    last = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not last:
        return Answer({}, {}, spent, f"{part}: {done.stderr.strip()[-300:]}")
    return Answer(json.loads(last[0]), {}, spent)


def steelyard(*options: str) -> Answer:
    """Ask `steelyard run`, with its defaults but for ``options``."""
    from measured import BOTH, measure

    began = perf_counter()
    times: Times = {}
    widths: Times = {}
    found = measure(__file__, *BOTH, *options)
    for row in found.rows:
        if row.estimate is not None:
            cache = row.mode.split("/")[1]
            low, high = row.estimate.low, row.estimate.high
            times.setdefault(row.case, {})[cache] = row.estimate.value / 1e3
            widths.setdefault(row.case, {})[cache] = (high - low) / 2e3
    note = "; ".join(error for row in found.rows for error in row.errors)
    return Answer(times, widths, perf_counter() - began, note, found.run)


def table(answers: Mapping[str, Answer]) -> Sheet[Line]:
    """Return a line for each kernel and state, and one of what asking took."""
    lines: list[Line] = [
        (
            f"{shown}, {cache}",
            *(_cell(answer, name, cache) for answer in answers.values()),
        )
        for name, shown in NAMES.items()
        for cache in CACHES
    ]
    seconds = (f"{one.seconds / len(NAMES):.2f}" for one in answers.values())
    lines.append(("seconds a kernel, everything in", *seconds))
    return grid("", ("kernel, caches",), tuple(answers), lines)


def _cell(answer: Answer, name: str, cache: str) -> str:
    time = answer.times.get(name, {}).get(cache)
    if time is None:
        return NOTHING
    width = answer.half_widths.get(name, {}).get(cache)
    return f"{time:.2f}" if width is None else f"{time:.2f} ± {width:.2f}"


def caption(run: Run) -> str:
    """Say where the table comes from, with the versions of whoever is here."""
    facts = [text.machine(run.machine), f"driver {run.machine['gpu']['driver']}"]
    for name in ("torch", "triton", "cuda-bench", "cupti-python", "steelyard"):
        with suppress(metadata.PackageNotFoundError):
            facts.append(f"{name} {metadata.version(name)}")
    facts.append(f"commit `{run.commit[:10]}`")
    return f"`python ci/three_harnesses.py` on {', '.join(facts)}"


def main(*parts: str) -> None:
    """Print what one part found, or the whole table."""
    if parts:
        print(json.dumps(PARTS[parts[0]]()))  # noqa: T201 # the answer
        return
    answers = {
        "CUPTI by PyTorch's profiler": asked("truth"),
        "steelyard": steelyard(),
        "steelyard, no CUPTI": steelyard("--clock", "events"),
        "do_bench": asked("do_bench"),
        "nvbench": asked("nvbench"),
    }
    for answer in answers.values():
        click.echo(answer.note, err=True, nl=bool(answer.note))
    run = answers["steelyard"].run
    assert run is not None
    click.echo("\n".join((caption(run), "", *table(answers).markdown())))


if __name__ == "__main__":
    main(*sys.argv[1:])
