"""What one case leaves behind must not reach another: through the command line."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import shell
from rich.text import Text

from steelyard.machine import lock
from steelyard.report import tables
from steelyard.store.store import Store

SUITE = """
import resource
from pathlib import Path

import numpy as np

from steelyard import benchmark


@benchmark
def large(b):
    x = b.input(1 << 20, "float64")
    y = b.output(1 << 20, "float64")
    return b.launch(lambda x, out: np.add(2 * x, x, out=out), x, out=y)


@benchmark
def temporaries(b):
    x = b.input(200_000, "float64")
    y = b.output(200_000, "float64")

    def work(x, out):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [x + n for n in range(12)]
        np.add(parts[0], parts[11], out=out)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        Path("faults").write_text(str(after - before))

    return b.launch(work, x, out=y)
"""


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """Work in a folder with a store, a lock and a suite of its own."""
    monkeypatch.chdir(tmp_path)
    return shell.files(tmp_path, {"pyproject.toml": "", "suite.py": SUITE})


def command(*arguments, code=0):
    """Run the command line and return what it printed."""
    result = shell.command(*arguments, code=code)
    return result.stdout


def measured(file, *arguments, code=0):
    """Run a suite; return its trials by case."""
    command("run", file, "--json", "run.json", *arguments, code=code)
    told = json.loads(Path("run.json").read_text())
    return {trial["case"]: trial for trial in told["trials"]}


def test_a_case_that_allocates_takes_the_same_alone_and_after_another():
    """It was 4 times as slow alone: glibc trimmed its heap in each launch.

    Its 19 MB are 4,700 pages, of which the last launch touched none for the first time.
    """
    how = ("--mode", "kernel/warm", "--blocks", "1", "--no-check")
    for words in ((), ("-k", "temporaries")):
        measured("suite.py", *how, *words)
        assert int(Path("faults").read_text()) < 100
    said = " ".join(command("compare", "@-2", "@-1").split())
    assert "selection" in said
    assert "2, 1 of them not in new" in said
    run = json.loads(command("show", "--format", "json"))
    assert "never trims" in run["machine"]["settings"]["freed_memory"]


QUICK = """
from steelyard import benchmark


@benchmark
def quick(b):
    return b.launch(int)
