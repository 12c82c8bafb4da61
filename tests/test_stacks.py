"""Stacks that others sampled: read, added up, drawn, and refused in a sentence."""

import json

import pytest
import shell

from steelyard.machine.decoding import Malformed
from steelyard.process import stacks
from steelyard.report.pages import icicle

FRAMES = [
    {"name": "_run", "file": "/x/steelyard/process/attached.py", "line": 9},
    {"name": "<module>", "file": "/y/prog.py", "line": 1},
    {"name": "work", "file": "/y/prog.py", "line": 2},
    {"name": "import_module", "file": "importlib/__init__.py"},
    {"name": "<module>", "file": "/x/steelyard/process/attached.py"},
]


def scope(*profiles, frames=FRAMES):
    """Return a file of Speedscope's."""
    head = {"$schema": "https://www.speedscope.app/file-format-schema.json"}
    made = head | {"shared": {"frames": frames}, "profiles": profiles}
    return json.dumps(made).encode()


SAMPLED = {
    "type": "sampled",
    "name": "main",
    "unit": "seconds",
    "samples": [[0, 1], [0, 1, 2], [0, 1, 2], [4, 3], [3]],
    "weights": [0.01, 0.01, 0.02, 0.5, 0.1],
}

EVENTED = {
    "type": "evented",
    "name": "main",
    "unit": "milliseconds",
    "events": [
        {"type": "O", "frame": 1, "at": 0},
        {"type": "O", "frame": 2, "at": 10},
        {"type": "C", "frame": 2, "at": 30},
        {"type": "C", "frame": 1, "at": 40},
    ],
}

PERF = b"""
python 12 1.5:     250000 cpu-clock:pppH:
\t    55d8a PyLong_FromLong+0x1c (/usr/bin/python3)
\t    55d8b py::work:/y/prog.py (/tmp/perf-12.map)
\t    55d8c [unknown] (/usr/bin/python3)

python 12 1.6:     250000 cpu-clock:pppH:
\t    55d8b py::work:/y/prog.py (/tmp/perf-12.map)
\t    55d8c [unknown] (/usr/bin/python3)
"""


def test_samples_are_added_up_by_function():
    """Of each function what is its own, and what it calls; recursion counts once."""
    found = stacks.read(scope(SAMPLED))
    assert found.timed
    assert found.total == pytest.approx(0.64e9)
    program = stacks.of_program(found)
    assert program.functions() == [
        ("import_module (__init__.py)", 0.1e9, 0.1e9),
        ("work (prog.py)", pytest.approx(0.03e9), pytest.approx(0.03e9)),
        ("<module> (prog.py)", 0.01e9, pytest.approx(0.04e9)),
    ]
    again = stacks.read(b"main;f;f 3\nmain;f 1\n")
    assert again.functions() == [("f", 4, 4), ("main", 0, 4)]
    assert not again.timed


def test_calls_and_perfs_own_words_are_read_too():
    """By when a function is entered and left; and by lines, innermost first."""
    found = stacks.read(scope(EVENTED))
    whole, work = ("<module> (prog.py)",), ("<module> (prog.py)", "work (prog.py)")
    assert found.weights == {whole: 20e6, work: 20e6}
    found = stacks.read(PERF)
    shared = ("[unknown]", "py::work:/y/prog.py")
    assert found.weights == {shared: 1.0, (*shared, "PyLong_FromLong"): 1.0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no stacks here\n",
        b"main;f 0\n",
        b"main;f -3\n",
        b"main;f 3\nsomething else\n",
        b"{}",
        b'{"shared": {"frames": []}, "profiles": []}',
        scope(SAMPLED | {"weights": [1]}),
        scope(SAMPLED | {"samples": [[9]] * 5}),
        scope(SAMPLED | {"unit": 7}),
        scope({"type": "sampled", "unit": "seconds"}),
        scope(EVENTED | {"type": "sampled"}),
        scope(SAMPLED, frames=[{"file": "x"}]),
    ],
)
def test_what_is_no_stack_is_refused(content):
    """As all foreign files are."""
    with pytest.raises(Malformed):
        stacks.read(content)


def test_deep_and_hostile_stacks_are_a_page(tmp_path):
    """Recursion is cut, names are text, and the longest are a table."""
    deep = ";".join(f"f{n}" for n in range(5000))
    place = tmp_path / "x.folded"
    place.write_text(f"{deep} 90\nmain;<script>alert(1)</script> 10\n")
    done = shell.command("report", str(place), "-o", f"{tmp_path}/x.html")
    page = (tmp_path / "x.html").read_text()
    assert "<script>alert" not in page
    assert "90 samples" in page
    assert "10 samples" in page
    whole = icicle.of_stacks(stacks.read(place.read_bytes()))
    assert sum(1 for _ in whole.walk()) == stacks.DEEPEST + 2
    place.write_text("nothing\n")
    done = shell.command("report", str(place), "-o", f"{tmp_path}/x.html", code=4)
    assert "holds neither a trace nor stacks" in done.output
