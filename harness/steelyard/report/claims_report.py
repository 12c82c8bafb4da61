"""Judged claims for a terminal, as Markdown, as JSON and as JUnit's XML. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse.bounds import UNITS, Bound
from steelyard.analyse.claims import Judged, State, exit_code
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Run
from steelyard.errors import SteelyardError
from steelyard.report import json_report, tables, text
from steelyard.report import junit as xml
from steelyard.report.grid import Line, sheet_of
from steelyard.store.codec import strict

NUMBERS: Final = ("measured", "95 %", "bound")
HEADS: Final = ("claim", *NUMBERS, "verdict", "case", "mode", "note")

STYLES: Final = {
    State.HOLDS: "green",
    State.FAILS: "bold red",
    State.BROKEN: "bold red",
    State.UNDECIDED: "yellow",
    State.MISSING: "yellow",
}

FAILING: Final = frozenset({State.FAILS, State.BROKEN})


def table(found: Sequence[Judged]) -> str:
    """Return judged claims as a terminal shows them."""
    return tables.captured(page(found))


def json(found: Sequence[Judged], run: Run | None) -> str:
    """Return judged claims as JSON's text; times are nanoseconds."""
    document = {
        "schema": 1,
        "run": run.uid if run else None,
        "commit": run.commit if run else None,
        "machine": run.machine if run else None,
        "exit_code": exit_code(found),
        "claims": [_line(one) for one in found],
    }
    return json_report.text_of(strict(document)) + "\n"


def junit(found: Sequence[Judged]) -> str:
    """Return judged claims as JUnit's XML."""
    return xml.dumps("steelyard claims", map(_entry, found))


def markdown(found: Sequence[Judged], run: Run | None) -> str:
    """Return judged claims as a table below the facts of the run."""
    return "\n".join(_markdown(found, run)) + "\n"


def page(found: Sequence[Judged]) -> Iterator[RenderableType]:
    """Yield what a terminal shows: a line a case, then how many there are of which."""
    shown: list[Line] = []
    before = ""
    for one in found:
        name, *numbers, state, case, mode, why = cells_of(one)
        said = Text(state, style=STYLES.get(one.state, "dim"))
        shown.append((name * (name != before), *numbers, said, case, mode, why))
        before = name
    yield sheet_of(HEADS, shown, right=NUMBERS, folds={"claim", "case", "note"})
    yield Text(f"\n{headline(found)}", style="bold red" if exit_code(found) else "bold")


def headline(found: Sequence[Judged]) -> str:
    """Return how many lines are in which state, the worst first."""
    counts = Counter(one.state for one in found)
    order = (State.FAILS, State.BROKEN, State.MISSING, State.UNDECIDED, State.EXPECTED)
    every = (*order, State.HOLDS, State.SKIPPED)
    return ", ".join(f"{state}: {counts[state]}" for state in every if counts[state])


def cells_of(one: Judged) -> tuple[str, ...]:
    """Return the cells of a line, under `HEADS`."""
    claim, seen, first = one.claim, one.estimate, one.claim.bounds[0]
    related = claim.relative_to[0] if len(claim.relative_to) == 1 else one.base
    case = f"{one.case} / {related}" if one.base else one.case
    return (
        claim.name,
        _number(seen.value, first) if seen else units.NOTHING,
        _interval(seen, first) if seen else units.NOTHING,
        ", ".join(map(str, claim.bounds)),
        str(one.state),
        case or ", ".join(claim.cases),
        claim.mode,
        one.why,
    )


def _interval(seen: Estimate, bound: Bound) -> str:
    """Write an interval as its number is written; a unit is said once."""
    low, high = (_number(end, bound, 3) for end in (seen.low, seen.high))
    number, _, unit = low.partition(" ")
    return f"[{number if high.endswith(f' {unit}') else low}, {high}]"


def _number(value: float, bound: Bound, count: int = 4) -> str:
    """Write a number in the unit of its bound, a time in its own."""
    if bound.quantity == "time":
        return units.duration(value, count)
    scaled = units.figures(value / UNITS[bound.unit][1], count)
    return f"{scaled} {bound.unit}".rstrip()


def _markdown(found: Sequence[Judged], run: Run | None) -> Iterator[str]:
    if run:
        yield from (text.caption(run), "")
    yield from (f"**{headline(found)}**", "")
    yield from sheet_of(HEADS, map(cells_of, found), right=NUMBERS).markdown()


def _line(one: Judged) -> dict[str, Any]:
    claim, seen = one.claim, one.estimate
    return {
        "name": claim.name,
        "state": str(one.state),
        "case": one.case or None,
        "relative_to": one.base or None,
        "mode": claim.mode,
        "bound": [str(bound) for bound in claim.bounds],
        "value": seen.value if seen else None,
        "low": seen.low if seen else None,
        "high": seen.high if seen else None,
        "why": one.why,
    }


def _entry(one: Judged) -> xml.Entry:
    """Return a line as a test: what fails fails, what is not judged is skipped."""
    name, measured, interval, bound, state, case, mode, why = cells_of(one)
    said = f"{state}: {measured} {interval}, expected {bound}"
    return xml.Entry(
        group=name,
        name=f"{case} {mode}",
        message=f"{said}; {why}" if why else said,
        failure=state if one.state in FAILING else "",
        skipped=one.state in {State.SKIPPED, State.UNDECIDED, State.MISSING},
        properties={"bound": bound, "measured": measured, "interval": interval},
    )


TITLES: Final = (
    *("claim", "case", "mode", "machine"),
    *(*NUMBERS, "verdict", "date", "commit", "run"),
)
KEY: Final = 4
"""The columns that say which line it is: it is replaced when it is measured again."""

ABOUT: Final = """\
# Claims, as they were last measured

`steelyard claims --record` writes this table: the last figure of each claim on each machine.

"""


def merged(
    kept: str, found: Sequence[Judged], run: Run | None, names: Sequence[str]
) -> str:
    """Return a record with what was judged in it.

    ``names`` are the claims that there are, in their order; the lines of others go.

    Raises:
        SteelyardError: what is kept is no record.
    """
    lines = {line[:KEY]: line for line in (*_read(kept), *_lines(found, run))}
    order = {name: place for place, name in enumerate(names)}
    here = [line for line in lines.values() if line[0] in order]
    here.sort(key=lambda line: (order[line[0]], line))
    table = sheet_of(TITLES, here, right=NUMBERS)
    return ABOUT + "".join(f"{line}\n" for line in table.markdown())


def _lines(found: Sequence[Judged], run: Run | None) -> Iterator[tuple[str, ...]]:
    """Yield a line for each number; what has no interval leaves what is known."""
    for one in found:
        if run and one.estimate and one.estimate.known:
            name, *numbers, state, _, mode, _ = cells_of(one)
            commit = run.commit[:10] + " with changes" * bool(run.dirty)
            when = (run.started[:10], commit, run.short)
            machine = text.machine(run.machine)
            yield (name, one.case, mode, machine, *numbers, state, *when)


def _read(kept: str) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a record's text; an empty one has none."""
    rows = [_cells(line) for line in kept.splitlines() if line.startswith("|")]
    if kept and (rows[:1] != [TITLES] or any(len(r) != len(TITLES) for r in rows)):
        raise SteelyardError(
            f"the record has no table of {', '.join(TITLES)}. Name a file of `steelyard "
            "claims --record`, or one that is not there yet."
        )
    yield from rows[2:]


def _cells(line: str) -> tuple[str, ...]:
    cells = re.split(r"(?<!\\)\|", line)[1:-1]
    return tuple(cell.strip().replace("\\|", "|") for cell in cells)
