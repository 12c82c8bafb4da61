"""Profiles: who is profiled, what stands between us and ncu, and what a trial keeps."""

import json
import os
import shlex
import stat
import sys
import tempfile
from dataclasses import replace

import pytest
from fakes import case_of
from host_memory_gpu import CONTEXT
from test_tracing import plain
from trials import trial

from steelyard.declare import mode
from steelyard.declare.discovery import discover
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.process import profile, scratch, stage
from steelyard.process.profile import Coldness, Profile
from steelyard_device.cuda import profiler
from steelyard_device.errors import DeviceError

ANSWER = {"must": 8 << 20, "working_set": 16 << 20, "l2_bytes": 60 << 20}

PRINTED = json.dumps(ANSWER)

LOG = (
    '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    '"0","copy","dram__bytes_read.sum","byte","8388608"\n'
    '"0","copy","gpu__time_duration.sum","ns","3200"\n'
)


def copying(b):
    """Copy on the GPU."""
    b.on("cuda")
    x = b.input(1000)
    y = b.output(1000)
    return b.launch(abs, x, out=y)


def on_the_cpu(b):
    """Copy on the CPU."""
    x = b.input(1000)
    y = b.output(1000)
    return b.launch(abs, x, out=y)


def profiled(*modes, body=copying, how=None):
    """Profile one case in some modes; return what is found, and what is said."""
    case, said = case_of(body), []
    plan = [PlannedTrial(i, 0, case, mode.parse(text)) for i, text in enumerate(modes)]
    return profile.profiles(plan, how or Settings(), said.append), said


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Put an ncu of our own on PATH; return what makes it answer, and its calls."""
    calls = tmp_path / "calls"

    def answering(log, *, output=PRINTED, errors="", code=0):
        script = tmp_path / "ncu"
        script.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, sys\n"
            "if '--version' in sys.argv:\n"
            "    print('Version 2025.3.1.0 (build 1)'); sys.exit()\n"
            f"with open({str(calls)!r}, 'a') as file: print(sys.argv, file=file)\n"
            "file = sys.argv[sys.argv.index('--log-file') + 1]\n"
            f"pathlib.Path(file).write_text({log!r})\n"
            f"print({output!r}); print({errors!r}, file=sys.stderr)\n"
            f"sys.exit({code})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return lambda: calls.read_text().splitlines() if calls.exists() else []

    return answering


def test_each_state_of_the_caches_is_profiled_once(ncu):
    """Modes that launch with the same caches share a profile; builds have none."""
    calls = ncu(LOG)
    modes = ("kernel/cold", "latency/cold", "kernel/warm", "build/cold", "kernel/cold")
    found, _ = profiled(*modes)
    assert len(calls()) == 2
    assert {cache for _, cache in found} == {"cold", "warm"}
    cold = found["copying", "cold"]
    assert cold.counted == {
        "kernels": 1,
        "dram_read": 8 << 20,
        "time_ns": 3200,
        "version": "2025.3.1.0",
    }
    assert cold.coldness.verdict == "proven"
    assert found["copying", "warm"].coldness.verdict == "contradicted"


def test_what_a_killed_profile_left_goes_with_the_next(ncu, tmp_path, monkeypatch):
    """Its folder, and that of this one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{scratch.PREFIX}dead"
    left.mkdir()
    calls = ncu(LOG)
    profiled("kernel/cold")
    assert f"{tmp_path}/{scratch.PREFIX}" in calls()[0]
    assert list(tmp_path.glob(f"{scratch.PREFIX}*")) == []


def test_the_command_line_is_said_and_can_be_run_by_hand(ncu):
    """It names the file, the benchmark, its axes and the state of the caches."""
    ncu(LOG)
    _, said = profiled("kernel/cold", how=Settings(seed=7, gpu=1))
    words = shlex.split(said[0])
    assert words[0] == "ncu"
    assert words[-3:-1] == ["{}", "cold"]
    assert json.loads(words[-1]) == {"seed": 7, "gpu": 1}
    assert words[-5] == __file__


