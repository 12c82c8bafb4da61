"""What is given for a kernel's parameters: arrays, shapes and dtypes, values of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from steelyard_kernels.array.shapes import asarray
from steelyard_kernels.array.tracing import running
from steelyard_kernels.array.value import Array as Traced
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.errors import KernelError
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.trace import Signature, Spec, shape_of

NUMBERS: Final = (bool, int, float, np.generic)
"""What is taken as an array of shape (), of NumPy's dtype."""


def key_of(
    arrays: tuple[Any, ...], schedule: Schedule | None, target: str, *, aligned: bool
) -> object:
    """Return what a build is remembered by; nothing is traced for it."""
    try:
        specs = tuple([(array.shape, array.dtype) for array in arrays])
    except AttributeError:  # specs, or some of them
        return tuple([_spec(a) for a in arrays]), schedule, target, aligned
    return specs, schedule, target, aligned


def _spec(array: Any) -> object:
    """Return what says shape and dtype of an array, or of a pair of them."""
    if isinstance(array, tuple) and len(array) == 2:
        shape, dtype = array
        return tuple(shape) if isinstance(shape, list) else shape, dtype
    array = np.asarray(array) if isinstance(array, NUMBERS) else array
    return getattr(array, "shape", None), getattr(array, "dtype", None)


def specs_of(signature: Signature, arrays: Sequence[Any]) -> list[Spec]:
    """Return shape and element type of every array, or of every pair of them."""
    kernel = signature.name
    specs: list[Spec] = []
    names = [*signature.arrays, *(f"array {i}" for i in range(len(arrays)))]
    for name, given in zip(names, arrays, strict=False):
        if isinstance(given, tuple) and len(given) == 2:
            shape, dtype = shape_of(kernel, name, given[0]), given[1]
        else:
            array: Any = np.asarray(given) if isinstance(given, NUMBERS) else given
            binding.check_host(kernel, name, array)
            shape, dtype = array.shape, array.dtype
        specs.append((shape, binding.element_type(kernel, name, dtype)))
    return specs


def are_traced(arrays: Sequence[Any], scalars: Mapping[str, Any]) -> bool:
    """Say whether some arguments are values of a kernel that is being traced."""
    return any(isinstance(each, Traced) for each in (*arrays, *scalars.values()))


def constants(signature: Signature, arrays: Sequence[Any]) -> list[Traced]:
    """Return arguments as values of the running trace: NumPy's arrays as constants."""
    names = [*signature.arrays, *(f"array {i}" for i in range(len(arrays)))]
    graph, found = running(), []
    for name, given in zip(names, arrays, strict=False):
        array = np.asarray(given) if isinstance(given, NUMBERS) else given
        if not isinstance(array, Traced) or array.graph is not graph:
            binding.check_host(signature.name, name, array)
        try:
            found.append(asarray(array))
        except KernelError as error:
            raise KernelError(f"{signature.name}: {name}: {error}") from None
    return found
