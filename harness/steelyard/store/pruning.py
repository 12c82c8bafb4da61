"""Which runs of a store are too old to keep whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from steelyard.store.heads import Head


@dataclass(frozen=True, slots=True)
class Old:
    """What goes, the oldest first."""

    samples: tuple[Head, ...]
    """Runs whose trials go and whose estimates stay."""
    runs: tuple[Head, ...]
    """Runs of which nothing stays."""
    left: int
    """Runs that stay as they are."""


def chosen(
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


def said(found: Old) -> Iterator[str]:
    """Say what goes and what stays, in lines."""
    for what, heads in (
        ("samples, keeping estimates, of", found.samples),
        ("everything of", found.runs),
    ):
        if heads:
            trials = sum(head.trials for head in heads if not head.pruned)
            first, last = (head.started[:10] for head in (heads[0], heads[-1]))
            yield f"{what} {len(heads)} runs of {first} to {last}: {trials} trials"
    yield f"{found.left} runs stay as they are"
