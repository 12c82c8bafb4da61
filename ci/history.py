"""Step detection over made-up histories: false alarms, and how late a step is found.

    python ci/history.py [--commits 1000] [--series 100]

Asks after every commit, as a user of each would. The bars: no false alarm in 1000 commits
of any kind of noise; a step of 5 % at 1 % noise told within 5 commits. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from test_change_points import bimodal, found_after, hanging, heavy, white

from steelyard.history.change_points import LONGEST, steps

MODELS: dict[str, Callable[..., list[float]]] = {
    "white": white,
    "autocorrelated (AR(1), 0.7)": hanging,
    "bimodal (3 in 10 are 5 % slower)": bimodal,
    "heavy-tailed (Student's t, 3)": heavy,
}


def alarms(model: str, commits: int, seed: int) -> int:
    """Return how many different steps are told of over a series that has none."""
    values = MODELS[model](random.Random(seed), commits)  # noqa: S311 # not a secret
    told = set()
    for count in range(1, commits + 1):
        first = max(0, count - LONGEST)
        told |= {(first + step.at) // 4 for step in steps(values[first:count])}
    return len(told)


def main() -> None:
    """Print the tables of both bars as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--commits", type=int, default=1000)
    options.add_argument("--series", type=int, default=100)
    asked = options.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        counts = [pool.submit(alarms, model, asked.commits, 0) for model in MODELS]
        found = {
            f"{change:+.0%}": [
                pool.submit(found_after, change, seed) for seed in range(asked.series)
            ]
            for change in (0.03, 0.05, 0.1, -0.05)
        }
        result = {
            "commits": asked.commits,
            "false alarms": {
                m: c.result() for m, c in zip(MODELS, counts, strict=True)
            },
            "found within 5 commits": {
                change: sum(one.result() <= 5 for one in each) / asked.series
                for change, each in found.items()
            },
            "commits until found": {
                change: {
                    "never" if math.isinf(k) else str(k): n
                    for k, n in sorted(Counter(one.result() for one in each).items())
                }
                for change, each in found.items()
            },
        }
    print(json.dumps(result, indent=1))  # noqa: T201 # the result


if __name__ == "__main__":
    main()
