"""The table of claims that a project keeps: a line a claim, case and machine. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from steelyard.analyse.claims import Judged
from steelyard.analyse.run import Run
from steelyard.errors import SteelyardError
from steelyard.report import claims_report, text
from steelyard.report.grid import sheet_of

TITLES: Final = (
    *("claim", "case", "mode", "machine"),
    *(*claims_report.NUMBERS, "verdict", "date", "commit", "run"),
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
    table = sheet_of(TITLES, here, right=claims_report.NUMBERS)
    return ABOUT + "".join(f"{line}\n" for line in table.markdown())


def _lines(found: Sequence[Judged], run: Run | None) -> Iterator[tuple[str, ...]]:
    """Yield a line for each number; what was not measured leaves what is known."""
    for one in found:
        if run and one.estimate:
            name, *numbers, state, _, mode, _ = claims_report.cells_of(one)
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
