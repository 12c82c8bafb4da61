"""The workflow of the gate, run step by step as its file says, without its runner."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import junit_schema
import pytest
from shell import git

from steelyard.errors import SteelyardError
from steelyard.gate import document
from steelyard.report import ci, gate_markdown

yaml = pytest.importorskip("yaml")  # comes with asv

ROOT = Path(__file__).parents[1]
STEELYARD = Path(sys.executable).with_name("steelyard")

WORK = """
import numpy as np

STEPS = 1


def total(x, out):
    for _ in range(STEPS):
        np.add(x, 1, out=out)
"""

SUITE = """
import numpy as np
import work
from steelyard import benchmark


@benchmark(impl=["ours", "numpy"])
def total(b, impl):
    x = b.input(20_000)
    y = b.output(20_000)
    b.check(lambda x: x + 1, x)
    b.mode("kernel/warm")
    if impl == "numpy":
        return b.launch(lambda x, out: np.add(x, 1, out=out), x, out=y)
    return b.launch(work.total, x, out=y)
"""


def workflow():
    """Return the workflow; YAML takes its key ``on`` for a truth value."""
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text()
    found = yaml.safe_load(text)
    return found | {"on": found.get("on", found.get(True))}


@pytest.fixture
def project(tmp_path):
    """Return a repository with our scripts, a suite, and a change that triples work."""
    home = tmp_path / "project"
    (home / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "kernels.lock", home / "ci")
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "steelyard").symlink_to(STEELYARD)
    for name, text in {
        "work.py": WORK,
        "suites/tiny.py": SUITE,
        "pyproject.toml": "[tool.steelyard]\n",
        ".gitignore": ".steelyard/\ngate/\n__pycache__/\n.venv/\n",
    }.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    git(home, "init")
    git(home, "add", ".")
    git(home, "commit", "-m", "base")
    (home / "work.py").write_text(WORK.replace("STEPS = 1", "STEPS = 3"))
    git(home, "commit", "-am", "three times the work")
    return home


def run_job(project, job, *, fork=False, **environment):
    """Run a job's own steps, but for its set-up, as a runner would for a pull request."""
    event = {
        "pull_request": {
            "base": {"sha": git(project, "rev-parse", "HEAD~1")},
            "head": {"repo": {"full_name": "somebody/fork" if fork else "us/project"}},
        }
    }
    place = project.parent
    (place / "event.json").write_text(json.dumps(event))
    variables = {
        **os.environ,
        "STEELYARD_LOCK": str(place / "lock"),
        "PYTHONPATH": str(project),
        "GITHUB_EVENT_PATH": str(place / "event.json"),
        "GITHUB_REPOSITORY": "us/project",
        "GITHUB_OUTPUT": str(place / "outputs"),
        "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
        "GITHUB_WORKSPACE": str(project),
        "BASELINE": event["pull_request"]["base"]["sha"],
        "OPTIONS": "--mode kernel/warm",
        "SUITES": "",
        **environment,
    }
    said, code = "", 0
    outputs = place / "outputs"
    outputs.write_text("")
    for step in workflow()["jobs"][job]["steps"]:
        wanted = "if" not in step or "found=true" in outputs.read_text()
        if "run" in step and step.get("name") != "Set up" and wanted and not code:
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=project,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
            )
            code, said = done.returncode, said + done.stdout + done.stderr
    text = place / "summary.md"
    return SimpleNamespace(
        code=code, said=said, summary=text.read_text() if text.exists() else ""
    )


