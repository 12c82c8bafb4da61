"""What a run's trials come to, kept beside them: a history reads this and no samples."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import sqlalchemy as sa

from steelyard.analyse import rows, stats
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Trial
from steelyard.store.run import Head
from steelyard.store.schema import ENTRIES, SUMMARIES


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


def rows_of(head: Head, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the rows that keep a run's entries; `read` is the inverse of each."""
    found = []
    for position, one in enumerate(entries):
        row = {
            "run": head.uid,
            "position": position,
            "case": one.case,
            "mode": one.mode,
            "estimate": one.estimate
            and json.dumps([getattr(one.estimate, name) for name in _ESTIMATE]),
            "clock": one.clock[0],
            "version": one.clock[1],
            "method": one.method,
        }
        found.append(row | {"digest": digest_of(head, row.values())})
    return found


_ESTIMATE: Final = ("value", "low", "high", "systematic")


def read(head: Head, row: Sequence[Any]) -> Entry | None:
    """Return the entry of a row of `schema.ENTRIES`; None if it is not what was kept."""
    *values, kept = row
    if digest_of(head, values) != kept:
        return None
    _, _, case, mode, said, clock, version, method = values
    estimate = Estimate(*map(float, json.loads(said))) if said else None
    return Entry(case, mode, estimate, (clock, version), method)


def digest_of(head: Head, values: Iterable[Any]) -> str:
    """Return the digest of an entry: of its values, and of the trials it follows from."""
    return _hashed(head.trials, head.chain, *values)


def digest(head: Head) -> str:
    """Return what a run's entries are right by: its trials, and how they are estimated."""
    return _hashed(head.uid, head.trials, head.chain, _method())


def _hashed(*parts: Any) -> str:
    return blake2b(ascii(parts).encode(), digest_size=16).hexdigest()


@functools.cache
def _method() -> str:
    """Return a hash of the sources that estimates follow from: others may differ."""
    return _hashed("".join(map(inspect.getsource, (stats, rows))))


FEW: Final = 500
"""Runs that a query names; of more, all are read."""


def stored(
    connection: sa.Connection, known: Mapping[str, Head], case: str | None
) -> tuple[dict[str, list[Entry]], set[str]]:
    """Return the entries of runs, or those of a case; and the runs whose are right.

    ``known`` are heads by their ids. Entries of a case that were lost, and not changed,
    are noticed by whoever reads all.
    """
    summaries, rows = sa.select(SUMMARIES), sa.select(ENTRIES)
    if len(known) <= FEW:
        summaries = summaries.where(SUMMARIES.c.run.in_(known))
        rows = rows.where(ENTRIES.c.run.in_(known))
    if case is not None:
        rows = rows.where(ENTRIES.c.case == case)
    counts = {
        run: count
        for run, kept, count in connection.execute(summaries)
        if (head := known.get(run)) and (head.pruned or kept == digest(head))
    }
    found: dict[str, list[Entry]] = {uid: [] for uid in known}
    wrong: set[str] = set()
    for row in connection.execute(rows.order_by(ENTRIES.c.run, ENTRIES.c.position)):
        if row[0] in counts:
            entry = read(known[row[0]], row)
            if entry is None:
                wrong.add(row[0])
            else:
                found[row[0]].append(entry)
    if case is None:
        wrong |= {uid for uid, count in counts.items() if len(found[uid]) != count}
    return found, counts.keys() - wrong


def keep(connection: sa.Connection, head: Head, entries: Sequence[Entry]) -> None:
    """Keep what a run comes to in the place of what was kept."""
    for table in (ENTRIES, SUMMARIES):
        connection.execute(sa.delete(table).where(table.c.run == head.uid))
    rows = rows_of(head, entries)
    values = {"run": head.uid, "digest": digest(head), "entries": len(rows)}
    connection.execute(sa.insert(SUMMARIES).values(values))
    if rows:
        connection.execute(sa.insert(ENTRIES), rows)
