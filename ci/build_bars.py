"""Weigh what the project promises of its builds, and print each bar with its figure.

    python ci/build_bars.py [--only NAME]... [--out FILE]

No GPU is needed. What is compared is built in turns in one process; a ratio is the
median of the rounds' own ratios, a time the median of all rounds. Nothing is found in a
cache but where the row says so. See ci/bars.py for the other bars.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import bars
import click
from bars import Bar
from build_rows import tracked
from rich.console import Console

from steelyard_device import timings_cost
from steelyard_kernels import library
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.build import build
from steelyard_kernels.building.cache import disk
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.group import Batch, Candidate, build_all, candidates_of
from steelyard_kernels.library import examples
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_lock.builds import Row, measured
from steelyard_lock.points import Point

sys.path.append(str(Path(__file__).parent.parent))  # the suites are not installed

from suites.candidates import FROM, small
from suites.cubin import BareBuild

CUDA: Final = "cuda:sm_90a"
OWN: Final = ("trace", "simplify", "schedule", "lower", "verify", "emit")
LAYERNORM: Final = [((8192, 768), "float16"), *[((768,), "float16")] * 4]
SIZES: Final = (768, 1024, 1536, 2048, 4096, 5140, 20480)
Specs = Sequence[Any]


def specs(name: str) -> Specs:
    """Return a library kernel's arrays at its axes' defaults."""
    return examples.specs(name)


def built(kernel: KernelFunction, arrays: Specs, **how: Any) -> Artifact:
    """Build, and raise what went wrong."""
    found = kernel.build(*arrays, **how)
    if isinstance(found, Failure):
        raise found.cause
    return found


def median_ms(times: Sequence[float]) -> float:
    """Return the median of seconds, in milliseconds."""
    return 1e3 * statistics.median(times)


def timed(function: Callable[[], object]) -> float:
    """Return the seconds a call took."""
    began = perf_counter()
    function()
    return perf_counter() - began


def cubins(rounds: int = 31) -> Iterator[Bar]:
    """Hold a cold build to a cubin against a bare NVRTC call on the same text."""
    for name, limit in (("empty", 1.1), ("adam", 1.15)):
        kernel, arrays = getattr(library, name), specs(name)
        text = built(kernel, arrays, target=CUDA, cache="cold").text

        def ours(kernel: KernelFunction = kernel, arrays: Specs = arrays) -> object:
            return built(kernel, arrays, target=CUDA, cache="cold")

        bare = BareBuild(text, "sm_90a", {})
        pairs = [
            (timed(ours), timed(lambda b=bare: b.build("cold")))  # type: ignore[misc]
            for _ in range(rounds)
        ]
        ratio = statistics.median(a / b for a, b in pairs)
        yield Bar(
            f"{name} to a cubin, cold, against a bare NVRTC call on its text",
            f"<= {limit} x",
            f"{ratio:.3f} x ({median_ms([a for a, _ in pairs]):.1f} against "
            f"{median_ms([b for _, b in pairs]):.1f} ms)",
            ratio <= limit,
            "python ci/build_bars.py --only cubins",
        )


def share(rounds: int = 31) -> Iterator[Bar]:
    """Our own phases of a build: everything before a compiler has the text."""
    limits = {"adam": 2.0, "bias_layernorm": 4.0}
    for row in rows(limits, ("cpu", CUDA), "cold", rounds):
        limit = limits[row.point.kernel]
        parts = {name: row.phases[name] / 1e6 for name in OWN}
        total = sum(parts.values())
        yield Bar(
            f"our share of {row.point.kernel}, {row.point.target}",
            f"<= {limit:g} ms",
            f"{total:.2f} ms ({', '.join(f'{n} {t:.2f}' for n, t in parts.items())})",
            total <= limit,
            "python ci/build_bars.py --only share",
        )


def warm(rounds: int = 301) -> Iterator[Bar]:
    """Find builds that this process, or another before it, has made already."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEELYARD_CACHE"] = folder
        disk.cache_clear()
        for cache, limit in (("warm-memory", 5), ("warm-disk", 1000)):
            for row in rows(("adam", "bias_layernorm"), ("cpu", CUDA), cache, rounds):
                taken = row.estimate.value / 1e3
                yield Bar(
                    f"{cache} build of {row.point.kernel}, {row.point.target}",
                    f"<= {limit} us",
                    f"{taken:.1f} us",
                    taken <= limit,
                    "python ci/build_bars.py --only warm",
                )