@pytest.mark.skipif(not STEELYARD.exists(), reason="steelyard is not installed here")
class TestRun:
    """Its steps, with the same scripts."""

    @pytest.mark.measuring
    def test_a_slower_kernel_fails_the_job_until_it_is_accepted(self, project):
        """The annotation, the summary, JUnit and JSON tell one story."""
        done = run_job(project, "measured")
        assert done.code == 1, done.said
        error = next(s for s in done.said.splitlines() if s.startswith("::error "))
        line = SUITE.splitlines().index('@benchmark(impl=["ours", "numpy"])') + 1
        assert re.match(rf"::error file=suites/tiny\.py,line={line},", error), error
        assert "total[impl=ours] kernel/warm%3A regression" in error
        assert done.summary.startswith(gate_markdown.MARKER)
        assert "`total[impl=ours]`" in done.summary
        assert "changed: work.py" in done.summary
        place = project / "gate" / "measured"
        outcome = document.read(place / "gate.json")
        assert outcome.exit_code == 1
        verdicts = {one.case: one for one in outcome.findings}
        assert verdicts["total[impl=ours]"].regressed
        assert not verdicts["total[impl=numpy]"].regressed
        root = junit_schema.check((place / "junit.xml").read_text())
        failed = [
            c.get("name") for c in root.iter("testcase") if len(c.findall("failure"))
        ]
        assert "total[impl=ours] kernel/warm" in failed
        self.accept_and_run_again(project, place / "gate.json")

    def accept_and_run_again(self, project, outcome):
        """Accept in the policy: part of the pull request, it is reviewed there."""
        command = [
            STEELYARD,
            "accept",
            "total[impl=ours]",
            "--reason",
            "three is right",
        ]
        done = subprocess.run(
            [*command, "--from", outcome],
            cwd=project,
            check=True,
            capture_output=True,
            text=True,
        )
        assert "slower, accepted in" in done.stdout
        assert "three is right" in (project / "ci" / "policy.toml").read_text()
        again = run_job(project, "measured")
        (found,) = (
            one
            for one in document.read(outcome).findings
            if one.case == "total[impl=ours]"
        )
        assert found.accepted, again.said

    def test_a_forks_code_is_refused_before_anything_runs(self, project):
        """No suite is imported, and no outcome is left."""
        done = run_job(project, "measured", fork=True)
        assert done.code == 4
        assert "this is a fork's code" in done.said
        assert "block" not in done.said
        assert not (project / "gate" / "measured" / "gate.json").exists()

    def test_a_forks_code_is_compared_statically(self, project):
        """That lane runs on a machine of GitHub's, and none of its kernels."""
        done = run_job(project, "static", fork=True)
        assert "this is a fork's code" not in done.said
        assert done.summary.startswith(gate_markdown.MARKER)
        assert (project / "gate" / "static" / "junit.xml").exists()

    def test_a_baseline_that_is_no_commit_ends_with_4_and_says_so(self, project):
        """An annotation, a summary, and no verdict of an older run."""
        stale = project / "gate" / "measured" / "gate.json"
        stale.parent.mkdir(parents=True)
        stale.write_text(document.dumps(document.Outcome("main", "old")))
        done = run_job(project, "measured", BASELINE="0" * 40)
        assert done.code == 4, done.said
        assert "::error title=steelyard gate::" in done.said
        assert document.read(stale).exit_code == 4

    def test_a_repository_without_a_lock_file_has_nothing_to_compare(self, project):
        """The lane ends well without setting anything up, so that measuring follows."""
        git(project, "rm", "-q", "ci/kernels.lock")
        git(project, "commit", "-m", "no lock")
        git(project, "commit", "--allow-empty", "-m", "head")
        done = run_job(project, "static")
        assert (done.code, done.summary) == (0, ""), done.said

    def test_an_empty_baseline_is_no_verdict(self, project):
        """A push that calls the workflow has no pull request to take one from."""
        assert run_job(project, "static", BASELINE="").code != 0
        for lane in ("static", "gate"):
            done = subprocess.run(
                [STEELYARD, "gate", "", "--lane", lane],
                cwd=project,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stdout) == (4, "")
            assert "the baseline is empty" in done.stderr


@pytest.mark.parametrize(
    "event",
    [
        {"pull_request": {"head": {"repo": {"full_name": "somebody/fork"}}}},
        {"pull_request": {"head": {"repo": None}}},
        {"workflow_run": {"head_repository": {"full_name": "somebody/fork"}}},
        {"issue": {"pull_request": {"url": "x"}}, "comment": {"body": "/gate"}},
        ["no event"],
    ],
)
def test_an_event_whose_code_may_be_a_forks_runs_nothing(event, tmp_path):
    """A deleted fork, a run of another workflow and a comment included."""
    place = tmp_path / "event.json"
    place.write_text(json.dumps(event))
    told = {"GITHUB_EVENT_PATH": str(place), "GITHUB_REPOSITORY": "us/project"}
    with pytest.raises(SteelyardError, match="not run"):
        ci.require_own_code(told)


