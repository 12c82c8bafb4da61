"""`steelyard init` in repositories of all kinds."""

import pytest
import shell
import yaml
from shell import git

from steelyard.commands import init
from steelyard.declare import config, discovery
from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase

FLAT = '[project]\nname = "mine"\nversion = "1"\n'


def started(folder):
    """Run it there; return what it printed."""
    return shell.command("init", folder).output


def contents(folder):
    """Return every file below a folder with its bytes."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_an_empty_folder_gets_a_suite_that_is_found_and_right(tmp_path):
    """The configuration names it, from anywhere in the project."""
    started(tmp_path)
    chosen = config.load(folder=tmp_path / "benchmarks")
    assert chosen.suites == (str(tmp_path / "benchmarks"),)
    (found,) = discovery.discover(list(chosen.suites))
    assert [case.id for case in found.cases()] == [
        "softmax_rows[columns=128]",
        "softmax_rows[columns=1024]",
    ]
    assert PreparedCase(found.cases()[0], Settings()).checked


def test_nothing_is_overwritten_and_a_second_time_changes_nothing(tmp_path):
    """Files of the user's are kept; the two that are added to keep what they had."""
    texts = {
        init.SUITE: "# mine\n",
        init.WORKFLOW: "# mine too\n",
        "pyproject.toml": FLAT.rstrip(),
        ".gitignore": "*.o",
    }
    shell.files(tmp_path, texts)
    said = started(tmp_path)
    assert (tmp_path / init.SUITE).read_text() == "# mine\n"
    assert (tmp_path / init.WORKFLOW).read_text() == "# mine too\n"
    assert (tmp_path / "pyproject.toml").read_text() == f"{FLAT}\n{init.TABLE}"
    assert (tmp_path / ".gitignore").read_text() == "*.o\n.steelyard/\n"
    assert [line.split()[0] for line in said.splitlines()[:4]] == [
        "kept",
        "wrote",
        "wrote",
        "kept",
    ]
    before = contents(tmp_path)
    again = started(tmp_path)
    assert contents(tmp_path) == before
    assert "wrote" not in again


def test_the_workflow_of_a_folder_is_where_github_looks_for_it(tmp_path):
    """In the repository's root, one for each project, which it works in."""
    git(tmp_path, "init")
    for name in ("one", "two"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        assert f"wrote ../../.github/workflows/steelyard-{name}.yml" in started(
            tmp_path / "packages" / name
        )
    assert not list(tmp_path.rglob("packages/*/.github"))
    workflow = tmp_path / ".github/workflows/steelyard-two.yml"
    job = yaml.safe_load(workflow.read_text())["jobs"]["gate"]
    assert job["defaults"] == {"run": {"working-directory": "packages/two/"}}
    assert job["steps"][-1]["with"]["path"] == "packages/two/gate"


def test_a_configuration_of_the_users_is_kept(tmp_path):
    """Whatever it says."""
    text = '[tool.steelyard]\nsuites = ["perf"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    started(tmp_path)
    assert (tmp_path / "pyproject.toml").read_text() == text


def test_a_project_that_cannot_be_read_is_left_alone(tmp_path):
    """One sentence, and no file beside it."""
    (tmp_path / "pyproject.toml").write_text("[project\n")
    done = shell.command("init", tmp_path, code=4)
    assert "pyproject.toml cannot be read" in done.stderr
    assert contents(tmp_path).keys() == {
        (tmp_path / "pyproject.toml").relative_to(tmp_path)
    }


@pytest.mark.parametrize("project", [FLAT, ""], ids=["a project", "no project"])
def test_the_workflow_installs_the_project_where_there_is_one(tmp_path, project):
    """It is YAML, and gates against the pull request's base."""
    (tmp_path / "pyproject.toml").write_text(project)
    started(tmp_path)
    job = yaml.safe_load((tmp_path / init.WORKFLOW).read_text())["jobs"]["gate"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[0].startswith(
        "python -m pip install -e . " if project else 'python -m pip install "steel'
    )
    assert runs[1] == 'steelyard gate --ci gate --budget 1200 -- "$BASE"'


def test_what_it_says_fits_a_terminal_and_names_the_next_command(tmp_path):
    """80 columns."""
    lines = started(tmp_path).splitlines()
    assert max(map(len, lines)) <= 80 + len(str(tmp_path))
    assert any(
        line.startswith("next: ") and line.endswith("steelyard run") for line in lines
    )
