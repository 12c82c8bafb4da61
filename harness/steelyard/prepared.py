"""A case ready to be weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steelyard import inputs, work
from steelyard.benchmark import Case
from steelyard.buffers import Buffers
from steelyard.checking import Expectation, replay
from steelyard.settings import Settings
from steelyard.trial import METHOD_VERSION


class PreparedCase:
    """A case with its buffers allocated, its work bound and its first result checked."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case = case
        self.description = case.describe()
        self.launched = not self.description.call.built_for
        if not self.launched:  # shapes and dtypes are all that a build needs
            self.description = replace(self.description, handles=(), check=None)
        self.starts: list[Mapping[str, int]] = []
        """Of ``build/first``: where the time of each fresh process went."""
        handles = self.description.handles
        self.buffers = Buffers(handles, settings.seed, settings.inputs)
        self.work = work.realise(self.description, self.buffers)
        self.hashes = {
            "source": case.benchmark.source_hash(),
            "inputs": inputs.recipe_hash(self.buffers.handles, settings.seed),
            "method": str(METHOD_VERSION),
            "file": str(case.benchmark.path),
            "line": str(case.benchmark.line),
        }
        self.checked = settings.check and self.description.check is not None
        self._expected = None
        if settings.check and self.launched:
            # Asked before the work can change what it is asked of.
            self._expected = Expectation(self.description, self.buffers, settings.seed)
        if not self.launched:
            return
        # Checked or not: other libraries start their threads now, not pinned to one
        # core with the caller.
        self.work.launch(1)
        self.work.wait()
        if self._expected is not None:
            self._expected.check_all(self.buffers)
        self.buffers.restore()

    def facts(self) -> dict[str, Any]:
        """Return bytes and operations of a launch and what the work says of itself."""
        moved = sum(
            self.buffers.arrays[h.name].nbytes * (2 if h.role == "inout" else 1)
            for h in self.description.handles
        )
        return {"bytes": moved, **self.work.facts(), **self.description.counts}

    def check(self, launches: int) -> None:
        """Check what ``launches`` timed launches left, if the case is checked at all."""
        if self._expected is None:
            return
        if not self.buffers.updates or launches == 1:
            self._expected.check_rows(self.buffers)
            return
        self._expected.check_buffers(self.buffers)
        results = self.description.results
        replay(self.work.launch, self.buffers, results, launches)
