"""What other tools measured, as runs: stored numbers, whose doubt and mode say `imported`.

A result is windows of launches as ours are. Where a file has statistics alone, one window
holds all launches and the interval is the one that is `stated`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

from steelyard.analyse.distributions import student
from steelyard.analyse.doubts import Doubt, Seen
from steelyard.analyse.doubts.samples import BIMODAL, DRIFTING, FEW_SAMPLES, IMPORTED
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, ClockFacts, Run, Samples, Trial
from steelyard.machine.decoding import Malformed, Within, checked
from steelyard.machine.printable import printable
from steelyard.store import codec, shapes

NANO: Final = 1e9
"""Other tools keep seconds."""

LONGEST: Final = 500
"""Characters of a case: indexes of PostgreSQL take 2,700 bytes."""

Seconds = Annotated[float, Within(0, 1e9)]
MOST: Final = shapes.MOST
Count = Annotated[int, Within(1, MOST)]

SECONDS: Final[Any] = Seconds
COUNT: Final[Any] = Count
"""The same as values: to a type checker a type with bounds is no class."""

OF_SAMPLES: Final = (BIMODAL, DRIFTING, FEW_SAMPLES)
"""Doubts that need nothing but samples."""


@dataclass(frozen=True, slots=True)
class Source:
    """The file that results are read from."""

    digest: str
    """Of its bytes: the same file is the same run."""
    place: Path | None
    """None of standard input."""
    written: str
    """When, for files that do not say when they were measured."""
    commit: str = UNKNOWN
    """Which commit was measured, for files that do not say so."""


@dataclass(frozen=True, slots=True)
class Window:
    """Launches that were timed together."""

    seconds: float
    """Of one launch, as processor time too; 0 where that is unknown."""
    launches: int = 1
    processor: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One case in one mode, as a file has it."""

    case: str
    mode: str
    """The tool, and what it measured if that is several things."""
    windows: Sequence[Window] = ()
    axes: Mapping[str, Any] = field(default_factory=dict)
    stated: tuple[float, float, float] | None = None
    """Seconds of a launch with the ends of their interval, of no samples."""
    method: str = ""
    """How it was measured: results of two methods do not compare. Nothing: by samples, or
    the mean of what is ``stated``."""
    clock: str = UNKNOWN
    facts: Mapping[str, Any] = field(default_factory=dict)
    on_gpu: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """One file, or the part of it that is of one machine."""

    results: Sequence[Result]
    version: str = ""
    """Of the tool."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    started: str | None = None
    commit: Any = None
    dirty: bool | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: what tells it, what it holds, and how that is read."""

    tool: str
    keys: frozenset[str]
    """Those that a file of it has, and files of other formats have not."""
    shape: type
    """What belongs there: see `decoding.checked`."""
    reports: Callable[[Any, Source], Iterable[Report]]


def runs(
    format_: Format, document: Any, source: Source
) -> list[tuple[Run, list[Trial]]]:
    """Return the runs of a document.

    Raises:
        Malformed: something is missing, or not what belongs there.
    """
    checked(document, format_.shape)
    reports = list(format_.reports(document, source))
    if not any(report.results for report in reports):
        raise Malformed("it has no result that is a time")
    return [_run(format_, one, at, source) for at, one in enumerate(reports)]


def mean(value: float, deviation: float, count: int) -> tuple[float, float, float]:
    """Return a mean with its 95 % interval by Student's t of ``count`` samples.

    Raises:
        Malformed: a deviation is below 0, or there are more samples than any tool takes.
    """
    checked(count, COUNT, "the number of samples")
    if not deviation >= 0:
        raise Malformed(f"a deviation is {deviation}, expected 0 or more")
    half = student(count) * deviation / math.sqrt(count) if count > 1 else 0.0
    return value, max(value - half, 0.0), value + half


def moment(text: str) -> str:
    """Return a date and time in UTC; without an offset it is taken to be UTC.

    Raises:
        Malformed: it is none.
    """
    try:
        said = datetime.fromisoformat(text.replace("/", "-"))
        known = said if said.tzinfo else said.replace(tzinfo=UTC)
        return known.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError) as error:
        raise Malformed(f"{printable(text, 40)!a} is no date") from error


def known(**facts: Any) -> dict[str, Any]:
    """Return facts as a run keeps them, without those that a file does not say."""
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in facts.items()
        if value not in (None, "")
    }


def count(value: Any) -> int | None:
    """Return a count that a machine may have, None of anything else."""
    right = isinstance(value, int) and not isinstance(value, bool)
    return value if right and 0 <= value <= shapes.MOST else None


