import json
import math
import random
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import shell
import trials
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy

from steelyard import Case, benchmark
from steelyard.analyse import sizes
from steelyard.analyse.verdict import Policy, Verdict
from steelyard.commands import selftest as selftest_command
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings
from steelyard.gate import calibration, decide, selftest
from steelyard.gate.blocks import Blocks, Point, Reading
from steelyard.gate.calibration import Tally
from steelyard.gate.decide import POLICY, Evidence
from steelyard.gate.selftest import SelfTest, StepTimes
from steelyard.gate.sides import Side
from steelyard.measure import inject
from steelyard.prepare.work import CallableWork, DeviceWork, NativeWork
from steelyard.report import selftest_table
from steelyard.store import session
from steelyard.store.session import Request
from steelyard.store.store import Store
from steelyard_device import cpu

WARM = "kernel/warm"
KERNEL = 100_000
"""Nanoseconds of a made-up kernel."""


@benchmark(n=list(range(40)))
def made_up(b, n):
    """Measured by nobody."""
    x = b.input(n + 1)
    y = b.output(n + 1)
    return b.launch(np.copyto, y, x)


def points(count=6, modes=(WARM,)):
    """Return made-up cases in some modes."""
    return [
        Point(Case(made_up, {"n": n}), parse(mode))
        for n in range(count)
        for mode in modes
    ]


class Machine:
    """A made-up machine: blocks of some noise take a second, and kernels their time."""

    def __init__(self, noise=0.005, seed=0, broken=(), drawn=None):
        self.time = 0.0
        self.broken = broken
        self.draw = random.Random(seed)
        self.noise = drawn or (lambda draw: draw.gauss(0, noise))

    def now(self):
        """Return the seconds that blocks took."""
        return self.time

    def blocks(self, base, head, settings, on_trial):
        """Return what measures two sides of it."""
        return MadeUpBlocks(self, (base, head), on_trial)


class MadeUpBlocks:
    """Blocks of a made-up machine; sides differ by what their files plant."""

    def __init__(self, machine, sides, on_trial):
        self._machine, self._on_trial = machine, on_trial
        files = [side.environment.get(inject.FILE) for side in sides]
        self._planted = [json.loads(Path(f).read_text()) if f else {} for f in files]
        self._names = [side.name for side in sides]

    @contextmanager
    def scratch(self):
        """Nothing is shared."""
        yield

    def measure(self, number, asked, *, identity=False):
        """Yield each point with the logarithm of its sides' times."""
        for point in asked:
            self._machine.time += 1
            if point.case.id in self._machine.broken:
                yield point, Reading(failed={"head": f"{point.case.id}: it broke."})
                continue
            times = [
                KERNEL + injected.get(point.case.id, 0) for injected in self._planted
            ]
            for name, time in zip(self._names, times, strict=True):
                facts = {"injected": 1} if any(self._planted) else {}
                taken = trials.trial(
                    point.case.id,
                    [time] * 8,
                    mode=str(point.mode),
                    block=number,
                    facts=facts,
                )
                self._on_trial(name, taken)
            log = math.log(times[1] / times[0])
            yield point, Reading(ratio=log + self._machine.noise(self._machine.draw))


def new(machine, asked):
    """Return a self-test on a made-up machine."""
    sides = Side("base", Path()), Side("head", Path())
    return SelfTest(
        asked,
        Settings(),
        Tally(),
        make=machine.blocks,
        now=machine.now,
        sides=sides,
    )


def self_tested(machine, seconds=600, asked=None, **changes):
    """Run a self-test on a made-up machine; a multiply-add takes a nanosecond."""
    test = new(machine, asked or points())
    for name, value in changes.items():
        setattr(test, name, value)
    return selftest.run(test, seconds, lambda: StepTimes(1.0))


@cache
def quiet():
    """Return what a self-test on a quiet machine came to."""
    return self_tested(Machine())


def test_head_against_itself_is_no_change():
    """Every round has a verdict on every case, and none is an alarm."""
    tally = quiet()
    rounds = len(tally.same) // 6
    assert rounds > 10
    assert all(verdict is Verdict.SAME for _, verdict, _ in tally.same)
    assert {key for key, _, _ in tally.same} == {(p.case.id, WARM) for p in points()}
    made = tally.calibration(trials.run(), POLICY)
    assert (made.alarms, made.rate.value) == (0, 0.0)
    assert made.rate.high < 0.06


