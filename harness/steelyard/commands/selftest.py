"""Measure what the gate can detect on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

import click

from steelyard.analyse.trial import Trial
from steelyard.analyse.verdict import Policy
from steelyard.commands import INTERRUPTED
from steelyard.commands._options import (
    gpu_option,
    overrides_option,
    pattern_option,
    store_option,
    wait_option,
)
from steelyard.declare import config
from steelyard.declare.plan import Turn
from steelyard.declare.settings import Settings
from steelyard.errors import FAILED, FINE, UNRESOLVED
from steelyard.gate import calibration, policy_file
from steelyard.gate.blocks import Point
from steelyard.gate.calibration import KEY, TAG, Tally
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.run import Asked, planned
from steelyard.gate.selftest import SelfTest, Steps, run
from steelyard.machine import facts as machine
from steelyard.machine import lock, writer
from steelyard.report import selftest_table, tables
from steelyard.store import run as runs
from steelyard.store import session
from steelyard.store.store import Store

MINUTES: Final = 10.0
"""Time for about 150 comparisons and as many injected changes."""


@click.command()
@click.argument("paths", nargs=-1)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=MINUTES,
    show_default=True,
    help="How long it takes; more of them narrow what it finds.",
)
@pattern_option
@overrides_option
@wait_option
@gpu_option
@store_option
def command(
    *,
    paths: tuple[str, ...],
    minutes: float,
    gpu: str | None,
    store: str | None,
    **asked: Any,
) -> int:
    """Find out what the gate can tell on this machine.

    The cases of PATHS are compared with themselves, which gives the rate of false alarms
    and each case's smallest detectable change; then kernels are made slower by work of
    known length, which gives the share that is found. Later gates show both.
    """
    chosen = config.load({"suites": paths or None, "store": store, "gpu": gpu})
    request = Asked("", config.suites(chosen), **asked)
    points, left = points_of(request)
    if left:
        _say(f"left out: {left}")
    how = session.settings(
        chosen, session.Asked(request.places), check=True, allocations=False
    )
    turns = [Turn(0, 0, point.case, point.mode) for point in points]
    policy = policy_of(points)
    test = SelfTest(points, how, Tally(), say=_say, policy=policy, seed=how.seed)
    how, device = session.on_gpu(turns, how, replace(chosen, peaks=config.OFF))
    around = machine.describe() | ({"gpu": device} if device else {})
    with lock.measuring(request.wait), Store.open(chosen.store) as opened:
        state = _tested(opened, test, around, 60 * minutes)
    for part in selftest_table.page(test.tally, policy):
        tables.console().print(part)
    return _exit_code(test.tally, state)


def points_of(request: Asked) -> tuple[list[Point], str]:
    """Return what a gate measures but builds, which take long; and what is left out."""
    found = session.find(request.places, request.pattern, request.overrides)
    points, left = planned(found, request.modes)
    return [point for point in points if point.mode.quantity != "build"], left


def policy_of(points: Sequence[Point]) -> Policy:
    """Return what a gate here would go by."""
    keys = [(point.case.id, str(point.mode)) for point in points]
    return policy_file.load().policy(keys)


def _exit_code(tally: Tally, state: str) -> int:
    if state == "interrupted":
        return INTERRUPTED
    if tally.failed:
        return FAILED
    return FINE if tally.same else UNRESOLVED


def _tested(store: Store, test: SelfTest, around: machine.Facts, seconds: float) -> str:
    """Run the self-test and store it; return how it ended."""
    state = "finished"
    try:
        with _recorded(store, test.settings, around) as test.keep:
            run(test, seconds, lambda: Steps.measured(test.points, test.settings.gpu))
    except KeyboardInterrupt:
        state = "interrupted"
    if test.tally.same:
        keep_result(store, test.tally, around, test.policy)
    return state


def keep_result(
    store: Store, tally: Tally, around: machine.Facts, policy: Policy
) -> None:
    """Store what was found as a run of its own, for later gates to show."""
    begun = runs.new(writer.command(), {}, (TAG,), around)
    found = calibration.document(tally.calibration(begun, policy))
    store.begin(replace(begun, settings={KEY: found}))
    store.finish(begun.uid, "finished")


@contextmanager
def _recorded(
    store: Store, how: Settings, around: machine.Facts
) -> Iterator[Callable[[str, Trial], None]]:
    """Store the trials of both sides as they arrive, in a run each."""
    made = {
        side: runs.new(writer.command(), asdict(how), (f"{TAG}/{side}",), around)
        for side in (BASE, HEAD)
    }
    for one in made.values():
        store.begin(one)
    state = "failed"
    try:
        yield lambda side, trial: store.add(made[side].uid, trial)
        state = "finished"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        for one in made.values():
            store.finish(one.uid, state)


def _say(line: str) -> None:
    click.echo(line, err=True)
