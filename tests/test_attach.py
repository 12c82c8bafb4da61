"""A program that nobody rewrote: what is added up of it, and how it is run."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import shell
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import program
from steelyard.analyse.program import Events, ledger, period
from steelyard.commands import main
from steelyard.report import program_table

ABOUT = {"began": 0, "ended": 10_000, "code": 0, "note": "", "refused": 0, "spans": ""}


def events(*found, **about):
    """Return events of (kind, name, start, end, bytes)."""
    names = list(dict.fromkeys(name for _, name, *_ in found))
    columns = list(zip(*found, strict=True)) or [[]] * 5
    return Events(
        np.array([program.KINDS.index(kind) for kind in columns[0]], np.int8),
        np.array([names.index(name) for name in columns[1]], np.int32),
        *(np.array(column, np.int64) for column in (columns[2], columns[3])),
        np.zeros(len(found), np.int64),
        np.array(columns[4], np.int64),
        names,
        ABOUT | about,
    )


LOOP = [
    event
    for turn in range(100)
    for event in (
        ("kernel", "_Z5scalePf", 1000 * turn, 1000 * turn + 20, 0),
        ("kernel", "add", 1000 * turn + 500, 1000 * turn + 530, 0),
        ("copy", "in", 1000 * turn + 600, 1000 * turn + 640, 4096),
        ("wait", "wait", 1000 * turn + 640, 1000 * turn + 900, 0),
    )
]
"""A loop of two short kernels, a copy and a wait."""


def test_a_loop_of_short_kernels_is_mostly_idle():
    """50 ns of kernels in each microsecond, two launches an iteration."""
    found = ledger(events(*LOOP))
    assert (found.launches, found.iteration, found.apart) == (200, 2, 500)
    assert found.span == 99_530
    assert found.busy == 100 * 50
    assert [(k.name, k.count, k.total, k.gap) for k in found.kernels] == [
        ("add", 100, 3000, 480),
        ("_Z5scalePf", 100, 2000, 470),
    ]
    said = program_table.sentence(events(*LOOP), found)
    assert said == (
        "95 % of the 99.5 us between the first kernel and the last no kernel runs: 2 "
        "launches an iteration, 500 ns apart; the host waited 100 times."
    )


@given(st.lists(st.tuples(st.integers(0, 9999), st.integers(1, 500)), min_size=1))
def test_busy_time_is_that_of_the_union(spans):
    """Nanosecond by nanosecond."""
    spans = sorted(spans)
    found = ledger(events(*(("kernel", "k", a, a + n, 0) for a, n in spans)))
    first = spans[0][0]
    covered = {t for a, n in spans for t in range(a, a + n)}
    assert found.busy == len(covered)
    assert found.span == max(covered) + 1 - first


@pytest.mark.parametrize(
    ("names", "length"),
    [
        ([0] * 50, 1),
        ([7, 8, 9] * 2 + [0, 1, 1, 2] * 30, 4),
        (list(range(200)), 0),
        ([0, 1], 0),
        ([], 0),
    ],
)
def test_an_iteration_is_what_comes_again(names, length):
    """Behind a beginning of other launches; nothing where nothing repeats."""
    assert period(np.array(names, np.int32)) == length


def test_a_trace_has_works_and_no_invented_submissions():
    """Which call submitted a kernel is not known."""
    made = program_table.trace(events(*LOOP), "loop.py")["traceEvents"]
    assert {event["ph"] for event in made} == {"M", "X"}
    names = [event["name"] for event in made if event["ph"] == "X"]
    assert names.count("add") == names.count("scale(float*)") == 100
    assert names.count("copy in") == names.count("wait") == 100
    assert names[0] == "loop.py"


CUPTI = """
import enum, types

class ActivityKind(enum.IntEnum):
    MEMCPY = 1; MEMSET = 2; CONCURRENT_KERNEL = 10; MEMORY2 = 49; SYNCHRONIZATION = 38

class cuptiError(Exception):
    pass

class Numbers:
    def __getattr__(self, name):
        return 1

CallbackDomain = CallbackIdResource = DriverApiTraceCbid = Numbers()

def subscribe(called, user):
    return 1

def enable_callback(*words):
    pass

enabled, pending, take = set(), [], None

def get_timestamp():
    return len(pending)

def activity_register_callbacks(requested, completed):
    global take
    take = completed

def activity_enable(kind):
    enabled.add(kind)

def activity_disable(kind):
    enabled.discard(kind)

def activity_flush_all(flag):
    take(pending)

def launch(kind=10, end=None, **fields):
    if kind in enabled:
        start = 100 * len(pending)
        both = {"name": "k%d" % (len(pending) % 2), "start": start, "stream_id": 7,
                "end": start + 40 if end is None else end, "kind": kind}
        pending.append(types.SimpleNamespace(**both | fields))
