"""The corpus: what a program of it is, and on which arrays it is run.

A row is a function, the shapes and dtypes of its arrays, and what it needs said about
it. `"3,40 40; 1,7 7"` are two cases of two arrays each; dtypes are taken in turn, and
`"37,5:int32"` says its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any

import bounds
import numpy as np

from steelyard_device import memory
from steelyard_kernels import dtypes, reference
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.function import KernelFunction, kernel

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-42, 3e38, 1.0)


@dataclass(frozen=True, eq=False)
class Row:
    """One program.

    `data` names how values are drawn, or is a function of a generator that gives the
    arrays. `exact`: the oracle's values to the bit. `near`: of the arrays, what outputs
    may be, instead of the derived bounds. `refused`: by target ("*" for all), words of
    the error, whose class is `error`. `together`: one code serves all cases, at the sizes of any.
    `times`: as many candidates as of other rows, which have one a case.
    """

    name: str
    function: Callable[..., Any]
    shapes: str = ""
    dtypes: str = "float32"
    scalars: Mapping[str, Any] = field(default_factory=dict)
    data: str | Callable[[np.random.Generator], list[Any]] = "normal"
    exact: bool = False
    near: Callable[..., Mapping[str, Any]] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    error: type[Exception] = Unsupported
    together: bool = False
    times: int = 1

    @cached_property
    def cases(self):
        """Return a case for each of the shapes, and for each dtype if those are more."""
        shapes, kinds = self.shapes.split(";"), self.dtypes.split()
        count = max(len(shapes), len(kinds))
        pairs = zip(range(count), cycle(shapes), cycle(kinds), strict=False)
        return [Case(self, shape.split(), kind) for _, shape, kind in pairs]


@dataclass(frozen=True, eq=False)
class Case:
    """A program at one point: shapes as words, and the dtype of those that say none."""

    row: Row
    words: list[str]
    dtype: str

    @property
    def name(self):
        """Say which, as `-k` finds it."""
        return f"{self.row.name}[{' '.join([*self.words, self.dtype])}]"

    @cached_property
    def made(self):
        """Return the kernel."""
        function = self.row.function
        return function if isinstance(function, KernelFunction) else kernel(function)

    @property
    def number(self):
        """Return which of the row's cases it is."""
        return self.row.cases.index(self)

    @property
    def alternates(self):
        """Say whether it is run by the heuristic or by a candidate: not a row's first."""
        return self.number > 0 and self.row.times == 1

    @property
    def turns(self):
        """Return which of the row's candidates are its: of one case alone, twice as many."""
        if self.alternates:
            return [self.number // 2 + 1] if self.number % 2 else []
        times = self.row.times * (1 + (len(self.row.cases) == 1))
        return range(self.number * times, self.number * times + times)

    def arrays(self):
        """Return its arrays, the same ones each time."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        if callable(self.row.data):
            return self.row.data(rng)
        found = []
        for word in self.words:
            shape, _, own = word.partition(":")
            extents = tuple(map(int, filter(None, shape.strip("()").split(","))))
            found.append(
                DATA[self.row.data](rng, extents, dtypes.of(own or self.dtype))
            )
        return found

    def program(self):
        """Return the traced program."""
        return self.made.program(*self.arrays())

    def expected(self):
        """Return, by name, the interval that each output lies in."""
        arrays, program = self.arrays(), self.program()
        if self.row.near is not None:
            kinds = {out.name: out.value.dtype for out in program.outputs}
            wide = [reference.widen(a, dtypes.of(a.dtype)) for a in arrays]
            found = self.row.near(*wide, **self.row.scalars)
            return {name: _around(value, kinds[name]) for name, value in found.items()}
        if not self.row.exact:
            return bounds.expected(program, arrays, self.scalars)
        found = reference.evaluate(program, arrays, self.scalars)
        kinds = {out.name: out.value.dtype for out in program.outputs}
        return {name: bounds.near(value, kinds[name]) for name, value in found.items()}

    @property
    def scalars(self):
        """Return all runtime scalars, defaults included."""
        defaults = {each.name: each.default for each in self.made.signature.scalars}
        return {**defaults, **self.row.scalars}


def _around(value, dtype):
    """Return an interval of a value, or of (value, error)."""
    value, error = value if isinstance(value, tuple) else (value, 0)
    found = bounds.near(np.asarray(value), dtype)
    return bounds.Near(dtype.name, found.lo - error, found.hi + error, found.wild)


# How values are drawn.


def normal(rng, shape, dtype, *, special=False):
    """Return numbers of several magnitudes."""
    if dtype.kind == "int":
        low = -50 if dtype.signed else 0
        return np.asarray(rng.integers(low, 50, shape), dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    wide = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape))
    if special:
        chosen = np.asarray(rng.random(shape) < 0.2)
        wide = np.where(chosen, rng.choice(SPECIAL, shape), wide)
    return dtypes.rounded(wide, dtype)


def _unit(rng, shape, dtype):
    if dtype.kind != "float":
        return normal(rng, shape, dtype)
    return dtypes.rounded(rng.uniform(-1, 1, shape), dtype)


DATA = {
    "normal": normal,
    "special": lambda rng, shape, dtype: normal(rng, shape, dtype, special=True),
    "unit": _unit,  # of which products stay small
    "positive": lambda *given: np.abs(_unit(*given)),
    "bits": lambda rng, shape, dtype: rng.integers(
        -(2**31), 2**31, shape, "int64"
    ).astype(dtype.numpy),
}


# Arrays in memory whose neighbourhood is watched.

GUARD = 64  # elements on either side


class Placed:
    """Copies of arrays between guards, aligned or one element off."""

    def __init__(self, *, aligned):
        self._by = 0 if aligned else 1
        self._rooms = []

    def copy(self, array):
        """Return a copy whose neighbours are watched."""
        room = memory.empty((array.size + 2 * GUARD + 1,), array.dtype)
        room.view(np.uint8)[...] = 0xA5
        first = GUARD + self._by
        view = room[first : first + array.size].reshape(array.shape)
        view[...] = array
        self._rooms.append((room, first, array.size))
        return view

    def check(self):
        """Assert that nothing was written beside the arrays."""
        for room, first, size in self._rooms:
            beside = np.concatenate([room[:first], room[first + size :]])
            assert (beside.view(np.uint8) == 0xA5).all(), "written beside an array"


def poisoned(output):
    """Return an array like an output, of values that none of the programs gives."""
    made = np.empty(output.value.shape, output.value.dtype.numpy)
    made.reshape(-1).view(np.uint8)[...] = 0x01 if made.dtype == bool else 0x7E
    return made


def compare(name, near, seen):
    """Assert that an output lies within what it may be."""
    assert seen.shape == near.shape, (name, seen.shape, near.shape)
    off = ~near.holds(seen)
    if off.any():
        first = tuple(map(int, np.argwhere(off)[0]))
        raise AssertionError(
            f"{name}{list(first)} is {seen[first]!r}, expected {near.lo[first]!r} to "
            f"{near.hi[first]!r}; {off.sum()} of {off.size} are off"
        )
