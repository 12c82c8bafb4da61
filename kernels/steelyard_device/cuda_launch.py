"""Launches of GPU functions: arguments packed once, issued by native code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

from steelyard_device import cuda_driver, cuda_native
from steelyard_device.cuda_device import Context
from steelyard_device.cuda_module import Function
from steelyard_device.errors import DeviceError

Extents = int | tuple[int, ...]
"""Of a grid in blocks, or of a block in threads: up to three, the first innermost."""

FREE_SHARED = 48 << 10
"""Dynamic shared memory of a block that needs no leave from the driver."""

_ONE: Final = ctypes.c_int64(1)


class _Issued:
    """What is launched natively on one stream."""

    __slots__ = (
        "_alive",
        "_batch",
        "_issue",
        "_shown",
        "_where",
        "context",
        "entries",
        "stream",
    )

    def __init__(
        self,
        context: Context,
        shown: str,
        entries: Sequence[cuda_native.Entry],
        stream: int | None,
    ) -> None:
        self.context = context
        self.stream = context.stream if stream is None else stream
        self.entries = tuple(entries)
        self._shown = shown
        table = (ctypes.c_void_p * len(entries))(*map(ctypes.addressof, entries))
        calls = cuda_native.calls()
        self._batch = cuda_native.Batch(
            calls=ctypes.addressof(calls),
            context=context.handle,
            stream=self.stream,
            entries=ctypes.addressof(table),
            count=len(entries),
        )
        self._alive: tuple[object, ...] = (table, calls)
        self._where = ctypes.byref(self._batch)
        self._issue = cuda_native.library().launch

    def launch(self, count: int = 1) -> None:
        """Submit ``count`` launches; they run one after another.

        It returns before they are done; when about 1000 wait it waits with them.
        """
        number = _ONE if count == 1 else ctypes.c_int64(count)
        if code := self._issue(self._where, number):
            raise self._failure(code)

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Run ``count`` launches between two reads of the clock, all in native code.

        Returns CLOCK_MONOTONIC in nanoseconds before the first is submitted and when
        the last is done. In a stream all launches are dependent, asked or not.
        """
        del dependent
        number = ctypes.c_int64(count)
        if code := cuda_native.library().window(self._where, number):
            raise self._failure(code)
        return self._batch.start, self._batch.stop

    def wait(self) -> None:
        """Return when all launches on the stream are done."""
        self.context.wait(self.stream)

    def ready(self) -> None:
        """Nothing of ours sleeps: a GPU takes a launch at any time."""

    def _failure(self, code: int) -> cuda_driver.CUDAError:
        return cuda_driver.failure(f"launching {self._shown}", code)


class Launch(_Issued):
    """One function with its packed arguments, ready to run any number of times.

    ``slots`` has a word for every parameter, encoded as ``cpu.slot`` does, or the bytes
    of one that is larger; the caller keeps the buffers alive. ``shared`` are dynamic
    bytes of a block, ``stream`` a handle, the context's own by default.

    Raises:
        DeviceError: arguments or extents do not fit the function.
    """

    __slots__ = ("block", "function", "grid", "shared", "slots")

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
        self.slots = packed(function.name, function.parameters, slots)
        self.grid = extents(f"the grid of {function.name}", grid)
        self.block = extents(f"the block of {function.name}", block)
        if shared > FREE_SHARED:
            function.allow_shared(shared)
        addresses = map(ctypes.addressof, self.slots)
        pointers = (ctypes.c_void_p * max(len(slots), 1))(*addresses)
        entry = cuda_native.Entry(
            function=function.handle,
            grid=self.grid,
            block=self.block,
            shared=shared,
            parameters=ctypes.addressof(pointers),
        )
        shown = f"{function.name} with grid {self.grid} and block {self.block}"
        super().__init__(function.context, shown, [entry], stream)
        self._alive = (*self._alive, pointers)

    def set(self, place: int, value: int | bytes) -> None:
        """Give later launches another argument."""
        size = self.function.parameters[place]
        encoded = _encoded(self.function.name, place, size, value)
        ctypes.memmove(self.slots[place], encoded, size)

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


class Rotation(_Issued):
    """Launches issued in turn, on the stream of the first: rotating arguments.

    The next call goes on where the last one stopped.
    """

    __slots__ = ("launches",)

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches = tuple(launches)
        streams = {(each.context, each.stream) for each in launches}
        if len(streams) != 1:
            raise DeviceError(
                f"a rotation was given {len(launches)} launches on {len(streams)} "
                "streams: give it one or more, all on the same."
            )
        entries = [entry for each in launches for entry in each.entries]
        shown = f"{len(entries)} kernels in turn"
        super().__init__(launches[0].context, shown, entries, launches[0].stream)


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
