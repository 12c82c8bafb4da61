"""The process that names cases: it imports suites, and little else of this package.

Run as ``python -m steelyard.process.naming ANSWER ASKED`` by ``gate.listing``.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.declare import discovery
from steelyard.declare.benchmark import Case
from steelyard.errors import BenchmarkError, SteelyardError, UnjudgedError
from steelyard.process.origins import Origins


def main(answer: str, asked: str) -> None:
    """Write what suites have to a file; it is there only when it is complete."""
    atexit.register(gc.freeze)  # what is left at the end is not looked through
    place = Path(answer)
    write, rename, dump = Path.write_text, Path.replace, json.dumps
    origins = Origins.stated()
    sys.path.append(str(Path.cwd()))
    found: Mapping[str, Any]
    try:
        found = _found(*json.loads(asked))
        if refusal := origins.refusal():
            found = {"error": refusal, "unjudged": True}
    except SteelyardError as error:
        unjudged = isinstance(error, UnjudgedError)
        found = {"error": str(error), "unjudged": unjudged}
    aside = place.with_suffix(".new")
    write(aside, dump(found), encoding="utf-8")
    rename(aside, place)


def _found(
    places: Sequence[str], pattern: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    benchmarks = discovery.discover(places)
    cases = discovery.choose(benchmarks, pattern, overrides)
    return {
        "cases": [_facts(case) for case in cases],
        "every": [case.id for one in benchmarks for case in one.cases()],
        "files": sorted({str(one.path) for one in benchmarks}),
    }


def _facts(case: Case) -> dict[str, Any]:
    problem = device = ""
    try:
        device = case.device()
    except BenchmarkError as error:
        problem = str(error)
    return {
        "id": case.id,
        "axes": dict(case.axes),
        "modes": list(map(str, case.modes())),
        "device": device,
        "problem": problem,
        "name": case.benchmark.name,
        "path": str(case.benchmark.path),
        "line": case.benchmark.line,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