def rows(
    kernels: Iterable[str], targets: Iterable[str], cache: str, rounds: int
) -> list[Row]:
    """Build kernels at their axes' defaults for targets, all in turn."""
    points = [
        Point(name, (), tuple(specs(name)), target)
        for name in kernels
        for target in targets
    ]
    found, _ = measured(points, cache, rounds)
    for row in found:
        if row.error:
            raise KernelError(f"{row.point.label}: {row.error}")
    return found


def together(chosen: Sequence[Candidate], largest: int = 64) -> Batch:
    """Build candidates cold, at most so many a program; raise what went wrong."""
    batch = build_all(chosen, target=CUDA, levels=frozenset(), largest=largest)
    for one in batch.results:
        if isinstance(one, Failure):
            raise one.cause
    return batch


def groups(rounds: int = 5) -> Iterator[Bar]:
    """64 small candidates: together, one NVRTC program each, one nvcc each."""
    command = "python ci/build_bars.py --only groups"
    chosen = {kernels: small(kernels, CUDA) for kernels in FROM}
    times = {kernels: against_single(some, rounds) for kernels, some in chosen.items()}
    ratio, grouped, single = times["mixed"]
    beside = ", ".join(
        f"of {kernels} alone {found[0]:.1f} x"
        for kernels, found in times.items()
        if kernels != "mixed"
    )
    yield Bar(
        "64 candidates of distinct codes, the shortest texts of copy, triad, scale and "
        "adam_m: one group against one NVRTC program each, equal threads",
        ">= 8 x",
        f"{ratio:.1f} x ({grouped:.2f} against {single:.2f} s); {beside}",
        ratio >= 8,
        command,
    )
    one = nvcc(chosen["mixed"], 4)
    if one is None:
        yield Bar(
            "the same against one nvcc each",
            ">= 100 x",
            "no nvcc",
            None,
            command,
        )
        return
    whole = one * len(chosen["mixed"])
    yield Bar(
        "the same against one nvcc each, as many at once (4 measured, times 16)",
        ">= 100 x",
        f"{whole / grouped:.0f} x ({whole:.1f} s)",
        whole / grouped >= 100,
        command,
    )


def against_single(
    some: Sequence[Candidate], rounds: int
) -> tuple[float, float, float]:
    """Return how many times faster a group is, its seconds, and those of one each."""
    pairs = [
        (timed(lambda: together(some)), timed(lambda: together(some, 1)))
        for _ in range(rounds)
    ]
    return (
        statistics.median(b / a for a, b in pairs),
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
    )


def nvcc(chosen: Sequence[Candidate], count: int) -> float | None:
    """Return the seconds a candidate costs when each has an nvcc, all threads busy."""
    import shutil
    from concurrent.futures import ThreadPoolExecutor

    beside = next(
        (p for p in Path(sys.prefix).glob("lib/*/site-packages/nvidia/cu13/bin/nvcc")),
        None,
    )
    found = shutil.which("nvcc") or (str(beside) if beside else None)
    if found is None:
        return None
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:

        def compiled(place: int) -> None:
            one = chosen[place]
            text = build(one.program, one.schedule, target=CUDA, levels=frozenset())
            assert isinstance(text, Artifact)
            source = Path(folder, f"{place}.cu")
            source.write_text(text.text)
            command = [
                found,
                "-cubin",
                "-arch=sm_90a",
                "-o",
                f"{source}bin",
                str(source),
            ]
            subprocess.run(command, check=True, capture_output=True)

        compiled(0)  # the tools are read from disk once
        with ThreadPoolExecutor(threads) as pool:
            began = perf_counter()
            list(pool.map(compiled, range(count)))
            return (perf_counter() - began) / count


