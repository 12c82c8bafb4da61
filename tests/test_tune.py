"""`steelyard tune`: candidates, halving, what is kept, and what stops it half-way."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import regret
import trials
from click.testing import CliRunner
from msgspec import structs
from shell import steelyard

from steelyard.declare.plan import Settings
from steelyard.errors import SteelyardError
from steelyard.measure.interleave import in_rounds
from steelyard.measure.sampler import Sampling, Stopping
from steelyard.store.store import Store
from steelyard_kernels import dtypes, library
from steelyard_kernels.artifact import Artifact, Code, Failure
from steelyard_kernels.building import cache, keys, tuned
from steelyard_kernels.building.facts import facts_of, made_of
from steelyard_kernels.errors import KernelError
from steelyard_kernels.group import Batch
from steelyard_kernels.reference import evaluate
from steelyard_kernels.targets import parse
from steelyard_lock import drivers, tune, tuning, tuning_report, tuning_space
from steelyard_lock.compile import command as compile_command
from steelyard_lock.points import Point, points, ready, traced
from steelyard_lock.spaces import PointKernel
from steelyard_lock.spaces import Space as Built
from steelyard_lock.tuning_cases import Tuned, case
from steelyard_lock.tuning_space import How, Space

KERNELS = """
from steelyard_kernels import array as xp, kernel

@kernel
def product(x, w):
    return x @ w

@kernel
def shifted(x):
    return x + 1

@kernel
def twice(x, w):
    return x @ w @ w

@kernel
def attend(q, k, v, w):
    e = xp.exp(q @ k.T)
    return xp.tanh(e / xp.sum(e, axis=-1, keepdims=True) @ v @ w) + q
"""
BENCHMARK = """
from steelyard import benchmark
from steelyard_kernels import kernel

@kernel
def double(x):
    return x + x

@benchmark
def scaled(b):
    x = b.input(4096, "float32")
    y = b.output(4096, "float32")
    b.check(lambda x: 2 * x, x)
    return b.launch(double, x, out=y)
"""
TOP = 40
SMALL = Point("triad", (), (((4096,), "float32"), ((4096,), "float32")), "cpu")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write a user's file of kernels."""
    place = tmp_path_factory.mktemp("kernels") / "mine.py"
    place.write_text(KERNELS)
    return place


def space(file, sizes, target="cuda:sm_90a", dtype="float16"):
    """Return what was tried of a product."""
    m, n, k = sizes
    arrays = (((m, k), dtype), ((k, n), dtype))
    return Space.of(Point(f"{file}:product", (), arrays, target))


@pytest.mark.parametrize("sizes", [(512, 768, 3072), (512, 3072, 768), (2048,) * 3])
def test_a_typical_product_has_hundreds_of_candidates(file, sizes):
    """Each once, by the model's order; what is refused is no candidate and says why."""
    found = space(file, sizes)
    labels = [schedule.label for schedule, _ in found.ranked]
    times = [prediction.total for _, prediction in found.ranked]
    assert len(set(labels)) == len(labels) >= 300
    assert times == sorted(times)
    refused = {schedule.label: why for schedule, why in found.refused}
    assert len(refused) >= 300
    assert not refused.keys() & set(labels)
    assert all("choose" in why for why in refused.values())


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("softmax", "cpu"),
        ("softmax", "cuda:sm_80"),
        ("triad", "cuda:sm_90a"),
        ("noisy_mlp", "cpu"),
    ],
)
def test_the_heuristics_choice_is_a_candidate(name, target):
    """Of every strategy; and refusals are no candidates."""
    (point,) = points([name], target, axes={}, arrays=())
    found = Space.of(point)
    schedules = [schedule for schedule, _ in found.ranked]
    assert found.heuristic in schedules
    assert not {schedule for schedule, _ in found.refused} & set(schedules)


