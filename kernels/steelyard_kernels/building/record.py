"""A build as bytes for the disk: facts as JSON, then the text; its image lies beside it.

Reading back checks nothing but its own shape: the disk vouches for every byte.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from steelyard_kernels.artifact import Artifact, Code, Failure
from steelyard_kernels.digest import digest
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.loops import Tensor
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.schedule.schedule import from_json


def pack(built: Artifact | Failure) -> bytes:
    """Return the bytes of all that tracing does not give.

    An image is named by its digest, so that a group of candidates keeps its one cubin
    once.
    """
    assert built.schedule is not None, "what a compiler refused had one"
    facts: dict[str, Any] = {"schedule": asdict(built.schedule)}
    if isinstance(built, Failure):
        facts |= {"phase": built.phase, "error": built.error}
        return json.dumps(facts).encode() + b"\n"
    code = replace(built.code, image=b"", phases=(), function=None)
    facts |= {
        "slots": [_slot(slot) for slot in built.slots],
        "threads": built.threads,
        "per_block": built.per_block,
        "shared": built.shared,
        "image": digest(built.code.image),
        "code": {name: value for name, value in asdict(code).items() if value},
    }
    return json.dumps(facts).encode() + b"\n" + built.text.encode()


def unpack(
    data: bytes, program: Program, target: str
) -> tuple[Artifact, str] | Failure:
    """Read a build and the name of its image, or why it was refused.

    Raises ValueError, KeyError or TypeError for another shape.
    """
    head, _, text = data.partition(b"\n")
    facts = json.loads(head)
    schedule = from_json(facts["schedule"])
    if "error" in facts:
        error = facts["error"]
        return Failure(
            program.name, schedule, target, facts["phase"], error, KernelError(error)
        )
    slots = tuple(_slot_of(*slot) for slot in facts["slots"])
    how = (facts["threads"], facts["per_block"], facts["shared"])
    made = Artifact(program, schedule, target, text.decode(), slots, *how)
    return replace(made, code=_code(facts["code"])), facts["image"]


def _slot(slot: Slot) -> list[Any]:
    tensor = [asdict(slot.tensor)] if slot.tensor else []
    return [slot.kind, slot.index, slot.name, slot.code, *tensor]


def _slot_of(
    kind: str, index: int, name: str, code: str, *tensors: dict[str, Any]
) -> Slot:
    for facts in tensors:
        lists = {key: tuple(x) for key, x in facts.items() if isinstance(x, list)}
        return Slot(kind, index, name, code, Tensor(**{**facts, **lists}))
    return Slot(kind, index, name, code)


def _code(facts: dict[str, Any]) -> Code:
    resources = facts.pop("resources", None)
    if resources is not None:
        from steelyard_device.cubin import Resources

        opcodes = tuple(map(tuple, resources.pop("opcodes")))
        resources = Resources(**resources, opcodes=opcodes)
    return Code(**{"image": b"", "nanoseconds": 0, **facts}, resources=resources)
