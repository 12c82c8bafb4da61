"""`steelyard bisect`: the search, its decisions in simulated noise, and a repository."""

import itertools
import math
import os
import random
from pathlib import Path

import pytest
import shell
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse.verdict import Verdict
from steelyard.declare import config
from steelyard.declare.plan import Settings
from steelyard.errors import FAILED, FINE, UNRESOLVED
from steelyard.fleet import pairs
from steelyard.fleet.bisect import Decision, Found, Outcome, Side, bisect, search
from steelyard.fleet.commits import Commits
from steelyard.fleet.pairs import Comparison
from steelyard.gate import decide
from steelyard.gate.decide import Evidence
from steelyard.report import bisected
from steelyard.store.session import Request
from steelyard.store.store import Store

COMMITS = [f"{at:040x}" for at in range(1, 65)]
GOOD = "0" * 40


@given(
    st.integers(0, 63),
    st.sets(st.integers(0, 62), max_size=20),
    st.integers(1, 64),
    st.integers(1, 5),
)
def test_the_first_bad_commit_is_among_those_that_are_found(at, skipped, count, width):
    """It is alone unless what stands before it was skipped, in few rounds."""
    commits = COMMITS[:count]
    first = min(at, count - 1)

    rounds = []

    def told(several):
        assert 0 < len(several) <= width
        rounds.append(several)
        return [one(commit) for commit in several]

    def one(commit):
        place = commits.index(commit)
        if place in skipped and place != count - 1:
            return Decision(commit, Side.SKIPPED, "")
        return Decision(
            commit, Side.BAD if place >= first else Side.GOOD, "", wrong=0.1
        )

    found = search(GOOD, commits, told, width)
    assert commits[first] in found.commits
    assert all(commits.index(one) in skipped for one in found.commits[:-1])
    steps = [one for one in found.decisions if one.side is not Side.SKIPPED]
    assert len(rounds) <= math.ceil(math.log(count, width + 1)) + len(skipped) + 1
    if width == 1:
        assert len(steps) <= math.ceil(math.log2(count)) + len(skipped)
    assert found.wrong == pytest.approx(min(1, 0.1 * len(steps)))


class Simulated:
    """Commits whose times are known, compared as blocks with normal noise."""

    def __init__(
        self, seed, changes, noise=0.02, *, code=None, broken=(), machines=("",)
    ):
        self.draw = random.Random(seed)
        self.levels = dict(
            zip(
                [GOOD, *COMMITS],
                itertools.accumulate(changes, initial=0.0),
                strict=True,
            )
        )
        self.noise = noise
        self.code = code or {}
        self.broken = broken
        self.measured = set()
        self.machines = machines
        self.rounds = []

    def __call__(self, several):
        """Compare each pair, on a machine of its own."""
        self.rounds.append([one.machine for one in several])
        assert len({*self.rounds[-1]}) == len(several)
        return [
            pairs.comparison_of(pairs.answered(self.compared(self.sent(one))))
            for one in several
        ]

    @staticmethod
    def sent(one):
        """Return what arrives at a machine."""
        return pairs.pair_of(one.base, one.other, pairs.asked(one))

    def compared(self, pair):
        """Draw blocks until the gate has decided."""
        base, other, policy, known = pair.base, pair.other, pair.policy, pair.known
        if other in self.broken:
            return Comparison(failed=f"{other} does not build", unbuilt=True)
        facts = {"code_hash": self.code.get(other, other)}
        if facts["code_hash"] == self.code.get(base, base):
            return Comparison(identical=True, facts=facts)
        if facts in known:
            return Comparison(facts=facts)
        self.measured |= {base, other}
        apart = self.levels[other] - self.levels[base]
        evidence = Evidence()
        while decide.undecided({"it": evidence}, policy):
            evidence = evidence.add(apart + self.draw.gauss(0, self.noise))
        ((judgement, _),) = decide.judge({"it": evidence}, {}, policy).values()
        return Comparison(judgement, evidence, facts=facts)


def step_at(place, change=0.05):
    """Return changes of which one is not nothing."""
    return [math.log1p(change) if at == place else 0.0 for at in range(len(COMMITS))]


