"""`steelyard history`: a case over the stored runs."""

import itertools
import random
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import shell
import trials
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import SteelyardError
from steelyard.machine import git
from steelyard.report import chart, drawing, scale
from steelyard.store.series import (
    along,
    by_kind,
    chosen,
    histories,
    places,
    stored,
)
from steelyard.store.store import Store

CASE = "copy[n=1024,impl=numpy]"


@pytest.fixture
def store(tmp_path):
    """Open an empty store."""
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


def history(store, case, mode=None, tag=None):
    """Return one case's history."""
    return chosen(histories(stored(store, case, tag)), mode)


def add(store, index, time, *, machine=None, tags=(), case=CASE, beside=(), **changes):
    """Store a run of a trial that took about ``time`` nanoseconds, and of others."""
    run = trials.run(
        uid=f"{index:032x}",
        started=f"2026-01-01T{index // 60:02}:{index % 60:02}:00+00:00",
        commit=f"{index:02x}" * 20,
        state="finished",
        tags=tags,
        dirty=changes.pop("dirty", False),
    )
    if machine:
        identity = {**run.machine["identity"], "id": machine}
        run = replace(run, machine={**run.machine, "identity": identity})
    store.keep(run, [trials.trial(case, [round(time)] * 20, **changes), *beside])


def plant(store, change=1.1, case=CASE):
    """Store 24 runs whose times step at the thirteenth."""
    draw = random.Random(0)
    for index in range(24):
        level = 1e5 * (change if index >= 12 else 1)
        add(store, index, level * (1 + draw.gauss(0, 0.005)), case=case)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """Make a file of a store with a regression."""
    file = tmp_path_factory.mktemp("planted") / "store.db"
    with Store.open(str(file)) as opened:
        plant(opened)
    return file


@pytest.fixture
def planted(regression, tmp_path):
    """Open a copy of it."""
    with Store.open(str(shutil.copy(regression, tmp_path / "planted.db"))) as opened:
        yield opened


def test_a_planted_regression_is_told_with_its_commits(planted):
    """The one before it, and the first that has it."""
    found = history(planted, CASE)
    (step,) = found.steps
    assert step.at == 12
    line = chart.said(found, step)
    assert line.startswith(f"{step.change:.1%} slower")
    assert "between 0b0b0b0b0b and 0c0c0c0c0c" in line


def test_runs_of_another_machine_or_method_are_left_out(planted):
    """They would be steps of the measuring, and are counted."""
    add(planted, 30, 5e5, machine="ba9876543210")
    add(planted, 31, 5e5, hashes={"method": "0"})
    add(planted, 32, 1.1e5)
    found = history(planted, CASE)
    assert (len(found.points), found.left_out) == (25, 2)
    assert len(found.steps) == 1


def test_only_runs_of_a_tag_are_looked_at(store):
    """Those of gates and self-tests, which measure slow code on purpose, only so."""
    for index, tag in enumerate(("", "main", "gate/head", "selftest")):
        add(store, index, 1e5 * (index + 1), tags=(tag,) if tag else ())
    assert len(history(store, CASE).points) == 2
    for tag, time in (("main", 2e5), ("gate/head", 3e5)):
        (point,) = history(store, CASE, tag=tag).points
        assert point.estimate.value == time


@pytest.mark.parametrize(
    ("case", "mode", "tag", "said"),
    [
        ("copi", None, None, "The nearest is copy"),
        (CASE, "latency/warm", None, "it was in kernel/warm"),
        (CASE, None, "nightly", "has the tag 'nightly'"),
        ("crashed", None, None, "failed in all 1 runs"),  # and no empty picture
    ],
)
def test_what_there_is_not_is_one_sentence(store, case, mode, tag, said):
    """It names the nearest, or what there is."""
    add(store, 0, 1e5, beside=[trials.trial("crashed", error="it crashed")])
    with pytest.raises(SteelyardError, match=said):
        history(store, case, mode, tag)


def test_runs_in_which_it_failed_are_said(store):
    """They are no points, and no times of 0 are either."""
    add(store, 0, 1e5)
    add(store, 1, 1e5, error="it crashed")
    add(store, 2, 0)
    found = history(store, CASE)
    assert (len(found.points), found.failed, found.left_out) == (1, 2, 0)
    assert "failed in 2 runs" in list(chart.lines(found, 80))


