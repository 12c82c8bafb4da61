"""Weigh what the project promises of loops, and print each bar with its figure.

    python ci/loop_bars.py [--on cpu|cuda] [--only NAME]... [--seconds N]
        [--commit HASH] --out FOLDER

FOLDER gets ``cpu-loops.json``, or that of a GPU under its name, and the runs whose tables
docs/measured.md shows. Noise is drawn within the loop on both sides where a bar does not say
otherwise. See ci/gpu_bars.py for how a campaign goes.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click
from bars import Bar, Weighed
from gpu_rows import WARM, Campaign, script
from sections import Sections, hold

from steelyard.report import curves
from steelyard_kernels import library
from steelyard_kernels.artifact import Failure
from steelyard_kernels.library import examples

CUDA: Final = "cuda:sm_90a"
DTYPES: Final = ("float32", "float64")
SEED: Final = "the thread's program, 1 -> 12 -> 1, 8000 iterations"
BLOCKS: Final = ("--blocks", "6")


def time_of(found: Weighed, case: str, what: str, limit: float) -> Bar:
    """Hold a row's time against milliseconds."""
    estimate = found.row(case, WARM).estimate
    assert estimate is not None
    value, low, high = (x / 1e6 for x in (estimate.value, estimate.low, estimate.high))
    figure = f"{value:.3f} ms [{low:.3f}, {high:.3f}]"
    return Bar(what, f"<= {limit:g} ms", figure, value <= limit, found.command)


def ways(campaign: Campaign) -> Iterator[Bar]:
    """Launch the thread's program in every way on a CPU, JAX's among them."""
    found = campaign.weigh(
        "suites/loops.py", "-k", "not gpu_ and not gradient", *BLOCKS, keep="loops-ways"
    )
    for dtype, limit in zip(DTYPES, (0.6, 0.9), strict=True):
        ours = f"noisy_mlp[dtype={dtype},impl=ours]"
        yield time_of(found, ours, f"{SEED}, one core, {dtype}", limit)
        for impl, words in (
            ("jax_within", "JAX's scan, noise within as ours"),
            ("jax", "JAX's scan of noise drawn ahead"),
        ):
            yield against(found, ours, ours.replace("=ours", f"={impl}"), words, dtype)


def against(found: Weighed, ours: str, theirs: str, words: str, dtype: str) -> Bar:
    """Hold ours against JAX's of the same run."""
    what, bar = f"the same, {dtype}: time of {words}, over ours", "> 1 x"
    if theirs not in {row.case for row in found.rows}:
        return Bar(what, bar, "JAX is not installed", None, found.command)
    ratio = found.ratio(theirs, [ours], WARM)
    figure = f"{ratio.value:.2f} x [{ratio.low:.2f}, {ratio.high:.2f}]"
    return Bar(what, bar, figure, ratio.low > 1, found.command)


def gpu_ways(campaign: Campaign) -> Iterator[Bar]:
    """Launch the program in every way on a GPU."""
    found = campaign.weigh(
        "suites/loops.py", "-k", "gpu_ and not gradient",
        "--blocks", "4", keep="loops-ways",
    )  # fmt: skip
    for dtype, limit in zip(DTYPES, (1.5, 3), strict=True):
        ours = f"gpu_noisy_mlp[dtype={dtype},impl=ours]"
        yield time_of(found, ours, f"{SEED}, one chain on a GPU, {dtype}", limit)


def gpu_jax(campaign: Campaign) -> Iterator[Bar]:
    """Run the thread's listings in JAX on the same GPU; they have no bar of their own."""
    said = script("loop_jax.py")
    place = campaign.folder / f"{campaign.prefix}-loops-jax.json"
    place.write_text(json.dumps(said, indent=1) + "\n")
    yield from ()


def gradient(campaign: Campaign) -> Iterator[Bar]:
    """Go forward and back on a CPU, beside JAX; it has no bar."""
    campaign.weigh(
        "suites/loops.py", "-k", "gradient and not gpu_", *BLOCKS, keep="loops-gradient"
    )
    yield from ()


def gpu_gradient(campaign: Campaign) -> Iterator[Bar]:
    """Go forward and back in one kernel on a GPU."""
    found = campaign.weigh(
        "suites/loops.py", "-k", "gpu_ and gradient",
        "--blocks", "4", keep="loops-gradient",
    )  # fmt: skip
    for dtype in DTYPES:
        case = f"gpu_noisy_mlp_gradient[dtype={dtype}]"
        what = f"forward and backward of the same, one kernel on a GPU, {dtype}"
        yield time_of(found, case, what, 4)


def chains(campaign: Campaign) -> Iterator[Bar]:
    """Run 2048 chains on a GPU beside one."""
    found = campaign.weigh(
        "suites/loop_sizes.py", "-k", "gpu_", "-p", "units=12", "-p", "chains=1,2048",
        "-p", "iterations=8000", "-p", "dtype=float32,float64",
        "--blocks", "4", keep="loops-chains",
    )  # fmt: skip
    for dtype in DTYPES:
        one, many = (
            f"gpu_noisy_mlp_sizes[units=12,chains={n},iterations=8000,dtype={dtype}]"
            for n in (1, 2048)
        )
        ratio = found.ratio(many, [one], WARM)
        yield Bar(
            f"the same, 2048 chains over one chain, {dtype}",
            "<= 1.3 x",
            f"{ratio.value:.3f} x [{ratio.low:.3f}, {ratio.high:.3f}]",
            ratio.value <= 1.3,
            found.command,
        )


