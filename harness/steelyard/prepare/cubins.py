"""Anyone's cubin as the work of a case."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from steelyard.errors import BenchmarkError
from steelyard_device import binary, cuda
from steelyard_device import cubin as reader

Extents = int | tuple[int, ...]

_FLOATS: Final = {2: "<e", 4: "<f", 8: "<d"}
"""How a Python float goes into a parameter of so many bytes."""


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel of a cubin, a target of ``b.launch``; its parameters go by place.

    ``source`` is a path or the bytes. ``grid`` and ``block`` are extents, the first
    innermost, or functions of the arguments that return them; ``shared`` are dynamic
    bytes of a block. Arguments: handles become addresses; NumPy and ctypes scalars, and
    bytes, go in as they are; Python's numbers take the size of their parameter. What
    ``out=`` names comes last.
    """

    source: str | Path | bytes
    entry: str
    grid: Extents | Callable[..., Extents]
    block: Extents | Callable[..., Extents]
    shared: int = 0

    def bind(self, *args: Any, out: Any = None) -> CubinWork:
        """Load it where the arguments lie and pack them.

        Raises:
            BenchmarkError: the file cannot be read, no argument lies on a GPU, or one
                cannot be a parameter.
            DeviceError: it is no cubin for this GPU, or takes other parameters.
        """
        given = (
            *args,
            *(out if isinstance(out, tuple) else () if out is None else (out,)),
        )
        context = next((a.context for a in given if isinstance(a, cuda.View)), None)
        if context is None:
            raise BenchmarkError(
                f"the cubin's kernel {self.entry} got no array on a GPU. Say "
                'b.on("cuda"), and pass it a handle.'
            )
        code = self._code()
        function = cuda.load(context, code).function(self.entry)
        sizes = function.parameters
        if len(sizes) != len(given):
            raise BenchmarkError(
                f"{self.entry} takes {len(sizes)} parameters of {sizes} bytes, got "
                f"{len(given)} arguments. Pass one for each."
            )
        slots = [
            self._slot(place, value, size)
            for place, (value, size) in enumerate(zip(given, sizes, strict=True))
        ]
        grid = self.grid(*given) if callable(self.grid) else self.grid
        block = self.block(*given) if callable(self.block) else self.block
        made = CubinWork(function, slots, grid=grid, block=block, shared=self.shared)
        made.code, made.given = code, slots
        made.code_hash = reader.read(code)[self.entry].code_hash
        made.arguments = given
        return made

    def __call__(self, *args: Any, out: Any = None) -> None:
        """Launch it once, as a program that keeps nothing does."""
        self.bind(*args, out=out).launch()

    def _code(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        try:
            return Path(self.source).read_bytes()
        except OSError as error:
            raise BenchmarkError(
                f"the cubin {self.source} cannot be read: {error.strerror}. Name a file "
                "that a compiler made with -cubin."
            ) from None

    def _slot(self, place: int, value: Any, size: int) -> int | bytes:
        if isinstance(value, cuda.View):
            return value.address
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.generic):
            return value.tobytes()
        if isinstance(value, ctypes._SimpleCData | ctypes.Structure):  # noqa: SLF001 # their common base has no other name
            return bytes(value)
        if isinstance(value, int) and -(1 << 8 * size - 1) <= value < 1 << 8 * size:
            return value % (1 << 8 * size)
        if isinstance(value, float) and size in _FLOATS:
            return struct.pack(_FLOATS[size], value)
        raise BenchmarkError(
            f"argument {place} of {self.entry} is {value!r}, which does not fit a "
            f"parameter of {size} bytes. Pass a handle, a number, or a NumPy or ctypes "
            "scalar of that size."
        )


class CubinWork(cuda.Launch):
    """A launch of it on the context's stream; native work like our own kernels."""

    code: bytes
    code_hash: str
    given: Sequence[int | bytes]
    """What its parameters get."""
    arguments: tuple[Any, ...]
    """Kept as long as it may be launched."""

    @property
    def arrays(self) -> dict[str, cuda.View]:
        """Its arrays, by the places of its parameters."""
        every = enumerate(self.arguments)
        return {str(place): one for place, one in every if isinstance(one, cuda.View)}

    def binary(self) -> bytes:
        """Return the cubin, its launch and its facts, for another process."""
        slots = [
            ["input", str(place), 0]
            if isinstance(argument, cuda.View)
            else ["bytes", str(place), word.hex()]
            if isinstance(word, bytes)
            else ["scalar", str(place), word]
            for place, (argument, word) in enumerate(
                zip(self.arguments, self.given, strict=True)
            )
        ]
        head = {
            "entry": self.function.name,
            "slots": slots,
            "facts": self.facts(),
            "grid": self.grid,
            "block": self.block,
            "shared": self.shared,
        }
        return binary.pack(head, self.code)

    def null(self) -> cuda.Launch:
        """Return the same launch of a kernel that does nothing."""
        return cuda.null(self.context, self.stream)

    def facts(self) -> dict[str, Any]:
        """Say what the code is and what a launch of it takes."""
        taken = super().facts()
        return {
            "code_hash": self.code_hash,
            "registers": taken["registers"],
            "shared_bytes": self.function.attributes.shared + self.shared,
            "blocks_per_multiprocessor": taken["blocks_per_multiprocessor"],
            "grid": taken["grid"],
            "block": taken["block"],
        }
