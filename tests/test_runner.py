import contextlib
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import misbehaving
import numpy as np
import pytest
import shell
import trials
from fakes import die_when_asked

from steelyard import benchmark
from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings, plan
from steelyard.machine import alive, keeper
from steelyard.process import confirm, runner, wire
from steelyard.process.worker import CaseCache
from steelyard_device import cuda
from steelyard_device.errors import DeviceError

QUICK = Settings(precision=0.5, timeout=600)
"""Half the value either way, so that the first look at the interval settles it."""

QUICKEST = replace(QUICK, audit=False)
"""The same without launches that look for what no test here is about."""

LATENCY = [parse("latency/warm")]

FINE = None
OUTCOMES = {
    "good": FINE,
    "prints": FINE,
    "warns": FINE,
    "threads": FINE,
    "forks": FINE,
    "forks and returns": FINE,
    "returns things": FINE,
    "raises": r"the work raised .*Error: .* \(misbehaving\.py:\d+\)",
    "raises later": r"the work raised KeyError: 'key' \(misbehaving\.py:\d+\)",
    "recurses": "the work raised RecursionError",
    "exits": "the work raised SystemExit: 0",
    "exits later": "the work raised SystemExit: 3",
    "asks for too much": "the work raised .*MemoryError: Unable to allocate",
    "interrupts": r"the work raised KeyboardInterrupt \(misbehaving\.py:\d+\)",
    "raises past exceptions": r"the work raised BaseException: past \(misbe",
    "ends the process": "the worker ended with exit code 7 while measuring it",
    "crashes": "the worker died of SIGSEGV",
    "kills itself": "the worker died of SIGKILL",
    "closes everything": "the worker ended with exit code",
    "wrong": r"y is wrong in 1 of 64 elements: at \[2, 5\]",
    "wrong later": "the work wrote nothing to y",
    "allocates": "the work wrote nothing to y",
    "changes its input": "the work changed its input x",
    "sorts its input": "the work changed its input x",
    "overruns": r"the work wrote up to 4 bytes behind the end of y \(4, 16\)",
    "asks wrongly": "its reference raised TypeError",
    "is described wrongly": "raised RuntimeError: is described wrongly",
    "writes everywhere": "the worker's answer cannot be read: it is not a message",
    "patches json": FINE,
    "patches the encoder": FINE,
    "clears modules": "the work raised ",
    "hides modules": "the work raised ModuleNotFoundError",
    "raises a surrogate": r"the work raised ValueError: \\ud800",
    "raises escapes": r"the work raised ValueError: \\x1b\[2J",
    "raises no text": "the work raised Mute: its text cannot be had: SystemExit",
    "raises 100 MB": r"the work raised ValueError: x{1900}.* more characters",
    "interrupts its parent": FINE,
    "stops its parent": FINE,
    "pauses": FINE,
    "spawns": FINE,
}


def cases(*hows):
    """Return the cases of the misbehaving suite, by what they do."""
    (suite,) = discovery.discover([misbehaving.__file__])
    return select([suite], overrides={"how": hows})


def run(turns, settings=QUICK, on_turn=lambda _: None):
    """Return the trials that were told of."""
    told = []
    runner.run(turns, settings, told.append, on_turn)
    return told


def gone(pid):
    """Tell whether a process has ended, waiting for it to.

    One that nobody has waited for has ended with the last of its threads: until then
    its files are open.
    """
    path = Path(f"/proc/{pid}")
    for _ in range(100_000):
        try:
            ended = (path / "stat").read_text().rpartition(") ")[2][0] in "ZX"
            if ended and len(list((path / "task").iterdir())) == 1:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


CHILD = "STEELYARD_TEST_CHILD"
"""Names where a case that starts a process notes it."""


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory):
    """Measure every kind of misbehaviour in one run; return it and what was printed."""
    note, said = tmp_path_factory.mktemp("runner") / "child", []
    turns = plan(cases(*OUTCOMES), LATENCY, 1, seed=0)
    with pytest.MonkeyPatch.context() as patch, shell.printed(said):
        patch.setenv(CHILD, str(note))
        told = run(turns)
    return {trial.axes["how"]: trial for trial in told}, said, int(note.read_text())


@pytest.fixture
def outcomes(misbehaved):
    """Return the trials of that run, by what they do."""
    return misbehaved[0]


