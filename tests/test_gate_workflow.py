"""The workflow of the gate, run step by step as its file says, without its runner."""

import json
import os
import re
import shutil
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlparse

import junit_schema
import outcomes
import pytest
import shell
from shell import git

from steelyard.errors import SteelyardError
from steelyard.gate import document, words
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
    """Make a repository with our scripts, a suite, and a change that triples work."""
    home = tmp_path / "project"
    (home / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "kernels.lock", home / "ci")
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "steelyard").symlink_to(STEELYARD)
    texts = {
        "work.py": WORK,
        "suites/tiny.py": SUITE,
        "pyproject.toml": "[tool.steelyard]\n",
        ".gitignore": ".steelyard/\ngate/\n__pycache__/\n.venv/\n",
    }
    shell.commit(shell.files(home, texts), "base")
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
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(project), os.environ.get("PYTHONPATH")])
        ),
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
            command = ["bash", "-e", "-c", step["run"]]
            done = shell.run(command, project, variables, check=False)
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
        case, reason = "total[impl=ours]", "three is right"
        command = [STEELYARD, "accept", case, "--reason", reason, "--from", outcome]
        done = shell.run(command, project)
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

    def test_a_forks_code_is_compared_statically_and_commented_on(
        self, project, tmp_path
    ):
        """That lane runs on a machine of GitHub's, and none of its kernels."""
        done = run_job(project, "static", fork=True)
        assert "this is a fork's code" not in done.said
        assert done.summary.startswith(gate_markdown.MARKER)
        assert (project / "gate" / "static" / "junit.xml").exists()
        self.comment_once_and_replace_it(project, tmp_path / "work")
        self.hold_the_lock_file_against_these_sources(project)

    def comment_once_and_replace_it(self, project, work):
        """By the workflow's own step; 120 other comments are there."""
        quoted = comment(5, "somebody", f"{gate_markdown.MARKER} is how it begins")
        others = [comment(n, "somebody", "fine") for n in range(10, 130)]
        answer = comment(6, BOT, f"Deployed. {gate_markdown.MARKER}")
        shutil.copytree(project / "gate" / "static", work / "gate" / "static")
        with GitHub(quoted, answer, *others) as api:
            done = say(work, api)
            assert done.returncode == 0, done.stderr
            (_, first) = api.bodies
            lines = first.splitlines()
            assert lines[0] == gate_markdown.MARKER
            assert lines[1].startswith("### steelyard: ")
            assert first.count(gate_markdown.MARKER) == 1
            assert "[Every row: report.html](https://github.com/r/2)" in first
            page = work / "gate" / "static" / "report.html"
            assert page.stat().st_size > 1000
            again = say(work, api, STATIC="https://github.com/r/3")
            assert again.returncode == 0, again.stderr
            assert len(api.bodies) == 2
            assert api.bodies[1] == first.replace("/r/2", "/r/3")
        asked = [api.asked.count((how, 200)) for how in ("POST", "PATCH")]
        assert asked == [1, 1]
        assert [c["body"] for c in api.comments[:2]] == [quoted["body"], answer["body"]]

    def hold_the_lock_file_against_these_sources(self, project):
        """After a wanted change of code: `steelyard lock`, and read the difference."""
        pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
        found = document.read(project / "gate" / "static" / "gate.json")
        if found.problem is not None and "install that one" in str(found.problem):
            pytest.skip(str(found.problem))
        assert found.problem is None
        assert found.findings
        assert found.static == ()
        assert [one.note for one in found.findings if one.verdict is None] == []

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
            command = [STEELYARD, "gate", "", "--lane", lane]
            done = shell.run(command, project, check=False)
            assert (done.returncode, done.stdout) == (4, "")
            assert "the baseline is empty" in done.stderr


@pytest.mark.parametrize(
    ("event", "own"),
    [
        ({"pull_request": {"head": {"repo": {"full_name": "somebody/fork"}}}}, False),
        ({"pull_request": {"head": {"repo": None}}}, False),
        ({"workflow_run": {"head_repository": {"full_name": "a/fork"}}}, False),
        ({"issue": {"pull_request": {"url": "x"}}, "comment": {}}, False),
        (["no event"], False),
        ({"ref": "refs/heads/main"}, True),
        ({"schedule": "0 0 * * *"}, True),
    ],
)
def test_an_event_whose_code_may_be_a_forks_runs_nothing(
    event, own, tmp_path, monkeypatch
):
    """A deleted fork, a run of another workflow and a comment included.

    A push and a schedule have no other code than the repository's own.
    """
    place = tmp_path / "event.json"
    place.write_text(json.dumps(event))
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(place))
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/project")
    with nullcontext() if own else pytest.raises(SteelyardError, match="not run"):
        ci.require_own_code()


