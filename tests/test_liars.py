"""Each lie is an error, or a doubt that a gate acts on, in every mode that it is told in."""

from pathlib import Path

import liars
import pytest

from steelyard.analyse.doubts import Act, known
from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.mode import parse
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.process import confirm, runner

pytestmark = pytest.mark.measuring

MODES = ("kernel/warm", "kernel/cold", "latency/warm", "latency/warm/allocated")
ONLY = {
    "first buffer": ("latency/warm/allocated",),
    "lazy": ("latency/warm/allocated",),
    "once a window": ("kernel/warm",),
    "own clock": ("kernel/warm", "kernel/cold"),
    "stack": ("kernel/warm", "latency/warm", "latency/warm/allocated"),
}
"""Modes in which these are lies: what they say of others is true."""
TOGETHER = {"blocks", "spinning"}
"""Patches whose modes share a process, as in a run: others are put back with theirs."""
ACTS = {Act.OPEN, Act.FAIL}


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Measure all cases: those that patch in a process each, the others in one."""
    folder = tmp_path_factory.mktemp("liars")
    found = discovery.discover([str(Path(liars.__file__))])
    cases = {case.axes["lie"]: case for case in select(found) if "lie" in case.axes}
    turns = [
        (0, case, mode)
        for case in select(found)
        for mode in map(parse, MODES)
        if "shape" in case.axes
    ]
    for mode in map(parse, MODES):
        turns += [
            (0, case, mode) for lie, case in cases.items() if lie not in liars.PATCHES
        ]
    block = 1
    for lie in liars.PATCHES:
        for mode in map(parse, MODES):
            turns.append((block, cases[lie], mode))
            block += lie not in TOGETHER
        if lie == "blocks":
            turns += [(block + 1, cases[lie], mode) for mode in map(parse, MODES)]
        block += 2 * (lie in TOGETHER)
    plan = [PlannedTrial(position, *turn) for position, turn in enumerate(turns)]
    seen = {}
    how = Settings(precision=0.05, flush_bytes=64 << 20)

    def keep(trial):
        name = trial.axes.get("lie", trial.axes.get("shape"))
        seen[name, trial.mode] = trial

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIARS", str(folder))
        runner.run(plan, how, keep, lambda _: None)
    return seen


def acted_on(trial):
    """Return the doubts of a trial that a gate acts on."""
    return {name for name in trial.doubts if known()[name].act in ACTS}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lie", liars.LIES)
def test_no_lie_passes(lie, mode, trials):
    """Unless it is none in this mode."""
    if mode not in ONLY.get(lie, MODES):
        return
    trial = trials[lie, mode]
    assert trial.error or acted_on(trial), trial.doubts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [*liars.HONEST, "none", "empty", "one"])
def test_honest_work_is_believed(case, mode, trials):
    """Whatever the machine does meanwhile."""
    trial = trials[case, mode]
    assert trial.error is None
    assert not acted_on(trial)


@pytest.mark.parametrize(
    ("slow", "alone", "doubts"),
    [
        (len(confirm.PAUSES) - 1, 1e9, set()),
        (len(confirm.PAUSES), 1e9, {"unconfirmed"}),
        (len(confirm.PAUSES), 0.0, {"contended"}),
    ],
)
def test_work_is_doubted_only_if_it_is_slow_on_new_data_each_time(
    monkeypatch, tmp_path, slow, alone, doubts
):
    """A busy machine makes it slow for a while, on work that keeps nothing.

    While threads of it waited for processors it may be none of the work's doing: BLAS on
    all cores of a busy machine was said to keep results, and failed its gate.
    """
    looks = iter([(1e9, alone, "")] * slow + [(0.0, 0.0, "")])
    monkeypatch.setattr(confirm._Rounds, "all", lambda *_: next(looks))
    found = discovery.discover([str(Path(liars.__file__))])
    (case,) = [case for case in select(found) if case.axes.get("lie") == "honest"]
    seen = []
    turn = PlannedTrial(0, 0, case, parse("kernel/warm"))
    how = Settings(precision=0.05, scratch=str(tmp_path))
    runner.run([turn], how, seen.append, lambda _: None)
    assert acted_on(seen[0]) == doubts


def test_waiting_actively_for_a_thread_that_waits_is_no_work():
    """Who waits has the processor all the while, as work that skips nothing has."""
    before = confirm._Spent(0, {"1": (0, 0), "2": (0, 0)})
    after = confirm._Spent(8_000, {"1": (8_000, 0), "2": (0, 7_900)})
    assert after.since(before, 8_000) == (8_000, 100)
