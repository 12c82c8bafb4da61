"""What may have made a case slower or faster: what differs, the likeliest first. Pure.

Some differences predict a ratio of times: twice the instructions may take twice as long,
half the blocks on a multiprocessor may hide half the latency, a clock at 95 % takes
5 % longer. Each is the most that this difference can do, and how much of the measured
change that is ranks them. What predicts none stands behind those that account for a
tenth or more, in an order of plausibility: the work, the code, its launch, then the
machine. A prediction for the other direction stands last: it was outweighed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from steelyard import units
from steelyard.analyse.doubts.machine import of_gpu
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, Trial
from steelyard.gate import explain_gpu
from steelyard.gate.difference import (
    Difference,
    count,
    more_or_fewer,
    over,
    pair_of,
    usable,
)
from steelyard.gate.outcome import StaticChange

NOTABLE: Final = 0.1
"""The share of a change from which a prediction stands before what predicts nothing."""

DIFFERS: Final = 0.005
"""The share from which two clocks differ: neighbouring blocks' do by a third of it."""

OPCODES: Final = 3
"""Instructions that are named: who wants all reads the listing."""

CHANGES: Final = 4
"""Of the changes that a lock file has; they stand in an order of weight."""

FILES: Final = 3
"""Changed files that are named: who wants all asks git."""

BUSY: Final = 0.25
"""Processors by which what others use differs: of less nobody is slower."""

_PLAUSIBLE: Final = (
    *("inputs", "work", "schedule", "occupancy", "flight", "waves", "traffic"),
    *(
        "spills",
        "instructions",
        "registers",
        "shared",
        "launch",
        "compiler",
        "code",
        "library",
        "source",
    ),
    *("machine", "clock", "throttle", "heat", "neighbours", "versions", "settings"),
)
"""What is likelier to matter stands first: other work and other code explain any change,
the machine was the same within minutes and both sides had their turns in it."""


def explain(
    base: Sequence[Trial],
    head: Sequence[Trial],
    ratio: Estimate | None = None,
    machines: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    files: Sequence[str] = (),
    *,
    static: Sequence[StaticChange] = (),
) -> tuple[str, ...]:
    """Return what differs between the trials of one case, the likeliest cause first.

    ``files`` are those that changed from base to head, and ``static`` is what the code
    of the library's kernels did.
    """
    change = change_of(ratio)
    found = differences(base, head, machines, files, static=static)
    return tuple(said(one, change) for one in ranked(found, change))


def change_of(ratio: Estimate | None) -> float:
    """Return the logarithm of a ratio; 0 where it is not known."""
    return math.log(ratio.value) if ratio and usable(ratio.value) else 0.0


def differences(
    base: Sequence[Trial],
    head: Sequence[Trial],
    machines: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    files: Sequence[str] = (),
    *,
    static: Sequence[StaticChange] = (),
) -> list[Difference]:
    """Return everything that differs between two sides, in no order."""
    if not base or not head:
        return []
    return [
        *_work(base, head),
        *_source(head[-1].case, files),
        *explain_gpu.differences(base[-1], head[-1], machines),
        *_code(base, head),
        *_locked(head[-1], static),
        *_machine(base, head, machines),
    ]


def ranked(found: Sequence[Difference], change: float) -> list[Difference]:
    """Order differences by how much of a change, a logarithm, they can account for."""

    def key(one: Difference) -> tuple[float, int]:
        share = accounts(one, change)
        order = _PLAUSIBLE.index(one.kind)
        if share is None or 0 <= share < NOTABLE:
            return 0.0, order
        return -share, order

    return sorted(found, key=key)


def accounts(one: Difference, change: float) -> float | None:
    """Return the share of a change that a difference can account for, at most 1.

    Negative: it predicts the other direction. None: it predicts nothing.
    """
    if not change or one.predicted == 1 or not usable(one.predicted):
        return None
    return max(-1.0, min(1.0, math.log(one.predicted) / change))


