"""The adapter is seen through asv itself, on a small repository of its own."""

import json
import os
import shutil
from pathlib import Path

import asv_commits
import pytest
import shell
import trials
from shell import git
from test_pytest_plugin import TINY

from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.machine import gpu_choice as gpu
from steelyard.plugins import asv
from steelyard_device.cuda import Device

ROOT = Path(__file__).parent.parent

BROKEN = """
from steelyard import benchmark

@benchmark
def broken(b):
    x = b.input(10)
    y = b.output(10)
    b.check(lambda x: x, x)
    b.mode("kernel/warm")
    return b.launch(lambda x, out: out.fill(7), x, out=y)
"""

ON_GPU = """
from steelyard import benchmark

@benchmark(device=["cpu", "cuda"])
def where(b, device):
    b.on(device)
    x = b.input(10)
    y = b.output(10)
    return b.launch(print, x, y)
"""

ADAPTER_FILE = ROOT / "suites" / "asv_suite.py"

ADAPTER = """
from steelyard import asv
globals().update(asv.families(__file__, rounds=2))
"""


def write(suites):
    """Write a suite, one that is wrong, and a short adapter to a folder."""
    texts = {"__init__": "", "tiny": SMALL, "broken": BROKEN, "asv_suite": ADAPTER}
    shell.files(suites, {f"{name}.py": text for name, text in texts.items()})


@pytest.fixture
def repository(tmp_path):
    """Return a repository with a suite, this one's configuration and a short adapter."""
    suites = tmp_path / "repository" / "suites"
    write(suites)
    shutil.copy(ROOT / "asv.conf.json", suites.parent)
    shell.commit(suites.parent, "suites")
    return suites.parent


@pytest.fixture(scope="module")
def move(tmp_path_factory):
    """Return the class of a small benchmark."""
    suites = tmp_path_factory.mktemp("asv") / "small_suites"
    write(suites)
    return asv.families(str(suites / "asv_suite.py"))["move"]


