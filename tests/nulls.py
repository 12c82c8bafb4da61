"""The gate's rules over simulated suites: false verdicts, power, and what they cost.

    python tests/nulls.py [--suites 200] [--only WORDS]

A row is a kind of noise. Each suite has 200 cases whose blocks are drawn and decided by the
gate's own `decide`; some of them are slower by a known share. Exits with 1 if a bar is
missed, and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.analyse import sizes
from steelyard.gate import decide
from steelyard.gate.decide import POLICY, Evidence

CASES, MOST = 200, POLICY.most
Blocks = NDArray[np.float64]
Noise = Callable[[np.random.Generator], Blocks]


def normal(spread: float, draw: np.random.Generator) -> Blocks:
    """Return blocks that differ by a normal share."""
    return draw.normal(0, spread, (CASES, MOST))


def bimodal(draw: np.random.Generator) -> Blocks:
    """Make three in ten processes of each side 5 % slower."""
    slow = math.log(1.05) * (draw.random((2, CASES, MOST)) < 0.3)
    return slow[0] - slow[1] + draw.normal(0, 0.005, (CASES, MOST))


def outliers(draw: np.random.Generator) -> Blocks:
    """Let a neighbour hit head in a tenth of the blocks, by 20 % on average."""
    hit = draw.random((CASES, MOST)) < 0.1
    return hit * draw.exponential(0.2, (CASES, MOST)) + normal(0.01, draw)


def shared(draw: np.random.Generator) -> Blocks:
    """Let all cases of a block have a part of their noise in common."""
    return draw.normal(0, 0.02, (1, MOST)) + normal(0.01, draw)


def hiccup(draw: np.random.Generator) -> Blocks:
    """Move most cases by a tenth in one block of twelve."""
    hit = (draw.random((1, MOST)) < 0.08) & (draw.random((CASES, MOST)) < 0.6)
    return 0.1 * hit * draw.choice([-1, 1], (1, MOST)) + normal(0.01, draw)


def quantised(draw: np.random.Generator) -> Blocks:
    """Read clocks whose ticks are 0.5 to 10 % of a time."""
    tick = draw.choice([0.005, 0.01, 0.02, 0.05, 0.1], (CASES, 1))
    return np.log1p(np.round(np.expm1(normal(0.01, draw)) / tick) * tick)


def autocorrelated(spread: float, draw: np.random.Generator) -> Blocks:
    """Give each block 0.8 of the deviation of the one before it."""
    found = normal(spread, draw)
    for n in range(1, MOST):
        found[:, n] = 0.8 * found[:, n - 1] + 0.6 * found[:, n]
    return found


def neighbours(draw: np.random.Generator) -> Blocks:
    """Return means of windows of which a neighbour hits some, of either side."""
    hits = draw.exponential(0.3, (2, CASES, MOST)) * (
        draw.random((2, CASES, MOST)) < 0.3
    )
    return hits[0] - hits[1] + normal(0.02, draw)


PROCESS = math.sqrt(2) * 0.03
"""Of a block's ratio, where each process is 3 % off."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of noise, what is changed in it, and what must come of it."""

    what: str
    noise: Noise
    change: float = 0.0
    changed: int = 5
    """Cases that are slower by ``change``, if it is not 0."""
    means: Noise | None = None
    """Noise of the means of all windows, which nobody reads without it."""
    longer: float = 0.0
    """By how much the means of the changed cases are longer."""
    bars: tuple[tuple[str, str, float], ...] = ()
    """A figure, at least (``>=``) or at most (``<=``) or below (``<``), and the bound."""


NOISES: Mapping[str, Noise] = {
    **{
        f"normal {100 * s:g} %": partial(normal, s)
        for s in (0.003, 0.01, 0.02, 0.04, 0.06, 0.1)
    },
    "3 % a process": partial(normal, PROCESS),
    "bimodal, 30 % of processes 5 % slower": bimodal,
    "one-sided outliers": outliers,
    "2 % shared by all cases": shared,
    "hiccups": hiccup,
    "quantised, ticks of 0.5 to 10 %": quantised,
}
POWERS = {0.01: 0.99, 0.02: 0.97, 0.03: 0.9, 0.04: 0.8, PROCESS: 0.78}
SIZES = (0.001, 0.003, 0.01, 0.02, 0.04)


