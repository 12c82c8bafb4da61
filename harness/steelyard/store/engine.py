"""Connections to a store: a file of SQLite, or a server that may go away.

A transaction on a server is done again when its connection breaks, and given up when
the server stays silent; one on a file needs neither.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed
from steelyard.machine.printable import secrets, shown, without
from steelyard.store import schema
from steelyard_device import install

T = TypeVar("T")

CONNECT_SECONDS: Final = 10
"""How long a server may take to let us in."""

ANSWER_SECONDS: Final = 30
"""How long a server may take for one statement; a trial's takes milliseconds."""

RETRY_SECONDS: Final = 30
"""How long a server may be away before what it did not get is lost."""

HURRY: Final = 3.0
"""How long a server may take for what is said to it after Ctrl-C."""

PAUSE: Final = 0.5
"""Seconds between two tries to reach a server."""

FIRM: Final = 1.0
"""Seconds that Ctrl-C leaves a transaction to end by itself."""

AWAY: Final = ("08", "57P0", "40001", "40P01", "53300")
"""How the SQLSTATE of what may be tried again begins (postgresql.org, appendix A): lost
connections, servers that stop or start, conflicts, too many connections."""

READING: Final = "steelyard_reading"
"""The option of a connection whose transaction changes nothing."""


class Database:
    """An open database; what is done in it is a function of a connection."""

    def __init__(self, engine: sa.Engine, url: str) -> None:
        self._engine = engine
        self._url = url
        self._server = engine.dialect.name != "sqlite"
        self._connections: set[Any] = set()
        self._asked = 0.0
        self._silent: StoreError | None = None
        self._seconds: float = ANSWER_SECONDS
        if self._server:
            event.listen(engine, "connect", self._connected)
            event.listen(engine, "close", self._closed)
            event.listen(engine, "before_cursor_execute", self._asking)
            event.listen(engine, "after_cursor_execute", self._asking)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def do(
        self,
        work: Callable[[sa.Connection], T],
        *,
        reading: bool = False,
        patient: bool = True,
        seconds: float | None = None,
    ) -> T:
        """Return what ``work`` gives in a transaction of its own.

        On a server it is done again, for up to `RETRY_SECONDS`, if the connection breaks
        and ``patient`` says so: it must find out by itself what an earlier try did. Each
        statement may take ``seconds``, by default `ANSWER_SECONDS`.

        Raises:
            StoreError: the database refuses, or is away for too long.
        """
        with sentences(self._url):
            if not self._server:
                return self._once(work, reading=reading)
            self._seconds = ANSWER_SECONDS if seconds is None else seconds
            return self._tried(lambda: self._once(work, reading=reading), patient)

    def _once(self, work: Callable[[sa.Connection], T], *, reading: bool) -> T:
        options: dict[str, Any] = {READING: reading}
        if reading and self._server:  # several statements see one state
            options["isolation_level"] = "REPEATABLE READ"
        with (
            self._engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            return work(connection)

    def _tried(self, work: Callable[[], T], patient: bool) -> T:
        if self._silent is not None:
            raise self._silent
        deadline = time.monotonic() + min(RETRY_SECONDS, self._seconds)
        while True:
            try:
                return self._within(work)
            except exc.DBAPIError as error:
                late = time.monotonic() > deadline
                if late or not patient or not _is_away(error):
                    raise
            time.sleep(PAUSE)

    def _within(self, work: Callable[[], T]) -> T:
        """Do something in a thread that is left where the server stays silent.

        A driver waits for a server without looking at clocks or at Ctrl-C.
        """
        found: list[T] = []
        failed: list[BaseException] = []

        def target() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again below
                failed.append(error)

        thread = threading.Thread(target=target, daemon=True)
        self._asked = time.monotonic()
        thread.start()
        try:
            while thread.is_alive():
                thread.join(PAUSE)
                if time.monotonic() - self._asked > self._seconds:
                    self._silent = self._abandoned(self._seconds)
                    raise self._silent
        except KeyboardInterrupt:
            thread.join(FIRM)
            if thread.is_alive():
                self._silent = self._abandoned(time.monotonic() - self._asked)
            raise
        if failed:
            raise failed[0]
        return found[0]

    def _abandoned(self, seconds: float) -> StoreError:
        """Cut the connections, so that nothing waits for them after so many seconds."""
        for connection in list(self._connections):
            with suppress(Exception):  # it may be closed already, however that is said
                copy = os.dup(connection.fileno())
                with socket.socket(fileno=copy) as line:
                    line.shutdown(socket.SHUT_RDWR)
        return StoreError(
            f"store {shown(self._url)}: the server did not answer for "
            f"{seconds:.2g} s; what was stored before is safe. Look at the server, or "
            "name another store with --store."
        )

    def _connected(self, connection: Any, _record: Any) -> None:
        self._connections.add(connection)
        with suppress(Exception), connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {1000 * ANSWER_SECONDS}")
            connection.commit()

    def _closed(self, connection: Any, _record: Any) -> None:
        self._connections.discard(connection)

    def _asking(self, *_: Any) -> None:
        self._asked = time.monotonic()


def _is_away(error: exc.DBAPIError) -> bool:
    """Say whether a server may be there again in a moment."""
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # the driver's own: of a connection that broke, or never was
        return error.connection_invalidated or isinstance(error, exc.OperationalError)
    return error.connection_invalidated or str(state).startswith(AWAY)


def opened(engine: sa.Engine, url: str, *, create: bool) -> Database:
    """Return a database that has the tables of a store.

    Raises:
        StoreError: see `schema.prepare`; or it cannot be reached.
    """
    database = Database(engine, url)
    name = shown(url)
    try:
        database.do(
            lambda connection: schema.prepare(connection, name, create=create),
            patient=False,
        )
    except BaseException:
        engine.dispose()
        raise
    return database


def server(url: str) -> sa.Engine:
    """Return the engine of a server's URL; nothing is connected yet.

    Raises:
        StoreError: the URL cannot be read, or its driver is not installed.
    """
    try:
        made = sa.make_url(url)
        known: dict[str, Any] = {}
        if made.get_backend_name() == "postgresql":
            known = {
                key: value for key, value in PATIENCE.items() if key not in made.query
            }
        return sa.create_engine(made, connect_args=known)
    except (exc.ArgumentError, ImportError, ValueError) as error:
        module = f" ({error})" if isinstance(error, ImportError) else ""
        raise StoreError(
            f"store {shown(url)} cannot be opened{module}; write a path, or a URL "
            "such as postgresql+psycopg://user@host/database with "
            f"`{install.command('postgresql')}`."
        ) from None


PATIENCE: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": CONNECT_SECONDS,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 1000 * ANSWER_SECONDS,
}
"""Of libpq's connections, unless the URL says otherwise."""

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "SQLITE_FULL": "the disk is full; what was stored before is safe. Free some "
        "space, or name a store elsewhere with --store",
        "SQLITE_IOERR": "the disk refused to read or write; what was stored before is "
        "safe. Look for a full disk, a quota or a failing device",
        "SQLITE_READONLY": "there is no permission to write. Change the file's or the "
        "folder's permissions, or name a store elsewhere with --store",
        "SQLITE_CANTOPEN": "it cannot be opened: its folder is missing or gives no "
        "permission to write. Make the folder, or name a store elsewhere with --store",
        "SQLITE_BUSY": "another process kept it locked. Try again when that is done",
        "SQLITE_LOCKED": "another process kept it locked. Try again when that is done",
        "SQLITE_NOTADB": "it is not a database, or it is encrypted or damaged. Restore "
        "it from a copy, or name another with --store",
        "SQLITE_CORRUPT": "the file is damaged. Save what is left with `sqlite3 FILE "
        ".recover`, restore it from a copy, or name another with --store",
        "SQLITE_ERROR": "it does not have steelyard's tables as this version knows "
        "them. Name another with --store",
    }
)
"""By the beginning of SQLite's result code name (sqlite.org/rescode.html)."""


@contextmanager
def sentences(url: str) -> Iterator[None]:
    """Turn a database's exceptions into a `StoreError` of one sentence."""
    try:
        yield
    except exc.DBAPIError as error:
        said = without(_cause(error), secrets(url))
        raise StoreError(f"store {shown(url)}: {said}.") from None
    except OSError as error:
        raise StoreError(
            f"store {shown(url)}: {error.strerror or error}. Check the path and its "
            "permissions, or name a store elsewhere with --store."
        ) from error
    except (Malformed, UnicodeDecodeError) as error:  # SQLite quotes damaged bytes
        raise StoreError(
            f"store {shown(url)} holds what steelyard did not write: {error}. Restore "
            "it from a copy, or name another with --store."
        ) from error


def _cause(error: exc.DBAPIError) -> str:
    code = getattr(error.orig, "sqlite_errorname", "")
    for name, sentence in CAUSES.items():
        if code.startswith(name):
            return f"{sentence} ({_first_line(error.orig)})"
    advice = "Check that the server answers and that the URL is right"
    return f"{_first_line(error.orig)}. {advice}"


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