@pytest.mark.parametrize("how", OUTCOMES)
def test_whatever_a_case_does_is_said_and_the_run_goes_on(outcomes, how):
    """One trial a case; those that do no harm are measured like any other."""
    assert set(outcomes) == set(OUTCOMES)
    trial, said = outcomes[how], OUTCOMES[how]
    assert dict(trial.axes) == {"how": how, "shape": (4, 16)}
    if said is None:
        assert trial.error is None
        assert len(trial.samples) >= 3  # as many as the slowest machine has time for
        return
    assert trial.error.startswith(trial.case)
    assert trial.error.count(trial.case) == 1
    assert re.search(said, trial.error), trial.error
    assert trial.error.isprintable()
    assert len(trial.error) < 5000


def test_samples_before_an_error_are_kept(outcomes):
    """They are raw and may tell why; a case that never ran has none."""
    assert outcomes["raises later"].error
    assert len(outcomes["raises"].samples) == 0
    assert outcomes["good"].worker != os.getpid()


def test_a_case_that_hangs_is_ended_and_the_next_is_measured():
    """Its worker, which has started by then, is replaced after the timeout."""
    spins, good = (plan(cases(how), LATENCY, 1, 0) for how in ("spins", "good"))
    with runner.Workers() as workers:
        workers.measure(*good, QUICKEST)
        hung = workers.measure(*spins, replace(QUICKEST, timeout=0.5))
        fine = workers.measure(*good, QUICKEST)
    assert "no answer within 0.5 s; the worker was ended" in hung.error
    assert fine.error is None


def test_launches_that_take_long_together_are_measured():
    """Two dozen of 0.1 s in a turn: none is silent for as long as the timeout."""
    slow, good = (plan(cases(h), LATENCY, 1, 0) for h in ("takes its time", "good"))
    with runner.Workers() as workers:
        workers.measure(*good, QUICKEST)
        trial = workers.measure(*slow, replace(QUICK, timeout=1.5))
    assert trial.error is None
    assert trial.extra["wall_ns"] > 1.5e9


def test_a_case_that_failed_is_left_out_of_later_blocks():
    """It is told of once; the others have all their blocks, each with its own worker."""
    turns = plan(cases("good", "raises"), LATENCY, 2, seed=1)
    begun = []
    told = run(turns, QUICKEST, begun.append)
    assert [t.position for t in begun] == [t.position for t in told]
    failed = [t for t in told if t.error]
    good = [t for t in told if not t.error]
    assert [t.axes["how"] for t in failed] == ["raises"]
    assert [t.block for t in good] == [0, 1]
    assert len({t.worker for t in good}) == 2


def test_what_the_work_prints_is_no_part_of_standard_output(misbehaved):
    """It may be a report that a program reads."""
    _, (out, err), _ = misbehaved
    assert out == ""
    assert "printed by the work" in err
    assert "written by the work" in err


def test_of_what_the_work_prints_the_beginning_is_shown(capfd):
    """A terminal or a log of CI took 100 MB of a call that prints."""
    (trial,) = run(plan(cases("prints 10 MB"), LATENCY, 1, 0))
    out, err = capfd.readouterr()
    assert (trial.error, out) == (None, "")
    assert err.startswith("printed by the work\n" * 1000)
    assert err.endswith(keeper.LEFT_OUT.decode())
    assert len(err) == runner.PRINTED + len(keeper.LEFT_OUT)


@pytest.mark.parametrize("how", ["interrupts", "raises past exceptions"])
def test_work_that_raises_past_exceptions_prints_no_traceback(how, capfd):
    """It is no bug of the worker's, which has a session of its own."""
    (trial,) = run(plan(cases(how), LATENCY, 1, 0))
    assert trial.error
    assert capfd.readouterr().err == ""


def test_processes_that_the_work_started_end_with_its_worker(misbehaved):
    """They would disturb what is measured next."""
    found, _, child = misbehaved
    assert gone(child)
    assert gone(found["spawns"].worker)


def test_a_daemon_ends_with_the_run_also_where_that_is_killed(tmp_path):
    """It has a session of its own; it held what the run printed to, for ever."""
    script = (
        "import os, sys, test_runner as t\n"
        "turns = t.plan(t.cases('leaves a daemon'), t.LATENCY, 1, 0)\n"
        "t.run(turns) if sys.argv[1:] else "
        "t.runner.run(turns, t.QUICK, lambda _: os.kill(os.getpid(), 9), print)"
    )
    for arguments, code in ((["to its end"], 0), ([], -9)):
        note = tmp_path / f"child{code}"
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=Path(__file__).parent,
            env=os.environ | {CHILD: str(note)},
            stderr=subprocess.PIPE,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert gone(int(note.read_text()))


