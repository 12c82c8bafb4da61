"""Results as JUnit's XML: a gate or claims, a test each case."""

from __future__ import annotations

from typing import Final

from steelyard.report import claims_report, junit
from steelyard.report.formats import Format

FORMAT: Final = Format(
    gate=junit.of_gate, claims=lambda found: claims_report.junit(found.judged)
)
