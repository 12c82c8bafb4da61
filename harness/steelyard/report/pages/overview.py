"""A store as a page: its runs, and where their pages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from steelyard import units
from steelyard.analyse.trial import Run
from steelyard.report import stored
from steelyard.report.pages.html import Section, page, sheet, tag
from steelyard.store import private


def dumps(
    name: str, runs: Sequence[Run], counts: Mapping[str, int], pages: Mapping[str, str]
) -> str:
    """Return the page of a store; ``pages`` are the files of runs and of other pages."""
    known = {run.short for run in runs}
    other = [
        tag("li", tag("a", what, href=place))
        for what, place in pages.items()
        if what not in known
    ]
    plain = [replace(one, command=private.anonymous(one.command)) for one in runs]
    table = replace(stored.runs_sheet(plain[::-1], counts), title="the latest first")
    sections = [
        Section("Pages", [tag("ul", *other)] if other else []),
        Section("Runs", [sheet(table, link=lambda run: pages.get(run.short))]),
    ]
    about = (
        f"{units.count(len(runs), 'run')}, {units.count(sum(counts.values()), 'trial')}"
    )
    return page(f"Store {private.anonymous(name)}", [about], sections, "store")
