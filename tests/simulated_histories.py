"""Step detection over simulated, measured and annotated histories.

    python tests/simulated_histories.py [--seeds 30] [--commits 240] [--peers]

The bars: hardly a false alarm in simulated noise and none in shuffled measurements; a
step of 5 % in 1 % noise reported within 5 commits; several such steps found; precision
and recall in annotated series, those that are kept and those of clones that
`STEELYARD_SERIES` names. With ``--peers`` other detectors that are installed are asked too. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import annotated
from test_change_points import (
    bimodal,
    found_after,
    hanging,
    heavy,
    levels,
    one_sided,
    quantised,
    white,
)

from steelyard.analyse.change_points import divide

MODELS: dict[str, Callable[..., list[float]]] = {
    "white": white,
    "autocorrelated (AR(1), 0.7)": hanging,
    "bimodal (3 in 10 are 5 % slower)": bimodal,
    "heavy-tailed (Student's t, 3)": heavy,
    "one-sided (a quarter is slower by 10 % on average)": one_sided,
    "quantised (ticks of 1 %)": quantised,
}
EVERY = 4
"""Commits after which a history is looked at."""


def told(values: Sequence[float]) -> list[int]:
    """Return where a series stepped."""
    return [step.at for step in divide(values).steps]


def alarms(values: Sequence[float]) -> int:
    """Return how many different steps are reported as a series grows."""
    counts = range(EVERY, len(values) + 1, EVERY)
    return len({at // EVERY for count in counts for at in told(values[:count])})


def simulated(model: str, commits: int, seed: int) -> int:
    """Return the false alarms of a history that has no step."""
    return alarms(MODELS[model](random.Random(seed), commits))  # no secret


def shuffled(kernel: str, seed: int) -> int:
    """Return the false alarms of measured runs in another order."""
    values = list(annotated.NOISE[kernel])
    random.Random(seed).shuffle(values)  # no secret
    return alarms(values)


def several(count: int, seed: int) -> int:
    """Return how many of some steps of 5 % in 1 % noise are found."""
    draw = random.Random(seed)  # no secret
    values, at = levels(draw, [draw.choice([0.05, -0.05]) for _ in range(count)])
    return sum(any(abs(place - one) <= 3 for one in told(values)) for place in at)


def in_annotated(*, peers: bool) -> dict[str, Any]:
    """Return precision and recall of each detector in annotated series, by their set."""
    folder = annotated.clones()
    sets = {"kept": annotated.kept(), "kept, later": annotated.kept(later=True)}
    if folder is not None:
        sets["clones"] = annotated.windows(folder)
        sets["clones, later"] = annotated.windows(folder, later=True)
        sets["all"] = sets["kept"] + sets["clones"]
        sets["all, later"] = sets["kept, later"] + sets["clones, later"]
    asked = {"steelyard": told, **(annotated.peers() if peers else {})}
    return {
        name: {"windows": len(windows)}
        | {who: _scored(detect, windows) for who, detect in asked.items()}
        for name, windows in sets.items()
    }


def _scored(detect: Callable[..., list[int]], windows: list[Any]) -> dict[str, float]:
    hits, false, missed = annotated.score(detect, windows)
    return {
        "found": hits,
        "false": false,
        "missed": missed,
        "precision": round(hits / max(1, hits + false), 3),
        "recall": round(hits / (hits + missed), 3),
    }


def main() -> None:
    """Print every figure as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=30)
    options.add_argument("--commits", type=int, default=240)
    options.add_argument("--peers", action="store_true")
    asked = options.parse_args()
    seeds = range(asked.seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        share = {
            "false alarms": {
                model: pool.map(partial(simulated, model, asked.commits), seeds)
                for model in MODELS
            },
            "false alarms in shuffled runs": {
                kernel: pool.map(partial(shuffled, kernel), seeds[:5])
                for kernel in annotated.NOISE
            },
            "found within 5 commits": {
                f"{change:+.0%}": pool.map(partial(found_after, change), seeds)
                for change in (0.03, 0.05, 0.1, -0.05)
            },
            "steps of 5 % found": {
                str(count): pool.map(partial(several, count), seeds)
                for count in (1, 3, 5, 7, 9)
            },
        }
        result: dict[str, Any] = {
            "commits": asked.commits * asked.seeds,
            "annotated": in_annotated(peers=asked.peers),
        }
        for what, each in share.items():
            counts = {name: list(found) for name, found in each.items()}
            if what == "found within 5 commits":
                shown = {n: sum(x <= 5 for x in c) / len(c) for n, c in counts.items()}
            elif what == "steps of 5 % found":
                shown = {n: sum(c) / (int(n) * len(c)) for n, c in counts.items()}
            else:
                shown = {name: sum(c) for name, c in counts.items()}
            result[what] = shown
    print(json.dumps(result, indent=1))  # noqa: T201 # the result


if __name__ == "__main__":
    main()
