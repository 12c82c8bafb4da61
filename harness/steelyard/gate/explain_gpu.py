"""What differs of two launches on a GPU, and of the GPUs that they ran on. Pure.

Each difference predicts what it can do to the time at most:

- *occupancy*: warps on a multiprocessor at once. Half of them hide half of the waiting.
- *bytes in flight*: what the loads in the code of as many threads bring at once, by
  Little's law: twice as many bytes in flight are twice the rate, while memory has more.
- *spills*: what all threads store and load of them goes through memory at most, beside
  what the launch has to move.
- *waves*: blocks come in rounds of as many as fit the GPU, and the last is not full.
- *traffic* and *eligible warps*, where Nsight Compute counted them.
- another GPU: what a copy of as many bytes takes on either (`analyse.peaks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from steelyard import units
from steelyard.analyse import peaks
from steelyard.analyse.trial import Trial
from steelyard.gate.difference import Difference, more_or_fewer, over, pair_of, usable

WARP: Final = 32

RESIDENT: Final = ("blocks_per_multiprocessor", "blocks_resident")
"""Facts of how many blocks a multiprocessor holds: by the driver, by the cubin."""

LOADS: Final = ("LDG", "LDGSTS")
"""Instructions that load from global memory."""

WIDE, NARROW = 16, 4
"""Bytes of a thread's load: of those that are counted apart, and of the others."""

DIFFERS: Final = 0.01
"""The share from which the last waves of two launches differ."""

Machines = tuple[Mapping[str, Any], Mapping[str, Any]]


def differences(old: Trial, new: Trial, machines: Machines) -> Iterator[Difference]:
    """Yield what differs of two launches, old first."""
    yield from _occupancy(old, new)
    sides = [
        _Launch.of(one, m.get("gpu"))
        for one, m in zip((old, new), machines, strict=True)
    ]
    was, now = sides
    if was and now:
        yield from _flight(was, now)
        yield from _waves(was, now)
    yield from _spills(old, new)
    yield from _counted(old, new)
    yield from _gpu(old, machines)


@dataclass(frozen=True, slots=True)
class _Launch:
    """How a launch lies on its GPU."""

    warps: float
    """On a multiprocessor at once."""
    loads: float
    """Bytes of a thread's loads in the code."""
    waves: float
    """Rounds of blocks; 0 where the GPU's size is not known."""

    @classmethod
    def of(cls, trial: Trial, gpu: Mapping[str, Any] | None) -> _Launch | None:
        facts = trial.facts
        resident = _resident(facts)
        threads, grid = _product(facts.get("block")), _product(facts.get("grid"))
        if not (resident and threads and grid):
            return None
        count = (gpu or {}).get("multiprocessors")
        size = count if isinstance(count, int) and count > 0 else 0
        warps = resident * math.ceil(threads / WARP)
        waves = grid / (resident * size) if size else 0.0
        return cls(warps, _loads(facts), waves)


def _resident(facts: Mapping[str, Any]) -> float:
    known = (facts.get(name) for name in RESIDENT)
    return next((float(n) for n in known if isinstance(n, (int, float)) and n > 0), 0.0)


def _product(extents: Any) -> int:
    """Return how many blocks or threads extents make; 0 where they are not known."""
    several = extents if isinstance(extents, (list, tuple)) else [extents]
    plain = [n for n in several if isinstance(n, int) and n > 0]
    return math.prod(plain) if len(plain) == len(several) else 0


def _loads(facts: Mapping[str, Any]) -> float:
    counts = facts.get("opcodes")
    if not isinstance(counts, Mapping):
        return 0.0
    every = sum(counts.get(name, 0) for name in LOADS)
    wide = facts.get("loads_128")
    broad = min(wide, every) if isinstance(wide, int) else 0
    return float(WIDE * broad + NARROW * (every - broad))


