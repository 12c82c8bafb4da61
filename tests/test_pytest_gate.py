"""``--steelyard-gate`` is seen from outside, over outcomes that were made up."""

from types import SimpleNamespace
from xml.etree import ElementTree as ET

import outcomes
import pytest
import shell
from outcomes import finding, outcome

from steelyard.analyse.verdict import Verdict
from steelyard.errors import SteelyardError
from steelyard.gate import document

SUITE = """
import numpy as np
from steelyard import benchmark

@benchmark(n=[1, 2])
def move(b, n):
    x = b.input(n)
    y = b.output(n)
    b.check(lambda x: x, x)
    b.mode("kernel/warm")
    return b.launch(np.copyto, y, x)

@benchmark
def other(b):
    x = b.input(10)
    b.mode("kernel/warm")
    b.mode("latency/warm")
    return b.launch(lambda x: None, x)
"""

MADE_UP = """
from pathlib import Path

from steelyard.gate import document, run


def gate(baseline, asked, chosen, how, say):
    with Path("asked").open("a") as file:
        print(baseline, asked.pattern, *asked.places, file=file)
    return document.read(Path("made.json"))


run.gate = gate
"""


@pytest.fixture
def project(tmp_path):
    """Return a project whose gates come to what `made.json` says."""
    texts = {
        "suites/tiny.py": SUITE,
        "conftest.py": MADE_UP,
        "pytest.ini": "[pytest]\nsteelyard_suites = suites\n",
    }
    return shell.files(tmp_path, texts)


def gate(project, *findings, place="suites", arguments=(), **changes):
    """Run pytest with a gate that comes to these findings."""
    made = outcome(*findings, **changes)
    (project / "made.json").write_text(document.dumps(made))
    asking = ["--steelyard-gate=main", "--junitxml=j.xml", *arguments]
    done = shell.pytest_in(project, place, *asking)
    asked, junit = project / "asked", project / "j.xml"
    found = ET.parse(junit).iter("testcase") if junit.exists() else ()
    return SimpleNamespace(
        code=done.returncode,
        text=done.stdout + done.stderr,
        asked=asked.read_text().splitlines() if asked.exists() else [],
        cases={
            case.get("name"): {child.tag: child for child in case} for case in found
        },
    )


def case(name, verdict=Verdict.SAME, ratio=1.0, mode="kernel/warm", **changes):
    """Return a finding of a case of the suite."""
    return finding(name, verdict, ratio, mode=mode, **changes)


FINE = (
    case("move[n=1]"),
    case("move[n=2]", Verdict.IDENTICAL_CODE, judgement=None),
    case("other"),
    case("other", mode="latency/warm"),
)


def test_cases_that_did_not_change_pass(project):
    """All are measured once, the outcome is kept, and pytest-benchmark is not needed."""
    done = gate(project, *FINE, arguments=["-p", "no:benchmark"])
    assert done.code == 0, done.text
    assert "5 passed" in done.text
    assert done.asked == [f"main None {project / 'suites'}"]
    assert document.read(project / ".steelyard" / document.LAST).exit_code == 0


ENDINGS = (
    (case("move[n=1]", Verdict.SLOWER, 1.1, changes=("3 more registers",)), "failure"),
    (case("move[n=2]", Verdict.UNRESOLVED, 1.03), "failure"),
    (case("move[n=3]", None, note="it raised"), "failure"),
    (case("move[n=4]", Verdict.SLOWER, float("nan")), "failure"),
    (case("move[n=5]", Verdict.NOT_GATEABLE, 1.03), "skipped"),
    (case("move[n=6]", Verdict.SLOWER, 1.1, tolerance=0.2), None),
    (case("move[n=7]", Verdict.SLOWER, 1.1, accepted=True), None),
    (case("move[n=8]", Verdict.FASTER, 0.5), None),
    (case("move[n=9]", None, new=True), None),
    (case("other"), None),
    (case("other", Verdict.SLOWER, 1.5, mode="latency/warm"), "failure"),
)
"""Findings and what JUnit has of their tests."""


