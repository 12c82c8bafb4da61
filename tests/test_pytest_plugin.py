"""The plugin is seen from outside: a run of pytest on a small project."""

import json
import os
import statistics
from types import SimpleNamespace

import pytest
import shell

from steelyard.declare import discovery
from steelyard.machine import lock

TINY = """
import numpy as np
from steelyard import benchmark

@benchmark(n=[10, 1000], impl=["copyto", "assign"])
def move(b, n, impl):
    x = b.input(n)
    y = b.output(n)
    b.check(lambda x: x, x)
    b.mode("kernel/warm")
    if impl == "copyto":
        b.mode("latency/warm")
        return b.launch(np.copyto, y, x)
    return b.launch(lambda x, y: np.add(x, 0, out=y), x, y)
"""

BROKEN = """
from steelyard import benchmark

@benchmark(kind=["fine", "wrong", "raises"])
def broken(b, kind):
    x = b.input(10)
    y = b.output(10)
    b.check(lambda x: x, x)
    b.mode("kernel/warm")

    def work(x, out):
        if kind == "raises":
            raise ZeroDivisionError("no divisor")
        out[:] = x + (kind == "wrong")

    return b.launch(work, x, out=y)

@benchmark
def undescribed(b):
    raise LookupError("no such peer")
"""


ON_GPU = """
from steelyard import benchmark

@benchmark
def onboard(b):
    b.on("cuda")
    x = b.input(10)
    y = b.output(10)
    return b.launch(print, x, y)
"""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "fresh": True}


def made(folder):
    """Make a project with two suites, a module of helpers and one ordinary test."""
    texts = {
        "pytest.ini": "[pytest]\nsteelyard_suites = suites\n",
        "suites/tiny.py": TINY,
        "suites/broken.py": BROKEN,
        "suites/helpers.py": "ROWS = 3",
        "test_ordinary.py": "def test_ordinary(): pass",
    }
    return shell.files(folder, texts)


