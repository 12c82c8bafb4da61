"""Interleave the windows of trials: of two L F F L L F F L, within a process or between two.

Windows of two sides stand milliseconds apart, so that what others do on the machine
meets both. The leader takes one, then each takes two, so that what a change of sides
costs, and what drifts, is in both. The leader's precision and budget end both, which
then have as many windows.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final, Self

from steelyard.errors import SteelyardError
from steelyard.measure.sampler import Sampling

VARIABLE: Final = "STEELYARD_TOKEN"
"""Names the descriptor of a worker's end."""

LEAD: Final = "lead"
FOLLOW: Final = "follow"

OTHER: Final = "the other side failed, or left, before it was its turn again."
"""How a trial ends that waits for one that does not come."""

Windows = Generator[Sampling, None, None]
"""A trial under way, which takes a queue of windows each time it is resumed."""

Drive = Callable[[Windows], None]
"""Has the windows of a trial taken, until there are enough or it fails."""


def alone(windows: Windows) -> None:
    """Take windows of one trial until it has enough."""
    for sampling in windows:
        sampling.last = sampling.enough


def in_turn(lead: Windows, follow: Windows) -> None:
    """Take windows of two trials of this process in turn.

    One that fails ends the other too. What the follower does after its last window
    comes before what the leader does then.
    """
    with suppress(StopIteration):  # where one fails
        own, other = next(lead), next(follow)
        other.count = own.count
        next(lead)
        while not own.over:
            for side in (follow, follow, lead, lead):
                next(side)
        next(follow)
        own.last = other.last = True
        for side in (follow, lead):
            next(side, None)
    follow.close()
    lead.close()


def in_rounds(trials: Sequence[Windows]) -> None:
    """Take windows of any number of trials of this process in turn.

    Each ends when it has enough, and its turns are the others' from then on.
    """
    going = list(trials)
    while going:
        for windows in tuple(going):
            sampling = next(windows, None)
            if sampling is None:
                going.remove(windows)
            else:
                sampling.last = sampling.enough


_GO, _LAST, _GONE = 1, 2, 3
_MESSAGE: Final = struct.Struct("<BQ")


class Token:
    """One of two processes' end, for one trial: who holds the token measures."""

    def __init__(self, end: socket.socket, role: str, seconds: float) -> None:
        self._end = end
        self._leads = role == LEAD
        self._count = 0
        self._last = False
        end.settimeout(seconds)

    @classmethod
    def inherited(cls, role: str, seconds: float) -> Self | None:
        """Return this process's end, where it takes turns in a trial."""
        return cls(_end(), role, seconds) if role else None

    def wait_to_prepare(self) -> None:
        """Let the leader prepare and warm up first."""
        if not self._leads:
            self._take()

    def drive(self, windows: Windows) -> None:
        """Take windows of this side's trial in turn with the other process's.

        A trial whose other side is gone is closed.
        """
        with suppress(SteelyardError, StopIteration):
            (self._lead if self._leads else self._follow)(windows, next(windows))
        windows.close()

    def _lead(self, windows: Windows, own: Sampling) -> None:
        self._hand_over(count=own.count)
        next(windows)
        while not own.over:
            self._hand_over()
            next(windows)
            next(windows)
        self._hand_over(_LAST)
        own.last = True
        next(windows, None)

    def _follow(self, windows: Windows, own: Sampling) -> None:
        own.count = self._count
        self._hand_over()
        next(windows)
        while not self._last:
            next(windows)
            self._hand_over()
            next(windows)
        self._give()
        own.last = True
        next(windows, None)

    def drop(self) -> None:
        """Tell the other that there will be no more turns."""
        with suppress(SteelyardError):
            self._give(_GONE)

    def _hand_over(self, code: int = _GO, *, count: int = 0) -> None:
        """Give the token away, and wait for it."""
        self._give(code, count)
        self._take()

    def _give(self, code: int = _GO, count: int = 0) -> None:
        try:
            self._end.sendall(_MESSAGE.pack(code, count))
        except OSError as error:
            raise SteelyardError(OTHER) from error

    def _take(self) -> None:
        try:
            data = self._end.recv(_MESSAGE.size, socket.MSG_WAITALL)
        except OSError as error:
            raise SteelyardError(OTHER) from error
        if len(data) < _MESSAGE.size:
            raise SteelyardError(OTHER)
        code, self._count = _MESSAGE.unpack(data)
        if code == _GONE:
            raise SteelyardError(OTHER)
        self._last = code == _LAST


@functools.cache
def _end() -> socket.socket:
    if VARIABLE not in os.environ:
        raise SteelyardError(OTHER)  # the worker that had one was ended
    return socket.socket(fileno=int(os.environ[VARIABLE]))
