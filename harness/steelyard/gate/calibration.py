"""What a self-test found of the gate on a machine: counted, kept, and found again.

Its result is a stored run of its own with the tag `TAG`, whose settings hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from steelyard.analyse import kinds, sizes
from steelyard.analyse.distributions import CONFIDENCE, beta, solve
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Run
from steelyard.analyse.verdict import Policy, Verdict
from steelyard.gate import decide
from steelyard.gate.decide import Evidence
from steelyard.gate.outcome import Calibration
from steelyard.machine.facts import Facts
from steelyard.store.store import Store

TAG: Final = "selftest"

KEY: Final = "calibration"
"""Of a run's settings."""

METHOD: Final = 2
"""Raised when the numbers change their meaning: others are not read."""

FEWEST: Final = 6
"""Blocks of a case before its noise is published."""

ALARMS: Final = (Verdict.SLOWER, Verdict.FASTER, Verdict.SPREAD)
"""Of a side against itself, each is false."""

UNDECIDED: Final = (Verdict.UNRESOLVED, Verdict.NOT_GATEABLE)

Key = tuple[str, str]
"""A case and a mode."""

Counts = tuple[int, int]
"""How many, of how many."""


@dataclass(slots=True)
class Tally:
    """What has been counted so far."""

    same: list[tuple[Key, Verdict, int]] = field(default_factory=list)
    """Verdicts on a side against itself, with the blocks they took."""
    blocks: dict[Key, list[float]] = field(default_factory=dict)
    """Logarithms of one side over itself, a block each."""
    injected: list[tuple[Key, float, Verdict]] = field(default_factory=list)
    """Verdicts on slowdowns of known size."""
    failed: dict[Key, str] = field(default_factory=dict)
    """Why a case could not be measured."""

    @property
    def alarms(self) -> list[tuple[Key, Verdict, int]]:
        """The verdicts that are false."""
        return [one for one in self.same if one[1] in ALARMS]

    @property
    def undecided(self) -> int:
        """Verdicts that say nothing of the case."""
        return sum(verdict in UNDECIDED for _, verdict, _ in self.same)

    def detectable(self, policy: Policy) -> dict[Key, float]:
        """Return the smallest slowdown that is found of each case that is known."""
        return {
            key: smallest(blocks, policy.of(" ".join(key)))
            for key, blocks in self.blocks.items()
            if len(blocks) >= FEWEST
        }

    def found(self, within: Mapping[Key, float] | None = None) -> dict[float, Counts]:
        """Return by size how many injected slowdowns were found, and of how many.

        ``within`` leaves those that the cases' published numbers say are found.
        """
        counts: dict[float, Counts] = {}
        for key, size, verdict in self.injected:
            if within is None or within.get(key, math.inf) <= size:
                hits, of = counts.get(size, (0, 0))
                counts[size] = hits + (verdict is Verdict.SLOWER), of + 1
        return dict(sorted(counts.items()))

    def calibration(self, run: Run, policy: Policy) -> Calibration:
        """Return what a gate shows of it beside its verdicts."""
        alarms, comparisons = len(self.alarms), len(self.same)
        found = self.found()
        return Calibration(
            run.uid,
            run.started,
            comparisons,
            alarms,
            share(alarms, comparisons),
            self.detectable(policy),
            {size: hits / of for size, (hits, of) in found.items()},
        )


def smallest(blocks: Sequence[float], policy: Policy) -> float:
    """Return the smallest slowdown that a gate finds of a case with these blocks."""
    if len(blocks) < 2:
        return math.inf
    spread = decide.look(Evidence(tuple(blocks)), policy).spread
    return sizes.smallest(spread, policy)


def share(hits: int, of: int) -> Estimate:
    """Return a share with Clopper and Pearson's interval; it holds for any count.

    ("The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika, 1934.)
    """
    if not of:
        return Estimate(math.nan, 0.0, 1.0)
    tail = (1 - CONFIDENCE) / 2
    low = solve(lambda p: beta(p, hits, of - hits + 1), tail) if hits else 0.0
    high = solve(lambda p: beta(p, hits + 1, of - hits), 1 - tail) if hits < of else 1.0
    return Estimate(hits / of, low, high)


def document(found: Calibration) -> dict[str, Any]:
    """Return a calibration as a run's settings keep it."""
    rate = found.rate
    return {
        "method": METHOD,
        "comparisons": found.comparisons,
        "alarms": found.alarms,
        "rate": [rate.value, rate.low, rate.high],
        "detectable": [[*key, size] for key, size in found.detectable.items()],
        "power": [[size, part] for size, part in found.power.items()],
    }


def latest(store: Store, facts: Facts) -> Calibration | None:
    """Return what the last self-test of a machine found, if a store has one."""
    here = kinds.place(facts)
    for head in reversed(store.heads()):
        if TAG in head.tags and head.place == here:
            found = _read(store.run(head.uid))
            if found is not None:
                return found
    return None


def _read(run: Run) -> Calibration | None:
    """Read a run's calibration; None where it has none that this steelyard knows."""
    kept = run.settings.get(KEY)
    if not isinstance(kept, Mapping) or kept.get("method") != METHOD:
        return None
    try:
        return Calibration(
            run.uid,
            run.started,
            int(kept["comparisons"]),
            int(kept["alarms"]),
            Estimate(*map(float, kept["rate"])),
            {(str(c), str(m)): float(size) for c, m, size in kept["detectable"]},
            {float(size): float(part) for size, part in kept["power"]},
        )
    except (KeyError, TypeError, ValueError):
        return None