def test_a_worker_that_died_between_turns_is_not_the_next_cases_fault():
    """A thread of an earlier case may have ended it."""
    told = []

    def kill(trial):
        told.append(trial)
        assert trial.worker != os.getpid(), trial.error
        os.kill(trial.worker, 9)
        assert gone(trial.worker)

    turns = plan(cases("good"), [parse("latency/warm/8"), *LATENCY], 1, 0)
    runner.run(turns, QUICKEST, kill, lambda _: None)
    assert [trial.error for trial in told] == [None, None]


def test_a_worker_that_dies_as_it_is_asked_died_of_an_earlier_case(monkeypatch):
    """So a new one is asked; what that dies of is told, as of every other case."""
    die_when_asked(monkeypatch, {2})
    turns = plan(cases("good"), [parse("latency/warm/8"), *LATENCY], 1, 0)
    told = run(turns, replace(QUICK, check=False))
    assert [trial.error for trial in told] == [None, None]
    assert len({trial.worker for trial in told}) == 2


def test_a_worker_that_lost_its_gpu_is_replaced(monkeypatch):
    """Every later case of that process would fail; its answer is kept."""
    receive = wire.Pipe.receive

    def lost(pipe, seconds):
        return {**receive(pipe, seconds), "lost": True}

    monkeypatch.setattr(wire.Pipe, "receive", lost)
    turns = plan(cases("good"), [parse("latency/warm/8"), *LATENCY], 1, 0)
    told = run(turns, QUICKEST)
    assert [trial.error for trial in told] == [None, None]
    assert len({trial.worker for trial in told}) == 2
    assert all(gone(trial.worker) for trial in told)


@benchmark
def far(b):
    """Stand for a case on a GPU."""
    b.on("cuda")
    return b.launch(print)


