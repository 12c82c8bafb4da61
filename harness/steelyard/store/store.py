"""The store: runs and their trials in SQLite, or in PostgreSQL by URL.

One trial is one transaction, flushed to the disk before the next one starts, so that
a run that is killed keeps every trial it finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import sqlalchemy as sa

from steelyard.analyse.run import KILLED, STATES, Run
from steelyard.analyse.trial import Trial
from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed, parsed
from steelyard.machine.urls import shown
from steelyard.machine.writer import now
from steelyard.store import archive, codec, summary, written
from steelyard.store.engine import HURRY, Database
from steelyard.store.errors import sentences
from steelyard.store.places import open_database
from steelyard.store.run import is_gone, select
from steelyard.store.schema import (
    RUNS,
    SCHEMAS,
    SUMMARIES,
    TRIALS,
    chained,
    sealed,
    update,
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an import did: the run, its trials added, and those already there."""

    uid: str
    added: int
    present: int


class Store:
    """An open store; every method is one transaction."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.name = name

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open the store at a path or an SQLAlchemy URL.

        One of an older steelyard is brought up to date; where it may not be written, a
        copy in memory is.

        Raises:
            StoreError: it is missing (and ``create`` is false), cannot be read, is not
                a steelyard store, or was written by a newer steelyard.
        """
        with sentences(url):
            return cls(open_database(url, create=create), shown(url))

    def close(self) -> None:
        """Close every connection."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, run: Run) -> str:
        """Store a new run and return its id."""
        self._database.do(lambda connection: written.begin(connection, run))
        return run.uid

    def add(self, uid: str, trial: Trial) -> None:
        """Store one trial; once this returns it is on the disk."""
        row = written.of(uid, trial)

        def work(connection: sa.Connection) -> None:
            run = self._row_of(connection, uid, lock=True)
            # A server may have taken it, and been gone before it said so.
            if not written.has(connection, row, written.SAME):
                connection.execute(sa.insert(TRIALS).values(row))
                written.count(connection, run, [row])

        self._database.do(work)

    def finish(self, uid: str, state: str) -> None:
        """Close a run as ``finished``, ``budget``, ``interrupted`` or ``failed``."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        ended = {"state": state, "finished": now()}

        def work(connection: sa.Connection) -> None:
            update(connection, dict(self._row_of(connection, uid, lock=True)) | ended)

        self._database.do(work, seconds=HURRY if state == "interrupted" else None)
        with suppress(StoreError):  # whoever needs it makes it then
            self.summaries([uid])

    def runs(self) -> list[Run]:
        """Return every run in the order they were stored, the latest last.

        A run that says ``running`` while its process is gone reads ``killed``.

        Raises:
            StoreError: one was damaged, or is missing.
        """
        return [self._run(row) for row in self._rows_of_runs()]

    def _rows_of_runs(self) -> list[Mapping[Any, Any]]:
        query = sa.select(RUNS).order_by(RUNS.c.number, RUNS.c.uid)

        def work(connection: sa.Connection) -> tuple[list[Any], Any]:
            there = connection.execute(sa.select(SCHEMAS.c.runs)).scalar()
            return written.mappings(connection, query), there

        rows, there = self._database.do(work, reading=True)
        for row in rows:
            self._require_whole(row)
        if len(rows) != there:
            raise StoreError(
                f"store {self.name} has {len(rows)} runs where {there} were stored: the "
                "file was damaged. Restore it from a copy; or name one that is left to "
                "`steelyard store remove`, and the rest can be read."
            )
        return rows

    def _run(self, row: Mapping[Any, Any]) -> Run:
        values = {field.name: row[field.name] for field in fields(Run)}
        try:
            run = codec.run(values | {name: parsed(row[name]) for name in written.DEEP})
        except Malformed as error:
            raise self._unreadable(row["uid"], str(error)) from error
        return replace(run, state=KILLED) if is_gone(run) else run

    def _require_whole(self, row: Mapping[Any, Any]) -> None:
        """Refuse a row of a run that is not as it was written."""
        if sealed(RUNS, row) != row["digest"]:
            raise self._unreadable(row["uid"], "its digest differs")

    def _unreadable(self, uid: object, why: str) -> StoreError:
        short = str(uid)[:8]
        return StoreError(
            f"run {short} of store {self.name} is not what was written: {why}. Restore "
            f"the store from a copy, or remove the run with `steelyard store remove "
            f"{short}`."
        )

    def _row_of(
        self, connection: sa.Connection, uid: str, *, lock: bool = False
    ) -> Mapping[Any, Any]:
        query = sa.select(RUNS).where(RUNS.c.uid == uid)
        found = written.mappings(connection, query.with_for_update() if lock else query)
        if not found:
            raise StoreError(
                f"store {self.name} has no run {uid}; see `steelyard show`. If that "
                "lists it, the file was damaged: restore it from a copy."
            )
        row: Mapping[Any, Any] = found[0]
        self._require_whole(row)
        return row

    def find(self, selector: str) -> Run:
        """Return the run a selector names: see `run.select`.

        Raises:
            StoreError: none or several match; the sentence lists what there is.
        """
        return select(self.runs(), selector, self.name)

    def trials(self, uid: str, case: str | None = None) -> list[Trial]:
        """Return a run's trials in the order they were measured.

        Raises:
            StoreError: there is no such run; some are missing, or not what was written.
        """
        query = sa.select(TRIALS).where(TRIALS.c.run == uid).order_by(TRIALS.c.id)
        chosen = query.where(TRIALS.c.case == case) if case is not None else query
        every = sa.select(TRIALS.c.case, TRIALS.c.digest).where(TRIALS.c.run == uid)

        def work(connection: sa.Connection) -> tuple[Any, list[Any], list[Any]]:
            rows, others = (written.mappings(connection, q) for q in (chosen, every))
            return self._row_of(connection, uid), rows, others

        run, rows, all_of_them = self._database.do(work, reading=True)
        for row in rows:
            if sealed(TRIALS, row) != row["digest"]:
                raise self._unreadable(uid, f"the digest of {row['case']} differs")
        found = [str(one["digest"]) for one in all_of_them]
        if len(found) != run["trials"] or chained(found) != run["chain"]:
            there = f"{len(found)} trials, where {run['trials']} were stored"
            raise self._unreadable(uid, f"it has {there}, or others")
        if len(rows) != sum(case in {None, one["case"]} for one in all_of_them):
            raise self._unreadable(uid, f"trials of {case} are not where they belong")
        try:
            return [
                codec.trial(parsed(row["document"]), row["samples"]) for row in rows
            ]
        except Malformed as error:
            raise self._unreadable(uid, str(error)) from error

    def counts(self) -> dict[str, int]:
        """Return the number of trials of each run that has any."""
        return {
            row["uid"]: row["trials"] for row in self._rows_of_runs() if row["trials"]
        }

    def summaries(self, uids: Iterable[str]) -> dict[str, list[summary.Entry]]:
        """Return what the trials of each run come to, without reading any sample.

        Those of a run that has changed, or that another version estimated, are made anew
        and kept.
        """
        wanted = set(uids)
        rows = {row["uid"]: row for row in self._rows_of_runs() if row["uid"] in wanted}
        query = sa.select(SUMMARIES)
        if len(wanted) == 1:
            query = query.where(SUMMARIES.c.run.in_(wanted))
        kept = self._database.do(
            lambda connection: written.mappings(connection, query), reading=True
        )
        right = {
            one["run"]: summary.read(one["document"])
            for one in kept
            if one["run"] in rows
            and summary.digest(rows[one["run"]], one["document"]) == one["digest"]
        }
        return {
            uid: self._summarised(row) if (known := right.get(uid)) is None else known
            for uid, row in rows.items()
        }

    def _summarised(self, row: Mapping[Any, Any]) -> list[summary.Entry]:
        """Make and keep what a run's trials come to."""
        entries = summary.of(self.trials(row["uid"]))
        said = summary.text(entries)
        values = {"run": row["uid"], "document": said}
        values["digest"] = summary.digest(row, said)

        def work(connection: sa.Connection) -> None:
            old = sa.delete(SUMMARIES).where(SUMMARIES.c.run == row["uid"])
            connection.execute(old)
            connection.execute(sa.insert(SUMMARIES).values(values))

        with suppress(StoreError):  # where nothing may be written, it is made each time
            self._database.do(work)
        return entries

    def export(self, uid: str, *, with_paths: bool = True) -> bytes:
        """Return one run with all its trials as one file's bytes.

        ``with_paths`` says whether paths are written whole: see `private`.
        """
        run = self._database.do(
            lambda connection: self._row_of(connection, uid), reading=True
        )
        return archive.write(self._run(run), self.trials(uid), with_paths=with_paths)

    def load(self, data: bytes) -> Loaded:
        """Store the run of an exported file: see `keep`.

        Raises:
            StoreError: the file is not an export, is damaged, or is of a newer format.
        """
        return self.keep(*archive.read(data))

    def keep(self, run: Run, trials: Iterable[Trial]) -> Loaded:
        """Store a whole run; what is already here stays as it is.

        A run that ended here is complete: nothing is added to it. One that did not may
        get trials, and how it ended.
        """
        made = [written.of(run.uid, trial) for trial in trials]
        rows = list(
            {tuple(row[name] for name in written.KEY): row for row in made}.values()
        )

        def work(connection: sa.Connection) -> list[dict[str, Any]]:
            written.begin(connection, run)
            here = self._row_of(connection, run.uid, lock=True)
            if here["state"] in written.ENDED and here["trials"]:
                return []
            new = [row for row in rows if not written.has(connection, row, written.KEY)]
            if new:
                connection.execute(sa.insert(TRIALS), new)
            written.count(connection, here, new)
            if here["state"] not in written.ENDED and run.state in written.ENDED:
                ended = {"state": run.state, "finished": run.finished}
                update(connection, dict(self._row_of(connection, run.uid)) | ended)
            return new

        new = self._database.do(work)
        self.summaries([run.uid])
        return Loaded(run.uid, len(new), len(rows) - len(new))

    def remove(self, selector: str, agree: Callable[[str, int], bool]) -> str | None:
        """Remove a run and all its trials, whatever state they are in.

        ``agree`` is told what the run is and how many trials it has, and says whether.
        Returns the run's id, None where it was not agreed to.

        Raises:
            StoreError: no run, or several, have that name; or it is still running.
        """
        uid, said = self._named(selector)
        count = sa.select(sa.func.count()).where(TRIALS.c.run == uid)
        trials = self._database.do(
            lambda connection: connection.execute(count).scalar() or 0, reading=True
        )
        if not agree(said, trials):
            return None

        def work(connection: sa.Connection) -> None:
            for table in (SUMMARIES, TRIALS):
                connection.execute(sa.delete(table).where(table.c.run == uid))
            connection.execute(sa.delete(RUNS).where(RUNS.c.uid == uid))
            left = sa.select(sa.func.count()).select_from(RUNS).scalar_subquery()
            connection.execute(sa.update(SCHEMAS).values(runs=left))

        self._database.do(work)
        return uid

    def _named(self, selector: str) -> tuple[str, str]:
        """Return the id of a run that is to be removed, and what it is in words."""
        query = sa.select(RUNS.c.uid)
        uids = self._database.do(
            lambda connection: connection.execute(query).scalars().all(), reading=True
        )
        named = [
            uid for uid in uids if len(selector) >= 4 and str(uid).startswith(selector)
        ]
        try:
            run = self.find(selector)
        except StoreError:
            if len(named) != 1:
                raise
            return named[0], f"run {named[0][:8]}, which cannot be read"
        if run.state == "running":
            raise StoreError(
                f"run {run.short} is still running; end it first. Nothing was removed."
            )
        return run.uid, f"run {run.short} of {run.started[:16]}, `{run.command}`"
