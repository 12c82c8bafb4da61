"""Tensors of bulk copies: what a launch is passed of an array by value.

One is made for each array and place, and remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from steelyard_device.cuda import tensors
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.ir.loops import Tensor

REMEMBERED: Final = 1024


def slots(
    convention: Convention,
    context: int,
    addresses: Sequence[int],
    scalars: Mapping[str, float],
) -> list[int | bytes]:
    """Return the words of a launch's slots, and the bytes of its tensors."""
    words: list[int | bytes] = [*binding.packed(convention, addresses, scalars)]
    for place, number, tensor in convention.tensors:
        at = convention.words[place]  # in the workspace
        words[place] = encoded(tensor, context, addresses[number] + at)
    return words


@functools.lru_cache(maxsize=REMEMBERED)
def encoded(tensor: Tensor, context: int, address: int) -> bytes:
    """Return the driver's CUtensorMap of a tensor in a context's array at an address.

    Raises:
        CUDAError: the driver refuses it.
    """
    return tensors.encoded(context, address, **described(tensor))


def described(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor but its array's name, as the device layer takes it."""
    return {name: value for name, value in asdict(tensor).items() if name != "name"}
