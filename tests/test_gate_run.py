import json
import math
import mmap
import os
import random
from collections import Counter
from dataclasses import replace

import pytest
import shell
import test_gate_sides
import trials
from fakes import case_of
from shell import git
from test_gate_sides import SUITE, homes, project

from steelyard.analyse.trial import METHOD_VERSION
from steelyard.analyse.verdict import Verdict
from steelyard.declare.mode import parse
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED, USAGE, SteelyardError
from steelyard.gate import findings, stored
from steelyard.gate.blocks import Point
from steelyard.store import run as runs
from steelyard.store.store import Store

__all__ = ["project"]

KERNEL = """
import numpy

def work(x, out):
    for _ in range({turns}):
        numpy.multiply(x, 1.0, out=out)
"""


@pytest.fixture
def shop(project, monkeypatch):
    """Give a project whose kernel and suite are written anew by the test."""
    monkeypatch.setenv("PYTHONPATH", str(project / "src"), prepend=os.pathsep)
    write(project, turns=10)
    shell.commit(project, "second")
    return project


def write(root, *, turns, sizes="1000"):
    """Write a kernel that does its work so many times, and a suite."""
    test_gate_sides.write(root, KERNEL.format(turns=turns), sizes)


def steelyard(folder, *arguments):
    """Run a command there, and return its exit code and output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = shell.command(*arguments, code=None)
    return done.exit_code, done.stdout, done.stderr


def gate(folder, baseline="HEAD", *arguments):
    """Run a gate; return its exit code and the findings by their cases."""
    code, output, errors = steelyard(
        folder, "gate", baseline, "--format", "json", *arguments
    )
    document = json.loads(output) if output.startswith("{") else {"error": errors}
    found = {one["case"]: one for one in document.get("findings", ())}
    return code, found, document


@pytest.mark.measuring
def test_work_that_is_done_twice_is_a_regression(shop, tmp_path):
    """Found against the commit, stored side by side, and nothing of base is left."""
    write(shop, turns=20)
    code, found, document = gate(shop)
    assert (code, found["adding[n=1000]"]["verdict"]) == (REGRESSION, "slower")
    assert found["adding[n=1000]"]["judgement"]["low"] > 1.01
    assert found["adding[n=1000]"]["file"].endswith("suites/adding.py")
    assert homes(tmp_path) == []
    with Store.open(str(shop / ".steelyard" / "steelyard.db")) as store:
        base, head = store.runs()
        assert (base.tags, head.tags) == (("gate/base",), ("gate/head",))
        assert document["runs"] == {"base": base.uid, "head": head.uid}
        assert {base.state, head.state} == {"finished"}
        assert base.commit == git(shop, "rev-parse", "HEAD")
        counts = [len(store.trials(side.uid)) for side in (base, head)]
    assert counts[0] == counts[1] >= found["adding[n=1000]"]["judgement"]["blocks"]


def test_a_case_that_fails_on_head_fails_and_a_vanished_one_too(shop):
    """Whatever the other cases do; a mode that base's case has vanishes as well."""
    write(shop, turns=10, sizes="1000, 2000")
    suite = shop / "suites" / "adding.py"
    both = suite.read_text().replace('"kernel/warm"', '"kernel/warm", "kernel/cold"')
    suite.write_text(both)
    git(shop, "commit", "-qam", "in two modes")
    write(shop, turns=0, sizes="2000")
    code, found, document = gate(shop)
    assert code == FAILED
    gone = [one for one in document["findings"] if one["mode"] == "kernel/cold"]
    assert [(one["case"], one["note"]) for one in gone] == [
        ("adding[n=2000]", "vanished: only the base has this mode")
    ]
    found = {one["case"]: one for one in document["findings"] if one not in gone}
    assert "wrote nothing" in found["adding[n=2000]"]["note"]
    assert found["adding[n=1000]"]["note"].startswith("vanished")
    assert {one["verdict"] for one in found.values()} == {None}


TOGETHER = """
from steelyard import benchmark
{imports}

def kernel(x, out):
    out[:] = ({factor}) * x

@benchmark(n=[{sizes}])
def {name}(b, n):
    b.mode("kernel/warm")
    x = b.input(n)
    y = b.output(n)
    b.check(lambda x: x, x){more}
    return b.launch({work}, x, out=y)
"""


