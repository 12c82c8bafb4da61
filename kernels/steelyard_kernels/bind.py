"""A built kernel with its arguments: checked, packed once, ready to run many times."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_device import cpu, memory
from steelyard_device.errors import DeviceError
from steelyard_kernels import cost, dtypes
from steelyard_kernels.build import Built, Failed
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Output, Program
from steelyard_kernels.trace import ScalarParameter, Signature

Array: TypeAlias = NDArray[Any]
Outputs: TypeAlias = "Array | Sequence[Array] | Mapping[str, Array] | None"


def element_type(kernel: str, name: str, dtype: Any) -> DType:
    """Return the element type of a NumPy dtype; uint16 carries bfloat16 bits.

    Raises KernelError for dtypes that kernels have not.
    """
    try:
        return _element_type(dtype)
    except KernelError as error:
        raise KernelError(f"{kernel}: {name}: {error}") from None


@functools.lru_cache(maxsize=32)
def _element_type(dtype: Any) -> DType:
    # Remembered: NumPy takes 3 us to tell a dtype's name, twice in each call.
    if getattr(dtype, "name", dtype) == "uint16":
        return dtypes.bfloat16
    return dtypes.of(dtype)


def check_array(kernel: str, name: str, array: object) -> None:
    """Raise KernelError for what is no C-contiguous NumPy array."""
    if not isinstance(array, np.ndarray):
        raise KernelError(
            f"{kernel}: {name} is a {type(array).__name__}, expected a NumPy array; "
            "pass numpy.asarray(...) of it, or a number as a keyword-only scalar."
        )
    if not array.flags.c_contiguous:
        raise KernelError(
            f"{kernel}: {name} of shape {array.shape} has strides {array.strides}, "
            "expected a C-contiguous array; pass numpy.ascontiguousarray(...) of it."
        )


def address(array: Array) -> int:
    """Return the address of the first element."""
    try:  # three times faster than array.ctypes.data, where it works
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError, BufferError):  # read-only, or empty
        return array.ctypes.data


def check_overlap(
    kernel: str,
    program: Program,
    arrays: Mapping[str, Array],
    addresses: Mapping[str, int],
) -> None:
    """Raise KernelError where memory that is written is also another argument's.

    `arrays` are by name, inputs and outputs; an updated input is one of them.
    """
    written = {output.name for output in program.outputs}
    spans = [
        (addresses[name], addresses[name] + array.nbytes, name)
        for name, array in arrays.items()
        if array.nbytes
    ]
    spans.sort()
    reach, holder = 0, ""  # how far the spans before this one go, and whose
    written_reach, writer = 0, ""
    for low, high, name in spans:
        clash = holder if name in written and low < reach else ""
        clash = writer if low < written_reach else clash
        if clash:
            output, other = (name, clash) if name in written else (clash, name)
            raise KernelError(
                f"{kernel}: output {output} shares memory with {other}; give it memory "
                "of its own, or have the kernel return it under its parameter's name "
                "to update it in place."
            )
        if high > reach:
            reach, holder = high, name
        if name in written and high > written_reach:
            written_reach, writer = high, name


def outputs_of(kernel: str, program: Program, out: Outputs) -> dict[str, Array]:
    """Return the arrays of the outputs that update no input: given, or allocated."""
    fresh = [output for output in program.outputs if output.updates is None]
    if out is None:
        return {output.name: allocate(output) for output in fresh}
    if isinstance(out, np.ndarray):
        out = (out,)
    if isinstance(out, Mapping):
        given = dict(out)
    elif not isinstance(out, Sequence):
        raise KernelError(
            f"{kernel}: out is a {type(out).__name__}, expected an array, a sequence of "
            "arrays or a dict of them by name; pass one of these, or leave out away."
        )
    else:
        given = {o.name: array for o, array in zip(fresh, out, strict=False)}
    names = [output.name for output in fresh]
    if len(out) != len(fresh) or sorted(given) != sorted(names):
        raise KernelError(
            f"{kernel}: out has {len(out)} arrays, expected {len(fresh)} "
            f"({', '.join(names) or 'every output updates its parameter'}); pass them "
            "in this order, or leave out away."
        )
    for output in fresh:
        _check_output(kernel, output, given[output.name])
    return given


def allocate(output: Output) -> Array:
    """Return an uninitialised array for an output, on a cache line."""
    return memory.empty(output.value.shape, output.value.dtype.numpy_name)


def _check_output(kernel: str, output: Output, array: object) -> None:
    check_array(kernel, output.name, array)
    assert isinstance(array, np.ndarray)
    dtype, shape = output.value.dtype, output.value.shape
    seen = element_type(kernel, output.name, array.dtype)
    if array.shape != shape or seen is not dtype:
        raise KernelError(
            f"{kernel}: output {output.name} is {seen} {array.shape}, expected {dtype} "
            f"{shape}; pass an array of that dtype and shape, or leave out away."
        )
    check_writeable(kernel, output.name, array)


def check_writeable(kernel: str, name: str, array: Array) -> None:
    """Raise KernelError for a read-only array that would be written."""
    if not array.flags.writeable:
        raise KernelError(
            f"{kernel}: output {name} is read-only, expected an array that can be "
            "written; pass a copy."
        )


def scalar_values(signature: Signature, given: Mapping[str, float]) -> dict[str, float]:
    """Return every runtime scalar by name: given, or its default."""
    known = {parameter.name for parameter in signature.scalars}
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise KernelError(
                f"{signature.name}: unknown scalar {name}, expected {names}; check the "
                "spelling, arrays are positional."
            )
    return {
        parameter.name: _scalar(signature.name, parameter, given)
        for parameter in signature.scalars
    }


def _scalar(
    kernel: str, parameter: ScalarParameter, given: Mapping[str, float]
) -> float:
    value = given.get(parameter.name, parameter.default)
    if value is None:
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is missing and has no default; pass "
            f"{parameter.name}=<{parameter.dtype}>."
        )
    accepted = _ACCEPTED[parameter.dtype.name]
    if not isinstance(value, accepted) or (
        isinstance(value, bool | np.bool_) and parameter.dtype.kind != "bool"
    ):
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is {value!r} of type "
            f"{type(value).__name__}, expected {parameter.dtype}; convert it first."
        )
    return value


_ACCEPTED: Final[dict[str, tuple[type, ...]]] = {
    "float64": (float, int, np.floating, np.integer),
    "int64": (int, np.integer),
    "bool": (bool, np.bool_),
}


class BoundKernel:
    """A kernel with its arguments, ready to run: the work a harness measures.

    Keeps its arrays alive; `outputs` are by name, updated parameters included.
    """

    def __init__(
        self,
        built: Built,
        arrays: Mapping[str, Array],
        addresses: Mapping[str, int],
        scalars: Mapping[str, float],
        rebuild: Callable[[str], Built | Failed],
    ) -> None:
        program = built.program
        self.built = built
        self.arrays = arrays
        self.outputs = {output.name: arrays[output.name] for output in program.outputs}
        self._rebuild = rebuild
        self._slots = _slots(built, addresses, scalars)
        self.threads = built.binary.threads or cpu.pool_size()
        self._launch = cpu.Launch(built.function, self._slots, self.threads)
        # The harness calls these in its windows: no method of ours in between.
        self.launch = self._launch.launch
        self.ready = self._launch.ready
        self.wait = self._launch.wait

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Run `count` launches natively; return the clock before and after, in ns."""
        return self._launch.window(count, dependent=dependent)

    def facts(self) -> dict[str, object]:
        """Return what is known of the work without running it."""
        built = self.built
        return {
            "bytes": cost.bytes_moved(built.program),
            "operations": cost.operations(built.program),
            "code_hash": built.code_hash,
            "threads": self.threads,
            "schedule": built.schedule.label,
            "strategy": built.strategy,
            "target": built.target,
        }

    def build(self, level: str) -> None:
        """Build again: "cold" through no cache, "warm-memory" as a second call does."""
        built = self._rebuild(level)
        if isinstance(built, Failed):
            raise KernelError(built.error) from built.cause

    def null(self) -> cpu.Launch:
        """Return a launch of nothing on the same threads: the hand-over's floor."""
        return cpu.null(self.threads)


def _slots(
    built: Built, addresses: Mapping[str, int], scalars: Mapping[str, float]
) -> list[int]:
    slots = []
    for slot in built.binary.slots:
        if slot.kind == "extent":
            slots.append(slot.index)
        elif slot.kind == "scalar":
            slots.append(_encoded(built, slot.name, scalars[slot.name], slot.code))
        else:
            slots.append(addresses[slot.name])
    return slots


def _encoded(built: Built, name: str, value: float, code: str) -> int:
    try:
        return cpu.slot(value, code)
    except DeviceError as error:
        raise KernelError(f"{built.program.name}: scalar {name}: {error}") from None