def test_runs_stand_in_the_order_of_their_commits_on_a_branch(store):
    """An old commit that is measured again is no news; unknown and dirty ones are out."""
    commits = [f"{index:02x}" * 20 for index in (3, 1, 2)]
    for index in (1, 2, 3, 9):
        add(store, index, 1e5 + index)
    runs = store.runs()
    assert [run.commit for run in along(runs, commits)] == commits
    add(store, 20, 1e5, dirty=True)
    dirty = [*commits, f"{20:02x}" * 20]
    assert len(stored(store, CASE, commits=dirty)) == 3
    with pytest.raises(SteelyardError, match="unchanged commit of that branch"):
        stored(store, CASE, commits=["0" * 40])


def test_a_branch_is_read_from_git(store, tmp_path, monkeypatch):
    """Its commits, not those of another; no branch and no repository are sentences."""
    made = [shell.git(tmp_path, "init", "--quiet", "--initial-branch=main")]
    for index, branch in enumerate(("main", "main", "other")):
        shell.git(tmp_path, "checkout", "--quiet", "-B", branch)
        shell.git(tmp_path, "commit", "--allow-empty", "-q", f"-m{index}")
        made.append(shell.git(tmp_path, "rev-parse", "HEAD"))
    assert git.commits("main", tmp_path) == made[1:3]
    assert git.commits("other", tmp_path) == made[1:]
    with pytest.raises(SteelyardError, match="--branch lost: git does not know it"):
        git.commits("lost", tmp_path)
    with pytest.raises(SteelyardError, match="--branch --all: git does not know"):
        git.commits("--all", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SteelyardError, match="does not list its commits"):
        git.commits("main", tmp_path)


def listed(store, *words):
    """Return what the list of `history` prints on 80 columns."""
    done = shell.command("history", "--store", store.name, *words)
    assert all(len(line) <= 80 for line in done.output.splitlines())
    return done.output


def test_without_a_case_steps_are_listed_by_commit_the_latest_first(
    store, golden, monkeypatch
):
    """What did not step, or has too few runs, is counted."""
    monkeypatch.setenv("COLUMNS", "80")
    plant(store, case="scale[n=10]", change=0.9)
    for index in range(24):
        level = 1.3 if index >= 15 else 1.0
        store.add(f"{index:032x}", trials.trial(CASE, [round(1e5 * level)] * 9))
        store.add(f"{index:032x}", trials.trial("empty", [1000] * 9))
    store.add(f"{23:032x}", trials.trial("new", [1000] * 9))
    golden(listed(store), "history_overview")
    assert CASE not in listed(store, "--commit", "0c0c0c")
    assert "1 older commit not listed" in listed(store, "--limit", "1")
    refused = shell.command(
        "history", "--store", store.name, "--commit", "ffff", code=4
    )
    assert "no case stepped there" in refused.output


def test_a_commit_at_which_all_cases_step_is_rather_the_machine(store, monkeypatch):
    """One of many is rather the code; both are one entry of a few lines."""
    monkeypatch.setenv("COLUMNS", "80")
    for index in range(22):
        later, latest = index >= 8, index >= 16
        times = (round(1e5 * 1.2**later * 1.1 ** (latest and not n)) for n in range(15))
        made = [trials.trial(f"case{n}", [time] * 3) for n, time in enumerate(times)]
        add(store, index, 1000, case="quiet", beside=made)
    latest, first = places(histories(stored(store)))
    assert (len(latest.found), latest.everywhere) == (1, False)
    assert (len(first.found), first.measured, first.everywhere) == (15, 16, True)
    said = listed(store)
    assert "15 slower of 16 rows measured: rather the machine" in said
    assert "and 12 more: `steelyard history --commit 0808080808`" in said
    assert len(said.splitlines()) < 20
    assert len(listed(store, "--commit", "08080808").splitlines()) > 15


def test_an_episode_is_said_and_is_no_step(store):
    """Four runs of another level, and back."""
    for index in range(30):
        add(store, index, 1.4e5 if 10 <= index < 14 else 1e5 + index % 7)
    found = history(store, CASE)
    assert found.steps == ()
    lines = list(chart.lines(found, 80))
    assert any("episode: 40.0% slower for 4 runs from 0a0a" in line for line in lines)


def test_one_run_and_equal_times_can_be_drawn(store):
    """Nothing is divided by their range."""
    add(store, 0, 1e5)
    found = history(store, CASE)
    assert "too few to tell" in list(chart.lines(found, 80))[-1]
    ET.fromstring(drawing.svg(found))
    for index in range(1, 9):
        add(store, index, 1e5)
    assert "no step" in list(chart.lines(history(store, CASE), 80))[-1]