@pytest.fixture
def project(tmp_path):
    """Return such a project."""
    return made(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure all suites of such a project and a case of a GPU; keep the run as before."""
    project = made(tmp_path_factory.mktemp("measured"))
    (project / "suites" / "onboard.py").write_text(ON_GPU)
    how = ("--benchmark-only", "--benchmark-json=report.json", "-rs")
    done = run_pytest(project, "suites", *how, "--benchmark-save=before", **NO_GPU)
    (project / "report.json").unlink()
    return project, done


def run_pytest(project, *arguments, **how):
    """Run pytest there; return its exit code, all that it says, and its rows."""
    done = shell.pytest_in(project, *arguments, **how)
    report = project / "report.json"
    rows = json.loads(report.read_text())["benchmarks"] if report.exists() else []
    return SimpleNamespace(
        code=done.returncode,
        text=done.stdout + done.stderr,
        rows={row["name"]: row for row in rows},
    )


def test_each_case_in_each_mode_is_a_row_of_our_samples(measured):
    """The table and the JSON hold what our clock read, not what pytest-benchmark did."""
    _, done = measured
    assert set(done.rows) == {
        "move[n=10,impl=copyto,kernel/warm]",
        "move[n=10,impl=copyto,latency/warm]",
        "move[n=10,impl=assign]",
        "move[n=1000,impl=copyto,kernel/warm]",
        "move[n=1000,impl=copyto,latency/warm]",
        "move[n=1000,impl=assign]",
        "broken[kind=fine]",
    }
    assert "benchmark 'move n=1000 kernel/warm': 2 tests" in done.text
    row = done.rows["move[n=1000,impl=assign]"]
    facts, stats = row["extra_info"], row["stats"]
    assert row["options"]["timer"] == "steelyard"
    assert len(stats["data"]) == stats["rounds"] > 5
    assert stats["iterations"] > 1
    assert facts["estimate"] == pytest.approx(statistics.median(stats["data"]))
    assert 0 < facts["low"] <= facts["estimate"] <= facts["high"]
    assert facts["bytes"] == 8000
    assert facts["axes"] == {"n": 1000, "impl": "assign"}
    assert facts["code_hash"] is None
    assert set(facts["floor"]) == {"empty", "call"}
    assert isinstance(facts["doubts"], list)


def test_a_failing_case_fails_its_test_with_its_sentence_only(measured):
    """No traceback of ours is shown, and the other cases are measured all the same."""
    _, done = measured
    assert done.code == 1, done.text
    assert "broken[kind=wrong]: y is wrong in 10 of 10 elements" in done.text
    assert "broken[kind=raises]: the work raised ZeroDivisionError: no" in done.text
    assert "undescribed raised LookupError: no such peer (broken.py:" in done.text
    assert "4 failed, 7 passed, 2 skipped" in done.text
    assert "Traceback" not in done.text
    failures, _, skips = done.text.partition("short test summary")
    assert "pytest_plugin.py" not in failures
    assert "1 case needs a GPU: " in skips


def test_a_suite_that_cannot_be_imported_is_a_collection_error(project):
    """The error is one sentence with the line of the suite."""
    (project / "suites" / "absent.py").write_text(f"import no_such_package\n{TINY}")
    done = run_pytest(project, "suites/absent.py", "--benchmark-only")
    assert done.code == 2, done.text
    assert "absent.py could not be imported: ModuleNotFoundError" in done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize("argument", [(), (".",)])
def test_suites_are_left_alone_unless_they_are_asked_for(project, argument):
    """A run that does not name the folder collects none of it."""
    done = run_pytest(project, *argument, "--collect-only", "-q")
    assert done.code == 0, done.text
    assert "1 test collected" in done.text
    (project / "test_ordinary.py").unlink()
    done = run_pytest(project, *argument, "--collect-only", "-q")
    assert done.code == 5, done.text
    assert f"where they are named: pytest {project / 'suites'}" in done.text
    assert "[tool.steelyard]" not in done.text  # it names them already


def test_suites_are_what_the_project_names(project):
    """By the ini option or in [tool.steelyard]; no folder is one by its name.

    Pointed at benchmarks that the project does not name, pytest says what to do.
    """
    (project / "suites").rename(project / "measured")
    tiny = ("measured/tiny.py", "--collect-only", "-q")
    (project / "pytest.ini").write_text("[pytest]\nsteelyard_suites = measured\n")
    assert "6 tests collected" in run_pytest(project, *tiny).text
    (project / "pytest.ini").write_text("[pytest]\n")
    done = run_pytest(project, *tiny)
    assert done.code == 5, done.text
    assert 'suites = ["measured/tiny.py"] in [tool.steelyard]' in done.text
    table = '[tool.steelyard]\nsuites = ["measured"]\n'
    (project / "pyproject.toml").write_text(table)
    assert "6 tests collected" in run_pytest(project, *tiny).text


ORDINARY = """
def test_right(): pass

def test_wrong(): assert False
"""


@pytest.mark.parametrize("named", [False, True], ids=["not named", "named"])
def test_other_people_s_tests_in_a_folder_of_suites_stay_theirs(project, named):
    """A failing one fails, whatever the folder is called and whoever named it.

    A script beside them, and one that mentions steelyard, is never imported. A file
    with tests and benchmarks gives both, and its tests are selected by their ids.
    """
    suites = project / "suites"
    if not named:
        (project / "pytest.ini").write_text("[pytest]\n")
    (suites / "test_real.py").write_text(f"# not steelyard's benchmark\n{ORDINARY}")
    (suites / "test_both.py").write_text(f"{TINY}\n{ORDINARY}")
    (suites / "script.py").write_text("import steelyard\nraise SystemExit('ran')")
    (suites / "helpers.py").write_text("raise SystemExit('ran')")
    (suites / "broken.py").unlink()
    done = run_pytest(project, "suites", "--benchmark-disable")
    passed = 2 + 6 * 2 if named else 2
    assert f"2 failed, {passed} passed" in done.text, done.text
    assert done.code == 1
    assert "ran" not in done.text.replace("rerun", "")
    if named:
        done = run_pytest(project, "suites/test_both.py::test_wrong")
        assert "1 failed in" in done.text, done.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import steelyard as s\n@s.benchmark(n=[1])\ndef f(b, n): ...", True),
        ("from steelyard import benchmark as mark\nf = mark(n=[1])(g)", True),
        ("from steelyard.benchmark import benchmark\nmake(benchmark)", True),
        (
            "import steelyard.benchmark\n@steelyard.benchmark.benchmark\ndef f(b): 0",
            True,
        ),
        ("from steelyard import *\n@benchmark\ndef f(b): ...", True),
        ("from steelyard import benchmark\ndef f(:", True),
        ("from steelyard import benchmark", False),
        ("from steelyard import asv\nasv.families(__file__)", False),
        ("# steelyard\ndef test(benchmark): benchmark(print)", False),
        ("import steelyard\ndef test(benchmark): benchmark(print)", False),
        ("from other import benchmark  # no steelyard\nbenchmark(1)", False),
        ("def f(:", False),
    ],
)
def test_a_file_with_benchmarks_is_known_without_importing_it(tmp_path, text, found):
    """Under whatever name it has the decorator."""
    (tmp_path / "one.py").write_text(text)
    assert discovery.defines(tmp_path / "one.py") is found


def test_cases_are_selected_by_keyword_and_by_node_id(project):
    """-k sees axes and modes; the printed id selects its test."""
    words = "copyto and latency/warm and not 1000"
    done = run_pytest(project, "suites", "--collect-only", "-q", "-k", words)
    assert "1/11 tests collected" in done.text
    one = "suites/tiny.py::move[n=10,impl=copyto,latency/warm]"
    assert "1 test collected" in run_pytest(project, one, "--collect-only", "-q").text


def test_results_group_by_axis_and_compare_with_a_saved_run(measured):
    """What pytest-benchmark offers on parametrised tests works on cases."""
    how = ("--benchmark-only", "--benchmark-compare", "--benchmark-group-by=param:impl")
    done = run_pytest(measured[0], "suites/tiny.py", *how, "-k", "not 1000")
    assert done.code == 0, done.text
    assert "benchmark 'impl=assign': 2 tests" in done.text
    assert "(NOW)" in done.text
    assert "(0001_before)" in done.text


def test_a_suite_says_what_is_missing_without_pytest_benchmark(project):
    """Ordinary tests run; a suite names the extra to install."""
    plain = run_pytest(project, "-p", "no:benchmark")
    assert plain.code == 0, plain.text
    done = run_pytest(project, "suites", "-p", "no:benchmark")
    assert done.code == 2, done.text
    assert '[pytest]", or use `steelyard run`.' in done.text
    assert "helpers.py" not in done.text


@pytest.mark.parametrize(
    ("option", "environment"),
    [("--benchmark-disable", {}), ("--strict-markers", {"PYTEST_XDIST_WORKER": "gw1"})],
    ids=["disabled", "under xdist"],
)
def test_cases_are_only_checked_where_benchmarks_are_disabled(
    project, option, environment
):
    """Each is launched once, a wrong one fails, and there are no rows."""
    (project / "suites" / "onboard.py").write_text(ON_GPU)
    done = run_pytest(project, "suites", option, "-rs", **environment, **NO_GPU)
    assert done.code == 1, done.text
    assert "broken[kind=wrong]: y is wrong in 10 of 10 elements" in done.text
    assert "4 failed, 7 passed, 2 skipped" in done.text
    assert "1 case needs a GPU: " in done.text
    assert done.rows == {}


def test_two_runs_never_measure_at_once(project):
    """While another process holds the machine, a test fails and says who that is."""
    with lock.measuring(path=project / "lock"):
        done = run_pytest(project, "suites/tiny.py", "--benchmark-only", "-k", "assign")
    assert done.code == 1, done.text
    assert f"another run measures on this machine: process {os.getpid()}" in done.text


def test_the_project_s_settings_hold_here_too(project):
    """A key of [tool.steelyard] that no command knows is refused here as well."""
    (project / "pyproject.toml").write_text("[tool.steelyard]\nprecison = 1\n")
    done = run_pytest(project, "suites/tiny.py", "--benchmark-only", "-k", "assign")
    assert done.code == 1, done.text
    assert "Did you mean precision?" in done.text


def test_loading_the_plugin_imports_nothing_heavy():
    """Every run of pytest of everybody who installed steelyard loads it."""
    script = (
        "import sys, pytest; before = set(sys.modules); import steelyard.plugins.pytest_plugin;"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = shell.python("-W", "error", "-c", script, check=True)
    loaded = set(done.stdout.split())
    assert "steelyard" in loaded
    assert not loaded & {"numpy", "llvmlite", "sqlalchemy", "rich", "psutil", "click"}
