"""Weigh what the project promises of itself, and print each bar with its figure.

    python ci/bars.py [--only NAME]... [--out FILE]

Everything is measured by the product, in runs of its own suites; a ratio is of
neighbours in one run. With ``--out`` the figures are kept as JSON beside the command,
the commit and the machine: README.md is generated from such a file (ci/readme.py).
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from steelyard.analyse import stats
from steelyard.analyse.rows import Row, paired_ratio, rows
from steelyard.analyse.run import Run
from steelyard.store.store import Store
from steelyard_device import cpu

PYTHON: Final = sys.executable
STEELYARD: Final = str(Path(sys.executable).with_name("steelyard"))
COLD: Final = "kernel/cold"
WARM: Final = "kernel/warm"


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise with what was measured."""

    what: str
    bar: str
    figure: str
    met: bool | None
    """None where something needed is not installed."""
    command: str


@dataclass(frozen=True, slots=True)
class Weighed:
    """One run of the product, read back from its store."""

    run: Run
    rows: list[Row]
    command: str

    def row(self, case: str, mode: str) -> Row:
        """Return a row by case and mode."""
        for one in self.rows:
            if (one.case, one.mode) == (case, mode):
                return one
        raise click.ClickException(f"{self.command} has no row {case} {mode}")

    def ratio(self, case: str, base: Sequence[str], mode: str) -> stats.Estimate:
        """Return time of ``case`` over the fastest of ``base``, paired by block."""
        yardsticks = [self.row(one, mode) for one in base]
        fastest = min(
            yardsticks, key=lambda r: r.estimate.value if r.estimate else 1e99
        )
        found = paired_ratio(self.row(case, mode).trials, fastest.trials)
        assert found is not None
        return found


