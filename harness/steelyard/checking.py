"""Is the result right? Asked before a case is timed and of timed launches after."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.benchmark import Description, raised
from steelyard.buffers import Buffers
from steelyard.errors import BenchmarkError
from steelyard.handles import Check, Handle

Array = NDArray[Any]

ULPS: Final = 8
"""Default tolerance in units of the output dtype's epsilon, of each expected value and of
the root mean square of all: a result near zero carries the error of its summands."""

CHUNK: Final = 1 << 15
"""Elements compared at a time: their temporaries stay in a private cache."""

ROWS: Final = 64
"""Rows kept at least of each expected result, for outputs of timed launches."""

ELEMENTS: Final = 4096
"""Elements kept at least: a row of a one-dimensional result is one element."""


class Expectation:
    """What the outputs of one launch should hold, whole once and in rows afterwards."""

    def __init__(self, description: Description, buffers: Buffers, seed: int) -> None:
        self._results = description.results
        self._check = description.check
        self._wanted: list[Array] | None = None
        self._rows: list[NDArray[np.intp]] = []
        if description.check is not None:
            self._wanted = list(_answer(_Question.of(description, buffers)))
            draw = np.random.default_rng(seed)
            for wanted in self._wanted:
                self._rows.append(_draw_rows(wanted.shape, draw))

    def check_all(self, buffers: Buffers) -> None:
        """Compare every element, then keep only some rows of what was expected.

        Raises:
            BenchmarkError: an element is off, or a buffer was left or written wrongly.
        """
        self.check_buffers(buffers)
        if self._wanted is None:
            return
        for handle, wanted in zip(self._results, self._wanted, strict=True):
            self._compare(handle, buffers.arrays[handle.name], wanted)
        self._wanted = [
            wanted[rows] if wanted.ndim else wanted
            for wanted, rows in zip(self._wanted, self._rows, strict=True)
        ]

    def check_rows(self, buffers: Buffers) -> None:
        """Compare the kept rows with what a timed launch left.

        Raises:
            BenchmarkError: as `check_all`.
        """
        self.check_buffers(buffers)
        if self._wanted is None:
            return
        for handle, wanted, rows in zip(
            self._results, self._wanted, self._rows, strict=True
        ):
            array = buffers.arrays[handle.name]
            self._compare(handle, array[rows] if array.ndim else array, wanted)

    def check_buffers(self, buffers: Buffers) -> None:
        """Check what needs no reference: zones, inputs, and that anything was written.

        Raises:
            BenchmarkError: one of them does not hold.
        """
        buffers.check_zones()
        buffers.check_inputs()
        for handle in self._results:
            if handle.role == "output" and handle.size:
                buffers.check_written(handle.name)

    def _compare(self, handle: Handle, got: Array, wanted: Array) -> None:
        assert self._check is not None
        epsilon = ULPS * _epsilon(got.dtype)
        rtol = epsilon if self._check.rtol is None else self._check.rtol
        given = self._check.atol
        atol = epsilon * _root_mean_square(wanted) if given is None else given
        wrong = _wrong(got, wanted, rtol, atol)
        if wrong.size:
            first = tuple(int(i) for i in np.unravel_index(wrong[0], got.shape))
            value = float(wanted[first])
            raise BenchmarkError(
                f"{handle.name} is wrong in {wrong.size} of {got.size} elements: at "
                f"{list(first)} it holds {float(got[first]):.6g}, expected {value:.6g} "
                f"within {atol + rtol * abs(value):.2g}. Mend the work, or give b.check "
                "an rtol or atol that it can meet."
            )


def _draw_rows(shape: tuple[int, ...], draw: np.random.Generator) -> NDArray[np.intp]:
    """Draw which rows of a result are kept, in order; all of a small one."""
    count = shape[0] if shape else 0
    enough = max(ROWS, -(-ELEMENTS // max(1, math.prod(shape[1:]))))
    return np.sort(draw.choice(count, min(enough, count), replace=False))


def _wrong(got: Array, wanted: Array, rtol: float, atol: float) -> NDArray[np.intp]:
    """Return the flat places where two arrays differ by more than allowed."""
    found = [
        part
        + np.flatnonzero(
            ~_close(
                got.reshape(-1)[part : part + CHUNK],
                wanted.reshape(-1)[part : part + CHUNK],
                rtol,
                atol,
            )
        )
        for part in range(0, got.size, CHUNK)
    ]
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _close(got: Array, wanted: Array, rtol: float, atol: float) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore", over="ignore"):
        exact = got.astype(np.float64)
        # Rounding what was expected cannot be wrong, be it to infinity or to 0.
        floating = got.dtype.kind == "f"
        close: NDArray[np.bool_] = got == (
            wanted.astype(got.dtype) if floating else wanted
        )
        if atol or rtol:
            near = np.abs(exact - wanted) <= atol + rtol * np.abs(wanted)
            close |= near & np.isfinite(wanted)
    close |= np.isnan(exact) & np.isnan(wanted)
    return close


@dataclass(frozen=True, slots=True)
class _Question:
    """A reference and what it is asked of; the same question has the same answer.

    ``data`` takes no part in comparing: recipes and seed say what it holds. Keeping the
    answer must not keep the buffers.
    """

    check: Check
    results: tuple[Handle, ...]
    handles: tuple[Handle, ...]
    seed: int
    data: weakref.ref[Buffers] = field(compare=False, repr=False)

    @classmethod
    def of(cls, description: Description, buffers: Buffers) -> Self:
        assert description.check is not None
        return cls(
            description.check,
            description.results,
            description.handles_of("input", "inout"),
            buffers.seed,
            weakref.ref(buffers),
        )


def _answer(question: _Question) -> tuple[Array, ...]:
    try:
        hash(question)
    except TypeError:  # its arguments hold a list or an array: asked anew each time
        return _reference.__wrapped__(question)
    return _reference(question)


@functools.lru_cache(maxsize=2)
def _reference(question: _Question) -> tuple[Array, ...]:
    """Call the reference on float64 copies of the case's data."""
    buffers = question.data()
    assert buffers is not None
    args = [_widened(buffers.pristine(value)) for value in question.check.args]
    try:
        with np.errstate(all="ignore"):
            found = question.check.function(*args)
            results = found if isinstance(found, (tuple, list)) else [found]
            wanted = tuple(map(_exact, results))
    except (Exception, SystemExit) as error:
        raise BenchmarkError(f"its reference raised {raised(error)}") from error
    shapes = [handle.shape for handle in question.results]
    if [array.shape for array in wanted] != shapes:
        raise BenchmarkError(
            f"its reference gave shapes {[array.shape for array in wanted]}; expected "
            f"{shapes}, the outputs and then the inouts as declared."
        )
    return wanted


