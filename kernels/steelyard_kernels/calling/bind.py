"""A built kernel with its arguments: checked, packed once, ready to run many times."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_device import cpu, cuda, memory
from steelyard_device.dispatch_native import SMALL
from steelyard_device.errors import DeviceError
from steelyard_kernels import dtypes
from steelyard_kernels.array.value import Array as Traced
from steelyard_kernels.array.value import kind_of
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.calling import wholes
from steelyard_kernels.calling.convention import Convention, Fresh
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Output
from steelyard_kernels.trace import ScalarParameter, Signature, check_size

Array: TypeAlias = NDArray[Any]
Result: TypeAlias = "Array | tuple[Array, ...] | dict[str, Array] | None"
Outputs: TypeAlias = "Array | Sequence[Array] | Mapping[str, Array] | None"


def element_type(kernel: str, name: str, dtype: Any) -> DType:
    """Return the element type of a dtype of NumPy's or ml_dtypes'.

    Raises KernelError for dtypes that kernels have not.
    """
    try:
        return _element_type(dtype)
    except KernelError as error:
        raise KernelError(f"{kernel}: {name}: {error}") from None


@functools.lru_cache(maxsize=32)
def _element_type(dtype: Any) -> DType:
    # Remembered: NumPy takes 3 us to tell a dtype's name, twice in each call.
    return dtypes.of(dtype)


CUDA_MEMORY: Final = frozenset({2, 13})
"""DLPack's numbers of memory on a GPU: its own, and managed."""


def on_gpu(array: object) -> bool:
    """Say whether an array lies in a GPU's memory, anyone's."""
    is_cuda = getattr(array, "is_cuda", None)  # of PyTorch's, which it says cheapest
    if is_cuda is not None:
        return bool(is_cuda)
    if hasattr(type(array), "__dlpack_device__"):  # JAX's class has the other as well
        return int(array.__dlpack_device__()[0]) in CUDA_MEMORY  # type: ignore[attr-defined]
    return hasattr(array, "__cuda_array_interface__")


def check_array(kernel: str, name: str, array: object) -> None:
    """Raise KernelError for what is no C-contiguous NumPy array."""
    check_host(kernel, name, array)
    assert isinstance(array, np.ndarray)
    if not array.flags.c_contiguous:
        check_size(kernel, name, array.shape)
        raise discontiguous(kernel, name, array.shape, array.strides)


def check_host(kernel: str, name: str, array: object) -> None:
    """Raise KernelError for what is no NumPy array, or a masked one."""
    if not isinstance(array, np.ndarray):
        raise _no_array(kernel, name, array)
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise KernelError(
            f"{kernel}: {name} is a masked array, whose mask no kernel reads; pass "
            "its data, or .filled(...)."
        )


def _no_array(kernel: str, name: str, array: object) -> KernelError:
    seen = type(array).__name__
    if isinstance(array, Traced):
        return KernelError(
            f"{kernel}: {name} is a value of kernel {array.graph.kernel}, expected a NumPy "
            f"array; where {array.graph.kernel} is traced call {kernel} itself."
        )
    if on_gpu(array):
        return KernelError(
            f"{kernel}: {name} is a {seen} on a GPU, expected a NumPy array as the first "
            "argument is one; copy it to the host, or all others to the GPU."
        )
    return KernelError(
        f"{kernel}: {name} is a {seen}, expected a NumPy array; "
        "pass numpy.asarray(...) of it, or a number as a keyword-only scalar."
    )


def discontiguous(
    kernel: str, name: str, shape: Sequence[int], strides: Sequence[int]
) -> KernelError:
    """Return the error of an array whose elements are not behind one another."""
    return KernelError(
        f"{kernel}: {name} of shape {tuple(shape)} has strides {tuple(strides)}, "
        "expected a C-contiguous array; pass a contiguous copy of it, as "
        "numpy.ascontiguousarray(...) makes one."
    )


# Looked up once: every call needs them for every array. Any, since NumPy's stubs say
# only from Python 3.12 on that an array is a buffer.
_address_of: Final = ctypes.addressof
_first_byte: Final[Any] = ctypes.c_char.from_buffer


def address(array: Array) -> int:
    """Return the address of the first element."""
    try:  # three times faster than array.ctypes.data, where it works
        return _address_of(_first_byte(array))
    except (TypeError, ValueError, BufferError):  # read-only, or empty
        return array.ctypes.data


