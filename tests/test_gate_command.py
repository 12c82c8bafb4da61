"""What `steelyard gate` keeps, checks first and names, with a gate that measures nothing."""

from dataclasses import replace

import outcomes
import pytest
from click.testing import CliRunner
from test_gate_sides import git, homes, project

from steelyard import lock
from steelyard.cli import main
from steelyard.errors import REGRESSION, USAGE
from steelyard.gate import document, run, worktrees
from steelyard.gate.outcome import Outcome
from steelyard.gpu import choice as gpu

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


def gate(*words):
    """Run the command; return its result."""
    return CliRunner().invoke(main, ["gate", *words])


def kept(folder):
    """Return the outcome that `verdict` shows there."""
    return document.read(folder / ".steelyard" / document.LAST)


@pytest.mark.parametrize(
    "words",
    [["nope"], ["HEAD", "-k", "nothing"], ["HEAD", "gone.py"], ["--lane", "no"], []],
)
def test_a_gate_that_could_not_begin_leaves_the_last_outcome(shop, words):
    """A misspelt baseline is no outcome: `verdict` still shows the real one."""
    document.keep(LAST, shop / ".steelyard")
    assert gate(*words).exit_code == USAGE
    assert kept(shop) == LAST


def test_a_gate_whose_file_cannot_be_written_is_kept(shop, monkeypatch):
    """It measured for minutes, and its error says that `verdict` shows it again."""
    monkeypatch.setattr(run, "gate", lambda *_, **__: LAST)
    result = gate("HEAD", "--output", "gone/outcome.json")
    assert (result.exit_code, kept(shop)) == (USAGE, LAST)
    assert "shows the same outcome again" in result.stderr


def test_the_baseline_is_looked_at_before_cases_are_left_out(shop):
    """What is left out of a gate that there will not be is noise."""
    result = gate("nope")
    assert "baseline 'nope' is no commit" in result.stdout
    assert "left out" not in result.stderr


def test_the_summary_names_the_commit_that_was_judged_by(shop, monkeypatch):
    """A branch moves; what it stood for is said beside it, and that GPUs are missing."""
    seen = []

    def against(lane, outcome, head, points):
        seen.extend(points)
        return replace(outcome, findings=LAST.findings)

    monkeypatch.setattr(run._Lane, "against_commit", against)
    result = gate("HEAD")
    commit = git(shop, "rev-parse", "HEAD").strip()
    assert result.exit_code == REGRESSION
    assert f"against HEAD ({commit[:10]}): " in result.stdout
    assert "left out: " in result.stderr
    assert {point.case.axes["device"] for point in seen} == {"cpu"}
    assert worktrees.name_of(commit[:12], commit) == commit[:12]
    static = gate("HEAD", "--lane", "static")
    assert f"against HEAD ({commit[:10]})" in static.stdout


def test_an_outcome_is_kept_unless_its_problem_is_of_usage(tmp_path):
    """A build that failed is an outcome; no findings and no problem are one too."""
    document.keep(Outcome("main", "x"), tmp_path)
    assert document.read(tmp_path / document.LAST).baseline == "main"
    document.keep(Outcome("other", "x", problem=outcomes.PROBLEM), tmp_path)
    assert document.read(tmp_path / document.LAST).baseline == "main"