def test_trials_in_rounds_take_turns_until_each_has_enough():
    """Others go on when one is done, or fails at once."""
    seen = []

    def trial(name, windows):
        sampling = Sampling(Stopping(0.5, 0, lambda: 0), 1)
        yield sampling
        for left in reversed(range(windows)):
            seen.append(name)
            sampling.enough = not left
            yield sampling
            if sampling.last:
                return

    def none():
        yield from ()

    in_rounds([trial("a", 2), trial("b", 4), none(), trial("c", 1)])
    assert "".join(seen) == "abcabbb"


class Made:
    """Workers that say how long each candidate takes, and which are wrong."""

    def __init__(self, times, wrong=(), audited_wrong=()):
        self.times, self.wrong, self.audited = times, wrong, audited_wrong
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure_many(self, turns, settings):
        """Measure each."""
        return [self.measure(turn, settings) for turn in turns]

    def measure(self, turn, settings):
        """Return a trial as it was planted."""
        label = str(turn.case.axes["schedule"])
        self.asked.append((turn.block, label))
        wrong = label in (self.audited if settings.audit else self.wrong)
        ticks = [round(self.times[label]) + n + turn.block for n in range(8)]
        return replace(
            trials.trial(turn.case.id, ticks, block=turn.block, mode=str(turn.mode)),
            axes=dict(turn.case.axes),
            position=turn.position,
            error=f"{turn.case.id}: out is wrong" if wrong else None,
        )

    def confirmed(self, _turn, _settings, trial):
        """Have nothing to say."""
        return trial


