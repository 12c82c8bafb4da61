"""What the time of a compiler goes with, over all candidates of a space.

Each candidate has facts that may drive it. Their ranks are correlated with the ranks of
the times (Spearman, 1904): it does not matter how a time grows with a fact, and one slow
build says no more than another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from steelyard_kernels.artifact import Artifact
from steelyard_kernels.schedule.schedule import Place
from steelyard_lock.spaces import Space

FEWEST: Final = 8
"""Candidates of which ranks say anything."""

PLACES: Final[Mapping[str, tuple[Place, ...]]] = {
    "tile": (Place.MMA, Place.VECTOR, Place.REGISTER, Place.WARP),
    "threads": (Place.THREAD, Place.WARP),
    "stages": (Place.PIPELINE,),
    "cluster": (Place.CLUSTER,),
}
"""Facts that are products of a schedule's factors."""


def correlations(space: Space) -> dict[str, float]:
    """Return the rank correlation of compile time with each fact that varies.

    Empty of fewer than `FEWEST` builds.
    """
    builds = [one for one in space.batch.results if isinstance(one, Artifact)]
    if len(builds) < FEWEST:
        return {}
    times = _ranks([one.code.nanoseconds for one in builds])
    facts: dict[str, list[int]] = {
        "lines of text": [b.text.count("\n") for b in builds]
    }
    resources = [one.code.resources for one in builds]
    if all(resources):
        counts = [sum(n for _, n in found.opcodes) for found in resources if found]
        facts = {"instructions": counts, **facts}
    for name, places in PLACES.items():
        facts[name] = [_factor(one, places) for one in builds]
    return {
        name: float(np.corrcoef(times, _ranks(values))[0, 1])
        for name, values in facts.items()
        if len(set(values)) > 1
    }


def sentence(space: Space) -> str:
    """Say what compile time goes with, the strongest first; "" of too few builds."""
    found = sorted(correlations(space).items(), key=lambda each: -abs(each[1]))
    shown = ", ".join(f"{name} {value:+.2f}" for name, value in found)
    return f"compile time goes with {shown} (rank correlation)" if shown else ""


def _factor(built: Artifact, places: Sequence[Place]) -> int:
    factors = [
        n for cut in built.schedule.cuts for n, at in cut.factors if at in places
    ]
    return prod(factors)


def _ranks(values: Sequence[int]) -> list[float]:
    """Return each value's place in order, equal ones the mean of theirs."""
    every, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    del every
    ranks: list[float] = (last - (counts - 1) / 2)[inverse].tolist()
    return ranks
