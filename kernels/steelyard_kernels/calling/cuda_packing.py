"""One launch for all calls of a build on a stream: each packs its arguments into it.

Of several kernels it is a graph, of which those are updated whose arguments changed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from steelyard_device import cuda
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling import wholes
from steelyard_kernels.calling.cuda_bind import Packed, encoded, launch_of
from steelyard_kernels.schedule.gpu import VECTOR_BYTES


class Caller:
    """One build on one GPU and stream: a launch that every call packs anew."""

    __slots__ = (
        "_convention",
        "_last",
        "_launch",
        "_lock",
        "_pack",
        "failure",
        "values",
    )

    def __init__(
        self, packed: Packed, values: Callable[[Mapping[str, float]], dict[str, float]]
    ) -> None:
        self.values = values  # checks the scalars of a call
        convention = self._convention = packed.convention
        built = convention.built
        self._launch = launch_of(
            convention.built, packed.context, packed.stream, packed.slots()
        )
        parts = built.parts
        self._pack = (
            _Several(parts, self._launch) if parts else _packer(built, self._launch)
        )
        self._lock = threading.Lock()
        self._last: Sequence[Any] | None = None
        self.failure = self._launch.failure

    def submitting(self, packed: Packed) -> tuple[Callable[[int], int], object]:
        """Return what submits so many runs with these arguments, and what to keep for it.

        It returns the driver's code. One kernel has a launch of its own for them; the
        graph of several is the one that all calls share.
        """
        if self._convention.built.parts:
            words = self._words(packed.addresses, packed.scalars)
            return partial(self._submit, words), self
        like = self._launch
        launch = cuda.Launch(
            like.function,
            packed.slots(),
            grid=like.grid,
            block=like.block,
            shared=like.shared,
            stream=like.stream,
        )
        return launch.submit, launch

    def template(self) -> tuple[bytes, bytes, int, int]:
        """Return `Launch.template`, and the bits that aligned addresses do not have."""
        return *self._launch.template(), VECTOR_BYTES - 1

    def launch(self, addresses: Sequence[int], scalars: Mapping[str, float]) -> None:
        """Run once with these arguments."""
        words = self._words(addresses, scalars)
        try:
            code = self._submit(words, 1)
        except (struct.error, OverflowError):  # says what does not fit
            binding.packed(self._convention, addresses, scalars)
            raise
        if code:
            raise self.failure(code)

    def _submit(self, words: Sequence[Any], count: int) -> int:
        with self._lock:  # nobody else packs before the driver has copied them
            if words is not self._last:
                self._last = None  # until all of them are packed
                self._pack(*words)
                self._last = words
            code: int = self._launch.submit(count)
            return code

    def _words(
        self, addresses: Sequence[int], scalars: Mapping[str, float]
    ) -> list[Any]:
        """Return what the slots get, as it is packed."""
        convention = self._convention
        wholes.check(convention.built.program.name, convention.computed, scalars)
        words: list[Any] = list(convention.words)
        for place, number in convention.addressed:
            words[place] += addresses[number]
        for place, name, _ in convention.scalars:
            words[place] = scalars[name]
        for place, number, tensor in convention.tensors:
            handle = self._launch.context.handle
            address = addresses[number] + words[place]
            words[place] = encoded(tensor, handle, address)
        return words


def _packer(built: Artifact, launch: cuda.Launch) -> Callable[..., None]:
    """Return what gives a launch new words."""
    layout = struct.Struct("<" + "".join(_LAID[slot.code] for slot in built.slots))
    return partial(layout.pack_into, launch.words, 0)


class _Several:
    """Gives the launches of a graph new words, which are behind one another.

    Only those that have others than the last time are packed and updated.
    """

    def __init__(
        self, parts: Sequence[Artifact], chain: cuda.Chain | cuda.Series
    ) -> None:
        self._take, self._chain = chain.take, chain
        self._every = []
        self._last: list[tuple[Any, ...]] = [()] * len(parts)
        first = 0
        for part, launch in zip(parts, chain.launches, strict=True):
            end = first + len(part.slots)
            self._every.append((_packer(part, launch), first, end))
            first = end

    def __call__(self, *words: Any) -> None:
        for number, (pack, first, end) in enumerate(self._every):
            own = words[first:end]
            if own != self._last[number]:
                pack(*own)
                self._take(number)
                self._last[number] = own
        if isinstance(self._chain, cuda.Series):
            self._chain.give(words[self._every[-1][2] :])


_LAID: Final = {"q": "q", "d": "d", "i": "i4x", "?": "?7x", "t": "128s"}
"""How a slot lies in a launch's words, by its code; an address is a "q" too."""
