from concurrent.futures import ThreadPoolExecutor

import pytest

from steelyard.errors import SteelyardError
from steelyard.measure import interleave
from steelyard.measure.interleave import FOLLOW, LEAD, Token


def play(windows, seen, fail=None):
    """Let two sides take windows in turn until the leader had enough of them."""

    def side(end, role):
        held = Token(end, role, 5)
        try:
            held.wait_to_prepare()
            seen.append(f"{role} prepares")
            count = held.agree(7 if role == LEAD else 9)
            taken = 0
            while True:
                seen.append(role)
                taken += 1
                if role == fail and taken == 2:
                    raise ValueError("the work fails")  # noqa: TRY301 # as work does
                if held.finished(enough=role == LEAD and taken >= windows):
                    return count, taken
        except ValueError:
            held.drop()
            raise

    ends = interleave.pair()
    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(side, end, role)
            for end, role in zip(ends, (LEAD, FOLLOW), strict=True)
        ]
        results = []
        for job in jobs:
            try:
                results.append(job.result())
            except (ValueError, SteelyardError) as error:
                results.append(str(error))
    for end in ends:
        end.close()
    return results


@pytest.mark.parametrize(("windows", "taken"), [(1, 1), (2, 3), (3, 3), (10, 11)])
def test_both_sides_take_as_many_windows_of_one_length(windows, taken):
    """The leader's, which is the first to know."""
    assert play(windows, []) == [(7, taken), (7, taken)]


def test_one_side_at_a_time_measures_and_prepares():
    """One, then two each, so that the first after a change of hands is on both."""
    seen = []
    play(5, seen)
    letters = "".join(word[0] for word in seen if " " not in word)
    assert letters == "lffllffllf"
    assert seen[:2] == ["lead prepares", "follow prepares"]


@pytest.mark.parametrize("side", [LEAD, FOLLOW])
def test_a_side_that_fails_does_not_leave_the_other_waiting(side):
    """It ends with a sentence that blames the other."""
    first, second = play(9, [], fail=side)
    told = {
        LEAD: ("the work fails", interleave.OTHER),
        FOLLOW: (interleave.OTHER, "the work fails"),
    }
    assert (first, second) == told[side]


def test_a_follower_that_keeps_it_hands_back_once_it_is_done():
    """What it does after its last window is not in the leader's way."""
    ours, theirs = interleave.pair()
    leader, follower = (
        Token(end, role, 5, keeps=True)
        for end, role in ((ours, LEAD), (theirs, FOLLOW))
    )
    seen = []

    def follow():
        follower.wait_to_prepare()
        follower.agree(1)
        assert follower.finished(enough=False)
        seen.append("weighs what follows")
        follower.done()

    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(follow)
        leader.agree(1)
        assert leader.finished(enough=True)
        seen.append("goes on")
        leader.done()
        job.result()
    assert seen == ["weighs what follows", "goes on"]
    ours.close()
    theirs.close()


def test_a_side_that_is_gone_does_not_leave_the_other_waiting():
    """A killed process closes its end."""
    ours, theirs = interleave.pair()
    theirs.close()
    with pytest.raises(SteelyardError, match="other side"):
        Token(ours, FOLLOW, 5).wait_to_prepare()
    ours.close()


def test_a_side_that_hangs_is_not_waited_for_for_ever():
    """As long as a silent worker is."""
    ours, theirs = interleave.pair()
    with pytest.raises(SteelyardError, match="other side"):
        Token(ours, FOLLOW, 0.01).wait_to_prepare()
    ours.close()
    theirs.close()


def test_a_process_without_an_end_says_so(monkeypatch):
    """A worker that replaces one which died has no other side."""
    monkeypatch.delenv(interleave.VARIABLE, raising=False)
    interleave._end.cache_clear()
    with pytest.raises(SteelyardError, match="other side"):
        Token.inherited(LEAD, 5)
    assert Token.inherited("", 5) is None
