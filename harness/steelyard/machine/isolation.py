"""Keep what a case changes of its process from the cases after it.

What an import changes holds for the cases of that file; what a case changes, and so
prepares for itself, ends with its turn. Parts that cannot be put back are named, so that
the process is replaced.
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import locale
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import setitem
from typing import Any, Final, TypeVar

Made = TypeVar("Made")

LIBRARIES: Final = {*sys.stdlib_module_names, "numpy", "psutil", "steelyard"}
"""Packages of which no function may be another after a turn."""

LIMITS: Final = [getattr(resource, name) for name in dir(resource) if "RLIMIT_" in name]

STREAMS: Final = (
    *((sys, name) for name in ("stdin", "stdout", "stderr", "displayhook")),
    *((sys, name) for name in ("excepthook", "unraisablehook")),
    (threading, "excepthook"),
)

TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

OURS: Final = frozenset({"CUDA_CACHE_DISABLE"})
"""Variables that the device layer sets when it is first used."""

FEW: Final = 5
"""Patched functions that are named."""

FENV: Final = 64
"""Bytes that hold any machine's floating-point environment (fenv.h)."""

UNCHANGED: Final = (dict.fromkeys(("divide", "over", "invalid"), "warn"), None, 8192)
"""NumPy's answers to errors and its buffer when it has just been imported."""

TINY: Final = (5e-324, 1e-310)
"""Zero where numbers below the normal ones are flushed."""


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a process: how it is read, and put back."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    quiet: bool = False
    """Whether it changes by ordinary use, which nobody needs to be told of."""


def _together(*pairs: tuple[Callable[[], Any], Callable[[Any], object]]) -> Property:
    """Return a property of several parts, each with what reads and what writes it."""

    def write(wanted: Sequence[Any]) -> None:
        for (_, put), value in zip(pairs, wanted, strict=True):
            put(value)

    return Property(lambda: tuple(read() for read, _ in pairs), write)


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 # text compares at once
    except OSError:
        return ""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OURS}


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys() - OURS:
        del os.environ[name]
    os.environ.update(wanted)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(wanted: Mapping[int, Any]) -> None:
    for number, handler in wanted.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _set_timers(wanted: list[bool]) -> None:
    for which, runs in zip(TIMERS, wanted, strict=True):
        if not runs:
            signal.setitimer(which, 0)


def _standard() -> list[tuple[int, int, bool] | None]:
    """Return which files have the numbers of standard streams, and whether these are shut."""
    found: list[tuple[int, int, bool] | None] = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            file = os.fstat(number)
        except OSError:
            found.append(None)
        else:
            shut = getattr(getattr(sys, name), "closed", False)
            found.append((file.st_dev, file.st_ino, shut))
    return found


def _set_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index] # a list in all versions
    warnings._filters_mutated()  # type: ignore[attr-defined] # noqa: SLF001 # or modules keep what they decided by


def _random() -> tuple[Any, ...]:
    if (numpy := sys.modules.get("numpy")) is None:
        return random.getstate(), None
    state: Any = numpy.random.get_state(legacy=False)
    inner = {
        n: getattr(v, "tolist", lambda v=v: v)() for n, v in state["state"].items()
    }
    return random.getstate(), {**state, "state": inner}


def _set_random(wanted: tuple[Any, ...]) -> None:
    random.setstate(wanted[0])
    if wanted[1] is not None:
        sys.modules["numpy"].random.set_state(wanted[1])


def _floats() -> tuple[int, bool, _Hidden]:
    saved = ctypes.create_string_buffer(FENV)
    _maths().fegetenv(saved)
    return _maths().fegetround(), all(one * 1.0 for one in TINY), _Hidden(saved.raw)


class _Hidden(bytes):
    """Bytes that are kept and not compared: flags of earlier operations are in them."""

    __slots__ = ()
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hidden)


def _maths() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")


def _threads_of_torch() -> int | None:
    torch = sys.modules.get("torch")
    return getattr(torch, "get_num_threads", lambda: None)()


def _set_threads_of_torch(wanted: int | None) -> None:
    if wanted is not None:
        sys.modules["torch"].set_num_threads(wanted)


def _numpys_errors() -> tuple[Any, ...]:
    if (numpy := sys.modules.get("numpy")) is None:
        return UNCHANGED
    errors = {name: how for name, how in numpy.geterr().items() if how != "ignore"}
    return errors, numpy.geterrcall(), numpy.getbufsize()


def _set_numpys_errors(wanted: tuple[Any, ...]) -> None:
    numpy = sys.modules["numpy"]
    numpy.seterr(**({"all": "ignore"} | wanted[0]))
    numpy.seterrcall(wanted[1])
    numpy.setbufsize(wanted[2])


def _decimals() -> tuple[Any, ...]:
    now = decimal.getcontext()
    traps = [one for one, on in now.traps.items() if on]
    limits = now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp
    return *limits, [], traps


