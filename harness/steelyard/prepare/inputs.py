"""Realistic inputs from a counter-based generator, or from ``.npy`` files.

Element i of an input depends on the seed, the input's recipe and i alone: word i of
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
keyed by both, its counter from 1 up, so that a device can draw the same bits without the host. Two float32
elements share a 64-bit word; a float64 element takes one of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard.declare import dtypes, npy
from steelyard.declare.handles import Handle
from steelyard.errors import BenchmarkError
from steelyard.prepare import threads

Array = NDArray[Any]

Key = NDArray[np.uint64]

CHUNK: Final = 1 << 17
"""Elements that a thread draws at a time, a multiple of the eight that one count of the
generator gives: so many that threads seldom wait for each other between NumPy's calls,
so few that their temporaries stay in a private cache."""

KEPT: Final = 256 << 20
"""Bytes of data that is kept to be asked for again, unless one alone is larger."""

MOST: Final = 2**64 - 1
"""The largest word."""

FEWEST: Final = 2
"""Elements of which something can be said at all."""


_KEPT: Final[dict[tuple[Handle, int], Array]] = {}
"""The last data, in the order in which it was asked for."""


def generate(handle: Handle, seed: int) -> Array:
    """Return the data of ``handle``, read-only; raises as `draw`.

    The last are kept: cases that differ in ``impl`` have the same inputs.
    """
    data = _KEPT.pop((handle, seed), None)
    if data is None:
        data = draw(handle, seed)
        data.setflags(write=False)
    _KEPT[handle, seed] = data
    while sum(kept.nbytes for kept in _KEPT.values()) > KEPT and len(_KEPT) > 1:
        del _KEPT[next(iter(_KEPT))]
    return data


def draw(handle: Handle, seed: int) -> Array:
    """Return the data of ``handle``, drawn anew.

    Raises:
        BenchmarkError: the file cannot be read or is constant, or the distribution
            cannot be had in this dtype.
    """
    recipe = dict(handle.recipe)
    return _read(handle, recipe) if "file" in recipe else _drawn(handle, recipe, seed)


def _drawn(handle: Handle, recipe: Mapping[str, Any], seed: int) -> Array:
    dtype = dtypes.named(handle.dtype)
    dist = recipe["dist"]
    if dist == "constant":
        return np.full(handle.shape, recipe["value"], dtype)
    if dist == "integers":
        _check_range(recipe, dtype)
    elif not dtypes.is_float(dtype):
        raise BenchmarkError(
            f"input {handle.name} is {dtype} with dist={dist!r}; whole numbers come "
            "from dist='integers'."
        )
    key = _key(handle, seed)
    if dist == "pattern":
        period = _period(handle, recipe)
        return np.resize(_filled(period, dtype, recipe, key), handle.shape)
    return _filled(handle.size, dtype, recipe, key).reshape(handle.shape)


def _filled(
    size: int, dtype: np.dtype[Any], recipe: Mapping[str, Any], key: Key
) -> Array:
    """Draw an array in parts, on all processors: NumPy lets others run meanwhile."""
    data = np.empty(size, dtype)

    def fill(first: int) -> None:
        part = data[first : first + CHUNK]
        part[...] = _values(recipe, dtype, key, first, part.size)

    threads.each(fill, range(0, size, CHUNK))
    return data


def _values(
    recipe: Mapping[str, Any], dtype: np.dtype[Any], key: Key, first: int, count: int
) -> Array:
    """Return elements from ``first`` on, a multiple of `CHUNK`, before they are cast."""
    wide = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    if recipe["dist"] == "integers":
        low, high = int(recipe["low"]), int(recipe["high"])
        words = _words(key, first, count)
        return low + (words % np.uint64(high - low)).astype(np.int64)
    if recipe["dist"] == "uniform":
        least, most = float(recipe["low"]), float(recipe["high"])
        return least + (most - least) * _uniform(key, first, count, wide)
    mean, deviation = float(recipe["mean"]), float(recipe["deviation"])
    data = mean + deviation * _normal(key, first, count, wide)
    if recipe["dist"] == "lognormal":
        np.exp(data, out=data)
    return data


def is_constant(handle: Handle) -> bool:
    """Whether an input is asked to be one value."""
    recipe = dict(handle.recipe)
    return bool(recipe.get("constant")) or recipe.get("dist") == "constant"


def collapsed(data: Array) -> bool:
    """Tell whether data is no longer what users have.

    More than half of it zeros, denormals, infinities or NaN, or all of it one value.
    """
    if data.size < FEWEST or not dtypes.is_float(data.dtype):
        return False
    magnitude = np.abs(data)
    normal = (magnitude >= dtypes.limits(data.dtype).tiny) & np.isfinite(magnitude)
    constant = bool((data == data.flat[0]).all())
    return is_collapsed(data.size, int(np.count_nonzero(normal)), constant=constant)


def is_collapsed(size: int, normal: int, *, constant: bool) -> bool:
    """Say the same of ``size`` elements of which so many are ``normal`` numbers."""
    return constant or normal * 2 < size


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


def _key(handle: Handle, seed: int) -> Key:
    """Return the key of the handle's own stream; normals are drawn as pairs in a row."""
    drawn_flat = dict(handle.recipe)["dist"] not in {"uniform", "integers"}
    seed = 0 if dict(handle.recipe)["dist"] == "fixed" else seed
    shape = (handle.size + handle.size % 2,) if drawn_flat else handle.shape
    name = f"{seed}/{handle.name}/{shape}/{handle.dtype}/{handle.recipe}"
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.frombuffer(digest, np.uint64)


