"""The gate's rules over made-up suites: false regressions, and what is found of planted ones.

    python ci/nulls.py [--rounds 50]

Each round is a commit of 200 cases, 5 of them slower. A visit is a process: its time is
the case's, times its own mood (the noise), times the machine's, which drifts by 1 % from
one visit's to the next. A block is ABBA. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean

from steelyard.gate import decide
from steelyard.gate.decide import POLICY, Evidence, Stage
from steelyard.verdict import Verdict

CASES, PLANTED, DRIFT = 200, 5, 0.01
NOISES = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05)
CHANGES = (0.03, 0.05, 0.1)


def block(draw: random.Random, noise: float, change: float) -> float:
    """Return the logarithm of new over base of one ABBA block."""
    machine, times = 0.0, {"A": 0.0, "B": 0.0}
    for side in "ABBA":
        machine += draw.gauss(0, DRIFT)
        level = math.log1p(change) if side == "B" else 0.0
        times[side] += level + machine + draw.gauss(0, noise)
    return (times["B"] - times["A"]) / 2


def commit(noise: float, change: float, seed: int) -> dict[str, float]:
    """Judge one commit; return counts, and the blocks a case took."""
    draw = random.Random(seed)  # noqa: S311 # not a secret
    changes = {str(n): change if n < PLANTED else 0.0 for n in range(CASES)}
    seen = {case: _decided(draw, noise, each) for case, each in changes.items()}
    made = {case: one for case, (one, _) in decide.judge(seen, {}, POLICY).items()}
    planted = [made[case].verdict for case in changes if changes[case]]
    others = Counter(made[case].verdict for case in changes if not changes[case])
    blocks = sum(len(one.screened) + len(one.confirmed) for one in seen.values())
    return {
        "false slower": others[Verdict.SLOWER],
        "false faster": others[Verdict.FASTER],
        "unresolved": others[Verdict.UNRESOLVED] + others[Verdict.NOT_GATEABLE],
        "found of 5": planted.count(Verdict.SLOWER),
        "blocks a case": blocks / CASES,
    }


def _decided(draw: random.Random, noise: float, change: float) -> Evidence:
    """Return the blocks of one case, as many as a gate takes."""
    seen = Evidence()
    while (stage := decide.stage(seen, POLICY)) is not Stage.DONE:
        seen = seen.add(block(draw, noise, change), stage)
    return seen


def main() -> None:
    """Print the means over rounds, for each noise and planted change."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=50)
    rounds = options.parse_args().rounds
    table = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for noise in NOISES:
            for change in CHANGES:
                seeds = range(rounds)
                each = list(
                    pool.map(commit, [noise] * rounds, [change] * rounds, seeds)
                )
                means = {name: fmean(one[name] for one in each) for name in each[0]}
                table.append({"noise": noise, "planted": change, **means})
    print(json.dumps({"rounds": rounds, "rows": table}, indent=1))  # noqa: T201 # the result


if __name__ == "__main__":
    main()
