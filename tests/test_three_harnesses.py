"""The table of three harnesses, where no GPU and none of the others is needed."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import trials

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module("three_harnesses")


def test_a_harness_that_failed_leaves_its_column_empty(script):
    """The others' figures stand, and nothing is made up for it."""
    times = {name: {"cold": 2.00049, "warm": 1.0} for name in script.NAMES}
    answers = {
        "truth": script.Answer(times, {}, 3.0),
        "ours": script.Answer(times, times, 30.0),
        "theirs": script.Answer({}, {}, 1.5, "theirs: not here"),
    }
    lines = list(script.table(answers).markdown())
    assert lines[0] == "| kernel, caches | truth | ours | theirs |"
    assert lines[2:4] == [
        "| add, 64 float32, cold | 2.00 | 2.00 ± 2.00 | - |",
        "| add, 64 float32, warm | 1.00 | 1.00 ± 1.00 | - |",
    ]
    assert lines[-1] == "| seconds a kernel, everything in | 1.00 | 10.00 | 0.50 |"
    assert len(lines) == 3 + 2 * len(script.NAMES)


def test_nvbenchs_summaries_are_seconds_as_text(script):
    """Its JSON says numbers as strings; cold is one launch, batch many."""
    state = {
        "summaries": [
            {"tag": "nv/cold/time/gpu/mean", "data": [{"value": "6.5e-06"}]},
            {"tag": "nv/cold/walltime", "data": [{"value": "4.0"}]},
            {"tag": "nv/batch/time/gpu/mean", "data": [{"value": "2.25e-05"}]},
        ]
    }
    assert script._of_nvbench(state) == {
        "cold": pytest.approx(6.5),
        "warm": pytest.approx(22.5),
    }


def test_a_part_that_cannot_run_is_a_note(script, monkeypatch):
    """As where triton, nvbench or a GPU is missing: the sentence says whose."""
    monkeypatch.setattr(script, "__file__", str(ROOT / "ci" / "no such script.py"))
    answer = script.asked("nvbench")
    assert answer.times == {}
    assert answer.note.startswith("nvbench: ")
    assert answer.seconds > 0


def test_the_caption_says_where_the_table_comes_from(script):
    """The versions of what is here, and no more."""
    run = trials.run(machine=trials.FACTS | {"gpu": trials.GPU})
    assert re.fullmatch(
        r"`python ci/three_harnesses.py` on NVIDIA H200, Test CPU, 2 cores, hypervisor "
        r"no, driver 580.159.04, .*steelyard [\d.]+, commit `c0ffee0000`",
        script.caption(run),
    )


def test_each_kernel_of_the_table_is_a_case_on_a_gpu():
    """Steelyard measures the very calls that the others are handed."""
    from steelyard.declare.discovery import discover

    file = ROOT / "ci" / "three_harnesses.py"
    cases = [one.cases()[0] for one in discover([str(file)])]
    assert all(case.describe().device == "cuda" for case in cases)
    module = sys.modules[cases[0].benchmark.function.__module__]
    assert {case.id for case in cases} == module.NAMES.keys()
