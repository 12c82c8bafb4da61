"""asv over commits: two alike, one with known extra work, and what of it is told."""

import json
import math
import re

import asv_bars
import asv_commits
import pytest
import shell

from steelyard.errors import SteelyardError
from steelyard.store.imports import asv
from steelyard.store.series import histories

PLANTED = asv_commits.PLANTED
CHANGE = 1.0
"""Of the planted work; tests/asv_bars.py plants 10 %, on a machine left alone."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a repository of ten commits, and them; seven rounds are asv's fewest."""
    folder = tmp_path_factory.mktemp("asv") / "repository"
    commits = asv_commits.make(folder, CHANGE, rounds=7)
    asv_commits.asv(folder, "machine", "--yes")
    return folder, commits


@pytest.mark.measuring
def test_continuous_lets_equal_code_pass(made):
    """And measures nothing that -b leaves out."""
    folder, commits = made
    chosen = ["-b", "work.*'steady'", "--show-stderr"]
    done = asv_commits.asv(folder, "continuous", *chosen, commits[4], commits[5])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT SIGNIFICANTLY CHANGED" in done.stdout


@pytest.mark.measuring
def test_continuous_finds_the_case_with_more_work(made):
    """One process a round, in turn, and one sample each."""
    folder, commits = made
    before, after = commits[PLANTED - 1], commits[PLANTED]
    done = asv_commits.asv(folder, "continuous", before, after)
    assert done.returncode == 1, done.stdout + done.stderr
    worse = [line for line in done.stdout.splitlines() if line.startswith("| +")]
    assert len(worse) == 1
    assert asv_bars.SLOWER in worse[0]
    (kept,) = (folder / ".asv" / "results").glob(f"*/{after[:8]}-*.json")
    stored = json.loads(kept.read_text())
    row = dict(zip(stored["result_columns"], *stored["results"].values(), strict=False))
    assert [len(samples) for samples in row["samples"]] == [7, 7]


@pytest.mark.measuring
def test_publish_and_history_find_the_commit(made):
    """From a number a commit: asv's page of regressions, and ours of its results."""
    folder, commits = made
    found = asv_bars.history(folder, commits)
    assert (found["set up"], found["bar met"]) == (len(commits), True), found


@pytest.fixture
def results(tmp_path):
    """Return a folder of results as asv keeps them, of twelve commits."""
    benchmarks = {"version": 2, "time_it": {"unit": "seconds"}, "size": {"unit": "b"}}
    (tmp_path / "benchmarks.json").write_text(json.dumps(benchmarks))
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "machine.json").write_text("{}")
    for day in range(12):
        write(tmp_path, day, [1e-6 * (1.5 if day > 5 else 1), math.nan, None])
    return tmp_path


def write(folder, day, values, **changes):
    """Write a result of three points of one benchmark."""
    content = {
        "version": 2,
        "commit_hash": f"{day:02x}" * 20,
        "date": 86_400_000 * day,
        "env_name": "py",
        "result_columns": ["result", "params", "version", "stats_ci_99_a"],
        "results": {
            "time_it": [values, [["1", "2", "3"]], "v1", [-math.inf, None, 0.9e-6]],
            "size": [[5], [], "v1"],
        },
    }
    file = folder / "box" / f"{day}.json"
    file.write_text(json.dumps(content | changes))


def test_results_of_asv_are_times_failures_and_skipped_points(results):
    """What is no time is left out; what failed is no point, and said."""
    one, failed = histories(asv.measured(results))
    assert (one.case, len(one.points), one.failed) == ("time_it(1)", 12, 0)
    assert [step.at for step in one.steps] == [6]
    assert one.points[0].estimate.low == one.points[0].estimate.value == 1e3
    assert (failed.case, failed.failed) == ("time_it(3)", 12)


def test_results_stand_in_the_order_of_a_branch_where_one_is_named(results):
    """Others are out."""
    commits = [f"{day:02x}" * 20 for day in (3, 1, 7)]
    one, _ = histories(asv.measured(results, commits))
    assert [point.commit for point in one.points] == commits


def test_another_version_of_a_benchmark_is_of_another_series(results):
    """As of another machine or environment."""
    write(results, 13, [1e-6, math.nan, None], env_name="other")
    one, _ = histories(asv.measured(results))
    assert (len(one.points), one.left_out) == (1, 12)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no result of asv"),
        ('{"version": 2, "comm', "is no result of asv"),
        ("[]", "it holds no object"),
        ('{"version": 3}', "version 3"),
        ("{}", "version None"),
        ('{"version": 2, "commit_hash": "a"}', "it has no date"),
    ],
)
def test_a_file_that_is_no_result_is_named(results, content, said):
    """Truncated, foreign or newer."""
    (results / "box" / "99.json").write_text(content)
    with pytest.raises(SteelyardError, match=f"99.json .*{said}"):
        asv.measured(results)


def test_points_without_their_results_are_not_guessed(results):
    """A row is cut where it ends in nothing, not where it ends early."""
    write(results, 20, [1e-6])
    with pytest.raises(SteelyardError, match="1 results of 3 points"):
        asv.measured(results)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no nowhere"),
        (["{results}", "copy"], "it has time_it\\(1\\)"),
        (["{results}", "--tag=main"], "--tag is of the store's runs"),
        (["{results}", "time_it(3)"], "failed in all 12 runs"),
    ],
)
def test_what_asv_has_not_is_one_sentence(results, words, said):
    """With exit code 4."""
    words = [word.format(results=results) for word in words]
    done = shell.command("history", "--asv", *words, code=4)
    assert re.search(said, done.output)
