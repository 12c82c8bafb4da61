"""Say why one row takes longer than another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.text import Text

from steelyard.analyse.rows import rows
from steelyard.analyse.trial import Run, Trial
from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.report import comparison, stored, tables
from steelyard.report.comparison import Side
from steelyard.store import capsules
from steelyard.store.store import Store


@click.command()
@click.argument("base", metavar="A")
@click.argument("head", metavar="B")
@options.option("--mode", "Only this mode.", "all", metavar="MODE")
@options.store_option
def command(*, base: str, head: str, mode: str | None, store: str | None) -> None:
    """Say what differs between A and B, and how much of their ratio that accounts for.

    A and B are each a case of the latest stored run that has it, RUN:CASE of another run
    (RUN as in `show`), or a capsule, of which nothing is run.
    """
    url = options.url(store)
    both = [dict(_modes(name, url)) for name in (base, head)]
    shared = [m for m in both[0] if m in both[1] and mode in {None, m}]
    if not shared:
        has = " and ".join(", ".join(one) or "none" for one in both)
        raise SteelyardError(
            f"{base} and {head} were measured in no mode alike, or not in the one that was "
            f"asked for: {has}. Measure both in one mode."
        )
    console = tables.console()
    for side, name in (("A", base), ("B", head)):
        one = both[side == "B"][shared[0]]
        console.print(Text(f"{side}: {one.row.case}, run {one.run.short} ({name})"))
    for each in shared:
        console.print(*comparison.explanation(*(one[each] for one in both)), sep="\n")


def _modes(name: str, url: str) -> Iterator[tuple[str, Side]]:
    """Yield the rows of the one case that is named, by their modes."""
    run, trials = _named(name, url)
    cases = sorted({trial.case for trial in trials})
    if len(cases) > 1:
        raise SteelyardError(
            f"{name!r} names {len(cases)} cases: {', '.join(cases[:5])}. Write more of it."
        )
    for row in rows(trials):
        if row.trials:
            yield row.mode, Side(name, run, row)


def _named(name: str, url: str) -> tuple[Run, Sequence[Trial]]:
    if name.endswith(capsules.SUFFIX):
        found = capsules.read(Path(name))
        return found.run, found.trials
    with Store.open(url, create=False) as opened:
        run, colon, case = name.partition(":")
        if not colon or "[" in run:  # a value of an axis may have colons
            run, case = _latest(opened, name), name
        found_run = opened.find(run)
        return found_run, stored.of_case(opened.trials(found_run.uid), case)


def _latest(opened: Store, case: str) -> str:
    """Return the latest run that has a case, else the latest that has any.

    A gate stores a run of each side, also where it measured nothing.
    """
    measured = [head.uid for head in reversed(opened.heads()) if head.trials]
    having = (u for u in measured if any(case in t.case for t in opened.trials(u)))
    return next(having, next(iter(measured), stored.LATEST))
