"""What does a job on a machine: the claim, the commit's environment, the child.

The child is a `steelyard run` or `steelyard gate` with the environment that a login gives
its user; nothing of it runs in this process, which renews the lease meanwhile. Where
that cannot be done the child is ended while the lease still lasts.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from steelyard.errors import (
    FINE,
    REGRESSION,
    UNRESOLVED,
    SteelyardError,
    StoreError,
    UnjudgedError,
)
from steelyard.fleet import environments, jobs
from steelyard.fleet.environments import Environment
from steelyard.fleet.jobs import BISECT, RUN, Job, Share
from steelyard.fleet.record import Claim, Record
from steelyard.machine import children, facts, keeper, lock
from steelyard.machine.neighbours import JOB
from steelyard.process.origins import Origins
from steelyard.store.session import SPOOL
from steelyard.store.store import Store

BEATS: Final = 6
"""Renewals of a lease while it lasts."""

LOOK: Final = 0.1
"""Seconds between two looks at the child and at the lease."""

WAIT: Final = 3600
"""Seconds to wait for others who measure on the machine."""

SAFE: Final = 0.6
"""Of a lease without news, after which the child is ended: that takes seconds too."""

TAIL: Final = 8000
"""Characters of a log that are kept."""

NOTHING: Final = Job(-1, "", (), "")

DONE: Final = (FINE, REGRESSION, UNRESOLVED)
"""What a command ends with whose work is whole, whatever came of it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that a machine has to know of a job."""

    campaign: str
    store: str
    """The URL, with credentials: it is never printed nor an argument of a process."""
    repository: str
    tip: str
    """The commit whose suites measure all of them."""
    lease: float
    build: str = ""
    """The project's own command that makes an environment."""
    job: Job = NOTHING
    machine: str = ""
    share: Share | None = None
    """The part of the machine, where that is not all."""


def work(order: Order, stop: threading.Event) -> str:
    """Do a job, and return a word: ``done``, ``failed``, ``busy``, ``stopped``, ``lost``.

    Raises:
        StoreError: the database was away before anything was begun.
    """
    record = Record(order.store, order.lease)
    claim = Claim(order.campaign, order.job.id, order.machine, uuid.uuid4().hex)
    try:
        import_spooled(order.store)
        held = _Held(record, claim, order.lease, stop)
        if not record.claim(claim):
            return "busy"
        try:
            with held:
                code, log = _child(order, held)
        except SteelyardError as error:
            code, log = error.exit_code, str(error)
        if held.lost:
            return "lost"
        if stop.is_set():
            record.release(claim)
            return "stopped"
        fine = code in DONE or (order.job.what != RUN and code > 0)

        def end() -> bool:
            import_spooled(order.store)
            return record.end(claim, code, log, fine=fine)

        if not held.say(end):
            return "lost"
        return "done" if fine else "failed"
    finally:
        record.close()


class _Held:
    """A lease, renewed from its claim until it is let go, whatever is done meanwhile."""

    def __init__(
        self, record: Record, claim: Claim, lease: float, stop: threading.Event
    ) -> None:
        self._record, self.claim, self._lease, self._stop = record, claim, lease, stop
        self._renewed = _now()
        self._taken = False
        self._left = threading.Event()
        self._beats = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        """Begin to renew it."""
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the record to others."""
        self._left.set()
        self._beats.join()

    @property
    def lost(self) -> bool:
        """Whether somebody else may have the job."""
        return self._taken or _now() - self._renewed > SAFE * self._lease

    @property
    def over(self) -> bool:
        """Whether the work is to end."""
        return self.lost or self._stop.is_set()

    def require(self) -> None:
        """Begin nothing where the work is to end.

        Raises:
            UnjudgedError: it is.
        """
        if self.over:
            raise UnjudgedError("the lease ended before the work began.")

    def _renew(self) -> None:
        pause = self._lease / BEATS
        while not self._left.wait(pause) and not self._taken:
            began = _now()
            with suppress(StoreError):  # the next beat asks again
                self._taken = not self._record.renew(self.claim, seconds=pause)
                self._renewed = began

    def wait(self, process: subprocess.Popen[str]) -> None:
        """Wait for the child; end it where the lease is lost, or on request."""
        while not self.over:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
                return
        keeper.end_kept(process)

    def say(self, what: Callable[[], bool]) -> bool:
        """Say how it ended, as long as the lease lasts; tell whether that was heard."""
        while not self._taken and _now() - self._renewed < self._lease:
            with suppress(StoreError):
                return what()
            time.sleep(self._lease / BEATS)
        return False


def _now() -> float:
    """Return seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _child(order: Order, held: _Held) -> tuple[int, str]:
    """Run the command in the commit's environment; return its exit code and output."""
    spool = spooled()
    place = order.repository
    with (
        environments.made(place, order.tip, files_only=True) as tip,
        environments.made(place, order.job.commit, order.build) as own,
        _confined(order.share, held) as confined,
    ):
        line = [own.python, "-P", "-m", "steelyard.cli", *_words(order, tip)]
        variables = {
            **login(),
            **{n: v for n, v in os.environ.items() if n.startswith("STEELYARD_")},
            **own.variables,
            **confined,
            **_origins(own, tip, order.job.suites).variable(),
            "STEELYARD_STORE": order.store,
            SPOOL: str(spool),
            JOB: f"{order.campaign}-{order.job.id} {held.claim.holder} {order.machine}",
        }
        with (spool / f"{order.campaign}-{order.job.id}.log").open("w+") as log:
            code = _run(line, variables, own.tree, log, held)
            log.seek(0)
            said = log.read()
            whole = order.job.what == BISECT and code == FINE  # its last line answers
            return code, said.splitlines()[-1] if whole else said[-TAIL:]


