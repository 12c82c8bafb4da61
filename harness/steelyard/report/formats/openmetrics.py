"""Rows as OpenMetrics 1.0, for Prometheus (a file of node_exporter, or a push gateway).

https://prometheus.io/docs/specs/om/open_metrics_spec: gauges in seconds with the case
and the mode as labels, and which run they are of. Rows without a time
have ``steelyard_failed`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from steelyard.analyse.rows import Row
from steelyard.analyse.stats import Estimate
from steelyard.report.formats import Format, Results, measured, unmeasured

Value = Callable[[Row, Estimate], float]

GAUGES: Final[Mapping[str, tuple[str, str, Value]]] = {
    "steelyard_launch_seconds": (
        "seconds",
        "Time of one launch.",
        lambda _, estimate: estimate.value / 1e9,
    ),
    "steelyard_launch_low_seconds": (
        "seconds",
        "Lower end of its 95 % interval.",
        lambda _, estimate: estimate.low / 1e9,
    ),
    "steelyard_launch_high_seconds": (
        "seconds",
        "Upper end of its 95 % interval.",
        lambda _, estimate: estimate.high / 1e9,
    ),
    "steelyard_doubts": (
        "",
        "How many doubts there are of it.",
        lambda row, _: float(len(row.doubts)),
    ),
}
"""Each with its unit, its help and its value."""


def dumps(found: Results) -> str:
    """Return a run as text."""
    return "\n".join([*_lines(found), "# EOF", ""])


def _lines(found: Results) -> Iterator[str]:
    run = found.run
    yield "# TYPE steelyard_run info"
    yield "# HELP steelyard_run The run that the others are of."
    labels = {"run": run.uid, "commit": run.commit, "started": run.started}
    yield f"steelyard_run_info{_labels(labels)} 1"
    for name, (unit, text, value) in GAUGES.items():
        yield f"# TYPE {name} gauge"
        if unit:
            yield f"# UNIT {name} {unit}"
        yield f"# HELP {name} {text}"
        for row, estimate in measured(found):
            labels = {"case": row.case, "mode": row.mode}
            yield f"{name}{_labels(labels)} {value(row, estimate)!r}"
    yield "# TYPE steelyard_failed gauge"
    yield "# HELP steelyard_failed 1 where there is no time, and no other gauge."
    for row in unmeasured(found):
        yield f"steelyard_failed{_labels({'case': row.case, 'mode': row.mode})} 1"


def _labels(values: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in values.items())
    return f"{{{inside}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


FORMAT: Final = Format(dumps)