@pytest.fixture
def how(tmp_path, monkeypatch):
    """How these tests tune."""
    monkeypatch.setenv("STEELYARD_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(tuning, "keeps", lambda: True)  # to be handed to nobody
    return How(Settings(timeout=600), {}, str(tmp_path / "store.db"), TOP, 3)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Tune in a folder with a cache and a lock of its own, and keep choices there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEELYARD_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(tuning, "keeps", lambda: True)
    return tmp_path / "tuned.json"


def told(*asked):
    """Return what the command prints as JSON."""
    words = [*asked, "--store", "store.db", "--keep", "tuned.json", "--json"]
    done = CliRunner().invoke(tune.command, words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def made(monkeypatch):
    """Let candidates take what a test says; by default the last is the fastest."""

    def plant(point=SMALL, **wrong):
        labels = [candidate.name for candidate in Space.of(point).best(TOP)]
        times = {label: 10_000 + 500 * n for n, label in enumerate(labels)}
        times[labels[-1]] = 1000
        workers = Made(times, **wrong)
        monkeypatch.setattr(tuning, "Workers", lambda: workers)
        return workers, labels

    return plant


def test_the_fastest_of_all_is_found_and_everything_is_stored(how, made):
    """Fewer each time; the heuristic's goes on to the end; rows are there for `show`."""
    workers, labels = made()
    found = tuning.tune(Space.of(SMALL), how)
    assert found.chosen.label == labels[-1]
    assert found.gain is not None
    assert found.gain.high < 1
    assert found.counts == {
        "candidates": len(labels),
        "distinct": len(labels),
        "failed": 0,
    }
    blocks = [sum(block == n for block, _ in workers.asked) for n in range(6)]
    assert blocks[0] == len(labels) > blocks[1] > blocks[2]
    heuristics = {
        b for b, label in workers.asked if label == found.space.heuristic.label
    }
    assert heuristics >= {0, 1, 2, 3}
    with Store.open(how.store) as store:
        run = store.find("@-1")
        assert run.state == "finished"
        assert run.uid == found.run.uid
        assert len(store.trials(run.uid)) == len(workers.asked) == len(found.trials)


def test_a_tuning_whose_time_is_over_takes_the_shortest_way_to_its_end(how, made):
    """One round of some candidates and two blocks of the best: 10 s had come to 57."""
    workers, labels = made()
    found = tuning.tune(Space.of(SMALL), replace(how, seconds=0.0))
    blocks = [sum(block == n for block, _ in workers.asked) for n in range(5)]
    assert blocks[0] == tuning.TOGETHER < len(labels)
    assert blocks[1] == blocks[2] <= tuning.FINALISTS + 1
    assert blocks[3:] == [1, 0]
    assert found.gain is not None


def test_no_block_is_begun_that_leaves_the_audit_no_time(how, made, monkeypatch):
    """Of 10 s tuning had taken 13: a block more, and the audit behind it."""
    workers, _ = made()
    now, measure = [0.0], workers.measure_many

    def measured(turns, settings):
        now[0] += 2.0
        return measure(turns, settings)

    monkeypatch.setattr(workers, "measure_many", measured)
    monkeypatch.setattr(tuning, "perf_counter", lambda: now[0])
    for seconds, blocks in ((100.0, 3), (13.0, 2), (16.1, 3)):
        workers.asked.clear()
        now[0] = 0.0
        own = replace(how, seconds=seconds, store=f"{how.store}{seconds}")
        assert len(tuning.tune(Space.of(SMALL), own).finalists) > 1
        count = max(block for block, _ in workers.asked)
        asked = [sum(block == n for block, _ in workers.asked) for n in range(count)]
        assert asked.count(asked[-1]) == blocks


def test_candidates_are_measured_in_the_mode_that_is_asked_for(how, made):
    """Both are tunings of their own, and say of what they are."""
    made()
    for mode in ("kernel/warm", "kernel/cold"):
        found = tuning.tune(Space.of(SMALL), replace(how, mode=mode))
        assert {trial.mode for trial in found.trials} == {mode}
        assert json.loads(tuning_report.dumps([found]))["tunings"][0]["mode"] == mode
    with Store.open(how.store) as store:
        first, second = [head.tags for head in store.heads()]
    assert first != second


def test_a_candidate_that_is_wrong_is_not_chosen(how, made):
    """Whether that is seen in the screening, or by the audit of the fastest."""
    _, labels = made()
    wrong = labels[-1]
    made(wrong=[wrong])
    found = tuning.tune(Space.of(SMALL), how)
    assert found.chosen.label != wrong
    assert any("is wrong" in why for why in found.failures)
    made(audited_wrong=[wrong])
    found = tuning.tune(Space.of(SMALL), how)
    assert found.chosen.label != wrong
    assert wrong not in [row.axes["schedule"] for row in found.finalists]


def test_a_build_that_fails_is_said_and_the_others_are_tuned(how, made, monkeypatch):
    """As a failure of that candidate."""
    made()
    build = tuning_space.build_all

    def failing(candidates, **asked):
        batch = build(candidates, **asked)
        first = batch.results[1]
        broken = Failure(
            "triad", first.schedule, "cpu", "lower", "no", KernelError("no")
        )
        return structs.replace(
            batch, results=(batch.results[0], broken, *batch.results[2:])
        )

    monkeypatch.setattr(tuning_space, "build_all", failing)
    found = tuning.tune(Space.of(SMALL), how)
    assert found.counts["failed"] == 1
    assert found.failures == ("no",)


def test_what_is_not_surely_faster_is_not_chosen(how, made):
    """The heuristic's stays, so that a table holds no noise."""
    workers, labels = made()
    heuristic = Space.of(SMALL).heuristic.label
    workers.times = dict.fromkeys(labels, 1000.0)
    assert tuning.tune(Space.of(SMALL), how).chosen.label == heuristic


def test_a_tuning_that_was_stopped_goes_on(how, made, monkeypatch):
    """Trials that are stored are not measured again; one that ended begins anew."""
    workers, labels = made()
    measure, left = workers.measure_many, [2]

    def interrupted(turns, settings):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return measure(turns, settings)

    monkeypatch.setattr(workers, "measure_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(Space.of(SMALL), how)
    monkeypatch.setattr(workers, "measure_many", measure)
    done = set(workers.asked)
    assert len(done) == 2 * tuning.TOGETHER < len(labels)
    workers.asked.clear()
    found = tuning.tune(Space.of(SMALL), how)
    assert found.resumed == len(done)
    assert not done & set(workers.asked)
    assert found.chosen.label == labels[-1]
    again = tuning.tune(Space.of(SMALL), how)
    assert again.run.uid != found.run.uid
    assert again.resumed == 0


def test_a_tuning_that_is_killed_loses_no_trial(tmp_path, file):
    """Killed by the kernel while it measures, it goes on in the same run."""
    store = tmp_path / "store.db"
    command = ["tune", f"{file}:shifted", "--shape", "1000", "--store", str(store)]
    command += ["--keep", "off", "--blocks", "1", "--json", "--top", "9"]
    own = {"STEELYARD_LOCK": str(tmp_path / "lock")}
    own["STEELYARD_CACHE"] = str(tmp_path / "cache")
    begun = subprocess.Popen(
        [sys.executable, "-m", "steelyard.cli", *command],
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not (stored := _stored(store)) and time.monotonic() < deadline:
        time.sleep(0.2)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert stored
    done = steelyard(*command, **own)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["tunings"]
    assert found["resumed"] >= stored
    with Store.open(str(store)) as opened:
        (run,) = opened.runs()
        each = [(t.case, t.block) for t in opened.trials(run.uid)]
    assert run.state == "finished"
    assert len(set(each)) == len(each)
    assert not found["failures"]


def _stored(store):
    """Count the trials of a store that somebody writes."""
    if not store.exists():
        return 0
    try:
        with Store.open(str(store), create=False) as opened:
            return sum(opened.counts().values())
    except SteelyardError:  # not made yet
        return 0


def test_two_tunings_do_not_measure_each_other(how, made):
    """The second says who measures, and what is stored of it is nothing."""
    from steelyard.machine import lock

    made()
    with lock.measuring(), pytest.raises(SteelyardError, match="measur"):
        tuning.tune(Space.of(SMALL), how)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "64xa"], "--arg 64xa: expected SHAPE:DTYPE"),
        (["--shape", "64x768"], "product"),
        (["--shape", "64x768", "--shape", "700x768"], "700"),
        ([], "takes x, w and is not of the library"),
        (["--shape", "4x4", "--shape", "4x4", "--target", "cuda:sm_90a"], "GPU"),
    ],
)
def test_what_cannot_be_tuned_is_a_sentence(file, arguments, said, tmp_path):
    """Before anything is built."""
    store = ["--store", str(tmp_path / "store.db"), "--keep", "off"]
    asked = [f"{file}:product", *arguments, *store]
    with pytest.raises(SteelyardError, match=said):
        tune.command.main(asked, standalone_mode=False)