"""


def program(*arguments, folder, extra="", environment=None):
    """Run the command line in a process of its own, as a shell does."""
    line = shlex.join([sys.executable, "-m", "steelyard.cli", *arguments])
    return subprocess.run(
        ["sh", "-c", f"{line} {extra}"],
        cwd=folder,
        env=os.environ | (environment or {}),
        capture_output=True,
        timeout=600,
        check=False,
    )


IMPORTS = {
    "a_folder": "import os; os.chdir('/')",
    "b_streams": "import sys; sys.stdout = None; sys.stderr = None",
    "c_path": "import sys; sys.path[:] = []; sys.setrecursionlimit(60)",
    "d_variables": "import os; os.environ.clear()",
    "e_errors": "import warnings; warnings.simplefilter('error')",
    "f_signals": "import signal; signal.signal(signal.SIGALRM, lambda *_: None); "
    "signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)",
    "g_thread": "import threading; threading.Thread(target=threading.Event().wait).start()",
}
"""What suites do when they are imported, each in a file of its own."""


def test_what_imports_of_suites_do_stays_within_them(desk):
    """The command printed nothing, looked in another folder, or never ended."""
    (desk / "mine.py").write_text("from numpy import negative")
    for name, act in IMPORTS.items():
        suite = QUICK.replace("def quick", f"def {name}")
        text = f"from mine import negative\n{suite}\n{act}\n"
        shell.files(desk, {f"rude/{name}.py": text})
    place = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), "."])}
    done = program("list", "rude", folder=desk, environment=place)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.decode().splitlines()]
    assert names == [*IMPORTS]
    how = ("--blocks", "1", "--mode", "kernel/warm", "--no-check", "--precision", "50")
    done = program("run", "rude", *how, folder=desk, environment=place)
    assert done.returncode == 0, done.stderr
    measured = json.loads(command("show", "--format", "json"))["trials"]
    assert {trial["case"] for trial in measured} == {*IMPORTS}


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_a_run_may_have_no_streams(desk, closed):
    """The store had the number of standard error, and what was printed was in it."""
    (desk / "quick.py").write_text(QUICK)
    how = ("run", "quick.py", "--blocks", "1", "--mode", "kernel/warm", "--no-check")
    assert program(*how, folder=desk, extra=closed).returncode == 0
    assert json.loads(command("show", "--format", "json"))["trials"]


def test_a_folder_that_is_gone_is_a_sentence(desk, monkeypatch):
    """No traceback of ours, where the process begins there too."""
    gone = desk / "gone"
    gone.mkdir()
    script = f"cd {gone}; rmdir {gone}; {sys.executable} -m steelyard.cli run"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode in {0, 4}
    for words in ("list", "show", "doctor"):
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        done = shell.command(words, code={0, 4})
        monkeypatch.chdir(desk)
        assert "Traceback" not in done.output


def test_names_that_are_not_utf_8_are_refused_in_a_sentence(desk, monkeypatch):
    """Of the folder, of a file, and of a tag."""
    folder = Path(os.fsdecode(os.fsencode(desk) + b"/odd\xff"))
    folder.mkdir()
    name = os.fsdecode(b"bench\xfe.py")
    (folder / name).write_text(QUICK)
    how = ("run", name, "--blocks", "1", "--mode", "kernel/warm")
    done = program(*how, folder=folder)
    assert b"Traceback" not in done.stderr, done.stderr
    assert b"is not UTF-8. Rename" in done.stderr
    monkeypatch.chdir(folder)
    for words in (("show",), ("list", name), ("doctor",)):
        done = shell.command(*words, code=None)
        assert "Traceback" not in done.stderr
        assert ("is not UTF-8. Rename" in done.stderr) == (name in words), done.output
    (desk / "quick.py").write_text(QUICK)
    monkeypatch.chdir(desk)
    how = ("run", "quick.py", "--blocks", "1", "--mode", "kernel/warm")
    done = shell.command(*how, "--tag", os.fsdecode(b"a\xfd"), code=4)
    assert "--tag is 'a\\udcfd'" in done.output


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--timeout", "1e300"), "--timeout is 1e+300, expected a number above 0 and"),
        (("--budget", "1e300"), "--budget is 1e+300, expected a number above 0 and"),
        (("--blocks", "1000000000", "--dry-run"), "1000000000 turns; nothing was"),
    ],
)
def test_what_nobody_can_wait_for_ends_at_once(desk, option, said):
    """In a sentence."""
    (desk / "quick.py").write_text(QUICK)
    done = shell.command("run", "quick.py", *option, "--mode", "build/cold", code=None)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_text_of_others_controls_the_terminal(desk):
    """A lock file is anybody's, an error's text the suite's."""
    (desk / "lock").write_text(json.dumps({"pid": "\x1b[2J", "user": "x" * 10_000}))
    with lock.measuring(path=desk / "other"):
        said = lock.describe(lock.content(desk / "lock"))
    assert said.isprintable()
    assert len(said) < 1000
    (desk / "escape.py").write_text('raise ValueError("\\x1b[2J\\x07" + "x" * 100_000)')
    for words in (("list", "escape.py"), ("run", "\x1b[2J.py")):
        done = program(*words, folder=desk)
        assert done.returncode in {2, 4}
        assert b"\x1b" not in done.stdout + done.stderr
        assert len(done.stderr) < 30_000
    console = tables.console()
    with console.capture() as shown:
        console.print(Text("a\x1b[2Jb\u202ec", style="bold"))
    assert shown.get() == "a\\x1b[2Jb\\u202ec\n"


CALLS = """
import ctypes
import numpy as np

from steelyard import benchmark

C = ctypes.CDLL("libm.so.6").fabs
C.argtypes, C.restype = [ctypes.c_double], ctypes.c_double


def python(x, out):
    pass


def long(x, out):
    for _ in range(10):
        np.sqrt(x, out=out)


def once(x, out):
    np.sqrt(x, out=out)


@benchmark(of=["python", "ctypes", "numba", "long", "once"])
def call(b, of):
    if of == "ctypes":
        return b.launch(C, 1.5)
    x = b.input(100_000, "float64")
    y = b.output(100_000, "float64")
    if of == "numba":
        import numba

        return b.launch(numba.njit(lambda x, out: None), x, out=y)
    return b.launch({"python": python, "long": long, "once": once}[of], x, out=y)
"""


def test_a_call_that_is_a_visible_part_is_doubted_and_stands_beside(desk):
    """A function of Numba read 311 ns where its kernel takes 109, without a word."""
    (desk / "calls.py").write_text(CALLS)
    kinds = ["python", "ctypes", "long"]
    if importlib.util.find_spec("numba"):
        kinds.append("numba")
    how = ("--mode", "kernel/warm", "--blocks", "1", "--no-check")
    rows = measured("calls.py", *how, "-p", f"of={','.join(kinds)}")
    for kind in kinds:
        row = rows[f"call[of={kind}]"]
        assert ("python-call" in row["doubts"]) == (kind != "long"), row
        if kind != "long":  # these do nothing else
            assert 0.4 < row["floor"] / row["estimate"] < 2.5, row


def test_threads_that_flush_are_not_the_works_processor_time(desk):
    """One thread used 2.37 processors on two cores."""
    (desk / "calls.py").write_text(CALLS)
    how = ("--mode", "kernel/cold", "--blocks", "1", "--no-check", "--timeout", "600")
    measured("calls.py", *how, "-p", "of=once")
    with Store.open(str(desk / ".steelyard" / "steelyard.db")) as store:
        (trial,) = store.trials(store.find("@-1").uid)
    assert sum(trial.samples.cpu) < 1.2 * sum(trial.samples.ticks)
