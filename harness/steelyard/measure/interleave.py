"""Interleave the windows of two sides: who holds the token measures.

Windows of two sides stand milliseconds apart, so that what others do on the machine
meets both. The leader takes one, then each takes two: L F F L L F F L, so that what the
change of hands costs, and what drifts, is in both. The leader's precision and budget
end it; both have then as many windows.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
from typing import Final, Self

from steelyard.errors import SteelyardError

VARIABLE: Final = "STEELYARD_BATON"
"""Names the descriptor of a worker's end."""

LEAD: Final = "lead"
FOLLOW: Final = "follow"

OTHER: Final = "the other side failed, or left, before it was its turn again."
"""How a trial ends that waits for one that does not come."""

_GO, _LAST, _GONE = 1, 2, 3
_MESSAGE: Final = struct.Struct("<BQ")


class Token:
    """One side's end, for one trial.

    Sides of one process work on the same buffers, in measuring and in what follows: a
    follower that ``keeps`` the token hands it back once it is `done` with all of that.
    """

    def __init__(
        self, end: socket.socket, role: str, seconds: float, *, keeps: bool = False
    ) -> None:
        self._end = end
        self._leads = role == LEAD
        self._keeps = keeps
        self._count = 0
        self._taken = 0
        self._last = False
        end.settimeout(seconds)

    @classmethod
    def inherited(cls, role: str, seconds: float) -> Self | None:
        """Return this process's end, where it takes turns in a trial."""
        return cls(_end(), role, seconds) if role else None

    def wait_to_prepare(self) -> None:
        """Let the leader prepare and warm up first."""
        if not self._leads:
            self._count = self._wait()

    def agree(self, count: int) -> int:
        """Return how many units both sides' windows have, once it is one's turn."""
        self._send(_GO, count)
        self._wait()
        return count if self._leads else self._count

    def finished(self, *, enough: bool) -> bool:
        """Hand over after a window where it is time to; say whether it was the last."""
        self._taken += 1
        second = self._taken % 2 == 0
        if self._leads:
            if second:
                return False
            self._send(_LAST if enough else _GO)
            self._wait()
            return enough
        if self._last:
            if not self._keeps:
                self._send(_GO)
        elif second:
            self._send(_GO)
            self._wait()
            return False
        return self._last

    def done(self) -> None:
        """Hand back what was kept: the trial is over."""
        if self._keeps and not self._leads:
            self._send(_GO)

    def drop(self) -> None:
        """Tell the other that there will be no more turns."""
        try:
            self._send(_GONE)
        except SteelyardError:
            return

    def _send(self, code: int, count: int = 0) -> None:
        try:
            self._end.sendall(_MESSAGE.pack(code, count))
        except OSError as error:
            raise SteelyardError(OTHER) from error

    def _wait(self) -> int:
        try:
            data = self._end.recv(_MESSAGE.size, socket.MSG_WAITALL)
        except OSError as error:
            raise SteelyardError(OTHER) from error
        if len(data) < _MESSAGE.size:
            raise SteelyardError(OTHER)
        code, count = _MESSAGE.unpack(data)
        if code == _GONE:
            raise SteelyardError(OTHER)
        self._last = code == _LAST
        return int(count)


@functools.cache
def _end() -> socket.socket:
    if VARIABLE not in os.environ:
        raise SteelyardError(OTHER)  # the worker that had one was ended
    return socket.socket(fileno=int(os.environ[VARIABLE]))


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends, for two workers to inherit."""
    return socket.socketpair()
