"""Is the result right? Asked before a case is timed and of timed launches after."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from steelyard.declare import dtypes
from steelyard.declare.benchmark import Description, raised
from steelyard.declare.handles import Check, Handle, replaced
from steelyard.errors import BenchmarkError
from steelyard.prepare import answers, threads
from steelyard.prepare.answers import Rows
from steelyard.prepare.buffers import Buffers

Array = NDArray[Any]

ULPS: Final = 8
"""Default tolerance in units of the output dtype's epsilon, of each expected value and of
the root mean square of all: a result near zero carries the error of its summands."""

WIDER: Final = 4
"""How many times as wide tolerances are on new data: they were met, and often tried, on
the data of the runs. Of products 128 deep whose first result is right the default is
missed in one of ten launches on new data, by up to 1.3 (sums, dots: 2 once zero is near).
Work that is not done is off by all of a value."""

CHUNK: Final = 1 << 17
"""Elements that a thread compares at a time: their temporaries stay in a private cache,
and the kept rows are too few for a second thread."""

ROWS: Final = 64
"""Rows kept at least of each expected result, for outputs of timed launches."""

ELEMENTS: Final = 4096
"""Elements kept at least: a row of a one-dimensional result is one element."""

MOST: Final = 1 << 21
"""Elements kept at most, but for a row: 16 MiB, read from a file by each later block."""


class Expectation:
    """What the outputs of one launch should hold, whole once and in rows afterwards.

    Rows that are ``kept`` in a file of an earlier block stand for the whole: then the
    reference is not asked again.
    """

    def __init__(
        self,
        description: Description,
        buffers: Buffers,
        seed: int,
        kept: Path | None = None,
    ) -> None:
        self._results = description.results
        self._check = description.check
        self._file = kept
        self._whole: tuple[Array, ...] | None = None
        self._rows: tuple[Rows, ...] | None = None
        if description.check is None:
            return
        kept = description.check.rows or kept
        if kept is not None:
            self._rows = answers.kept(kept, [h.shape for h in self._results])
        if self._rows is None:
            self._whole = _answer(_Question.of(description, buffers))
            draw = np.random.default_rng(seed)
            self._rows = tuple(_some_rows(wanted, draw) for wanted in self._whole)

    @property
    def rows(self) -> tuple[Rows, ...]:
        """The rows of each result that are kept; none where there is no reference."""
        return self._rows or ()

    def check_all(self, buffers: Buffers) -> None:
        """Compare every element, then keep only some rows of what was expected.

        Where an earlier block did so, these rows are all that is compared.

        Raises:
            BenchmarkError: an element is off, or a buffer was left or written wrongly.
        """
        if self._whole is None or self._rows is None:
            self.check_rows(buffers)
            return
        self.check_buffers(buffers)
        for handle, wanted in zip(self._results, self._whole, strict=True):
            self._compare(handle, buffers.read(handle.name), wanted)
        self._whole = None
        if self._file is not None:
            answers.keep(self._file, self._rows)

    def check_rows(self, buffers: Buffers) -> None:
        """Compare the kept rows with what a timed launch left.

        Raises:
            BenchmarkError: as `check_all`.
        """
        self.check_buffers(buffers)
        for handle, rows in zip(self._results, self._rows or (), strict=False):
            indices = rows.indices if handle.shape else None
            got = buffers.rows(handle.name, indices)
            self._compare(handle, got, rows.wanted, rows.indices)

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

    def _compare(
        self,
        handle: Handle,
        got: Array,
        wanted: Array,
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        assert self._check is not None
        tolerances = _tolerances(self._check.rtol, self._check.atol, got, wanted)
        if said := _wrong(handle.name, got, wanted, tolerances, rows):
            raise BenchmarkError(
                f"{said}. Mend the work, or give b.check an rtol or atol that it can "
                "meet."
            )


def _wrong(
    name: str,
    got: Array,
    wanted: Array,
    tolerances: tuple[float, float],
    rows: NDArray[np.intp] | None = None,
) -> str:
    """Say how many elements are off by more than allowed, and what the worst holds."""
    rtol, atol = tolerances
    places = _places(got, wanted, rtol, atol)
    if not places.size:
        return ""
    left, right = got.reshape(-1)[places], wanted.reshape(-1)[places]
    with np.errstate(all="ignore"):
        off = np.abs(left.astype(np.float64) - right) - rtol * np.abs(right)
    worst = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    place = [int(i) for i in np.unravel_index(places[worst], got.shape)]
    if rows is not None and place:
        place[0] = int(rows[place[0]])
    held, value = float(left[worst]), float(right[worst])
    digits = 6 if f"{held:.6g}" != f"{value:.6g}" else 17  # all that there are
    allowed = atol + (rtol * abs(value) if math.isfinite(value) else 0.0)
    return (
        f"{name} is wrong in {places.size} of {got.size} elements: at {place} it holds "
        f"{held:.{digits}g}, expected {value:.{digits}g} within {allowed:.2g}"
    )


def expected_of(description: Description, data: Mapping[str, Array]) -> list[Array]:
    """Return what the reference makes of this data; nothing where there is none.

    Raises:
        BenchmarkError: it cannot be asked.
    """
    check = description.reference
    if check is None:
        return []
    args = [_widened(replaced(value, lambda h: data[h.name])) for value in check.args]
    return list(_asked(check, description.results, args))


def surely_right_on_new_data(
    got: Array, wanted: Array, tolerances: Sequence[float | None], typical: float
) -> bool:
    """Whether nothing of one result is wrong on any of several data: a quick look.

    They lie behind one another; none of them is allowed less than a ``typical`` one.
    """
    rtol, atol = tolerances
    epsilon = WIDER * ULPS * _epsilon(got.dtype)
    near = epsilon if rtol is None else WIDER * rtol
    least = epsilon * typical if atol is None else WIDER * atol
    return bool(_surely(got, wanted, near, least).all())


def wrong_on_new_data(
    got: Mapping[str, Array],
    wanted: Sequence[Array],
    rtol: float | None,
    atol: float | None,
    typical: Sequence[float],
) -> str:
    """Say which result of a launch on new data, over an older one, is wrong; or nothing.

    Results are in the order of the reference's; the root mean square of each on other
    data is ``typical``: a single sum near zero says nothing of its summands.
    """
    for (name, left), expected, size in zip(got.items(), wanted, typical, strict=True):
        one, other = _tolerances(rtol, atol, left, expected, size)
        if said := _wrong(name, left, expected, (WIDER * one, WIDER * other)):
            return (
                f"on new data, over an older result, {said}. Compute all of it in each "
                "launch, or give b.check an rtol or atol that the work can meet on any "
                "data."
            )
    return ""


def _tolerances(
    rtol: float | None, atol: float | None, got: Array, wanted: Array, least: float = 0
) -> tuple[float, float]:
    """Return the relative and the absolute one, as given or by default."""
    epsilon = ULPS * _epsilon(got.dtype)
    return (
        epsilon if rtol is None else rtol,
        epsilon * max(root_mean_square(wanted), least) if atol is None else atol,
    )


def _some_rows(wanted: Array, draw: np.random.Generator) -> Rows:
    """Draw which rows of a result are kept, in order; all of a small one."""
    shape = wanted.shape
    count = shape[0] if shape else 0
    width = max(1, math.prod(shape[1:]))
    enough = max(min(ROWS, MOST // width), -(-ELEMENTS // width))
    rows = np.sort(draw.choice(count, min(enough, count), replace=False))
    return Rows(rows, wanted[rows] if shape else wanted)


def _places(got: Array, wanted: Array, rtol: float, atol: float) -> NDArray[np.intp]:
    """Return the flat places where two arrays differ by more than allowed."""
    flat, expected = got.reshape(-1), wanted.reshape(-1)

    def found(part: int) -> NDArray[np.intp]:
        got, wanted = flat[part : part + CHUNK], expected[part : part + CHUNK]
        exact = not (rtol or atol)
        sure = np.zeros(got.shape, bool) if exact else _surely(got, wanted, rtol, atol)
        doubtful = np.flatnonzero(~sure)
        close = _close(got[doubtful], wanted[doubtful], rtol, atol)
        return part + doubtful[~close]

    parts = threads.each(found, range(0, got.size, CHUNK))
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


def _surely(got: Array, wanted: Array, rtol: float, atol: float) -> NDArray[np.bool_]:
    """Whether elements are finite and nearer than allowed: most are, and soon found."""
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - wanted)
        sure: NDArray[np.bool_] = off < atol + rtol * np.abs(wanted, dtype=np.float64)
    return sure


def _close(got: Array, wanted: Array, rtol: float, atol: float) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore", over="ignore"):
        exact = got.astype(np.float64)
        # Rounding what was expected cannot be wrong, be it to infinity or to 0.
        floating = dtypes.is_float(got.dtype)
        close: NDArray[np.bool_] = got == (
            wanted.astype(got.dtype) if floating else wanted
        )
        if atol or rtol:
            # Of the least integer the magnitude is no integer of its type.
            size = np.abs(wanted, dtype=np.float64)
            near = np.abs(exact - wanted) <= atol + rtol * size
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
    return _asked(question.check, question.results, args)


def _asked(
    check: Check, results: Sequence[Handle], args: Sequence[Any]
) -> tuple[Array, ...]:
    """Call a reference and look at the shapes of what it gives."""
    assert check.function is not None
    try:
        with np.errstate(all="ignore"):
            found = check.function(*args)
            several = found if isinstance(found, (tuple, list)) else [found]
            wanted = tuple(map(_exact, several))
    except (Exception, SystemExit) as error:
        raise BenchmarkError(f"its reference raised {raised(error)}") from error
    shapes = [handle.shape for handle in results]
    if [array.shape for array in wanted] != shapes:
        raise BenchmarkError(
            f"its reference gave shapes {[array.shape for array in wanted]}; expected "
            f"{shapes}, the outputs and then the inouts as declared."
        )
    for array in wanted:
        if array.dtype.kind == "f" and array.size and np.isnan(array).all():
            raise BenchmarkError(
                "its reference gave nothing but NaN, which any wrong result may be too. "
                "Give inputs of which it makes numbers."
            )
    return wanted


def replay(
    launch: Callable[[int], None], buffers: Buffers, results: Sequence[Handle], n: int
) -> None:
    """Check ``n`` timed in-place launches against the same launches untimed.

    Raises:
        BenchmarkError: they left something else.
    """
    timed = buffers.snapshot()
    buffers.restore()
    launch(n)
    for handle in results:
        if not buffers.same_as({handle.name: timed[handle.name]}):
            raise BenchmarkError(
                f"{n} timed launches left another {handle.name} than the same {n} "
                "launches untimed. Is all of the work done when it returns?"
            )


def root_mean_square(values: Array) -> float:
    """Return it of the finite values, scaled so that no square overflows."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max(initial=0.0))
    if not largest:
        return 0.0
    return largest * float(np.sqrt(np.mean(np.square(finite / largest))))


def _exact(result: Any) -> Array:
    """Return float64, or whole numbers as they are: float64 has but 53 bits of them."""
    array = np.asarray(result)
    if array.dtype.kind == "c":
        raise TypeError(f"expected real numbers, it returned {array.dtype}")
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _widened(value: Any) -> Any:
    """Copy arrays, also those in containers, floating-point ones to float64."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64 if dtypes.is_float(value.dtype) else value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_widened, value))
    return value


def _epsilon(dtype: np.dtype[Any]) -> float:
    return float(dtypes.limits(dtype).eps) if dtypes.is_float(dtype) else 0.0
