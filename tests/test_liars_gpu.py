import gpu
import liars_gpu
import pytest

from steelyard.analyse.doubts import Act, known
from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings, plan
from steelyard.process import runner

MODES = ("kernel/warm", "kernel/cold", "latency/warm")
ONLY = {"by the host": ("kernel/warm", "kernel/cold")}
"""Modes in which these are lies: a call's latency is with the host's work."""


@pytest.fixture(scope="module")
def trials():
    """Measure all cases of the suite on the GPU."""
    gpu.context()
    cases = select(discovery.discover([liars_gpu.__file__]))
    found = {}

    def keep(trial):
        found[trial.axes["lie"], trial.mode] = trial

    turns = plan(cases, list(map(parse, MODES)), blocks=1, seed=0)
    runner.run(turns, Settings(precision=0.05), keep, lambda _: None)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "lie", ["there_already", "unless_poison", "kept", "every other", "by the host"]
)
def test_no_lie_on_a_gpu_passes(lie, mode, trials):
    """It is an error, or a doubt that a gate acts on."""
    if mode not in ONLY.get(lie, MODES):
        return
    trial = trials[lie, mode]
    acted_on = [d for d in trial.doubts if known()[d].act in {Act.OPEN, Act.FAIL}]
    assert trial.error or acted_on, trial.doubts


@pytest.mark.parametrize("mode", MODES)
def test_honest_work_on_a_gpu_is_believed(mode, trials):
    """In each mode."""
    trial = trials["honest", mode]
    assert trial.error is None
    assert not [d for d in trial.doubts if known()[d].act is Act.FAIL]
