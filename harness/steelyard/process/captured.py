"""A launch that was captured of a program, as what its capsule holds."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard.declare.handles import CUDA
from steelyard.machine import mangled
from steelyard.prepare import capsules
from steelyard.prepare.capsule_checks import INDEX
from steelyard_device import cubin
from steelyard_device.cuda.capture import Launched, Region

KNOWN: Final = 8192
"""Bytes of a region that are known to be right: they say the same as all others."""


def record(found: Launched, number: int, program: str, folder: Path) -> dict[str, Any]:
    """Write the members of a launch's capsule to a folder; return the manifest's content.

    Memory is one handle for each allocation, of bytes: input where the launch left it as
    it was, else inout. Its results are bytes too, and compared exactly.
    """
    for part in ("data", "check"):
        (folder / part).mkdir(parents=True)
    (folder / capsules.CODE).write_bytes(found.image)
    for place, one in enumerate(found.regions):
        with (folder / "data" / f"{place}.npy").open("wb") as file:
            np.save(file, one.before)
    word = mangled.word(found.entry)[:80]
    return {
        "case": f"{word}[launch={number}]",
        "benchmark": word,
        "axes": {"launch": number},
        "source": blake2b(found.image, digest_size=8).hexdigest(),
        "file": Path(program).name,
        "line": 0,
        "device": CUDA,
        "features": [],
        "seed": 0,
        "modes": [],
        "counts": {"bytes": 0.0},  # how much of its memory it moves is not known
        "handles": [_handle(n, one) for n, one in enumerate(found.regions)],
        "arrays": [
            {"name": _name(n), "handle": _name(n), "bytes": one.before.size}
            for n, one in enumerate(found.regions)
        ],
        "launch": {
            "entry": found.entry,
            "slots": [_slot(found, n, body) for n, body in enumerate(found.parameters)],
            "facts": _facts(found),
            "grid": found.grid,
            "block": found.block,
            "shared": found.shared,
        },
        "check": _check(found, folder),
    }


def _name(number: int) -> str:
    return f"memory{number}"


def _handle(number: int, one: Region) -> dict[str, Any]:
    data = one.before
    return {
        "name": _name(number),
        "role": "inout" if one.written else "input",
        "shape": [data.size],
        "dtype": "uint8",
        "recipe": [("file", ""), ("constant", bool((data == data[0]).all()))],
    }


def _slot(found: Launched, number: int, body: bytes) -> list[Any]:
    pointers = found.pointers(body)
    if not pointers:
        return ["bytes", str(number), body.hex()]
    at = [(place, _name(region), shift) for place, region, shift in pointers]
    return ["addresses", str(number), {"bytes": body.hex(), "at": at}]


def _facts(found: Launched) -> Mapping[str, Any]:
    taken = cubin.read(found.image)[found.entry]
    return {
        "code_hash": taken.code_hash,
        "target": f"cuda:{taken.arch}",
        "registers": taken.registers,
        "stack_bytes": taken.stack,
        "shared_bytes": taken.shared + found.shared,
        "grid": found.grid,
        "block": found.block,
        "loads_128": taken.loads_128,
        "tensor_core": taken.tensor_core,
        "local_memory": taken.local_loads + taken.local_stores,
        "opcodes": dict(taken.opcodes),
    }


def _check(found: Launched, folder: Path) -> Mapping[str, Any] | None:
    """Write some of the bytes that the launch changed, if it changes the same each time."""
    written = [one for one in found.regions if one.written]
    if not (written and found.repeats):
        return None
    kept = []
    for number, one in enumerate(written):
        places = _known(np.flatnonzero(one.before != one.after))
        (folder / "check" / f"{number}.indices").write_bytes(places.tobytes())
        (folder / "check" / f"{number}.wanted").write_bytes(one.after[places].tobytes())
        kept.append({"rows": len(places), "dtype": "uint8"})
    return {"rtol": 0.0, "atol": 0.0, "results": kept}


def _known(changed: NDArray[np.intp]) -> NDArray[Any]:
    """Return some of the places that a launch changed, evenly, in order."""
    step = max(1, -(-changed.size // KNOWN))
    return changed[::step].astype(INDEX)