@pytest.mark.parametrize(
    ("refusal", "lost"),
    [
        (None, False),
        (cuda.CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS", "gone"), True),
        (cuda.CUDAError("CUDA_ERROR_OUT_OF_MEMORY", "full"), False),
        (DeviceError("there is no GPU"), False),
    ],
)
def test_a_gpu_is_asked_whether_it_is_lost(monkeypatch, refusal, lost):
    """PyTorch's errors do not say, and a fault may come with the next call only."""

    class Context:
        def wait(self):
            if refusal:
                raise refusal

    asked = []
    monkeypatch.setattr(cuda, "context", lambda gpu: asked.append(gpu) or Context())
    bench = CaseCache(None)
    (turn,) = plan(far.cases(), LATENCY, 1, 0)
    assert bench.lost(turn, Settings(gpu=3)) is lost
    assert asked == [3]
    (turn,) = plan(cases("good"), LATENCY, 1, 0)
    assert bench.lost(turn, Settings()) is False
    assert asked == [3]


def test_no_turn_starts_when_the_budget_is_spent():
    """And none is told of."""
    turns = plan(cases("good", "raises"), LATENCY, 2, 0)
    begun = []
    assert run(turns, Settings(budget=0.0), begun.append) == []
    assert begun == []
    assert run((), QUICK) == []


def test_a_file_that_only_the_worker_cannot_import_is_named(tmp_path):
    """It changed since it was found; each case says so and the run goes on."""
    changed = {"raises": "raise RuntimeError('only in\\na worker')", "empty": ""}
    turns = []
    for name, text in changed.items():
        path = tmp_path / f"{name}.py"
        path.write_text(
            "from steelyard import benchmark\n"
            f"@benchmark(n=[1, 2])\ndef {name}(b, n):\n    return b.launch(print)\n"
        )
        turns += plan(select(discovery.discover([str(path)])), LATENCY, 1, 0)
        path.write_text(text)
    sys.path.remove(str(tmp_path))
    told = run([*turns, *plan(cases("good"), LATENCY, 1, 0)], QUICKEST)
    assert [trial.error is None for trial in told] == [False] * 4 + [True]
    said = ["RuntimeError: only in a worker"] * 2
    said += ["has no benchmark empty any more"] * 2
    assert all(words in trial.error for words, trial in zip(said, told, strict=False))
    assert {trial.worker for trial in told[:4]} == {os.getpid()}


def test_a_trial_comes_back_from_the_pipe_as_it_was():
    """Samples, clock and doubts as the tuples they were; whose it is, the run knows."""
    (turn, *_) = plan(cases("good"), LATENCY, 1, 0)
    trial = trials.trial(doubts=("few-samples",), error="it failed")
    asked = {"case": turn.case.id, "axes": turn.case.axes, "mode": "latency/warm"}
    own = replace(trial, **asked, position=0, block=0)
    for said in (trial, own):
        assert wire.trial_of(json.loads(json.dumps(asdict(said))), turn) == own


@pytest.mark.parametrize(
    "damage",
    [{"samples": None}, {"clock": {}}, {"doubts": 1}, {"more": 1}, {"samples": [1]}],
)
def test_what_is_no_trial_is_refused(damage):
    """A worker's answer may be written by what it measures."""
    (turn,) = plan(cases("good"), LATENCY, 1, 0)
    with pytest.raises(wire.Garbled, match="it is no trial"):
        wire.trial_of(
            {**json.loads(json.dumps(asdict(trials.trial()))), **damage}, turn
        )


@pytest.fixture
def ends():
    """Return both ends of a pipe, and the socket of the first."""
    one, other = socket.socketpair()
    yield wire.Pipe(one), wire.Pipe(other), one
    one.close()
    other.close()


def test_facts_of_foreign_types_cross_the_pipe(ends):
    """As numbers where they are numbers, as text otherwise."""
    here, there, _ = ends
    here.send({"bytes": np.int64(8), "x": np.array([2.5]), "path": Path("/a")})
    assert there.receive(60) == {
        "protocol": wire.PROTOCOL,
        "bytes": 8,
        "x": 2.5,
        "path": "/a",
    }
    assert there.silent()


def message(content):
    """Return a message with this content."""
    return wire.HEADER.pack(wire.MARK, len(content)) + content


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"written to every descriptor\n", "what something else wrote"),
        (wire.HEADER.pack(wire.MARK, 1 << 60), "what something else wrote"),
        (message(b"\xff"), "not JSON"),
        (message(b"{" * 20), "not JSON"),
        (message(b"[" * 100_000), "not JSON"),
        (message(b"[1]"), "not of protocol"),
        (message(b'{"protocol": 0}'), "not of protocol"),
    ],
)
def test_what_is_no_message_is_refused(ends, sent, said):
    """At once, whatever length it claims to have."""
    _, there, raw = ends
    raw.sendall(sent)
    assert not there.silent()
    with pytest.raises(wire.Garbled, match=said):
        there.receive(60)


def test_a_message_that_never_ends_is_given_up(ends):
    """After the seconds for all of it; one end gone is the end of it."""
    _, there, raw = ends
    raw.sendall(message(b"{}")[:-1])
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    raw.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        there.receive(1e300)


@pytest.mark.parametrize(("signs", "comes"), [(9, True), (0, False)])
def test_a_sign_of_life_is_waited_behind_as_long_again(ends, signs, comes, monkeypatch):
    """The answer may take any time, if nothing is silent for longer than asked."""
    here, there, raw = ends
    clock = itertools.count()  # each look at it takes a second
    monkeypatch.setattr(wire, "monotonic", lambda: next(clock))
    for _ in range(signs):
        here.sign()
    if comes:
        here.send({"trial": 1})
    else:
        raw.sendall(message(b"{}")[:9])
    with contextlib.nullcontext() if comes else pytest.raises(TimeoutError):
        assert there.receive(4)["trial"] == 1
    assert next(clock) > 4


def test_signs_of_life_are_told_now_and_then(monkeypatch):
    """Of steps of 3 s every fourth where 10 s are to lie between two; else none."""
    told, clock = [], itertools.count(100, 3)
    monkeypatch.setattr(alive, "monotonic", lambda: next(clock))
    signs = alive.Signs(lambda: told.append(next(clock)), seconds=10)
    for _ in range(9):
        signs.step()
    assert len(told) == 3
    quiet = alive.Signs(lambda: told.append(None))
    quiet.step()
    assert None not in told


def test_a_request_asks_for_the_same_turn():
    """Case, mode, block and position; tuples among the axes stay tuples."""
    (turn,) = plan(cases("good"), [parse("latency/warm/allocated/8")], 1, 0)
    asked = json.loads(json.dumps(wire.request(turn, QUICK)))
    again = wire.turn_of(asked)
    assert again.case.id == turn.case.id
    assert again.case.axes == turn.case.axes
    assert (again.mode, again.block, again.position) == (turn.mode, 0, 0)
    assert Settings(**asked["settings"]) == QUICK


