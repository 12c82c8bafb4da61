"""Rows of what runs come to, read and written within somebody's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from steelyard.store import summary
from steelyard.store.heads import Head
from steelyard.store.schema import ENTRIES, SUMMARIES
from steelyard.store.summary import Entry

FEW: Final = 500
"""Runs that a query names; of more, all are read."""


def read(
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
        for run, digest, count in connection.execute(summaries)
        if (head := known.get(run)) and (head.pruned or digest == summary.digest(head))
    }
    found: dict[str, list[Entry]] = {uid: [] for uid in known}
    wrong: set[str] = set()
    for row in connection.execute(rows.order_by(ENTRIES.c.run, ENTRIES.c.position)):
        if row[0] in counts:
            entry = summary.read(known[row[0]], row)
            if entry is None:
                wrong.add(row[0])
            else:
                found[row[0]].append(entry)
    if case is None:
        wrong |= {uid for uid, count in counts.items() if len(found[uid]) != count}
    return found, counts.keys() - wrong


def write(connection: sa.Connection, head: Head, entries: Sequence[Entry]) -> None:
    """Keep what a run comes to in the place of what was kept."""
    for table in (ENTRIES, SUMMARIES):
        connection.execute(sa.delete(table).where(table.c.run == head.uid))
    rows = summary.rows_of(head, entries)
    values = {"run": head.uid, "digest": summary.digest(head), "entries": len(rows)}
    connection.execute(sa.insert(SUMMARIES).values(values))
    if rows:
        connection.execute(sa.insert(ENTRIES), rows)
