import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels.group.run import (
    LARGEST,
    LONGEST,
    PER_THREAD,
    plan,
    split,
)
from steelyard_kernels.toolchains.costs import Costs, unrolled

PROGRAM = 0.016
weights = st.lists(st.floats(1e-4, 1.0), max_size=300)
threads = st.integers(1, 32)


@given(weights, threads, st.sampled_from([0.0, 0.001, PROGRAM]))
def test_every_candidate_is_in_exactly_one_group(weights, threads, program):
    """And no group is empty or larger than a program may be."""
    groups = plan(weights, threads, program)
    assert sorted(each for group in groups for each in group) == [*range(len(weights))]
    assert all(0 < len(group) <= LARGEST for group in groups)


@given(weights, threads)
def test_groups_come_longest_first_and_so_do_their_candidates(weights, threads):
    """What is started last should be short."""
    groups = plan(weights, threads, PROGRAM)
    loads = [sum(weights[each] for each in group) for group in groups]
    assert loads == pytest.approx(sorted(loads, reverse=True))
    for group in groups:
        own = [weights[each] for each in group]
        assert own == sorted(own, reverse=True)


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=LARGEST), threads)
def test_no_group_is_above_the_mean_by_more_than_a_candidate(weights, threads):
    """Graham's bound, which holds wherever no group is full."""
    groups = plan(weights, threads, PROGRAM)
    loads = [sum(weights[each] for each in group) for group in groups]
    assert max(loads) <= sum(weights) / len(groups) + max(weights) + 1e-9


@pytest.mark.parametrize(
    ("candidates", "weight", "threads", "sizes"),
    [
        (0, 0.002, 2, set()),
        (1, 0.002, 2, {1}),
        (1, 5.0, 2, {1}),
        (64, 0.0017, 1, {64}),
        (64, 0.0017, 2, {32}),
        (640, 0.0017, 2, {64}),
        (96, 0.05, 2, {8}),
        (96, 0.09, 2, {4, 5}),
        (8, 0.0017, 8, {8}),  # one program: each more costs as much as all of it
        (7, 2.0, 2, {1}),
    ],
)
def test_small_kernels_share_a_program_by_dozens_and_heavy_ones_by_a_few(
    candidates, weight, threads, sizes
):
    """Sizes follow from weights: 32 to 64 small ones, 4 to 8 heavy ones."""
    groups = plan([weight] * candidates, threads, PROGRAM)
    assert {len(group) for group in groups} == sizes


def test_a_thread_has_several_programs_where_there_is_enough():
    """So that the last one to end does not hang over much."""
    groups = plan([0.01] * 120, 2, PROGRAM)
    assert len(groups) == 2 * PER_THREAD
    assert all(len(group) * 0.01 <= LONGEST for group in groups)


@given(st.integers(1, 100), st.integers(1, 10))
def test_a_split_deals_out_all_of_a_group(size, parts):
    """In parts that differ by one candidate at most."""
    group = tuple(range(100, 100 + size))
    pieces = split(group, parts)
    assert sorted(each for piece in pieces for each in piece) == sorted(group)
    assert len(pieces) == min(size, parts)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


def test_a_weight_counts_what_becomes_many_instructions():
    """Text, divisions and roots."""
    costs = Costs(0.016, character=1e-6, kernel=1e-3, division=1e-2)
    assert costs.weight("a / sqrtf(b)") == pytest.approx(1e-3 + 12e-6 + 2e-2)
    assert Costs(0.0, 1e-6).weight("a / b") == pytest.approx(5e-6)


def test_a_weight_counts_loops_as_often_as_they_are_unrolled():
    """A nested one as often as both say; one that stays a loop, once."""
    text = """void kernel() {
  #pragma unroll 3
  for (int i = 0; i < 3; ++i) {
    outer;
    #pragma unroll 2
    for (int j = 0; j < 2; ++j) {
      inner;
    }
    if (i) {
      one;
    } else {
      other;
    }
  }
  #pragma unroll 1
  for (int k = 0; k < 9; ++k) {
    rolled;
  }
  after;
}"""
    times = {line.strip(): times for line, times in unrolled(text) if ";" in line[-1:]}
    assert times == {
        "outer;": 3,
        "inner;": 6,
        "one;": 3,
        "other;": 3,
        "rolled;": 1,
        "after;": 1,
    }
    once = Costs(0.0, character=1.0).weight(text)
    more = Costs(0.0, character=1.0, repeated=1.0).weight(text)
    assert once == len(text)
    assert more == sum(
        times * len(line) for line, times in unrolled(text)
    ) + text.count("\n")