SMALL = TINY.replace("n=[10, 1000]", "n=[10]")
"""Each point is a process."""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Stand in the folder that the points of a run share."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_asv_run_keeps_our_seconds_of_every_point(repository):
    """A number a round and point; asv fails what failed and skips what is not."""
    asv_commits.asv(repository, "machine", "--yes")
    commit = git(repository, "rev-parse", "HEAD")
    done = asv_commits.asv(
        repository,
        *("run", "--python=same", "--show-stderr", "--record-samples"),
        f"--set-commit-hash={commit}",
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.count("Setting up plugins.asv:") == 1
    assert "broken: y is wrong in 10 of 10 elements" in done.stdout
    (kept,) = (repository / ".asv" / "results").glob(f"*/{commit[:8]}-*.json")
    stored = json.loads(kept.read_text())
    assert stored["results"]["asv_suite.broken.track_seconds"][0] is None
    row = dict(
        zip(
            stored["result_columns"],
            stored["results"]["asv_suite.move.track_seconds"],
            strict=False,
        )
    )
    assert row["params"] == [
        ["10"],
        ["'copyto'", "'assign'"],
        ["'kernel/warm'", "'latency/warm'"],
    ]
    measured = [samples is not None for samples in row["samples"]]
    assert measured == [True, True, True, False]
    assert all(len(set(samples)) == 2 for samples in row["samples"] if samples)
    assert all(0 < s < 1e-3 for samples in row["samples"] if samples for s in samples)


def test_the_shipped_suites_are_found_with_their_units_and_versions(tmp_path):
    """Discovery as asv does it, in a process of its own: nothing is measured for it."""
    found = tmp_path / "found.json"
    script = (
        "from asv_runner.discovery import list_benchmarks\n"
        f"with open({str(found)!r}, 'w') as file:\n"
        f"    list_benchmarks({str(ROOT / 'suites')!r}, file)"
    )
    shell.python("-W", "error", "-c", script, check=True)
    rows = {row["name"]: row for row in json.loads(found.read_text())}
    assert {name.split(".")[1] for name in rows} == {
        *("adam", "bias_layernorm", "build", "copy", "scale", "softmax", "triad"),
    }
    assert all(name.startswith("asv_suite.") for name in rows)
    assert {row["unit"] for row in rows.values()} == {"seconds"}
    assert len({row["setup_cache_key"] for row in rows.values()}) == 1
    assert len({row["version"] for row in rows.values()}) == len(rows)
    assert rows["asv_suite.adam.track_seconds"]["param_names"] == ["n", "impl", "mode"]


def test_a_point_that_was_not_measured_is_an_error_and_never_a_number(move, shared):
    """Neither a failed case nor a missing one returns samples."""
    point = (10, "copyto", "latency/warm")
    times = {"move[n=10,impl=copyto] latency/warm": "it crashed"}
    with pytest.raises(BenchmarkError, match="it crashed"):
        move().track_seconds(times, *point)
    (shared / asv.ASKED).unlink()
    with pytest.raises(BenchmarkError, match="was not measured in latency/warm"):
        move().track_seconds({}, *point)


@pytest.mark.parametrize("ticks", [[0] * 9, [-5] * 9, []])
def test_what_is_no_time_is_an_error(ticks):
    """A clock that stood still or went back gives no sample."""
    trial = trials.trial(ticks=ticks)
    assert "no time" in str(asv._seconds(trial))


@pytest.mark.usefixtures("shared")
def test_a_round_is_measured_when_its_first_point_is_asked_for(move, monkeypatch):
    """All others of the round share it; what failed in the first is not tried again."""
    modes = {"copyto": ("kernel/warm", "latency/warm"), "assign": ("kernel/warm",)}
    points = [(10, impl, mode) for impl, several in modes.items() for mode in several]
    names = [asv.key(f"move[n=10,impl={impl}]", mode) for _, impl, mode in points]
    first = {names[0]: "it hung", **dict.fromkeys(names[1:], 1.0)}
    rounds = []

    def measure(asked, *, audit):
        assert not audit  # the first round was
        rounds.append({asv.key(case.id, str(mode)) for case, mode in asked})
        return dict.fromkeys(names[1:], 1.0 + len(rounds))

    monkeypatch.setattr(asv, "measure", measure)
    seen = []
    for _ in range(3):
        with pytest.raises(BenchmarkError, match="it hung"):
            move().track_seconds(first, *points[0])
        seen += [move().track_seconds(first, *p)["samples"] for p in points[1:]]
    count = len(points) - 1
    assert seen == [[1.0]] * count + [[2.0]] * count + [[3.0]] * count
    assert len(rounds) == 2
    assert all(names[0] not in asked and names[1] in asked for asked in rounds)


def test_a_pattern_leaves_cases_and_benchmarks_out(move):
    """Their points are skipped, and no round measures them."""
    adapter = move.adapter
    assert set(asv.families(adapter)) > {"move"}
    (one,) = asv.families(adapter, pattern="move and not assign").values()
    assert one.params == move.params
    skipped = {point[1] for point in one.skip_params}
    assert skipped - {point[1] for point in move.skip_params} <= {"assign"}
    assert "assign" in skipped
    points = asv.selected(adapter, [], one.pattern)
    assert {case.id for case, _ in points} == {"move[n=10,impl=copyto]"}


@pytest.mark.parametrize("rounds", [6, 0])
def test_rounds_that_asv_can_see_nothing_with_are_refused(rounds):
    """Six against six can never differ for its test."""
    with pytest.raises(SteelyardError, match="cannot see a change"):
        asv.families(str(ADAPTER_FILE), rounds=rounds)


@pytest.mark.parametrize("lazy", ["", "    "], ids=["at import", "in a function"])
@pytest.mark.parametrize("where", ["installed", "repository", "same"])
def test_a_project_must_come_from_asv_s_environment(tmp_path, where, lazy):
    """Not from the working tree, which would be measured for every commit.

    What is imported late, in a process that measures, is held to the same; with
    --python=same there is no environment of asv's, and the project is what is there.
    """
    environment = tmp_path / ".asv" / "env" / "0"
    site = environment / "lib" / "python3" / "site-packages"
    late = "def f():\n    import mylib\n" if lazy else "import mylib\n"
    texts = {
        ".git/HEAD": "",
        "mylib.py": "",
        "bench/__init__.py": "",
        "bench/one.py": f"{late}{TINY}",
        "bench/asv_suite.py": "",
        **({} if where == "same" else {f"{environment}/{asv.MADE}": ""}),
        **({f"{site}/mylib.py": ""} if where == "installed" else {}),
    }
    shell.files(tmp_path, texts)
    script = f"""
import sys
sys.path.append({str(site)!r})
from steelyard import asv
from steelyard.process.origins import Origins
sys.prefix = {str(environment)!r}
asv.families({str(tmp_path / "bench" / "asv_suite.py")!r})
import mylib
print(Origins.stated().refusal())
"""
    done = shell.python("-c", script, folder=tmp_path.parent)
    said = done.stdout + done.stderr
    if where != "repository":
        assert done.stdout == "None\n", said
    else:
        assert f"mylib from {tmp_path / 'mylib.py'}: asv would measure the work" in said
        assert bool(done.returncode) is not bool(lazy), said


@pytest.mark.parametrize(
    ("command", "patterns"),
    [
        (
            "/usr/bin/python3 /usr/bin/asv continuous -b move -b=copy a b",
            ["move", "copy"],
        ),
        ("python -m asv run -e -bmove HEAD^!", ["move"]),
        ("python -m asv run --bench move", ["move"]),
        ("python -m asv run -b", []),
        ("python -m asv run", []),
        ("python -m pytest -b move", []),
    ],
)
def test_what_asv_was_asked_for_is_read_from_its_command_line(
    tmp_path, command, patterns
):
    """It is our parent, or the parent of its fork server."""
    parent, other = str(os.getppid()), "77"
    for number, above, words in (
        (parent, other, "python run_server"),
        (other, "1", command),
    ):
        (tmp_path / number).mkdir()
        (tmp_path / number / "cmdline").write_text(words.replace(" ", "\0") + "\0")
        (tmp_path / number / "stat").write_text(f"{number} (a ) b) S {above} 0")
    assert asv.asked_for(tmp_path) == patterns


def test_only_what_asv_asks_for_is_measured(tmp_path):
    """By asv's names and values; a pattern that fits nothing leaves nothing out."""
    file = str(tmp_path / "asv_suite.py")
    (tmp_path / "both.py").write_text(TINY + BROKEN)
    everything = asv.selected(file, [])
    moves = asv.selected(file, ["asv_suite.move.track_seconds"])
    assert {case.benchmark.name for case, _ in moves} == {"move"}
    assert len(moves) < len(everything)
    warm = asv.selected(file, [r"^asv_suite\.move\..*'kernel/warm'\)"])
    assert {str(mode) for _, mode in warm} == {"kernel/warm"}
    assert asv.selected(file, ["of another suite"]) == everything


def test_points_of_a_gpu_are_skipped_where_there_is_none(tmp_path, monkeypatch):
    """They have no number and did not fail: asv writes n/a."""
    (tmp_path / "onboard.py").write_text(ON_GPU)
    monkeypatch.setattr(gpu, "_seen", lambda: ((), "no driver here."))
    family = asv.families(str(tmp_path / "asv_suite.py"))["where"]
    assert family.params == [["cpu", "cuda"], ["kernel/cold", "kernel/warm"]]
    assert family.skip_params == [("cuda", "kernel/cold"), ("cuda", "kernel/warm")]
    device = Device(0, "a GPU", "GPU-0", "sm_90a", 132, 60 << 20, 1 << 30)
    monkeypatch.setattr(gpu, "_seen", lambda: ((device,), ""))
    assert asv.families(str(tmp_path / "asv_suite.py"))["where"].skip_params == []
