import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import shell
import trials
from host_memory_gpu import DEVICE

from steelyard import commands
from steelyard.commands import BUG, INTERRUPTED, main
from steelyard.declare.plan import PlannedTrial
from steelyard.errors import FAILED, UNRESOLVED, SteelyardError, StoreError
from steelyard.machine import gpu_choice as gpu
from steelyard.machine import lock
from steelyard.measure import gpu_peaks
from steelyard.process import runner
from steelyard.report import progress
from steelyard.store.store import Store

STORE = ".steelyard/steelyard.db"

SUITE = '''
import numpy as np
import steelyard

@steelyard.benchmark(n=[8, 1000], impl=["copy", "add"])
def move(b, n, impl):
    """Move one array."""
    x = b.input(n)
    y = b.output(n)
    b.mode("kernel/warm")
    if impl == "copy":
        b.check(lambda x: x, x)
        return b.launch(np.copyto, y, x)
    b.check(np.add, x, x)
    return b.launch(np.add, x, x, out=y)
'''

BROKEN = """
import numpy as np
import steelyard

def refuse(x, out):
    raise ValueError("not today")

@steelyard.benchmark(bad=[True, False])
def fails(b, bad):
    x = b.input(8)
    y = b.output(8)
    b.mode("kernel/warm")
    return b.launch(refuse if bad else np.negative, x, out=y)
"""


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Work in a folder with a suite and a lock of its own; measure nothing."""
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("STEELYARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "moving.py").write_text(SUITE)
    monkeypatch.setattr(lock, "default_path", lambda: tmp_path / "lock")
    monkeypatch.setattr(runner, "run", pretend)
    return tmp_path


def pretend(turns, _settings, on_trial, on_turn):
    """Stand in for the runner: every launch takes a microsecond."""
    for turn in turns:
        on_turn(turn)
        axes = dict(turn.case.axes)
        on_trial(
            trials.trial(
                turn.case.id,
                axes=axes,
                mode=str(turn.mode),
                block=turn.block,
                position=turn.position,
                facts={"bytes": 8 * axes["n"]},
            )
        )


def steelyard(*words, code=0):
    """Run a command; return its stdout, or with a code its stderr."""
    result = shell.command(*words, code=code)
    assert "Traceback" not in result.output
    if code:
        return result.stderr
    return result.stdout


def error(*words, code=4):
    """Run a command that must fail and return its one sentence."""
    lines = [x for x in steelyard(*words, code=code).splitlines() if "rror: " in x]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "-k", "nothing"], "nothing matched -k 'nothing'"),
        (["run", "-k", "(move"], "-k cannot be read"),
        (["run", "nowhere.py"], "nowhere.py does not exist"),
        (["run", "-p", "m=1"], "no benchmark has an axis 'm'"),
        (["run", "-p", "n"], "-p 'n' is not of the form"),
        (["run", "-p", "n=1:9:0"], "never ends"),
        (["run", "--mode", "kernel/hot"], "'hot'; expected one of cold, warm"),
        (["run", "--mode", "latency/warm/0"], "the batch is 0, expected 1 to 9999999"),
        (["run", "--mode", "latency/warm/1" + 5000 * "0"], "expected 1 to 9999999"),
        (["run", "--tag", ""], "--tag is '', expected a printable word"),
        (["run", "--tag", "@-1"], "--tag is '@-1', expected a printable word"),
        (["run", "--mode", ""], "expected one of kernel"),
        (["run", "--input", "x"], "'x', expected name=@file.npy"),
        (["run", "--input", "x=@gone.npy"], "gone.npy: No such file"),
        (["run", "--input", "x=@suites/moving.py"], "expected b'.*NUMPY'"),
        (["run", "--budget", "0"], "--budget is 0.0, expected a number above 0"),
        (["run", "--budget", "soon"], "'--budget': 'soon' is not a valid float"),
        (["run", "--precision", "nan"], "--precision is nan, expected a percentage"),
        (["run", "--blocks", "0"], "--blocks is 0, expected a whole number"),
        (["run", "--relative-to", "impl=x"], "values of impl: add, copy"),
        (["run", "--json", "gone/x.json"], "--json gone/x.json cannot be written"),
        (["run", "--json", "suites"], "is a folder"),
        (["run", "--trace", "gone/x.json"], "--trace gone/x.json cannot be written"),
        (["run", "--trace", "gone/x", "--dry-run"], "--trace gone/x cannot be written"),
        (["run", "--store", "suites/moving.py"], "not a steelyard store"),
        (["run", "--store", "suites"], "is a directory"),
        (["run", "--store", "x://y"], "cannot be opened"),
        (["run", "--store", "gone/dir/x.db"], "there is no folder gone/dir"),
        (["run", "--dry-run", "--store", "gone/x.db"], "there is no folder gone"),
        (["gate", "main", "--output", "gone/x"], "--output gone/x cannot be written"),
        (["claims", "--output", "suites"], "--output suites cannot be written"),
        (["history", "x", "--svg", "gone/x"], "--svg gone/x cannot be written"),
        (["verdict", "--from", "gone.json"], "no outcome of a gate at gone.json. Run"),
        (["run", "-p", "n=8,1e400", "--dry-run"], "'n=8,1e400' has no finite number"),
        (["run", "--wait", "-1"], "-1.0 is not in the range x>=0"),
        (["gate", "main", "--wait", "-1"], "-1.0 is not in the range x>=0"),
        (["selftest", "--wait", "-1"], "-1.0 is not in the range x>=0"),
        (["run", "--nonsense"], "No such option"),
        (["list", "-k", "nothing"], "nothing matched"),
        (["show"], "there is no store"),
        (["compare", "@-1"], "there is no store"),
        (["export"], "there is no store"),
        (["import", "gone.json"], "gone.json.*hyperfine"),
        (["import", "suites/moving.py"], "moving.py: this is not an exported run"),
        (["compare"], "Missing argument 'BASE'"),
        (["shwo"], "no command 'shwo'; did you mean show?"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_4(desk, words, says):
    """Nothing was measured, nothing was stored, no traceback was printed."""
    assert re.search(says, error(*words))
    assert not (desk / STORE).exists() or words[0] == "import"


def test_a_run_is_stored_and_shown(desk):
    """`run` prints its header and tables, `show` prints them again."""
    first = steelyard("run", "--blocks", "2", "--tag", "base")
    assert "move kernel/warm" in first
    assert "$ " in first
    again = steelyard("show", "base")
    assert again.splitlines()[-3:] == first.splitlines()[-3:]
    assert "finished   8 " in steelyard("show", "--runs")
    with Store.open(str(desk / STORE)) as store:
        (run,) = store.runs()
        assert run.tags == ("base",)
        assert run.settings["blocks"] == 2


def test_progress_goes_to_stderr_and_json_alone_to_stdout(desk):
    """`--json -` can be piped into another program."""
    result = shell.command("run", "--json", "-", "--blocks", "2", code=None)
    report = json.loads(result.stdout)
    assert len(report["trials"]) == 8
    assert "[5/8] block 1, about 0 s left\n" in result.stderr
    (name,) = re.findall(r"^run (\w+) in ", result.stderr, re.MULTILINE)
    assert f"`steelyard show {name} CASE`" in result.stderr
    steelyard("run", "--json", "out.json")
    assert json.loads((desk / "out.json").read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("taken", "budget", "left"),
    [
        (3.0, None, "9 s"),
        (90.0, None, "4 min"),
        (90.0, 100.0, "10 s"),
        (9.0, 5.0, "0 s"),
    ],
)
def test_the_rest_is_expected_to_take_as_long_as_the_turns_so_far(
    taken, budget, left, monkeypatch, capsys
):
    """But for a budget that ends before; there is no estimate before the first."""
    clock = iter([7.0, 7.0, 7.0 + taken])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    shown = progress.Progress(4, budget, header_to_stderr=True)
    for block in range(2):
        shown.turn(PlannedTrial(block, block, None, None))
    assert capsys.readouterr().err == (
        f"[1/4] block 0\n[2/4] block 1, about {left} left\n"
    )


def test_a_dry_run_prints_the_plan_and_measures_nothing(desk):
    """The order of all turns, each with its block, case and mode."""
    lines = steelyard("run", "--dry-run", "--blocks", "3", "-k", "copy").splitlines()
    assert len(lines) == 6
    assert re.search(r"0 block 0 move\[n=\d+,impl=copy\] kernel/warm", lines[0])
    assert not (desk / ".steelyard").exists()
    words = ("run", "--dry-run", "--blocks", "1", "-k", "n=8,impl=copy")
    done = shell.python("-m", "steelyard", *words, "--mode", "kernel/warm", check=True)
    assert "\n1 case, 1 turn; nothing was measured" in f"\n{done.stderr}"


@pytest.mark.usefixtures("desk")
def test_cases_are_selected_by_words_exact_id_axes_and_modes():
    """The words of `-k`, `-p` and `--mode` select what they say."""
    assert len(steelyard("list").splitlines()) == 4
    assert len(steelyard("list", "-k", "copy and not 1000").splitlines()) == 1
    assert (
        steelyard("list", "-k", "move[n=8,impl=add]").split()[0] == "move[n=8,impl=add]"
    )
    swept = steelyard("list", "-p", "n=2^2:2^4:2x", "-p", "impl=copy")
    assert [x.split()[0] for x in swept.splitlines()] == [
        f"move[n={n},impl=copy]" for n in (4, 8, 16)
    ]
    lines = steelyard(
        "run", "--dry-run", "--blocks", "1", "-k", "n=8,impl=copy",
        "--mode", "latency,kernel/warm", "--mode", "latency/warm",
    )  # fmt: skip
    assert {x.split()[-1] for x in lines.splitlines()} == {
        "latency/warm",
        "kernel/warm",
    }
    assert len(lines.splitlines()) == 2


@pytest.mark.usefixtures("desk")
def test_a_ratio_to_another_value_of_an_axis_is_a_column():
    """`--relative-to` works in `run` and in `show`."""
    assert "1.000" in steelyard("run", "--relative-to", "impl=copy")
    assert "relative" in steelyard("show", "--relative-to", "impl=copy")
    assert "values of impl" in error("show", "--relative-to", "impl=x")


@pytest.mark.usefixtures("desk")
def test_a_failing_case_gives_exit_code_2_and_keeps_the_rest(monkeypatch):
    """The sentence of the case is printed; the other cases are measured."""

    def run(turns, settings, on_trial, on_turn):
        pretend(turns[1:], settings, on_trial, on_turn)
        case, mode = turns[0].case, str(turns[0].mode)
        on_trial(
            trials.trial(case.id, axes=case.axes, mode=mode, ticks=(), error="no!")
        )

    monkeypatch.setattr(runner, "run", run)
    result = shell.command("run", "--blocks", "1", code=2)
    assert "failed: no! (kernel/warm)" in result.stdout
    assert "move[n=" in result.stderr


@pytest.mark.usefixtures("desk")
def test_ctrl_c_keeps_and_shows_the_finished_trials(monkeypatch):
    """The run is stored as interrupted, and `show` says that it is partial."""

    def run(turns, settings, on_trial, on_turn):
        pretend(turns[:3], settings, on_trial, on_turn)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", run)
    result = shell.command("run", code=INTERRUPTED)
    assert "interrupted: the run is partial, 3 of 16 turns" in result.stderr
    assert "move" in result.stdout
    assert "partial: 3 of 16 turns, interrupted" in steelyard("show")


def test_a_disk_that_fills_up_ends_the_run_and_shows_what_was_measured(
    desk, monkeypatch
):
    """The trial that could not be stored is in the tables and in the JSON file."""
    add = Store.add

    def full(self, uid, trial):
        if trial.position > 1:
            raise StoreError("store x: the disk is full")
        add(self, uid, trial)

    monkeypatch.setattr(Store, "add", full)
    result = shell.command("run", "--json", "out.json", code=4)
    assert "error: store x: the disk is full" in result.stderr
    assert len(json.loads((desk / "out.json").read_text())["trials"]) == 3
    assert "turns, failed" in steelyard("show")


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("error", "code"), [(None, UNRESOLVED), ("it broke", FAILED)])
def test_a_budget_that_ends_too_early_is_unresolved(monkeypatch, error, code):
    """A case that never had a turn is never fine, and no failure hides that."""

    def run(turns, settings, on_trial, on_turn):
        pretend(turns[:1], settings, on_trial, on_turn)
        case, mode = turns[1].case.id, str(turns[1].mode)
        on_trial(trials.trial(case, mode=mode, position=1, error=error))

    monkeypatch.setattr(runner, "run", run)
    said = steelyard("run", "--budget", "0.01", code=code)
    assert "the budget ended after 2 of 16 turns; raise --budget" in said
    assert "never had a turn: move[" in said
    assert "partial: 2 of 16 turns, the budget ended" in steelyard("show")


def test_commands_without_paths_say_which_suites_they_take(desk):
    """The built-in suite is a warning where there is a folder of benchmarks."""

    def said(*words):
        return shell.command(*words, code=None).stderr

    assert "suites: ./suites" in said("list")
    assert "suites: ./suites" in said("run", "--dry-run")
    assert "suites" not in said("list", "suites")
    shutil.rmtree(desk / "suites")
    assert "suites: the built-in suite; name files" in said("list")
    (desk / "benchmarks").mkdir()
    assert "warning: the built-in suite, not ./benchmarks" in said("list")
    (desk / "benchmarks" / "moving.py").write_text(SUITE)
    (desk / "pyproject.toml").write_text('[tool.steelyard]\nsuites = ["benchmarks"]')
    assert "benchmarks (configured)" in said("list")
    for words in ((), ("run",), ("list",)):
        assert "built-in" in shell.command(*words, "--help", code=None).output


def test_a_file_of_one_value_is_refused_before_anything_is_measured(desk):
    """Equal numbers, or none that is one; the advice is for a command line."""
    for name, value in [("zeros", 0), ("nans", np.nan)]:
        np.save(desk / f"{name}.npy", np.full(8, value, np.float32))
        said = error("run", "-p", "n=8", "--input", f"x=@{name}.npy")
        assert "repeats one value" in said
        assert "b.load" not in said


def test_a_second_run_is_refused_while_one_measures(desk):
    """The sentence names the holder; nothing is stored."""
    with lock.measuring(path=desk / "lock"):
        assert f"process {os.getpid()} of" in error("run")
    assert not (desk / ".steelyard").exists()


def test_the_password_of_a_url_is_stored_nowhere(desk, monkeypatch):
    """Neither the run nor the lock, which everybody can read, holds it."""
    url = "postgresql+psycopg://me:secret@host/db"
    monkeypatch.setattr("sys.argv", ["/bin/steelyard", "run", "--store", url])
    steelyard("run", "--blocks", "1")
    with Store.open(str(desk / STORE)) as store:
        (only,) = store.runs()
    assert only.command == "steelyard run --store 'postgresql+psycopg://me:***@host/db'"
    assert "secret" not in (desk / "lock").read_text()


@pytest.mark.usefixtures("desk")
def test_a_benchmark_of_our_own_that_breaks_asks_for_a_report(monkeypatch):
    """A bug shows its traceback, versions, and an exit code that says neither 1 nor 2."""

    def run(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(runner, "run", run)
    result = shell.command("run", code=BUG)
    assert "ZeroDivisionError: ours" in result.stderr
    assert re.search(r"bug in steelyard.*python 3.*numpy", result.stderr)
    monkeypatch.setattr(runner, "run", pretend)
    assert "turns, failed" in steelyard("show")


@pytest.mark.usefixtures("desk")
def test_one_case_is_shown_with_everything_and_reproduced():
    """`show CASE` finds a case of the latest run; `--repro` prints only the command."""
    steelyard("run", "--blocks", "2", "--seed", "5")
    text = steelyard("show", "move[n=8,impl=add]")
    assert "midmean" in text
    assert "hashes" in text
    (line,) = steelyard("show", "--repro", "move[n=8,impl=add]").splitlines()
    assert line.startswith("steelyard run ")
    assert "-k 'move[n=8,impl=add]'" in line
    assert line.endswith("--mode kernel/warm --seed 5 --blocks 2 --precision 0.5")
    assert "no case 'mov3'" in error("show", "@-1", "mov3")
    assert "nearest is move" in error("show", "@-1", "moves")
    assert "no run of store" in error("show", "unknown")
    for shape in ("json", "csv", "markdown"):  # for other programs: one case as well
        text = steelyard("show", "--format", shape)
        assert "move" in text
        assert len(steelyard("show", "@-1", "n=8,", "--format", shape)) < len(text)


def test_two_runs_are_compared_with_what_differs_first(desk):
    """Runs are named by tag and by @-1; for other programs to a file, or alone to stdout."""
    steelyard("run", "--tag", "old")
    steelyard("run", "--seed", "1")
    assert "@-1 is the latest run, which is NEW" in error("compare", "@-1")
    text = steelyard("compare", "old", "@-1")
    assert text.index("seed") < text.index("ratio")
    assert "1.000" in text
    assert "4 of 4 rows compare" in text
    assert "neither run has" in error("compare", "old", "-k", "zzz")
    assert "no run of store" in error("compare", "older")
    document = json.loads(steelyard("compare", "old", "--format", "json"))
    assert document == json.loads(steelyard("compare", "old", "--json", "-"))
    assert {"ratio", "low", "high"} < document["rows"][0].keys()
    assert "ratio" in steelyard("compare", "old", "--json", "ratios.json")
    assert json.loads((desk / "ratios.json").read_text()) == document
    lines = steelyard("compare", "old", "--format", "csv").splitlines()
    assert len(lines) == 1 + len(document["rows"])
    said = error("compare", "old", "--json", "gone/x.json")
    assert "gone/x.json cannot be written" in said


def test_the_compilers_of_two_runs_are_named_before_all_else(desk):
    """Whatever else differs in a row may be theirs."""
    for tag, compiler in (("old", "nvrtc 13.0"), ("new", "nvrtc 13.5")):
        facts = {"target": "cuda:sm_90a", "compiler": compiler}
        made = [trials.trial(facts=facts)]
        trials.kept(desk / STORE, made, tags=(tag,), settings={"seed": len(tag)})
    text = steelyard("compare", "old", "new", "--across-machines")
    assert text.index("nvrtc 13.5") < text.index("ratio")
    assert text.count("nvrtc 13.0") == 1


def test_a_run_is_held_against_a_baseline_as_it_is_measured_and_shown(desk):
    """By case and mode; what differs around both is printed, to stderr beside JSON."""
    steelyard("run", "--tag", "before", "--blocks", "2", "-k", "copy")
    said = steelyard("run", "--baseline", "before", "--blocks", "2")
    assert "selection" in said
    assert re.search(r"^ +8 +copy .* 1\.000 ", said, re.MULTILINE)
    assert re.search(r"^ +8 +add .* - ", said, re.MULTILINE)
    done = shell.command("run", "--baseline", "@-1", "--json", "-", code=0)
    (ratio,) = {row["relative"] for row in json.loads(done.stdout)["rows"]}
    assert ratio == pytest.approx(1)
    assert "base: run" in done.stderr
    assert "| relative |" in steelyard(
        "show", "--baseline", "@-2", "--format", "markdown"
    )
    trials.kept(desk / STORE, [trials.trial("move[n=8,impl=copy]")], tags=("away",))
    said = steelyard("show", "@-2", "--baseline", "away")
    assert "no ratios: " in said
    assert "relative" not in said
    runs = steelyard("show", "--runs")
    assert "tag, id or commit 'gone'" in error("run", "--baseline", "gone")
    both = ("--baseline", "@-1", "--relative-to", "impl=copy")
    assert "exclude each other" in error("run", *both)
    assert steelyard("show", "--runs") == runs


def test_runs_of_two_machines_are_compared_only_when_asked(desk):
    """Exit code 4, and what differs is printed all the same."""
    steelyard("run")
    trials.kept(desk / STORE, [trials.trial("move[n=8,impl=copy]")], tags=("away",))
    result = shell.command("compare", "away", "@-2", code=4)
    assert "of two machines" in result.stderr
    assert "Test CPU" in result.stdout
    text = steelyard("compare", "away", "@-2", "--across-machines")
    assert "missing in base" in " ".join(text.split())


@pytest.mark.usefixtures("desk")
def test_a_run_moves_between_stores_as_a_file():
    """The second import says that nothing was left to add."""
    steelyard("run", "--blocks", "1", "--tag", "moved")
    steelyard("export", "moved", "run.json")
    assert (
        shell.command("export", code=None).stdout_bytes == Path("run.json").read_bytes()
    )
    assert "4 trials added, 0 were" in steelyard(
        "import", "run.json", "--store", "b.db"
    )
    assert "0 trials added, 4 were" in steelyard(
        "import", "run.json", "--store", "b.db"
    )
    assert "move" in steelyard("show", "moved", "--store", "b.db")
    assert "No such file" in error("export", "moved", "gone/run.json")


def test_a_newer_store_is_refused_by_every_command(desk):
    """Nothing is guessed from tables of a later version."""
    steelyard("run")
    with sqlite3.connect(desk / STORE) as connection:
        connection.execute("UPDATE steelyard_schema SET version = 9")
    connection.close()
    for words in (["run"], ["show"], ["compare", "@-1"], ["export"]):
        assert "schema 9" in error(*words)


@pytest.mark.usefixtures("desk")
def test_the_doctor_prints_and_ends_with_0(monkeypatch):
    """Whatever is wrong with the machine, looking at it is fine."""
    monkeypatch.setattr("steelyard.machine.doctor.WATCH_SECONDS", None)
    text = steelyard("doctor")
    assert re.search(r"^ok +clock source: |^doubt +clock source: ", text, re.MULTILINE)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_every_command_loads_and_explains_itself(name):
    """Those of the lazy table too: a module that was renamed breaks its command alone."""
    shown = steelyard(name, "--help")
    assert f" {name} [OPTIONS]" in shown
    assert not main.get_command(click.Context(main), name).hidden


def test_version_and_help_name_every_command():
    """In the short form too."""
    assert re.fullmatch(r"steelyard \d+\.\d+\.\d+\n", steelyard("--version"))
    names = set(main.list_commands(click.Context(main)))
    assert names <= set(re.findall(r"^  (\w+)", steelyard("-h"), re.MULTILINE))


def test_help_and_start_import_nothing_heavy():
    """What `steelyard --help` imports decides how long it takes; so does what names cases."""
    code = "import sys, steelyard.commands, steelyard.process.naming\n"
    code += "try: steelyard.commands.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted(sys.modules), file=sys.stderr)"
    done = shell.python("-c", code, check=True)
    for heavy in ("numpy", "rich", "sqlalchemy", "psutil", "scipy", "llvmlite"):
        assert f"'{heavy}'" not in done.stderr


@click.command(help="Not shown until it is used.")
@click.argument("word")
def foreign(word):
    """Say a word."""
    click.echo(f"foreign {word}")


@pytest.mark.usefixtures("desk")
def test_commands_of_other_packages_load_when_they_are_used(monkeypatch):
    """Help lists them without importing; a missing one is a sentence."""
    others = {"speak": f"{__name__}:foreign", "absent": "no_such_module_here:main"}
    monkeypatch.setattr(commands, "SISTERS", others)
    text = steelyard("--help")
    assert "absent    Not installed." in text
    assert re.search("speak  +\\w", text)
    assert steelyard("speak", "now") == "foreign now\n"
    assert "Missing argument 'WORD'" in error("speak")
    assert "absent cannot be loaded from no_such_module" in error("absent")


def test_a_reader_that_goes_away_is_no_regression(desk):
    """`steelyard show | head -0`: a closed pipe ends with 128 + SIGPIPE."""
    code = "import os, sys; from steelyard.commands import main; main(['list'])"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=desk,
    )
    os.close(write)
    said = done.returncode, done.stderr
    assert said == (128 + signal.SIGPIPE, "suites: ./suites\n")


def test_a_full_standard_output_is_one_sentence():
    """It is no bug of ours: nothing but the sentence is printed."""
    command = [
        sys.executable,
        "-m",
        "steelyard.cli",
        "list",
        "steelyard.declare.builtin",
    ]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 4
    assert ended.stderr.startswith("error: standard output cannot be written: No space")
    assert ended.stderr.count("\n") == 1


def test_a_real_run_end_to_end(tmp_path):
    """A worker process measures, checks and fails for real; the rest is kept."""
    (tmp_path / "ok.py").write_text(SUITE)
    (tmp_path / "broken.py").write_text(BROKEN)
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 8, dtype=np.float32))
    words = ["run", "ok.py", "broken.py", "-k", "fails or n=8,impl=copy"]
    words += ["--blocks", "2", "--precision", "50", "--timeout", "600"]
    words += ["--store", "s.db", "--json", "-", "--input", "x=@x.npy"]
    place = str(tmp_path / "lock")
    done = shell.steelyard(*words, folder=tmp_path, STEELYARD_LOCK=place)
    assert done.returncode == 2, done.stderr
    report = json.loads(done.stdout)
    by_case = {t["case"]: t for t in report["trials"]}
    assert by_case["move[n=8,impl=copy]"]["estimate"] > 0
    assert by_case["fails[bad=False]"]["doubts"].count("unchecked") == 1
    assert "ValueError: not today (broken.py:6)" in by_case["fails[bad=True]"]["error"]
    assert "failed: fails[bad=True]" in done.stderr


ON_GPU = """
import steelyard

