"""The static lane: code held against a lock file, of a commit or of the checkout."""

import sys
from types import SimpleNamespace

import pytest
import shell
from shell import git

from steelyard.analyse.verdict import Verdict
from steelyard.gate import static
from steelyard.gate.outcome import Outcome, StaticChange

SAID = {
    "same": [("copy", "cpu:a"), ("copy", "cuda:b"), ("scale", "cpu:a")],
    "changed": [("scale", "cuda:b", ("3 more registers",))],
    "gone": [],
}
"""What the kernels' package answers of a file that says `old`."""

SAME = {"same": [("copy", "cpu:a"), ("copy", "cuda:b")], "changed": [], "gone": []}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Be in a repository whose commit has the lock file `old`, and the checkout `new`."""
    answers = {"old": SAID, "new": SAME}
    asked = []

    def compare(content, name):
        asked.append((content, name))
        if content not in answers:
            return {"problem": f"{name} is bad.", "exit_code": 4}
        return answers[content]

    kernels = SimpleNamespace(compare=compare, asked=asked, answers=answers)
    monkeypatch.setitem(sys.modules, "some_kernels", kernels)
    monkeypatch.setattr(static, "COMPARE", "some_kernels:compare")
    part = tmp_path / "part"
    shell.files(part, {static.FILE: "old"})
    shell.commit(tmp_path, "old")
    return shell.files(part, {static.FILE: "new"})


def commit(root):
    """Return the commit."""
    return git(root, "rev-parse", "HEAD").strip()


def outcome(found):
    """Return what a gate comes to with nothing else."""
    return Outcome("base", "head", found.findings, found.changes, problem=found.problem)


def test_a_checkout_is_held_against_its_own_file(root):
    """What is the same is identical code: one finding a case."""
    found = static.check(root)
    ((case, verdict, note),) = [(f.case, f.verdict, f.note) for f in found.findings]
    assert (case, verdict) == ("copy", Verdict.IDENTICAL_CODE)
    assert note == "2 targets"
    assert found.changes == found.notes == ()
    assert outcome(found).exit_code == 0


def test_a_commits_file_is_the_baseline(root):
    """What changed is a suspect, and fails nothing by itself."""
    found = static.check(root, commit(root))
    assert found.changes == (StaticChange("scale", "cuda:b", ("3 more registers",)),)
    assert [one.case for one in found.findings] == ["copy"]
    assert found.notes == ()
    assert outcome(found).exit_code == 0


def test_a_file_that_nobody_wrote_anew_is_said(root):
    """It would be the next baseline."""
    (root / static.FILE).write_text("old")
    found = static.check(root, commit(root))
    assert found.notes == (
        "ci/kernels.lock is not of these sources: write it anew with `steelyard lock`",
    )
    (root / static.FILE).write_text("broken")
    assert static.check(root, commit(root)).notes == ("ci/kernels.lock is bad.",)
    (root / static.FILE).unlink()
    assert static.check(root, commit(root)).notes == ("ci/kernels.lock is bad.",)


def test_a_case_that_vanished_is_never_a_pass(root):
    """Its note begins as policies expect it."""
    sys.modules["some_kernels"].answers["new"] = {
        "same": [("copy", "cpu:a")],
        "changed": [],
        "gone": [("copy", "cuda:b"), ("scale", "cpu:a"), ("scale", "cuda:b")],
    }
    found = static.check(root)
    assert [(f.case, f.verdict, f.note) for f in found.findings] == [
        ("copy", None, "vanished: ci/kernels.lock has it for cuda:b"),
        ("scale", None, "vanished: ci/kernels.lock has it for cpu:a, cuda:b"),
    ]
    assert outcome(found).exit_code == 2


def test_a_missing_baseline_is_a_problem(root):
    """In a commit, in a checkout, and where there is no git."""
    base = commit(root)
    git(root, "rm", "-q", "--cached", static.FILE)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    git(root, *name, "commit", "-q", "-m", "none")
    gone = static.check(root, commit(root))
    assert str(gone.problem) == f"ci/kernels.lock of {commit(root)[:12]} is bad."
    assert static.check(root, base).problem is None
    (root / static.FILE).unlink()
    assert static.check(root).problem is not None
    assert sys.modules["some_kernels"].asked[-1] == (None, static.FILE)


def test_a_bad_baseline_is_a_problem(root):
    """Not comparable, whatever the reason: nothing is read into bytes or a folder."""
    (root / static.FILE).write_text("foreign")
    found = static.check(root)
    assert str(found.problem) == "ci/kernels.lock is bad."
    assert outcome(found).exit_code == 4
    (root / static.FILE).write_bytes(b"\xff\x00")
    assert "it is no text" in str(static.check(root).problem)
    (root / static.FILE).unlink()
    (root / static.FILE).mkdir()
    assert outcome(static.check(root)).exit_code == 4


@pytest.mark.parametrize("name", ["no_such_package:compare", "some_kernels:other"])
def test_without_a_kernels_package_there_is_no_static_lane(root, monkeypatch, name):
    """And that is no pass."""
    monkeypatch.setattr(static, "COMPARE", name)
    found = static.check(root)
    assert "cannot be loaded" in str(found.problem)
    assert outcome(found).exit_code == 4