"""
"""Stands in for the bindings; a program launches by it."""

PROGRAM = """
import sys
from cupti import cupti
print("ran", sys.argv[1:], __name__, sys.path[0])
for _ in range(30):
    cupti.launch(); cupti.launch()
cupti.launch(1, copy_kind=1, bytes=1 << 20)
cupti.launch(49, timestamp=5, memory_operation_type=1, bytes=1 << 21)
cupti.launch(38)
cupti.launch(end=0)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a program and a CUPTI that it launches by."""
    texts = {"cupti/__init__.py": "", "cupti/cupti.py": CUPTI, "prog.py": PROGRAM}
    return shell.files(tmp_path, texts)


def attach(folder, *words, **environment):
    """Run the command there in this process, the program in one of its own."""
    code, said = 0, []
    with pytest.MonkeyPatch.context() as patch, shell.printed(said):
        patch.chdir(folder)
        around = {"PYTHONPATH": str(folder), "COLUMNS": "160"}
        for name, value in (around | environment).items():
            patch.setenv(name, value)
        try:
            main(["attach", *map(str, words)])
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(words, code, *said)


@pytest.mark.parametrize("words", [("prog.py",), ("-m", "prog")])
def test_every_launch_of_a_program_is_counted(folder, words):
    """It runs as Python would run it, prints where it prints, ends as it ends."""
    place = folder / "t.json"
    line = ("--memory", "--trace", place, "--", "python", *words, "3", "-x")
    done = attach(folder, *line)
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"ran ['3', '-x'] __main__ {folder}\n"
    assert (
        "2 launches an iteration, 100 ns apart; the host waited 1 times" in done.stderr
    )
    for line in (r"k0 +30", r"k1 +30", r"copies in +1 .*1\.00 MiB", r"allocated +1"):
        assert re.search(line, done.stderr), line
    assert "1 activities are missing" in done.stderr
    made = json.loads(place.read_text())["traceEvents"]
    assert sum(event["name"] in {"k0", "k1"} for event in made) == 60


def test_what_slows_launches_down_is_recorded_on_request(folder):
    """Neither memory nor waits."""
    done = attach(folder, "--", "python", "prog.py", "0")
    assert "2 launches an iteration, 100 ns apart.\n" in done.stderr
    for word in ("allocated", "waits", "waited"):
        assert word not in done.stderr


def test_without_cupti_there_are_our_own_spans(tmp_path):
    """And a program that raises is one that does."""
    (tmp_path / "prog.py").write_text(
        "from steelyard_device.timings import span\n"
        "with span('mine'):\n    pass\nraise ValueError('so it is')\n"
    )
    (tmp_path / "cupti.py").write_text("raise ImportError('not here')\n")
    done = attach(tmp_path, "--", "python", "prog.py")
    assert done.returncode == 1
    assert "ValueError: so it is" in done.stderr
    assert "mine" in done.stderr
    assert "nothing is known of a GPU: there is no CUPTI here" in done.stderr


SPEEDSCOPE = json.dumps(
    {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": "main"}, {"name": "hot"}]},
        "profiles": [
            {
                "type": "sampled",
                "unit": "seconds",
                "samples": [[0, 1], [0]],
                "weights": [0.03, 0.01],
            }
        ],
    }
)


@pytest.mark.parametrize("name", ["py-spy", "perf"])
def test_stacks_are_sampled_by_what_is_installed(folder, name, tmp_path):
    """Where nothing is, that is said before the program runs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / name
    said = {"py-spy": SPEEDSCOPE, "perf": "recorded"}[name]
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = script ] && printf "main;hot 3\\nmain 1\\n" && exit\n'
        f"cat > {tmp_path}/said <<'END'\n{said}\nEND\n"
        'while [ "$1" != -- ]; do\n'
        f'  [ "$1" = -o ] && /bin/cp {tmp_path}/said "$2"\n  shift\ndone\n'
        'shift\nexec "$@"\n'.replace("cat ", "/bin/cat ")
    )
    tool.chmod(0o755)
    file = tmp_path / "stacks"
    line = ("--stacks", file, "--", "python", "prog.py", "0")
    done = attach(folder, *line, PATH=str(tools))
    assert done.returncode == 0, done.stderr
    assert re.search(r"hot.* 75\.0 %.* 75\.0 %", done.stderr), done.stderr
    assert re.search(r"main.* 25\.0 %.* 100\.0 %", done.stderr), done.stderr
    assert f"{file}, by {name}: " in done.stderr
    assert file.read_text() == f"{said}\n"
    assert "2 launches an iteration" in done.stderr
    done = attach(folder, *line, PATH="/nowhere")
    assert (done.returncode, done.stdout) == (4, "")
    assert "neither py-spy nor perf is installed" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("python",),
        ("python", "-m"),
        ("python", "-u", "x.py"),
        ("python", "-c", "1"),
        (),
        ("/nowhere/python", "x.py"),
    ],
)
def test_what_is_no_program_of_pythons_is_refused(tmp_path, words):
    """In a sentence."""
    done = attach(tmp_path, "--", *words)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert ("expected -- python" in done.stderr) or ("cannot be started" in done.stderr)


