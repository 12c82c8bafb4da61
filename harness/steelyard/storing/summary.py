"""What a run's trials come to, kept beside them: a history reads this and no samples."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from steelyard import stats
from steelyard.decoding import checked, parsed
from steelyard.report import rows
from steelyard.stats import Estimate
from steelyard.storing import codec
from steelyard.trial import Trial


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
    return json.dumps(codec.plain(lines))


_ESTIMATE: Final = ("value", "low", "high", "systematic")


def read(said: str) -> list[Entry]:
    """Return the entries of a text whose `digest` is right."""
    found = checked(codec.restore(parsed(said)), list[list[Any]])
    return [
        Entry(case, mode, Estimate(*value) if value else None, (clock, version), method)
        for case, mode, value, clock, version, method in found
    ]


def digest(run: Mapping[Any, Any], said: str) -> str:
    """Return the digest of a run's text: of its trials, and of how they are estimated."""
    parts = ascii((run["uid"], run["trials"], run["chain"], said, _method()))
    return blake2b(parts.encode(), digest_size=16).hexdigest()


@functools.cache
def _method() -> str:
    """Return the sources that estimates follow from: others may come to others."""
    return "".join(map(inspect.getsource, (stats, rows)))
