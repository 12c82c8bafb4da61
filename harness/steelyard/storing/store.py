"""The store: runs and their trials in SQLite, or in PostgreSQL by URL.

One trial is one transaction, flushed to the disk before the next one starts, so that
a run that is killed keeps every trial it finished.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa

from steelyard.errors import StoreError
from steelyard.storing import archive, codec
from steelyard.storing.errors import sentences, shown
from steelyard.storing.run import STATES, Run, is_gone, now, select
from steelyard.trial import Trial

SCHEMA: Final = 1
"""Raised when a column changes meaning; a newer store is refused, never guessed at."""

BUSY_SECONDS: Final = 10
"""How long one writer waits for another: a trial's transaction takes milliseconds."""

METADATA: Final = sa.MetaData()
SCHEMAS: Final = sa.Table(
    "steelyard_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("written_by", sa.String(32), nullable=False),
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
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("settings", sa.JSON, nullable=False),
    sa.Column("machine", sa.JSON, nullable=False),
    sa.Column("writer", sa.JSON, nullable=False),
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
    sa.Column("document", sa.JSON, nullable=False),  # codec.document
    sa.Column("samples", sa.LargeBinary, nullable=False),  # codec.pack
    sa.Index("trial_of_run", "run", "case"),
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an import did: the run, its trials added, and those already there."""

    uid: str
    added: int
    present: int


class Store:
    """An open store; every method is one transaction."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open the store at a path or an SQLAlchemy URL.

        Raises:
            StoreError: it is missing (and ``create`` is false), cannot be read, is not
                a steelyard store, or was written by a newer steelyard.
        """
        with sentences(url):
            engine = _engine(url, create=create)
            try:
                _prepare(engine, url, create=create)
            except BaseException:
                engine.dispose()
                raise
        return cls(engine, shown(url))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with sentences(self.name), self._engine.begin() as connection:
            yield connection

    def begin(self, run: Run) -> str:
        """Store a new run and return its id."""
        with self._transaction() as connection:
            connection.execute(sa.insert(RUNS).values(_columns(run)))
        return run.uid

    def add(self, uid: str, trial: Trial) -> None:
        """Store one trial; once this returns it is on the disk."""
        with self._transaction() as connection:
            connection.execute(sa.insert(TRIALS).values(_row(uid, trial)))

    def finish(self, uid: str, state: str) -> None:
        """Close a run as ``finished``, ``interrupted`` or ``failed``."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        change = sa.update(RUNS).where(RUNS.c.uid == uid)
        with self._transaction() as connection:
            connection.execute(change.values(state=state, finished=now()))

    def runs(self) -> list[Run]:
        """Return every run, the latest last.

        A run that says ``running`` while its process is gone reads ``killed``.
        """
        query = sa.select(RUNS).order_by(RUNS.c.started, RUNS.c.uid)
        with self._transaction() as connection:
            rows = connection.execute(query).mappings().all()
        return [_run(row) for row in rows]

    def find(self, selector: str) -> Run:
        """Return the run a selector names: see `run.select`.

        Raises:
            StoreError: none or several match; the sentence lists what there is.
        """
        return select(self.runs(), selector, self.name)

    def trials(self, uid: str, case: str | None = None) -> list[Trial]:
        """Return a run's trials in the order they were measured."""
        query = sa.select(TRIALS.c.document, TRIALS.c.samples)
        query = query.where(TRIALS.c.run == uid).order_by(TRIALS.c.id)
        if case is not None:
            query = query.where(TRIALS.c.case == case)
        with self._transaction() as connection:
            rows = connection.execute(query).all()
        return [codec.trial(document, samples) for document, samples in rows]

    def counts(self) -> dict[str, int]:
        """Return the number of trials of each run that has any."""
        query = sa.select(TRIALS.c.run, sa.func.count()).group_by(TRIALS.c.run)
        with self._transaction() as connection:
            return {row.run: row[1] for row in connection.execute(query)}

    def export(self, uid: str) -> bytes:
        """Return one run with all its trials as one file's bytes."""
        run = next((r for r in self.runs() if r.uid == uid), None)
        if run is None:
            raise StoreError(
                f"store {self.name} has no run {uid}; see `steelyard show`."
            )
        return archive.write(run, self.trials(uid))

    def load(self, data: bytes) -> Loaded:
        """Store the run of an exported file; trials already here stay as they are.

        Raises:
            StoreError: the file is not an export, is damaged, or is of a newer format.
        """
        run, trials = archive.read(data)
        with self._transaction() as connection:
            ended = sa.update(RUNS).where(RUNS.c.uid == run.uid)
            ended = ended.values(state=run.state, finished=run.finished)
            if not connection.execute(ended).rowcount:
                connection.execute(sa.insert(RUNS).values(_columns(run)))
            keys = [TRIALS.c[name] for name in KEY]
            found = connection.execute(sa.select(*keys).where(TRIALS.c.run == run.uid))
            present = {tuple(row) for row in found}
            rows = [_row(run.uid, trial) for trial in trials]
            new = [
                row for row in rows if tuple(row[name] for name in KEY) not in present
            ]
            if new:
                connection.execute(sa.insert(TRIALS), new)
        return Loaded(run.uid, len(new), len(rows) - len(new))


KEY: Final = ("position", "case", "mode", "block")
"""What tells the trials of one run apart."""


def _columns(run: Run) -> dict[str, Any]:
    return {name: codec.plain(value) for name, value in asdict(run).items()}


def _run(row: Mapping[Any, Any]) -> Run:
    values = {name: codec.restore(value) for name, value in row.items()}
    values["tags"] = tuple(values["tags"])
    run = Run(**values)
    return replace(run, state="killed") if is_gone(run) else run


def _row(uid: str, trial: Trial) -> dict[str, Any]:
    return {
        "run": uid,
        "case": trial.case,
        "mode": trial.mode,
        "block": trial.block,
        "position": trial.position,
        # PostgreSQL's text has no NUL, and a benchmark may raise with any text.
        "error": trial.error and trial.error.replace("\0", "\\0"),
        "document": codec.document(trial),
        "samples": codec.pack(trial.samples, trial.clock.floor),
    }


def _engine(url: str, *, create: bool) -> sa.Engine:
    """Return the engine of a path or URL; a file is looked at before it is opened."""
    if "://" in url and not url.startswith("sqlite:///"):
        try:
            return sa.create_engine(url)
        except (sa.exc.ArgumentError, ImportError) as error:
            raise StoreError(
                f"store {shown(url)} cannot be opened ({error}); write a path, or a URL "
                "such as postgresql+psycopg://user@host/database with "
                "`pip install 'steelyard[postgresql]'`."
            ) from error
    path = Path(url.removeprefix("sqlite:///")).expanduser()
    _check_file(path, create=create)
    if create and path.parent.name == HOME:
        path.parent.mkdir(exist_ok=True)
    writable = create or (_may_write(path) and _may_write(path.parent))
    return _sqlite(path, "" if writable else _frozen(path), create=create)


def require_place(url: str) -> None:
    """Refuse a store that could not be made or opened, before anything is measured.

    Raises:
        StoreError: its folder is missing, or the file is something else.
    """
    if "://" not in url:
        with sentences(url):
            _check_file(Path(url).expanduser(), create=True)


HOME: Final = ".steelyard"
"""The folder of a project's own store, which is made; a missing other is misspelt."""

SQLITE_HEAD: Final = b"SQLite format 3\0"


def _check_file(path: Path, *, create: bool) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_HEAD))
    except FileNotFoundError:
        if not create:
            raise StoreError(
                f"there is no store at {path}; `steelyard run` makes one, or name one "
                "with --store."
            ) from None
        if not path.parent.is_dir() and path.parent.name != HOME:
            raise StoreError(
                f"store {path}: there is no folder {path.parent}. Make it, or name "
                "another with --store."
            ) from None
        return
    if head and head != SQLITE_HEAD:
        raise StoreError(
            f"{path} is not a steelyard store: it begins with {head!r}, expected "
            f"{SQLITE_HEAD!r}. Name another file with --store."
        )


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def _frozen(path: Path) -> str:
    """Return how to open a file where nothing may be written beside it.

    SQLite needs to write to follow a write-ahead log; a copy whose log is empty is
    complete and is read as it is. One with a log is left to SQLite to refuse.
    """
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    return "?mode=ro" if has_log else "?mode=ro&immutable=1"


