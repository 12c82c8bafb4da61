"""Measure what the gate can detect on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import click

from steelyard.analyse.verdict import Policy
from steelyard.commands import INTERRUPTED
from steelyard.commands import _options as options
from steelyard.declare import config, discovery
from steelyard.errors import FAILED, FINE, UNRESOLVED
from steelyard.gate import calibration, policy_file
from steelyard.gate.blocks import Point
from steelyard.gate.calibration import KEY, TAG, Tally
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.run import on_gpu, planned
from steelyard.gate.selftest import SelfTest, StepTimes, run
from steelyard.machine import lock
from steelyard.report import selftest_table, tables
from steelyard.store import session
from steelyard.store.session import Request
from steelyard.store.store import Store

MINUTES: Final = 10.0
"""Time for about 150 comparisons and as many injected changes."""


@click.command()
@click.argument("paths", nargs=-1)
@options.option(
    "--minutes",
    "How long it takes; more of them narrow what it finds.",
    shown=True,
    type=click.FloatRange(min=0, min_open=True),
    default=MINUTES,
)
@options.pattern_option
@options.overrides_option
@options.wait_option
@options.gpu_option
@options.store_option
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
    request = Request(config.suites(chosen), **asked)
    points, left = points_of(request)
    if left:
        _say(f"left out: {left}")
    how = session.settings(chosen, request)
    how, device = on_gpu(points, how, chosen)
    keys = [(point.case.id, str(point.mode)) for point in points]
    policy = policy_file.load().policy(keys)  # what a gate here would go by
    test = SelfTest(points, how, Tally(), say=_say, policy=policy, seed=how.seed)
    with lock.measuring(request.wait), Store.open(chosen.store) as opened:
        state = _tested(opened, test, device, 60 * minutes)
    for part in selftest_table.page(test.tally, policy):
        tables.console().print(part)
    return _exit_code(test.tally, state)


def points_of(request: Request) -> tuple[list[Point], str]:
    """Return what a gate measures but builds, which take long; and what is left out."""
    found = discovery.find(request.places, request.pattern, request.overrides)
    points, left = planned(found, request.modes)
    return [point for point in points if point.mode.quantity != "build"], left


def _exit_code(tally: Tally, state: str) -> int:
    if state == "interrupted":
        return INTERRUPTED
    if tally.failed:
        return FAILED
    return FINE if tally.same else UNRESOLVED


def _tested(
    store: Store, test: SelfTest, device: Mapping[str, Any], seconds: float
) -> str:
    """Run the self-test and store it; return how it ended."""
    state, how = "finished", asdict(test.settings)
    sides = {
        side: session.begun(how, (f"{TAG}/{side}",), device) for side in (BASE, HEAD)
    }
    try:
        with session.recorded(store, sides) as test.keep:
            run(
                test,
                seconds,
                lambda: StepTimes.measured(test.points, test.settings.gpu),
            )
    except KeyboardInterrupt:
        state = "interrupted"
    if test.tally.same:
        keep_result(store, test.tally, device, test.policy)
    return state


def keep_result(
    store: Store, tally: Tally, device: Mapping[str, Any], policy: Policy
) -> None:
    """Store what was found as a run of its own, for later gates to show."""
    begun = session.begun({}, (TAG,), device)
    found = calibration.document(tally.calibration(begun, policy))
    store.begin(replace(begun, settings={KEY: found}))
    store.finish(begun.uid, "finished")


def _say(line: str) -> None:
    click.echo(line, err=True)