def test_the_svg_has_every_run_and_names_every_step(planted):
    """Whatever characters a case has in its id."""
    add(planted, 50, 1e5, case="x[s=<&>]")
    drawn = ET.fromstring(drawing.svg(history(planted, CASE)))
    assert len(drawn.findall(".//{*}circle")) == 24
    assert "0c0c0c0c0c 10.0% slower" in texts(drawn)
    ET.fromstring(drawing.svg(history(planted, "x[s=<&>]")))


def texts(drawn):
    """Return what stands in a picture, by what it says."""
    return {one.text: one for one in drawn.findall(".//{*}text")}


def test_labels_of_steps_stay_in_the_picture_and_apart(store):
    """However near the edges and one another the steps are."""
    for index in range(56):
        add(store, index, 1e5 * 2 ** (index // 7 % 2))
    found = history(store, CASE)
    drawn = ET.fromstring(drawing.svg(found))
    _, _, wide, high = map(float, drawn.get("viewBox").split())
    places = [
        (float(one.get("y")), float(one.get("x")), drawing.LETTER * len(text) / 2)
        for text, one in texts(drawn).items()
        if text.endswith(("slower", "faster"))
    ]
    assert len(places) == len(found.steps) >= 7
    for y, x, half in places:
        assert half <= x <= wide - half
        assert 0 < y < high
    places.sort()
    for (y, x, half), (below, right, other) in itertools.pairwise(places):
        assert y != below or x + half <= right - other


@given(st.floats(1e-3, 1e12), st.floats(1e-6, 1e3))
def test_times_on_the_axis_are_round_few_and_within(low, share):
    """Steps of 1, 2 or 5 times a power of ten."""
    high = low * (1 + share)
    found = scale.Scale(low, high, 0, 1).ticks()
    assert 1 <= len(found) <= 2 * scale.TICKS
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in found)


def test_the_command_draws_and_writes(planted, tmp_path, golden, monkeypatch):
    """As text, and to a file where one is named."""
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "history.svg"
    done = shell.command("history", CASE, "--store", planted.name, "--svg", str(file))
    golden(done.output, "history")
    assert file.read_text().endswith("</svg>\n")


def test_a_picture_that_cannot_be_written_is_an_error(store, tmp_path):
    """It names the file, before anything is read; of all cases there is none."""
    add(store, 0, 1e5)
    for words, place, said in (
        ([CASE], "no/x.svg", "no/x.svg"),
        ([], "x.svg", "name it"),
    ):
        how = ["--store", store.name, "--svg", str(tmp_path / place)]
        assert said in shell.command("history", *words, *how, code=4).output


def on(run, **identity):
    """Return a run of another machine."""
    made = {**run.machine["identity"], **identity}
    return replace(run, machine={**run.machine, "identity": made})


def kinds_of_machines(store):
    """Store runs of two equal machines and of one of another kind."""
    for index in range(12):
        machine = {"id": f"{index % 2}a", "cpu": "AMD EPYC 9654"}
        if index % 3 == 0:
            machine = {"id": "bb", "cpu": "Intel(R) Xeon(R) 8480"}
        run = on(trials.run(uid=f"{index:032x}", state="finished"), **machine)
        run = replace(run, started=f"2026-01-01T00:{index:02}:00+00:00")
        store.keep(run, [trials.trial(CASE, [1000 + index] * 20)])


def test_machines_of_a_kind_are_one_history_and_kinds_are_apart(store):
    """Every machine counts where its kind is asked for; one alone does otherwise."""
    kinds_of_machines(store)
    assert len(history(store, CASE).points) == 4
    (epyc,) = by_kind(stored(store, CASE, on=["cpu=epyc"])).values()
    (found,) = histories(epyc)
    assert (len(found.points), found.machines) == (8, 2)
    assert "of 2 machines: a step may be from one to another" in chart.lines(found, 80)
    assert len(by_kind(stored(store, CASE, on=["any"]))) == 2
    text = listed(store, CASE, "--on", "cpu=xeon", "--on", "cpu=epyc")
    heads = [line for line in text.splitlines() if line.startswith("on ")]
    assert heads == [
        "on cpu=Intel(R) Xeon(R) 8480; cores=2",
        "on cpu=AMD EPYC 9654; cores=2",
    ]
    with pytest.raises(SteelyardError, match=r"--on gpu=H200: .*cpu=AMD EPYC"):
        stored(store, CASE, on=["gpu=H200"])
    with pytest.raises(SteelyardError, match="expected NAME=PART"):
        stored(store, CASE, on=["H200"])


def test_only_the_latest_runs_are_read_where_so_many_are_asked_for(planted):
    """And 0 are all of them."""
    assert len(stored(planted, CASE, last=5)) == 5
    assert len(stored(planted, CASE, last=0)) == 24
