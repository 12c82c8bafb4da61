"""The tables of docs/measured.md that ci/loop_bars.py keeps the runs of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from readme_results import (
    RESULTS,
    Suite,
    bar_table,
    provenance,
    table,
    time,
)

from steelyard import units
from steelyard.analyse.stats import Estimate
from steelyard.report.curves import Curve, overtaken

WARM: Final = "kernel/warm"
CALL: Final = "per_launch/warm"
GRAPH: Final = "per_launch/warm/graph"
DTYPES: Final = ("float32", "float64")

WAYS: Final[Mapping[str, str]] = {
    "launches": "a launch for each iteration",
    "graph": "the same as one CUDA graph",
    "chunks": "a launch for each hundred iterations",
    "chunks graph": "the same as one CUDA graph",
    "ahead": "noise by a kernel of its own, then one kernel",
    "given": "one kernel, number of iterations given at launch",
    "ours": "one kernel",
    "from_jax": "one kernel: the second listing with our decorator",
    "jax_while": "JAX: the first listing, a while with noise in it",
    "jax_within": "JAX: a scan with noise in it",
    "jax": "JAX: the second listing, a scan of noise drawn ahead",
    "gradient": "forward and backward, one kernel",
    "jax_gradient": "JAX: forward and backward of the second listing",
}


def cpu_bars() -> Iterator[str]:
    """Every bar of ci/loop_bars.py on a CPU with its figure."""
    yield from bar_table(RESULTS / "cpu-loops.json")


def gpu_bars() -> Iterator[str]:
    """Every bar of ci/loop_bars.py on a GPU with its figure."""
    yield from bar_table(RESULTS / "h200-loops.json")


def ways() -> Iterator[str]:
    """Set every way to run the thread's loop side by side, on a CPU and on a GPU."""
    cpu, gpu = _suite("cpu", "ways"), _suite("h200", "ways")
    yield "; ".join(map(provenance, (cpu, gpu)))
    yield ""
    columns = [*_on_cpu(cpu), *_on_gpu(gpu)]
    lines = [
        [words, *cells]
        for way, words in WAYS.items()
        if set(cells := [column(way) for column in columns]) != {"-"}
    ]
    heads = [f"{where}, {dtype}" for where in ("CPU", "GPU") for dtype in DTYPES]
    yield from table(["8000 iterations", *heads], lines)


def _on_cpu(suite: Suite) -> Iterator[Callable[[str], str]]:
    backward = _suite("cpu", "gradient")
    for dtype in DTYPES:

        def cell(way: str, dtype: str = dtype) -> str:
            if "gradient" in way:
                impl = "jax" if way.startswith("jax") else "ours"
                case = f"noisy_mlp_gradient[dtype={dtype},impl={impl}]"
                return time(backward.time(case, WARM))
            return time(suite.time(f"noisy_mlp[dtype={dtype},impl={way}]", WARM))

        yield cell


def _on_gpu(suite: Suite) -> Iterator[Callable[[str], str]]:
    """Yield cells of a GPU: what the host waits for, but of gradients the kernel."""
    backward = _suite("h200", "gradient")
    jax = json.loads((RESULTS / "h200-loops-jax.json").read_text())["rows"]
    for dtype in DTYPES:

        def cell(way: str, dtype: str = dtype) -> str:
            if way.startswith("jax"):
                found = (
                    f"{r['ms']:.1f} ms [{r['low']:.1f}, {r['high']:.1f}]"
                    for r in jax
                    if (r["platform"], r["dtype"], r["program"]) == ("gpu", dtype, way)
                )
                return next(found, "-")
            if way == "gradient":
                case = f"gpu_noisy_mlp_gradient[dtype={dtype}]"
                return time(backward.time(case, WARM))
            impl = {"graph": "launches"}.get(way, way.split(maxsplit=1)[0])
            mode = GRAPH if "graph" in way else CALL
            return time(suite.time(f"gpu_noisy_mlp[dtype={dtype},impl={impl}]", mode))

        yield cell


SAID: Final = (
    ("calling softplus costs 32 %", ("program", "no softplus")),
    ("the same, kept within the loop", ("softplus within", "no softplus")),
    ("sigmoid costs 10 %", ("program", "no sigmoid")),
    ("passing dtype costs 23 %", ("program", "dtype not passed")),
    ("64 bits cost 50 %", ("program", "float32")),
    ("maximum_iterations given non-statically costs 43 %", ("count given", "program")),
    ("unroll 2 takes 20 % off", ("unroll 2", "program")),
    ("the same, unroll 4", ("unroll 4", "program")),
    ("random numbers ahead, off the loop", ("program", "no noise")),
)
"""What the thread says, and which rows of the suite are one over the other."""