@steelyard.benchmark(n=[8], device=["cpu", "cuda"])
def where(b, n, device):
    b.on(device)
    x = b.input(8)
    y = b.output(8)
    b.mode("kernel/warm")
    return b.launch(print, x, y)
"""


@pytest.fixture
def onboard(desk, monkeypatch):
    """Have a suite with a case of a GPU; give what sets which GPUs are seen."""
    (desk / "onboard.py").write_text(ON_GPU)

    def seen(peaks):
        monkeypatch.setattr(gpu, "_seen", lambda: ((DEVICE,), ""))
        monkeypatch.setattr(gpu, "kept", lambda _: None)
        monkeypatch.setattr(gpu_peaks, "in_its_process", peaks)

    monkeypatch.setattr(gpu, "_seen", lambda: ((), "there is no driver."))
    return seen


@pytest.mark.usefixtures("onboard")
def test_cases_of_a_gpu_are_left_out_and_said_to_be():
    """The others are measured; `list` shows where each runs."""
    done = shell.command("run", "onboard.py", "--blocks", "1")
    assert "left out: 1 case needs a GPU: there is no driver." in done.stderr
    assert steelyard("list", "onboard.py").splitlines() == [
        "where[n=8,device=cpu]  kernel/warm",
        "where[n=8,device=cuda]  kernel/warm  on a GPU",
    ]
    said = error("run", "onboard.py", "-p", "device=cuda")
    assert said == "error: 1 case needs a GPU: there is no driver."


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "abc"), "--gpu abc is not used"),
        (("--clock", "cupti"), "--clock cupti is not used"),
        (("--gpu", "0", "--clocks", "all"), "--gpu 0 and --clocks all are not used"),
        ((), ""),
    ],
)
def test_options_of_a_gpu_are_not_ignored_in_silence(desk, words, says):
    """Cases of the CPU are measured all the same."""
    done = shell.command("run", "--blocks", "1", *words)
    assert says in done.stderr
    assert ("not used: nothing here runs on a GPU" in done.stderr) is bool(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--columns", "wats"), "--columns wats: there is no such column; .*watts"),
        (("--clock", "wall"), "there is no clock wall: choose one of cupti"),
        (("--clock", "cupti", "--clocks", "all"), "exclude each other"),
        (("--gpu", "H200"), "--gpu is 'H200', expected an index or .* UUID"),
    ],
)
@pytest.mark.usefixtures("onboard")
def test_a_gpu_a_clock_and_columns_are_named_right_or_refused(words, says):
    """Before anything is measured."""
    assert re.search(says, error("run", "onboard.py", *words))


def test_the_gpu_its_clock_and_its_peaks_are_the_runs(onboard):
    """Peaks are measured once, and what is known of the GPU is stored with the run."""
    table = {"method": 1, "copy": {}, "rates": {}}
    onboard(lambda _: table)
    words = ["run", "onboard.py", "--clocks", "all", "--columns", "watts"]
    done = shell.command(*words, code=None)
    assert "measuring once what a GPU does at most" in done.stderr
    stored = json.loads(steelyard("show", "--format", "json"))
    assert stored["run"]["settings"]["clock"] == "all"
    assert stored["run"]["settings"]["energy"] is True
    assert stored["machine"]["gpu"]["name"] == "a GPU"
    assert stored["machine"]["gpu"]["peaks"] == table
    assert "a GPU (d636be844157)" in steelyard("show")


def test_peaks_that_cannot_be_measured_do_not_end_the_run(onboard):
    """The reason is in the run's header."""

    def refuse(_):
        raise SteelyardError("the peaks of GPU 0 could not be measured (x).")

    onboard(refuse)
    shown = " ".join(steelyard("run", "onboard.py").split())
    assert "could not be measured (x)" in shown
    steelyard("run", "onboard.py", "--peaks", "off")


