"""What a call costs that does nothing: the floor of a Python callable.

Nobody can have a callable's own work without its call. An empty callable of the same
kind and signature takes what the call takes: for ctypes' functions one of C, for Numba's
one that Numba compiled, else one of Python. Others written in C, such as NumPy's
universal functions, look at their arguments in ways that an empty one need not: of these
the floor is the least there is.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from steelyard.measure import ledger
from steelyard.prepare.work import CallableWork

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


def floor(bound: CallableWork) -> tuple[str, float]:
    """Return the kind of a callable, and the nanoseconds of calling an empty one."""
    function, args, keywords = bound.called
    kind, empty = _empty(function, args, keywords)
    return kind, ledger.per_call(CallableWork(empty, *args, **keywords).launch)


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