def together(shop, name, factor="1", **changes):
    """Write a suite with its kernel."""
    usual = {"sizes": "100", "work": "kernel", "imports": "", "more": ""}
    text = TOGETHER.format(name=name, factor=factor, **{**usual, **changes})
    (shop / "suites" / f"{name}.py").write_text(text)


def test_a_kernel_in_a_suite_is_each_sides_own(shop):
    """As the README has it."""
    (shop / "suites" / "adding.py").unlink()
    together(shop, "scaling")
    shell.commit(shop, "a kernel in a suite")
    together(shop, "scaling", "[] and 1")  # fails
    code, found, _ = gate(shop)
    assert (code, found["scaling[n=100]"]["verdict"]) == (FAILED, None)
    git(shop, "commit", "-qam", "a kernel that fails")
    together(shop, "scaling")
    code, _, document = gate(shop)
    assert "the baseline runs none of 1 cases" in document["problem"]["sentence"]


WAYS = {
    "called": {},
    "object": {
        "work": "type('Work', (), {'__call__': lambda self, x, out: kernel(x, out)})()"
    },
    "wrapped": {"work": "wrap(kernel)", "imports": "from mine import wrap"},
    "partial": {
        "work": "bind(kernel)",
        "imports": "from functools import partial as bind",
    },
    "aside": {"work": "helper", "imports": "from helping import helper"},
    "moved": {},
    "kept": {},
}
"""Ways to launch a kernel that lies in a suite."""


def test_a_kernel_in_suites_that_both_sides_share_is_never_the_same(shop):
    """Both run the checkout's of cases that changed; the others' are each side's own."""
    mine, suites = shop / "src" / "mine" / "__init__.py", shop / "suites"
    wrap = "\ndef wrap(f):\n    return lambda x, out: f(x, out)\n"
    mine.write_text(mine.read_text() + wrap)
    for name, way in WAYS.items():
        together(shop, name, **way)
    helping = "def helper(x, out):\n    out[:] = {} * x\n"
    (suites / "helping.py").write_text(helping.format("1"))
    shell.commit(shop, "kernels in suites")
    (suites / "moved.py").rename(suites / "elsewhere.py")
    (suites / "helping.py").write_text(helping.format("1.0"))
    for name in WAYS.keys() - {"moved"}:
        more = "\n    b.count(items=n)" * (name != "kept")
        together(shop, name, "1.0", sizes="100, 200", more=more, **WAYS[name])
    write(shop, turns=11)
    mine.write_text(mine.read_text() + wrap)
    code, found, document = gate(shop, "HEAD", "--budget", "0.01")
    assert code == UNRESOLVED
    (note,) = document["notes"]
    assert note.startswith("aside[n=100] and 5 more: the benchmark, its data, modes or")
    told = "both sides ran the checkout's"
    for name in WAYS:
        assert (told in found[f"{name}[n=100]"]["note"]) == (name != "kept"), name
    for name in WAYS.keys() - {"moved"}:
        one = found[f"{name}[n=200]"]
        assert (one["new"], one["verdict"], one["judgement"]) == (True, None, None)
    assert told not in found["adding[n=1000]"]["note"]


LOADING = """
import mmap
from pathlib import Path

try:
    file = Path(__file__).with_name("core.so").open("rb")
    core = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
except OSError:
    pass
"""


def test_a_base_that_does_without_a_library_is_not_compared(shop):
    """What the checkout built in place the base has not: it may run something slow."""
    code = shop / "src" / "mine" / "__init__.py"
    code.write_text(LOADING + code.read_text())
    (shop / ".gitignore").write_text("*.so\n.steelyard\n")
    shell.commit(shop, "a library")
    library = code.with_name("core.so")
    library.write_bytes(b"x" * mmap.PAGESIZE)
    code, found, _ = gate(shop, "HEAD", "--budget", "0.01")
    assert code == USAGE
    assert (
        "the checkout has loaded core.so, the base" in found["adding[n=1000]"]["note"]
    )


