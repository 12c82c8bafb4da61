"""Blocks until every case is decided: from points and two sides to evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from steelyard.analyse.verdict import Policy
from steelyard.gate import decide
from steelyard.gate.blocks import Blocks, Point, Reading
from steelyard.gate.decide import Evidence


@dataclass(slots=True)
class Measured:
    """What all blocks came to, by `Point.key`."""

    times: dict[str, Evidence] = field(default_factory=dict)
    cycles: dict[str, Evidence] = field(default_factory=dict)
    """Of points whose clock was read in each of their blocks."""
    failed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Sentences by the side that failed."""
    identical: set[str] = field(default_factory=set)
    facts: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What the work of each side says of itself."""
    blocks: int = 0
    """Rounds through what was open."""
    cut_short: bool = False
    """Whether the budget ended it."""


def measure(
    blocks: Blocks,
    points: Sequence[Point],
    policy: Policy,
    *,
    noisy: Collection[str] = (),
    identity: bool = False,
    deadline: float | None = None,
    now: Callable[[], float] = monotonic,
    on_block: Callable[[int, int, int], None] = lambda _number, _open, _rest: None,
) -> Measured:
    """Measure blocks of what is open until nothing is, or until the deadline.

    A case that fails is not measured again. ``noisy`` are the keys of points that are
    known to be; ``deadline`` is one of ``now``; ``on_block`` is told the number of
    each block, how many points it has, and how many turns these may still take.
    """
    found = Measured(times={p.key: Evidence(noisy=p.key in noisy) for p in points})
    clocked = {point.key: Evidence() for point in points}
    with blocks.scratch():
        while wanted := _open(found, points, policy):
            open_ = {point.key: found.times[point.key] for point in wanted}
            on_block(found.blocks, len(wanted), decide.expected(open_, policy))
            first = identity and not found.blocks
            for point, reading in blocks.measure(found.blocks, wanted, identity=first):
                _take(found, clocked, point.key, reading)
                if deadline is not None and now() > deadline:
                    found.cut_short = True
                    break
            found.blocks += 1
            if found.cut_short:
                break
    found.cycles = {
        key: one
        for key, one in clocked.items()
        if one.blocks and len(one.blocks) == len(found.times[key].blocks)
    }
    return found


def _open(found: Measured, points: Sequence[Point], policy: Policy) -> list[Point]:
    gone = found.failed.keys() | found.identical
    seen = {key: one for key, one in found.times.items() if key not in gone}
    wanted = decide.undecided(seen, policy)
    return [point for point in points if point.key in wanted]


def _take(
    found: Measured, clocked: dict[str, Evidence], key: str, reading: Reading
) -> None:
    if reading.facts:
        found.facts[key] = reading.facts
    if reading.failed:
        found.failed[key] = reading.failed
    elif reading.identical:
        found.identical.add(key)
    elif reading.ratio is not None:
        one = found.times[key]
        found.times[key] = one.add(reading.ratio, reading.mean, reading.grain)
        if reading.cycles is not None:
            clocked[key] = clocked[key].add(reading.cycles)
