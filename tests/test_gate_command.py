"""What `steelyard gate` keeps, checks first and names, with a gate that measures nothing."""

import sys
from dataclasses import replace

import outcomes
import pytest
import shell
from shell import git
from test_gate_sides import homes, project

from steelyard.errors import REGRESSION, USAGE, SteelyardError
from steelyard.gate import document, run, worktrees
from steelyard.gate.outcome import Outcome
from steelyard.machine import gpu_choice as gpu
from steelyard.machine import lock

__all__ = ["homes", "project"]

SUITE = """
import numpy
from steelyard import benchmark

@benchmark(device=["cpu", "cuda"])
def adding(b, device):
    if device == "cuda":
        b.on("cuda")
    x = b.input(8)
    y = b.output(8)
    return b.launch(numpy.negative, x, out=y)
"""


LAST = outcomes.outcome(outcomes.finding())
"""An outcome of one regression."""


@pytest.fixture
def shop(project, monkeypatch):
    """Work in a checkout with a case of the CPU and one of a GPU that is not there."""
    (project / "suites" / "adding.py").write_text(SUITE)
    monkeypatch.chdir(project)
    monkeypatch.setattr(lock, "default_path", lambda: project.parent / "lock")
    monkeypatch.setattr(gpu, "_seen", lambda: ((), "there is no driver."))
    return project


def gate(*words, code=REGRESSION):
    """Run the command; return its result."""
    return shell.command("gate", *words, code=code)


def kept(folder):
    """Return the outcome that `verdict` shows there."""
    return document.read(folder / ".steelyard" / document.LAST)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "baseline 'nope' is no commit"),
        (["HEAD", "-k", "nothing"], "nothing matched"),
        (["HEAD", "gone.py"], "gone.py does not exist"),
        (["--lane", "no"], "Invalid value for '--lane'"),
        ([], "name a baseline"),
    ],
)
def test_a_gate_that_could_not_begin_leaves_the_last_outcome(shop, words, says):
    """A misspelt baseline is no outcome: `verdict` still shows the real one.

    Nor are cases said to be left out of a gate that there will not be.
    """
    document.keep(LAST, shop / ".steelyard")
    result = gate(*words, code=USAGE)
    assert says in result.output
    assert "left out" not in result.stderr
    assert kept(shop) == LAST


def test_a_gate_whose_file_cannot_be_written_is_kept(shop, monkeypatch):
    """It measured for minutes, and its error says that `verdict` shows it again."""
    monkeypatch.setattr(run, "gate", lambda *_, **__: LAST)
    result = gate("HEAD", "--output", "/dev/full", code=USAGE)
    assert kept(shop) == LAST
    assert "shows the same outcome again" in result.stderr


HOSTILE = {
    "import os; os._exit(0)": "could not be imported: SystemExit: os._exit(0) ends the",
    "import posix; posix._exit(0)": "could not be imported: SystemExit: os._exit(0) ends the",
    "raise SystemExit(0)": "could not be imported: SystemExit: 0",
    "import ctypes; ctypes.string_at(0)": "died of SIGSEGV before it named",
    "while True: pass": "not done within 1 s and was ended. Look for a loop",
    "import os; [os.write(n, b'{}' * 99) for n in (1, 2)]; os._exit(0)": "ends",
    "import nosuchmodule": "No module named 'nosuchmodule'",
}
"""What a suite does when it is imported, and what the gate says."""


@pytest.mark.parametrize("text", HOSTILE)
def test_a_suite_that_ends_what_imports_it_is_no_pass(shop, text):
    """It ends a process of its own, and no older verdict stands for this gate."""
    document.keep(LAST, shop / ".steelyard")
    (shop / "suites" / "hostile.py").write_text(f"{text}\n# steelyard")
    seconds = "1" if "while" in text else "60"
    result = gate("HEAD", "--timeout", seconds, code=USAGE)
    assert HOSTILE[text] in " ".join(result.stdout.split())
    assert HOSTILE[text] in str(kept(shop).problem)
    assert kept(shop).exit_code == USAGE


