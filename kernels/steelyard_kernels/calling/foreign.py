"""Another build's binary, launched on a bound kernel's own arguments.

Builds of two commits are so weighed in one process, where each works on the same arrays
with the same threads: where memory lies is no difference between them. A binary passes
from process to process as bytes: see `steelyard_device.binary`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from steelyard_device import binary, cpu
from steelyard_device.binary import ADDRESSED
from steelyard_device.memory import LINE
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.errors import KernelError

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
    head = {
        "call": _call(convention, arrays),
        "lines": convention.streams and convention.aligned,
        "slots": [
            [slot.kind, slot.name, 0 if slot.kind in ADDRESSED else word]
            for slot, word in zip(built.slots, words, strict=True)
        ],
        "entry": built.code.entry,
        "threads": built.threads,
        "facts": facts,
    }
    return binary.pack(head, built.code.image)


def launchable(
    data: bytes, convention: Convention, arrays: Arrays, words: Sequence[int]
) -> ForeignKernel:
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
    own = {
        (slot.kind, slot.name): word
        for slot, word in zip(convention.built.slots, words, strict=True)
        if slot.kind in ADDRESSED
    }
    for kind, argument, _ in head["slots"]:
        if kind in ADDRESSED and (kind, argument) not in own:
            raise _unlike(name, f"takes {kind} {argument}, this one takes none")
    values = [  # an address is of this process alone
        own.get((kind, argument), word or 0) for kind, argument, word in head["slots"]
    ]
    function = cpu.load(image, head["entry"])
    threads = head["threads"] or cpu.pool_size()
    launch = cpu.Launch(function, values, threads, claims=True)
    return ForeignKernel(launch, head["facts"], arrays, threads)


def _call(convention: Convention, arrays: Arrays) -> dict[str, Any]:
    """Return which memory a launch may touch, as both builds must see it."""
    outputs = convention.built.program.outputs
    return {
        "arrays": {name: [str(a.dtype), a.shape] for name, a in arrays.items()},
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
