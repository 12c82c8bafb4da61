"""A run as comma-separated values: a line a trial, a column an axis."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from steelyard.report import json_report
from steelyard.storing.run import Run
from steelyard.trial import Trial


def dumps(run: Run, trials: Sequence[Trial]) -> str:
    """Return the text; axes stand in columns ``axes.<name>``."""
    records = json_report.report(run, trials)["trials"]
    names = dict.fromkeys(f"axes.{n}" for r in records for n in r["axes"])
    rest = [
        key for key in (records[0] if records else {}) if key not in {"case", "axes"}
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["case", *names, *rest], lineterminator="\n")
    writer.writeheader()
    for record in records:
        axes = {f"axes.{n}": v for n, v in record.pop("axes").items()}
        writer.writerow(record | axes | {"doubts": " ".join(record["doubts"])})
    return text.getvalue()