def test_what_a_suite_changes_in_steelyard_does_not_reach_the_judge(shop, monkeypatch):
    """Nor is anything of head's imported there; a conftest is a suite like others."""
    (shop / "suites" / "conftest.py").write_text(
        "import json, steelyard.gate.run, mine\n"
        "json.loads = lambda *_, **__: 'garbage'\n"
        "steelyard.gate.run.gate = steelyard.gate.policy.apply = None\n"
    )
    monkeypatch.setattr(
        run._Lane,
        "against_commit",
        lambda lane, outcome, *_: replace(outcome, findings=LAST.findings),
    )
    gate("HEAD")
    assert "mine" not in sys.modules
    assert run.gate is not None


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("ends", [KeyboardInterrupt, MemoryError])
def test_a_gate_that_was_ended_leaves_no_older_verdict(
    shop, monkeypatch, earlier, ends
):
    """`verdict` says that the latest has none; the next gate's is shown again."""

    def ended(*_, **__):
        said.append(kept(shop))
        raise ends

    said = []
    if earlier:
        document.keep(LAST, shop / ".steelyard")
    monkeypatch.setattr(run, "gate", ended)
    gate("HEAD", code=None)
    for outcome in (*said, kept(shop)):
        assert outcome.exit_code == USAGE
        assert "the gate against HEAD that began" in str(outcome.problem)
    shown = shell.command("verdict", code=USAGE)
    assert "has no verdict: it still runs, or it was ended" in " ".join(
        shown.output.split()
    )
    monkeypatch.setattr(run, "gate", lambda *_, **__: LAST)
    gate("HEAD")
    assert kept(shop) == LAST
    assert [one.name for one in (shop / ".steelyard").glob(".*")] == []


def test_a_gate_whose_outcome_has_no_place_says_what_names_another(tmp_path):
    """As in a checkout that is mounted to be read."""
    folder = tmp_path / "file"
    folder.touch()
    with (
        pytest.raises(SteelyardError, match="--store"),
        document.under_way("main", folder),
    ):
        pass


def test_a_gate_that_could_not_begin_leaves_what_another_came_to(shop):
    """It was refused because the other one measured."""
    folder, other = shop / ".steelyard", shop / "other"

    def refused():
        with document.under_way("main", folder):
            document.keep(LAST, other).replace(folder / document.LAST)
            raise SteelyardError("another run measures")

    with pytest.raises(SteelyardError):
        refused()
    assert kept(shop) == LAST
    assert [one.name for one in folder.glob(".*")] == []


def test_the_summary_names_the_commit_that_was_judged_by(shop, monkeypatch):
    """A branch moves; what it stood for is said beside it, and that GPUs are missing."""
    seen = []

    def against(lane, outcome, head, points, listed):
        seen.extend(points)
        return replace(outcome, findings=LAST.findings)

    monkeypatch.setattr(run._Lane, "against_commit", against)
    result = gate("HEAD")
    commit = git(shop, "rev-parse", "HEAD").strip()
    assert f"against HEAD ({commit[:10]}): " in result.stdout
    assert "left out: " in result.stderr
    assert {point.case.axes["device"] for point in seen} == {"cpu"}
    assert worktrees.name_of(commit[:12], commit) == commit[:12]
    static = gate("HEAD", "--lane", "static", code=None)
    assert f"against HEAD ({commit[:10]})" in static.stdout


def test_an_outcome_is_kept_unless_its_problem_is_of_usage(tmp_path):
    """A build that failed is an outcome; no findings and no problem are one too."""
    document.keep(Outcome("main", "x"), tmp_path)
    assert document.read(tmp_path / document.LAST).baseline == "main"
    document.keep(Outcome("other", "x", problem=outcomes.PROBLEM), tmp_path)
    assert document.read(tmp_path / document.LAST).baseline == "main"
