"""Which cases base's own suites have, asked in a process of base's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steelyard.errors import SteelyardError
from steelyard.gate.sides import Side
from steelyard.processes import stage

SECONDS: Final = 300.0
"""Importing a folder of suites may import anything."""


def cases(
    side: Side, places: Sequence[str], pattern: str | None, overrides: Sequence[str]
) -> set[str] | None:
    """Return the ids that a side's own suites have; None where they cannot be read.

    They are read before head's are put in their place.
    """
    there = [_place(side, place) for place in places]
    if None in there:
        return set()  # that suite is new
    asked = json.dumps([there, pattern, list(overrides)])
    command = [side.python, "-P", "-m", "steelyard.gate.listing", asked]
    try:
        said = stage.run(
            command, SECONDS, environment=side.variables(), folder=side.root
        )
    except (SteelyardError, OSError, subprocess.SubprocessError):
        return None
    answer = said.answer({"cases"})
    return set(answer["cases"]) if answer and said.code == 0 else None


def _place(side: Side, place: str) -> str | None:
    """Return where a place lies on a side; names of modules stay what they are."""
    path = Path(place).resolve()
    if not path.exists():
        return place
    own = side.path_of(path)
    return str(own) if own.exists() else None


def main(asked: str) -> None:
    """Print the ids of what is asked for."""
    from steelyard import session

    places, pattern, overrides = json.loads(asked)
    try:
        found = [case.id for case in session.find(places, pattern, overrides)]
    except SteelyardError as error:
        if "nothing matched" not in str(error):
            raise
        found = []  # new cases only
    print(json.dumps({"cases": found}))  # noqa: T201 # the answer of this process


if __name__ == "__main__":
    main(*sys.argv[1:])
