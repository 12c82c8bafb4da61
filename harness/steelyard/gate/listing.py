"""Which cases a side's suites have, asked in a process of that side.

The gate imports nothing of what it judges: what suites do when they are imported ends
another process, or changes another process' steelyard.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from steelyard.declare import mode
from steelyard.declare.benchmark import (
    Described,
    DescribedCase,
    Description,
    elsewhere,
)
from steelyard.declare.config import TIMEOUT
from steelyard.errors import BenchmarkError, SteelyardError, UnjudgedError
from steelyard.gate.sides import Side
from steelyard.machine import children
from steelyard.machine.printable import printable
from steelyard.process import scratch
from steelyard.process.runner import ending
from steelyard.store.session import Request

STANDARD_ERROR: Final = 2
"""The descriptor: ``sys.stderr`` may have been replaced by something without one."""


@dataclass(frozen=True, slots=True)
class Listed(DescribedCase):
    """A case as the process that imported it describes it."""

    def modes(self) -> tuple[mode.Mode, ...]:
        """Return the modes it is measured in by default."""
        return tuple(map(mode.parse, self.said["modes"]))

    def device(self) -> str:
        """Return where its buffers live.

        Raises:
            BenchmarkError: it could not be described.
        """
        if not self.said["device"]:
            raise BenchmarkError(str(self.said["problem"]))
        return str(self.said["device"])

    def describe(self) -> Description:
        """Refuse: only a process that imported it can."""
        elsewhere()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a side's suites have."""

    cases: list[Listed]
    """Those that were asked for."""
    every: frozenset[str]
    """The ids of all of them."""
    files: tuple[Path, ...]
    """That define a benchmark."""


def of(side: Side, asked: Request, seconds: float = TIMEOUT) -> Listing:
    """Return what a process of a side finds in files, folders or modules.

    Raises:
        SteelyardError: it finds nothing, cannot import a suite, imports other code than
            the side's, ends early, or is not done within ``seconds``.
    """
    with scratch.folder() as folder:
        question, answer = Path(folder) / "asked.json", Path(folder) / "answer.json"
        # A file: a pattern may be longer than an argument can be.
        words = [list(asked.places), asked.pattern, list(asked.overrides)]
        question.write_text(json.dumps(words))
        line = [side.python, "-P", "-m", "steelyard.process.naming"]
        line += map(str, (answer, question))
        code = _run(line, side.variables(), side.folder, seconds)
        try:
            found = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UnjudgedError(
                f"the process that imports {', '.join(asked.places)} {ending(code)} before it "
                f"named a case of {side.name}. Look in its suites for what ends a "
                "process, such as os._exit."
            ) from None
    if "error" in found:
        kind = UnjudgedError if found["unjudged"] else SteelyardError
        raise kind(printable(str(found["error"])))
    return Listing(
        [
            Listed(Described(elsewhere, {}, one), one["axes"], one)
            for one in found["cases"]
        ],
        frozenset(found["every"]),
        tuple(map(Path, found["files"])),
    )


def _run(
    line: Sequence[str], variables: Mapping[str, str], folder: Path, seconds: float
) -> int:
    """Run a process and end all that it started; return its exit code."""
    try:
        # What suites print is no part of a report.
        return children.run(line, seconds, variables, folder, STANDARD_ERROR).code
    except subprocess.TimeoutExpired:
        raise UnjudgedError(
            f"importing the suites was not done within {seconds:g} s and was ended. "
            "Look for a loop that does not stop, or raise --timeout."
        ) from None


def known(base: Side, asked: Request, seconds: float = TIMEOUT) -> list[Listed]:
    """Return the cases that base's own suites have; none where it has no such suites.

    They are read before head's are put in their place.

    Raises:
        UnjudgedError: base has suites that cannot be imported.
    """
    places = places_of(base, asked.places)
    if not places:
        return []
    try:
        return of(base, replace(asked, places=places), seconds).cases
    except UnjudgedError as error:
        raise UnjudgedError(
            f"base's own suites cannot be read, so it is not known which cases they "
            f"have: {error} Name another baseline, or as `build` in [tool.steelyard] the "
            "command that makes what they import."
        ) from error
    except SteelyardError:  # they have nothing of what was asked for
        return []


def of_changed_suites(base: Side, listed: Listing) -> set[str]:
    """Return the cases that launch code of suites that base has otherwise, or lacks.

    Once head's suites are in place, both sides launch head's. What files share that
    define no benchmark counts for all of them.
    """
    places = [old for old, _ in base.suites]
    every = {file for place in places for file in place.rglob("*.py")}
    shared = {file for file in every - {*listed.files} if base.path_of(file).exists()}
    changed = any(_differs(base, file) for file in shared)
    found = set()
    for case in listed.cases:
        own = {file for file in map(Path, case.said["own"]) if base.has_suite(file)}
        files = own | {case.benchmark.path}
        if own and (changed or any(_differs(base, file) for file in files)):
            found.add(case.id)
    return found


def _differs(base: Side, file: Path) -> bool:
    there = base.path_of(file)
    return not there.exists() or there.read_bytes() != file.read_bytes()


def definitions(side: Side, cases: Sequence[Listed]) -> dict[str, str]:
    """Return what cases measure, but for the code, by their ids: hashes with files.

    ``side`` is the base, where head's files are where base has theirs.
    """
    return {
        case.id: f"{case.said['definition']} {side.path_of(case.benchmark.path).resolve()}"
        for case in cases
    }


def places_of(side: Side, places: Sequence[str]) -> list[str]:
    """Return where files, folders and modules of suites lie on a side that has them."""
    return [own for place in places if (own := _place(side, place))]


def _place(side: Side, place: str) -> str | None:
    """Return where a place lies on a side; names of modules stay what they are."""
    path = Path(place).resolve()
    if not path.exists():
        return place
    whole = str(path) in side.origins.avoided  # head's checkout
    own = side.root if whole else side.path_of(path)
    return str(own) if own.exists() else None
