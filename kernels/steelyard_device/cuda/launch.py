"""Launches of GPU functions: arguments packed once, issued by native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

from steelyard_device.cuda import native
from steelyard_device.cuda.issue import Issued
from steelyard_device.cuda.module import Function
from steelyard_device.errors import DeviceError

Extents = int | tuple[int, ...]
"""Of a grid in blocks, or of a block in threads: up to three, the first innermost."""

FREE_SHARED = 48 << 10
"""Dynamic shared memory of a block that needs no leave from the driver."""


class Launch(Issued):
    """One function with its packed arguments, ready to run any number of times.

    ``slots`` has a word for every parameter, encoded as ``cpu.slot`` does, or the bytes
    of one that is larger; the caller keeps the buffers alive. ``shared`` are dynamic
    bytes of a block, ``stream`` a handle, the context's own by default. All arguments
    lie in ``words``, each from a multiple of 8 bytes on, to be written at once.

    Raises:
        DeviceError: arguments or extents do not fit the function.
    """

    __slots__ = ("block", "entries", "function", "grid", "shared", "slots", "words")

    def __init__(
        self,
        function: Function,
        slots: Sequence[int | bytes],
        *,
        grid: Extents,
        block: Extents,
        shared: int = 0,
        stream: int | None = None,
    ) -> None:
        self.function, self.shared = function, shared
        self.words, self.slots = _together(
            packed(function.name, function.parameters, slots)
        )
        self.grid = extents(f"the grid of {function.name}", grid)
        self.block = extents(f"the block of {function.name}", block)
        if shared > FREE_SHARED:
            function.allow_shared(shared)
        addresses = map(ctypes.addressof, self.slots)
        pointers = (ctypes.c_void_p * max(len(slots), 1))(*addresses)
        self.entries = (
            native.Entry(
                function=function.handle,
                grid=self.grid,
                block=self.block,
                shared=shared,
                parameters=ctypes.addressof(pointers),
            ),
        )
        shown = f"{function.name} with grid {self.grid} and block {self.block}"
        table, alive = _table(self.entries)
        super().__init__(
            function.context, shown, stream, table, alive=(alive, pointers)
        )

    def set(self, place: int, value: int | bytes) -> None:
        """Give later launches another argument."""
        size = self.function.parameters[place]
        encoded = _encoded(self.function.name, place, size, value)
        ctypes.memmove(self.slots[place], encoded, size)

    def template(self) -> tuple[bytes, bytes, int]:
        """Return its batch and its entry, and the address of what launches such a batch.

        For native code that launches it with other arguments of its own.
        """
        function = native.addresses()["cuda_launch"]
        return bytes(self._batch), bytes(self.entries[0]), function

    def facts(self) -> dict[str, object]:
        """Say how it is launched and what the driver says it takes."""
        attributes = self.function.attributes
        x, y, z = self.block
        blocks = self.function.occupancy(x * y * z, self.shared)
        return {
            "grid": self.grid,
            "block": self.block,
            "dynamic_shared": self.shared,
            "registers": attributes.registers,
            "local": attributes.local,
            "shared": attributes.shared,
            "blocks_per_multiprocessor": blocks,
        }


class Rotation(Issued):
    """Launches issued in turn, on the stream of the first: rotating arguments.

    The next call goes on where the last one stopped.
    """

    __slots__ = ("entries", "launches")

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        streams = {(each.context, each.stream) for each in launches}
        if len(streams) != 1:
            raise DeviceError(
                f"a rotation was given {len(launches)} launches on {len(streams)} "
                "streams: give it one or more, all on the same."
            )
        self.entries = tuple(entry for each in launches for entry in each.entries)
        context, stream = launches[0].context, launches[0].stream
        table, alive = _table(self.entries)
        shown = f"{len(self.entries)} kernels in turn"
        super().__init__(context, shown, stream, table, len(self.entries), alive=alive)


def _table(entries: Sequence[native.Entry]) -> tuple[int, object]:
    """Return the address of a table of entries, and what it is good as long as."""
    table = (ctypes.c_void_p * len(entries))(*map(ctypes.addressof, entries))
    return ctypes.addressof(table), table


def extents(whose: str, given: Extents) -> tuple[int, int, int]:
    """Return three extents, those not given 1.

    Raises:
        DeviceError: there are more, or one is not in 1 to 2^31 - 1.
    """
    several = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(several) <= 3 or not all(0 < each < 2**31 for each in several):
        raise DeviceError(
            f"{whose} is {given}, expected one to three extents from 1 on: launch "
            "nothing where there is nothing to do."
        )
    x, y, z = (*several, 1, 1)[:3]
    return x, y, z


def packed(
    name: str, sizes: Sequence[int], slots: Sequence[int | bytes]
) -> tuple[ctypes.Array[ctypes.c_char], ...]:
    """Encode arguments to the bytes that parameters of these ``sizes`` take.

    Raises:
        DeviceError: there are more or fewer, or one does not fit.
    """
    if len(slots) != len(sizes):
        raise DeviceError(
            f"{name} takes {len(sizes)} parameters of {tuple(sizes)} bytes, got "
            f"{len(slots)} arguments: pass one for each."
        )
    return tuple(
        (ctypes.c_char * size).from_buffer_copy(_encoded(name, place, size, value))
        for place, (size, value) in enumerate(zip(sizes, slots, strict=True))
    )


def _together(
    encoded: Sequence[ctypes.Array[ctypes.c_char]],
) -> tuple[bytearray, tuple[ctypes.Array[ctypes.c_char], ...]]:
    """Return arguments behind one another in one block, and each as it lies there."""
    room = [bytes(each).ljust(-(-len(each) // 8) * 8, b"\0") for each in encoded]
    words = bytearray(b"".join(room))
    starts = accumulate(map(len, room), initial=0)
    views = [
        type(each).from_buffer(words, start)
        for each, start in zip(encoded, starts, strict=False)
    ]
    return words, tuple(views)


def _encoded(name: str, place: int, size: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes) and len(value) == size:
        return value
    if isinstance(value, int) and size <= 8 and 0 <= value < 1 << 8 * size:
        return value.to_bytes(size, "little")
    seen = f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)
    raise DeviceError(
        f"argument {place} of {name} is {seen}, expected {size} bytes or what fits "
        "them as an unsigned word: encode it as the kernel declares it."
    )
