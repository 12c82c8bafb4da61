"""The tables of a store, how they are made, and how those of an older one are changed.

Every trial has a digest of all that is stored of it; a run has how many trials it has,
the exclusive or of their digests, and two digests of its own: of what it is listed by,
and of everything. What a damaged file lost or exchanged is so noticed by whoever reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from importlib import metadata
from operator import xor
from typing import Any, Final

import sqlalchemy as sa

from steelyard.analyse import kinds
from steelyard.errors import StoreError
from steelyard_device import install

SCHEMA: Final = 3
"""Raised when a column changes meaning; a newer store is refused, never guessed at.

1. Runs and trials.
2. Digests; runs are numbered in the order they were stored; summaries for histories.
3. Runs have a kind of machine, and may have been pruned; summaries are a row an entry.
"""

METADATA: Final = sa.MetaData()
SCHEMAS: Final = sa.Table(
    "steelyard_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("written_by", sa.String(32), nullable=False),
    sa.Column("runs", sa.Integer),  # how many there are
    sa.Column("last", sa.Integer),  # the number of the one that was stored last
)
RUNS: Final = sa.Table(
    "run",
    METADATA,
    sa.Column("uid", sa.String(32), primary_key=True),
    sa.Column("started", sa.String(32), nullable=False, index=True),
    sa.Column("finished", sa.String(32)),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("version", sa.String(32), nullable=False),
    sa.Column("commit", sa.String(64), nullable=False),
    sa.Column("dirty", sa.Boolean),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),  # JSON, so the next three
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("machine", sa.Text, nullable=False),
    sa.Column("writer", sa.Text, nullable=False),
    sa.Column("number", sa.Integer),
    sa.Column("trials", sa.Integer),
    sa.Column("chain", sa.String(32)),  # of the trials' digests, their exclusive or
    sa.Column("kind", sa.Text),  # of its machine: `kinds.of`
    sa.Column("place", sa.String(16)),  # which machine: `kinds.place`
    sa.Column("pruned", sa.String(32)),  # when its trials were removed
    sa.Column("head", sa.String(32)),  # `headed`
    sa.Column("digest", sa.String(32)),  # `sealed` of all columns but this
)
TRIALS: Final = sa.Table(
    "trial",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.ForeignKey("run.uid", ondelete="CASCADE"), nullable=False),
    sa.Column("case", sa.Text, nullable=False),
    sa.Column("mode", sa.String(64), nullable=False),
    sa.Column("block", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("document", sa.Text, nullable=False),  # codec.document, as JSON
    sa.Column("samples", sa.LargeBinary, nullable=False),  # codec.pack
    sa.Column("digest", sa.String(32)),  # `sealed` of all columns but id and this
    sa.Index("trial_of_run", "run", "case"),
)
SUMMARIES: Final = sa.Table(
    "summary",
    METADATA,
    sa.Column("run", sa.ForeignKey("run.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("digest", sa.String(32), nullable=False),  # summary.digest
    sa.Column("entries", sa.Integer, nullable=False),  # how many there are
)
ENTRIES: Final = sa.Table(
    "entry",
    METADATA,
    sa.Column("run", sa.ForeignKey("run.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("case", sa.Text, nullable=False, index=True),
    sa.Column("mode", sa.String(64), nullable=False),
    sa.Column("estimate", sa.Text),  # JSON, as the summary writes it
    sa.Column("clock", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("method", sa.Text, nullable=False),
    sa.Column("digest", sa.String(32), nullable=False),  # summary.digest
)

HEAD: Final = (
    *("uid", "started", "finished", "state", "commit", "dirty", "tags", "number"),
    *("trials", "chain", "kind", "place", "pruned"),
)
"""Columns that runs are listed by: short ones."""

NO_TRIALS: Final = f"{0:032x}"
"""The chain of a run without trials."""

_WERE_JSON: Final = (
    *((RUNS.name, name) for name in ("tags", "settings", "machine", "writer")),
    (TRIALS.name, "document"),
)


def sealed(table: sa.Table, row: Mapping[Any, Any]) -> str:
    """Return the digest of a row of runs or trials."""
    names = [c.name for c in table.columns if c.name not in {"id", "digest"}]
    found = _hash(row, [name for name in names if name != "samples"])
    if "samples" in names:
        blob = row["samples"]
        found.update(blob if isinstance(blob, bytes) else ascii(blob).encode())
    return found.hexdigest()


def headed(row: Mapping[Any, Any]) -> str:
    """Return the digest of what a run is listed by."""
    return _hash(row, HEAD).hexdigest()


def are_headed(values: Sequence[Any], digest: object) -> bool:
    """Tell whether the values of the columns `HEAD` have a digest."""
    return _hashed(list(values)).hexdigest() == digest


def _hash(row: Mapping[Any, Any], names: Sequence[str]) -> blake2b:
    return _hashed([row[name] for name in names])


def _hashed(values: list[Any]) -> blake2b:
    return blake2b(ascii(values).encode(), digest_size=16)


def chained(digests: list[str]) -> str:
    """Return the exclusive or of digests: the order in which they came is not in it.

    Nothing where one was damaged.
    """
    if not all(re.fullmatch("[0-9a-f]{32}", one) for one in digests):
        return ""
    return f"{reduce(xor, (int(one, 16) for one in digests), 0):032x}"


def prepare(connection: sa.Connection, name: str, *, create: bool) -> None:
    """Make the tables of a new store, bring an older one up to date.

    Raises:
        StoreError: it is of something else, of a newer steelyard, or empty and not to
            be made.
    """
    dialect = connection.dialect.name
    if create and dialect == "postgresql":  # or two would make them at once
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OURS)))
    tables = set(sa.inspect(connection).get_table_names())
    if SCHEMAS.name in tables:
        if _version(connection, name) < SCHEMA:
            if dialect == "postgresql":  # or two would upgrade it at once
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OURS)))
            _upgrade(connection, _version(connection, name))
        return
    foreign = tables if dialect == "sqlite" else tables & {"run", "trial"}
    if foreign:
        raise StoreError(
            f"{name} is a database of something else: it has the tables "
            f"{', '.join(sorted(foreign))} and none of steelyard's. Name another "
            "with --store."
        )
    if not create:
        raise StoreError(
            f"store {name} is empty; `steelyard run` fills it, or name another with "
            "--store."
        )
    METADATA.create_all(connection)
    writer = metadata.version("steelyard")
    first = {"version": SCHEMA, "written_by": writer, "runs": 0, "last": 0}
    connection.execute(sa.insert(SCHEMAS).values(first))


_OURS: Final = int.from_bytes(b"steelyrd", "big") >> 1
"""The key of the lock under which a database of PostgreSQL gets its tables."""


def _version(connection: sa.Connection, name: str) -> int:
    """Return a store's schema: one that this steelyard knows."""
    query = sa.select(SCHEMAS.c.version, SCHEMAS.c.written_by)
    rows = connection.execute(query).all()
    if len(rows) != 1:
        raise StoreError(
            f"store {name} says {len(rows)} times which schema it has, expected once: "
            "it was damaged or written by something else. Restore it from a copy, or "
            "name another with --store."
        )
    version, writer = rows[0]
    if not isinstance(version, int) or not 1 <= version <= SCHEMA:
        raise StoreError(
            f"store {name} has schema {version}, written by steelyard {writer}; this is "
            f"steelyard {metadata.version('steelyard')}, which knows schema {SCHEMA}. "
            f"Upgrade with {install.upgrade()}, or name another with --store."
        )
    return version


