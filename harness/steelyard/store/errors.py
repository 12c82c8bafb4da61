"""What a database says went wrong, as one sentence with the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from sqlalchemy import exc

from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed
from steelyard.machine.urls import secrets, shown, without

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