@pytest.mark.parametrize(
    "where", ["click", "steelyard.commands", "steelyard.declare.discovery"]
)
def test_ctrl_c_while_modules_are_loaded_is_no_traceback(where, tmp_path):
    """The first tenth of a second of every command is imports."""
    code = f"""
    import sys

    class Press:
        def find_spec(self, name, *_):
            if name == {where!r}:
                raise KeyboardInterrupt

    sys.meta_path.insert(0, Press())
    from steelyard.cli import main
    sys.argv = ["steelyard", "list", "steelyard.declare.builtin"]
    main()
    """
    done = shell.python("-c", textwrap.dedent(code), folder=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (INTERRUPTED, "interrupted")


def test_the_script_begins_where_ctrl_c_is_answered():
    """What pip makes of the project's file."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"steelyard": "steelyard.cli:main"}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_file_that_cannot_be_imported_fails_alone(desk, more):
    """The folder's others are measured, and the run ends as one with a failure."""
    (desk / "suites" / "bad.py").write_text("import steelyard\n1 / 0\n")
    said = shell.command("run", "suites", "--blocks", "1", *more, code=FAILED)
    assert "move" in said.stdout
    assert re.search(r"left out: .*bad.py could not be imported: Zero", said.stderr)
    assert "bad.py could not be" in error("run", "suites", "-k", "mine", *more)
    assert "bad.py could not be" in error("run", "suites/bad.py", *more)
    (desk / "suites" / "moving.py").unlink()
    assert "bad.py could not be" in error("run", "suites", *more)
