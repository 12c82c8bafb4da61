from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from steelyard import benchmark
from steelyard.declare.mode import parse
from steelyard.declare.plan import plan

WARM = parse("kernel/warm")
MODES = [parse("latency/warm"), parse("kernel/cold"), WARM]


@benchmark(n=[1, 2, 3], impl=["numpy", "numba", "ours"])
def triad(b, n, impl):
    """Stand for a case of several implementations."""
    return b.launch(print, n, impl)


@benchmark(n=[1, 2])
def copy(b, n):
    """Stand for a case that asks for a mode of its own."""
    b.mode("build/cold")
    return b.launch(print, n)


@benchmark(n=[0, 1])
def fails(b, n):
    """Raise, or launch what cannot be called."""
    return b.launch(1 // n)


CASES = [*triad.cases(), *copy.cases()]


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_each_block_holds_every_case_in_every_mode_once(seed, blocks):
    """Positions count on, and blocks follow one another."""
    turns = plan(CASES, MODES, blocks, seed)
    asked = {(case.id, mode) for case in CASES for mode in MODES}
    held = Counter((turn.case.id, turn.mode, turn.block) for turn in turns)
    assert held == {(*pair, block): 1 for pair in asked for block in range(blocks)}
    assert [turn.position for turn in turns] == list(range(len(turns)))
    assert [turn.block for turn in turns] == sorted(turn.block for turn in turns)


@given(st.integers(0, 2**32))
def test_implementations_of_one_case_stand_together(seed):
    """Their ratio is what people read, and the machine drifts: 3 neighbours each."""
    turns = plan(triad.cases(), MODES, 3, seed)
    for first in range(0, len(turns), 3):
        family = turns[first : first + 3]
        assert len({(t.case.axes["n"], t.mode, t.block) for t in family}) == 1
        assert {t.case.axes["impl"] for t in family} == {"numpy", "numba", "ours"}


def test_a_seed_gives_one_order():
    """The same again; another seed or block, another order."""
    order = [(t.case.id, t.mode) for t in plan(CASES, MODES, 2, seed=7)]
    assert order == [(t.case.id, t.mode) for t in plan(CASES, MODES, 2, seed=7)]
    assert order != [(t.case.id, t.mode) for t in plan(CASES, MODES, 2, seed=8)]
    half = len(order) // 2
    assert order[:half] != order[half:]


def test_every_case_comes_first_in_its_family_about_as_often():
    """Over many blocks no implementation has the fresh caches or the idle core."""
    turns = plan(triad.cases(), [WARM], 600, seed=1)
    first = Counter(t.case.axes["impl"] for t in turns[::3])
    assert all(500 < count < 700 for count in first.values())


def test_a_case_that_cannot_be_described_does_not_spoil_the_plan():
    """It has its turns, and its worker will say why; it once ended the whole run."""
    turns = plan([*fails.cases(), *copy.cases()], None, 1, 0)
    assert Counter(t.case.benchmark.name for t in turns) == {"fails": 4, "copy": 2}


def test_nothing_planned_is_no_turns():
    """No cases or no blocks."""
    assert list(plan([], MODES, 3, 0)) == []
    assert list(plan(CASES, MODES, 0, 0)) == []


def test_a_plan_of_a_billion_blocks_is_made_as_it_is_read():
    """It was made whole, and `--dry-run` did not end."""
    turns = plan(CASES, [WARM], 10**9, seed=1)
    assert len(turns) == 10**9 * len(CASES)
    assert turns[-1] == turns[len(turns) - 1]
    assert turns[-1].block == 10**9 - 1
    assert [turn.position for turn in turns[5:8]] == [5, 6, 7]