@pytest.mark.parametrize("by", ["--keep", "STEELYARD_TUNED"])
def test_choices_go_to_a_folder_that_is_there(file, tmp_path, by):
    """None is made; it is said before anything is measured."""
    kept = str(tmp_path / "mistyped" / "tuned.json")
    words = ["--keep", kept] if by == "--keep" else []
    asked = [f"{file}:product", *["--shape", "96x96"] * 2, *words]
    done = CliRunner(env={"STEELYARD_TUNED": kept}).invoke(tune.command, asked)
    assert f"{kept} cannot be written: {tmp_path / 'mistyped'} is" in str(
        done.exception
    )
    assert not (tmp_path / "mistyped").exists()


def test_a_budget_counts_from_the_command_and_leaves_the_first_kernel(monkeypatch):
    """What is imported and listed before a kernel is tuned takes of it too."""
    now = [100.0]
    monkeypatch.setattr(tune, "perf_counter", lambda: now[0])
    left = tune._Budget(10.0)
    now[0] += 4.0
    assert (left.share(2), left.top(None, 2)) == (3.0, 15)
    now[0] += 8.0
    assert (left.more, left.top(None, 1)) == (True, 1)
    left.spent(
        SimpleNamespace(seconds={"build": 1.0}, batch=SimpleNamespace(results=[0]))
    )
    assert not left.more


