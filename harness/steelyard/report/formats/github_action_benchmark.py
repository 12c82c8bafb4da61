"""Rows for the action github-action-benchmark, whose tool is ``customSmallerIsBetter``.

A list of objects with what its ``BenchmarkResult`` has (benchmark-action/
github-action-benchmark, src/extract.ts). Rows that failed are left out.
"""

from __future__ import annotations

import json
from typing import Final

from steelyard import units
from steelyard.report.formats import Format, Results, measured


def dumps(found: Results) -> str:
    """Return a run as text."""
    lines = [
        {
            "name": f"{row.case} {row.mode}",
            "unit": "ns",
            "value": estimate.value,
            "range": f"± {units.figures((estimate.high - estimate.low) / 2)}",
            "extra": "\n".join(
                (
                    f"95 %: {estimate.low:g} to {estimate.high:g} ns",
                    f"blocks: {len(row.trials)}",
                    f"doubts: {', '.join(row.doubts) or 'none'}",
                )
            ),
        }
        for row, estimate in measured(found)
    ]
    return json.dumps(lines, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMAT: Final = Format(dumps, partial=True)
