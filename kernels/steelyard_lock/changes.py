"""What changed in a kernel's code, in words: the weightiest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.schedule.gpu import GPUS
from steelyard_lock.file import Entry, Lock

GONE: Final = "is gone"
NEW: Final = "is new"

_BEFORE: Final = (
    ("spilled bytes", "byte", "of spills"),
    ("LDL", "local load", ""),
    ("STL", "local store", ""),
)
_AFTER: Final = (
    ("registers", "register", ""),
    ("stack bytes", "byte", "of stack"),
    ("shared bytes", "byte", "of shared memory"),
    ("launches", "launch", ""),
    ("bytes", "byte", "moved"),
    ("operations", "operation", ""),
    ("wide loads", "128-bit load", ""),
    ("wide stores", "128-bit store", ""),
)
"""Counts that are told one by one: where they stand, what one is, and of what. Those
above cost memory that nobody asked for; then comes how many blocks fit."""

_INSTEAD: Final = (("threads", "blocks of {} threads"), ("blocks", "{} blocks"))
_IDLE: Final = "NOP"
"""Pads a cubin's code to a multiple of 128 bytes and is not run."""

TOLD: Final = 3
"""Instructions that are named where more of them changed: the most important."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed of one case on one target."""

    case: str
    target: str
    changes: tuple[str, ...]


def differences(old: Lock, new: Lock) -> tuple[Difference, ...]:
    """Return every entry that is not the same in both, in the order of the new."""
    found = []
    for key in (
        *new.entries,
        *(each for each in old.entries if each not in new.entries),
    ):
        before, after = old.entries.get(key), new.entries.get(key)
        if before is None:
            found.append(Difference(*key, (NEW,)))
        elif after is None:
            found.append(Difference(*key, (GONE,)))
        elif said := tuple(changes(before, after)):
            found.append(Difference(*key, said))
    return tuple(found)


def changes(old: Entry, new: Entry) -> Iterator[str]:
    """Yield what changed between two entries of one case and target, in words.

    Another text that comes to the same code is no change.
    """
    before, after = _counts(old), _counts(new)
    yield from _counted(before, after, _BEFORE)
    yield from _occupancy(old, new)
    yield from _counted(before, after, _AFTER)
    for name, words in _INSTEAD:
        then, now = before.get(name, 0), after.get(name, 0)
        if then != now:
            yield f"{words.format(now)} instead of {then}"
    if before.get("extent", 0) != after.get("extent", 0):
        yield f"an extent of {after.get('extent', 0)} instead of {before.get('extent', 0)}"
    yield from _instructions(old, new)
    if old.schedule != new.schedule:
        yield f"the schedule {new.schedule} instead of {old.schedule}"


def _counts(entry: Entry) -> dict[str, int]:
    return {**entry.opcodes, **entry.numbers}


def _counted(
    before: Mapping[str, int],
    after: Mapping[str, int],
    kinds: tuple[tuple[str, str, str], ...],
) -> Iterator[str]:
    """Say of each count that changed by how much, and whether there was any."""
    for name, one, what in kinds:
        then, now = before.get(name, 0), after.get(name, 0)
        if then != now:
            how = "new" if not then else "more" if now > then else "fewer"
            yield f"{_many(abs(now - then), f'{how} {one}')} {what}".rstrip()


def _many(count: int, one: str) -> str:
    plural = one if count == 1 else one + ("es" if one.endswith("ch") else "s")
    return f"{count} {plural}"


def _occupancy(old: Entry, new: Entry) -> Iterator[str]:
    """Say how many blocks fit a multiprocessor, which is why registers matter."""
    then, now = resident(old), resident(new)
    if then != now:
        how = "more" if now > then else "fewer"
        blocks = "block" if abs(now - then) == 1 else "blocks"
        yield f"{abs(now - then)} {blocks} {how} per SM ({now} instead of {then})"


def resident(entry: Entry) -> int:
    """Return how many blocks fit a GPU's multiprocessor; 0 of a CPU."""
    gpu = GPUS.get(entry.target.partition(":")[2])
    if gpu is None:
        return 0
    numbers = entry.numbers
    return gpu.blocks_resident(
        numbers.get("threads", 1) or 1,
        numbers.get("registers", 0),
        numbers.get("shared bytes", 0),
    )


def _instructions(old: Entry, new: Entry) -> Iterator[str]:
    """Say what other instructions there are, or that only their order may differ."""
    then, now = dict(old.opcodes), dict(new.opcodes)
    idle = then.pop(_IDLE, 0), now.pop(_IDLE, 0)
    moved = {
        name: now.get(name, 0) - then.get(name, 0)
        for name in sorted({*then, *now})
        if now.get(name, 0) != then.get(name, 0)
    }
    if not moved:
        if old.code != new.code or idle[0] != idle[1]:
            yield "other code of as many instructions of each kind"
        return
    order = sorted(moved, key=lambda name: -abs(moved[name]))
    told = ", ".join(f"{name} {moved[name]:+}" for name in order[:TOLD])
    rest = ", ..." if len(order) > TOLD else ""
    yield f"{_grown(sum(then.values()), sum(now.values()))} ({told}{rest})"


def _grown(then: int, now: int) -> str:
    """Say how many more instructions there are: a share where that says something."""
    more, count = "more" if now > then else "fewer", abs(now - then)
    if not count:
        return "as many instructions of other kinds"
    if then and count / then >= 0.01:
        return f"{round(100 * count / then)} % {more} instructions"
    return _many(count, f"{more} instruction")
