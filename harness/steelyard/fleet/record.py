"""The jobs of all fleets, in the database that their trials go to.

Whoever does a job holds a lease, which is renewed while the work goes on. It names the
machine too: of two fleets one at a time has it. A job whose lease ran out may be claimed
by others; until then nobody does, whatever became of its holder, and a holder that could
not renew ends the work before that.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from steelyard.errors import StoreError
from steelyard.fleet.jobs import MOST_FAILED, MOST_LOST, Job
from steelyard.store.engine import Database
from steelyard.store.places import open_database

LEASE: Final = 60.0
"""Seconds without news after which a machine is given up."""


class State(StrEnum):
    """Of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


OPEN: Final = (State.QUEUED, State.RUNNING)

JOBS: Final = sa.Table(
    "job",
    sa.MetaData(),
    sa.Column("campaign", sa.String(16), primary_key=True),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("commit", sa.String(64), nullable=False),
    sa.Column("suites", sa.Text, nullable=False),  # JSON, so the options
    sa.Column("on", sa.Text, nullable=False),
    sa.Column("repeat", sa.Integer, nullable=False),
    sa.Column("what", sa.String(8), nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("state", sa.String(8), nullable=False, index=True),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("machine", sa.Text),
    sa.Column("holder", sa.String(32)),
    sa.Column("until", sa.Float),  # of the lease, in seconds of the server's clock
    sa.Column("code", sa.Integer),
    sa.Column("log", sa.Text),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A job with what became of it."""

    campaign: str
    job: Job
    state: str
    failures: int
    losses: int
    machine: str | None
    code: int | None
    """What its command ended with."""
    log: str | None
    """The end of what it printed, or a gate's document."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that somebody does, and until when without news."""

    campaign: str
    job: int
    machine: str
    holder: str


class Record:
    """The table of jobs; every method is one transaction."""

    def __init__(self, url: str, lease: float = LEASE) -> None:
        self._url = url
        self._lease = lease
        self._database: Database | None = None

    def close(self) -> None:
        """Close every connection."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _do(self, work: Any, *, reading: bool = False, seconds: float = 30.0) -> Any:
        """Do something in a transaction; connect anew if the last one failed."""
        try:
            if self._database is None:
                self._database = open_database(self._url, create=True)
                self._database.do(_made)
            return self._database.do(work, reading=reading, seconds=seconds)
        except StoreError:
            self.close()
            raise

    def add(self, jobs: Iterable[Job]) -> str:
        """Keep the jobs of a new campaign and return its name."""
        campaign = uuid.uuid4().hex[:8]
        rows = [
            {"campaign": campaign, **_columns(job), "state": State.QUEUED}
            | {"failures": 0, "losses": 0}
            for job in jobs
        ]
        self._do(lambda connection: connection.execute(sa.insert(JOBS), rows))
        return campaign

    def entries(self, campaign: str | None = None) -> list[Entry]:
        """Return the jobs of a campaign, or all that are open, with what became of them."""
        chosen = JOBS.c.campaign == campaign if campaign else JOBS.c.state.in_(OPEN)
        query = sa.select(JOBS).where(chosen).order_by(JOBS.c.campaign, JOBS.c.id)
        rows = self._do(
            lambda connection: connection.execute(query).mappings().all(), reading=True
        )
        return [_entry(row) for row in rows]

    def claim(self, claim: Claim) -> bool:
        """Take a job and its machine; False where somebody has either."""

        def work(connection: sa.Connection) -> bool:
            if connection.dialect.name == "postgresql":  # or two claim one machine
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CLAIMS)))
            now = _now(connection)
            busy = sa.select(JOBS.c.id).where(
                _meets(claim.machine),
                JOBS.c.state == State.RUNNING,
                JOBS.c.until >= now,
            )
            if connection.execute(busy).first() is not None:
                return False
            lost = sa.and_(JOBS.c.state == State.RUNNING, JOBS.c.until < now)
            change = sa.update(JOBS).where(
                *_is(claim), sa.or_(JOBS.c.state == State.QUEUED, lost)
            )
            found = connection.execute(
                change.values(
                    state=State.RUNNING,
                    machine=claim.machine,
                    holder=claim.holder,
                    until=now + self._lease,
                )
            )
            return bool(found.rowcount)

        return bool(self._do(work))

    def renew(self, claim: Claim, seconds: float) -> bool:
        """Hold a lease for longer; False where it is somebody else's by now."""

        def work(connection: sa.Connection) -> bool:
            change = sa.update(JOBS).where(*_held(claim))
            until = _now(connection) + self._lease
            return bool(connection.execute(change.values(until=until)).rowcount)

        return bool(self._do(work, seconds=seconds))

    def end(self, claim: Claim, code: int, log: str, *, fine: bool) -> bool:
        """Say how a job ended, of which nothing runs any more.

        One that failed is queued again until it has failed too often. False where the
        lease was somebody else's by then.
        """
        failures = JOBS.c.failures + (0 if fine else 1)
        failed = sa.case((failures >= MOST_FAILED, State.FAILED), else_=State.QUEUED)
        change = (
            sa.update(JOBS)
            .where(*_held(claim))
            .values(
                state=State.DONE if fine else failed,
                failures=failures,
                code=code,
                log=log.replace("\0", ""),
            )
        )
        return bool(self._do(lambda connection: connection.execute(change).rowcount))

    def release(self, claim: Claim) -> None:
        """Queue a job again that was stopped and did nothing wrong."""
        change = sa.update(JOBS).where(*_held(claim)).values(state=State.QUEUED)
        self._do(lambda connection: connection.execute(change))

    def again(self, campaign: str, job: int, *, gone: bool) -> bool:
        """Tell whether a job is to be done again, which lost its machine where ``gone``.

        One that lost too many more than any that is done is failed: where machines go
        away by themselves, those of others do too.
        """
        every = JOBS.c.campaign == campaign
        still = (every, JOBS.c.id == job, JOBS.c.state.in_(OPEN))
        others = sa.select(sa.func.max(JOBS.c.losses))
        others = others.where(every, JOBS.c.state == State.DONE)

        def work(connection: sa.Connection) -> bool:
            before = connection.scalar(sa.select(JOBS.c.losses).where(*still))
            if before is None:
                return False
            losses = before + int(gone)
            values: dict[str, Any] = {"losses": losses}
            fails = losses >= MOST_LOST + (connection.scalar(others) or 0)
            if fails:
                said = f"its machine was lost {losses} times"
                values |= {"state": State.FAILED, "log": said}
            connection.execute(sa.update(JOBS).where(*still).values(values))
            return not fails

        return bool(self._do(work))

    def give_up(self, campaign: str) -> None:
        """Fail all jobs of a campaign that are open."""
        change = sa.update(JOBS).where(
            JOBS.c.campaign == campaign, JOBS.c.state.in_(OPEN)
        )
        values = change.values(state=State.FAILED, log="it was stopped")
        self._do(lambda connection: connection.execute(values))


_CLAIMS: Final = int.from_bytes(b"steelclm", "big") >> 1
"""The key of the lock under which PostgreSQL's machines are claimed."""


def _made(connection: sa.Connection) -> None:
    """Make the table where it is missing."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CLAIMS)))
    JOBS.metadata.create_all(connection)


def _now(connection: sa.Connection) -> float:
    """Return the seconds that leases are counted in: the same for all machines."""
    if connection.dialect.name != "postgresql":
        return time.time()
    clock = sa.select(sa.func.extract("epoch", sa.func.clock_timestamp()))
    return float(connection.execute(clock).scalar() or 0)


def _meets(machine: str) -> sa.ColumnElement[bool]:
    """Select the jobs of a machine, its parts' among them; of a part also the whole's."""
    whole, part, _ = machine.partition("/")
    if part:
        return JOBS.c.machine.in_((whole, machine))
    within = JOBS.c.machine.startswith(f"{machine}/", autoescape=True)
    return sa.or_(JOBS.c.machine == machine, within)


def _is(claim: Claim) -> tuple[sa.ColumnElement[bool], ...]:
    return JOBS.c.campaign == claim.campaign, JOBS.c.id == claim.job


def _held(claim: Claim) -> tuple[sa.ColumnElement[bool], ...]:
    running = JOBS.c.state == State.RUNNING
    return (*_is(claim), running, JOBS.c.holder == claim.holder)


def _columns(job: Job) -> dict[str, Any]:
    values = {field.name: getattr(job, field.name) for field in fields(Job)}
    return values | {name: json.dumps(values[name]) for name in ("suites", "options")}


def _entry(row: Mapping[Any, Any]) -> Entry:
    values = {field.name: row[field.name] for field in fields(Job)}
    values |= {name: tuple(json.loads(values[name])) for name in ("suites", "options")}
    return Entry(
        row["campaign"],
        Job(**values),
        *(row[name] for name in ("state", "failures", "losses", "machine")),
        *(row[name] for name in ("code", "log")),
    )
