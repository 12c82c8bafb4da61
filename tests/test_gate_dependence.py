import random

import pytest

from steelyard.analyse.verdict import Verdict
from steelyard.gate import decide
from steelyard.gate.decide import POLICY, Evidence


def suite(noise, cases=100, seed=0):
    """Gate made-up cases whose next block is drawn from those before."""
    draw = random.Random(seed)
    seen = {str(n): Evidence() for n in range(cases)}
    while wanted := decide.undecided(seen, POLICY):
        shared = draw.gauss(0, 1)
        for case in sorted(wanted):
            blocks = seen[case].blocks
            seen[case] = seen[case].add(noise(draw, blocks, shared))
    return seen


def autocorrelated(draw, blocks, _):
    """Return a block that has 0.8 of the deviation of the one before it."""
    last = blocks[-1] if blocks else draw.gauss(0, 0.02)
    return 0.8 * last + draw.gauss(0, 0.6 * 0.02)


def test_blocks_that_depend_on_each_other_are_doubted_and_raise_no_alarm():
    """One of forty unchanged cases was slower."""
    seen = suite(autocorrelated)
    assert decide.dependent(seen) == set(seen)
    judged = decide.judge(seen, {}, POLICY)
    assert Verdict.SLOWER not in {one.verdict for one, _ in judged.values()}


def test_a_change_far_beyond_that_is_reported_all_the_same():
    """Three times the error does not explain it."""
    seen = suite(lambda d, b, s: autocorrelated(d, [x - 0.9 for x in b], s) + 0.9)
    judged = decide.judge(seen, {}, POLICY)
    assert {one.verdict for one, _ in judged.values()} == {Verdict.SLOWER}


@pytest.mark.parametrize(
    ("noise", "cases", "shared"),
    [(0.003, 1, 0.0), (0.02, 9, 0.02), (0.06, 100, 0.0), (0.003, 100, 0.02)],
)
def test_independent_noise_of_few_blocks_is_not_doubted(noise, cases, shared):
    """Nor is that which all cases of a block have in common."""
    fired = sum(
        bool(
            decide.dependent(
                suite(lambda d, _, s: d.gauss(0, noise) + shared * s, cases, seed)
            )
        )
        for seed in range(10)
    )
    assert fired <= 1


def test_one_case_of_many_dependent_blocks_is_doubted_alone():
    """Its neighbours are not."""
    draw = random.Random(2)
    blocks = [0.0]
    while len(blocks) < 30:
        blocks.append(0.9 * blocks[-1] + draw.gauss(0, 0.01))
    others = {
        str(n): Evidence(tuple(draw.gauss(0, 0.01) for _ in range(6))) for n in range(5)
    }
    assert decide.dependent(others | {"a": Evidence(tuple(blocks))}) == {"a"}