def said(one: Difference, change: float) -> str:
    """Write a difference with how much of a change it can account for."""
    share = accounts(one, change)
    if share is None:
        return one.words
    if share < 0:
        return f"{one.words} (for the other direction)"
    return f"{one.words} (accounts for up to {100 * share:.0f} %)"


def _work(base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Difference]:
    old, new = base[-1], head[-1]
    for kind, words in (
        ("inputs", "other inputs"),
        ("source", "the benchmark's source"),
    ):
        hashes = [side.hashes.get(kind) for side in (old, new)]
        if hashes[0] != hashes[1]:
            yield Difference(kind, words)
    for name, write in (("bytes", units.size), ("operations", count)):
        pair = pair_of(old, new, name)
        if pair and pair[0] != pair[1]:
            words = f"{name} of a launch {write(pair[0])} -> {write(pair[1])}"
            yield Difference("work", words, over(pair))


def _source(case: str, files: Sequence[str]) -> Iterator[Difference]:
    """Yield the files that changed, first those that are named as the benchmark is."""
    if files:
        words = set(case.partition("[")[0].split("_"))
        related = sorted(
            files, key=lambda f: words.isdisjoint(PurePath(f).stem.split("_"))
        )
        more = f" and {len(files) - FILES} more" if len(files) > FILES else ""
        yield Difference("source", f"changed: {', '.join(related[:FILES])}{more}")


def _code(base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Difference]:
    old, new = base[-1], head[-1]
    codes = [side.facts.get("code_hash") for side in (old, new)]
    if all(codes) and codes[0] != codes[1]:
        yield Difference("code", "other code")
    for kind in ("strategy", "schedule", "compiler", "library"):
        was, now = (side.facts.get(kind) for side in (old, new))
        if was != now:
            known = "schedule" if kind == "strategy" else kind
            yield Difference(known, f"{kind} {_or_none(was)} -> {_or_none(now)}")
    for name, (kind, words) in RESOURCES.items():
        pair = pair_of(old, new, name)
        if pair and pair[0] != pair[1]:
            yield Difference(kind, more_or_fewer(pair, words))
    yield from _instructions(old, new)
    for name in ("grid", "block"):
        was, now = (side.facts.get(name) for side in (old, new))
        if was and now and was != now:
            yield Difference("launch", f"{name} {was} -> {now}")


RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "local_memory": ("spills", "local loads and stores"),
    "registers": ("registers", "registers"),
    "shared_bytes": ("shared", "bytes of shared memory"),
    "kernels": ("launch", "kernels a launch"),
}
"""Facts that are counts, their kind and what is counted."""


def _instructions(old: Trial, new: Trial) -> Iterator[Difference]:
    mixes = [side.facts.get("opcodes") for side in (old, new)]
    if not all(isinstance(mix, Mapping) and mix for mix in mixes):
        return
    was, now = (dict(mix) for mix in mixes if mix)
    changed = {
        name: now.get(name, 0) - was.get(name, 0)
        for name in dict.fromkeys((*was, *now))
    }
    most = sorted(changed, key=lambda name: (-abs(changed[name]), name))
    named = [f"{name} {changed[name]:+d}" for name in most if changed[name]][:OPCODES]
    if named:
        pair = float(sum(was.values())), float(sum(now.values()))
        percent = 100 * (over(pair) - 1)
        count = (
            f"{abs(percent):.2g} % {'more' if percent > 0 else 'fewer'} instructions"
        )
        what = count if percent else "other instructions"
        yield Difference("instructions", f"{what} ({', '.join(named)})", over(pair))