def space(rounds: int = 3) -> Iterator[Bar]:
    """All candidates of one LayerNorm."""
    every = candidates_of(library.bias_layernorm, *LAYERNORM, target=CUDA)
    taken = statistics.median(timed(lambda: together(every)) for _ in range(rounds))
    batch = together(every)
    distinct = len(batch.distinct)
    resources = all(
        one.code.resources for one in batch.results if isinstance(one, Artifact)
    )
    stages = ", ".join(
        f"{s.name} {s.nanoseconds / 1e9:.2f} summed {s.wall / 1e9:.2f} wall"
        for s in batch.stages
    )
    yield Bar(
        "all candidates of bias_layernorm 8192 x 768 float16, sm_90a, with resources",
        ">= 96 candidates, >= 48 distinct codes, <= 5 s",
        f"{len(every)} candidates, {distinct} distinct codes, {taken:.2f} s ({stages}; s)",
        len(every) >= 96 and distinct >= 48 and taken <= 5 and resources,
        "python ci/build_bars.py --only space",
    )


def architectures() -> Iterator[Bar]:
    """Every library kernel for every architecture."""
    taken: dict[str, float] = {}
    for row in rows(
        sorted(examples.SHAPES), (f"cuda:{arch}" for arch in GPUS), "cold", 3
    ):
        name = row.point.kernel
        taken[name] = taken.get(name, 0.0) + row.estimate.value / 1e9
    worst, name = max((seconds, name) for name, seconds in taken.items())
    yield Bar(
        f"six architectures of each of {len(examples.SHAPES)} library kernels",
        "<= 1 s a kernel",
        f"{worst:.2f} s at most ({name})",
        worst <= 1,
        "python ci/build_bars.py --only architectures",
    )


def local() -> Iterator[Bar]:
    """Local memory in any candidate of bias_layernorm."""
    count, asked, unasked = 0, 0, []
    for hidden in SIZES:
        for dtype in ("float16", "float32"):
            arrays = [((8192, hidden), dtype), *[((hidden,), dtype)] * 4]
            every = candidates_of(library.bias_layernorm, *arrays, target=CUDA)
            for one in together(every).results:
                assert isinstance(one, Artifact)
                resources = one.code.resources
                assert resources is not None
                count += 1
                uses = (
                    resources.stack or resources.local_loads or resources.local_stores
                )
                if uses and getattr(one.schedule, "registers", 0):
                    asked += 1
                elif uses:
                    unasked.append(f"{hidden} {dtype} {one.schedule.label}")
    yield Bar(
        f"local memory in {count} candidates of bias_layernorm, {len(SIZES)} sizes, "
        "float16 and float32, sm_90a",
        "none, unless the schedule limits registers",
        f"{len(unasked)} without a limit, {asked} with one" + "".join(unasked[:3]),
        not unasked,
        "python ci/build_bars.py --only local",
    )


def spans() -> Iterator[Bar]:
    """Time a span, off and on."""
    found = timings_cost.cost(60)
    for figure, name, limit in zip(found, ("off", "on"), (150, 500), strict=False):
        yield Bar(
            f"a span, {name}",
            f"<= {limit} ns",
            f"{figure:.0f} ns",
            figure <= limit,
            "python ci/build_bars.py --only spans",
        )


BARS: Final[dict[str, Callable[[], Iterator[Bar]]]] = {
    "cubins": cubins,
    "share": share,
    "warm": warm,
    "groups": groups,
    "space": space,
    "architectures": architectures,
    "local": local,
    "tracked": tracked,
    "spans": spans,
}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(BARS)))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
def main(only: Sequence[str], out: Path | None) -> None:
    """Weigh the bars, print them, and end with 1 if one is missed."""
    os.environ["STEELYARD_CACHE"] = "off"
    found = {name: list(BARS[name]()) for name in only or BARS}
    Console().print(bars.table(bar for some in found.values() for bar in some))
    if out is not None:
        before = json.loads(out.read_text())["bars"] if out.exists() else {}
        document = bars.document(before, found, BARS, "python ci/build_bars.py")
        out.write_text(json.dumps(document, indent=2) + "\n")
    sys.exit(any(bar.met is False for some in found.values() for bar in some))


if __name__ == "__main__":
    main()
