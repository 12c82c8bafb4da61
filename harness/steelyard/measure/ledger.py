"""Where the time of one call went.

Each part is measured on its own, next to the whole and in the same state of the
machine; what the parts do not explain is a part too. docs/rows.md has those of a latency.
The time of ``build/first`` has parts too, told by the fresh process itself:

====================  =============================================================
``interpreter``       from the start of the process to the first line of ours
``import``            of the benchmark's file and all that it imports
``first kernel``      building and launching it once; on a GPU instead:
``context``           loading the driver and making the GPU ready
``first allocation``  of 1 MiB
``first copy``        of 1 MiB to the GPU
``build``             from the traced function to a cubin; nothing for plain callables
``module load``       of that cubin
``first launch``      and waiting for it
``second launch``     and waiting for it
====================  =============================================================

A plain callable cannot be looked into: all its time is ``kernel``, but for the Python
call around nothing, its ``submit``.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final

from numpy.typing import NDArray

from steelyard.declare.benchmark import Description
from steelyard.prepare.buffers import Buffers
from steelyard.prepare.work import (
    Bindable,
    CallableWork,
    NativeWork,
    Work,
    allocator,
    calling,
)

PARTS: Final[tuple[str, ...]] = (
    "allocate",
    "first_touch",
    "pack",
    "submit",
    "kernel",
    "synchronise",
)
SECOND: Final = "second kernel"
"""No part of ``build/first``, told beside it: the same build again, in a process that
has built before. Everything else that a fresh process tells is one."""

WINDOWS: Final = 15
FEWEST: Final = 3
LONGEST: Final = 200_000_000
"""Nanoseconds after which a slow part is not measured again."""
PAGE: Final = 4096


def parts(
    description: Description, buffers: Buffers, work: Work, *, allocated: bool
) -> dict[str, float]:
    """Return the nanoseconds per call of each part."""
    found: dict[str, float] = {}
    if allocated:
        found |= _allocation(description)
    if isinstance(work, NativeWork):
        found |= _native(description, buffers, work)
    else:
        found["submit"] = per_call(CallableWork(lambda: None).launch)
        whole = per_call(work.launch, before=buffers.restore)
        found["kernel"] = whole - found["submit"]
    return found


def close(found: dict[str, float], total: float) -> dict[str, float]:
    """Complete the ledger of a call that took ``total`` nanoseconds."""
    known = {name: found[name] for name in PARTS if name in found}
    return {**known, "untracked": total - sum(known.values())}


def first(starts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Return the parts (ns) of the process whose first kernel took the median time."""
    median = sorted(starts, key=whole)[len(starts) // 2]
    return {name: float(took) for name, took in median.items() if name != SECOND}


def whole(start: Mapping[str, int]) -> int:
    """Return the nanoseconds of all parts of a fresh process."""
    return sum(took for name, took in start.items() if name != SECOND)


def per_call(
    run: Callable[[int], Any], before: Callable[[], None] = lambda: None
) -> float:
    """Return the median nanoseconds per call of ``run(count)`` over a few windows.

    ``before`` each window in-place arguments are given their data again. Windows last
    at least 20 us, so that reading the clock is less than 0.5 % of them.
    """
    count = 1
    while True:
        times = _windows(run, count, before)
        if min(times) >= 20_000 or count >= 1 << 16:
            return statistics.median(times) / count
        count *= 4


def _windows(
    run: Callable[[int], Any], count: int, before: Callable[[], None]
) -> list[int]:
    times: list[int] = []
    while len(times) < FEWEST or (len(times) < WINDOWS and sum(times) < LONGEST):
        times.append(_window(run, count, before))
    return times


def _window(run: Callable[[int], Any], count: int, before: Callable[[], None]) -> int:
    before()
    start = perf_counter_ns()
    run(count)
    return perf_counter_ns() - start


def _allocation(description: Description) -> dict[str, float]:
    fresh = [allocator(h) for h in description.handles_of("output")]
    kept = [one() for one in fresh]

    def allocate(count: int) -> None:
        for _ in range(count):
            for one in fresh:
                one()

    def touch_new(count: int) -> None:
        for _ in range(count):
            for one in fresh:
                _touch(one())

    def touch_kept(count: int) -> None:
        for _ in range(count):
            for array in kept:
                _touch(array)

    alone = per_call(allocate)
    faults = per_call(touch_new) - alone - per_call(touch_kept)
    return {"allocate": alone, "first_touch": max(0.0, faults)}


def _touch(array: NDArray[Any]) -> None:
    array.reshape(-1).view("u1")[::PAGE] = 0


def _native(
    description: Description, buffers: Buffers, work: NativeWork
) -> dict[str, float]:
    nothing = work.null()
    fork_join = _native_window(nothing, lambda: None)
    found = {
        "submit": max(0.0, per_call(CallableWork(nothing.launch).launch) - fork_join),
        "synchronise": fork_join,
        "kernel": _native_window(work, buffers.restore) - fork_join,
    }
    target = description.call.target
    if isinstance(target, Bindable):
        bound = calling(description, buffers)
        bind = CallableWork(target.bind, *bound.args, **bound.keywords)
        found["pack"] = per_call(bind.launch)
    return found


def _native_window(work: NativeWork, before: Callable[[], None]) -> float:
    def run(count: int) -> None:
        work.window(count)

    return per_call(run, before)


PYTHON: Final = "python"

POINTER: Final[Any] = ctypes.CFUNCTYPE(None).__mro__[1]
"""The class of all functions of ctypes, which has no public name."""

HARMLESS: Final = frozenset(
    {
        *(None, ctypes.c_bool, ctypes.c_byte, ctypes.c_ubyte, ctypes.c_short),
        *(ctypes.c_ushort, ctypes.c_int, ctypes.c_uint, ctypes.c_long, ctypes.c_ulong),
        *(ctypes.c_longlong, ctypes.c_ulonglong, ctypes.c_float, ctypes.c_double),
    }
)
"""Types of results that may hold anything."""


def call_floor(bound: CallableWork) -> tuple[str, float]:
    """Return the kind of a callable, and the nanoseconds of calling an empty one.

    Nobody can have a callable's own work without its call. An empty callable of the same
    kind and signature takes what the call takes: for ctypes' functions one of C, for
    Numba's one that Numba compiled, else one of Python. Others written in C, such as
    NumPy's universal functions, look at their arguments in ways that an empty one need
    not: of these the floor is the least there is.
    """
    function, args, keywords = bound.called
    kind, empty = _empty(function, args, keywords)
    return kind, per_call(CallableWork(empty, *args, **keywords).launch)


def _empty(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[str, Callable[..., Any]]:
    plain = _python(len(args), tuple(keywords))
    with suppress(Exception):  # of an odd signature: then a Python function's is known
        if (
            isinstance(function, POINTER)
            and getattr(function, "restype", 0) in HARMLESS
        ):
            return "ctypes", _of_ctypes(function)
        if type(function).__module__.startswith("numba.core"):
            return "numba", _of_numba(plain, args, keywords)
    return PYTHON, plain


@functools.cache
def _python(count: int, names: Sequence[str]) -> Callable[..., Any]:
    """Return an empty function with so many arguments and these keywords."""
    if not all(name.isidentifier() for name in names):
        return lambda *_, **__: None
    listed = ", ".join([f"_{index}" for index in range(count)] + list(names))
    found: dict[str, Any] = {}
    exec(f"def empty({listed}): pass", found)  # noqa: S102 # of names alone
    made: Callable[..., Any] = found["empty"]
    return made


def _of_ctypes(function: Any) -> Callable[..., Any]:
    """Return a function of C that looks at one number, called as another is."""
    place = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
    made = type(function)(place)
    made.restype, made.argtypes = function.restype, function.argtypes
    return made  # type: ignore[no-any-return] # it is one


_COMPILED: dict[tuple[Any, ...], Callable[..., Any]] = {}


def _of_numba(
    plain: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return an empty function that Numba has compiled for the same types."""
    numba = sys.modules["numba"]
    values = [*args, *keywords.values()]
    key = (plain, *(str(numba.typeof(value)) for value in values))
    if key not in _COMPILED:
        compiled = numba.njit(plain)
        compiled(*args, **keywords)
        _COMPILED[key] = compiled
    return _COMPILED[key]
