"""From what was measured to what is said of each case."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steelyard.analyse.doubts.samples import DEPENDENT_BLOCKS, NOISY_MEAN
from steelyard.analyse.verdict import Policy, Verdict
from steelyard.declare.benchmark import Case
from steelyard.errors import SteelyardError
from steelyard.gate import decide
from steelyard.gate.blocks import Point
from steelyard.gate.measure import Measured
from steelyard.gate.outcome import BASE, HEAD, INCOMPARABLE, Finding


def of(
    points: Sequence[Point],
    measured: Measured,
    known: Collection[str],
    policy: Policy,
) -> tuple[Finding, ...]:
    """Say what is known of every point; ``known`` are the cases of base's own suites.

    Raises:
        SteelyardError: base runs none of the cases that it has.
    """
    judged = decide.judge(measured.times, measured.cycles, policy)
    dependent = decide.dependent(measured.times)
    noisy = decide.noisy_means(measured.times, policy)
    found = []
    for point in points:
        key = point.key
        failed, codes = measured.failed.get(key), _codes(measured.facts.get(key, {}))
        if failed:
            found.append(_failure(point, failed, known))
        elif key in measured.identical:
            found.append(finding(point, Verdict.IDENTICAL_CODE, codes=codes))
        elif key in judged:
            judgement, note = judged[key]
            verdict = judgement.verdict
            blind = verdict is Verdict.SAME and key in noisy
            held = {DEPENDENT_BLOCKS: key in dependent, NOISY_MEAN: blind}
            names = tuple(doubt.name for doubt, holds in held.items() if holds)
            found.append(
                finding(
                    point,
                    verdict,
                    judgement=judgement,
                    codes=codes,
                    note=note,
                    doubts=(names, names),
                )
            )
        else:
            note = "no block of it within the budget"
            found.append(finding(point, Verdict.UNRESOLVED, codes=codes, note=note))
    _require_some(found, measured)
    return tuple(found)


def finding(point: Point, verdict: Verdict | None, **more: Any) -> Finding:
    """Return a finding of a point, with where its benchmark is defined."""
    benchmark = point.case.benchmark
    return Finding(
        point.case.id,
        str(point.mode),
        verdict,
        file=str(benchmark.path),
        line=benchmark.line,
        **more,
    )


def without(
    found: Sequence[Finding], blind: Collection[str], known: Collection[str]
) -> Iterator[Finding]:
    """Yield findings, with those open that compare code of the suites with itself.

    ``known`` are the cases of base's own suites: the others are new.
    """
    changed = (
        "its kernel lies in a suite that changed, as the case did, so both sides ran the "
        "checkout's kernel; move it into a module"
    )
    new = "new: its kernel lies in a suite, and base's has no such case"
    for one in found:
        if one.case not in blind or one.verdict is None:
            yield one
        elif one.case in known:
            yield replace(one, verdict=Verdict.UNRESOLVED, note=changed)
        else:
            yield replace(one, verdict=None, judgement=None, new=True, note=new)


def vanished(known: Collection[str], points: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each case that only base has."""
    for case in sorted(set(known) - set(points)):
        yield Finding(case, "", None, note="vanished: only the base has this case")


def vanished_modes(base: Sequence[Case], head: Sequence[Case]) -> Iterator[Finding]:
    """Yield a finding for each mode that only base's case asks for."""
    kept = {case.id: case.modes() for case in head}
    for case in base:
        for mode in case.modes():
            if mode not in kept.get(case.id, [mode]):
                note = "vanished: only the base has this mode"
                yield Finding(case.id, str(mode), None, note=note)


def _failure(
    point: Point, failed: Mapping[str, str], known: Collection[str]
) -> Finding:
    if HEAD in failed:
        return finding(point, None, note=failed[HEAD])
    if point.case.id not in known:
        return finding(point, None, new=True, note=f"new: {failed[BASE]}")
    other = failed[BASE].startswith(INCOMPARABLE)
    note = failed[BASE] if other else f"base fails: {failed[BASE]}"
    return finding(point, Verdict.UNRESOLVED, note=note)


def _codes(facts: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    base, head = (
        str(facts.get(side, {}).get("code_hash") or "") for side in (BASE, HEAD)
    )
    return base, head


def _require_some(found: Sequence[Finding], measured: Measured) -> None:
    alone = [
        one
        for one in measured.failed.values()
        if HEAD not in one and not one[BASE].startswith(INCOMPARABLE)
    ]
    if found and len(alone) == len(found) and not all(one.new for one in found):
        raise SteelyardError(
            f"the baseline runs none of {len(found)} cases: {alone[0][BASE]} Name "
            "another baseline."
        )