def _words(key: Key, first: int, count: int) -> NDArray[np.uint64]:
    """Return 64-bit words of a stream from the ``first`` on, a multiple of four."""
    stream = np.random.Generator(np.random.Philox(key=key, counter=first // 4))
    # As random_raw gives them, which would keep other threads waiting.
    return stream.integers(0, MOST, count, np.uint64, endpoint=True)


def _uniform(key: Key, first: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return uniforms in [0, 1) with all bits of the significand."""
    if dtype == np.float64:
        return (_words(key, first, count) >> np.uint64(11)) * 2.0**-53
    halves = _words(key, first // 2, -(-count // 2)).view(np.uint32)
    return ((halves >> np.uint32(8)) * np.float32(2.0**-24))[:count]


def _normal(key: Key, first: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return normals by Box and Muller's transform of pairs of uniforms."""
    pairs = -(-count // 2)
    data = np.empty(2 * pairs, dtype)
    _box_muller(_uniform(key, first, 2 * pairs, dtype), data)
    return data[:count]


def _box_muller(uniform: Array, data: Array) -> None:
    one, two = data.dtype.type(1), data.dtype.type(2)
    radius = np.sqrt(-two * np.log(one - uniform[0::2]))
    angle = data.dtype.type(2 * np.pi) * uniform[1::2]
    np.multiply(radius, np.cos(angle), out=data[0::2])
    np.multiply(radius, np.sin(angle), out=data[1::2])


def _check_range(recipe: Mapping[str, Any], dtype: np.dtype[Any]) -> None:
    """Refuse integers in [low, high) that cannot be had.

    Those of a range below 2**32 are biased by less than 2**-31.
    """
    low, high = int(recipe["low"]), int(recipe["high"])
    limits = (0, 1) if dtype.kind == "b" else (-(2**53), 2**53)
    if dtype.kind in "iu":
        limits = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if not (limits[0] <= low < high <= limits[1] + 1 and high - low < 2**63):
        raise BenchmarkError(
            f"integers from {low} up to, not including, {high} cannot be had in "
            f"{dtype}. Change low= or high=."
        )


def _period(handle: Handle, recipe: Mapping[str, Any]) -> int:
    period = int(recipe["period"])
    if period < 1 or period != recipe["period"]:
        raise BenchmarkError(
            f"input {handle.name} repeats itself every {recipe['period']} values; "
            "expected a whole number from 1 up as period=."
        )
    return period


def _read(handle: Handle, recipe: Mapping[str, Any]) -> Array:
    stored = npy.read(recipe["file"])
    data = np.array(stored, stored.dtype.newbyteorder("="))
    if data.shape != handle.shape or data.dtype != np.dtype(handle.dtype):
        raise BenchmarkError(
            f"{recipe['file']} holds {data.dtype} {data.shape}; input {handle.name} "
            f"is {handle.dtype} {handle.shape}. Save it in this shape and dtype."
        )
    if not recipe["constant"] and npy.repeats(data):
        raise BenchmarkError(
            f"{recipe['file']} repeats one value, which no user's data does. "
            "Give real data, or b.load(..., constant=True) if it is meant."
        )
    return data