def _occupancy(old: Trial, new: Trial) -> Iterator[Difference]:
    name = next((n for n in RESIDENT if pair_of(old, new, n)), RESIDENT[0])
    pair = pair_of(old, new, name)
    if not (pair and all(map(usable, pair))):
        return
    blocks = more_or_fewer(pair, "blocks") if pair[0] != pair[1] else ""
    threads = [_product(one.facts.get("block")) for one in (old, new)]
    if not all(threads):
        if blocks:
            words = f"occupancy, {blocks} on a multiprocessor"
            yield Difference("occupancy", words, 1 / over(pair))
        return
    was, now = (
        count * math.ceil(each / WARP)
        for count, each in zip(pair, threads, strict=True)
    )
    if was != now:
        words = f"occupancy, {was:.0f} -> {now:.0f} warps on a multiprocessor"
        more = f" ({blocks})" if blocks else ""
        yield Difference("occupancy", words + more, was / now)


def _flight(was: _Launch, now: _Launch) -> Iterator[Difference]:
    """Yield other loads of a thread: of the same, occupancy says it all."""
    if was.loads and now.loads and was.loads != now.loads:
        before, after = (one.warps * WARP * one.loads for one in (was, now))
        words = (
            f"bytes in flight on a multiprocessor {units.size(before)} -> "
            f"{units.size(after)} at most"
        )
        yield Difference("flight", words, before / after)


def _spills(old: Trial, new: Trial) -> Iterator[Difference]:
    pair = pair_of(old, new, "spill_bytes")
    if not pair or pair[0] == pair[1]:
        return
    moved = []
    for one, each in zip((old, new), pair, strict=True):
        threads = _product(one.facts.get("block")) * _product(one.facts.get("grid"))
        least = one.facts.get("bytes")
        if threads and isinstance(least, (int, float)) and usable(least):
            moved.append(least + each * threads)
    predicted = moved[1] / moved[0] if len(moved) == 2 else 1.0
    yield Difference("spills", more_or_fewer(pair, "bytes of spills"), predicted)


def _waves(was: _Launch, now: _Launch) -> Iterator[Difference]:
    if not (was.waves and now.waves):
        return
    idle = [math.ceil(one.waves) / one.waves for one in (was, now)]
    if abs(math.log(idle[1] / idle[0])) > DIFFERS:
        words = (
            f"waves of blocks {was.waves:.2f} -> {now.waves:.2f}: of the time in waves "
            f"{100 / idle[0]:.0f} -> {100 / idle[1]:.0f} % is used"
        )
        yield Difference("waves", words, idle[1] / idle[0])


def _counted(old: Trial, new: Trial) -> Iterator[Difference]:
    """Yield what Nsight Compute counted of both."""
    was, now = (one.facts.get("ncu") for one in (old, new))
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return
    for name, kind, words, power in (
        ("eligible_warps", "occupancy", "eligible warps a cycle", -1),
        ("l2_read", "traffic", "bytes read from L2", 1),
        ("dram_read", "traffic", "bytes read from memory", 1),
    ):
        before, after = (float(side.get(name) or 0) for side in (was, now))
        if not (usable(before) and usable(after)):
            continue
        if abs(math.log(after / before)) > DIFFERS:
            text = f"{words} {before:.3g} -> {after:.3g} by ncu"
            yield Difference(kind, text, (after / before) ** power)


def _gpu(old: Trial, machines: Machines) -> Iterator[Difference]:
    """Yield another GPU, with what a copy of as many bytes takes on both."""
    sides = [dict(m.get("gpu") or {}) for m in machines]
    differ = [
        f"{name} {sides[0].get(name)} -> {sides[1].get(name)}"
        for name in ("name", "driver")
        if all(sides) and sides[0].get(name) != sides[1].get(name)
    ]
    if not differ:
        return
    moved, cache = old.facts.get("bytes"), old.mode.split("/")[1:2]
    predicted = 1.0
    if isinstance(moved, (int, float)) and cache:
        copies = [
            peaks.nearest(side.get("peaks") or {}, 1.0, cache=cache[0], nbytes=moved)
            for side in sides
        ]
        if all(copies):
            was, now = (one.share for one in copies if one)
            predicted = now / was
    yield Difference("machine", f"the GPU: {', '.join(differ)}", predicted)
