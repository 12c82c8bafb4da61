"""Rows as Bencher's metric format, for ``bencher run --adapter json``.

An object a row, whose measure ``latency`` is in nanoseconds, with the 95 % interval:
https://bencher.dev/docs/reference/bencher-metric-format. Rows that failed are left out.
"""

from __future__ import annotations

from typing import Final

from steelyard.report import json_report
from steelyard.report.formats import Format, Results, measured

LONGEST: Final = 1024
"""Characters of a name that Bencher takes."""


def dumps(found: Results) -> str:
    """Return a run as text."""
    document = {
        f"{row.case} {row.mode}"[:LONGEST]: {
            "latency": {
                "value": estimate.value,
                "lower_value": estimate.low,
                "upper_value": estimate.high,
            }
        }
        for row, estimate in measured(found)
    }
    return json_report.text_of(document) + "\n"


FORMAT: Final = Format(dumps)
