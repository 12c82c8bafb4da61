"""Results as pages of HTML that need no network and no scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from steelyard.report.formats import Format, Results

if TYPE_CHECKING:
    from steelyard.gate.outcome import Outcome


def _run(found: Results) -> str:
    from steelyard.report.pages import run  # every command that may write a page asks

    return run.dumps(found)


def _gate(outcome: Outcome) -> str:
    from steelyard.report.pages import gate

    return gate.dumps(outcome)


FORMAT: Final = Format(_run, gate=_gate)
