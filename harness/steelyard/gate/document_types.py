"""The types of what a gate's JSON holds, as it is checked before it is read."""

from __future__ import annotations

from typing import TypedDict

from steelyard.analyse.verdict import Verdict
from steelyard.gate.outcome import StaticChange


class Head(TypedDict):
    """The key that names its schema."""

    schema: int


class OneJudgement(TypedDict):
    """The evidence."""

    verdict: Verdict
    ratio: float | None
    low: float | None
    high: float | None
    blocks: int
    smallest_detectable_change: float | None
    more: int


class OneFinding(TypedDict):
    """One case and mode."""

    case: str
    mode: str
    verdict: Verdict | None
    judgement: OneJudgement | None
    tolerance: float
    reason: str
    accepted: bool
    changes: list[str]
    file: str
    line: int
    note: str
    codes: tuple[str, str]
    new: bool
    doubts: dict[str, list[str]]


class OneCalibration(TypedDict):
    """What a self-test found."""

    run: str
    measured: str
    comparisons: int
    alarms: int
    rate: dict[str, float]
    detectable: list[tuple[str, str, float | None]]
    power: dict[str, float]


class Problem(TypedDict):
    """Why there is no verdict."""

    sentence: str
    exit_code: int


class Document(TypedDict):
    """All of it."""

    exit_code: int
    baseline: str
    head: str
    runs: dict[str, str]
    notes: list[str]
    problem: Problem | None
    findings: list[OneFinding]
    static: list[StaticChange]
    calibration: OneCalibration | None