def replay(
    launch: Callable[[int], None], buffers: Buffers, results: Sequence[Handle], n: int
) -> None:
    """Check ``n`` timed in-place launches against the same launches untimed.

    Raises:
        BenchmarkError: they left something else.
    """
    timed = {h.name: buffers.arrays[h.name].copy() for h in results}
    buffers.restore()
    launch(n)
    for handle in results:
        if not np.array_equal(timed[handle.name], buffers.arrays[handle.name]):
            equal = np.array_equal(
                timed[handle.name], buffers.arrays[handle.name], equal_nan=True
            )
            if not equal:
                raise BenchmarkError(
                    f"{n} timed launches left another {handle.name} than the same "
                    f"{n} launches untimed. Is all of the work done when it returns?"
                )


def _root_mean_square(values: Array) -> float:
    """Return it of the finite values, scaled so that no square overflows."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max(initial=0.0))
    if not largest:
        return 0.0
    return largest * float(np.sqrt(np.mean(np.square(finite / largest))))


def _exact(result: Any) -> Array:
    """Return float64, or whole numbers as they are: float64 has but 53 bits of them."""
    array = np.asarray(result)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _widened(value: Any) -> Any:
    """Copy arrays, also those in containers, floating-point ones to float64."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64 if value.dtype.kind == "f" else value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_widened, value))
    return value


def _epsilon(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
