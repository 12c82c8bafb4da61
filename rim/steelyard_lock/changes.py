"""What changed in a kernel's code, in words: the most important first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.schedule.gpu import GPUS
from steelyard_lock.file import Entry, Lock

GONE: Final = "is gone"
NEW: Final = "is new"
RESIDENT: Final = "blocks on a multiprocessor"

COUNTS: Final[Mapping[str, str]] = {
    "spilled bytes": "bytes of spills",
    "LDL": "local loads",
    "STL": "local stores",
    RESIDENT: RESIDENT,
    "registers": "registers",
    "stack bytes": "bytes of stack",
    "shared bytes": "bytes of shared memory",
    "launches": "launches",
    "bytes": "bytes moved",
    "operations": "operations",
    "workspace": "bytes between launches",
    "wide loads": "128-bit loads",
    "wide stores": "128-bit stores",
    "threads": "threads of a block",
    "blocks": "blocks",
    "extent": "elements of the extent",
}
"""What is named one by one, in this order: first memory that nobody asked for, then how
many blocks fit."""

_IDLE: Final = "NOP"
"""Pads a cubin's code to a multiple of 128 bytes and is not run."""

NAMED: Final = 3
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
    for key in dict.fromkeys((*new.entries, *old.entries)):
        before, after = old.entries.get(key), new.entries.get(key)
        if before is None:
            said: tuple[str, ...] = (NEW,)
        else:
            said = (GONE,) if after is None else tuple(changes(before, after))
        if said:
            found.append(Difference(*key, said))
    return tuple(found)


def changes(old: Entry, new: Entry) -> Iterator[str]:
    """Yield what changed between two entries of one case and target, in words.

    Another text that comes to the same code is no change.
    """
    before, after = _counts(old), _counts(new)
    for name, words in COUNTS.items():
        then, now = before.get(name, 0), after.get(name, 0)
        if then != now:
            yield f"{'more' if now > then else 'fewer'} {words}: {then} -> {now}"
    yield from _instructions(old, new)
    if old.schedule != new.schedule:
        yield f"schedule {old.schedule} -> {new.schedule}"


def _counts(entry: Entry) -> dict[str, int]:
    return {**entry.opcodes, **entry.numbers, RESIDENT: resident(entry)}


def resident(entry: Entry) -> int:
    """Return how many blocks fit a GPU's multiprocessor; 0 of a CPU."""
    gpu = GPUS.get(entry.target.partition(":")[2])
    if gpu is None:
        return 0
    numbers = entry.numbers
    return gpu.blocks_resident(
        numbers.get("threads", 1),
        numbers.get("registers", 0),
        numbers.get("shared bytes", 0),
    )


def _instructions(old: Entry, new: Entry) -> Iterator[str]:
    """Say what other instructions there are, or that only their order may differ."""
    then, now = dict(old.opcodes), dict(new.opcodes)
    idle = then.pop(_IDLE, 0) != now.pop(_IDLE, 0)
    moved = {name: now.get(name, 0) - then.get(name, 0) for name in {*then, *now}}
    order = sorted(filter(moved.get, moved), key=lambda name: (-abs(moved[name]), name))
    if order:
        named = ", ".join(f"{name} {moved[name]:+}" for name in order[:NAMED])
        rest = ", ..." if len(order) > NAMED else ""
        before, after = sum(then.values()), sum(now.values())
        how = "more" if after > before else "fewer" if after < before else "other"
        yield f"{how} instructions: {before} -> {after} ({named}{rest})"
    elif old.code != new.code or idle:
        yield (
            "other code of as many instructions of each kind"
            if now
            else "other launches"
        )