def test_what_is_planted_is_found_from_the_published_size_on():
    """And less of it below; the size is that of the work behind the launches."""
    tally = self_tested(Machine(noise=0.005), seconds=3000)
    published = tally.detectable(POLICY)
    assert all(0.02 < size < 0.03 for size in published.values())
    found = {size: hits / of for size, (hits, of) in tally.found().items()}
    assert set(found) == {0.01, 0.02, 0.03, 0.05, 0.1}
    assert found[0.01] < 0.1
    assert min(found[size] for size in (0.03, 0.05, 0.1)) > 0.95
    assert set(tally.found(published)) == {0.03, 0.05, 0.1}
    assert tally.calibration(trials.run(), POLICY).power == found


def test_a_machine_that_takes_sides_raises_alarms():
    """Whose rate is published with the interval of so many comparisons."""
    tally = self_tested(Machine(drawn=lambda draw: draw.gauss(0.05, 0.003)))
    made = tally.calibration(trials.run(), POLICY)
    assert made.alarms == made.comparisons
    assert made.rate.low > 0.8
    assert "slower" in selftest_table.alarms(tally)


def test_a_case_that_is_too_noisy_says_so_and_is_no_alarm():
    """Its smallest change is above what a gate lets pass."""
    tally = self_tested(Machine(noise=0.2))
    assert not tally.alarms
    assert tally.undecided > 0.9 * len(tally.same)
    assert min(tally.detectable(POLICY).values()) > POLICY.tolerance


def test_a_case_that_fails_is_named_and_left_out():
    """The others are tested all the same."""
    first = points()[0].case.id
    tally = self_tested(Machine(broken={first}))
    assert tally.failed == {(first, WARM): f"{first}: it broke."}
    assert first not in {case for (case, _), _, _ in tally.same}
    assert len({key for key, _, _ in tally.same}) == 5


def test_where_all_fail_it_ends_at_once():
    """Nothing would come of more rounds."""
    machine = Machine(broken={point.case.id for point in points()})
    assert self_tested(machine, seconds=1e9).same == []
    assert machine.time == len(points())


def test_too_little_time_counts_nothing_that_is_not_decided():
    """Half a comparison is none."""
    tally = self_tested(Machine(), seconds=4)
    assert tally.same == []
    assert tally.injected == []
    assert "give it more" in selftest_table.alarms(tally)


def test_only_kernels_are_planted_in():
    """What Python adds to a launch is not theirs."""
    tally = self_tested(Machine(), asked=points(3, modes=("latency/warm", WARM)))
    assert {mode for (_, mode), _, _ in tally.injected} == {WARM}
    assert {mode for (_, mode), _, _ in tally.same} == {WARM, "latency/warm"}


def test_a_kernel_too_short_for_a_size_is_not_asked_for_it():
    """Three multiply-adds are no per cent of anything; none at all is no size."""
    long = StepTimes(1.0)
    point = points(1)[0]
    assert long.of(point, 1000.0) == 1000
    assert long.of(point, 0.2) is None
    assert long.of(point, 1.4) is None
    assert StepTimes(0.0).of(point, 1000.0) is None
    none = new(Machine(), points())
    none._times = {(p.case.id, WARM): [1.0] for p in points()}
    none.inject(math.inf, lambda: long)
    assert none.tally.injected == []


def test_trials_are_kept_as_they_come():
    """Each with its side and a place of its own."""
    kept = []
    self_tested(
        Machine(), seconds=60, keep=lambda side, trial: kept.append((side, trial))
    )
    assert {side for side, _ in kept} == {"base", "head"}
    assert [trial.position for _, trial in kept] == list(range(len(kept)))


@pytest.mark.parametrize("noise", [0.005, 0.015, 0.03])
def test_the_published_change_is_found_as_often_as_it_says(noise):
    """By the gate's own rules for screening, confirming and stopping."""
    draw = random.Random(7)
    known = [noise, -noise] * 60
    size = calibration.smallest(known, POLICY)
    found = 0
    for _ in range(150):
        seen = {"x": Evidence()}
        while decide.undecided(seen, POLICY):
            seen["x"] = seen["x"].add(draw.gauss(math.log1p(size), noise))
        judged, _ = decide.judge(seen, {}, POLICY)["x"]
        found += judged.verdict is Verdict.SLOWER
    assert found / 150 >= sizes.POWER - 0.03


def test_one_block_publishes_nothing():
    """How noisy a case is takes two to know."""
    assert calibration.smallest([], Policy()) == math.inf
    assert calibration.smallest([0.01], Policy()) == math.inf