def named(name: str, axes: Mapping[str, Any]) -> str:
    """Return the id of a case, as ours are."""
    inside = ",".join(f"{axis}={value}" for axis, value in axes.items())
    return f"{name}[{inside}]" if inside else name


def axis(value: Any) -> Any:
    """Return the value of an axis as a case id has it; a text of a number is one."""
    if isinstance(value, str):
        if re.fullmatch(r"-?\d{1,15}", value):
            return int(value)
        if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", value):
            return float(value)
        return printable(value, LONGEST)
    small = isinstance(value, (int, float)) and abs(value) < 1e30
    return value if small or value is None else printable(repr(value), LONGEST)


def _run(
    format_: Format, report: Report, at: int, source: Source
) -> tuple[Run, list[Trial]]:
    name = source.place.name if source.place else "-"
    tool = f"{format_.tool} {printable(report.version, 40)}".strip()
    dated = "date of the file" if source.place else "date of the import"
    named = re.fullmatch("[0-9a-f]{7,64}", str(report.commit or ""))
    run = Run(
        uid=blake2b(f"{source.digest} {at}".encode(), digest_size=16).hexdigest(),
        started=report.started or source.written,
        command=printable(report.command or f"steelyard import {name}"),
        version=metadata.version("steelyard"),
        machine=report.machine,
        settings={"imported": tool} | ({} if report.started else {"dated": dated}),
        tags=(format_.tool,),
        commit=named[0] if named else source.commit,
        dirty=report.dirty if named else None,
        state="finished",
        finished=None,
    )
    made, blocks = [], Counter[tuple[str, str]]()
    for position, result in enumerate(report.results):
        case = _case(result.case)
        key = case, result.mode
        try:
            trial = _trial(format_.tool, result, case, blocks[key], position)
            # As from any other store: what is stored has been read.
            blob = codec.pack(trial.samples, trial.clock.floor)
            made.append(codec.trial(codec.document(trial), blob))
        except Malformed as error:
            raise Malformed(f"{case}: {error}") from error
        blocks[key] += 1
    return codec.run(codec.plain(asdict(run))), made


def _case(text: str) -> str:
    """Return a name that a store and a terminal can hold."""
    said = printable(text, len(text))
    if len(said) <= LONGEST:
        return said
    return f"{said[:LONGEST]} {blake2b(text.encode(), digest_size=4).hexdigest()}"


def _trial(tool: str, result: Result, case: str, block: int, position: int) -> Trial:
    samples = _samples(result.windows)
    extra: dict[str, Any] = {"gpu": {}} if result.on_gpu else {}
    stated = result.stated
    if stated is None and len(result.windows) == 1:
        # One window says nothing of its own error: any.
        stated = (seconds := result.windows[0].seconds), 0.0, 2 * seconds
    if stated is not None:
        extra["stated"] = asdict(Estimate(*(NANO * one for one in stated)))
    method = result.method or ("mean" if result.stated else "")
    trial = Trial(
        case=case,
        axes={printable(n): axis(value) for n, value in result.axes.items()},
        mode=f"imported/{result.mode}",  # every table, history and export has it
        block=block,
        position=position,
        worker=0,
        samples=samples,
        clock=ClockFacts(f"{tool} {result.clock}", 0, 1.0, ()),
        floors={},
        ledger={},
        facts=result.facts,
        hashes={"method": f"{tool} {method}".strip()},
        error=result.error and printable(result.error),
        extra=extra,
    )
    return replace(trial, doubts=tuple(map(str, _doubts(trial, result))))


def _doubts(trial: Trial, result: Result) -> Iterable[Doubt]:
    yield IMPORTED
    if len(trial.samples) and result.stated is None:
        seen = Seen(trial, 1, 1.0)
        yield from (doubt for doubt in OF_SAMPLES if doubt.holds(seen))


def _samples(windows: Sequence[Window]) -> Samples:
    for at, one in enumerate(windows):
        checked(one.seconds, SECONDS, f"window {at}")
        checked(one.processor, SECONDS, f"the processor time of window {at}")
        checked(one.launches, COUNT, f"the launches of window {at}")
    ticks = [round(NANO * one.seconds * one.launches) for one in windows]
    used = [round(NANO * one.processor * one.launches) for one in windows]
    longest = max(sum(ticks), sum(used))
    if longest > shapes.LONGEST:
        raise Malformed(f"its windows take {longest} ns")
    return Samples(
        ticks=tuple(ticks),
        starts=tuple(itertools.accumulate(ticks[:-1], initial=0)) if ticks else (),
        launches=tuple(one.launches for one in windows),
        cpu=tuple(used),
        preemptions=(0,) * len(windows),
    )
