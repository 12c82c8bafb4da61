"""A gate as a page: a forest plot of changes, verdict by verdict, and what explains them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from steelyard.analyse.stats import Estimate
from steelyard.analyse.verdict import Policy, Verdict
from steelyard.gate import document, words
from steelyard.gate.outcome import Finding, Outcome
from steelyard.report import gate_terminal, scale, tables
from steelyard.report.grid import Column, Sheet
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, Section, join, page, sheet, tag

WIDE: Final = 240
HIGH: Final = 18

SLOWEST: Final = 1.0
FASTEST: Final = -0.6
"""Changes beyond which a mark lies at the edge: one of 10 times would hide all others."""

LEAST: Final = 0.08
"""Change that is shown to either side."""

KINDS: Final = {
    words.REGRESSED: "slower",
    str(Verdict.SLOWER): "slower",
    words.TOLERATED: "slower",
    str(Verdict.FASTER): "faster",
}


def dumps(outcome: Outcome) -> str:
    """Return the page of an outcome, which holds its JSON."""
    every = words.in_order(outcome)
    shown = [one for one in every if words.kind(one) != Verdict.IDENTICAL_CODE]
    sections = [
        Section("Verdict", list(_verdict(outcome))),
        Section("Changes", list(_changes(shown))),
        Section("Explanations", list(_explanations(every))),
        Section("Code", list(_static(outcome))),
        Section("Doubts", list(_doubts(every))),
    ]
    about = (f"{outcome.head[:10]} against {outcome.baseline}",)
    data = json.loads(document.dumps(outcome))
    return page(f"Gate: {words.ending(outcome)}", about, sections, data)


def _verdict(outcome: Outcome) -> Iterator[Markup]:
    bad = "bad lead" if outcome.exit_code else "lead"
    yield tag("p", words.headline(outcome), class_=bad)
    if outcome.problem is not None:
        yield tag("p", str(outcome.problem), class_="bad")
    same = words.names(outcome.findings)
    if same:
        yield tag("p", f"identical code, not measured: {same}")
    for said in (*outcome.notes, words.trust(outcome)):
        if said:
            yield tag("p", said, class_="note")


def _changes(findings: Sequence[Finding]) -> Iterator[Markup]:
    """Yield the table whose first number is a picture: the forest plot."""
    if not findings:
        return
    drawn = [one for one in findings if one.judgement]
    made = list(gate_terminal.sheet(findings).columns)
    if drawn:
        x = _scale(drawn)
        axis = svg.picture(WIDE, HIGH, "change", "", *_axis(x))
        made.insert(3, Column(axis, _forest(x), right=False))
    yield sheet(Sheet("change of time, head over base, 95 % intervals", made, findings))
    if drawn:
        yield tag(
            "p",
            "The band is what passes as the same: the policy's tolerance, to both sides.",
            class_="note",
        )


def _scale(drawn: Sequence[Finding]) -> scale.Scale:
    low = min(one.judgement.ratio.low - 1 for one in drawn if one.judgement)
    high = max(one.judgement.ratio.high - 1 for one in drawn if one.judgement)
    # A ratio that is no number compares with nothing.
    low = max(low, FASTEST) if low < -LEAST else -LEAST
    high = min(high, SLOWEST) if high > LEAST else LEAST
    return scale.Scale(low * 1.05, high * 1.05, 0, WIDE)


def _axis(x: scale.Scale) -> Iterator[Markup]:
    for at in x.ticks():
        yield svg.words(x(at), 12, f"{100 * at:+.0f} %" if at else "0", "middle")


def _forest(x: scale.Scale) -> Callable[[Finding], Markup]:
    """Return what draws a finding's interval over the band of what passes."""
    grid = "".join(f"M{x(at):.0f} 0v{HIGH}" for at in x.ticks() if at)
    zero = f"M{x(0):.1f} 0v{HIGH}"

    def cell(one: Finding) -> Markup:
        if one.judgement is None:
            return join(())
        ratio, far = one.judgement.ratio, max(one.tolerance, Policy().tolerance)
        size = {"x": f"{x(-far):.0f}", "width": f"{x(far) - x(-far):.0f}"}
        change = Estimate(ratio.value - 1, ratio.low - 1, ratio.high - 1)
        parts = [
            tag("rect", **size, y=0, height=HIGH, class_="band"),
            svg.line(grid, "grid"),
            svg.line(zero, "zero"),
        ]
        if not any(map(math.isnan, (change.value, change.low, change.high))):
            kind = KINDS.get(words.kind(one), "same")
            parts.append(svg.interval(x, HIGH / 2, change, kind))
        return svg.picture(WIDE, HIGH, words.change(one.judgement), "", *parts)

    return cell


def _explanations(every: Sequence[Finding]) -> Iterator[Markup]:
    for one in every:
        more = one.changes or words.acceptable(one)
        if more and words.kind(one) not in words.QUIET:
            said, *rest = words.explained(one)
            lines = (tag("li", line.partition(". ")[2] or line) for line in rest)
            yield join((tag("p", said), tag("ol", *lines)))


def _static(outcome: Outcome) -> Iterator[Markup]:
    for one in words.together(outcome.static):
        yield tag("p", words.of_static(one), class_="bad" if one.forbidden else None)


def _doubts(every: Sequence[Finding]) -> Iterator[Markup]:
    found = Counter(
        name for one in every for name in {name for side in one.doubts for name in side}
    )
    if found:
        yield sheet(tables.doubts_sheet(found, gated=True))