def is_old(connection: sa.Connection) -> bool:
    """Say whether a store has to be upgraded before it can be read."""
    if SCHEMAS.name not in sa.inspect(connection).get_table_names():
        return False
    versions = connection.execute(sa.select(SCHEMAS.c.version)).scalars().all()
    return len(versions) == 1 and versions[0] in range(1, SCHEMA)


def _upgrade(connection: sa.Connection, version: int) -> None:
    """Bring the tables of an older schema up to date, and write the digests anew."""
    if version == SCHEMA:  # another process has, meanwhile
        return
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {SUMMARIES.name}")
    _add_columns(connection)
    if version == 1:
        _without_json(connection)
    METADATA.create_all(connection)  # the tables that it lacks
    query = sa.select(RUNS).order_by(RUNS.c.started, RUNS.c.uid)
    runs = [dict(row) for row in connection.execute(query).mappings()]
    for number, row in enumerate(runs, 1):
        if version == 1:
            digests = _sealed_trials(connection, row["uid"])
            row |= {"number": number, "trials": len(digests), "chain": chained(digests)}
        update(connection, row | _machine(row["machine"]))
    found: dict[str, int] = {"version": SCHEMA}
    if version == 1:
        found |= {"runs": len(runs), "last": len(runs)}
    connection.execute(sa.update(SCHEMAS).values(found))


def _add_columns(connection: sa.Connection) -> None:
    """Add the columns that the tables of an older schema lack."""
    found = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        if not found.has_table(table.name):
            continue
        there = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(connection.dialect)
                change = f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"
                connection.exec_driver_sql(change)


def _without_json(connection: sa.Connection) -> None:
    """Make text of the JSON columns of schema 1; SQLite's types are of values."""
    if connection.dialect.name == "postgresql":
        for table_name, name in _WERE_JSON:
            connection.exec_driver_sql(
                f"ALTER TABLE {table_name} ALTER COLUMN {name} TYPE TEXT "
                f"USING {name}::text"
            )


def _machine(document: str) -> dict[str, str]:
    """Return the columns of the machine that a run's document describes."""
    try:
        facts = json.loads(document)
        return {"kind": kinds.of(facts), "place": kinds.place(facts)}
    except (AttributeError, TypeError, ValueError):  # damaged, as reading it will say
        return {"kind": "", "place": ""}


def _sealed_trials(connection: sa.Connection, uid: str) -> list[str]:
    """Write the digests of the trials of a run; return them."""
    query = sa.select(TRIALS).where(TRIALS.c.run == uid)
    made = [
        {"at": row["id"], "made": sealed(TRIALS, row)}
        for row in connection.execute(query).mappings()
    ]
    if made:
        change = sa.update(TRIALS).where(TRIALS.c.id == sa.bindparam("at"))
        connection.execute(change.values(digest=sa.bindparam("made")), made)
    return [one["made"] for one in made]


def update(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Write a run's changed row with its digests."""
    row["head"] = headed(row)
    row["digest"] = sealed(RUNS, row)
    change = sa.update(RUNS).where(RUNS.c.uid == row["uid"])
    connection.execute(change.values(row))
