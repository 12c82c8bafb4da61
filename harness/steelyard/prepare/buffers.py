"""The buffers of a case: preallocated, restored, poisoned and guarded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import units
from steelyard.declare import dtypes
from steelyard.declare.handles import Handle, replaced
from steelyard.errors import BenchmarkError
from steelyard.machine.alive import SIGNS
from steelyard.prepare import inputs
from steelyard_device import memory

if TYPE_CHECKING:
    from steelyard_device import cuda

Array = NDArray[Any]

ZONE: Final = 4096
"""Bytes of red zone before and after each buffer: a page, which catches a stray vector
store as well as an index that is off by a row of a small case."""

ZONE_BYTE: Final = 0xA5

COLUMNS: Final = 512
"""Words in a row of a checksum: long enough to sum at the speed of memory."""

SMALL: Final = 64 << 20
"""Bytes that any machine has; nobody is asked about less."""

STAGGER: Final = 9 * memory.LINE
"""Buffers start this far apart within their page: a load behind a store whose address
agrees in the low 12 bits waits for it, and equal offsets would measure that."""


class Buffers:
    """All arrays of one case, by the names of their handles."""

    def __init__(
        self, handles: tuple[Handle, ...], seed: int, files: Mapping[str, str]
    ) -> None:
        self.seed = seed
        self.handles = handles = tuple(from_file(h, files) for h in handles)
        self.arrays: dict[str, Any] = {}
        self._pristine: dict[str, Any] = {}
        self._sums: dict[str, int] = {}
        self._turned = 0
        self._require_memory()
        for index, handle in enumerate(handles):
            self.arrays[handle.name] = self._allocate(handle, index)
            if handle.role != "output":
                self.write(handle.name, inputs.generate(handle, seed))
            if handle.role == "inout":
                self._pristine[handle.name] = self._copy(handle.name)
            if handle.role == "input":
                self._sums[handle.name] = self._checksum(handle.name)
        self.poison()

    def resolve(self, value: Any) -> Any:
        """Return the array of a handle, also in containers, and others as they are."""
        return replaced(value, lambda handle: self.arrays[handle.name])

    def pristine(self, value: Any) -> Any:
        """Return what handles' arrays held before the first launch, as NumPy arrays."""
        return replaced(value, lambda handle: self._first(handle.name))

    @property
    def updates(self) -> bool:
        """Whether the work updates something in place."""
        return bool(self._pristine)

    @property
    def context(self) -> cuda.Context | None:
        """The GPU they lie on; None for this machine's own memory."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, without zones and copies."""
        return sum(array.nbytes for array in self.arrays.values())

    @cached_property
    def huge_bytes(self) -> int | None:
        """Bytes of huge pages they lie in; None on a GPU, or where that is unknown.

        As it was when first asked: to ask takes 40 ms where any is large.
        """
        if self.context is not None:
            return None
        return memory.in_huge_pages(self.arrays.values())

    def read(self, name: str) -> Array:
        """Return what a buffer holds, as a NumPy array."""
        return self.rows(name, None)

    def rows(self, name: str, indices: NDArray[np.intp] | None) -> Array:
        """Return some rows of a buffer, or all of it, as a NumPy array."""
        array: Array = self.arrays[name]
        return array if indices is None else array[indices]

    def restore(self) -> None:
        """Give every in-place argument its first data again, before a launch."""
        SIGNS.step()
        for name, data in self._pristine.items():
            np.copyto(self.arrays[name], data)

    def poison(self) -> None:
        """Overwrite every output, so that a result of an earlier launch cannot pass."""
        for handle in self.handles:
            if handle.role == "output":
                self._poison(handle.name)

    def drawn(self, value: Any, seed: int) -> Any:
        """Return what handles' arrays would hold if drawn by another seed."""
        mine = {handle.name: handle for handle in self.handles}
        return replaced(value, lambda h: inputs.generate(mine[h.name], seed))

    def draw(self, seed: int) -> bool:
        """Give all arguments the data of a seed; say whether that can differ at all.

        `restore` gives in-place arguments that of the case's own again; inputs keep it
        until they are drawn by `seed`.
        """
        self._turned = 0
        for handle in self.handles:
            if handle.role != "output":
                self.write(handle.name, inputs.generate(handle, seed))
        return any(map(_is_random, self.handles))

    def turn(self, by: int) -> None:
        """Give all random arguments the case's own data, turned by so many elements.

        That is other data of the same kind, had at the speed of memory.
        """
        for handle in filter(_is_random, self.handles):
            if handle.role == "inout":
                data = np.roll(self._first(handle.name), by)
            else:
                data = np.roll(self.read(handle.name), by - self._turned)
            self.write(handle.name, data)
        self._turned = by

    def put(self, snapshot: Mapping[str, Any]) -> None:
        """Give outputs what a snapshot holds of them."""
        for handle in self.handles:
            if handle.role == "output":
                self._put(handle.name, snapshot[handle.name])

    def snapshot(self) -> dict[str, Any]:
        """Copy what the work may write, by name."""
        return {
            handle.name: self._copy(handle.name)
            for handle in self.handles
            if handle.role != "input"
        }

    def same_as(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether buffers hold what copies of them do; NaN is equal to NaN."""
        return all(self._equal(name, copy) for name, copy in snapshot.items())

    def collapsed(self, name: str) -> bool:
        """Whether a buffer no longer holds what users have: `inputs.collapsed`."""
        return inputs.collapsed(self.arrays[name])

    def check_zones(self) -> None:
        """Look at the red zones.

        Raises:
            BenchmarkError: a zone was written to; names the buffer and the distance.
        """
        for name, array in self.arrays.items():
            before, after = self._zones(name)
            sides = ((before[::-1], "before the start"), (after, "behind the end"))
            for zone, where in sides:
                hit = np.flatnonzero(zone != ZONE_BYTE)
                if hit.size:
                    self._guard(name)
                    raise BenchmarkError(
                        f"the work wrote up to {hit[-1] + 1} bytes {where} of {name} "
                        f"{array.shape}; expected no write outside it. "
                        "Look at its bounds."
                    )

    def check_inputs(self) -> None:
        """Look whether an input still holds what it was given.

        Raises:
            BenchmarkError: an input was written to.
        """
        for name, known in self._sums.items():
            if self._checksum(name) != known:
                raise BenchmarkError(
                    f"the work changed its input {name}; later launches would see "
                    "other data. Declare it with b.inout."
                )

    def check_written(self, name: str) -> None:
        """Look whether an output still holds nothing but poison.

        Raises:
            BenchmarkError: it does.
        """
        if self._holds_only(name, poison_of(self.arrays[name].dtype)):
            raise BenchmarkError(
                f"the work wrote nothing to {name}. Is it the buffer it was given?"
            )

    def _require_memory(self) -> None:
        """Refuse a case before it makes the machine swap or ends its processes."""
        needed = needed_bytes(self.handles)
        if needed < SMALL:
            return
        import psutil

        free = psutil.virtual_memory().available
        if needed > free:
            raise too_large(needed, free)

    def _allocate(self, handle: Handle, index: int) -> Any:
        offset = index * STAGGER % 4096
        try:
            array = memory.empty(
                handle.shape,
                dtypes.named(handle.dtype),
                offset=offset,
                margin=ZONE,
                huge=True,
            )
        except (MemoryError, ValueError):
            raise BenchmarkError(
                f"{handle.role} {handle.name} of shape {handle.shape} does not fit "
                "into memory. Choose a smaller size."
            ) from None
        for zone in _zones(array):
            zone[:] = ZONE_BYTE
        return array

    def write(self, name: str, data: Array) -> None:
        """Give an array this data."""
        self.arrays[name][...] = data

    def _copy(self, name: str) -> Any:
        return self.arrays[name].copy()

    def _put(self, name: str, copy: Any) -> None:
        self.write(name, copy)

    def _first(self, name: str) -> Array:
        first: Array = self._pristine.get(name, self.arrays[name])
        return first

    def _poison(self, name: str) -> None:
        poison(self.arrays[name])

    def _equal(self, name: str, copy: Any) -> bool:
        array = self.arrays[name]
        return bool(
            np.array_equal(copy, array) or np.array_equal(copy, array, equal_nan=True)
        )

    def _zones(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the bytes before and after an array."""
        return _zones(self.arrays[name])

    def _guard(self, name: str) -> None:
        """Make the zones of an array whole again."""
        for zone in self._zones(name):
            zone[:] = ZONE_BYTE

    def _checksum(self, name: str) -> int:
        return _checksum(self.arrays[name])

    def _holds_only(self, name: str, pattern: bytes) -> bool:
        # As bytes: NumPy holds every bool that is not 0 for equal, poison or not.
        blank = np.frombuffer(pattern, np.uint8)
        held = self.arrays[name].reshape(-1).view(np.uint8).reshape(-1, blank.size)
        return bool((held[:ZONE] == blank).all()) and bool((held == blank).all())


def poison_of(dtype: np.dtype[Any]) -> bytes:
    """Return a finite value that no result should hold: NaN would hide NaN bugs."""
    if dtypes.is_float(dtype):
        return np.array(-0.75 * float(dtypes.limits(dtype).max), dtype).tobytes()
    return b"\x99" * dtype.itemsize


def poison(array: Array) -> None:
    """Fill an array with what no result should hold."""
    value = poison_of(array.dtype)
    if dtypes.is_float(array.dtype):
        array.fill(np.frombuffer(value, array.dtype)[0])
    else:
        array.reshape(-1).view(np.uint8).fill(value[0])


def needed_bytes(handles: Iterable[Handle]) -> int:
    """Return the bytes of all buffers and of the copies that restore them.

    A launch moves as many: what it updates it reads and writes.
    """
    return sum(
        handle.size
        * dtypes.named(handle.dtype).itemsize
        * (1 + (handle.role == "inout"))
        for handle in handles
    )


def too_large(needed: int, free: int) -> BenchmarkError:
    """Return the error of a case that does not fit."""
    return BenchmarkError(
        f"its buffers do not fit into memory: they need {units.size(needed)}, "
        f"{units.size(free)} are free. Choose a smaller size."
    )


def _is_random(handle: Handle) -> bool:
    """Whether what a handle holds follows from the seed."""
    kind = dict(handle.recipe).get("dist", "constant")
    return handle.role != "output" and kind not in {"constant", "fixed"}


def _zones(array: Array) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    raw = array.base
    assert isinstance(raw, np.ndarray)
    first = array.ctypes.data - raw.ctypes.data
    last = first + array.nbytes
    return raw[first - ZONE : first], raw[last : last + ZONE]


def from_file(handle: Handle, files: Mapping[str, str]) -> Handle:
    """Return a handle that is filled from its file, where there is one for it."""
    path = files.get(handle.name)
    if path is None:
        return handle
    recipe = (("file", path), ("constant", False))
    return Handle(handle.name, handle.role, handle.shape, handle.dtype, recipe)


def _checksum(array: Array) -> int:
    """Return a hash of the bits, fast enough to be taken of every input.

    Sums of rows and of columns, so that sorting or swapping elements changes it.
    """
    flat = array.reshape(-1).view(np.uint8)
    row = 8 * COLUMNS
    table = flat[: flat.size // row * row].view(np.uint64).reshape(-1, COLUMNS)
    tail = flat[flat.size // row * row :].tobytes()
    return hash((table.sum(1).tobytes(), table.sum(0).tobytes(), tail))
