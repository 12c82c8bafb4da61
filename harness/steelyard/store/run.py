"""Runs that begin now, those that a selector names, and those too old to keep whole.

They are listed and found by a few short columns, and by none of their documents.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from importlib import metadata
from typing import Any, Final

from steelyard import units
from steelyard.analyse.trial import UNKNOWN, Run
from steelyard.errors import SteelyardError, StoreError
from steelyard.machine import facts as machine
from steelyard.machine import writer
from steelyard.machine.decoding import Malformed, parsed

SHORTEST: Final = 4
"""Fewest characters of an id or commit that select: fewer match by accident."""


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
        started=writer.now(),
        command=command,
        version=metadata.version("steelyard"),
        machine=facts,
        settings=settings,
        tags=tuple(tags),
        commit=facts["versions"].get("commit", UNKNOWN),
        dirty=dirty if isinstance(dirty, bool) else None,
        writer=writer.process(os.getpid()),
    )


def is_gone(run: Run) -> bool:
    """Return whether a run says ``running`` while its process certainly is not.

    False where that cannot be known: on another machine or in another container.
    """
    then = run.writer
    if run.state != "running" or "pid" not in then:
        return False
    here = writer.process(int(then["pid"]))
    if here["machine"] != then["machine"] or here["machine"] == UNKNOWN:
        return False
    if here["boot"] != then["boot"]:
        return True
    visible: bool = here["namespace"] == then["namespace"]
    return visible and bool(here["started"] != then["started"])


def select(runs: Sequence[Head], selector: str, store: str) -> Head:
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


def _nth_latest(runs: Sequence[Head], back: int, store: str) -> Head:
    if back > len(runs):
        raise StoreError(
            f"run @-{back} does not exist: store {store} has {len(runs)}. Ask for one "
            f"from @-1, the latest, to @-{len(runs)}."
        )
    return runs[-back]


def _unknown(runs: Sequence[Head], selector: str, store: str) -> StoreError:
    latest = "; ".join(
        " ".join((r.short, r.started[:16], *r.tags)) for r in runs[: -5 - 1 : -1]
    )
    return StoreError(
        f"no run of store {store} has the tag, id or commit {selector!r} (at least "
        f"{SHORTEST} characters of the latter two). The latest runs: {latest}."
    )


@dataclass(frozen=True, slots=True)
class Head:
    """A stored run without what it says of itself at length."""

    uid: str
    started: str
    finished: str | None
    state: str
    """As stored: one that says ``running`` may be gone."""
    commit: str
    dirty: bool | None
    tags: tuple[str, ...]
    number: int
    """In the order they were stored."""
    trials: int
    """How many it has, or had before it was pruned."""
    chain: str
    """Of its trials' digests, the exclusive or."""
    kind: str
    """Of its machine: see `kinds`."""
    place: str
    """Which machine it was."""
    pruned: str | None
    """When its trials were removed; what they came to is still there."""

    @property
    def short(self) -> str:
        """The id as people type it."""
        return self.uid[:8]


def head_of(values: Sequence[Any]) -> Head:
    """Return the head of the values of the columns `schema.HEAD`.

    Raises:
        Malformed: its tags are no list of words.
    """
    every = list(values)
    every[TAGS] = _tags(every[TAGS])
    return Head(*every)


TAGS: Final = [field.name for field in fields(Head)].index("tags")


@cache
def _tags(text: str) -> tuple[str, ...]:
    """Read what thousands of runs have in common."""
    tags = parsed(text)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Malformed(f"tags is {text[:40]!r}, expected a list")
    return tuple(tags)


@dataclass(frozen=True, slots=True)
class Old:
    """What goes, the oldest first."""

    samples: tuple[Head, ...]
    """Runs whose trials go and whose estimates stay."""
    runs: tuple[Head, ...]
    """Runs of which nothing stays."""
    left: int
    """Runs that stay as they are."""


def too_old(
    heads: Sequence[Head],
    now: str,
    samples: int | None,
    runs: int | None,
    keep: Sequence[str] = (),
) -> Old:
    """Return what is older than so many days.

    Runs that say that they measure, those with a tag of ``keep`` and the latest of each
    kind of machine and set of tags stay: baselines and self-tests are among these.
    """
    latest = {(head.kind, frozenset(head.tags)): head.uid for head in heads}
    free = [
        head
        for head in sorted(heads, key=lambda head: head.started)
        if head.state != "running"
        and head.uid not in latest.values()
        and not set(keep).intersection(head.tags)
    ]
    gone = _before(free, now, runs)
    emptied = [one for one in _before(free, now, samples) if not one.pruned]
    rest = tuple(one for one in emptied if one not in gone)
    return Old(rest, gone, len(heads) - len(gone) - len(rest))


def _before(heads: Sequence[Head], now: str, days: int | None) -> tuple[Head, ...]:
    """Return the runs that began more than so many days ago, none without a limit."""
    if days is None:
        return ()
    limit = (datetime.fromisoformat(now) - timedelta(days)).isoformat()
    return tuple(head for head in heads if head.started < limit)


def said_of(found: Old) -> Iterator[str]:
    """Say what goes and what stays, in lines."""
    for what, heads in (
        ("samples, keeping estimates, of", found.samples),
        ("everything of", found.runs),
    ):
        if heads:
            trials = sum(head.trials for head in heads if not head.pruned)
            first, last = (head.started[:10] for head in (heads[0], heads[-1]))
            some, each = units.count(len(heads), "run"), units.count(trials, "trial")
            yield f"{what} {some} of {first} to {last}: {each}"
    yield f"stay as they are: {units.count(found.left, 'run')}"