@settings(max_examples=30)
@given(st.integers(1, 1500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_of_a_share_is_scipy_s(counts):
    """Clopper and Pearson's, at none and at all of them too."""
    expected = scipy.binomtest(*counts).proportion_ci(0.95, method="exact")
    found = calibration.share(*counts)
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=1e-9)


def test_a_share_of_nothing_may_be_any():
    """It is no pass."""
    found = calibration.share(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0.0, 1.0)


@pytest.fixture
def store(tmp_path):
    """Return an open store."""
    with Store.open(str(tmp_path / "store.db")) as opened:
        yield opened


def kept(store, facts=trials.FACTS, **changes):
    """Keep the result of a self-test and return it."""
    tally = quiet()
    run = trials.run(tags=(calibration.TAG,), machine=facts, **changes)
    made = tally.calibration(run, POLICY)
    store.begin(replace(run, settings={calibration.KEY: calibration.document(made)}))
    return made


def test_the_gpu_that_is_chosen_is_the_one_that_is_tested(monkeypatch, tmp_path):
    """Once it was the first, whatever --gpu said, under the other's name."""
    tested = []
    chosen = partial(replace, gpu=3)
    monkeypatch.setattr(session, "on_gpu", lambda _turns, how, _: (chosen(how), {}))
    monkeypatch.setattr(
        selftest_command, "run", lambda test, *_: tested.append(test.settings.gpu)
    )
    store = ("--store", tmp_path / "store.db")
    shell.command(
        "selftest", *store, "-k", "copy", "steelyard.declare.builtin", code=None
    )
    assert tested == [3]


def test_a_later_gate_finds_the_latest_of_its_machine(store):
    """Every figure of it, as it was."""
    assert calibration.latest(store, trials.FACTS) is None
    kept(store, started="2026-01-01T00:00:00.000000+00:00")
    made = kept(store, started="2026-01-02T00:00:00.000000+00:00")
    other = trials.FACTS | {"identity": trials.FACTS["identity"] | {"cores": 64}}
    kept(store, other, started="2026-01-03T00:00:00.000000+00:00")
    assert calibration.latest(store, trials.FACTS) == made


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {calibration.KEY: None},
        {calibration.KEY: {"method": 99}},
        {calibration.KEY: {"method": calibration.METHOD}},
        {calibration.KEY: {"method": 1, "comparisons": "many", "alarms": 0}},
    ],
    ids=["a user's tag", "empty", "newer", "truncated", "foreign"],
)
def test_what_is_no_calibration_is_passed_over(store, settings):
    """An older one that is stands."""
    made = kept(store, started="2026-01-01T00:00:00.000000+00:00")
    store.begin(trials.run(tags=(calibration.TAG,), settings=settings))
    assert calibration.latest(store, trials.FACTS) == made


class Recorded:
    """Work that writes down its launches."""

    def __init__(self):
        self.launches = 0

    def __call__(self):
        """Launch once."""
        self.launches += 1


def test_a_callable_has_the_delay_behind_each_call():
    """And says that its code is another's."""
    inner = Recorded()
    work = inject.delayed(CallableWork(inner), 1000)
    work.launch(3)
    assert inner.launches == 3
    assert work.facts() == {"injected": 1000}
    assert not isinstance(work, NativeWork)


def test_native_work_stays_native_with_the_delay_behind_it():
    """With its threads and its floor; its hash is not that of the code that runs."""

    class Hashed(cpu.Launch):
        def facts(self):
            return {**super().facts(), "code_hash": "aa"}

    result = np.zeros(1, np.float32)
    nothing = cpu._library().null
    work = inject.delayed(Hashed(nothing, (result.ctypes.data,), 1), 1000)
    assert isinstance(work, NativeWork)
    start, stop = work.window(2)
    assert stop >= start
    assert work.facts() == {"threads": 1, "injected": 1000}
    assert work.null().facts() == cpu.null().facts()


SUITE = """
import numpy as np
from steelyard import benchmark
from steelyard_device import cpu


class Delay:
    def bind(self, result):
        return cpu.delay(20_000, result)

    def __call__(self, result):
        self.bind(result).launch()


@benchmark
def delay(b):
    b.mode("kernel/warm")
    result = b.inout(1, "float32", dist="uniform")
    return b.launch(Delay(), result)
"""


