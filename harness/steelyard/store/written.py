"""Rows of a store as they are written, within somebody's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from steelyard.analyse import kinds
from steelyard.analyse.trial import STATES, Run, Trial
from steelyard.machine.decoding import Malformed
from steelyard.store import codec
from steelyard.store.schema import (
    NO_TRIALS,
    RUNS,
    SCHEMAS,
    TRIALS,
    chained,
    headed,
    sealed,
    update,
)

KEY: Final = ("run", "case", "mode", "block", "position")
"""What tells trials apart."""

SAME: Final = ("run", "case", "digest")
"""What only one trial has that was stored twice."""

ENDED: Final = frozenset(STATES) - {"running"}

DEEP: Final = ("tags", "settings", "machine", "writer")
"""Columns of a run that are JSON."""


def begin(connection: sa.Connection, run: Run) -> None:
    """Store a run that is not there yet."""
    # This row is written first: it is the lock of all that number runs.
    last = sa.update(SCHEMAS).values(last=SCHEMAS.c.last + 1)
    connection.execute(last)
    known = sa.select(RUNS.c.uid).where(RUNS.c.uid == run.uid)
    if connection.execute(known).first() is not None:
        return
    connection.execute(sa.update(SCHEMAS).values(runs=SCHEMAS.c.runs + 1))
    values = {name: codec.plain(value) for name, value in asdict(run).items()}
    values |= {name: json.dumps(values[name]) for name in DEEP}
    number = connection.execute(sa.select(SCHEMAS.c.last)).scalar()
    values |= {"number": number, "trials": 0, "chain": NO_TRIALS, "pruned": None}
    values |= {"kind": kinds.of(run.machine), "place": kinds.place(run.machine)}
    values["head"] = headed(values)
    values["digest"] = sealed(RUNS, values)
    connection.execute(sa.insert(RUNS).values(values))


def has(
    connection: sa.Connection, row: Mapping[str, Any], columns: Sequence[str]
) -> bool:
    """Say whether a trial with the same in some columns is stored already."""
    same = (TRIALS.c[name] == row[name] for name in columns)
    found = connection.execute(sa.select(TRIALS.c.id).where(*same)).first()
    return found is not None


def count(
    connection: sa.Connection,
    run: Mapping[Any, Any],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write down that a run has more trials."""
    changed = dict(run)
    changed["trials"] += len(rows)
    changed["chain"] = chained([run["chain"], *(row["digest"] for row in rows)])
    update(connection, changed)


def mappings(connection: sa.Connection, query: sa.Executable) -> list[Any]:
    """Return `rows`, each by the names of its columns."""
    return named(rows(connection, query))


def named(every: Iterable[sa.Row[Any]]) -> list[Any]:
    """Return rows by the names of their columns."""
    return [row._mapping for row in every]  # noqa: SLF001 # public, by its documentation


def rows(connection: sa.Connection, query: sa.Executable) -> list[Any]:
    """Return rows; a value that is not of its column's type is a sentence."""
    try:
        return list(connection.execute(query))
    except (TypeError, ValueError) as error:
        raise Malformed(f"a column has another type ({error})") from error


def of(uid: str, trial: Trial) -> dict[str, Any]:
    """Return the row of a trial."""
    row = {
        "run": uid,
        "case": trial.case,
        "mode": trial.mode,
        "block": trial.block,
        "position": trial.position,
        # PostgreSQL's text has no NUL, and a benchmark may raise with any text.
        "error": trial.error and trial.error.replace("\0", "\\0"),
        "document": json.dumps(codec.document(trial)),
        "samples": codec.pack(trial.samples, trial.clock.floor),
    }
    return row | {"digest": sealed(TRIALS, row)}