def test_a_base_whose_suites_cannot_be_imported_gives_no_verdict(shop):
    """A suite that is new beside them does not make all of them new."""
    broken = shop / "src" / "mine" / "__init__.py"
    sound = broken.read_text()
    broken.write_text(f"import nosuchmodule\n{sound}")
    git(shop, "commit", "-qam", "broken")
    broken.write_text(sound)
    fresh = SUITE.format(sizes="500").replace("def adding", "def fresh")
    shell.files(shop, {"fresh/more.py": fresh})
    code, found, document = gate(shop, "HEAD", "suites", "fresh")
    assert (code, found) == (USAGE, {})
    assert "base's own suites cannot be read" in document["problem"]["sentence"]
    assert "nosuchmodule" in document["problem"]["sentence"]
    code, found, _ = gate(shop, "HEAD", "fresh")  # base has no such suite
    assert (code, found["fresh[n=500]"]["is"]) == (FINE, "new")


def test_a_gate_without_time_is_unresolved(shop):
    """And leaves the verdict open, case by case."""
    code, found, _ = gate(shop, "HEAD", "--budget", "0.01")
    assert code == UNRESOLVED
    assert found["adding[n=1000]"]["verdict"] == "unresolved"


@pytest.mark.measuring
def test_a_stored_run_tells_only_what_is_far_beyond_noise(shop):
    """Ten times the work is; the same work is unresolved, and the table says why."""
    assert steelyard(shop, "run", "--blocks", "2", "--tag", "old")[0] == FINE
    code, found, document = gate(shop, "old")
    assert found, document
    assert (code, found["adding[n=1000]"]["verdict"]) == (UNRESOLVED, "unresolved")
    assert any("another time" in note for note in document["notes"])
    write(shop, turns=100)
    code, found, _ = gate(shop, "old")
    assert (code, found["adding[n=1000]"]["verdict"]) == (REGRESSION, "slower")


UNEVEN = """
import itertools
import time

CALLS = itertools.count()

def work(x, out):
    slow = next(CALLS) % 10 < {slow}
    end = time.perf_counter_ns() + 400_000 * (1 + 1.5 * slow)
    while time.perf_counter_ns() < end:
        pass
    out[:] = x
"""


@pytest.mark.measuring
def test_work_that_is_slower_in_six_of_ten_calls_is_a_regression(shop):
    """Its quickest fifth is as quick as before; 1.9 times the mean was the same."""
    place = shop / "src" / "mine" / "__init__.py"
    place.write_text(UNEVEN.format(slow=0))
    git(shop, "commit", "-q", "-am", "even")
    place.write_text(UNEVEN.format(slow=6))
    code, found, _ = gate(shop, "HEAD")
    (one,) = found.values()
    assert (code, one["verdict"]) == (REGRESSION, "spread"), one
    assert one["judgement"]["ratio"] > 1.5


QUIET = [0.0, 0.001, -0.001, 0.002, 0.0, -0.002]


@pytest.mark.parametrize(
    ("change", "past", "verdict"),
    [
        (0.1, QUIET, Verdict.SLOWER),
        (-0.1, QUIET, Verdict.FASTER),
        (0.015, QUIET, Verdict.UNRESOLVED),
        (0.1, QUIET[:4], Verdict.UNRESOLVED),
        (0.5, QUIET[:4], Verdict.SLOWER),
        (0.1, [40 * move for move in QUIET], Verdict.UNRESOLVED),
        (0.0, QUIET, Verdict.UNRESOLVED),
    ],
)
def test_numbers_of_another_time_are_judged_by_how_much_a_case_moves(
    change, past, verdict
):
    """By its history; where that is short it is taken to be a restless one."""
    old, new = [0.0, 0.001, -0.001], [change, change + 0.001]
    made = stored.judge(old, new, past)
    assert made.verdict is verdict
    assert made.ratio.low < made.ratio.value < made.ratio.high
    assert made.ratio.value == pytest.approx(math.exp(change), rel=0.01)


def test_runs_before_a_step_of_the_past_do_not_count():
    """They would hide any change: +50 % was never reported over a step of 30 %."""
    draw = random.Random(1)
    for before in (3, 6, 9):
        past = [draw.gauss(0.26 * (n >= before), 0.01) for n in range(before + 9)]
        assert stored.judge([0.26], [0.26 + 0.4], past).verdict is Verdict.SLOWER


@pytest.mark.parametrize("runs", [5, 24])
def test_few_runs_of_the_past_are_no_reason_for_an_alarm(runs):
    """Fewer than one of a thousand unchanged cases is slower, however few they are."""
    draw, found = random.Random(runs), Counter()
    for _ in range(1000):
        past = [draw.gauss(0, 0.03) for _ in range(runs)]
        old, new = ([draw.gauss(0, 0.03)] for _ in range(2))
        found[stored.judge(old, new, past).verdict] += 1
    assert found[Verdict.SLOWER] <= 1
    assert found[Verdict.FASTER] <= 1