def check_overlap(convention: Convention, addresses: Sequence[int]) -> None:
    """Raise KernelError where memory that is written is also another argument's."""
    for one, other, size, other_size in convention.pairs:
        if -size < addresses[one] - addresses[other] < other_size:
            raise KernelError(
                f"{convention.built.program.name}: output {convention.names[one]} shares memory "
                f"with {convention.names[other]}; give it memory of its own, or have the "
                "kernel return it under its parameter's name to update it in place."
            )


def outputs_of(convention: Convention, out: Outputs) -> Sequence[Array]:
    """Return the arrays of the fresh outputs in order: given, or allocated."""
    spare = convention.spare  # of a program of several launches, which calls give back
    hidden = [
        spare.pop() if spare else allocated(each, convention)
        for each in convention.hidden
    ]
    if out is None:
        return [*[allocated(each, convention) for each in convention.fresh], *hidden]
    given = given_outputs(convention, out)
    for each, array in zip(convention.fresh, given, strict=True):
        # One quick look at all that is expected; what was not so is told if it fails.
        if not (
            type(array) is np.ndarray
            and array.shape == each.shape
            and array.dtype == each.dtype
            and array.flags.carray
        ):
            _check_output(convention.built.program.name, each.output, array)
    return [*given, *hidden] if hidden else given


def given_outputs(convention: Convention, out: Any) -> Sequence[Any]:
    """Return the given arrays in the outputs' order; raises KernelError for a number."""
    one = isinstance(out, np.ndarray) or on_gpu(out)
    given = (out,) if one else _in_order(convention, out)
    if len(given) != len(convention.fresh):
        raise _miscounted(convention, len(given))
    return given


def _in_order(convention: Convention, out: object) -> Sequence[Any]:
    if isinstance(out, Sequence):
        return out
    if not isinstance(out, Mapping):
        raise KernelError(
            f"{convention.built.program.name}: out is a {type(out).__name__}, expected an "
            "array, a sequence of arrays or a dict of them by name; pass one of these, "
            "or leave out away."
        )
    names = [each.output.name for each in convention.fresh]
    if set(out) != set(names):
        raise _miscounted(convention, len(out))
    return [out[name] for name in names]


def _miscounted(convention: Convention, seen: int) -> KernelError:
    names = ", ".join(each.output.name for each in convention.fresh)
    return KernelError(
        f"{convention.built.program.name}: out has {seen} arrays, expected "
        f"{len(convention.fresh)} ({names or 'every output updates its parameter'}); pass "
        "them in this order, or leave out away."
    )


def allocated(fresh: Fresh, convention: Convention) -> Array:
    """Return an uninitialised array for an output, on a cache line unless it is small."""
    small = prod(fresh.shape) * fresh.dtype.itemsize < SMALL
    if small and not convention.streams:
        return np.empty(fresh.shape, fresh.dtype)
    return memory.empty(fresh.shape, fresh.dtype)


def _check_output(kernel: str, output: Output, array: object) -> None:
    check_array(kernel, output.name, array)
    assert isinstance(array, np.ndarray)
    check_fits(kernel, output, array.shape, array.dtype)
    check_writeable(kernel, output.name, writeable=array.flags.writeable)


def check_fits(
    kernel: str, output: Output, shape: Sequence[int], element: object
) -> None:
    """Raise KernelError for an array of another shape or dtype than its output's."""
    dtype, expected = output.value.dtype, output.value.shape
    seen = element_type(kernel, output.name, element)
    if shape != expected or seen is not dtype:
        raise KernelError(
            f"{kernel}: output {output.name} is {seen} {shape}, expected {dtype} "
            f"{expected}; pass an array of that dtype and shape, or leave out away."
        )


def check_writeable(kernel: str, name: str, *, writeable: bool) -> None:
    """Raise KernelError for a read-only array that would be written."""
    if not writeable:
        raise KernelError(
            f"{kernel}: output {name} is read-only, expected an array that can be "
            "written; pass a copy."
        )


def check_updated(convention: Convention, arrays: Sequence[Array]) -> None:
    """Raise KernelError for a read-only array that would be updated in place."""
    for number in convention.updated:
        name, writeable = convention.names[number], arrays[number].flags.writeable
        check_writeable(convention.built.program.name, name, writeable=writeable)


