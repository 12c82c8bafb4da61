"""Claims: statements about measured rows with a bound, and whether the rows hold them.

Pure. What a claim asks for is a row's time, a rate, a number that the work says of itself,
some parts of a call, or the time over that of other cases, paired within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from steelyard.analyse import doubts, expression
from steelyard.analyse.bounds import Bound, bound
from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.doubts.clocks import CLOCKS_DISAGREE
from steelyard.analyse.rows import (
    Row,
    as_read,
    block_estimate,
    combined,
    nearest,
    paired_ratio,
)
from steelyard.analyse.stats import Estimate
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED, SteelyardError


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim, as its file has it."""

    name: str
    cases: tuple[str, ...]
    """Case ids, or words of them as ``-k`` takes them."""
    mode: str
    bounds: tuple[Bound, ...]
    """All of them hold."""
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of axes that its cases have instead of those of the suite, as of ``-p``."""
    relative_to: tuple[str, ...] = ()
    """``axis=value``, or case ids: the time is divided by that of the fastest of these."""
    mean: bool = False
    """Whether the geometric mean of all its cases is bounded, and not each of them."""
    fact: str = ""
    """What the work says of itself under this name is bounded; of a list, its length."""
    parts: tuple[str, ...] = ()
    """Parts of a call's ledger, whose sum is bounded: in time, or as a share of it."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Facts of the machine that the claim is about."""
    installed: tuple[str, ...] = ()
    """Modules without which it is skipped."""
    expected_failure: str = ""
    """Why it is known to fail."""


class State(StrEnum):
    """What became of a claim about one case."""

    HOLDS = "holds"
    FAILS = "fails"
    EXPECTED = "fails as expected"
    UNDECIDED = "undecided"
    MISSING = "not measured"
    BROKEN = "case failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim about one case; of a claim that is skipped, or has no case, about none."""

    claim: Claim
    state: State
    case: str = ""
    base: str = ""
    """The case it is relative to."""
    estimate: Estimate | None = None
    why: str = ""
    """Why it is not judged, or what a reader must know of it."""


def judge(
    claims: Sequence[Claim],
    made: Sequence[Row],
    machine: Mapping[str, Any],
    *,
    unavailable: Mapping[str, str] | None = None,
    absent: Mapping[str, str] | None = None,
) -> list[Judged]:
    """Return what measured rows say of each claim, a line a case.

    ``machine`` has the facts of who measured. By the names of claims, ``unavailable`` has
    the reasons for which rows may be missing, and ``absent`` those for which they must
    not be.
    """
    found: list[Judged] = []
    for claim in claims:
        skipped = (unavailable or {}).get(claim.name, "")
        if why := elsewhere(claim, machine):
            found.append(Judged(claim, State.SKIPPED, why=why))
            continue
        for seen in _by_clocks(claim, made, (absent or {}).get(claim.name, "")):
            line = seen
            if seen.state is State.MISSING and skipped:
                line = Judged(seen.claim, State.SKIPPED, seen.case, why=skipped)
            if found[-1:] != [line]:  # once, however many cases it names
                found.append(line)
    return found


def _by_clocks(claim: Claim, made: Sequence[Row], absent: str) -> Iterator[Judged]:
    """Yield what rows say of a claim: where clocks disagree, what all of them say."""
    lines, each = list(_judge(claim, made, absent)), list[dict[str, State]]()
    doubted = [line.why.startswith(CLOCKS_DISAGREE.name) for line in lines]
    if any(doubted):
        each = [
            {one.case: one.state for one in _judge(claim, read, "")}
            for read in as_read(made).values()
        ]
    for line, disagree in zip(lines, doubted, strict=True):
        states = [by[line.case] for by in each if line.case in by]
        if disagree and len(states) > 1 and set(states) == {State.HOLDS}:
            why = f"{len(states)} clocks disagree; it holds by each"
            yield replace(line, state=State.HOLDS, why=why)
        else:
            yield line


