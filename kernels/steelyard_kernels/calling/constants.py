"""Kernels of which some parameters are constants: what these alone decide is stored.

    once(w)            -> what a bound kernel keeps, in the order its launches read it
    rest(x, *kept)     -> what each launch computes

Launches never read a constant's own array: what is written there counts from `refresh` on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.cpu_bind import CpuKernel
from steelyard_kernels.errors import KernelError
from steelyard_kernels.plan.constants import Split, split
from steelyard_kernels.targets import CPU, device, parse

if TYPE_CHECKING:
    from steelyard_kernels.calling.cuda_arrays import Placed
    from steelyard_kernels.calling.cuda_bind import CudaKernel, CudaSeries


class Kept:
    """What is stored of constants, which `refresh` makes anew of what they hold."""

    def __init__(self, once: Any, found: Split, given: Mapping[str, Any]) -> None:
        self.text, self.nbytes = found.text(), found.nbytes
        self._once = once
        self._read = [given[node.name] for node in found.once.inputs]
        self.arrays: tuple[Any, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the constants, and return when what is stored is made of them."""
        made: Any = self._once(*self._read, out=self.arrays or None)
        self.arrays = made or ()
        for array in self.arrays[:1]:
            if binding.on_gpu(array):
                array.context.wait()


def bound(
    kernel: Any,
    arrays: tuple[Any, ...],
    constant: Sequence[str],
    scalars: dict[str, float],
    how: dict[str, Any],
) -> CpuKernel | CudaKernel | CudaSeries:
    """Bind what of a `KernelFunction` differs from launch to launch.

    `how` are bind's other words.
    """
    values = binding.scalar_values(kernel.signature, scalars)
    specs, target = arrays, CPU
    if arrays and binding.on_gpu(arrays[0]):
        every = [_placed(kernel.name, array) for array in arrays]
        specs = tuple([(each.shape, each.dtype) for each in every])
        target = f"cuda:{every[0].context.device.arch}"
    program = kernel.program(*specs)  # which counts them
    given = dict(zip(kernel.signature.arrays, arrays, strict=True))
    named = {name: _identity(given.get(name)) for name in constant}
    found = split(program, named, device(parse(target)))
    kept = Kept(kernel.part(found.once), found, {name: given[name] for name in named})
    rest = kernel.part(found.rest)
    others = [array for name, array in given.items() if name not in named]
    how |= {each.name: values[each.name] for each in rest.signature.scalars}
    work: CpuKernel | CudaKernel | CudaSeries = rest.bind(*others, *kept.arrays, **how)
    for name, (output, array) in product(named, work.outputs.items()):
        if _overlap(kernel.name, given[name], array):
            raise KernelError(
                f"{kernel.name}: output {output} shares memory with {name}, which is "
                f"constant; give it memory of its own, or leave {name} out of constant."
            )
    work.kept = kept
    return work


def _identity(array: Any) -> object:
    """Return what equal arrays in one place have in common."""
    if not isinstance(array, np.ndarray):
        return id(array)
    return array.ctypes.data, array.shape, array.strides, array.dtype


def _overlap(kernel: str, *arrays: Any) -> bool:
    """Say whether two arrays may have bytes in common."""
    if not binding.on_gpu(arrays[0]):
        return np.may_share_memory(*arrays)
    ends = []
    for at in [_placed(kernel, array) for array in arrays]:
        size = prod(at.shape) * at.dtype.itemsize
        ends.append((at.address, at.address + size))
    (low, high), (start, end) = ends
    return max(low, start) < min(high, end)


def _placed(kernel: str, array: Any) -> Placed:
    """Return where an array lies on a GPU; of other strides, where it begins."""
    from steelyard_kernels.calling.cuda_arrays import DiscontiguousError, placed

    try:
        return placed(kernel, "an array", array)
    except DiscontiguousError as error:
        return error.at
