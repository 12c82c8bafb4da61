"""Accept a change that the last gate found, with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import click

from steelyard.analyse import rows
from steelyard.analyse.verdict import CHANGED
from steelyard.commands import _options as options
from steelyard.commands.verdict import from_option, outcome_of
from steelyard.errors import SteelyardError
from steelyard.gate import doubted, policy, policy_file, words
from steelyard.gate.outcome import Finding, Outcome, StaticChange
from steelyard.gate.policy import STATIC, VANISHED, Accepted

INTENDED = frozenset({*map(str, CHANGED), VANISHED})
"""Changes that somebody can have intended; never a failure, nor what is not known."""

policy_option = options.option(
    "--policy policy_path",
    "The project's policy.",
    str(policy_file.NAME),
    type=options.FILE,
)


@click.command()
@click.argument("cases", metavar="CASE...", nargs=-1, required=True)
@options.option("--reason", "Why it is intended.", required=True)
@options.option("-m --mode", "Only in this mode, or on this target.")
@from_option
@policy_option
@options.store_option
def command(
    *,
    cases: Sequence[str],
    reason: str,
    mode: str | None,
    source: Path | None,
    policy_path: Path | None,
    store: str | None,
) -> None:
    """Accept what the last gate found of CASEs, for a reason that the policy keeps.

    CASEs were slower, faster, vanished, failed for a doubt such as `remembers`, or their
    code has what the policy forbids. Another change of the same case fails again; a
    doubt is accepted of the case for good.
    """
    why = " ".join(reason.encode(errors="replace").decode().split())
    if not why:
        raise SteelyardError("--reason is empty; say in a sentence why it is intended.")
    outcome = outcome_of(source, store)
    today = policy.now()
    found = [
        change
        for case in cases
        for change in _acceptable(outcome, case, mode, why, today)
    ]
    path = policy_path or policy_file.default()
    fresh = policy_file.add(path, found)
    for one in found:
        state = "accepted" if one in fresh else "accepted before"
        click.echo(f"{one.case} {one.mode}: {one.verdict}, {state} in {path}")


def _acceptable(
    outcome: Outcome, case: str, mode: str | None, reason: str, today: date
) -> list[Accepted]:
    """Return what can be accepted of a case.

    Raises:
        SteelyardError: nothing can.
    """
    found = [one for one in outcome.findings if one.case == case]
    static = [one for one in outcome.static if one.case == case]
    if not found and not static:
        known = {f.case for f in outcome.findings} | {s.case for s in outcome.static}
        raise SteelyardError(
            f"the gate has no case {case!r}; look at `steelyard verdict`."
            f"{rows.nearest(case, known)}"
        )
    made = [*_of_findings(found, reason, today), *_of_static(static, reason, today)]
    chosen = [one for one in made if mode is None or mode in one.mode.split(",")]
    if not chosen:
        modes = [f"{words.kind(one)} in {one.mode}" for one in found] or ["unchanged"]
        raise SteelyardError(
            f"{case} is {', '.join(modes)}; only what is slower, faster, vanished or "
            "doubted, or has code that the policy forbids, can be accepted."
        )
    return chosen


def _of_findings(
    found: Sequence[Finding], reason: str, today: date
) -> Iterator[Accepted]:
    for one in found:
        name = policy.verdict_of(one)
        for doubt in doubted.acting(one):
            yield Accepted(one.case, one.mode, doubt, reason, today)
        if name in INTENDED and not one.accepted:
            ratio = one.judgement.ratio if one.judgement else None
            base, head = one.codes
            yield Accepted(
                case=one.case,
                mode=one.mode,
                verdict=name,
                reason=reason,
                on=today,
                base=base,
                head=head,
                ratio=(round(ratio.low, 4), round(ratio.high, 4)) if ratio else None,
            )


def _of_static(
    found: Sequence[StaticChange], reason: str, today: date
) -> Iterator[Accepted]:
    for one in words.together(found):
        if one.forbidden:
            yield Accepted(
                case=one.case,
                mode=one.target,
                verdict=STATIC,
                reason=reason,
                on=today,
                changes=one.changes,
            )