SHARED = """
import ctypes, os
import numpy as np
from steelyard import benchmark

WORK = {
    "good": np.negative,
    "slower": lambda x, out: [np.negative(x, out=out) for _ in range(9)],
    "wrong": np.abs,
    "raises": lambda x, out: x + "",
    "crashes": lambda x, out: ctypes.string_at(0),
    "is larger": np.negative,
}

@benchmark(how=list(WORK))
def shared(b, how):
    x = b.input(65 if how == "is larger" else 64)
    y = b.output(x.shape)
    b.check(np.negative, x)
    return b.launch(WORK[how], x, out=y)
"""


@pytest.mark.parametrize("other", ["raises", "crashes", "is larger"])
def test_cases_are_measured_in_rounds_and_fail_alone(tmp_path, other):
    """Also where one ends the process they share, or needs other buffers."""
    (tmp_path / "suite.py").write_text(SHARED)
    (suite,) = discovery.discover([str(tmp_path / "suite.py")])
    hows = ["good", "slower", "wrong", other]
    chosen = select([suite], overrides={"how": hows})
    turns = list(plan(chosen, LATENCY, 1, seed=0))
    with runner.Workers() as workers:
        found = workers.measure_many(turns, replace(QUICK, audit=False))
    assert [t.case for t in found] == [turn.case.id for turn in turns]
    by_how = {trial.axes["how"]: trial for trial in found}
    assert by_how["good"].error is by_how["slower"].error is None
    assert len(by_how["slower"].samples) >= 3
    assert "is wrong in" in by_how["wrong"].error
    if other == "is larger":
        assert by_how[other].error is None
    else:
        said = {"raises": "the work raised", "crashes": "SIGSEGV"}[other]
        assert said in by_how[other].error


@pytest.mark.parametrize(("least", "looks"), [(150.0, 1), (450.0, 2)])
def test_cold_and_warm_launches_are_confirmed_together(least, looks, monkeypatch):
    """Unless what explains the cold trial is too slow for the warm one."""
    looked = []

    def confirmed(_asked, trial, _mode):
        looked.append(trial.mode)
        return confirm.Confirmed(least, least)

    monkeypatch.setattr(confirm, "confirm", confirmed)
    monkeypatch.setattr(runner.Workers, "_worker", lambda _: 1)
    monkeypatch.setattr(runner, "_CONFIRMED", {})
    times = {"kernel/cold": 300, "kernel/warm": 100}
    turns = plan(cases("good"), list(map(parse, times)), 2, seed=0)
    with runner.Workers() as workers:
        for turn in sorted(turns, key=lambda turn: str(turn.mode)):
            mode = str(turn.mode)
            given = trials.trial(ticks=(times[mode],) * 40, mode=mode)
            found = workers.confirmed(turn, QUICK, given)
            slow = mode == "kernel/warm" and least > 200
            assert bool(found.doubts) is slow
    assert looked == sorted(times)[:looks]


def test_one_wrong_element_of_many_problems_is_named():
    """All are looked at together, and one by one if any may be wrong."""
    about = {"handles": [["y", "output", [7], "float32"]], "results": ["y"]}
    case = confirm._Case(about | {"tolerances": [None, None], "device": "cpu"})
    wanted = np.random.default_rng(0).standard_normal((40, 7))
    got = {"y": wanted.astype(np.float32)}
    problem = confirm._Problem({}, [wanted], [1.0], 40)
    assert case.any_wrong(got, problem, 40) == ""
    got["y"][39, 2] += 1
    assert "y is wrong in 1 of 7 elements: at [2]" in case.any_wrong(got, problem, 40)
    assert case.any_wrong(got, problem, 39) == ""


def test_work_that_is_not_audited_is_not_confirmed():
    """A setting says so; its result is still compared."""
    (turn,) = plan(cases("good"), LATENCY, 1, seed=0)
    with runner.Workers() as workers:
        trial = workers.measure(turn, replace(QUICK, audit=False))
        assert trial.error is None
        assert workers.confirmed(turn, replace(QUICK, audit=False), trial) is trial
        assert "audit" not in trial.extra
    assert trial.extra["checked"]
