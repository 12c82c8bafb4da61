"""The trial of what could not be measured, also for processes that measure nothing."""

from __future__ import annotations

import os

from steelyard.analyse.trial import METHOD_VERSION, Trial
from steelyard.clocks.host import HostClock
from steelyard.declare.benchmark import Case, named
from steelyard.declare.mode import Mode
from steelyard.declare.plan import PlannedTrial
from steelyard.measure.sampler import Record


def failed(
    case: Case, mode: Mode, error: str | None, *, block: int = 0, position: int = 0
) -> Trial:
    """Return the trial of a case that could not be measured at all."""
    return Trial(
        case=case.id,
        axes=dict(case.axes),
        mode=str(mode),
        block=block,
        position=position,
        worker=os.getpid(),
        samples=Record().samples(),
        clock=HostClock.nothing(),
        floors={},
        ledger={},
        facts={},
        hashes={
            "file": str(case.benchmark.path),
            "line": str(case.benchmark.line),
            "method": str(METHOD_VERSION),
        },
        error=error and named(case.id, error),
    )


def failed_turn(turn: PlannedTrial, error: str) -> Trial:
    """Return the trial of a turn that could not be measured at all."""
    where = {"block": turn.block, "position": turn.position}
    return failed(turn.case, turn.mode, error, **where)
