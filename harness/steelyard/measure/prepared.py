"""A case ready to be measured."""

from __future__ import annotations

import copy
import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from steelyard.analyse.trial import METHOD_VERSION
from steelyard.declare.benchmark import Case, Description
from steelyard.declare.handles import CPU, Call, Handle
from steelyard.declare.plan import Settings
from steelyard.prepare import allocation, inputs, work
from steelyard.prepare.answers import Rows
from steelyard.prepare.buffers import needed_bytes
from steelyard.prepare.checking import Expectation, replay


class PreparedCase:
    """A case with its buffers allocated, its work bound and its first result checked."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case = case
        self.description = case.describe()
        self.launched = not self.description.call.built_for
        if not self.launched:  # shapes and dtypes are all that a build needs
            self.description = replace(
                self.description, handles=(), check=None, device=CPU
            )
        self.starts: list[Mapping[str, int]] = []
        """Of ``build/first``: where the time of each fresh process went."""
        self.audited: dict[str, Any] = {}
        """What `audit` has found of this case so far."""
        self.audits = False
        """True in the one process per run that audits the work (usually the first block's)."""
        self.buffers = allocation.allocate(self.description, settings)
        self._synchronises = False
        self.work = work.realise(self.description, self.buffers)
        self.hashes = _hashes(case, self.buffers.handles, settings)
        self.checked = settings.check and self.description.check is not None
        self._expected = None
        if settings.check and self.launched:
            self.audits = settings.audit and self._first(settings)
            # Asked before the work can change what it is asked of.
            kept = self._kept(settings)
            self._expected = Expectation(
                self.description, self.buffers, settings.seed, kept
            )
        if not self.launched:
            return
        # Checked or not: other libraries start their threads now, not pinned to one
        # core with the caller.
        self.work.launch(1)
        self.work.wait()
        self._check_stream()
        if self._expected is not None:
            self._expected.check_all(self.buffers)
        self.buffers.restore()

    def beside(self, case: Case) -> PreparedCase | None:
        """Return another case on the same buffers; None where it needs others.

        Its result is compared with the rows that are known, and its work is not audited.

        Raises:
            BenchmarkError: it cannot be bound, or its result is wrong.
        """
        described = case.describe()
        same = replace(described, call=self.description.call)
        if same != self.description or not self.launched:
            return None
        other = copy.copy(self)
        other.case, other.description = case, described
        other.audited, other.audits = {}, False
        other.work = work.realise(described, self.buffers)
        self.buffers.restore()
        self.buffers.poison()
        other.work.launch(1)
        other.work.wait()
        if self._expected is not None:
            self._expected.check_rows(self.buffers)
        self.buffers.restore()
        return other

    def facts(self) -> dict[str, Any]:
        """Return bytes and operations of a launch and what the work says of itself."""
        found = _facts(self.description, self.work)
        return found | ({"synchronises": True} if self._synchronises else {})

    def reported(self) -> dict[str, Any]:
        """Return its facts and hashes, and the hash of a whole launch."""
        return _reported(self.facts(), self.hashes, self.work)

    @property
    def known(self) -> tuple[Rows, ...]:
        """Rows of each result that are known to be right; none of what is not checked."""
        return self._expected.rows if self._expected else ()

    def _kept(self, settings: Settings) -> Path | None:
        """Return where the blocks of a run keep rows of what this case should hold."""
        if not settings.scratch:
            return None
        return self._shared(settings, ".npz")

    def _first(self, settings: Settings) -> bool:
        """Whether no earlier block of the run audits this case, where there are more."""
        if not settings.scratch:
            return True
        # Both sides of a gate share the folder, and each has a root of its own.
        side = zlib.crc32(os.fsencode(Path.cwd()))
        try:
            self._shared(settings, f".{side}.audited").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # a disk that is full: rather twice than never
            return True
        return True

    def _shared(self, settings: Settings, suffix: str) -> Path:
        """Return where the blocks of a run keep something of this case."""
        asked = f"{self.case.id} {settings.seed} {self.hashes}"
        digest = hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()
        return Path(settings.scratch) / f"{digest}{suffix}"

    def _check_stream(self) -> None:
        """Find out where a GPU's work runs, unless that is known by its making.

        What it declares of itself is no reason to trust it.
        """
        bound = self.work
        ours = isinstance(bound, work.NativeWork)
        if ours or not isinstance(bound, work.DeviceWork):
            return
        from steelyard.measure import stream_check

        self._synchronises = stream_check.check_stream(bound, self.buffers)
        if isinstance(bound, work.DeviceCallable):
            bound.synchronises = self._synchronises

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


def static_facts(case: Case, settings: Settings) -> dict[str, Any] | None:
    """Return the facts and hashes of a native kernel that is bound and not launched.

    Its buffers hold nothing and nothing is checked, so that looking whether code is the
    same costs no data and no reference; and of what is only built, where that is known,
    what a build depends on. None of work that has to be prepared for that.

    Raises:
        BenchmarkError: it cannot be bound.
    """
    described = case.describe()
    call = described.call
    if call.built_for:
        return _foreseen(case, call, settings)
    if not isinstance(call.target, work.Bindable) or settings.inputs:
        return None
    bound = blank(described, settings)
    if not isinstance(bound, work.NativeWork):
        return None  # what others' work declares of itself is looked at in full
    hashes = _hashes(case, described.handles, settings)
    return _reported(_facts(described, bound), hashes, bound)


def blank(described: Description, settings: Settings) -> work.Work:
    """Return a case's work bound to buffers that hold nothing.

    Raises:
        BenchmarkError: it cannot be bound.
    """
    empty = tuple(replace(h, role="output", recipe=()) for h in described.handles)
    unfilled = replace(described, handles=empty)
    return work.realise(unfilled, allocation.allocate(unfilled, settings))


def _foreseen(case: Case, call: Call, settings: Settings) -> dict[str, Any] | None:
    if not isinstance(call.target, work.Foreseen):
        return None
    specs = [(handle.shape, handle.dtype) for handle in call.args]
    facts = dict(call.target.made_of(call.built_for, *specs))
    return {"facts": facts, "hashes": _hashes(case, (), settings)}


def _reported(
    facts: dict[str, Any], hashes: dict[str, str], bound: work.Work
) -> dict[str, Any]:
    return {"facts": facts, "hashes": hashes, "launch": work.launch_hash(bound)}


def _facts(description: Description, bound: work.Work) -> dict[str, Any]:
    moved = needed_bytes(description.launched)
    found = {"bytes": moved, **bound.facts(), **description.counts}
    largest = max(description.handles, key=lambda h: h.size, default=None)
    if largest is not None:
        found["dtype"] = largest.dtype  # whose peak the operations are held against
    return found


def _hashes(
    case: Case, handles: tuple[Handle, ...], settings: Settings
) -> dict[str, str]:
    return {
        "source": case.benchmark.source_hash(),
        "inputs": inputs.recipe_hash(handles, settings.seed),
        "method": str(METHOD_VERSION),
        "file": str(case.benchmark.path),
        "line": str(case.benchmark.line),
    }