def test_each_kernel_of_a_program_is_tuned_and_builds_take_what_was_chosen(
    file, desk, monkeypatch
):
    """Of equal launches one; a budget leaves each a share of the candidates."""
    monkeypatch.setattr(tuning, "Workers", lambda: Made(defaultdict(lambda: 1000)))
    asked = [f"{file}:twice", *["--shape", "96x96"] * 2]
    whole, space = told(*asked, "--list")["spaces"]
    assert {"launches 2 3", "launches 2+3", "launches 3"} == whole["candidates"].keys()
    whole, found = told(*asked, "--budget", "2", "--blocks", "2")["tunings"]
    assert (whole["launch"], whole["chosen"]) == (None, "launches 2 3")
    assert found["launch"] == 0
    assert 1 < found["candidates"] < len(space["candidates"])
    monkeypatch.setenv("STEELYARD_TUNED", str(desk))
    point = Point(f"{file}:twice", (), (((96, 96), "float32"),) * 2, "cpu")
    kernel, arrays, _ = ready(point)
    built = kernel.build(*arrays, cache="cold")
    assert [part.chosen_by for part in built.parts] == ["tuning"] * 2
    assert {part.schedule.label for part in built.parts} == {found["chosen"]}


def test_a_partition_is_tuned_before_the_kernels_of_the_one_that_is_chosen(
    file, desk, monkeypatch
):
    """Builds take both from the file, and say so; results are right."""
    times = defaultdict(lambda: 10_000)
    workers = Made(times)
    monkeypatch.setattr(tuning, "Workers", lambda: workers)
    sizes = (32, 16), (32, 16), (32, 16), (16, 16)
    asked = [f"{file}:attend", *[w for n, m in sizes for w in ("--arg", f"{n}x{m}")]]
    every = told(*asked, "--list")["spaces"][0]["candidates"]
    other = "launches 6 8 9 12"
    assert len(every) > 3
    assert other in every
    times[other] = 1000
    whole, *kernels = told(*asked, "--top", "6")["tunings"]
    assert (whole["launch"], whole["chosen"]) == (None, other)
    assert whole["differs"].startswith("apart: attention 32x32")
    assert [each["launch"] for each in kernels] == [0, 1, 2, 3]
    monkeypatch.setenv("STEELYARD_TUNED", str(desk))
    specs = tuple((size, "float32") for size in sizes)
    kernel, arrays, _ = ready(Point(f"{file}:attend", (), specs, "cpu"))
    built = kernel.build(*arrays, cache="cold")
    assert (built.schedule.label, built.chosen_by) == (other, "tuning")
    assert [part.chosen_by for part in built.parts] == ["tuning"] * 4
    assert other in kernel.explain(*arrays)
    drawn = [np.random.default_rng(0).standard_normal(size, "f4") for size in sizes]
    (want,) = evaluate(built.program, drawn).values()
    np.testing.assert_allclose(kernel(*drawn), want, 1e-5, 1e-5)


def test_a_kernel_of_a_program_may_add_to_what_another_made(tmp_path):
    """Its output has another name than the input that it overwrites."""
    file = tmp_path / "sums.py"
    file.write_text(
        "from steelyard_kernels import kernel\n"
        "@kernel\n"
        "def sums(x, u, v, w):\n"
        "    return x @ u + x @ v + x @ w\n"
    )
    specs = tuple(
        (size, "float32") for size in ((32, 16), (16, 16), (16, 16), (16, 16))
    )
    point = Point(f"{file}:sums", (), specs, "cpu")
    whole, arrays, _ = ready(point)
    partition = whole.build(*arrays).schedule.label
    part = replace(point, schedule=partition, launch=1)
    kernel, arrays, _ = ready(part)
    program = traced(part, kernel, arrays)
    assert [output.updates for output in program.outputs] == [2]
    drawn = [np.random.default_rng(0).standard_normal(size, "f4") for size, _ in arrays]
    (want,) = evaluate(program, drawn).values()
    (found,) = kernel(*drawn).values()
    assert found is drawn[2]
    np.testing.assert_allclose(found, want, 1e-5, 1e-5)


def test_why_no_candidate_was_measured_is_said(how, made):
    """Where all were wrong in the screening, and none is confirmed."""
    _, labels = made()
    made(wrong=labels)
    with pytest.raises(SteelyardError, match=r"no choice: .* out is wrong$"):
        tuning.tune(Space.of(SMALL), how)


