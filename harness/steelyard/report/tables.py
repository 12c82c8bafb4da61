"""Tables in a terminal (rich): results, floors, ledgers, doubts and failures."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import groupby
from typing import IO, Any, Final, cast

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
    RenderResult,
)
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from steelyard import units
from steelyard.analyse import doubts
from steelyard.analyse.doubts.machine import BUSY_MACHINE
from steelyard.analyse.doubts.samples import FEW_SAMPLES, IMPORTED, ONE_BLOCK, UNSETTLED
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import Run, Trial
from steelyard.machine.printable import printable
from steelyard.report import columns as columns_
from steelyard.report import text
from steelyard.report.grid import Column, Line, Sheet, grid

PAGE: Final = 80
"""Columns where there is no terminal to ask: a file or a pipe has room."""


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as its terminal, or as a page where there is none."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in made._environ:  # noqa: SLF001 # rich's own copy of the environment
        made.width = PAGE
    if not made.is_terminal:
        made.file = cast("IO[str]", _Trimmed(made.file))
    made.push_render_hook(_Printable())
    return made


def captured(parts: Iterable[RenderableType]) -> str:
    """Return what a terminal as wide as a page would show, without colours."""
    made = Console(width=PAGE, color_system=None, highlight=False)
    with made.capture() as shown:
        made.print(*parts, sep="\n")
    return shown.get()


class _Printable(RenderHook):
    """What is printed is shown and not obeyed, whoever wrote the text."""

    def process_renderables(
        self, renderables: list[ConsoleRenderable]
    ) -> list[ConsoleRenderable]:
        """Put each into what makes its text printable."""
        return [_Shown(one) for one in renderables]


class _Shown:
    """Another renderable whose segments are printable."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for said, style, control in console.render(self._inner, options):
            own = said if control else printable(said, len(said), keep="\n")
            yield Segment(own, style, control)

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        return Measurement.get(console, options, self._inner)


class _Trimmed:
    """A stream for files and pipes: what a table pads its lines with is left out."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the stream does it."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write whole lines without the blanks at their ends."""
        return self._stream.write(re.sub(r" +(?=\n)", "", text))


def run_header(run: Run, done: int | None = None) -> RenderableType:
    """Return what every report of a run begins with; ``done`` counts its turns."""
    first, *rest = text.header(run, done)
    return Text(first, style="bold").append(
        "\n" + "\n".join(rest), style="not bold dim"
    )


