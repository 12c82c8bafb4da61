"""The process that names cases: it imports suites, and little else of this package.

Run as ``python -m steelyard.process.naming ANSWER ASKED`` by ``gate.listing``.
"""

from __future__ import annotations

import ast
import atexit
import gc
import hashlib
import inspect
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.declare import discovery
from steelyard.declare.benchmark import Case, Description
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
    problem = device = definition = ""
    own = False
    try:
        described = case.describe()
    except BenchmarkError as error:
        problem = str(error)
    else:
        device, definition = described.device, _definition(case, described)
        own = _home(described.call.target) == case.benchmark.path
    return {
        "id": case.id,
        "axes": dict(case.axes),
        "modes": list(map(str, case.modes())),
        "device": device,
        "problem": problem,
        "definition": definition,
        "own": own,
        "name": case.benchmark.name,
        "path": str(case.benchmark.path),
        "line": case.benchmark.line,
    }


def _definition(case: Case, described: Description) -> str:
    """Return a hash of what is measured, but for the code: the benchmark and its data."""
    try:
        text = textwrap.dedent(inspect.getsource(case.benchmark.function))
        (node,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError):  # of exec, or a lambda within a call
        source = case.benchmark.source_hash()
    else:
        getattr(node, "decorator_list", []).clear()  # axes are in the case's id
        source = ast.dump(node)
    counts = sorted(described.counts.items())
    whole = repr((source, described.handles, described.modes, counts))
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()


def _home(target: Any) -> Path | None:
    """Return the file of a function that is launched, also where it is wrapped."""
    for name in ("func", "__wrapped__", "py_func", "fn"):
        target = getattr(target, name, target)
    code = getattr(target, "__code__", None)
    return Path(code.co_filename).resolve() if code is not None else None


if __name__ == "__main__":
    main(*sys.argv[1:])