PROPERTIES: Final[Mapping[str, Property]] = {
    # First: only its rights put the others back.
    "user": _together(
        (os.getresuid, lambda v: os.setresuid(*v)),
        (os.getresgid, lambda v: os.setresgid(*v)),
    ),
    # Before what is computed with it.
    "floating point": Property(_floats, lambda v: _maths().fesetenv(bytes(v[2]))),
    "current folder": Property(_folder, os.chdir),
    "environment": Property(_environment, _set_environment),
    "locale": Property(
        partial(locale.setlocale, locale.LC_ALL),
        partial(locale.setlocale, locale.LC_ALL),
    ),
    "NumPy's errors": Property(_numpys_errors, _set_numpys_errors),
    "processors": Property(
        partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)
    ),
    "niceness": Property(
        partial(os.getpriority, os.PRIO_PROCESS, 0),
        partial(os.setpriority, os.PRIO_PROCESS, 0),
    ),
    "scheduling": Property(
        lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
        lambda v: os.sched_setscheduler(0, v[0], os.sched_param(v[1])),
    ),
    "umask": Property(_umask, os.umask),
    "limits": _together(
        *(
            (partial(resource.getrlimit, which), partial(resource.setrlimit, which))
            for which in LIMITS
        )
    ),
    # Before handlers: without its own, a timer's next signal ends the process.
    "timers": Property(
        lambda: [signal.getitimer(one) != (0.0, 0.0) for one in TIMERS], _set_timers
    ),
    "signal handlers": Property(_handlers, _set_handlers),
    "blocked signals": Property(
        partial(signal.pthread_sigmask, signal.SIG_BLOCK, ()),
        partial(signal.pthread_sigmask, signal.SIG_SETMASK),
    ),
    "sys.path": Property(
        lambda: list(sys.path), lambda v: setitem(sys.path, slice(None), v)
    ),
    # Nothing puts these back: what was opened since may have their numbers.
    "standard input and output": Property(_standard, lambda _: None),
    "streams and hooks": _together(
        *((partial(getattr, *one), partial(setattr, *one)) for one in STREAMS)
    ),
    "tracing": _together(
        (sys.gettrace, sys.settrace), (sys.getprofile, sys.setprofile)
    ),
    "the interpreter's limits": _together(
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (sys.getswitchinterval, sys.setswitchinterval),
    ),
    "the filters of warnings": Property(
        lambda: list(warnings.filters), _set_filters, quiet=True
    ),
    "garbage collector": _together(
        (gc.isenabled, lambda on: (gc.enable if on else gc.disable)()),
        (gc.get_threshold, lambda v: gc.set_threshold(*v)),
        (gc.get_debug, gc.set_debug),
        (
            lambda: gc.get_freeze_count() > 0,
            lambda frozen: None if frozen else gc.unfreeze(),
        ),
    ),
    "random numbers": Property(_random, _set_random, quiet=True),
    "decimal context": Property(
        _decimals, lambda v: decimal.setcontext(decimal.Context(*v))
    ),
    "PyTorch's threads": Property(_threads_of_torch, _set_threads_of_torch),
}


State = Mapping[str, Any]


def state() -> State:
    """Return every property as it is now."""
    return {name: one.read() for name, one in PROPERTIES.items()}


def put_back(wanted: State) -> list[str]:
    """Make each property what it was; return those that cannot be."""
    left = []
    for name, one in PROPERTIES.items():
        if one.read() != wanted[name]:
            with suppress(Exception):  # of another user's rights, or of its own making
                one.write(wanted[name])
            if one.read() != wanted[name]:
                left.append(name)
    return left


@contextmanager
def intact() -> Iterator[None]:
    """Put back what imports of suites change of a command's process, but its modules."""
    before = state()
    try:
        yield
    finally:
        added = [place for place in sys.path if place not in before["sys.path"]]
        put_back({**before, "sys.path": before["sys.path"] + added})


class Patches:
    """The modules of libraries, their functions and their classes, which stay the same."""

    def __init__(self) -> None:
        self._modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in LIBRARIES
        }
        self._known = [
            (vars(module), name, value)
            for module in self._modules.values()
            for name, value in list(vars(module).items())
            if callable(value)
        ]

    def undo(self) -> list[str]:
        """Put back what was replaced, and name it."""
        found = [one for one in self._known if one[0].get(one[1]) is not one[2]]
        for place, name, value in found:
            place[name] = value
        known, now = self._modules, sys.modules
        gone = [name for name in known if now.get(name) is not known[name]]
        for name in gone:
            now[name] = known[name]
        return [
            *(f"{place.get('__name__')}.{name}" for place, name, _ in found),
            *(f"sys.modules[{name!r}]" for name in gone),
        ]


class Isolation:
    """Keeps the cases of one process apart."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._imported: dict[str, State] = {}
        self.replaced: dict[str, list[str]] = {}  # by a file's import, and put back
        self.spent: list[str] = []
        """What this process cannot get back: it should be replaced."""
        self._begun: State | None = None

    def begin(self, file: str) -> None:
        """Begin a turn of several requests, which are timed: `end` is asked for later."""
        self._begun = state()
        put_back(self._imported.get(file, self._begun))

    def end(self) -> None:
        """Put back what was changed since a turn was begun, if one was."""
        if self._begun is not None:
            self._patches.undo()
            self.spent += put_back(self._begun)
            self._begun = None

    def imported(self, file: str, load: Callable[[], Made]) -> Made:
        """Import a file; what that changes holds for its own cases alone."""
        if file in self._imported:
            return load()
        before = state()
        try:
            return load()
        finally:
            self._imported[file] = state()
            self.replaced[file] = self._patches.undo()
            self.spent += put_back(before)

    @contextmanager
    def turn(self, file: str) -> Iterator[list[str]]:
        """Give a case what its file's import made of the process.

        The list names what the case changed, once the context has ended.
        """
        base = before = state()
        if file in self._imported:
            put_back(self._imported[file])
            before = state()
        changed: list[str] = []
        try:
            yield changed
        finally:
            patched = self._patches.undo()
            after = state()
            changed += (
                name
                for name, one in PROPERTIES.items()
                if not one.quiet and after[name] != before[name]
            )
            changed += patched[:FEW]
            self.spent += put_back(base)