def test_nothing_is_tuned_where_builds_are_not_kept(how, monkeypatch):
    """The processes that measure would build each candidate anew."""
    monkeypatch.setattr(tuning, "keeps", lambda: False)
    with pytest.raises(KernelError, match="STEELYARD_CACHE=off"):
        tuning.tune(Space.of(SMALL), how)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a table with a choice for `triad` of 4096, that builds are told to read."""
    kernel, program = library.triad, Tuned.of(SMALL).program
    path = tmp_path / "folder" / "tuned.json"
    path.parent.mkdir()
    schedule = kernel.candidates(*SMALL_SPECS)[5]
    tuned.keep(str(path), program, parse("cpu"), schedule, {"ratio": 0.9})
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    return path, schedule


SMALL_SPECS = [((4096,), dtypes.float32)] * 2


def refused():
    """Return why that triad is not built."""
    found = library.triad.build(*SMALL_SPECS, drop=frozenset(cache.LEVELS))
    assert isinstance(found, Failure)
    return found.error


def built(**asked):
    """Build that triad anew."""
    found = library.triad.build(*SMALL_SPECS, drop=frozenset(cache.LEVELS), **asked)
    assert isinstance(found, Artifact), found.error
    return found


def test_builds_take_what_was_tuned_and_say_so(table, monkeypatch):
    """A caller's schedule goes before it; without the variable nothing is read."""
    _, schedule = table
    found = built()
    assert found.schedule == schedule
    assert facts_of(found)["chosen_by"] == "tuning"
    other = library.triad.candidates(*SMALL_SPECS)[2]
    assert facts_of(built(schedule=other))["chosen_by"] == "caller"
    mine = made_of(found.program, "cpu")["build_key"]
    monkeypatch.delenv(tuned.VARIABLE)
    plain = built()
    assert plain.schedule != schedule
    assert facts_of(plain)["chosen_by"] == "heuristic"
    assert made_of(found.program, "cpu")["build_key"] != mine


def test_a_choice_is_of_one_program_and_one_compiler(table, monkeypatch):
    """Of other shapes, or other sources, the heuristic chooses."""
    del table
    specs = [((4097,), dtypes.float32)] * 2
    found = library.triad.build(*specs, drop=frozenset(cache.LEVELS))
    assert isinstance(found, Artifact)
    assert found.chosen_by == "heuristic"
    monkeypatch.setattr(tuned, "sources", lambda: "others")
    assert built().chosen_by == "heuristic"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 0, "entries": {}}'])
def test_a_table_that_cannot_be_read_is_a_sentence(table, text):
    """A build that is told to read it fails and says why."""
    path, _ = table
    path.write_text(text)
    assert "is no file of tuned schedules" in refused()
    path.unlink()
    assert "No such file" in refused()


def test_choices_lie_beside_each_other(table):
    """Also those of another kernel, and a new one of the same replaces the old."""
    path, schedule = table
    program = library.copy.program(((64,), dtypes.float32))
    tuned.keep(str(path), program, parse("cpu"), schedule, {})
    other = library.triad.candidates(*SMALL_SPECS)[7]
    tuned.keep(str(path), Tuned.of(SMALL).program, parse("cpu"), other, {})
    assert len(tuned.table(str(path))) == 2
    assert built().schedule == other
    assert json.loads(path.read_text())["schema"] == tuned.SCHEMA
    assert keys.sources() not in path.read_text()


def test_sums_are_judged_by_how_many_they_are_of(file):
    """Of a product the tolerance grows with the root of its depth; of no sum it does not."""
    deep, flat = space(file, (8, 8, 4096), "cpu", "float32"), Tuned.of(SMALL)
    relative, absolute = deep.tuned.tolerances(launches=False)
    assert relative == pytest.approx(8 * 64 * 2.0**-23)
    assert absolute == pytest.approx(relative * 64, rel=0.3)
    assert flat.tolerances(launches=False) == (32 * 2.0**-23, None)


