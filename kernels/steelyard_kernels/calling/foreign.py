"""Another build's binary, launched on a bound kernel's own arguments.

Builds of two commits are measured so in one process, where each works on the same arrays
with the same threads: where memory lies is no difference between them. A binary passes
from process to process as bytes: see `steelyard_device.binary`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_device import binary, cpu, memory, series
from steelyard_device.binary import ADDRESSED
from steelyard_device.memory import LINE
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.errors import KernelError
from steelyard_kernels.plan.launches import WORKSPACE
from steelyard_kernels.schedule.parameters import Slot

Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class ForeignKernel:
    """A launch of another build's binary: native work, with that build's facts."""

    def __init__(
        self, launch: cpu.Launch, facts: Mapping[str, Any], arrays: Arrays, threads: int
    ) -> None:
        self._facts = facts
        self._arrays = arrays  # alive as long as they are written to
        self.launch, self.window, self.wait = launch.launch, launch.window, launch.wait
        self.ready, self.then = launch.ready, launch.then
        self.null = functools.partial(cpu.null, threads)

    def facts(self) -> Mapping[str, Any]:
        """Return what the other build said of itself."""
        return self._facts


def packed(
    convention: Convention,
    arrays: Arrays,
    words: Sequence[int],
    facts: Mapping[str, Any],
) -> bytes:
    """Return a build's binary as bytes, with all that a launch has to know of it."""
    built = convention.built
    head: dict[str, Any] = {
        "call": _call(convention, arrays),
        "lines": convention.streams and convention.aligned,
        "facts": facts,
    }
    if built.plan is None:
        head |= _launch(built, built.slots, words)
        return binary.pack(head, built.code.image)
    image, places, first = b"", dict[bytes, int](), 0
    head |= {"launches": [], "workspace": built.plan.size}
    for part in built.parts:
        own, code = slice(first, first + len(part.slots)), part.code.image
        if code not in places:
            places[code] = len(image)
            image += code
        launch = _launch(part, built.slots[own], words[own], within=True)
        head["launches"].append({**launch, "code": [places[code], len(code)]})
        first += len(part.slots)
    if built.order:
        homes = _slots(built.slots[first:], words[first:], within=True)
        head |= {"homes": homes, "order": built.order}
    return binary.pack(head, image)


def _launch(
    built: Artifact,
    slots: Sequence[Slot],
    words: Sequence[int],
    *,
    within: bool = False,
) -> dict[str, Any]:
    """Return what is to be known of one launch; an address is its reader's to know."""
    return {
        "slots": _slots(slots, words, within=within),
        "entry": built.code.entry,
        "threads": built.threads,
    }


def _slots(
    slots: Sequence[Slot], words: Sequence[int], *, within: bool
) -> list[list[Any]]:
    """Return kinds, names and words; of addresses `within` arrays how far behind these."""
    found = []
    for slot, word in zip(slots, words, strict=True):
        shift = slot.index if within else 0
        own = shift if slot.kind in ADDRESSED else word
        found.append([slot.kind, slot.name, own])
    return found


def launchable(data: bytes, convention: Convention, arrays: Arrays) -> ForeignKernel:
    """Return a launch of a packed binary on the arrays of a bound kernel.

    Numbers are those that the other build was bound with.

    Raises:
        KernelError: it touches other memory than the bound kernel, or wants it to begin
            on cache lines and it does not; or the bytes are of another format.
    """
    name = convention.built.program.name
    head, image = _unpacked(data, name)
    expected = json.loads(json.dumps(_call(convention, arrays)))
    if head["call"] != expected:
        raise _unlike(name, f"is called on {head['call']}, this one on {expected}")
    if head["lines"]:
        _require_lines(convention, arrays)
    addresses = {each: array.ctypes.data for each, array in arrays.items()}
    room = memory.empty((head.get("workspace", 0),), np.uint8)
    addresses[WORKSPACE] = room.ctypes.data  # its own: it may need more
    parts, slots = series.of_head(head, image, addresses)
    if "launches" in head:
        launch: cpu.Launch = series.Series(parts, slots, head.get("order", ()))
    else:
        ((function, _, threads),) = parts
        launch = cpu.Launch(function, slots, threads, claims=True)
    widest = max(threads for _, _, threads in parts)
    return ForeignKernel(launch, head["facts"], {**arrays, WORKSPACE: room}, widest)


def _call(convention: Convention, arrays: Arrays) -> dict[str, Any]:
    """Return which memory a launch may touch, as both builds must see it."""
    outputs = convention.built.program.outputs
    given = {name: array for name, array in arrays.items() if name != WORKSPACE}
    return {
        "arrays": {name: [str(a.dtype), a.shape] for name, a in given.items()},
        "outputs": [[output.name, output.updates] for output in outputs],
    }


def _unpacked(data: bytes, name: str) -> tuple[dict[str, Any], bytes]:
    try:
        return binary.unpack(data)
    except ValueError as seen:
        expected = binary.FORMAT
        raise _unlike(
            name, f"has bytes of format {seen}, expected {expected}"
        ) from None


def _require_lines(convention: Convention, arrays: Arrays) -> None:
    """Refuse what stores round the caches must not meet: it would end the process."""
    for output in convention.built.program.outputs:
        at = arrays[output.name].ctypes.data
        if at % LINE:
            name = convention.built.program.name
            raise _unlike(name, f"needs {output.name} on a cache line, it is at {at}")


def _unlike(name: str, how: str) -> KernelError:
    return KernelError(
        f"{name}: the other build {how}; launch each in a process of its own."
    )
