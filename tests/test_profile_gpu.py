"""Counters and traces of real launches: what a GPU, ncu and CUPTI say themselves."""

import json
import shutil
import sys

import gpu
import pytest
from test_tracing import check

from steelyard.declare.discovery import discover
from steelyard.declare.mode import parse
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.process import profile, stage, tracing
from steelyard_device.cuda import activity, profiler

SUITE = """
from steelyard import benchmark
from steelyard_kernels import library

@benchmark
def copying(b):
    b.on("cuda")
    x = b.input(1 << 20)
    y = b.output(1 << 20)
    return b.launch(library.copy, x, out=y)
"""


@pytest.fixture
def turns(tmp_path):
    """Return a plan of a copy of 4 MiB, cold and warm; it fits every GPU's cache."""
    gpu.context()
    file = tmp_path / "copying.py"
    file.write_text(SUITE)
    (case,) = (one.cases()[0] for one in discover([str(file)]))
    return [
        PlannedTrial(i, 0, case, parse(f"kernel/{c}"))
        for i, c in enumerate(("cold", "warm"))
    ]


def test_marks_without_a_profiler_change_nothing():
    """A launch between them is a launch."""
    context = gpu.context()
    with profiler.marked(context):
        context.wait()


def test_counters_prove_cold_launches_cold_and_warm_ones_warm(turns):
    """All input comes from memory behind a flush, and none of it behind a launch."""
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")
    said = []
    found = profile.profiles(turns, Settings(), said.append)
    if any("ERR_NVGPUCTRPERM" in line for line in said):
        pytest.skip("needs leave to read the GPU's counters")
    assert [line for line in said if not line.startswith("ncu ")] == []
    verdicts = {cache: one.coldness.verdict for (_, cache), one in found.items()}
    assert verdicts == {"cold": "proven", "warm": "proven"}
    for one in found.values():
        assert one.counted["kernels"] == 1
        assert 0 < one.counted["occupancy"] <= 1
        assert one.counted["time_ns"] > 0


def test_a_trace_has_the_kernel_behind_its_submission(turns, tmp_path):
    """On one time axis nothing runs before the host began to submit it."""
    why = activity.missing()
    if why is not None:
        pytest.skip(why)
    place = tmp_path / "trace.json"
    tracing.trace(turns, Settings(), place, print)
    document = json.loads(place.read_text())
    lasting = check(document)
    launches = {
        pid: [e for e in lasting if e["name"] == "launch" and e["pid"] == pid]
        for pid in (1, 2)
    }
    for pid, host in launches.items():
        kernels = [
            e
            for e in lasting
            if e["pid"] == pid
            and "registers" in e["args"]
            and not e["name"].startswith("steelyard_")  # a flush, a spin
        ]
        assert len(host) == tracing.ROUNDS
        assert len(kernels) >= tracing.ROUNDS
        assert kernels[-1]["ts"] >= host[-1]["ts"]


def test_a_case_that_fails_under_ncu_says_why(tmp_path):
    """The sentence is the case's, through ncu's own log."""
    gpu.context()
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")
    file = tmp_path / "broken.py"
    file.write_text(SUITE.replace("library.copy, x, out=y", "None, x, out=y"))
    command = [sys.executable, "-m", profile.MODULE, str(file), "copying", "{}", "cold"]
    assert stage.run(command, 60).code == 1
