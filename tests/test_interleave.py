import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from steelyard.errors import SteelyardError
from steelyard.measure import interleave
from steelyard.measure.interleave import FOLLOW, LEAD, Token


@dataclass
class Sampling:
    """What a made-up trial says of itself."""

    count: int
    over: bool = False
    last: bool = False


class Side:
    """A trial that has enough after so many windows, or fails in its second."""

    def __init__(self, name, count, windows, seen, fails):
        self.name, self.seen = name, seen
        self.told, self.ended = Sampling(count), None
        self.windows = self._windows(windows, fails)

    def _windows(self, enough, fails):
        taken = 0
        self.seen.append(f"{self.name} prepares")
        try:
            yield self.told
            while not self.told.last:
                taken += 1
                self.seen.append(self.name)
                if fails and taken == 2:
                    raise ValueError  # noqa: TRY301 # as work does
                self.told.over = taken >= enough
                yield self.told
            self.seen.append(f"{self.name} looks")
            self.ended = self.told.count, taken
        except ValueError:
            self.ended = "fails"


def play(windows, seen, fail=None):
    """Let two sides of a process take windows in turn until the leader had enough."""
    sides = _sides(windows, seen, fail)
    interleave.in_turn(*(side.windows for side in sides))
    return [side.ended for side in sides]


def _sides(windows, seen, fail):
    return [
        Side(LEAD, 7, windows, seen, fail == LEAD),
        Side(FOLLOW, 9, 1, seen, fail == FOLLOW),
    ]


def play_apart(windows, seen, fail=None):
    """Do the same with a token between two that would be processes."""
    sides, ends = _sides(windows, seen, fail), socket.socketpair()

    def drive(side, end):
        token = Token(end, side.name, 5)
        token.wait_to_prepare()
        token.drive(side.windows)
        if not isinstance(side.ended, tuple):
            token.drop()
        return side.ended

    with ThreadPoolExecutor(2) as threads:
        ended = list(threads.map(drive, sides, ends))
    for end in ends:
        end.close()
    return ended


WAYS = pytest.mark.parametrize("way", [play, play_apart])


@WAYS
@pytest.mark.parametrize(("windows", "taken"), [(1, 1), (2, 3), (3, 3), (10, 11)])
def test_both_sides_take_as_many_windows_of_one_length(way, windows, taken):
    """The leader's, which is the first to know."""
    assert way(windows, []) == [(7, taken), (7, taken)]


@WAYS
def test_one_side_at_a_time_measures_and_prepares(way):
    """One, then two each, so that the first after a change of sides is on both."""
    seen = []
    way(5, seen)
    letters = "".join(word[0] for word in seen if " " not in word)
    assert letters == "lffllffllf"
    assert seen[:2] == ["lead prepares", "follow prepares"]


@WAYS
@pytest.mark.parametrize(
    ("side", "ended"), [(LEAD, ["fails", None]), (FOLLOW, [None, "fails"])]
)
def test_a_side_that_fails_does_not_leave_the_other_waiting(way, side, ended):
    """It is closed, and whoever made it says why."""
    assert way(9, [], fail=side) == ended


@pytest.mark.parametrize("gone", [True, False])
def test_a_side_that_is_gone_or_hangs_does_not_leave_the_other_waiting(gone):
    """A killed process closes its end; a silent one is waited for as a worker is."""
    ours, theirs = socket.socketpair()
    if gone:
        theirs.close()
    with pytest.raises(SteelyardError, match="other side"):
        Token(ours, FOLLOW, 5 if gone else 0.01).wait_to_prepare()
    ours.close()
    theirs.close()


def test_a_process_without_an_end_says_so(monkeypatch):
    """A worker that replaces one which died has no other side."""
    monkeypatch.delenv(interleave.VARIABLE, raising=False)
    interleave._end.cache_clear()
    with pytest.raises(SteelyardError, match="other side"):
        Token.inherited(LEAD, 5)
    assert Token.inherited("", 5) is None
