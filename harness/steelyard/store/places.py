"""Where a store is: a file of SQLite, looked at before it is opened, or a server."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy import event, exc

from steelyard.errors import StoreError
from steelyard.machine.printable import shown
from steelyard.store import engine, schema
from steelyard.store.engine import READING, Database, sentences

BUSY_SECONDS: Final = 10
"""How long one writer waits for another: a trial's transaction takes milliseconds."""


def open_database(url: str, *, create: bool) -> Database:
    """Open the database of a path or URL; a file is looked at before it is opened.

    Raises:
        StoreError: there is none, or it is not what steelyard wrote.
    """
    if "://" in url and not url.startswith("sqlite"):
        return engine.opened(engine.server(url), url, create=create)
    path = path_of(url)
    check_file(path, create=create)
    if create and path.parent.name == HOME:
        path.parent.mkdir(exist_ok=True)
    writable = create or (_may_write(path) and _may_write(path.parent))
    made = _sqlite(path, "" if writable else _frozen(path), create=create)
    if writable or not _is_old(made, url):
        return engine.opened(made, url, create=create)
    database = engine.opened(_copied(made), url, create=create)
    database.do(lambda copy: copy.exec_driver_sql("PRAGMA query_only = ON"))
    return database


MEMORY: Final = (
    "is a database in memory, which would keep nothing. Name a file with --store."
)


def path_of(url: str) -> Path:
    """Return the file of a path or of a URL of SQLite's.

    Raises:
        StoreError: the URL names none.
    """
    if "://" not in url:
        return Path(url).expanduser()
    try:
        made = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        made = None
    if made is None or made.get_backend_name() != "sqlite" or made.host or made.query:
        raise StoreError(
            f"store {shown(url)} names no file; write sqlite:///relative/path, "
            "sqlite:////absolute/path, or the path alone."
        )
    if not made.database or made.database == ":memory:":
        raise StoreError(f"store {url} {MEMORY}")
    return Path(made.database).expanduser()


HOME: Final = ".steelyard"
"""The folder of a project's own store, which is made; a missing other is misspelt."""

SQLITE_HEAD: Final = b"SQLite format 3\0"


def require_place(url: str) -> None:
    """Refuse a store that could not be made or opened, before anything is measured.

    Raises:
        StoreError: its folder is missing, or the file is something else.
    """
    if "://" not in url or url.startswith("sqlite"):
        with sentences(url):
            check_file(path_of(url), create=True)


def check_file(path: Path, *, create: bool) -> None:
    """Refuse a file that is no store, and one that is missing unless it may be made."""
    try:
        # A pipe would be waited for, and a device be read.
        if not stat.S_ISREG(path.stat().st_mode):
            what = "is a directory" if path.is_dir() else "is no file"
            raise StoreError(
                f"store {path} {what}, expected a file of SQLite's. Name another with "
                "--store."
            )
        head = _wrong_head(path)
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
    if head:
        raise StoreError(
            f"{path} is not a steelyard store: it begins with {head!r}, expected "
            f"{SQLITE_HEAD!r}. Name another file with --store."
        )


def _wrong_head(path: Path) -> bytes:
    """Return how a file begins that is no database; nothing of one, or of an empty one.

    SQLite looks: were a file that this process has open read here, its closing would drop
    the locks by which others know that (sqlite.org/howtocorrupt.html, section 2.2).
    """
    place = path.absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(place, uri=True)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname == "SQLITE_NOTADB":
            with path.open("rb") as file:
                return file.read(len(SQLITE_HEAD)).removeprefix(SQLITE_HEAD)
    return b""


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
    return not tables or schema.SCHEMAS.name in tables


def _connected(path: Path, query: str, first: str = "") -> sqlite3.Connection:
    connection = sqlite3.connect(
        path.absolute().as_uri() + query,
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # `begin` below says BEGIN
        check_same_thread=False,
    )
    # Damaged text is read as another, which its row's digest tells.
    connection.text_factory = lambda text: text.decode(errors="replace")
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

    return _engine(connect, frozen=bool(query))


def _engine(connect: Callable[[], sqlite3.Connection], *, frozen: bool) -> sa.Engine:
    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE waits for other writers here; a reader that turned writer half way
        # would fail at once instead.
        reading = frozen or connection.get_execution_options().get(READING)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    made = sa.create_engine("sqlite://", creator=connect, poolclass=sa.StaticPool)
    event.listen(made, "begin", begin)
    return made


def _is_old(made: sa.Engine, url: str) -> bool:
    with sentences(url), made.begin() as connection:
        return schema.is_old(connection)


def _copied(made: sa.Engine) -> sa.Engine:
    """Return a copy in memory of a store that may not be written, to be upgraded there."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    source = made.raw_connection()
    try:
        assert isinstance(source.driver_connection, sqlite3.Connection)
        source.driver_connection.backup(copy)
    finally:
        source.close()
        made.dispose()
    return _engine(lambda: copy, frozen=False)


def shrink(url: str) -> None:
    """Give back the disk that a file of SQLite's no longer needs; a server does so itself.

    Raises:
        StoreError: the file cannot be written, or somebody uses it.
    """
    if "://" in url and not url.startswith("sqlite"):
        return
    try:
        with closing(_connected(path_of(url), "")) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise StoreError(
            f"store {url} was pruned and stays as large as it was ({error}); later runs "
            "use the room."
        ) from error