def _locked(trial: Trial, static: Sequence[StaticChange]) -> Iterator[Difference]:
    """Yield what a lock file says of a kernel whose own facts count no instructions.

    Of its sizes that are there the one that shares most axes with the case.
    """
    if "opcodes" in trial.facts:
        return
    name, axes = _parts(trial.case)
    kind = str(trial.facts.get("target", "")).partition(":")[0]
    near = [
        (len(axes & _parts(one.case)[1]), one)
        for one in static
        if _parts(one.case)[0] == name and one.target.partition(":")[0] == kind
    ]
    if near:
        _, one = max(near, key=lambda found: found[0])
        changes = ", ".join(one.changes[:CHANGES])
        yield Difference("instructions", f"code of {one.case} {one.target}: {changes}")


def _parts(case: str) -> tuple[str, set[str]]:
    """Return a case's name and its axes."""
    name, _, axes = case.removesuffix("]").partition("[")
    return name, set(axes.split(","))


def _machine(
    base: Sequence[Trial],
    head: Sequence[Trial],
    machines: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> Iterator[Difference]:
    clocks = [_mhz(side) for side in (base, head)]
    if all(clocks) and abs(math.log(clocks[1] / clocks[0])) > DIFFERS:
        words = f"the clock {clocks[0]:.0f} -> {clocks[1]:.0f} MHz"
        yield Difference("clock", words, clocks[0] / clocks[1])
    for kind, words, read in _STATES:
        was, now = read(base), read(head)
        if was != now:
            yield Difference(kind, f"{words} {_or_none(was)} -> {_or_none(now)}")
    yield from _busy(base, head)
    for group, kind in (
        ("identity", "machine"),
        ("versions", "versions"),
        ("settings", "settings"),
    ):
        was_all, now_all = (side.get(group, {}) for side in machines)
        for name in dict.fromkeys((*was_all, *now_all)):
            was, now = was_all.get(name), now_all.get(name)
            if was != now and name not in {"commit", "dirty", "id"}:
                yield Difference(kind, f"{name} {_or_none(was)} -> {_or_none(now)}")


def _busy(base: Sequence[Trial], head: Sequence[Trial]) -> Iterator[Difference]:
    """Yield what others used of the processors, where that differs."""
    found = [
        [t.extra["neighbours"] for t in s if "neighbours" in t.extra]
        for s in (base, head)
    ]
    known = [[v for v in side if isinstance(v, (int, float))] for side in found]
    if all(known):
        was, now = map(statistics.median, known)
        if abs(now - was) > BUSY:
            words = f"others used {was:.1f} -> {now:.1f} processors"
            yield Difference("neighbours", words)


def _mhz(side: Sequence[Trial]) -> float:
    """Return the median clock over trials; 0 where nobody knows."""
    windows = [mhz for trial in side for mhz in trial.samples.mhz if mhz]
    if windows:
        return statistics.median(windows)
    around = [mhz for trial in side for mhz in trial.extra.get("mhz", ())]
    known = [mhz for mhz in around if isinstance(mhz, (int, float)) and mhz > 0]
    return statistics.median(known) if known else 0.0


def _throttled(side: Sequence[Trial]) -> str:
    """Return why the GPU's clock was held back while any trial was measured."""
    held = [(trial.extra.get("gpu") or {}).get("capped") or {} for trial in side]
    found = {
        str(why)
        for each in held
        for why, spent in each.items()
        if isinstance(spent, int) and spent > 0
    }
    return ", ".join(sorted(found))


def _heat(side: Sequence[Trial]) -> str:
    """Return in which tens of degrees the GPU was at its hottest."""
    known = [value for t in side for value in of_gpu(t, "temperature_c")]
    return f"{10 * round(max(known) / 10)} °C" if known else ""


def _neighbours(side: Sequence[Trial]) -> str:
    """Return whether anybody else used the GPU."""
    return "others on the GPU" if any(of_gpu(t, "others") for t in side) else ""


_STATES: Final[tuple[tuple[str, str, Callable[[Sequence[Trial]], str]], ...]] = (
    ("throttle", "slowed down for", _throttled),
    ("heat", "temperature", _heat),
    ("neighbours", "neighbours", _neighbours),
)


def _or_none(value: Any) -> str:
    return str(value) if value not in (None, "", UNKNOWN) else "none"