def floors(trials: Sequence[Trial]) -> Sheet[Line] | None:
    """Return what each clock reads around nothing: medians over all trials."""
    groups: dict[tuple[str, float], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.floors:
            groups[trial.clock.id, trial.clock.quantum].append(trial)
    if not groups:
        return None
    names = dict.fromkeys(n for t in trials for n in t.floors)
    lines = []
    for (clock, quantum), group in groups.items():
        found = [[t.floors[n] for t in group if n in t.floors] for n in names]
        cells = [units.duration(statistics.median(f)) if f else "-" for f in found]
        lines.append((clock, units.duration(quantum), *cells))
    titles = ("tick", *(FLOORS.get(n, n) for n in names))
    return grid("floors", ("clock",), titles, lines)


FLOORS: Final = {"empty": "empty window", "null": "null launch", "call": "Python call"}


def ledger_sheets(made: Sequence[Row]) -> Iterator[Sheet[Line]]:
    """Yield where the time of one call went, in percent of it: a table a benchmark.

    Axes of several values are columns.
    """
    good = [row for row in made if row.ledger() and row.estimate]
    for name, rows in groupby(good, key=lambda row: row.benchmark):
        yield _ledger(name, list(rows))


def _ledger(name: str, group: Sequence[Row]) -> Sheet[Line]:
    axes = dict.fromkeys(axis for row in group for axis in row.axes)
    shared = {
        a: group[0].axes.get(a)
        for a in axes
        if len({str(row.axes.get(a)) for row in group}) == 1
    }
    modes = len({row.mode for row in group}) > 1
    fullest = sorted((row.ledger() for row in group), key=len, reverse=True)
    parts = dict.fromkeys(p for one in fullest for p in one if p != "untracked")
    heads: dict[str, Callable[[Row], str]] = {
        axis: columns_.axis(axis) for axis in axes if axis not in shared
    }
    if modes:
        heads["mode"] = lambda row: row.mode
    heads["call"] = text.time
    inside = ",".join(f"{axis}={value}" for axis, value in shared.items())
    title = f"ledger: percent of one call, {name}" + f"[{inside}]" * bool(inside)
    cells = {part: _part(part) for part in (*parts, "untracked")}
    each = (*heads.values(), *cells.values())
    lines = (tuple(cell(row) for cell in each) for row in group)
    named = title if modes else f"{title} {group[0].mode}"
    return grid(named, tuple(heads), tuple(cells), lines)


def _part(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        parts = row.ledger()
        total = row.estimate.value if row.estimate else 0.0
        value = untracked(row) if name == "untracked" else parts.get(name)
        if value is None or not total:
            return units.NOTHING
        return f"{100 * value / total:.1f}"

    return cell


def untracked(row: Row) -> float:
    """Return what the parts of a call leave of it; below 0 where they are more."""
    total = row.estimate.value if row.estimate else 0.0
    return total - sum(v for n, v in row.ledger().items() if n != "untracked")


EXCESS: Final = 0.05
"""The share of a call by which its parts may exceed it without a word on it."""

OVERLAP: Final = (
    "untracked below 0: parts are measured apart from the call, in other launches, and "
    "overlap; together they may be more than it"
)


def footnote(made: Iterable[Row]) -> RenderableType | None:
    """Return why a ledger's parts are more than the call, where they are."""
    return Text(OVERLAP, style="dim") if any(map(excess, made)) else None


def excess(row: Row) -> bool:
    """Tell whether the parts of a row's ledger are visibly more than its call."""
    known = row.estimate if row.ledger() else None
    return known is not None and untracked(row) < -EXCESS * known.value


def hints(made: Iterable[Row]) -> RenderableType | None:
    """Return what each doubt seen means, once; of imported rows what can be followed."""
    seen = sorted(
        {d for row in made for d in row.doubts if _followed(d, among=row.doubts)}
    )
    if not seen:
        return None
    lines = [f"{doubt}: {hint(doubt)}" for doubt in seen]
    return Text("\n" + "\n".join(lines), style="yellow")


OF_RUN: Final = frozenset(
    one.name for one in (BUSY_MACHINE, FEW_SAMPLES, ONE_BLOCK, UNSETTLED)
)
"""Doubts whose hints name options of `run`, which neither gates nor other tools have."""


def _followed(doubt: str, among: Container[str]) -> bool:
    """Tell whether a reader can do what the hint of a doubt says."""
    return doubt not in OF_RUN or IMPORTED.name not in among


def hint(doubt: str, *, gated: bool = False) -> str:
    """Return a doubt's hint; that of a newer steelyard, or of a package, may not be known here.

    In a gate, where options of `run` do not help: why it keeps the verdict.
    """
    known = doubts.known().get(doubt)
    if known and gated and doubt in OF_RUN:
        return f"{known.hint.partition(';')[0]}; {known.reason}"
    return known.hint if known else "not known to this steelyard"


def doubts_sheet(found: Counter[str], *, gated: bool = False) -> Sheet[tuple[str, int]]:
    """Return how many rows have each doubt, and what it means."""
    shown: Sequence[Column[tuple[str, int]]] = (
        Column("doubt", lambda one: one[0], right=False),
        Column("rows", lambda one: str(one[1])),
        Column(
            "look for",
            lambda one: (
                hint(one[0], gated=gated) if _followed(one[0], found) else units.NOTHING
            ),
            right=False,
        ),
    )
    return Sheet("rows with each doubt", shown, found.most_common())


def failures(made: Iterable[Row]) -> RenderableType | None:
    """Return the sentence of every case that failed, once for all its modes."""
    modes: dict[str, list[str]] = defaultdict(list)
    for row in made:
        for error in row.errors:
            modes[error].append(row.mode)
    found = [f"failed: {error} ({', '.join(of)})" for error, of in modes.items()]
    return Text("\n".join(found), style="red") if found else None


def page(made: Sequence[Row], wanted: Sequence[str] = ()) -> Iterator[RenderableType]:
    """Yield everything a run's report shows below its header.

    ``wanted`` are names of `columns.EXTRAS`.
    """
    for table in columns_.sheets(made, wanted):
        yield from ("", table)
    for ledger in ledger_sheets(made):
        yield from ("", ledger)
    below = footnote(made)
    if below is not None:
        yield below
    around = floors([t for row in made for t in row.trials])
    if around is not None:
        yield from ("", around)
    for line in (hints(made), failures(made)):
        if line is not None:
            yield line
