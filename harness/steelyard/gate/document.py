"""An outcome as JSON, and back: for other programs, and to be shown or accepted later.

::

    {
      "schema": 2,              raised when a key changes its meaning
      "digest": "...",          of all the rest, as canonical JSON
      "exit_code": 1,
      "ending": "regression",   or passed, failed, unresolved, no verdict
      "baseline": "main (1a2b3c4d5e)",     as it was named, and the commit it stood for
      "head": "5f0c...",        what is judged
      "runs": {"base": "...", "head": "..."},       ids of the stored runs
      "notes": [],
      "problem": null,          or {"sentence", "exit_code"}: why there is no verdict
      "findings": [             one a case and mode
        {
          "case": "copy[n=1000]",
          "mode": "kernel/cold",
          "verdict": "slower",  null where nothing could be compared
          "is": "regression",   as the policy sees it: the verdict, or failed,
                                regression, tolerated, accepted, new
          "judgement": {"verdict", "ratio", "low", "high", "blocks",
                        "smallest_detectable_change", "more"},        of the blocks alone, ratio is head over base;
                                null of what was not measured
          "tolerance": 0.0,     the slowdown that passes, as a share
          "reason": "",         why
          "accepted": false,
          "changes": [],        what may explain it, the likeliest first
          "file": "suites/copy.py",
          "line": 12,
          "note": "",
          "codes": ["", ""],    hashes of base's and head's code
          "new": false,         whether only head has the case
          "doubts": {"base": [], "head": ["preempted"]}
        }
      ],
      "static": [{"case", "target", "changes", "forbidden"}],
      "calibration": null       or {"run", "measured", "comparisons", "alarms", "rate",
                                "detectable": [[case, mode, share]], "power"}
    }

It is strict JSON: what is not a finite number is null, and reads as not a number, or as
infinite where it is a bound.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypedDict

from steelyard.analyse.verdict import Judgement
from steelyard.declare import config
from steelyard.errors import USAGE, SteelyardError, UnjudgedError
from steelyard.gate import words
from steelyard.gate.outcome import (
    BASE,
    HEAD,
    Calibration,
    Finding,
    Outcome,
    StaticChange,
)
from steelyard.machine import decoding, files
from steelyard.machine.decoding import checked, digest, made, parsed
from steelyard.store.codec import strict

SCHEMA: Final = 2
"""1: without a digest."""

LAST: Final = "gate.json"
"""The last gate's outcome, beside the store."""


def report(outcome: Outcome) -> dict[str, Any]:
    """Return the document of an outcome."""
    problem = outcome.problem
    return {
        "schema": SCHEMA,
        "exit_code": outcome.exit_code,
        "ending": words.ending(outcome),
        "baseline": outcome.baseline,
        "head": outcome.head,
        "runs": dict(outcome.runs),
        "notes": list(outcome.notes),
        "problem": problem
        and {"sentence": str(problem), "exit_code": problem.exit_code},
        "findings": [_finding(one) for one in outcome.findings],
        "static": [asdict(one) for one in outcome.static],
        "calibration": _calibration(outcome.calibration),
    }


def dumps(outcome: Outcome) -> str:
    """Return the document's text."""
    found = strict(report(outcome))
    found["digest"] = _digest(found)
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _digest(found: Mapping[str, Any]) -> str:
    """Return the digest of a document, whatever it says of its own."""
    return digest({name: one for name, one in found.items() if name != "digest"})


def _finding(one: Finding) -> dict[str, Any]:
    judged = one.judgement
    return {
        **{field.name: getattr(one, field.name) for field in fields(one)},
        "is": words.kind(one),
        "judgement": judged and _judgement(judged),
        "doubts": dict(zip((BASE, HEAD), one.doubts, strict=True)),
    }


def _judgement(judged: Judgement) -> dict[str, Any]:
    return {
        "verdict": judged.verdict,
        "ratio": judged.ratio.value,
        "low": judged.ratio.low,
        "high": judged.ratio.high,
        "blocks": judged.blocks,
        "smallest_detectable_change": judged.smallest,
        "more": judged.more,
    }


