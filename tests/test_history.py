"""`steelyard history`: a case over the stored runs."""

import random
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import trials
from click.testing import CliRunner

from steelyard import cli
from steelyard.errors import SteelyardError
from steelyard.history import history
from steelyard.report import chart
from steelyard.store import Store

CASE = "copy[n=1024,impl=numpy]"


@pytest.fixture
def store(tmp_path):
    """Open an empty store."""
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


def add(store, index, time, *, machine=None, tags=(), case=CASE, **changes):
    """Store a run of one trial that took about ``time`` nanoseconds."""
    run = trials.run(
        uid=f"{index:032x}",
        started=f"2026-01-01T{index // 60:02}:{index % 60:02}:00+00:00",
        commit=f"{index:040x}",
        state="finished",
        tags=tags,
    )
    if machine:
        identity = {**run.machine["identity"], "id": machine}
        run = replace(run, machine={**run.machine, "identity": identity})
    store.begin(run)
    store.add(run.uid, trials.trial(case, [round(time)] * 20, **changes))


def planted(store, count=24, at=12, change=1.1):
    """Store runs whose times step at one of them."""
    draw = random.Random(0)
    for index in range(count):
        level = 1e5 * (change if index >= at else 1)
        add(store, index, level * (1 + draw.gauss(0, 0.005)))


def test_a_planted_regression_is_told_with_its_commits(store):
    """The one before it, and the first that has it."""
    planted(store)
    found = history(store, CASE, None, None)
    (step,) = found.steps
    assert step.at == 12
    line = chart.said(found, step)
    assert line.startswith(f"{step.change:.1%} slower")
    assert "between 0000000000 and 0000000000" in line


def test_runs_of_another_machine_or_method_are_left_out(store):
    """They would be steps of the measuring, and are counted."""
    planted(store)
    add(store, 30, 5e5, machine="ba9876543210")
    add(store, 31, 5e5, hashes={"method": "0"})
    add(store, 32, 1.1e5)
    found = history(store, CASE, None, None)
    assert (len(found.points), found.left_out) == (25, 2)
    assert len(found.steps) == 1


def test_only_runs_of_a_tag_are_looked_at(store):
    """Such as those of one branch."""
    planted(store)
    add(store, 40, 1e5, tags=("main",))
    assert len(history(store, CASE, None, "main").points) == 1


@pytest.mark.parametrize(
    ("case", "mode", "tag", "said"),
    [
        ("copi", None, None, "The nearest is copy"),
        (CASE, "latency/warm", None, "it was in kernel/warm"),
        (CASE, None, "nightly", "has the tag 'nightly'"),
    ],
)
def test_what_there_is_not_is_one_sentence(store, case, mode, tag, said):
    """It names the nearest, or what there is."""
    add(store, 0, 1e5)
    with pytest.raises(SteelyardError, match=said):
        history(store, case, mode, tag)


def test_one_run_and_equal_times_can_be_drawn(store):
    """Nothing is divided by their range."""
    add(store, 0, 1e5)
    found = history(store, CASE, None, None)
    assert "no step" in list(chart.lines(found, 80))[-1]
    assert chart.svg(found).startswith("<svg")


def test_the_svg_is_one_and_has_every_run(store):
    """Whatever characters a case has in its id."""
    planted(store)
    add(store, 50, 1e5, case="x[s=<&>]")
    drawn = ET.fromstring(chart.svg(history(store, CASE, None, None)))
    assert len(drawn.findall(".//{*}circle")) == 24
    ET.fromstring(chart.svg(history(store, "x[s=<&>]", None, None)))


def test_the_command_draws_and_writes(store, tmp_path, golden):
    """As text, and to a file where one is named."""
    planted(store)
    file = tmp_path / "history.svg"
    done = CliRunner().invoke(
        cli.main, ["history", CASE, "--store", store.name, "--svg", str(file)]
    )
    assert done.exit_code == 0, done.output
    golden(done.output, "history")
    assert file.read_text().endswith("</svg>\n")


def test_a_picture_that_cannot_be_written_is_an_error(store, tmp_path):
    """It names the file."""
    add(store, 0, 1e5)
    done = CliRunner().invoke(
        cli.main,
        ["history", CASE, "--store", store.name, "--svg", str(tmp_path / "no/x.svg")],
    )
    assert done.exit_code != 0
