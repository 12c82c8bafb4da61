"""Results as JUnit's XML: a gate, a test each case."""

from __future__ import annotations

from typing import Final

from steelyard.report import gate_junit
from steelyard.report.formats import Format

FORMAT: Final = Format(gate=gate_junit.dumps)