def _judge(claim: Claim, made: Sequence[Row], absent: str) -> Iterator[Judged]:
    """Yield what rows of the machine it is about say of a claim."""
    in_mode = [row for row in made if row.mode == claim.mode]
    known = {row.case: row for row in in_mode if _has(row, claim.axes)}
    chosen: dict[str, Row] = {}
    for text in claim.cases:
        # Of an exact id that case, otherwise what has the words in its id.
        accepts = text.__eq__ if text in known else expression.parse(text)
        some = {case: row for case, row in known.items() if accepts(case)}
        if not some:
            why = absent or f"no row of {text!r} in {claim.mode}.{nearest(text, known)}"
            yield Judged(claim, State.MISSING, why=why)
        chosen |= some
    of = [r for r in chosen.values() if not is_reference(r.case, r.axes, claim)]
    if claim.mean:
        yield from _together(claim, of, in_mode)
    else:
        yield from (_about(claim, row, in_mode) for row in of)


def _has(row: Row, axes: Mapping[str, Sequence[Any]]) -> bool:
    """Tell whether a row has one of some values of each axis, as ids write them."""

    def text(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    return all(
        text(row.axes.get(name)) in map(text, values) for name, values in axes.items()
    )


def _together(claim: Claim, of: Sequence[Row], made: Sequence[Row]) -> Iterator[Judged]:
    """Yield what the geometric mean of ratios comes to, or why one of them has none.

    Cases share their blocks: their errors are taken for one.
    """
    each = [_about(claim, row, made) for row in of]
    known = [one.estimate for one in each if one.estimate]
    if len(known) < len(each) or not each:
        yield from (one for one in each if not one.estimate)
        return
    ends = zip(*((e.value, e.low, e.high) for e in known), strict=True)
    mean = Estimate(*map(_geometric_mean, ends))
    bases = {one.base for one in each}
    state, why = _state(claim, mean, [*of, *(r for r in made if r.case in bases)])
    name = f"mean of {len(each)}: {of[0].case}, ..."
    yield Judged(claim, state, name, each[0].base, mean, why)


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.prod(ratios) ** (1 / len(ratios))


def is_reference(case: str, axes: Mapping[str, Any], claim: Claim) -> bool:
    """Tell whether a case is one that others are related to."""
    pairs = [pair(text) for text in claim.relative_to]
    return case in claim.relative_to or any(
        axis in axes and str(axes[axis]) == value for axis, value in filter(None, pairs)
    )


def pair(text: str) -> tuple[str, str] | None:
    """Return axis and value of ``impl=copy``; None of a case's id."""
    axis, equals, value = text.partition("=")
    return (axis, value) if equals and "[" not in axis else None


def _about(claim: Claim, row: Row, made: Sequence[Row]) -> Judged:
    if not row.trials:
        return Judged(claim, State.BROKEN, row.case, why=" ".join(row.errors))
    base = _base(claim, row, made) if claim.relative_to else None
    if isinstance(base, str):
        return Judged(claim, State.MISSING, row.case, why=base)
    estimate = _estimate(claim, row, base)
    name = base.case if base else ""
    if estimate is None:
        why = f"the row has no {_what(claim)}"
        return Judged(claim, State.MISSING, row.case, name, why=why)
    state, why = _state(claim, estimate, [row, *([base] if base else [])])
    return Judged(claim, state, row.case, name, estimate, why)


def _what(claim: Claim) -> str:
    if claim.relative_to:
        return "block in common with what it is relative to"
    if claim.parts:
        return f"parts {', '.join(claim.parts)} of two blocks"
    return claim.fact or claim.bounds[0].quantity or "number"


def _base(claim: Claim, row: Row, made: Sequence[Row]) -> Row | str:
    """Return the fastest row that ``row`` is related to, or why there is none."""
    found = []
    for text in claim.relative_to:
        related = pair(text)
        same = [
            r
            for r in made
            if (_beside(r, row, *related) if related else r.case == text)
        ]
        if not same:
            return f"no row of {text} in {claim.mode} beside it"
        if not same[0].estimate:
            return f"{same[0].case} failed: {' '.join(same[0].errors)}"
        found += same[:1]
    return min(found, key=lambda r: r.estimate.value if r.estimate else 0.0)


def _beside(one: Row, row: Row, axis: str, value: str) -> bool:
    """Tell whether ``one`` is ``row`` but for the value of an axis."""
    wanted = {name: str(v) for name, v in row.axes.items()} | {axis: value}
    return one.benchmark == row.benchmark and wanted == {
        name: str(v) for name, v in one.axes.items()
    }


def _estimate(claim: Claim, row: Row, base: Row | None) -> Estimate | None:
    """Return the number that is bounded, with its interval."""
    if base is not None:
        return paired_ratio(row.trials, base.trials)
    if claim.fact:
        values = [t.facts.get(claim.fact) for t in row.trials]
        values = [len(v) if isinstance(v, (list, tuple)) else v for v in values]
        numbers = [float(v) for v in values if isinstance(v, (int, float))]
        if len(numbers) < len(values):
            return None
        return Estimate(numbers[-1], min(numbers), max(numbers))
    if claim.parts:
        return _of_parts(claim, row)
    return _rate(row, claim.bounds[0].quantity)


def _of_parts(claim: Claim, row: Row) -> Estimate | None:
    """Return the sum of some parts of a call: one block says nothing of its spread."""
    shares = not claim.bounds[0].quantity
    sums = []
    for trial in row.trials:
        if not set(claim.parts) <= trial.ledger.keys():
            return None
        whole = block_estimate(trial).value if shares else 1.0
        sums.append(sum(trial.ledger[part] for part in claim.parts) / whole)
    if len(sums) < 2:
        return None
    return combined([Estimate(value, value, value) for value in sums])


def _rate(row: Row, quantity: str) -> Estimate | None:
    """Return a row's time, or its bytes, operations or items a second."""
    time = row.estimate
    if quantity == "time" or time is None:
        return time
    rate = row.rate(quantity)
    if rate is None:
        return None
    amount = rate * time.value
    return Estimate(rate, amount / time.high, amount / time.low)


def _state(claim: Claim, seen: Estimate, of: Sequence[Row]) -> tuple[State, str]:
    verdicts = [one.judge(seen.low, seen.high) for one in claim.bounds]
    if False in verdicts:
        if claim.expected_failure:
            return State.EXPECTED, claim.expected_failure
        return State.FAILS, ""
    if None in verdicts and not seen.known:
        return State.UNDECIDED, "one pair of blocks has no interval: raise --blocks"
    if None in verdicts:
        return State.UNDECIDED, "the interval crosses the bound: more blocks narrow it"
    for doubt in _acting(of):
        return State.UNDECIDED, f"{doubt}: {doubt.reason}"
    ended = "it was expected to fail and does not any more"
    return State.HOLDS, ended if claim.expected_failure else ""


def _acting(of: Sequence[Row]) -> list[Doubt]:
    """Return the doubts for which a gate would not believe the rows either."""
    names = {name for row in of for name in row.doubts} & doubts.known().keys()
    known = [doubts.known()[name] for name in sorted(names)]
    return [doubt for doubt in known if doubt.act in {Act.OPEN, Act.FAIL}]


def elsewhere(claim: Claim, machine: Mapping[str, Any]) -> str:
    """Return why a claim is not about a machine; nothing where it is.

    ``machine`` is as `Run.machine` has it.
    """
    facts = {
        **machine.get("versions", {}),
        **machine.get("settings", {}),
        **machine.get("identity", {}),
        "gpu": machine.get("gpu", {}).get("name", "none"),
    }
    for name, wanted in claim.where.items():
        if name not in facts:
            raise SteelyardError(
                f"claim {claim.name!r}: where has no {name!r}; known: "
                f"{', '.join(sorted(facts))}."
            )
        if not _matches(facts[name], wanted):
            return f"{name} is {facts[name]}, the claim is about {wanted}"
    return ""


def _matches(fact: Any, wanted: str) -> bool:
    """Tell whether a fact contains a word, or a number is within a bound."""
    if wanted.startswith(("<", ">")):
        number = isinstance(fact, (int, float))
        return bool(number and bound(wanted).judge(fact, fact))
    return wanted.lower() in str(fact).lower()


def exit_code(found: Sequence[Judged]) -> int:
    """Return what the command ends with; nothing judged is not fine."""
    states = {one.state for one in found}
    if State.FAILS in states:
        return REGRESSION
    if State.BROKEN in states:
        return FAILED
    open_ = {State.UNDECIDED, State.MISSING} & states
    judged = {State.HOLDS, State.EXPECTED} & states
    return FINE if judged and not open_ else UNRESOLVED
