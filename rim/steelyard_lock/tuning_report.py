"""What `steelyard tune` says: the candidates of a point, or what measuring them came to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse import rows as analysed
from steelyard.report import text
from steelyard.report.grid import grid, sheet_of
from steelyard.units import NOTHING
from steelyard_device.timings_print import duration
from steelyard_lock.tuning import Tuning
from steelyard_lock.tuning_space import Space

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN: Final = 5
"""Failures that are printed; JSON has all."""


def space_page(space: Space) -> Iterator[RenderableType]:
    """Yield every candidate by its prediction, and every refusal with its reason."""
    lines = [
        (_said(space, schedule.label), duration(prediction.total))
        for schedule, prediction in space.ranked
    ]
    title = f"{space.point.label}: {len(lines)} candidates"
    yield grid(title, ("schedule",), ("predicted",), tuple(lines))
    if space.refused:
        refused = tuple((schedule.label, why) for schedule, why in space.refused)
        title = f"{len(refused)} refused: a schedule that..."
        titles = ("schedule", "why")
        yield sheet_of(titles, refused, title=title, folds=titles)
    yield f"{space.point.label}: {len(lines)} candidates, {len(space.refused)} refused"


def _said(space: Space, label: str) -> str:
    """Return a schedule's label, with how a partition differs from the heuristic's."""
    words = space.words.get(label)
    return f"{label}: {words}" if words else label


def tuning_page(found: Tuning) -> Iterator[RenderableType]:
    """Yield the finalists, and what there is to say in a few lines."""
    ranks = {s.label: n for n, (s, _) in enumerate(found.space.ranked, 1)}
    lines = []
    for row in found.finalists:
        label, ratio = str(row.axes["schedule"]), row.relative
        assert row.estimate is not None
        own = label == found.space.heuristic.label
        lines.append(
            (
                _said(found.space, label),
                duration(row.estimate.value),
                text.margin(row.estimate) if row.estimate.known else NOTHING,
                NOTHING if own or ratio is None else f"{ratio.value:.3f}",
                NOTHING if own or ratio is None else text.margin(ratio),
                str(ranks.get(label, NOTHING)),
            )
        )
    titles = ("time", "95 %", "over heuristic's", "95 %", "predicted rank")
    title = f"finalists: {found.point.label} {found.finalists[0].mode}"
    yield grid(title, ("schedule",), titles, tuple(lines))
    yield "\n" + "\n".join(_sentences(found)) + "\n"


def _sentences(found: Tuning) -> Iterator[str]:
    counts = found.counts
    taken = ", ".join(f"{name} {s:.1f} s" for name, s in found.seconds.items())
    yield (
        f"{counts['candidates']} candidates, {counts['distinct']} distinct codes, "
        f"{counts['failed']} failed; {taken}; run {found.run.short}"
    )
    if found.resumed:
        yield f"{found.resumed} trials are of a tuning that was stopped before"
    failures = found.failures
    yield from (f"failed: {why}" for why in failures[:SHOWN])
    if len(failures) > SHOWN:
        yield f"{len(failures) - SHOWN} more failed: --json has all"
    if found.chosen == found.space.heuristic:
        yield f"chosen: the heuristic's {found.chosen.label}: none is surely faster"
    else:
        yield f"chosen: {_said(found.space, found.chosen.label)}"


def dumps(found: Sequence[Tuning]) -> str:
    """Return all that is known as JSON; times are nanoseconds."""
    return json.dumps(
        {"schema": 1, "tunings": [_plain(one) for one in found]}, indent=1
    )


def _plain(found: Tuning) -> dict[str, Any]:
    gain = found.gain
    times = {
        str(row.axes["schedule"]): round(row.estimate.value, 1)
        for row in analysed.rows(found.trials)
        if row.estimate is not None
    }
    final = {
        str(row.axes["schedule"]): round(row.estimate.value, 1)
        for row in found.finalists
        if row.estimate is not None
    }
    return {
        "kernel": found.point.kernel,
        "arrays": found.point.shapes,
        "launch": found.point.launch,
        "target": found.point.target,
        "mode": found.finalists[0].mode,
        **found.counts,
        "refused": len(found.space.refused),
        "seconds": dict(found.seconds),
        "resumed": found.resumed,
        "run": found.run.uid,
        "heuristic": found.space.heuristic.label,
        "chosen": found.chosen.label,
        "differs": found.space.words.get(found.chosen.label),
        "ratio": gain and [gain.value, gain.low, gain.high],
        "finalists": final,
        "times": times,
        "failures": list(found.failures),
    }


def space_dumps(spaces: Sequence[Space]) -> str:
    """Return candidates with their predictions, and refusals, as JSON."""
    made = [
        {
            "kernel": one.point.kernel,
            "arrays": one.point.shapes,
            "launch": one.point.launch,
            "target": one.point.target,
            "candidates": {s.label: p.total for s, p in one.ranked},
            "refused": [[s.label, why] for s, why in one.refused],
        }
        for one in spaces
    ]
    return json.dumps({"schema": 1, "spaces": made}, indent=1)
