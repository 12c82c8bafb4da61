"""Hold the clocks of a GPU against cycles, against ncu, against each other, and themselves.

    python ci/gpu_clocks.py [delay|ncu|coverage|processes]...

Everything is measured by the product, in runs of its own suites. Prints a line a bar, and
ends with 1 if one is missed. As ``ncu ... python ci/gpu_clocks.py launches FILE NAME AXES
CACHE`` it launches one case some times, each between a profiler's marks: one launch says
little, for an H200's clock pulses and a kernel of 50 us takes 3 % more in half of it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence

import click
from measured import BOTH, COLD, WARM, measure

from steelyard.analyse import agreement
from steelyard.analyse.rows import Row, block_estimate
from steelyard.analyse.trial import Trial
from steelyard.process import profile, stage
from steelyard_device.cuda import profiler

LAUNCHES = 25
NCU_SECONDS = 120.0
"""In which ncu is done with a case; it takes about four."""
SURE = ("--precision", "0.1")


def bar(what: str, figure: str, *, met: bool) -> bool:
    """Print a bar."""
    click.echo(f"{'met   ' if met else 'MISSED'} {what}: {figure}")
    return met


def delay() -> bool:
    """Each clock's slope over kernels of known cycles is 1 within 0.5 %."""
    met = True
    for clock in ("cupti", "events"):
        asked = ("suites/probes.py", "-k", "gpu_delay", "--clock", clock)
        found = measure(*asked, "--blocks", "3")
        slope, offset = line(
            [
                (known(trial), block_estimate(trial).value)
                for row in found.rows
                for trial in row.trials
            ]
        )
        figure = f"slope {slope:.5f}, intercept {offset:.0f} ns"
        met &= bar(f"{clock} against cycles", figure, met=abs(slope - 1) <= 0.005)
    return met


def known(trial: Trial) -> float:
    """Return the nanoseconds that a delay's cycles take at the frequency it had."""
    megahertz = statistics.median(trial.samples.mhz)
    return float(trial.facts["cycles"]) / megahertz * 1e3


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the least squares of relative errors.

    Weighted by 1/x: a per mille is as much at 2 us as at 2 ms.
    """
    weights = [1 / x for x, _ in points]
    total = sum(weights)
    x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    over = sum(w * (a - x) * (b - y) for w, (a, b) in zip(weights, points, strict=True))
    under = sum(w * (a - x) ** 2 for w, (a, _) in zip(weights, points, strict=True))
    return over / under, y - over / under * x


def ncu() -> bool:
    """Kernels of 30 us and more take within 3 % of what Nsight Compute says."""
    sizes = "n=1048576,3145728,16777216,67108864,134217728"
    asked = ("suites/gpu.py", "-p", sizes, "-k", "gpu_copy", *BOTH, "--blocks", "3")
    gaps = [
        (row.estimate.value, theirs)
        for row in measure(*asked).rows
        if row.estimate and (theirs := counted(row.trials[0])) is not None
    ]
    far = [abs(ours / theirs - 1) for ours, theirs in gaps if ours >= 30e3]
    short = [f"{theirs - ours:+.0f} ns" for ours, theirs in gaps if ours < 30e3]
    figure = f"{max(far, default=1):.1%} of {len(far)}; below 30 us: {', '.join(short)}"
    return bar("kernels against ncu", figure, met=bool(far) and max(far) <= 0.03)


def counted(trial: Trial) -> float | None:
    """Have ncu time a trial's case; return the median, or say why there is none."""
    case = [trial.hashes["file"], trial.case.split("[")[0]]
    case += [json.dumps(dict(trial.axes)), trial.mode.split("/")[1]]
    program = [sys.executable, __file__, "launches", *case]
    metrics = [profile.METRICS["time_ns"]]
    said = stage.run(profile.command(program, metrics), NCU_SECONDS)
    times = [x.counted["time_ns"] for x in profile.parse(said.output) if x.counted]
    if len(times) == LAUNCHES:
        return statistics.median(times)
    why = profile.refusal(said.output, said.reason(), said.code)
    click.echo(f"{trial.case} {trial.mode}: {len(times)} launches; {why}", err=True)
    return None


def launches(*case: str) -> bool:
    """Launch a case for ncu, cold or warm each time."""
    _, prepare, _ = stage.opened(*case)
    staged = prepare()
    assert staged.context is not None
    for _ in range(LAUNCHES):
        for _, step in staged.before:
            step()
        staged.work.wait()
        with profiler.marked(staged.context):
            staged.work.launch(1)
            staged.work.wait()
    return True


def coverage() -> bool:
    """Events' error bars hold what CUPTI reads of the same buffers in 95 % of cases."""
    cases = (
        "gpu_copy or gpu_peers_matmul and torch or "
        "gpu_layernorm and ours and (hidden=768 or hidden=5140)"
    )
    asked = ("suites/gpu.py", "suites/peers.py", "-k", cases, *BOTH, "--clock", "all")
    found = measure(*asked, *SURE, "--blocks", "7")
    read = [agreement.readings(t) for row in found.rows for t in row.trials]
    pairs = [(one["events"], one["cupti"].value) for one in read if "events" in one]
    held = sum(one.low <= truth <= one.high for one, truth in pairs)
    narrow = sum((e.high - e.low) / 2 <= 200 + 0.01 * truth for e, truth in pairs)
    return bar(
        "events' error bars hold CUPTI's time, and are at most 0.2 us + 1 %",
        f"{held} and {narrow} of {len(pairs)}",
        met=held >= 0.95 * len(pairs) and narrow == len(pairs) > 0,
    )


def processes() -> bool:
    """Nine of ten fresh processes agree about each case."""
    cases = (
        "n=4194304 or n=16777216 or n=26214400 or n=67108864 or gpu_softmax or "
        "gpu_layernorm and not hidden=20480"
    )
    found = measure("suites/gpu.py", "-k", cases, *BOTH, *SURE, "--blocks", "10")
    met = True
    for mode, limit in ((WARM, 0.01), (COLD, 0.02)):
        kept = {
            row.case: agreeing(row, limit)
            for row in found.rows
            if row.mode == mode and row.estimate and row.estimate.value >= 5e3
        }
        good = [case for case, share in kept.items() if share >= 0.9]
        what = f"{mode} within {limit:.0%} or a tick in 9 of 10 processes"
        figure = f"{len(good)} of {len(kept)} cases"
        met &= bar(what, figure, met=len(good) == len(kept) > 0)
    return met


def agreeing(row: Row, limit: float) -> float:
    """Return the share of blocks within a share, or a tick, of their median."""
    values = [block_estimate(trial).value for trial in row.trials]
    middle = statistics.median(values)
    tick = max(t.clock.quantum / t.samples.launches[0] for t in row.trials)
    room = max(limit * middle, tick)
    return statistics.fmean(abs(value - middle) <= room for value in values)


PARTS: dict[str, Callable[[], bool]] = {
    one.__name__: one for one in (delay, ncu, coverage, processes)
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["launches"]:
        sys.exit(not launches(*sys.argv[2:]))
    met = [PARTS[name]() for name in sys.argv[1:] or PARTS]
    sys.exit(not all(met))