def weigh(*arguments: str) -> Weighed:
    """Run the product on its suites and read back what it stored."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/bars.db"
        command = [STEELYARD, "run", *arguments]
        subprocess.run(
            [*command, "--store", store], check=True, stdout=subprocess.DEVNULL
        )
        with Store.open(store) as kept:
            run = kept.runs()[0]
            trials = kept.trials(run.uid)
    return Weighed(run, rows(trials), "steelyard " + " ".join(command[1:]))


def adam() -> Iterator[Bar]:
    """Adam against an in-place scale of the same three streams."""
    found = weigh(
        "suites/adam.py", "-p", "n=4194304", "-p", "impl=ours,scale",
        "--mode", COLD, "--blocks", "12",
    )  # fmt: skip
    ratio = found.ratio(
        "adam[n=4194304,impl=scale]", ["adam[n=4194304,impl=ours]"], COLD
    )
    yield Bar(
        "adam 4.2 M float32, cold: rate over that of an in-place three-stream scale",
        ">= 95 %",
        f"{100 * ratio.value:.1f} % [{100 * ratio.low:.1f}, {100 * ratio.high:.1f}]",
        ratio.value >= 0.95,
        found.command,
    )


def layernorm() -> Iterator[Bar]:
    """LayerNorm against the fastest copy, and against torch.compile where it is."""
    found = weigh(
        "suites/bias_layernorm.py", "-p", "hidden=768,4096,5140",
        "-k", "ours or copy or inductor", "--mode", COLD, "--mode", WARM,
        "--blocks", "8",
    )  # fmt: skip
    limits = {("float32", COLD): 2.0, ("float16", COLD): 2.3}
    limits |= {("float32", WARM): 2.0, ("float16", WARM): 4.0}
    for (dtype, mode), limit in limits.items():
        for hidden in (768, 4096, 5140):
            yield from _layernorm(found, f"hidden={hidden},dtype={dtype}", mode, limit)


def _layernorm(found: Weighed, point: str, mode: str, limit: float) -> Iterator[Bar]:
    ours, *copies = (
        f"bias_layernorm[{point},impl={impl}]"
        for impl in ("ours", "copy", "copy_streaming")
    )
    ratio = found.ratio(ours, copies, mode)
    fastest = max(found.row(one, mode).rate("bytes") or 0 for one in copies)
    yield Bar(
        f"bias_layernorm 1024 rows, {point}, {mode}: time over the fastest copy",
        f"<= {limit} x",
        f"{ratio.value:.2f} x [{ratio.low:.2f}, {ratio.high:.2f}] "
        f"(copy {fastest / 1e9:.0f} GB/s)",
        ratio.value <= limit,
        found.command,
    )
    peer = f"bias_layernorm[{point},impl=inductor]"
    wanted = 1.0 if mode == COLD else 2.0
    what = f"bias_layernorm 1024 rows, {point}, {mode}: torch.compile's time over ours"
    if any(one.case == peer for one in found.rows):
        against = found.ratio(peer, [ours], mode)
        figure = f"{against.value:.2f} x [{against.low:.2f}, {against.high:.2f}]"
        met = against.value > wanted if mode == COLD else against.value >= wanted
        yield Bar(what, f">= {wanted:g} x", figure, met, found.command)
    else:
        figure = "torch is not installed"
        yield Bar(what, f">= {wanted:g} x", figure, None, found.command)


def delay() -> Iterator[Bar]:
    """Weigh work of known length; every N must give the same nanoseconds a step.

    The null launch, weighed in the same run, is taken off; nothing is fitted.
    """
    found = weigh(
        "suites/probes.py", "--mode", "kernel/warm/dependent", "--blocks", "6"
    )
    hand_over = found.row("nothing[threads=1]", "kernel/warm/dependent").estimate
    assert hand_over is not None
    steps = {
        row.axes["steps"]: (row.estimate.value - hand_over.value) / row.axes["steps"]
        for row in found.rows
        if "steps" in row.axes and row.estimate is not None
    }
    longest = steps[max(steps)]
    worst = max(abs(one / longest - 1) for one in steps.values())
    yield Bar(
        f"a kernel of N dependent steps, N = {min(steps)} ... {max(steps)}: "
        "nanoseconds a step beside the longest's",
        "<= 1 %",
        f"{100 * worst:.2f} % of {longest:.4f} ns (null launch {hand_over.value:.1f} ns)",
        worst <= 0.01,
        found.command,
    )


def null() -> Iterator[Bar]:
    """Time a window of one null launch beside an empty one, taken in turn."""
    nothing = cpu.null()
    with cpu.pinned():
        pairs = [(_window(nothing, 0), _window(nothing, 1)) for _ in range(10_001)]
    empty = statistics.median(pair[0] for pair in pairs)
    one = statistics.median(pair[1] for pair in pairs)
    yield Bar(
        "null launch in the native loop over the empty window",
        "<= 20 ns",
        f"{one - empty:.1f} ns ({one:.0f} over {empty:.0f})",
        one - empty <= 20,
        "python ci/bars.py --only null",
    )


def _window(launch: cpu.Launch, count: int) -> int:
    start, stop = launch.window(count)
    return stop - start


RUNS: Final = 10
REFERENCE: Final = "copy[n=4194304,impl=ours]"
AGREEING: Final = "impl=ours and not n=100 and not hidden=1600 and not hidden=5140"


def agreement() -> Iterator[Bar]:
    """Ten cases weighed beside a reference, in ten separate runs."""
    runs = [
        weigh(
            "suites/memory.py", "suites/adam.py", "suites/softmax.py",
            "suites/bias_layernorm.py",
            "-k", AGREEING, "--mode", COLD, "--mode", WARM, "--blocks", "5",
            "--seed", str(seed),
        )
        for seed in range(RUNS)
    ]  # fmt: skip
    keys = [(r.case, r.mode) for r in runs[0].rows if r.case != REFERENCE]
    agree = total = 0
    for case, mode in keys:
        ratios = [run.ratio(case, [REFERENCE], mode) for run in runs]
        for a, b in itertools.combinations(ratios, 2):
            total += 1
            agree += abs(math.log(a.value / b.value)) <= a.half_width + b.half_width
    yield Bar(
        f"{RUNS} runs of {len({case for case, _ in keys})} cases beside {REFERENCE}: "
        "pairs of ratios that agree within their intervals",
        ">= 90 %",
        f"{100 * agree / total:.1f} % of {total}",
        agree / total >= 0.9,
        runs[0].command,
    )


def builds() -> Iterator[Bar]:
    """Build with no cache of any level, and a second time."""
    found = weigh("suites/build.py", "--blocks", "5")
    for kernel, limit in (("empty", 1.5), ("adam", 6.0), ("bias_layernorm", 15.0)):
        for mode, unit, scale, bar in (
            ("build/cold", "ms", 1e6, limit),
            ("build/warm-memory", "us", 1e3, 5.0),
        ):
            estimate = found.row(f"build[kernel={kernel}]", mode).estimate
            assert estimate is not None
            yield Bar(
                f"{kernel}, {mode}",
                f"<= {bar:g} {unit}",
                f"{estimate.value / scale:.2f} {unit} "
                f"[{estimate.low / scale:.2f}, {estimate.high / scale:.2f}]",
                estimate.value / scale <= bar,
                found.command,
            )
    first = found.row("build[kernel=adam]", "build/first").estimate
    assert first is not None
    yield Bar(
        "first kernel in a fresh process, imports included",
        "<= 0.25 s",
        f"{first.value / 1e9:.3f} s [{first.low / 1e9:.3f}, {first.high / 1e9:.3f}]",
        first.value / 1e9 <= 0.25,
        found.command,
    )


def cost() -> Iterator[Bar]:
    """Say what the harness costs: the whole suite at the default budget."""
    started = perf_counter()
    found = weigh("suites")
    wall = perf_counter() - started
    trials = sum(len(row.trials) for row in found.rows)
    yield Bar(
        "harness: wall over trials of the whole suite, everything in",
        "<= 1.0 s",
        f"{wall / trials:.2f} s ({trials} trials)",
        wall / trials <= 1.0,
        found.command,
    )
    yield Bar(
        "make bench, after set-up",
        "<= 120 s",
        f"{wall:.0f} s",
        wall <= 120,
        "make bench",
    )


def start() -> Iterator[Bar]:
    """Start the command and import the library, in turn."""
    help_, import_, bare = [], [], []
    for _ in range(21):
        help_.append(_wall(STEELYARD, "--help"))
        import_.append(_wall(PYTHON, "-c", "import steelyard"))
        bare.append(_wall(PYTHON, "-c", "pass"))
    python = statistics.median(bare)
    shown = statistics.median(help_)
    imported = statistics.median(b - a for a, b in zip(bare, import_, strict=True))
    again = "python ci/bars.py --only start"
    yield Bar("steelyard --help", "<= 0.15 s", f"{shown:.3f} s", shown <= 0.15, again)
    figure = f"{imported:.3f} s (bare Python {python:.3f} s)"
    yield Bar("import steelyard", "<= 0.05 s", figure, imported <= 0.05, again)


def _wall(*command: str) -> float:
    began = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


BARS: Final[dict[str, Callable[[], Iterator[Bar]]]] = {
    "start": start,
    "null": null,
    "delay": delay,
    "builds": builds,
    "adam": adam,
    "layernorm": layernorm,
    "agreement": agreement,
    "cost": cost,
}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(BARS)))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path))
def main(only: Sequence[str], out: Path | None) -> None:
    """Weigh the bars, print them, and end with 1 if one is missed."""
    found = {name: list(BARS[name]()) for name in only or BARS}
    Console().print(table(bar for bars in found.values() for bar in bars))
    if out is not None:
        before = json.loads(out.read_text())["bars"] if out.exists() else {}
        made = document(before, found, BARS, "python ci/bars.py")
        out.write_text(json.dumps(made, indent=2) + "\n")
    sys.exit(any(bar.met is False for bars in found.values() for bar in bars))


def table(found: Iterable[Bar]) -> Table:
    """Return the bars for a terminal."""
    shown = Table("", "what", "bar", "measured", title="bars")
    for bar in found:
        mark = {True: "met", False: "[red]missed", None: "not measured"}[bar.met]
        shown.add_row(mark, bar.what, bar.bar, bar.figure)
    return shown


def document(
    before: dict[str, Any],
    found: dict[str, list[Bar]],
    order: Iterable[str],
    command: str,
) -> dict[str, Any]:
    """Return the bars with what their figures depend on; those not found stay."""
    from steelyard.machine import facts as machine

    made = {name: [asdict(bar) for bar in bars] for name, bars in found.items()}
    return {
        "command": command,
        "machine": machine.describe(Path.cwd()),
        "bars": {
            name: {**before, **made}[name] for name in order if name in {*before, *made}
        },
    }


if __name__ == "__main__":
    main()