def test_without_ncu_there_is_the_command_line_and_one_sentence(monkeypatch, tmp_path):
    """Whoever has ncu elsewhere can run it there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found, said = profiled("kernel/cold", "kernel/warm")
    assert found == {}
    assert [line.split()[0] for line in said] == ["ncu", "ncu", "--profile"]
    assert "no ncu on PATH" in said[-1]


def test_nothing_is_profiled_on_the_cpu(ncu):
    """Ncu sees only GPUs; that is said once."""
    calls = ncu(LOG)
    found, said = profiled("kernel/cold", body=on_the_cpu)
    assert (found, calls()) == ({}, [])
    assert len(said) == 1


def test_a_gpu_whose_counters_are_closed_is_asked_once(ncu):
    """Each try starts a process; the second would be refused as the first was."""
    calls = ncu("==ERROR== ERR_NVGPUCTRPERM - no permission\n", output="", code=1)
    found, said = profiled("kernel/cold", "kernel/warm")
    assert found == {}
    assert len(calls()) == 1
    assert sum("administrator" in line for line in said) == 1


def test_what_the_launch_failed_of_is_told(ncu):
    """The case's own sentence, not ncu's number."""
    ncu(
        "==ERROR== The application returned an error code (1).\n",
        output="",
        errors="copying: it broke.",
        code=1,
    )
    found, said = profiled("kernel/cold")
    assert found == {}
    assert said[-1].endswith(
        "copying cold: the launch under ncu failed: copying: it broke."
    )


def test_counters_without_an_answer_are_no_profile(ncu):
    """Bytes that nobody can hold against anything prove nothing."""
    ncu(LOG, output="the user's own lines\n{\n[1]\n")
    found, said = profiled("kernel/cold")
    assert found == {}
    assert len(said) == 2


def test_the_answer_is_found_among_what_the_work_prints(ncu):
    """It is the last line of its form: each pass of ncu prints one."""
    first = json.dumps({**ANSWER, "must": 1})
    ncu(LOG, output=f"hello\n{first}\n{json.dumps(ANSWER)}\nbye {{")
    found, _ = profiled("kernel/cold")
    assert found["copying", "cold"].coldness.verdict == "proven"


def test_a_hanging_program_is_ended_with_what_it_started():
    """Its own child holds the pipe, and is ended too."""
    slow = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with pytest.raises(Exception, match="and was ended"):
        stage.run([sys.executable, "-c", slow], 0.2)


@pytest.mark.parametrize("verdict", ["proven", "unknown", "contradicted"])
def test_a_trial_keeps_the_counters_and_a_contradiction_is_a_doubt(verdict):
    """With its figures, and only in the modes of that state."""
    found = {("a", "cold"): Profile({"kernels": 1}, Coldness(verdict, "so it was"))}
    base = replace(trial(), case="a", mode="kernel/cold", doubts=("drifting",))
    kept = profile.attach(base, found)
    assert kept.facts["ncu"] == {"kernels": 1}
    assert (kept.extra["coldness"], kept.extra["coldness_why"]) == (
        verdict,
        "so it was",
    )
    assert ("wrong-cache" in kept.doubts) == (verdict == "contradicted")
    assert "drifting" in kept.doubts
    for other in ("kernel/warm", "build/cold"):
        assert profile.attach(replace(base, mode=other), found).extra == base.extra
    assert profile.attach(replace(base, case="b"), found) == replace(base, case="b")


def test_the_process_refuses_a_case_that_runs_on_the_cpu(tmp_path):
    """Somebody ran its command line for one."""
    (case,) = discover([str(plain(tmp_path))])[0].cases()
    said = stage.run(stage.program(profile.MODULE, case, "warm", Settings()), 60)
    why = "plain runs on the CPU, where ncu sees nothing."
    assert (said.code, said.reason()) == (1, why)


class Driver:
    """Stands in for the driver: what a profiler would be told."""

    def __init__(self, monkeypatch):
        self.calls = []
        self.cuProfilerStart = lambda: self._told("start")
        self.cuProfilerStop = lambda: self._told("stop")
        self.cuCtxGetCurrent = lambda: (0, 0xC0)
        monkeypatch.setattr("steelyard_device.cuda.driver.bindings", lambda: self)

    def _told(self, what):
        self.calls.append(what)
        return (0,)


def test_marks_are_closed_whatever_the_work_raises(monkeypatch):
    """A profiler left on would count what comes after."""
    driver = Driver(monkeypatch)

    def broken():
        driver.calls.append("launch")
        raise DeviceError("lost")

    with pytest.raises(DeviceError), profiler.marked(CONTEXT):
        broken()
    assert driver.calls == ["start", "launch", "stop"]
