"""Rows as Bencher's metric format, for ``bencher run --adapter json``.

An object a row, whose measure ``latency`` is in nanoseconds, with the 95 % interval:
https://bencher.dev/docs/reference/bencher-metric-format.
"""

from __future__ import annotations

from typing import Final

from steelyard.analyse.stats import Estimate
from steelyard.report import json_report
from steelyard.report.formats import Format, Results, measured

LONGEST: Final = 1024
"""Characters of a name that Bencher takes."""


def dumps(found: Results) -> str:
    """Return a run as text."""
    document = {
        f"{row.case} {row.mode}"[:LONGEST]: {
            "latency": {"value": estimate.value} | _bounds(estimate)
        }
        for row, estimate in measured(found)
    }
    return json_report.text_of(document) + "\n"


def _bounds(estimate: Estimate) -> dict[str, float]:
    """Return the interval, unless it reaches 0 and says nothing."""
    if estimate.half_width >= 1:
        return {}
    return {"lower_value": estimate.low, "upper_value": estimate.high}


FORMAT: Final = Format(dumps, partial=True)
