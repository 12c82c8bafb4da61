"""Made-up outcomes of gates for the tests of everything that shows them."""

from __future__ import annotations

import math

from steelyard.analyse.stats import Estimate
from steelyard.analyse.verdict import Judgement, Verdict
from steelyard.errors import SteelyardError
from steelyard.gate.outcome import Calibration, Finding, Outcome, StaticChange

CASE = "softmax[columns=768]"


def judgement(ratio=1.1, verdict=Verdict.SLOWER, half=0.02, **changes):
    """Return a judgement of 15 blocks."""
    values = {"blocks": 15, "smallest": 0.031, "more": 0} | changes
    estimate = Estimate(ratio, ratio - half, ratio + half)
    return Judgement(verdict, estimate, **values)


def finding(case=CASE, verdict=Verdict.SLOWER, ratio=1.1, **changes):
    """Return a measured finding."""
    values = {
        "mode": "kernel/cold",
        "judgement": judgement(ratio, verdict) if verdict else None,
        "file": "suites/softmax.py",
        "line": 12,
        "codes": ("aa" * 8, "bb" * 8),
    }
    return Finding(case, verdict=verdict, **(values | changes))


def outcome(*findings, **changes):
    """Return what a gate of main came to."""
    values = {"baseline": "main", "head": "c0ffee" + 34 * "0"} | changes
    return Outcome(findings=findings, **values)


EVERY = (
    finding(changes=("12 % more instructions (HFMA2 +40)", "3 more registers")),
    finding("tolerated[n=1]", ratio=1.04, tolerance=0.08, reason="Python's own"),
    finding("meant[n=1]", ratio=1.2, accepted=True, reason="rounded right now"),
    finding("quick[n=1]", Verdict.FASTER, 0.8),
    finding("even[n=1]", Verdict.SAME, 1.001),
    finding("equal[n=1]", Verdict.IDENTICAL_CODE, judgement=None),
    finding("loud[n=1]", Verdict.NOT_GATEABLE, 1.02),
    finding(
        "open[n=1]",
        Verdict.UNRESOLVED,
        1.03,
        judgement=judgement(1.03, Verdict.UNRESOLVED, more=7),
        note="clock, not code",
    ),
    finding(
        "broken[n=1]", None, note="broken[n=1]: the work raised OSError: |no\nroom|"
    ),
    finding("fresh[n=1]", None, new=True, note="only head has it"),
)
"""One of each kind."""

STATIC = (
    StaticChange("adam", "cuda:sm_90a", ("16 new bytes of spills", "3 more registers")),
)

CALIBRATION = Calibration(
    run="0" * 32,
    measured="2026-11-20T12:00:00+00:00",
    comparisons=1200,
    alarms=0,
    rate=Estimate(0.0, 0.0, 0.003),
    detectable={(CASE, "kernel/cold"): 0.03, ("loud[n=1]", "kernel/cold"): math.inf},
    power={0.05: 0.99, 0.03: 0.95},
)

PROBLEM = SteelyardError("main is not comparable: driver 1 -> 2. Gate on one machine.")