def rows() -> list[Row]:
    """Return all rows: no change, power, what is called the same, and sizes."""
    never = (("false slower", "<", 1e-4),)
    found = [Row(f"no change: {name}", one, bars=never) for name, one in NOISES.items()]
    found += [
        Row(
            f"no change: AR(1) 0.8 of {100 * spread:g} %",
            partial(autocorrelated, spread),
            bars=(("false slower", "<", 2e-3), ("suites with a doubt", ">=", 0.9)),
        )
        for spread in (0.01, 0.02)
    ]
    found += [
        Row(
            "no change: neighbours in the means",
            partial(normal, 0.01),
            means=neighbours,
            bars=(("false slower", "<", 1e-4), ("false spread", "<", 1e-4)),
        ),
        Row(
            "means +25 %, 5 % noise of them",
            partial(normal, 0.01),
            means=partial(normal, 0.05),
            longer=0.25,
            bars=(("spread", ">=", 0.95), ("false spread", "<", 1e-4)),
        ),
        Row(
            "means +127 %, neighbours in them",
            partial(normal, 0.02),
            means=neighbours,
            longer=1.27,
            bars=(("spread", ">=", 0.95), ("false spread", "<", 1e-4)),
        ),
    ]
    found += [
        Row(
            f"+5 %, {100 * spread:.1f} % noise",
            partial(normal, spread),
            0.05,
            bars=(("slower", ">=", least), ("blocks", "<=", 8.2)),
        )
        for spread, least in POWERS.items()
    ]
    found += [
        Row(
            f"+6 %, {100 * spread:g} % noise",
            partial(normal, spread),
            0.06,
            CASES,
            bars=(("same", "<=", 0.05),),
        )
        for spread in (0.04, 0.05, 0.06)
    ]
    for spread in SIZES:
        size = sizes.smallest(spread, POLICY)
        for part, side in ((0.8, "<="), (1.2, ">=")):
            found.append(
                Row(
                    f"{part:g} of the smallest detectable change, {100 * part * size:.2f} "
                    f"%, at {100 * spread:g} % noise",
                    partial(normal, spread),
                    part * size,
                    bars=(("slower", side, sizes.POWER),),
                )
            )
    return found


def simulate(row: Row, seed: int) -> Counter[str]:
    """Gate one suite; count verdicts on changed and unchanged cases, and blocks."""
    draw = np.random.default_rng(seed)
    changed = row.changed if row.change or row.longer else 0
    steps = np.zeros((CASES, 1))
    steps[:changed] = math.log1p(row.change)
    blocks = (row.noise(draw) + steps).tolist()
    means = None
    if row.means:
        steps[:changed] = math.log1p(row.longer)
        means = (row.means(draw) + steps).tolist()
    seen = {str(case): Evidence() for case in range(CASES)}
    while wanted := decide.undecided(seen, POLICY):
        for case in wanted:
            here, n = int(case), len(seen[case].blocks)
            mean = means[here][n] if means else None
            seen[case] = seen[case].add(blocks[here][n], mean)
    found: Counter[str] = Counter()
    for case, (one, _) in decide.judge(seen, {}, POLICY).items():
        found[f"{'changed' if int(case) < changed else 'even'} {one.verdict}"] += 1
        found["blocks"] += one.blocks
    found["doubts"] = bool(len(decide.dependent(seen)) == CASES)
    return found


def figures(row: Row, counts: Counter[str], suites: int) -> dict[str, float]:
    """Return shares of cases: false verdicts, those on changed cases, and costs."""
    changed = row.changed if row.change or row.longer else 0
    even = max(suites * (CASES - changed), 1)
    found = {
        f"false {v}": counts[f"even {v}"] / even for v in ("slower", "faster", "spread")
    }
    if changed:
        for v in ("slower", "spread", "same", "unresolved", "not-gateable"):
            found[v] = counts[f"changed {v}"] / (suites * changed)
    return found | {
        "unchanged unresolved": counts["even unresolved"] / even,
        "unchanged not gateable": counts["even not-gateable"] / even,
        "suites with a doubt": counts["doubts"] / suites,
        "blocks": counts["blocks"] / suites / CASES,
    }


COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
}


def judged(row: Row, suites: int, pool: Executor) -> dict[str, Any]:
    """Simulate suites of a row and hold its figures against its bars."""
    seeds = range(suites)
    made = pool.map(partial(simulate, row), seeds, chunksize=max(suites // 16, 1))
    found = figures(row, sum(made, Counter()), suites)
    bars = [
        {"figure": f"{name} {how} {bound:g}", "met": COMPARE[how](found[name], bound)}
        for name, how, bound in row.bars
    ]
    return {"row": row.what, "suites": suites, **found, "bars": bars}


def main() -> int:
    """Print every row; return 1 if one misses a bar."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--suites", type=int, default=200, help="of each row")
    options.add_argument("--only", default="", help="rows with these words")
    asked = options.parse_args()
    table = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        for row in rows():
            if asked.only in row.what:
                table.append(judged(row, asked.suites, pool))
                shown = ", ".join(
                    f"{bar['figure']}: {table[-1][bar['figure'].rsplit(' ', 2)[0]]:.3g}"
                    f" {'met' if bar['met'] else 'MISSED'}"
                    for bar in table[-1]["bars"]
                )
                print(f"{row.what}: {shown}", file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps({"suites": asked.suites, "rows": table}, indent=1))  # noqa: T201
    return int(not all(bar["met"] for row in table for bar in row["bars"]))


if __name__ == "__main__":
    sys.exit(main())