class GitHub(ThreadingHTTPServer):
    """The part of GitHub's API that has comments, 100 a page."""

    def __init__(self, *comments):
        super().__init__(("127.0.0.1", 0), Answers)
        self.comments = list(comments)
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def bodies(self):
        """Return the bodies of comments of the workflow's own user."""
        return [one["body"] for one in self.comments if one["user"]["login"] == BOT]


BOT = "github-actions[bot]"


def comment(number, login, body):
    """Return a comment as the API has it."""
    return {"id": number, "user": {"login": login}, "body": body}


class Answers(BaseHTTPRequestHandler):
    """What it answers: 401 without the token, 404 where there is nothing."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Return a page of comments."""
        query = parse_qs(urlparse(self.path).query)
        size, page = int(query["per_page"][0]), int(query["page"][0])
        self._answer(
            "/issues/7/comments", self.server.comments[(page - 1) * size :][:size]
        )

    def do_POST(self):
        """Add a comment."""
        made = comment(1000 + len(self.server.comments), BOT, self._said())
        if self._answer("/issues/7/comments", made):
            self.server.comments.append(made)

    def do_PATCH(self):
        """Change a comment."""
        number = int(self.path.rpartition("/")[2])
        (found,) = (one for one in self.server.comments if one["id"] == number)
        found["body"] = self._said()
        self._answer(f"/issues/comments/{number}", found)

    def _said(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]

    def _answer(self, path, value):
        right = urlparse(self.path).path == f"/repos/us/project{path}"
        known = self.headers["Authorization"] == "Bearer secret"
        status = 200 if right and known else 404 if known else 401
        self.server.asked.append((self.command, status))
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return status == 200


def say(folder, api, **environment):
    """Run the step that comments, where the artifacts were unpacked."""
    (step,) = (s for s in workflow()["jobs"]["comment"]["steps"] if "run" in s)
    assert step["shell"] == "python"
    names = {"GITHUB_API_URL": f"http://127.0.0.1:{api.server_port}", "NUMBER": "7"}
    names |= {"GITHUB_REPOSITORY": "us/project", "GH_TOKEN": "secret"}
    given = {"MEASURED": "", "STATIC": "https://github.com/r/2", **environment}
    assert set(step["env"]) | set(names) == set(names) | set(given)
    return shell.python("-c", step["run"], folder=folder, **(names | given))


def test_a_comment_has_the_sentence_that_matters_and_one_table(tmp_path):
    """What was measured comes first, and it is never longer than GitHub takes."""
    made = outcomes.outcome(*outcomes.EVERY, static=outcomes.STATIC)
    texts = {"measured": gate_markdown.dumps(made)}
    texts["static"] = f"{gate_markdown.MARKER}\n### steelyard: x\n" + "y" * 40_000
    for lane, text in texts.items():
        (tmp_path / "gate" / lane).mkdir(parents=True)
        (tmp_path / "gate" / lane / "summary.md").write_text(text)
    with GitHub() as api:
        done = say(tmp_path, api, MEASURED="https://github.com/r/1")
        assert done.returncode == 0, done.stderr
        (body,) = api.bodies
    assert len(body) < 65_536
    head, *rest = body.split("\n\n")
    worst = words.in_order(made)[0]
    assert head.startswith(
        f"{gate_markdown.MARKER}\n### steelyard: {words.ending(made)}"
    )
    assert rest[0].startswith("**")
    assert worst.case.partition("[")[0] in rest[0]
    assert len(re.findall(r"^\| --- \|", body, re.MULTILINE)) == 1
    assert body.index("/r/1") < body.index("### steelyard: x")


def test_a_comment_without_the_right_to_write_one_fails(tmp_path):
    """Loudly: a token that cannot write is a mistake in the workflow."""
    (tmp_path / "gate" / "static").mkdir(parents=True)
    (tmp_path / "gate" / "static" / "summary.md").write_text("x")
    with GitHub() as api:
        assert say(tmp_path, api, GH_TOKEN="other").returncode != 0
        shutil.rmtree(tmp_path / "gate")
        assert say(tmp_path, api, GH_TOKEN="other").returncode == 0  # nothing to say
    assert api.bodies == []


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
