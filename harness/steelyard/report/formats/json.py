"""Results as JSON: `json_report` says what a run is, `gate.document` what a gate is.

A comparison is ``{"schema", "base", "new", "differences", "rows"}``: two runs as in
`json_report`, what differs around them, and a row a case and mode with ``base``, ``new``
(nanoseconds, each with its ``_low`` and ``_high``), ``ratio``, ``low``, ``high``,
``differs`` (whether the interval leaves 1 out) and ``note``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from steelyard.analyse.trial import Run
from steelyard.gate import document
from steelyard.report import claims_report, json_report
from steelyard.report.formats import Compared, Format, Results
from steelyard.store.codec import strict

HIDDEN: Final = ("machine", "writer")
"""Facts of a run that differences have instead."""


def _results(found: Results) -> str:
    return json_report.dumps(found.run, found.trials, found.rows) + "\n"


def compared(found: Compared) -> str:
    """Return two runs side by side."""
    document = {
        "schema": json_report.SCHEMA,
        "base": _side(found.base),
        "new": _side(found.new),
        "differences": [asdict(one) for one in found.differences],
        "rows": [json_report.comparison_record(one) for one in found.rows],
    }
    return json_report.text_of(strict(document)) + "\n"


def _side(run: Run) -> dict[str, Any]:
    return {k: v for k, v in asdict(run).items() if k not in HIDDEN}


FORMAT: Final = Format(
    _results,
    compared,
    document.dumps,
    lambda found: claims_report.json(found.judged, found.run),
)
