"""The store: runs and their trials in SQLite, or in PostgreSQL by URL.

One trial is one transaction, flushed to the disk before the next one starts, so that
a run that is killed keeps every trial it finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self

import sqlalchemy as sa

from steelyard.analyse.trial import KILLED, Run, Trial
from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed, parsed
from steelyard.machine.printable import shown
from steelyard.machine.writer import now
from steelyard.store import archive, codec, summary, written
from steelyard.store.engine import HURRY, Database, sentences
from steelyard.store.places import open_database
from steelyard.store.run import Head, head_of, is_gone, select
from steelyard.store.schema import (
    ENTRIES,
    HEAD,
    RUNS,
    SCHEMAS,
    SUMMARIES,
    TRIALS,
    are_headed,
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
        query = sa.select(RUNS).order_by(RUNS.c.number, RUNS.c.uid)
        rows = written.named(self._listed(query))
        for row in rows:
            self._require_whole(row)
        return [self._run(row) for row in rows]

    def heads(self) -> list[Head]:
        """Return what every run is listed by, the latest stored last.

        Raises:
            StoreError: one was damaged, or is missing.
        """
        columns = (RUNS.c[name] for name in (*HEAD, "head"))
        rows = self._listed(sa.select(*columns).order_by(RUNS.c.number, RUNS.c.uid))
        for *values, digest in rows:
            if not are_headed(values, digest):
                raise self._unreadable(values[0], "its digest differs")
        with sentences(self.name):
            return [head_of(row[:-1]) for row in rows]

    def _listed(self, query: sa.Select[Any]) -> list[Any]:
        """Return the rows of all runs; as many as were stored."""

        def work(connection: sa.Connection) -> tuple[list[Any], Any]:
            there = connection.execute(sa.select(SCHEMAS.c.runs)).scalar()
            return written.rows(connection, query), there

        rows, there = self._database.do(work, reading=True)
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
        return self.run(select(self.heads(), selector, self.name).uid)

    def run(self, uid: str) -> Run:
        """Return a run by its whole id.

        Raises:
            StoreError: there is none, or it was damaged.
        """
        row = self._database.do(
            lambda connection: self._row_of(connection, uid), reading=True
        )
        return self._run(row)

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
        if run["pruned"]:
            raise StoreError(
                f"run {uid[:8]} of store {self.name} was pruned on "
                f"{run['pruned'][:10]}: its samples are gone, and `steelyard history` "
                "has what they came to."
            )
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
        return {head.uid: head.trials for head in self.heads() if head.trials}

    def summaries(
        self,
        uids: Iterable[str],
        case: str | None = None,
        listed: Sequence[Head] | None = None,
    ) -> dict[str, list[summary.Entry]]:
        """Return what the trials of each run come to, or those of a case; no sample is read.

        Those of a run that has changed, or that another version estimated, are made anew
        and kept. ``listed`` are `heads`, where they were asked for already.

        Raises:
            StoreError: those of a pruned run were damaged.
        """
        wanted = set(uids)
        every = self.heads() if listed is None else listed
        known = {head.uid: head for head in every if head.uid in wanted}
        found, right = self._database.do(
            lambda connection: summary.stored(connection, known, case), reading=True
        )
        for uid in known.keys() - right:
            if known[uid].pruned:
                raise self._unreadable(uid, "the digest of its summary differs")
            made = summary.of(self.trials(uid))
            with suppress(StoreError):  # where nobody may write, it is made each time
                self._database.do(partial(summary.keep, head=known[uid], entries=made))
            found[uid] = [entry for entry in made if case in {None, entry.case}]
        return found

    def export(self, uid: str, *, with_paths: bool = True) -> bytes:
        """Return one run with all its trials as one file's bytes.

        ``with_paths`` says whether paths are written whole: see `private`.
        """
        return archive.write(self.run(uid), self.trials(uid), with_paths=with_paths)

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
            for table in (ENTRIES, SUMMARIES, TRIALS):
                connection.execute(sa.delete(table).where(table.c.run == uid))
            connection.execute(sa.delete(RUNS).where(RUNS.c.uid == uid))
            left = sa.select(sa.func.count()).select_from(RUNS).scalar_subquery()
            connection.execute(sa.update(SCHEMAS).values(runs=left))

        self._database.do(work)
        return uid

    def prune(self, uid: str) -> None:
        """Remove a run's trials, and keep what they come to.

        Raises:
            StoreError: there is no such run, or it was damaged.
        """
        self.summaries([uid])

        def work(connection: sa.Connection) -> None:
            row = dict(self._row_of(connection, uid, lock=True))
            connection.execute(sa.delete(TRIALS).where(TRIALS.c.run == uid))
            update(connection, row | {"pruned": row["pruned"] or now()})

        self._database.do(work)

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