def test_a_case_ends_its_own_test_so_that_junit_sees_it(project):
    """The failure is the explanation, without a traceback; each mode is its own test.

    What is no pass of the gate's is none here either; what this machine cannot tell at
    any price is skipped. A case that vanished has no test any more: the gate's own fails.
    """
    suite = project / "suites" / "tiny.py"
    suite.write_text(SUITE.replace("[1, 2]", "range(1, 10)"))
    gone = case("gone", None, mode="", note="vanished: only the base has this case")
    mode = case("other", None, mode="kernel/cold", note="vanished: only in the base")
    done = gate(project, *(found for found, _ in ENDINGS), gone, mode)
    assert done.code == 1
    own = done.cases["steelyard-gate[main]"]["failure"]
    assert "vanished: only the base" in own.text
    assert "vanished: only in the base" in own.text
    for found, ends in ENDINGS:
        name = f"other[{found.mode}]" if found.case == "other" else found.case
        assert set(done.cases[name]) == ({ends} if ends else set()), name
    said = done.cases["move[n=1]"]["failure"].text
    assert "move[n=1] kernel/warm: regression; 10.00 % slower" in said
    assert "1. 3 more registers" in said
    assert "pytest_gate.py" not in done.text


def test_without_a_verdict_every_test_fails(project):
    """The reason is told once."""
    done = gate(project, problem=SteelyardError("the base does not build."))
    assert done.code == 1
    assert "5 failed" in done.text
    assert "does not build" in done.cases["steelyard-gate[main]"]["failure"].text
    assert "no verdict, see" in done.cases["other[kernel/warm]"]["failure"].text


def test_only_selected_cases_are_measured(project):
    """-k keeps the gate's own test; a finding that is missing is no pass."""
    done = gate(project, FINE[0], arguments=["-k", "move and 2"])
    file = project / "suites" / "tiny.py"
    assert done.asked == [f"main move[n=2] {file}"]
    assert set(done.cases) == {"steelyard-gate[main]", "move[n=2]"}
    assert "the gate did not measure it" in done.cases["move[n=2]"]["failure"].text
    (project / "asked").unlink()
    every = "move[n=1] or move[n=2] or other"
    (file.parent / "more.py").write_text(SUITE.replace("def ", "def more_"))
    for arguments in (["--ignore=suites/more.py"], ["-k", "not more"]):
        assert gate(project, arguments=arguments).asked.pop() == f"main {every} {file}"
    node = f"{file}::other[latency/warm]"
    assert gate(project, place=node).asked.pop() == f"main other {file}"


def test_a_gate_with_nothing_to_judge_is_no_pass(project):
    """Only tests, or a folder of benchmarks that the project does not name."""
    (project / "test_ordinary.py").write_text("def test_ordinary(): pass")
    done = gate(project, place="test_ordinary.py")
    assert (done.code, done.asked) == (4, [])
    assert "--steelyard-gate main: no benchmark was collected" in done.text
    (project / "pytest.ini").write_text("[pytest]\n")
    assert gate(project).code == 4


def test_collecting_measures_nothing(project):
    """The baseline is not even looked at."""
    done = gate(project, *FINE, arguments=["--collect-only"])
    assert done.code == 0
    assert done.asked == []


def test_it_is_not_mixed_with_pytest_benchmarks_rows(project):
    """--benchmark-only would skip every test, which would pass for a pass."""
    done = gate(project, *FINE, arguments=["--benchmark-only"])
    assert done.code == 4
    assert "--steelyard-gate and --benchmark-only exclude each other" in done.text


def test_processes_side_by_side_are_refused_before_they_start(project):
    """They would measure each other."""
    pytest.importorskip("xdist")
    asked = ("pytest", "suites", "--steelyard-gate=main", "-n2")
    done = shell.python("-m", *asked, folder=project)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "measure each other: leave -n out" in done.stderr
    assert "Error" not in done.stdout


def test_a_gate_that_raises_is_no_pass(project):
    """A bug of ours shows its traceback."""
    (project / "conftest.py").write_text(
        MADE_UP.replace("return document", "raise KeyError(1)\n    return document")
    )
    done = gate(project, *outcomes.EVERY)
    assert done.code == 1
    assert "KeyError" in done.text
    assert " passed" not in done.text
