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
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

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
        found = _found(*json.loads(Path(asked).read_text(encoding="utf-8")))
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
    own: list[str] = []
    try:
        described = case.describe()
    except BenchmarkError as error:
        problem = str(error)
    else:
        device, definition = described.device, _definition(case, described)
        own = sorted({os.path.realpath(f) for f in _files(described.call.target)})
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
    from steelyard.prepare import inputs  # with NumPy, as suites have it

    try:
        text = textwrap.dedent(inspect.getsource(case.benchmark.function))
        (node,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError):  # of exec, or a lambda within a call
        source = case.benchmark.source_hash()
    else:
        getattr(node, "decorator_list", []).clear()  # axes are in the case's id
        source = ast.dump(node)
    counts = sorted(described.counts.items())
    data = inputs.recipe_hash(described.handles, seed=0)
    call, device = described.call, described.device
    given = (call.args, call.out, sorted(call.scalars.items()))
    whole = repr((source, data, device, given, described.modes, counts))
    # Objects of no text of their own have an address in it.
    whole = re.sub(r" at 0x[0-9a-f]+", "", whole)
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()


MOST: Final = 10_000
"""Objects that are looked at of what is launched: a function may hold a library."""


def _files(target: object) -> Iterator[str]:
    """Yield the files of functions and classes that what is launched is made of."""
    seen: set[int] = set()
    held = [target]
    for one in held:  # nearest first: it grows
        if id(one) in seen or len(seen) == MOST:
            continue
        seen.add(id(one))
        parts: Iterable[object] = ()
        if isinstance(one, FunctionType):
            yield str(one.__globals__.get("__file__", ""))
            yield one.__code__.co_filename
            parts = (*(one.__closure__ or ()), vars(one))
        elif isinstance(one, MethodType):
            parts = (one.__func__, one.__self__)
        elif isinstance(one, partial):
            parts = (one.func, *one.args, *one.keywords.values())
        elif isinstance(one, CellType):
            with suppress(ValueError):  # nothing is in it yet
                parts = (one.cell_contents,)
        elif isinstance(one, (list, tuple)):
            parts = one
        elif isinstance(one, Mapping):
            parts = one.values()
        elif not isinstance(one, ModuleType):
            kind = one if isinstance(one, type) else type(one)
            yield str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
            parts = (getattr(one, "__dict__", None),)
        held.extend(islice(parts, MOST))


if __name__ == "__main__":
    main(*sys.argv[1:])