def fill(store, **changes):
    """Store a run with one trial, and return it."""
    run = trials.run(**changes)
    made = trials.trial(hashes={"method": str(METHOD_VERSION), "inputs": "i"})
    store.keep(run, [made])
    return run


def test_runs_that_do_not_compare_are_refused_with_what_differs(tmp_path):
    """Another machine, driver, or method; and a run without a number."""
    with Store.open(str(tmp_path / "s.db")) as store:
        base, head = fill(store), trials.run()
        stored.require_comparable(base, head, store)
        other = trials.FACTS | {"identity": {"id": "ffff"}}
        with pytest.raises(SteelyardError, match="two machines"):
            stored.require_comparable(base, replace(head, machine=other), store)
        gpus = [
            trials.FACTS | {"gpu": trials.GPU | {"driver": driver}}
            for driver in ("580", "590")
        ]
        sides = [replace(base, machine=gpus[0]), replace(head, machine=gpus[1])]
        with pytest.raises(SteelyardError, match="driver 580 -> 590"):
            stored.require_comparable(*sides, store)
        empty = trials.run()
        store.begin(empty)
        with pytest.raises(SteelyardError, match="no number"):
            stored.require_comparable(empty, head, store)
        old = trials.run()
        store.begin(old)
        store.add(old.uid, trials.trial(hashes={"method": "1"}))
        with pytest.raises(SteelyardError, match="method 1 and this is method"):
            stored.require_comparable(old, head, store)


def test_each_case_of_a_stored_run_has_its_finding(tmp_path):
    """Identical code, other inputs, what vanished, failed, is new, or is no time."""

    def copying(b):
        x = b.input((4,), "float32")
        return b.launch(lambda x: None, x)

    case = case_of(copying)
    points = [Point(case, parse(mode)) for mode in MODES]
    with Store.open(str(tmp_path / "s.db")) as store:
        base, head = trials.run(), trials.run()
        for run in (base, head):
            store.begin(run)
        for place, (mode, (old, new, _)) in enumerate(MODES.items()):
            for run, changes in ((base, old), (head, new)):
                if changes is not None:
                    ticks = changes.pop("ticks", [1000] * 8)
                    made = trials.trial("copying", ticks, mode=mode, **changes)
                    store.add(run.uid, replace(made, position=place))
        store.add(base.uid, trials.trial("gone", position=99))
        found = list(stored.findings(store, base, head, points))
    said = {one.mode: (one.verdict, one.note.partition(":")[0]) for one in found[:-1]}
    assert said == {mode: expected for mode, (_, _, expected) in MODES.items()}
    assert (found[-1].case, found[-1].note.partition(":")[0]) == ("gone", "vanished")


MODES = {
    "kernel/warm": ({}, {}, (Verdict.IDENTICAL_CODE, "")),
    "latency/warm": ({}, {}, (Verdict.UNRESOLVED, "")),
    "kernel/cold": (
        {},
        {"hashes": {"inputs": "other", "method": "1"}},
        (Verdict.UNRESOLVED, "not comparable"),
    ),
    "latency/warm/8": ({"error": "it fails"}, {}, (Verdict.UNRESOLVED, "base failed")),
    "latency/warm/64": (None, {}, (None, "new")),
    "per_launch/warm/8": ({}, {"error": "it fails"}, (None, "it fails")),
    "per_launch/warm/64": ({}, {"ticks": [-1, 5]}, (None, "copying")),
    "kernel/warm/dependent": ({}, None, (None, "it was not measured")),
}


def test_the_newest_runs_of_this_machine_alone_are_its_history(tmp_path):
    """Another machine's say nothing of how much a case moves here."""
    with Store.open(str(tmp_path / "s.db")) as store:
        fill(store)
        fill(store, machine=trials.FACTS | {"identity": {"id": "ffff"}})
        head = trials.run()
        past = stored._past(store, head, {head.uid})
    assert [len(values) for values in past.values()] == [1]
    assert runs.select([head], head.uid, "s") is head
    assert list(findings.vanished([], [])) == []
