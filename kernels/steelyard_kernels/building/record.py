"""A build as bytes for the disk: facts as JSON, then the text; its image lies beside it.

Reading back checks nothing but its own shape: the disk vouches for every byte.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from steelyard_kernels.binary import Code
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.parameters import Slot

if TYPE_CHECKING:
    from steelyard_kernels.schedule.strategies import Schedule


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a build: all of `Built` that tracing does not give.

    `image_digest` is what the image is found by, so that a group of candidates keeps
    its one cubin once; `made.image` is empty.
    """

    schedule: Schedule
    text: str
    slots: tuple[Slot, ...]
    threads: int
    per_block: int
    image_digest: str
    made: Code


@dataclass(frozen=True, slots=True)
class Refused:
    """A build that the compiler refused: it would again."""

    schedule: Schedule
    phase: str
    error: str


def pack(record: Record | Refused) -> bytes:
    """Return a record's bytes."""
    facts: dict[str, Any] = {"schedule": strategies.to_json(record.schedule)}
    if isinstance(record, Refused):
        facts |= {"phase": record.phase, "error": record.error}
        return json.dumps(facts).encode() + b"\n"
    facts |= {
        "slots": [[s.kind, s.index, s.name, s.code] for s in record.slots],
        "threads": record.threads,
        "per_block": record.per_block,
        "image_digest": record.image_digest,
        "made": asdict(replace(record.made, image=b"")) | {"image": ""},
    }
    return json.dumps(facts).encode() + b"\n" + record.text.encode()


def unpack(data: bytes) -> Record | Refused:
    """Read a record; raises ValueError, KeyError or TypeError for another shape."""
    head, _, text = data.partition(b"\n")
    facts = json.loads(head)
    schedule = strategies.from_json(facts["schedule"])
    if "error" in facts:
        return Refused(schedule, facts["phase"], facts["error"])
    return Record(
        schedule,
        text.decode(),
        tuple(Slot(*slot) for slot in facts["slots"]),
        facts["threads"],
        facts["per_block"],
        facts["image_digest"],
        _code(facts["made"]),
    )


def _code(facts: dict[str, Any]) -> Code:
    resources = facts.pop("resources")
    if resources is not None:
        from steelyard_device.cubin import Resources

        pairs = {
            k: tuple(map(tuple, v)) for k, v in resources.items() if k == "opcodes"
        }
        resources = Resources(**resources | pairs)
    return Code(**facts | {"image": b"", "resources": resources})
