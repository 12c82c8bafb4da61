"""A run as a page: its rows by benchmark, what stands out, and each case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from steelyard import units
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import Run
from steelyard.report import columns, curves, sweeps, tables, text
from steelyard.report.formats import Results
from steelyard.report.grid import Column, Sheet
from steelyard.report.pages import case, icicle, roofline
from steelyard.report.pages.html import Markup, Section, join, page, sheet, tag
from steelyard.store import archive, private

WORST: Final = 5
"""Rows of a list of the worst or the best."""

WHOLE: Final = 40
"""Rows up to which each has all its statistics and facts on the page."""

LARGEST: Final = 300_000
"""Bytes of a page that holds its run unasked: larger ones are not mailed around."""


def dumps(found: Results, *, samples: bool | None = None) -> str:
    """Return the page of a run.

    ``samples`` says whether `import` can read the run from it; else that depends on what
    the page comes to.
    """
    made, run = found.rows, found.run
    names = {
        case: f"c{n}" for n, case in enumerate(dict.fromkeys(r.case for r in made))
    }
    sections = [
        Section("Overview", list(_overview(found))),
        Section("Results", list(_tables(found, names))),
        Section("Sweeps", list(_sweeps(found))),
        Section("Builds", list(icicle.figure(icicle.of_rows(made)))),
        Section("Roofline", list(roofline.figure(made, run.peaks))),
        Section("Doubts", list(_doubts(made))),
        Section("Cases", list(_cases(run, made, names))),
    ]
    about = private.anonymous(text.header(run, len(found.trials)))
    written = page(f"Run {run.short}", about, sections, "run")
    room = None if samples else LARGEST - len(written.encode())
    if samples is False or (room is not None and room < 0):
        return written
    whole = archive.for_page(run, found.trials)
    if room is not None and len(whole["packed"]) > room:
        return written
    return page(f"Run {run.short}", about, sections, whole)


def _overview(found: Results) -> Iterator[Markup]:
    made = found.rows
    good = [row for row in made if row.estimate]
    failed = sum(not row.trials for row in made)
    cases = units.count(len({row.case for row in made}), "case")
    doubts = Counter(doubt for row in made for doubt in row.doubts)
    named = (
        join((", ", tag("a", name, href=f"#d-{name}"), f" {count}"))
        for name, count in doubts.most_common()
    )
    sure = sum(not row.doubts for row in good)
    rows = units.count(len(made), "row")
    head = f"{cases} in {rows}, {failed} failed. By doubt: none {sure}"
    yield tag("p", head, *named, class_="lead")
    for error in dict.fromkeys(error for row in made for error in row.errors):
        yield tag("p", f"failed: {private.anonymous(error)}", class_="bad")
    cliffs = [tag("li", said) for said in sweeps.sentences(found.run, made)]
    if cliffs:
        yield tag("ul", *cliffs)
    if len(good) > WORST:
        yield tag("div", *_standing_out(good), class_="row")


def _standing_out(good: Sequence[Row]) -> Iterator[Markup]:
    """Yield the worst and the best rows by peak, or by bytes; the least certain ones."""
    near = [row for row in good if row.peak]
    moved = [row for row in good if row.rate("bytes") and not near]
    lists: list[tuple[str, Callable[[Row], float], list[Row]]] = [
        ("farthest from the peak", _share, near),
        ("nearest to the peak", lambda row: -_share(row), near),
        ("fewest bytes per second", _rate, moved),
        ("most bytes per second", lambda row: -_rate(row), moved),
        ("widest intervals", lambda row: -_half(row), list(good)),
    ]
    for title, key, group in lists:
        if len(group) > WORST:
            yield sheet(_short(title, sorted(group, key=key)[:WORST]))


KEPT: Final = ("mode", "time", "95 %", "GB/s", "% peak")


def _short(title: str, chosen: Sequence[Row]) -> Sheet[Row]:
    kept = [c for c in columns.of(chosen, set(chosen[0].axes)) if c.title in KEPT]
    name: Column[Row] = Column("case", lambda row: row.case, right=False)
    return Sheet(title, (name, *kept), chosen)


def _half(row: Row) -> float:
    return row.estimate.half_width if row.estimate else 0.0


def _rate(row: Row) -> float:
    return row.rate("bytes") or 0.0


def _share(row: Row) -> float:
    return row.peak.share if row.peak else 0.0


def _doubts(made: Sequence[Row]) -> Iterator[Markup]:
    found = Counter(doubt for row in made for doubt in row.doubts)
    if found:
        yield sheet(tables.doubts_sheet(found), name=lambda one: f"d-{one[0]}")


def _tables(found: Results, names: dict[str, str]) -> Iterator[Markup]:
    for one in columns.sheets(found.rows, found.columns):
        yield sheet(one, lambda row: f"#{names[row.case]}")
    for ledger in tables.ledger_sheets(found.rows):
        yield sheet(ledger)
    if any(tables.excess(row) for row in found.rows):
        yield tag("p", tables.OVERLAP, class_="note")
    around = tables.floors([t for row in found.rows for t in row.trials])
    if around is not None:
        yield sheet(around)


def _sweeps(found: Results) -> Iterator[Markup]:
    """Yield times over each axis of sizes, a picture a benchmark and mode, and its cliffs."""
    every = sorted(found.rows, key=_sweep)
    for across in sweeps.axes(every):
        for _, rows in groupby(every, key=_sweep):
            over = sweeps.curves(found.run, list(rows), across)
            if any(len(curve.times) > 2 for curve in over):
                yield tag("figure", Markup(curves.svg(over, across)))


def _sweep(row: Row) -> tuple[str, str]:
    return row.benchmark, row.mode


def _cases(run: Run, made: Sequence[Row], names: dict[str, str]) -> Iterator[Markup]:
    whole = len(made) <= WHOLE
    if not whole:
        yield tag(
            "p",
            "Every statistic of a case: ",
            tag("code", f"steelyard report {run.short} CASE -o case.html"),
            class_="note",
        )
    for name, rows in groupby(made, key=lambda row: row.case):
        yield case.section(run, list(rows), names[name], whole=whole)