def defaults_of(signature: Signature) -> dict[str, float] | None:
    """Return every scalar's default by name; None if one has none that will do."""
    try:
        return scalar_values(signature, {})
    except KernelError:
        return None


def scalar_values(signature: Signature, given: Mapping[str, float]) -> dict[str, float]:
    """Return every runtime scalar by name: given, or its default."""
    if not given and not signature.scalars:
        return {}
    if given:
        known = {parameter.name for parameter in signature.scalars}
        for name in given.keys() - known:
            names = ", ".join(sorted(known)) or "none"
            raise KernelError(
                f"{signature.name}: unknown scalar {name}, expected {names}; check the "
                "spelling, arrays are positional."
            )
    return {
        parameter.name: _scalar(signature.name, parameter, given)
        for parameter in signature.scalars
    }


def _shown(value: object) -> str:
    """Return a value as an error shows it: of an array the shape, not its elements."""
    if isinstance(value, Traced):
        return f"a value of {value.dtype} {value.shape}"
    shape = getattr(value, "shape", None)
    return repr(value) if shape in {None, ()} else f"an array of shape {shape}"


def _scalar(kernel: str, parameter: ScalarParameter, given: Mapping[str, float]) -> Any:
    value: Any = given.get(parameter.name, parameter.default)
    if value is None:
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is missing and has no default; pass "
            f"{parameter.name}=<{parameter.dtype}>."
        )
    if isinstance(value, np.ndarray | np.generic) and not value.shape:
        value = value.item()
    kind = "" if getattr(value, "shape", ()) else kind_of(value)
    if kind not in _KINDS[parameter.dtype.kind]:
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is {_shown(value)} of type "
            f"{type(value).__name__}, expected {parameter.dtype}; convert it first."
        )
    return value


_KINDS: Final = {"float": ("float", "int"), "int": ("int",), "bool": ("bool",)}


def packed(
    convention: Convention, addresses: Sequence[int], scalars: Mapping[str, float]
) -> list[int]:
    """Return the words of a launch's slots."""
    wholes.check(convention.built.program.name, convention.computed, scalars)
    words = list(convention.words)
    for place, number in convention.addressed:
        words[place] += addresses[number]
    for place, name, code in convention.scalars:
        words[place] = _encoded(
            convention.built.program.name, name, scalars[name], code
        )
    return words


def _encoded(kernel: str, name: str, value: float, code: str) -> int:
    try:
        return cpu.slot(value, code)
    except DeviceError as error:
        raise KernelError(f"{kernel}: scalar {name}: {error}") from None


class BoundKernel:
    """A kernel with its arguments, ready to run: the work a harness measures.

    Keeps its arrays alive; `outputs` are by name, updated parameters included. What
    differs between a CPU's and a GPU's is in `cpu_bind.CpuKernel` and
    `cuda_bind.CudaKernel`.
    """

    def __init__(
        self,
        convention: Convention,
        arrays: Sequence[Any],
        launch: cpu.Launch | cuda.Launch | cuda.Chain | cuda.Series,
        null: Callable[[], cpu.Launch | cuda.Launch],
        rebuild: Callable[[str], Artifact | Failure],
    ) -> None:
        self.built = convention.built
        self.arrays = dict(zip(convention.names, arrays, strict=True))
        self.outputs = {
            convention.names[number]: arrays[number] for number in convention.outputs
        }
        self.kept: Any = None  # a `constants.Kept`, if there are any
        self._rebuild = rebuild
        self._launch = launch
        # The harness calls these in its windows: no method of ours in between.
        self.launch = launch.launch
        self.ready = launch.ready
        self.wait = launch.wait
        self.null = null  # a launch of nothing, as wide: the hand-over's floor

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Run `count` launches natively; return the clock before and after, in ns."""
        return self._launch.window(count, dependent=dependent)

    def refresh(self) -> None:
        """Have launches read what the arrays of `constant` parameters hold now."""
        if self.kept is not None:
            self.kept.refresh()

    def facts(self) -> dict[str, object]:
        """Return what is known of the work without running it."""
        from steelyard_kernels.building.facts import facts_of

        kept = {} if self.kept is None else {"constant_bytes": self.kept.nbytes}
        return {**facts_of(self.built), **kept}

    def build(self, cache: str) -> None:
        """Build again: "cold" through no cache, "warm-memory" as a second call does."""
        from steelyard_kernels.building.facts import rebuilt

        rebuilt(self._rebuild, cache)