def test_a_step_of_5_percent_in_2_percent_noise_is_found_19_times_of_20():
    """In nine measured commits at most, the ends among them."""
    right = 0
    for seed in range(20):
        place = random.Random(seed).randrange(64)
        world = Simulated(seed, step_at(place))
        found = bisect("case", GOOD, COMMITS, world)
        right += found.found is not None and found.found.commits == (COMMITS[place],)
        assert len(world.measured) <= 9
    assert right >= 19


def test_several_machines_take_fewer_rounds_and_are_as_right():
    """Four of them: both ends, three rounds of four commits, and the step itself."""
    right = 0
    for seed in range(20):
        place = random.Random(seed).randrange(64)
        world = Simulated(seed, step_at(place), machines=MACHINES)
        found = bisect("case", GOOD, COMMITS, world)
        right += found.found is not None and found.found.commits == (COMMITS[place],)
        assert world.rounds[0] == list(MACHINES)
        assert len(world.rounds) <= 5
    assert right >= 19


MACHINES = ("a", "b", "c", "d")


def test_a_machine_whose_ends_do_not_differ_any_more_measures_nothing_else():
    """The others go on; it is said."""
    world, said = Simulated(0, step_at(40), machines=MACHINES), []
    compared, levels = world.compared, world.levels

    def one(pair):
        world.levels = dict.fromkeys(levels, 0.0) if pair.machine == "b" else levels
        return compared(pair)

    world.compared = one
    world.sent = lambda pair: pair
    found = bisect("case", GOOD, COMMITS, world, said.append)
    assert found.found.commits == (COMMITS[40],)
    assert world.rounds[:2] == [["a", "b", "c", "d"], ["a", "c", "d"]]
    changed = [line for line in said if "the machine changed" in line]
    assert len(changed) == 1
    assert changed[0].startswith("b: ")


def test_steps_either_way_are_found():
    """A speed-up; and the greater of two steps."""
    for seed in range(5):
        found = bisect("case", GOOD, COMMITS, Simulated(seed, step_at(40, -0.05)))
        assert found.found.commits == (COMMITS[40],)
        assert found.exit_code == FINE
        changes = step_at(40)
        changes[10] = math.log1p(0.012)
        found = bisect("case", GOOD, COMMITS, Simulated(seed, changes, noise=0.005))
        assert found.found.commits == (COMMITS[40],)


def test_ends_that_do_not_differ_stop_the_search():
    """The machine changed; nothing else is measured."""
    world = Simulated(0, step_at(99))
    found = bisect("case", GOOD, COMMITS, world)
    assert "the machine changed" in found.problem
    assert found.exit_code == UNRESOLVED
    assert len(world.measured) == 2


def test_known_code_and_broken_builds_are_not_measured():
    """Only two codes: the ends are enough."""
    code = {
        one: "old" if at <= 40 else "new" for at, one in enumerate([GOOD, *COMMITS])
    }
    world = Simulated(0, step_at(40), code=code, broken=COMMITS[20:40])
    found = bisect("case", GOOD, COMMITS, world)
    assert len(world.measured) <= 3
    assert set(found.found.commits) == {*COMMITS[20:41]}
    assert "skipped" in found.problem
    assert found.exit_code == UNRESOLVED
    world = Simulated(0, step_at(40), code=code)
    assert bisect("case", GOOD, COMMITS, world).found.commits == (COMMITS[40],)


def test_a_commit_that_is_not_decided_is_skipped_and_a_failing_end_is_said():
    """Noise that no number of blocks tells; and a benchmark that raises."""
    world = Simulated(0, step_at(40))

    compared = world.compared

    def noisy(pair):
        if pair.other == COMMITS[31]:
            world.noise = 0.5
        found = compared(pair)
        world.noise = 0.02
        return found

    world.compared = noisy
    found = bisect("case", GOOD, COMMITS, world)
    skipped = [one for one in found.found.decisions if one.side is Side.SKIPPED]
    assert [one.commit for one in skipped] == [COMMITS[31]]
    assert skipped[0].why.startswith((Verdict.NOT_GATEABLE, Verdict.UNRESOLVED))
    assert found.found.commits == (COMMITS[40],)
    world.compared = lambda _: Comparison(failed="it raised")
    fails = bisect("case", GOOD, COMMITS, world)
    assert (fails.exit_code, fails.problem) == (FAILED, "it raised")