@contextmanager
def _confined(share: Share | None, held: _Held) -> Iterator[dict[str, str]]:
    """Keep what is started here to a part of the machine, and give its variables.

    Raises:
        UnjudgedError: the work is to end, or somebody has the machine for too long.
    """
    if share is None:
        held.require()
        yield {}
        return

    def pause(seconds: float) -> None:
        held.require()
        time.sleep(seconds)

    every = os.sched_getaffinity(0)
    with lock.measuring(WAIT, pause=pause, part=share.name) as path:
        held.require()
        together = facts.siblings(sorted(every))
        groups = () if isinstance(together, str) else together
        os.sched_setaffinity(0, jobs.cores(every, groups, share))  # of this thread
        try:
            yield {"CUDA_VISIBLE_DEVICES": share.uuid, "STEELYARD_LOCK": str(path)}
        finally:
            os.sched_setaffinity(0, every)


def _run(
    line: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    log: IO[str],
    held: _Held,
) -> int:
    return children.run(line, WAIT, variables, folder, log, wait=held.wait).code


def _words(order: Order, tip: Environment) -> list[str]:
    """Return the command and its arguments; no credentials are among them."""
    job = order.job
    if job.what != RUN:  # of the commit itself, which copies its suites to the others
        return [job.what, *job.options, *job.suites]
    suites = [str(tip.tree / place) for place in job.suites]
    tags = (f"fleet/{order.campaign}", f"job/{order.campaign}-{job.id}")
    named = [word for tag in tags for word in ("--tag", tag)]
    return [RUN, *suites, *named, "--wait", str(WAIT), *job.options]


def _origins(own: Environment, tip: Environment, suites: Sequence[str]) -> Origins:
    """Return where the child may import from: not from the commit of the suites."""
    places = (str(own.tree), *(str(tip.tree / place) for place in suites))
    return Origins(
        places=places,
        avoided=(str(tip.tree),),
        wrong="the suites import other code of the project than the commit's. Keep what "
        "suites share in their folder.",
    )


def login() -> dict[str, str]:
    """Return the variables that a login gives this user: none of Ray's, none of ours."""
    user = pwd.getpwuid(os.getuid())
    bare = {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "PATH": os.defpath,
    }
    mark = "steelyard login"
    line = [user.pw_shell or "/bin/sh", "-l", "-c", f"echo; echo {mark}; env -0"]
    try:
        done = children.run(line, 20, bare, Path(user.pw_dir))
    except (OSError, subprocess.TimeoutExpired):
        return bare
    said = done.output.partition(f"{mark}\n")[2].split("\0")
    found = dict(one.split("=", 1) for one in said if "=" in one)
    return found or bare


def spooled() -> Path:
    """Return the folder of what could not be stored, which is the user's alone."""
    folder = environments.home() / "spool"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def import_spooled(url: str) -> None:
    """Store the runs that children could not store, and remove their files.

    Raises:
        StoreError: the database is away; the files stay.
    """
    for file in spooled().glob("*.json"):
        with Store.open(url) as store:
            store.load(file.read_bytes())
        file.unlink(missing_ok=True)
