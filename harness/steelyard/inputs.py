"""Realistic inputs from a counter-based generator, or from ``.npy`` files.

Element i of an input depends on the seed, the input's recipe and i alone: word i of
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
keyed by both, its counter from 1 up, so that a device can draw the same bits without the host. Two float32
elements share a 64-bit word; a float64 element takes one of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import npy
from steelyard.errors import BenchmarkError
from steelyard.handles import Handle

Array = NDArray[Any]

CHUNK: Final = 1 << 15
"""Elements transformed at a time, even: their temporaries stay in a private cache."""


@functools.lru_cache(maxsize=4)
def generate(handle: Handle, seed: int) -> Array:
    """Return the data of ``handle``, read-only.

    The last few are kept: cases that differ in ``impl`` have the same inputs.

    Raises:
        BenchmarkError: the file cannot be read or is constant, or the distribution
            cannot be had in this dtype.
    """
    recipe = dict(handle.recipe)
    data = _read(handle, recipe) if "file" in recipe else _drawn(handle, recipe, seed)
    data.setflags(write=False)
    return data


def _drawn(handle: Handle, recipe: Mapping[str, Any], seed: int) -> Array:
    dtype = np.dtype(handle.dtype)
    if recipe["dist"] == "constant":
        return np.full(handle.shape, recipe["value"], dtype)
    wide = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    if recipe["dist"] == "integers":
        data = _integers(_words(handle, seed, handle.size), recipe, dtype)
    elif dtype.kind != "f":
        raise BenchmarkError(
            f"input {handle.name} is {dtype} with dist={recipe['dist']!r}; whole "
            "numbers come from dist='integers'."
        )
    elif recipe["dist"] == "uniform":
        data = _uniform(handle, seed, wide)
        data = recipe["low"] + (recipe["high"] - recipe["low"]) * data
    else:
        data = recipe["mean"] + recipe["deviation"] * _normal(handle, seed, wide)
        if recipe["dist"] == "lognormal":
            data = np.exp(data)
    return data.astype(dtype).reshape(handle.shape)


def collapsed(data: Array) -> bool:
    """Tell whether data is no longer what users have.

    More than half of it zeros, denormals, infinities or NaN, or all of it one value.
    """
    if data.size < 2 or data.dtype.kind != "f":
        return False
    magnitude = np.abs(data)
    normal = (magnitude >= np.finfo(data.dtype).tiny) & np.isfinite(magnitude)
    constant = bool((data == data.flat[0]).all())
    return constant or bool(np.count_nonzero(normal) * 2 < data.size)


def recipe_hash(handles: tuple[Handle, ...], seed: int) -> str:
    """Return a hash of everything that decides what the inputs hold."""
    text = repr((seed, [(h.name, h.role, h.shape, h.dtype, _data(h)) for h in handles]))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _data(handle: Handle) -> Any:
    """Return the recipe; of a file what it holds, not where it lies."""
    path = dict(handle.recipe).get("file")
    if path is None:
        return handle.recipe
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


def _words(handle: Handle, seed: int, count: int) -> NDArray[np.uint64]:
    """Return the first ``count`` 64-bit words of the handle's own stream."""
    name = f"{seed}/{handle.name}/{handle.shape}/{handle.dtype}/{handle.recipe}"
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    stream = np.random.Philox(key=np.frombuffer(key, np.uint64))
    return stream.random_raw(count)


def _uniform(handle: Handle, seed: int, dtype: np.dtype[Any]) -> Array:
    """Return uniforms in [0, 1) with all bits of the significand."""
    if dtype == np.float64:
        words = _words(handle, seed, handle.size)
        return (words >> np.uint64(11)) * 2.0**-53
    halves = _words(handle, seed, -(-handle.size // 2)).view(np.uint32)
    return ((halves >> np.uint32(8)) * np.float32(2.0**-24))[: handle.size]


def _normal(handle: Handle, seed: int, dtype: np.dtype[Any]) -> Array:
    """Return normals by Box and Muller's transform of pairs of uniforms."""
    pairs = -(-handle.size // 2)
    uniform = _uniform(
        Handle(handle.name, handle.role, (2 * pairs,), handle.dtype, handle.recipe),
        seed,
        dtype,
    )
    data = np.empty(2 * pairs, dtype)
    for first in range(0, 2 * pairs, CHUNK):
        part = slice(first, first + CHUNK)
        _box_muller(uniform[part], data[part])
    return data[: handle.size]


def _box_muller(uniform: Array, data: Array) -> None:
    one, two = data.dtype.type(1), data.dtype.type(2)
    radius = np.sqrt(-two * np.log(one - uniform[0::2]))
    angle = data.dtype.type(2 * np.pi) * uniform[1::2]
    np.multiply(radius, np.cos(angle), out=data[0::2])
    np.multiply(radius, np.sin(angle), out=data[1::2])


def _integers(
    words: NDArray[np.uint64], recipe: Mapping[str, Any], dtype: np.dtype[Any]
) -> Array:
    """Return integers in [low, high), those of a range below 2**32 biased by < 2**-31."""
    low, high = int(recipe["low"]), int(recipe["high"])
    limits = (0, 1) if dtype.kind == "b" else (-(2**53), 2**53)
    if dtype.kind in "iu":
        limits = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if not (limits[0] <= low < high <= limits[1] + 1 and high - low < 2**63):
        raise BenchmarkError(
            f"integers from {low} up to, not including, {high} cannot be had in "
            f"{dtype}. Change low= or high=."
        )
    return low + (words % np.uint64(high - low)).astype(np.int64)


def _read(handle: Handle, recipe: Mapping[str, Any]) -> Array:
    stored = npy.read(recipe["file"])
    data = np.array(stored, stored.dtype.newbyteorder("="))
    if data.shape != handle.shape or data.dtype != np.dtype(handle.dtype):
        raise BenchmarkError(
            f"{recipe['file']} holds {data.dtype} {data.shape}; input {handle.name} "
            f"is {handle.dtype} {handle.shape}. Save it in this shape and dtype."
        )
    if data.size > 1 and not recipe["constant"] and bool((data == data.flat[0]).all()):
        raise BenchmarkError(
            f"{recipe['file']} repeats one value, which no user's data does. "
            "Give real data, or b.load(..., constant=True) if it is meant."
        )
    return data
