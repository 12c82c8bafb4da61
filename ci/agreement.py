"""Hold runs against each other, and a case alone against the same among others.

    python ci/agreement.py runs        ten runs: ratios to a copy within their intervals
    python ci/agreement.py alone PATH [WORDS]  each case together and alone
    python ci/agreement.py cost        what a trial of the whole suite costs, everything in
    python ci/agreement.py openmp      a launch behind a region of GNU OpenMP

Each ends with 1 where its bar is missed.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from time import perf_counter, perf_counter_ns

import click
import numpy as np
from measured import BOTH, WARM, measure

from steelyard.analyse.rows import paired_ratio
from steelyard.analyse.stats import Estimate
from steelyard_device import llvm
from steelyard_kernels import kernel

REFERENCE = "copy[n=4194304,impl=ours]"
CASES = "impl=ours and not n=100 and not hidden=1600 and not hidden=5140"
RUNS = 10


def runs() -> bool:
    """Return whether 90 % of pairs of ten runs agree within their intervals."""
    suites = [f"suites/{n}.py" for n in ("memory", "adam", "softmax", "bias_layernorm")]
    every = []
    for seed in range(RUNS):
        found = measure(
            *suites, "-k", CASES, *BOTH, "--blocks", "5", "--seed", str(seed)
        )
        known = {(row.case, row.mode): row for row in found.rows}
        every.append(
            {
                key: paired_ratio(row.trials, known[REFERENCE, row.mode].trials)
                for key, row in known.items()
                if row.case != REFERENCE
            }
        )
    agree = total = 0
    for key in every[0]:
        for a, b in itertools.combinations([one[key] for one in every], 2):
            assert a is not None
            assert b is not None
            total += 1
            agree += abs(math.log(a.value / b.value)) <= a.half_width + b.half_width
    click.echo(f"{agree} of {total} pairs of ratios agree; the bar is 90 %")
    return agree >= 0.9 * total


def alone(place: str, words: str = "") -> bool:
    """Return whether 95 % of cases take the same alone as among others.

    The others are measured before and after: what differs between these two is the
    machine, and how often they agree says what 95 % can mean on it.
    """
    chosen = ("-k", words) if words else ()
    before = measure(place, *chosen, "--mode", WARM)
    cases = [row.case for row in before.rows if row.estimate is not None]
    ones = {case: measure(place, "-k", case, "--mode", WARM) for case in cases}
    after = measure(place, *chosen, "--mode", WARM)
    agree = steady = 0
    for case in cases:
        one = ones[case].estimate(case, WARM)
        first, last = (every.estimate(case, WARM) for every in (before, after))
        same = _meet(one, first) or _meet(one, last)
        agree += same
        steady += _meet(first, last)
        said = "agrees" if same else "DIFFERS"
        ratios = f"{one.value / first.value:.3f}  {one.value / last.value:.3f}"
        click.echo(f"{said}  {ratios}  {case}")
    click.echo(f"{steady} of {len(cases)} cases take the same among others twice")
    click.echo(f"{agree} of {len(cases)} cases take the same alone; the bar is 95 %")
    return agree >= 0.95 * len(cases)


def _meet(a: Estimate, b: Estimate) -> bool:
    return a.low <= b.high and b.low <= a.high


def cost() -> bool:
    """Return whether a trial of the whole suite takes at most a second, all in."""
    began = perf_counter()
    found = measure("suites")
    each = (perf_counter() - began) / sum(len(row.trials) for row in found.rows)
    click.echo(f"{each:.2f} s a trial; the bar is 1 s")
    return each <= 1


def openmp() -> bool:
    """Return whether a launch takes at most twice as long while OpenMP's threads spin."""
    text = "define void @region(ptr %data) {\n  ret void\n}"
    region = ctypes.c_void_p(llvm.link(llvm.assemble(text), ["region"])["region"])
    parallel = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    x = np.ones(100_000, np.float32)
    bound = kernel(lambda x: x * 2).bind(x)

    def taken(*, behind: bool) -> int:
        if behind:
            parallel(region, None, 0, 0)
        began = perf_counter_ns()
        bound.launch()
        return perf_counter_ns() - began

    times: dict[bool, list[int]] = {False: [], True: []}
    for _ in range(20):
        for behind, every in times.items():
            every += [taken(behind=behind) for _ in range(50)]
    ratio = statistics.median(times[True][50:]) / statistics.median(times[False][50:])
    click.echo(f"{ratio:.3f} x behind a region of OpenMP; the bar is 2 x")
    return ratio <= 2


PARTS: dict[str, Callable[..., bool]] = {
    one.__name__: one for one in (runs, alone, cost, openmp)
}

if __name__ == "__main__":
    sys.exit(not PARTS[sys.argv[1]](*sys.argv[2:]))