SUITE = """
from work import spin

from steelyard import benchmark


@benchmark
def spinning(b):
    b.mode("kernel/warm")
    return b.launch(spin)
"""
WORK = """
from time import perf_counter_ns

def spin():
    end = perf_counter_ns() + {}
    while perf_counter_ns() < end:
        pass
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Make a repository of three commits, whose last takes five times as long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    quick, slow = WORK.format(100_000), WORK.format(500_000)
    return changes(tmp_path, [quick, f"raise RuntimeError\n{quick}", slow])


def changes(folder, works):
    """Commit one work after the other, with its suite; return the commits."""
    texts = {"suites/bench_work.py": SUITE, ".gitignore": ".steelyard\n__pycache__\n"}
    shell.files(folder, texts)
    return [
        shell.commit(
            shell.files(folder, {"work.py": f"{work}# {at}\n"}), f"change {at}"
        )
        for at, work in enumerate(works)
    ]


def test_a_repository_is_searched_from_end_to_end(repository, monkeypatch):
    """One of its commits cannot be imported; the answer names both that are left.

    Five times as long is seen in fewer blocks than a gate takes at least.
    """
    for least in ("EARLIEST", "HOPELESS", "ROBUST"):
        monkeypatch.setattr(decide, least, 3)
    first, *_, last = repository
    done = shell.command("bisect", "spinning", first, last, code=None)
    assert "change 2" in done.output
    assert "change 1" in done.output
    assert f"skipped {repository[1][:10]}" in done.output
    assert "change 0" not in done.output
    assert done.exit_code == UNRESOLVED, done.output
    with Store.open(str(Path(".steelyard/steelyard.db"))) as store:
        tags = {tag for run in store.runs() for tag in run.tags}
        assert tags == {"bisect/base", "bisect/head"}


def test_what_cannot_be_searched_is_one_sentence(repository):
    """Ends in the wrong order; and a case that is none."""
    first, *_, last = repository
    for words, said in (
        (["spinning", last, first], "is not before BAD"),
        (["missing", first, last], "missing"),
        (["spinning", last, last], "are one commit"),
        (["spinning", "nowhere", last], "is no commit"),
    ):
        done = shell.command("bisect", *words, code=4)
        assert said in done.output


def test_a_commits_own_suites_are_measured_where_the_case_is_the_same(repository):
    """A kernel may lie in a suite; what cannot be imported runs the checkout's."""
    suite = Path("suites/bench_work.py")
    changed = f"{suite.read_text()}# another\n"
    suite.write_text(changed)
    asked = Request(["suites"])
    with Commits.opened("spinning", asked, config.load(), Settings()) as compare:
        for commit, own in zip(repository, (True, False, True), strict=True):
            with compare._side(commit) as side:
                text = (side.root / suite).read_text()
                assert (text == SUITE, text == changed) == (own, not own)
        suite.write_text(SUITE.replace("kernel/warm", "kernel/cold"))
    with (
        Commits.opened("spinning", asked, config.load(), Settings()) as compare,
        compare._side(repository[0]) as side,
    ):
        assert "kernel/cold" in (side.root / suite).read_text()


def test_without_suites_it_is_said_how_to_name_them(repository):
    """The built-in suite is the same at every commit: a gate with it would pass."""
    Path("suites").rename("elsewhere")
    for words in (["bisect", "spinning", *repository[::2]], ["gate", repository[0]]):
        said = " ".join(shell.command(*words, code=4).output.split())
        assert "Name one after the commits, or set suites in [tool.stee" in said


def test_probabilities_are_written_like_other_numbers(tmp_path):
    """Rounded down, as they are at least that."""
    decision = Decision("c0ffee00", "bad", "slower", wrong=0.0004)
    found = Outcome("case", found=Found((), "c0ffee01", (decision,)))
    assert "at least 99.9 %" in "\n".join(bisected.lines(found, tmp_path))