def launches(_campaign: Campaign) -> Iterator[Bar]:
    """Have CUPTI count the kernels of 8000 iterations."""
    said = script("loop_launches.py")
    kernels, count = said["kernels"], said["iterations"]
    others = ", ".join(f"{n} {each}" for n, each in kernels.items() if n != "ours")
    yield Bar(
        "kernels an iteration, counted by CUPTI",
        f"1/{count}",
        f"{kernels['ours']}/{count} ({others})",
        kernels["ours"] == 1,
        "python ci/loop_launches.py",
    )


ROUNDS: Final = 15
FRESH: Final = 5


def builds(_campaign: Campaign) -> Iterator[Bar]:
    """Build the program with no cache, beside what JAX's first call takes."""
    command = "python ci/loop_bars.py --only builds"
    for target, limit in (("cpu", 30), (CUDA, 150)):
        for dtype in DTYPES:
            wall, phases = built(target, dtype)
            yield Bar(
                f"the same to {'a cubin' if target == CUDA else 'code'}, no cache: "
                f"{target}, {dtype}",
                f"<= {limit} ms",
                f"{wall:.1f} ms ({phases})",
                wall <= limit,
                command,
            )
    for dtype in DTYPES:
        ours, theirs = (first(whose, dtype) for whose in ("ours", "jax"))
        yield Bar(
            f"first call in a fresh process, imports apart, {dtype}: JAX's scan over "
            "ours",
            "> 1 x",
            "JAX is not installed"
            if ours is None or theirs is None
            else f"{theirs / ours:.1f} x ({theirs:.0f} ms over {ours:.0f} ms)",
            None if ours is None or theirs is None else theirs > ours,
            f"python ci/loop_first.py ours {dtype}",
        )


def built(target: str, dtype: str) -> tuple[float, str]:
    """Return milliseconds of cold builds and those of their phases, medians."""
    specs: Sequence[Any] = examples.specs("noisy_mlp", {"dtype": dtype})
    walls, phases = [], []
    for _ in range(ROUNDS):
        began = perf_counter()
        found = library.noisy_mlp.build(*specs, target=target, cache="cold")
        walls.append(1e3 * (perf_counter() - began))
        if isinstance(found, Failure):
            raise found.cause
        phases.append(dict(found.phases))
    median = statistics.median
    each = {n: median(p.get(n, 0) for p in phases) / 1e6 for n in phases[-1]}
    return median(walls), ", ".join(f"{n} {ms:.1f}" for n, ms in each.items())


def first(whose: str, dtype: str) -> float | None:
    """Return milliseconds of first calls, the median process; None without JAX."""
    from importlib.util import find_spec

    if find_spec("jax") is None:
        return None
    every = [script("loop_first.py", whose, dtype)["seconds"] for _ in range(FRESH)]
    return 1e3 * float(statistics.median(every))


def claims(campaign: Campaign) -> Iterator[Bar]:
    """Weigh what the thread says costs something, on a CPU; it has no bar."""
    campaign.weigh(
        "suites/loop_claims.py", "-k", "not gpu_", "--blocks", "4", keep="loops-claims"
    )
    yield from ()


def gpu_claims(campaign: Campaign) -> Iterator[Bar]:
    """Weigh the same on a GPU."""
    campaign.weigh(
        "suites/loop_claims.py", "-k", "gpu_", "--blocks", "3", keep="loops-claims"
    )
    yield from ()


def sizes(campaign: Campaign) -> Iterator[Bar]:
    """Weigh chains by width on a GPU and on the cores beside it, in one run."""
    found = campaign.weigh(
        "suites/loop_sizes.py", "-p", "units=1,12,64,256", "-p", "chains=1,16,256,4096",
        "--blocks", "2", keep="loops-sizes",
    )  # fmt: skip
    picture = campaign.folder / f"{campaign.prefix}-loops-sizes.svg"
    curves.write(str(picture), found.rows, "chains")  # as --across chains --plot does
    yield from ()


CPU: Final[Sections] = {
    "ways": ways,
    "gradient": gradient,
    "builds": builds,
    "claims": claims,
}
GPU: Final[Sections] = {
    "ways": gpu_ways,
    "jax": gpu_jax,
    "gradient": gpu_gradient,
    "chains": chains,
    "launches": launches,
    "claims": gpu_claims,
    "sizes": sizes,
}


@click.command()
@click.option("--on", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option(
    "--only", multiple=True, type=click.Choice([*dict.fromkeys([*CPU, *GPU])])
)
@click.option("--seconds", type=float, help="Begin no section after so many.")
@click.option("--commit", help="What is weighed, where no checkout says so.")
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True
)
def main(
    on: str,
    only: Sequence[str],
    seconds: float | None,
    commit: str | None,
    folder: Path,
) -> None:
    """Weigh the bars, print them, and end with 1 if one is missed."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix, facts, sections = "cpu", None, CPU
    if on == "cuda":
        from steelyard.machine import gpu_choice
        from steelyard_device import cuda

        (prefix,) = re.findall(r"[a-z]+\d+", cuda.device().name.lower())[:1] or ["gpu"]
        facts, sections = gpu_choice.facts(0), GPU
    campaign = Campaign(folder.resolve(), prefix, commit or "")
    out = folder / f"{prefix}-loops.json"
    command = f"python ci/loop_bars.py --on {on}"
    unknown = [name for name in only if name not in sections]
    if unknown:
        raise click.UsageError(f"--on {on} has no section {', '.join(unknown)}.")
    sys.exit(
        hold(campaign, sections, only, out, command=command, seconds=seconds, gpu=facts)
    )


if __name__ == "__main__":
    main()