@pytest.fixture
def suite(tmp_path):
    """Return a file of one native kernel."""
    file = tmp_path / "suite.py"
    file.write_text(SUITE)
    return file


def test_workers_plant_what_their_side_asks_for(suite):
    """Multiply-adds behind the launches of head, and behind base's none."""
    (point,), left = selftest_command.points_of(Request([str(suite)]))
    assert not left
    taken = []
    how = Settings(precision=0.5, audit=False)
    test = SelfTest([point], how, Tally())
    with selftest.injected(test.sides, {"delay": 5000}) as sides:
        blocks = Blocks(*sides, how, lambda *one: taken.append(one))
        (_, reading), *_ = blocks.measure(0, [point])
    assert not reading.failed
    facts = {side: trial.facts for side, trial in taken}
    assert facts["base"]["injected"] == 0
    assert facts["head"]["injected"] == 5000


def asked_for(suite, monkeypatch, machine, code=0):
    """Run the command on a made-up machine to this end; return it and the store."""
    made = partial(SelfTest, make=machine.blocks, now=machine.now)
    monkeypatch.setattr(selftest_command, "SelfTest", made)
    url = suite.with_suffix(".db")
    asked = ["selftest", suite, "--minutes", "3", "--store", url]
    return shell.command(*asked, code=code), Store.open(str(url), create=False)


def test_the_command_stores_what_it_found(suite, monkeypatch):
    """Trials of both sides as they come, and the result as a run of its own."""
    done, store = asked_for(suite, monkeypatch, Machine())
    assert "0 false alarms" in done.output
    with store:
        base, head, result = store.runs()
        assert base.tags == ("selftest/base",)
        assert head.tags == ("selftest/head",)
        assert result.tags == ("selftest",)
        assert len(store.trials(base.uid)) == len(store.trials(head.uid)) > 90
        assert {run.state for run in store.runs()} == {"finished"}
        found = calibration.latest(store, result.machine)
    assert found.run == result.uid
    assert found.comparisons > 20
    assert set(found.power) == set(selftest.SIZES)


def test_the_command_says_what_failed(suite, monkeypatch):
    """With the exit code of a failed benchmark; there is no result to keep."""
    done, store = asked_for(suite, monkeypatch, Machine(broken={"delay"}), 2)
    assert "delay: it broke." in done.output
    with store:
        assert calibration.latest(store, store.runs()[-1].machine) is None


def test_what_was_counted_before_ctrl_c_is_kept(suite, monkeypatch):
    """And the runs say how they ended."""
    machine = Machine()

    def interrupted(draw):
        if machine.time > 50:
            raise KeyboardInterrupt
        return draw.gauss(0, 0.005)

    machine.noise = interrupted
    _, store = asked_for(suite, monkeypatch, machine, 130)
    with store:
        states = [run.state for run in store.runs()]
        found = calibration.latest(store, store.runs()[-1].machine)
    assert states == ["interrupted", "interrupted", "finished"]
    assert found.comparisons > 5


class OnStream(Recorded):
    """Work on the stream of a made-up GPU."""

    context, stream = "context", 7

    def launch(self, count=1):
        """Launch so often."""
        self.launches += count

    def wait(self):
        """Nothing is under way."""

    def ready(self):
        """Nothing sleeps."""

    def facts(self):
        """Say whose code it is."""
        return {"code_hash": "aa", "registers": 32}


def test_work_on_a_gpu_stays_on_its_stream_with_the_delay_behind_it():
    """It is no native work then: two kernels make a launch."""
    inner, behind = OnStream(), OnStream()
    work = inject.DelayedDevice(inner, behind, 256)
    work.launch(3)
    assert (inner.launches, behind.launches) == (3, 3)
    assert (work.context, work.stream) == ("context", 7)
    assert isinstance(work, DeviceWork)
    assert not isinstance(work, NativeWork)
    assert work.facts() == {"registers": 32, "injected": 256}


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [(256.0, 256), (1000.0, 1024), (128.0, None), (400.0, None)],
)
def test_a_gpu_is_planted_in_whole_turns_of_its_delay(nanoseconds, expected):
    """Where that is near enough to what was asked for."""

    @benchmark
    def on_gpu(b):
        b.on("cuda")
        x = b.input(1)
        y = b.output(1)
        return b.launch(np.copyto, y, x)

    point = Point(on_gpu.case({}), parse(WARM))
    assert StepTimes(cpu=1.0, gpu=1.0).of(point, nanoseconds) == expected