def _calibration(found: Calibration | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rate = found.rate
    return {
        **{field.name: getattr(found, field.name) for field in fields(found)},
        "rate": {"value": rate.value, "low": rate.low, "high": rate.high},
        "detectable": [[*key, value] for key, value in found.detectable.items()],
        "power": {repr(size): value for size, value in found.power.items()},
    }


MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What reading raises of a document whose parts are not what they should be."""


class _Head(TypedDict):
    schema: int


def loads(text: str, name: str = LAST) -> Outcome:
    """Return the outcome of a document.

    Raises:
        SteelyardError: it is none, or one of a newer steelyard.
    """
    try:
        found = parsed(text)
        schema = checked(found, _Head)["schema"]
        if schema != SCHEMA:
            raise SteelyardError(
                f"{name} has schema {schema} and this steelyard reads {SCHEMA}; "
                "upgrade it, or gate again."
            )
        if found.get("digest") != _digest(found):
            raise SteelyardError(f"{name} is not what was written; gate again.")
        outcome = _outcome(found)
    except MALFORMED as error:
        raise SteelyardError(
            f"{name} is no outcome of a gate: {error}; gate again with --format json."
        ) from error
    if outcome.exit_code != found["exit_code"]:
        raise SteelyardError(f"{name} has an exit code of something else; gate again.")
    return outcome


class _Problem(TypedDict):
    sentence: str
    exit_code: int


class _Document(TypedDict):
    exit_code: int
    baseline: str
    head: str
    runs: dict[str, str]
    notes: tuple[str, ...]
    problem: _Problem | None
    findings: tuple[Finding, ...]
    static: tuple[StaticChange, ...]


def _outcome(found: Mapping[str, Any]) -> Outcome:
    one = made({**found, "findings": list(map(_nested, found["findings"]))}, _Document)
    problem, known = one["problem"], found["calibration"]
    return Outcome(
        one["baseline"],
        one["head"],
        one["findings"],
        one["static"],
        None if known is None else _read_calibration(known),
        problem and _problem(**problem),
        one["runs"],
        one["notes"],
    )


def _problem(sentence: str, exit_code: int) -> SteelyardError:
    error = SteelyardError(sentence)
    error.exit_code = exit_code
    return error


def _nested(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finding as the fields of a `Finding` have it."""
    judged, doubts = found["judgement"], found["doubts"]
    if judged is not None:
        names = {"value": "ratio", "low": "low", "high": "high"}
        ratio = {
            name: _number(judged[key], UNKNOWN[name]) for name, key in names.items()
        }
        smallest = _number(judged["smallest_detectable_change"], math.inf)
        judged = {**judged, "ratio": ratio, "smallest": smallest}
    sides = [doubts.get(side, []) for side in (BASE, HEAD)]
    return {**found, "judgement": judged, "doubts": sides}


UNKNOWN: Final = {"value": math.nan, "low": 0.0, "high": math.inf}
"""What null stands for in a ratio."""


def _read_calibration(found: Mapping[str, Any]) -> Calibration:
    sizes = made(found["detectable"], list[tuple[str, str, float | None]])
    power = made(found["power"], dict[str, float])
    return replace(
        made({**found, "detectable": {}, "power": {}}, Calibration),
        detectable={(c, m): _number(value, math.inf) for c, m, value in sizes},
        power={float(size): value for size, value in power.items()},
    )


def _number(value: Any, missing: float) -> Any:
    return missing if value is None else value


def home(store: str) -> Path:
    """Return the folder of what a project keeps beside its store, a path or a URL."""
    place = config.default_store(Path.cwd()) if "://" in store else store
    return Path(place).parent


@contextmanager
def under_way(baseline: str, folder: Path) -> Iterator[None]:
    """Say in the last outcome's place that a gate is under way.

    Whatever ends it, the verdict of an older one does not stand for it. What was wrong
    with the question itself takes that back: see `keep`.

    Raises:
        SteelyardError: the disk refuses.
    """
    place = folder / LAST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _BEFORE[place] = place.read_bytes() if place.exists() else b""
    except OSError as error:
        raise SteelyardError(
            f"{place}: {error.strerror}. A gate's outcome is kept beside the store: name "
            "one elsewhere with --store or STEELYARD_STORE."
        ) from error
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    problem = UnjudgedError(
        f"the gate against {baseline} that began {when}{_under_way()}: it still runs, "
        "or it was ended before it had one. Gate again."
    )
    _write(Outcome(baseline, "head", problem=problem), folder)
    try:
        yield
    except SteelyardError:
        _take_back(folder)
        raise


_BEFORE: Final[dict[Path, bytes]] = {}
"""What was the last outcome before the gate that is under way, by its place."""


def _take_back(folder: Path) -> None:
    """Have the outcome before the gate that is under way be the last again."""
    place = folder / LAST
    before = _BEFORE.pop(place, None)
    with suppress(OSError):
        # Another gate may have ended meanwhile.
        if before is None or _under_way() not in place.read_text(encoding="utf-8"):
            return
        if before:
            files.replace(place, before)
        else:
            place.unlink()


def _under_way() -> str:
    return f" in process {os.getpid()} has no verdict"


def keep(outcome: Outcome, folder: Path) -> Path:
    """Write the last outcome beside the store, aside and renamed; return where.

    A gate that could not begin, such as one of a baseline that does not exist, came to
    nothing: the outcome before it stays the last.

    Raises:
        SteelyardError: the disk refuses.
    """
    problem = outcome.problem
    unjudged = isinstance(problem, UnjudgedError)
    if problem is not None and problem.exit_code == USAGE and not unjudged:
        _take_back(folder)
        return folder / LAST
    _write(outcome, folder)
    return folder / LAST


def _write(outcome: Outcome, folder: Path) -> None:
    place = folder / LAST
    hint = "Make room, or name a store elsewhere by --store: it lies beside that."
    files.folder(folder, str(place), hint)
    files.save(place, dumps(outcome), hint=hint)


def read(place: Path) -> Outcome:
    """Return the outcome that a file holds.

    Raises:
        SteelyardError: there is none.
    """
    try:
        text = decoding.page_content(files.read(place)).decode()
    except FileNotFoundError as error:
        raise SteelyardError(
            f"there is no outcome of a gate at {place}. Run `steelyard gate BASELINE`, or "
            "name the JSON of one by --from."
        ) from error
    except (OSError, ValueError) as error:
        raise SteelyardError(f"{place} cannot be read: {error}.") from error
    return loads(text, str(place))
