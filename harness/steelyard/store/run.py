"""Runs that begin now, and those that a selector names."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

from steelyard.analyse.run import UNKNOWN, Run
from steelyard.errors import SteelyardError, StoreError
from steelyard.machine import facts as machine
from steelyard.machine import writer
from steelyard.store.heads import Head

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
