"""What a gate found: the one value that is decided on, shown, stored and explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from steelyard.analyse.stats import Estimate
from steelyard.analyse.verdict import Judgement, Verdict
from steelyard.errors import (
    FAILED,
    FINE,
    REGRESSION,
    UNRESOLVED,
    USAGE,
    SteelyardError,
)

BASE: Final = "base"
HEAD: Final = "head"

INCOMPARABLE: Final = "not comparable"
"""How the note of a finding begins whose sides are of two different things."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of one case in one mode."""

    case: str
    mode: str
    verdict: Verdict | None
    """None where nothing could be compared: then `note` says why."""
    judgement: Judgement | None = None
    """The evidence; None of what was not measured."""
    tolerance: float = 0.0
    """The slowdown that the policy lets pass, as a share; 0: none that is told."""
    reason: str = ""
    """Why the policy lets it pass."""
    accepted: bool = False
    """Whether the policy names this very change as intended."""
    new: bool = False
    """Whether only head has the case: there is nothing to compare it with."""
    changes: tuple[str, ...] = ()
    """What may explain it, the likeliest first."""
    file: str = ""
    line: int = 0
    """Where the benchmark is defined."""
    note: str = ""
    """What else to know: ``clock, not code``; why it failed or is not known."""
    codes: tuple[str, str] = ("", "")
    """The hashes of base's and head's code; nothing where it is not known."""
    doubts: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The names of base's and of head's doubts."""

    @property
    def failed(self) -> bool:
        """Whether there should be a verdict and is none."""
        return self.verdict is None and not (self.accepted or self.new)

    @property
    def incomparable(self) -> bool:
        """Whether the two sides are not of the same thing."""
        return self.note.startswith(INCOMPARABLE)

    @property
    def regressed(self) -> bool:
        """Whether it is slower than the policy lets pass."""
        if self.verdict not in {Verdict.SLOWER, Verdict.SPREAD} or self.accepted:
            return False
        # Without evidence, or with NaN for it, slower is no pass.
        ratio = self.judgement.ratio.value if self.judgement else float("nan")
        return not ratio <= 1 + self.tolerance


@dataclass(frozen=True, slots=True)
class StaticChange:
    """What changed in one kernel's code, without a run of it."""

    case: str
    target: str
    changes: tuple[str, ...]
    """In words, the weightiest first: ``3 more registers``."""
    forbidden: str = ""
    """Why the policy forbids it; nothing: suspect only, to be measured."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the last self-test of this machine found of the gate itself."""

    run: str
    """The stored run's id."""
    measured: str
    """When, in ISO 8601."""
    comparisons: int
    """Of a side with itself."""
    alarms: int
    """Of these, told as slower or faster."""
    rate: Estimate
    """The share of false alarms, with its interval."""
    detectable: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The smallest slowdown that is found, of each case and mode, as a share."""
    power: Mapping[float, float] = field(default_factory=dict)
    """The share found of slowdowns that were injected, by their size."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a gate came to."""

    baseline: str
    """As the user named it."""
    head: str
    """The commit that is judged, or what stands for one."""
    findings: tuple[Finding, ...] = ()
    static: tuple[StaticChange, ...] = ()
    calibration: Calibration | None = None
    problem: SteelyardError | None = None
    """Why nothing can be said, such as two machines that are not comparable."""
    runs: Mapping[str, str] = field(default_factory=dict)
    """The stored runs by their side."""
    notes: tuple[str, ...] = ()
    """What holds of all of it: ``base's numbers are from another time``."""

    @property
    def exit_code(self) -> int:
        """What the command ends with: what is not known to be fine is not fine."""
        if self.problem is not None:
            return self.problem.exit_code
        if any(finding.failed for finding in self.findings):
            return FAILED
        forbidden = any(change.forbidden for change in self.static)
        if forbidden or any(finding.regressed for finding in self.findings):
            return REGRESSION
        if any(finding.incomparable for finding in self.findings):
            return USAGE
        verdicts = {finding.verdict for finding in self.findings} - {None}
        open_ends = Verdict.UNRESOLVED in verdicts
        return UNRESOLVED if open_ends or verdicts == {Verdict.NOT_GATEABLE} else FINE