REFUSED: Final = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN")


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Whether a database is a store, or has nothing in it yet."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = {name for (name,) in connection.execute(query)}
    return not tables or SCHEMAS.name in tables


def _connected(path: Path, query: str, first: str = "") -> sqlite3.Connection:
    connection = sqlite3.connect(
        path.absolute().as_uri() + query,
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # `begin` below says BEGIN
    )
    try:
        connection.execute(first)
        connection.execute("PRAGMA foreign_keys = ON")
        if not query:
            if _is_ours(connection):  # it is written into the file, and stays
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


ALONE: Final = "PRAGMA locking_mode = EXCLUSIVE"
"""Keeps the index of the write-ahead log in memory (sqlite.org/wal.html, section 8)."""


def _sqlite(path: Path, query: str, *, create: bool) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        try:
            return _connected(path, query)
        except sqlite3.OperationalError as error:
            # On a full disk there is no room for the index beside the file: nobody else
            # has the store open then, and it is read without one.
            if create or not error.sqlite_errorname.startswith(REFUSED):
                raise
            return _connected(path, query, ALONE)

    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE waits for other writers here; a reader that turned writer half way
        # would fail at once instead.
        connection.exec_driver_sql("BEGIN" if query else "BEGIN IMMEDIATE")

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.StaticPool)
    sa.event.listen(engine, "begin", begin)
    return engine


def _prepare(engine: sa.Engine, name: str, *, create: bool) -> None:
    """Make the tables of a new store; refuse one that is foreign or newer."""
    with engine.begin() as connection:
        tables = set(sa.inspect(connection).get_table_names())
        if SCHEMAS.name in tables:
            _check_schema(connection, name)
            return
        foreign = (
            tables if engine.dialect.name == "sqlite" else tables & {"run", "trial"}
        )
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
        first = {"version": SCHEMA, "written_by": metadata.version("steelyard")}
        connection.execute(sa.insert(SCHEMAS).values(first))


def _check_schema(connection: sa.Connection, name: str) -> None:
    row = connection.execute(sa.select(SCHEMAS)).first()
    version, writer = row or (None, "nobody")
    if version is None or version > SCHEMA:
        raise StoreError(
            f"store {name} has schema {version}, written by steelyard {writer}; this is "
            f"steelyard {metadata.version('steelyard')}, which knows schema {SCHEMA}. "
            "Upgrade with `pip install -U steelyard`, or name another with --store."
        )
