"""A run: what was asked for, on which machine, by which process, and how it ended."""

from __future__ import annotations

import os
import re
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError, StoreError
from steelyard.machine import facts as machine
from steelyard.machine.facts import UNKNOWN
from steelyard.machine.printable import printable
from steelyard.store.urls import anonymous

STATES: Final = ("running", "finished", "budget", "interrupted", "failed")
"""As stored; ``budget`` is a run that ended because its budget did, and a ``running`` run whose process is gone reads `KILLED`."""

KILLED: Final = "killed"

SHORTEST: Final = 4
"""Fewest characters of an id or commit that select: fewer match by accident."""


@dataclass(frozen=True, slots=True)
class Run:
    """One stored run; its trials are kept beside it."""

    uid: str
    started: str
    """ISO 8601 in UTC with microseconds, so that text order is time order."""
    command: str
    version: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    commit: str = UNKNOWN
    dirty: bool | None = None
    """Whether tracked files differed from the commit; None where unknown."""
    writer: Mapping[str, Any] = field(default_factory=dict)
    state: str = "running"
    finished: str | None = None

    @property
    def short(self) -> str:
        """The id as people type it."""
        return self.uid[:8]

    @property
    def partial(self) -> bool:
        """Whether some of its turns may be missing."""
        return self.state != "finished"


def check_tags(tags: Sequence[str]) -> None:
    """Refuse tags that could not name a run.

    Raises:
        SteelyardError: one is empty, not printable, or begins with the @ of ``@-1``.
    """
    for tag in tags:
        if not tag.strip() or tag.startswith("@") or not tag.isprintable():
            raise SteelyardError(
                f"--tag is {tag!a}, expected a printable word that does not begin "
                "with @."
            )


def now() -> str:
    """Return this moment in UTC, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def new(
    command: str,
    settings: Mapping[str, Any],
    tags: Sequence[str] = (),
    facts: machine.Facts | None = None,
) -> Run:
    """Return a run that starts now, in this process."""
    facts = facts or machine.describe()
    dirty = facts["versions"].get("dirty")
    return Run(
        uid=uuid.uuid4().hex,
        started=now(),
        command=command,
        version=metadata.version("steelyard"),
        machine=facts,
        settings=settings,
        tags=tuple(tags),
        commit=facts["versions"].get("commit", UNKNOWN),
        dirty=dirty if isinstance(dirty, bool) else None,
        writer=process(os.getpid()),
    )


def command() -> str:
    """Return the command line as it was typed, but for the passwords of URLs.

    It is stored, exported, and shown to whoever meets the lock.
    """
    words = [Path(sys.argv[0]).name, *map(anonymous, sys.argv[1:])]
    return printable(shlex.join(words), 1 << 16)


def process(pid: int) -> dict[str, Any]:
    """Return what tells a process from any later one with its number."""
    return {
        "machine": machine.machine_id(),
        "boot": machine.read("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": pid,
        "started": _process_start(pid),
    }


def _namespace() -> str:
    """Return the process-number space; the numbers of two containers are unrelated."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return UNKNOWN


def _process_start(pid: int) -> str:
    """Return when a process started, in ticks since boot (proc(5), stat, field 22)."""
    _, found, rest = machine.read(f"/proc/{pid}/stat").rpartition(") ")
    return rest.split()[19] if found else UNKNOWN


def is_gone(run: Run) -> bool:
    """Return whether a run says ``running`` while its process certainly is not.

    False where that cannot be known: on another machine or in another container.
    """
    writer = run.writer
    if run.state != "running" or "pid" not in writer:
        return False
    here = process(int(writer["pid"]))
    if here["machine"] != writer["machine"] or here["machine"] == UNKNOWN:
        return False
    if here["boot"] != writer["boot"]:
        return True
    visible: bool = here["namespace"] == writer["namespace"]
    return visible and bool(here["started"] != writer["started"])


def select(runs: Sequence[Run], selector: str, store: str) -> Run:
    """Return the run that ``selector`` names, of runs with the latest last.

    ``@-1`` is the latest and ``@-2`` the one before; otherwise a tag, the beginning of
    an id, or the beginning of a commit (of several runs with that tag or commit, the
    latest).

    Raises:
        StoreError: none matches, or the beginning of an id is that of several.
    """
    if not runs:
        raise StoreError(
            f"store {store} has no run yet; make one with `steelyard run`, or name "
            "another store with --store."
        )
    back = re.fullmatch(r"@-([1-9]\d*)", selector)
    if back:
        return _nth_latest(runs, int(back[1]), store)
    tagged = [r for r in runs if selector in r.tags]
    if tagged:
        return tagged[-1]
    long_enough = len(selector) >= SHORTEST
    named = [r for r in runs if long_enough and r.uid.startswith(selector.lower())]
    if len(named) > 1:
        raise StoreError(
            f"run {selector!r} is the beginning of {len(named)} ids: "
            f"{', '.join(r.uid[:12] for r in named)}. Write more of it."
        )
    committed = [r for r in runs if long_enough and r.commit != UNKNOWN]
    same = [r for r in committed if r.commit.startswith(selector.lower())]
    if not named and not same:
        raise _unknown(runs, selector, store)
    return (named or same)[-1]


def _nth_latest(runs: Sequence[Run], back: int, store: str) -> Run:
    if back > len(runs):
        raise StoreError(
            f"run @-{back} does not exist: store {store} has {len(runs)}. Ask for one "
            f"from @-1, the latest, to @-{len(runs)}."
        )
    return runs[-back]


def _unknown(runs: Sequence[Run], selector: str, store: str) -> StoreError:
    latest = "; ".join(
        " ".join((r.short, r.started[:16], *r.tags)) for r in runs[: -5 - 1 : -1]
    )
    return StoreError(
        f"no run of store {store} has the tag, id or commit {selector!r} (at least "
        f"{SHORTEST} characters of the latter two). The latest runs: {latest}."
    )
