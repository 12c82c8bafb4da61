"""What a run's trials come to, kept beside them: a history reads this and no samples."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from steelyard.analyse import rows, stats
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Trial


@dataclass(frozen=True, slots=True)
class Entry:
    """One case in one mode of one run."""

    case: str
    mode: str
    estimate: Estimate | None
    """Nanoseconds per launch; None where every block failed."""
    clock: tuple[str, int]
    """Which read it, and the version of that; of its last block."""
    method: str


def of(trials: Iterable[Trial]) -> list[Entry]:
    """Return what trials come to."""
    return [_entry(row) for row in rows.rows(trials)]


def _entry(row: rows.Row) -> Entry:
    last = row.trials[-1] if row.trials else None
    clock = (last.clock.id, last.clock.version) if last else ("", 0)
    method = last.hashes.get("method", "") if last else ""
    return Entry(row.case, row.mode, row.estimate, clock, method)


def text(entries: Sequence[Entry]) -> str:
    """Return entries as they are kept; `read` is its inverse."""
    lines = [
        [
            one.case,
            one.mode,
            one.estimate and [getattr(one.estimate, name) for name in _ESTIMATE],
            *one.clock,
            one.method,
        ]
        for one in entries
    ]
    return json.dumps(lines)


_ESTIMATE: Final = ("value", "low", "high", "systematic")


def read(said: str) -> list[Entry] | None:
    """Return the entries of a text whose `digest` is right; None if another wrote it."""
    try:
        return [
            Entry(
                str(case),
                str(mode),
                Estimate(*map(float, value)) if value else None,
                (str(clock), int(version)),
                str(method),
            )
            for case, mode, value, clock, version, method in json.loads(said)
        ]
    except (TypeError, ValueError):
        return None


def digest(run: Mapping[Any, Any], said: str) -> str:
    """Return the digest of a run's text: of its trials, and of how they are estimated."""
    parts = ascii((run["uid"], run["trials"], run["chain"], said, _method()))
    return blake2b(parts.encode(), digest_size=16).hexdigest()


@functools.cache
def _method() -> str:
    """Return the sources that estimates follow from: others may come to others."""
    return "".join(map(inspect.getsource, (stats, rows)))
