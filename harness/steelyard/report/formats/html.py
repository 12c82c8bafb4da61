"""Results as pages of HTML that need no network and no scripts."""

from __future__ import annotations

from typing import Final

from steelyard.report.formats import Format
from steelyard.report.pages import gate, run

FORMAT: Final = Format(run.dumps, gate=gate.dumps)
