"""Run one case in a subprocess for profilers and tracers.

Such a process is ``python -m MODULE PATH NAME AXES CACHE [SETTINGS]``, axes and settings
in JSON; its answer is a line of JSON among whatever the user's work prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.declare import discovery
from steelyard.declare.benchmark import Case
from steelyard.declare.plan import PlannedTrial, Settings, once
from steelyard.errors import SteelyardError
from steelyard.machine import children
from steelyard.machine.children import ProcessResult
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import work

if TYPE_CHECKING:
    from steelyard_device import cuda


def points(turns: Sequence[PlannedTrial]) -> list[tuple[Case, str]]:
    """Return the launched cases of a plan with each state of their caches, once."""
    found = {
        (turn.case.id, turn.mode.cache): (turn.case, turn.mode.cache)
        for turn in once(turns)
        if turn.mode.quantity != "build"
    }
    return list(found.values())


def program(module: str, case: Case, cache: str, settings: Settings) -> list[str]:
    """Return the command line of the process that looks at a case."""
    chosen = (
        ("seed", settings.seed),
        ("inputs", dict(settings.inputs)),
        ("flush_bytes", settings.flush_bytes),
        ("gpu", settings.gpu),
    )
    given = {name: value for name, value in chosen if value}
    line = [sys.executable, "-P", "-m", module]
    line += [str(case.benchmark.path), case.benchmark.name]
    line += [json.dumps(dict(case.axes)), cache]
    return line + ([json.dumps(given)] if given else [])


def run(command: Sequence[str], seconds: float) -> ProcessResult:
    """Run a program and those that it starts.

    Raises:
        SteelyardError: it was not done in time; all of them are ended.
    """
    try:
        return children.run(command, seconds)
    except subprocess.TimeoutExpired:
        raise SteelyardError(
            f"{command[0]} was not done within {seconds:g} s and was ended; raise "
            "--timeout."
        ) from None


class Stage:
    """A prepared case and what comes before a launch whose caches are in one state.

    Nothing is checked or poisoned: a launch finds what a timed one does. On a GPU no
    step waits.
    """

    def __init__(self, case: Case, cache: str, settings: Settings) -> None:
        self.prepared = PreparedCase(case, replace(settings, check=False))
        self.work = self.prepared.work
        self.context: cuda.Context | None = None
        if isinstance(self.work, work.DeviceWork):
            self.context = self.work.context
        restore = ("restore", self.prepared.buffers.restore)
        touch, ready = ("touch", self._touch), ("wake", self.work.ready)
        self.before: tuple[tuple[str, Callable[[], None]], ...]
        """What is done before each launch, in order, by its name."""
        if cache == "cold":
            self.before = (restore, ("flush", self._flush(settings)), ready)
        else:  # in-place data is touched and then restored: it is both warm and right
            self.before = (touch, restore, ready)

    def _touch(self) -> None:
        self.work.launch(1)
        if self.context is None:
            self.work.wait()

    def _flush(self, settings: Settings) -> Callable[[], None]:
        if self.context is not None:
            from steelyard_device import cuda

            return cuda.Flush(self.context)
        from steelyard.measure.instruments import Instruments

        return Instruments(settings.flush_bytes).flush

    def must_read(self) -> int:
        """Return the bytes of memory that a launch cannot do without reading."""
        buffers = self.prepared.buffers
        written: int = sum(
            buffers.arrays[handle.name].nbytes
            for handle in self.prepared.description.handles_of("output", "inout")
        )
        moved: int = self.prepared.facts()["bytes"]
        return max(moved - written, 0)


def opened(
    path: str, name: str, axes: str, cache: str, settings: str = "{}"
) -> tuple[Case, Callable[[], Stage], Settings]:
    """Return the case that a command line names, what prepares it, and the settings."""
    case = discovery.load(Path(path), name).case(json.loads(axes))
    how = Settings(**json.loads(settings))
    return case, lambda: Stage(case, cache, how), how