@pytest.mark.parametrize("leave", ["os._exit(7)", "os._exit(status=7)"])
def test_a_program_may_end_its_process_at_once(folder, leave):
    """By `os._exit`; a child that it forked says nothing for it."""
    (folder / "prog.py").write_text(
        "import os\nfrom cupti import cupti\ncupti.launch(name='mine')\n"
        "if os.fork() == 0:\n    cupti.launch(name='other')\n    os._exit(3)\n"
        f"os.wait()\n{leave}\n"
    )
    done = attach(folder, "--", sys.executable, "prog.py")
    assert done.returncode == 7, done.stderr
    assert re.search(r"mine +1", done.stderr), done.stderr
    assert "other" not in done.stderr


def test_a_program_whose_process_ends_elsewhere_is_said_to(tmp_path):
    """In C, for example, and then there is nothing to show; or it takes too long."""
    (tmp_path / "prog.py").write_text("import ctypes\nctypes.CDLL(None)._exit(7)\n")
    done = attach(tmp_path, "--", sys.executable, "prog.py")
    assert done.returncode == 7
    assert "exit code 7 ended the program: nothing is known of it" in done.stderr
    (tmp_path / "prog.py").write_text("import time\ntime.sleep(60)\n")
    done = attach(tmp_path, "--timeout", "1", "--", "python", "prog.py")
    assert done.returncode == 4
    assert "was not done within 1 s" in done.stderr


def test_a_capture_says_why_there_is_none(folder, tmp_path):
    """Of a kernel that nobody launched, without CUPTI, and half an option."""
    line = ("--", "python", "prog.py", "0")
    done = attach(folder, "--capture", "k0", *line)
    assert (done.returncode, done.stdout) == (4, "")
    assert "--capture KERNEL needs -o FILE.syc" in done.stderr
    done = attach(folder, "--capture", "k0", "-o", tmp_path / "x.txt", *line)
    assert "a capsule's name ends in .syc" in done.stderr
    done = attach(folder, "--capture", "k9", "-o", tmp_path / "x.syc", *line)
    assert done.returncode == 4
    assert "2 launches an iteration" in done.stderr
    assert "0 launches of k9 were seen, and 1 was wanted" in done.stderr
    assert not (tmp_path / "x.syc").exists()


def test_modules_come_from_where_python_takes_them(folder):
    """Of a script its folder, not the one that it is started in."""
    texts = {
        "inner/own.py": "print('own')\n",
        "inner/prog.py": "import own\nimport other\n",
        "other.py": "print('other')\n",
    }
    shell.files(folder, texts)
    done = attach(folder, "--", "python", "inner/prog.py", PYTHONPATH="")
    assert (done.returncode, done.stdout) == (1, "own\n"), done.stderr
    assert "No module named 'other'" in done.stderr


def test_threads_and_exit_functions_are_of_the_program(folder):
    """Their launches count, and they find the program's own `__main__`."""
    (folder / "prog.py").write_text(
        "import atexit, sys, threading, time\n"
        "from cupti import cupti\n"
        "def late():\n"
        "    time.sleep(0.2)\n"
        "    [cupti.launch() for _ in range(3)]\n"
        "    sys.modules['__main__'].launched\n"
        "launched = threading.Thread(target=late)\n"
        "launched.start()\n"
        "atexit.register(cupti.launch, name='last')\n"
    )
    done = attach(folder, "--", "python", "prog.py")
    assert done.returncode == 0, done.stderr
    for line in (r"k0 +2", r"k1 +1", r"last +1"):
        assert re.search(line, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("import sys\nsys.excepthook = lambda *a: print('hook')\n1 / 0", 1, "hook\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", 143, ""),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 137, ""),
        ("import sys\nsys.exit('so it is')", 1, ""),
    ],
)
def test_a_program_ends_as_it_would_have(folder, text, code, says):
    """Its hook is called, a signal is named, and no frame of ours is shown."""
    (folder / "prog.py").write_text(text + "\n")
    done = attach(folder, "--", "python", "prog.py")
    assert (done.returncode, done.stdout) == (code, says), done.stderr
    assert "attached.py" not in done.stderr
    assert "runpy" not in done.stderr
    if code > 130:
        assert "SIGTERM" in done.stderr or "SIGKILL" in done.stderr
