"""What passes between a run and its workers: JSON messages of a stated version.

A request names a case by the path of its file, its benchmark and its axes, so that the
worker imports it itself; the answer is a trial, or what the case says of itself.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Final

from steelyard.analyse.trial import ClockFacts, Samples, Trial
from steelyard.declare import discovery, mode
from steelyard.declare.axes import plain
from steelyard.declare.benchmark import Benchmark
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.machine.printable import cleaned
from steelyard.prepare.capsules import SUFFIX

PROTOCOL: Final = 10
"""Raised whenever a message changes: a worker may be of another environment.

1. Turns and their trials.
2. ``ask`` says whether a case is measured or only tells its facts.
3. ``ask`` may want a case's binary, or the trials of both sides, of which one is lent.
4. An answer may be ``refused``: the worker imported code that it is not for.
5. Each message has a mark and its length before it.
6. ``ask`` may want problems of a case posed, or solved.
7. A setting says which role a worker has whose windows are taken in turn.
8. ``ask`` may want a case's capsule; a path may be that of one.
9. ``ask`` may want several cases measured in rounds; a setting leaves the audit out.
10. An empty message is a sign of life: the answer is still to come.
"""

TRIAL: Final = "trial"
FACTS: Final = "facts"
BINARY: Final = "binary"
BOTH: Final = "both"
MANY: Final = "many"
POSE: Final = "pose"
SOLVE: Final = "solve"
CAPSULE: Final = "capsule"
"""What a request may ask for."""

Message = dict[str, Any]


HEADER: Final = struct.Struct("<8sQ")
"""Before each message: `MARK`, and how many bytes follow."""

MARK: Final = b"\xffsteely\n"

LARGEST: Final = 1 << 32
"""Bytes of a message at most."""

PATIENCE: Final = 86_400.0
"""Seconds that are waited for at once: more overflow what sockets take."""


class Garbled(Exception):  # noqa: N818 # what happened, not what it is
    """What came is no message; the sentence says what it is instead."""


class Pipe:
    """One end of what a run and its worker talk through."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._end.fileno()

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def send(self, message: Message) -> None:
        """Send one message; facts of foreign types go as numbers or as text.

        Raises:
            OSError: the other side is gone.
            Exception: something of the message cannot be sent.
        """
        data = _ENCODE({"protocol": PROTOCOL, **message}).encode()
        self._end.settimeout(None)
        self._end.sendall(HEADER.pack(MARK, len(data)) + data)

    def sign(self) -> None:
        """Send a sign of life."""
        self._end.sendall(HEADER.pack(MARK, 0))

    def receive(self, seconds: float | None = None) -> Message:
        """Receive one message, all of it within ``seconds`` of the last sign of life.

        Raises:
            EOFError: the other side is gone.
            TimeoutError: it did not come in time.
            Garbled: it is no message, or of another version.
        """
        length, deadline = 0, None
        while not length:
            deadline = None if seconds is None else monotonic() + seconds
            mark, length = HEADER.unpack(self._exactly(HEADER.size, deadline))
            if mark != MARK or length > LARGEST:
                raise Garbled(
                    "it is not a message, but what something else wrote there"
                )
        try:
            message = _DECODE(self._exactly(length, deadline).decode())
        except (ValueError, RecursionError):
            raise Garbled("it is not JSON") from None
        if not isinstance(message, dict) or message.get("protocol") != PROTOCOL:
            raise Garbled(f"it is not of protocol {PROTOCOL}")
        return message

    def silent(self) -> bool:
        """Whether nothing has come that nobody asked for."""
        return not select.select([self._end], [], [], 0)[0]

    def _exactly(self, length: int, deadline: float | None) -> bytes:
        parts: list[bytes] = []
        while length:
            left = PATIENCE if deadline is None else deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            self._end.settimeout(min(left, PATIENCE))
            try:
                part = self._end.recv(min(length, 1 << 20))
            except TimeoutError:
                continue
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def request(
    turn: PlannedTrial,
    settings: Settings,
    ask: str = TRIAL,
    path: Path | None = None,
    **beside: Any,
) -> Message:
    """Return the message that asks for a turn, whose file may lie at another path.

    Of both sides ``beside`` has the ``lent`` one, its ``position``, and whether it
    ``leads``; of many cases the axes and the position of the ``rest``.
    """
    return {
        "beside": beside,
        "ask": ask,
        "path": str(path or turn.case.benchmark.path),
        "name": turn.case.benchmark.name,
        "axes": dict(turn.case.axes),
        "mode": str(turn.mode),
        "block": turn.block,
        "position": turn.position,
        "settings": {**asdict(settings), "inputs": dict(settings.inputs)},
    }


def _sealed(path: Path) -> Benchmark:
    from steelyard.prepare.capsule_work import Sealed  # few cases are

    return Sealed.of(path)


def turn_of(message: Mapping[str, Any]) -> PlannedTrial:
    """Return the turn a request asks for, importing its benchmark."""
    path = Path(message["path"])
    sealed = path.suffix == SUFFIX
    benchmark = _sealed(path) if sealed else discovery.load(path, message["name"])
    case = benchmark.case(message["axes"])
    return PlannedTrial(
        message["position"], message["block"], case, mode.parse(message["mode"])
    )


def _simple(value: Any) -> Any:
    return value.item() if getattr(value, "size", 0) == 1 else str(value)


_ENCODE: Final = json.JSONEncoder(default=_simple).encode
_DECODE: Final = json.JSONDecoder().decode
"""Bound now: what is measured may patch the module."""


def trial_of(message: Mapping[str, Any], turn: PlannedTrial) -> Trial:
    """Return the trial of an answer, which is of this turn whatever it says.

    Raises:
        Garbled: it is no trial.
    """
    try:
        fields = cleaned(dict(message))
        samples = {k: tuple(map(int, v)) for k, v in fields["samples"].items()}
        clock = fields["clock"]
        fields |= {
            "samples": Samples(**samples),
            "clock": ClockFacts(**{**clock, "floor": tuple(clock["floor"])}),
            "axes": {name: plain(value) for name, value in turn.case.axes.items()},
            "doubts": tuple(fields["doubts"]),
            "case": turn.case.id,
            "mode": str(turn.mode),
            "block": turn.block,
            "position": turn.position,
        }
        return Trial(**fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Garbled(f"it is no trial ({type(error).__name__})") from None