def claims() -> Iterator[str]:
    """Say what each thing costs that the thread says costs something."""
    sides = [(_suite("cpu", "claims"), ""), (_suite("h200", "claims"), "gpu_")]
    yield "; ".join(provenance(suite) for suite, _ in sides)
    yield ""
    heads = [f"{where}, {dtype}" for where in ("CPU", "GPU") for dtype in DTYPES]
    lines = [
        [
            said,
            *(
                _cost(suite, f"{prefix}noisy_mlp_claims", rows, dtype)
                for suite, prefix in sides
                for dtype in DTYPES
            ),
        ]
        for said, rows in SAID
    ]
    yield from table(["the thread", *heads], lines)


def _cost(suite: Suite, benchmark: str, rows: tuple[str, str], dtype: str) -> str:
    """Return by how many percent the first row takes longer than the second."""

    def case(claim: str, dtype: str) -> str:
        return f"{benchmark}[claim={claim.replace(' ', '%20')},dtype={dtype}]"

    new, base = rows
    if base in DTYPES:
        if dtype == base:
            return ""
        found = suite.ratio(case(new, dtype), case(new, base), WARM)
    else:
        found = suite.ratio(case(new, dtype), case(base, dtype), WARM)
    return percent(found)


def percent(found: Estimate | None) -> str:
    """Return a ratio as percent more or less, with its interval."""
    if found is None:
        return "-"
    value, low, high = (100 * (x - 1) for x in (found.value, found.low, found.high))
    return f"{round(value):+d} % [{round(low):+d}, {round(high):+d}]"


def sizes() -> Iterator[str]:
    """Set a GPU beside the cores of its host, by width and number of chains."""
    suite = _suite("h200", "sizes")
    yield provenance(suite)
    yield ""
    pairs = {
        point: (curve, _curves(suite, "gpu_noisy_mlp_sizes")[point])
        for point, curve in _curves(suite, "noisy_mlp_sizes").items()
    }
    chains = sorted({at for pair in pairs.values() for c in pair for at, _ in c.times})
    heads = ["units", *(f"{at:g} chains" for at in chains), "faster on the GPU from"]
    yield from table(heads, [_beside(*pairs[p], chains) for p in sorted(pairs)])
    yield ""
    yield "![times over chains](results/h200-loops-sizes.svg)"


def _curves(suite: Suite, benchmark: str) -> dict[int, Curve]:
    found: dict[int, dict[float, Estimate]] = {}
    for (case, mode), trials in suite.trials.items():
        if case.partition("[")[0] == benchmark:
            axes, estimate = trials[-1]["axes"], suite.time(case, mode)
            assert estimate is not None
            found.setdefault(int(axes["units"]), {})[float(axes["chains"])] = estimate
    return {n: Curve(benchmark, str(n), _sorted(t)) for n, t in found.items()}


def _sorted(times: Mapping[float, Estimate]) -> tuple[tuple[float, Estimate], ...]:
    return tuple((at, times[at]) for at in sorted(times))


def _beside(cpu: Curve, gpu: Curve, chains: Sequence[float]) -> list[str]:
    """Return a line: both times at each number of chains, and where they cross."""
    mine, others = dict(cpu.times), dict(gpu.times)

    def cell(at: float) -> str:
        both = [one.get(at) for one in (mine, others)]
        return " / ".join(units.duration(x.value) if x else "-" for x in both)

    *_, last = [0.0, *overtaken(cpu, gpu)]
    since = f"{last:.0f}" if last and not _back(cpu, gpu, last) else "-"
    return [cpu.point, *(cell(at) for at in chains), since]


def _back(cpu: Curve, gpu: Curve, last: float) -> bool:
    """Say whether the CPU is the faster one again further on."""
    return any(at > last for at in overtaken(gpu, cpu))


def _suite(side: str, name: str) -> Suite:
    return Suite(json.loads((RESULTS / f"{side}-loops-{name}.json").read_text()))


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "loop-bars": cpu_bars,
    "loop-gpu-bars": gpu_bars,
    "loop-ways": ways,
    "loop-claims": claims,
    "loop-sizes": sizes,
}