def test_a_case_says_kernel_arrays_and_schedule():
    """So that `show` and `compare` tell candidates apart."""
    schedule = Space.of(SMALL).heuristic
    named = case(SMALL, schedule)
    assert named.axes["arrays"] == "4096:float32 4096:float32"
    assert schedule.label in str(named.axes["schedule"])
    assert named.describe().check is not None


@pytest.mark.parametrize("benchmarked", [False, True])
def test_candidates_share_buffers_and_answers(tmp_path, benchmarked):
    """So that many are measured in one process, in rounds."""
    named, arrays = (
        "bias_layernorm",
        (((64, 768), "float16"), *[((768,), "float16")] * 4),
    )
    if benchmarked:
        own, arrays = tmp_path / "own.py", ()
        own.write_text(BENCHMARK)
        named = f"{own}:scaled"
    point = Point(named, (), arrays, "cpu")
    every = [*Tuned.of(point)._schedules.values()][:3]
    first, *others = [case(point, schedule).describe() for schedule in every]
    assert len(others) == 2
    assert all(replace(each, call=first.call) == first for each in others)


def test_the_models_choices_are_near_the_best_that_was_measured():
    """Replayed from measurements on an H200.

    A choice that is not in the file was not measured: make the file again with
    `python tests/regret.py --measure FILE` on such a GPU.
    """
    found = list(regret.regrets(regret.TABLE))
    unknown = [arrays for arrays, _, over in found if over is None]
    assert not unknown
    each = [over for *_, over in found if over is not None]
    assert len(each) >= 60
    assert statistics.fmean(each) <= 0.05
    assert max(each) <= 0.2


def test_a_choice_that_was_not_measured_has_no_regret(tmp_path):
    """Nor does a slow one pass for the best."""
    (first, *_) = json.loads(regret.TABLE.read_text())["points"]
    path = tmp_path / "tuned.json"
    regret.write(path, [first])
    ((_, chosen, _),) = list(regret.regrets(path))
    slow = max(first["times"].values()) * 2
    first["times"][regret.key(chosen)] = slow
    regret.write(path, [first])
    ((_, _, over),) = list(regret.regrets(path))
    assert over == pytest.approx(slow / min(first["times"].values()) - 1)
    del first["times"][regret.key(chosen)]
    regret.write(path, [first])
    ((_, _, over),) = list(regret.regrets(path))
    assert over is None


def test_compile_time_goes_with_what_is_planted():
    """The strongest first; nothing of few builds, and nothing of what does not vary."""
    found = Space.of(SMALL)
    program, schedules = found.tuned.program, [s for s, _ in found.ranked[:12]]
    made = [
        Artifact(program, one, "cpu", "line\n" * n, (), 1, 1, code=_code(n))
        for n, one in enumerate(schedules)
    ]
    batch = Batch(tuple(made), {}, (), (), 0)
    planted = Built(SMALL, batch, (PointKernel(program),), (0,) * len(made), 1)
    ranks = drivers.correlations(planted)
    assert ranks["lines of text"] == pytest.approx(1.0)
    assert "stages" not in ranks
    assert drivers.sentence(planted).startswith(
        "compile time goes with lines of text +1"
    )
    few = replace(planted, batch=structs.replace(batch, results=tuple(made[:3])))
    assert drivers.sentence(few) == ""


def _code(nanoseconds):
    return Code(b"", "", str(nanoseconds), "", 1000 + nanoseconds)


def test_candidates_are_built_in_groups_and_each_alone():
    """By one command, whose lines say which is which."""
    done = CliRunner().invoke(
        compile_command, ["copy", "-p", "n=100", "--candidates", "--alone", "--json"]
    )
    spaces = json.loads(done.stdout)["spaces"]
    assert [space["alone"] for space in spaces] == [False, True]
    assert spaces[0]["candidates"] == spaces[1]["candidates"]
    assert spaces[1]["groups"] == len({r["schedule"] for r in spaces[1]["results"]})
