"""Which cases have to be measured for claims to be judged."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from steelyard.analyse import claims
from steelyard.analyse.claims import Claim
from steelyard.declare import mode as modes
from steelyard.declare import plan
from steelyard.declare.axes import parse_override
from steelyard.declare.benchmark import Benchmark, Case, select
from steelyard.declare.mode import Mode
from steelyard.errors import SteelyardError


def pairs(
    wanted: Sequence[Claim], benchmarks: Sequence[Benchmark]
) -> tuple[list[tuple[Case, Mode]], dict[str, str]]:
    """Return the cases and modes of claims, and why some claims have none, by name.

    A case that is named by its id may have values of axes that its benchmark does not
    sweep by default, as with ``-p``.
    """
    found: dict[tuple[str, Mode], tuple[Case, Mode]] = {}
    absent: dict[str, str] = {}
    for claim in wanted:
        try:
            cases, left = plan.able(list(_cases(claim, benchmarks)))
        except SteelyardError as error:
            cases, left = [], str(error)
        if left:
            absent[claim.name] = left
        mode = modes.parse(claim.mode)
        found |= {(case.id, mode): (case, mode) for case in cases}
    return list(found.values()), absent


def missing_modules(claim: Claim) -> str:
    """Return which modules a claim needs are not installed; nothing where all are."""
    absent = [
        name for name in claim.installed if importlib.util.find_spec(name) is None
    ]
    return f"{', '.join(absent)} not installed here" if absent else ""


def _cases(claim: Claim, benchmarks: Sequence[Benchmark]) -> Iterator[Case]:
    for text in claim.cases:
        for case in _named(text, benchmarks, claim.axes):
            if not claims.is_reference(case.id, case.axes, claim):
                yield case
                for other in claim.relative_to:
                    yield from _related(other, case, benchmarks)


def _named(
    text: str, benchmarks: Sequence[Benchmark], axes: Mapping[str, Sequence[Any]]
) -> list[Case]:
    """Return the case of an id, or those that words of ids select with values of axes."""
    name, bracket, inside = text.partition("[")
    own = [one for one in benchmarks if one.name == name]
    if not own or " " in text or text.endswith("]") != bool(bracket):
        return select(benchmarks, text, axes)
    asked = dict(map(parse_override, filter(None, inside.rstrip("]").split(","))))
    exact = [case for case in select(own, None, asked) if case.id == text]
    return exact or select(benchmarks, text, axes)


def _related(text: str, case: Case, benchmarks: Sequence[Benchmark]) -> Sequence[Case]:
    """Return the case that ``case`` is related to."""
    related = claims.pair(text)
    if related is None:
        return _named(text, benchmarks, {})
    axis, values = parse_override(text)
    fixed = {name: [value] for name, value in case.axes.items()}
    return select([case.benchmark], None, fixed | {axis: values})
