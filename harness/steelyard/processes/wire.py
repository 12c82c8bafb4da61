"""What passes between a run and its workers: JSON messages of a stated version.

A request names a case by the path of its file, its benchmark and its axes, so that the
worker imports it itself; the answer is a trial, or what the case says of itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from steelyard import discovery, mode
from steelyard.axes import plain
from steelyard.measuring.settings import Settings
from steelyard.plan import Turn
from steelyard.trial import ClockFacts, Samples, Trial

PROTOCOL: Final = 4
"""Raised whenever a message changes: a worker may be of another environment.

1. Turns and their trials.
2. ``ask`` says whether a case is weighed or only tells its facts.
3. ``ask`` may want a case's binary, or the trials of both sides, of which one is lent.
4. An answer may be ``refused``: the worker imported code that it is not for.
"""

TRIAL: Final = "trial"
FACTS: Final = "facts"
BINARY: Final = "binary"
BOTH: Final = "both"
"""What a request may ask for."""

Message = dict[str, Any]


def send(connection: Connection, message: Message) -> None:
    """Send one message; facts of foreign types go as numbers or as text."""
    text = json.dumps({"protocol": PROTOCOL, **message}, default=_simple)
    connection.send_bytes(text.encode())


def receive(connection: Connection) -> Message:
    """Receive one message.

    Raises:
        EOFError: the other side is gone.
        ValueError: it speaks another version.
    """
    message: Message = json.loads(connection.recv_bytes())
    if message.get("protocol") != PROTOCOL:
        raise ValueError(
            f"a worker speaks protocol {message.get('protocol')}, this is {PROTOCOL}"
        )
    return message


def request(
    turn: Turn,
    settings: Settings,
    ask: str = TRIAL,
    path: Path | None = None,
    **beside: Any,
) -> Message:
    """Return the message that asks for a turn, whose file may lie at another path.

    Of both sides ``beside`` has the ``lent`` one, its ``position``, and whether it
    ``leads``.
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


def turn_of(message: Mapping[str, Any]) -> Turn:
    """Return the turn a request asks for, importing its benchmark."""
    benchmark = discovery.load(Path(message["path"]), message["name"])
    case = benchmark.case(message["axes"])
    return Turn(
        message["position"], message["block"], case, mode.parse(message["mode"])
    )


def _simple(value: Any) -> Any:
    return value.item() if getattr(value, "size", 0) == 1 else str(value)


def trial_of(message: Mapping[str, Any]) -> Trial:
    """Return the trial of an answer."""
    fields = dict(message)
    fields["samples"] = Samples(**{k: tuple(v) for k, v in fields["samples"].items()})
    clock = fields["clock"]
    fields["clock"] = ClockFacts(**{**clock, "floor": tuple(clock["floor"])})
    fields["axes"] = {name: plain(value) for name, value in fields["axes"].items()}
    fields["doubts"] = tuple(fields["doubts"])
    return Trial(**fields)