@pytest.mark.parametrize(
    "event", [{"ref": "refs/heads/main"}, {"schedule": "0 0 * * *"}]
)
def test_an_event_of_this_repository_runs(event, tmp_path):
    """A push and a schedule have no other code than the repository's own."""
    place = tmp_path / "event.json"
    place.write_text(json.dumps(event))
    ci.require_own_code(
        {"GITHUB_EVENT_PATH": str(place), "GITHUB_REPOSITORY": "us/project"}
    )


FAKE_GH = """#!/usr/bin/env bash
if test "$2" = --method; then printf '%s ' "$@" >> "$GH_CALLS"
elif test -n "$GH_OWN"; then echo "$GH_OWN"; fi
"""
FAKE_JQ = """#!/usr/bin/env python3
import json, sys
print(json.dumps({"body": open(sys.argv[-1]).read()[:65000]}))
"""


@pytest.mark.parametrize(
    ("own", "call"),
    [
        ("", "api --method POST repos/us/project/issues/7/comments"),
        ("42", "api --method PATCH repos/us/project/issues/comments/42"),
    ],
)
def test_a_comment_replaces_its_own_and_no_other(own, call, tmp_path):
    """Found by its first line, and never longer than GitHub takes."""
    (step,) = (s for s in workflow()["jobs"]["comment"]["steps"] if "run" in s)
    assert gate_markdown.MARKER in step["run"]
    for lane in ("static", "measured"):
        (tmp_path / "gate" / lane).mkdir(parents=True)
        place = tmp_path / "gate" / lane / "summary.md"
        place.write_text(f"{gate_markdown.MARKER}\n" + "x" * gate_markdown.MOST)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"gh": FAKE_GH, "jq": FAKE_JQ}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=tmp_path,
        check=True,
        env=os.environ
        | {"PATH": f"{tools}:{os.environ['PATH']}", "GH_OWN": own, "NUMBER": "7"}
        | {"REPOSITORY": "us/project", "GH_CALLS": str(tmp_path / "calls")},
    )
    assert (tmp_path / "calls").read_text().startswith(call)
    assert len(json.loads((tmp_path / "comment.json").read_text())["body"]) < 65_536


def test_every_action_is_pinned_by_its_commit():
    """A tag can be moved to other code."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for used in re.findall(r"- uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), (path.name, used)


def test_only_the_measuring_job_may_run_on_our_machine_and_not_for_a_fork():
    """The others name GitHub's; nothing is triggered that has a fork's code and secrets."""
    found = workflow()
    assert set(found["on"]) == {"pull_request", "workflow_call"}
    jobs = found["jobs"]
    assert {name for name, job in jobs.items() if "inputs" in job["runs-on"]} == {
        "measured"
    }
    condition = " ".join(jobs["measured"]["if"].split())
    assert (
        "github.event.pull_request.head.repo.full_name == github.repository"
        in condition
    )
    assert condition.startswith("inputs.runner != '' && (")


def test_no_job_has_both_a_pull_requests_code_and_a_token_that_writes():
    """The one that comments checks nothing out; the others cannot write."""
    found = workflow()
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        checkouts = [s for s in job["steps"] if "checkout" in s.get("uses", "")]
        assert not (checkouts and "permissions" in job)
        assert all(s["with"]["persist-credentials"] is False for s in checkouts)


def test_no_step_pastes_what_others_wrote_into_a_shell():
    """Names of branches come as variables; set-up is the caller's own input."""
    for job in workflow()["jobs"].values():
        for step in job["steps"]:
            pasted = re.findall(r"\$\{\{(.*?)\}\}", step.get("run", ""))
            assert all(one.strip().startswith("inputs.setup") for one in pasted)
