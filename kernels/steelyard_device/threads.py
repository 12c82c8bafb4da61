"""Values made once a process by whichever thread comes first, and forks that wait.

A forked child has one thread. A lock that another thread held at the fork would never be
released there, and a compiler that was interrupted would never go on. So a fork waits
for what is being made or compiled, here and in llvmlite.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

LOCK: Final = threading.RLock()
"""Held while something of the process is made or changed: one lock, so that no two
threads can wait for each other, and a fork finds it free."""

_HELD: Final[list[Any]] = []
_IDLE: Final = threading.Condition()
_COMPILING: Final[Counter[int]] = Counter()
"""Compilations under way outside `LOCK`, by thread."""


class Once(Generic[T]):
    """A function whose results are made once and remembered, by its arguments.

    Unlike ``functools.cache`` it never makes one twice when threads ask together: with
    the one that is not remembered, its memory would be freed while it is used.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self.__wrapped__ = function
        functools.update_wrapper(self, function)
        self._made: dict[tuple[object, ...], T] = {}

    def __call__(self, *key: Any) -> T:
        """Return the remembered result, or make it; what is raised is not remembered."""
        try:
            return self._made[key]
        except KeyError:
            pass
        with LOCK:
            if key not in self._made:
                self._made[key] = self.__wrapped__(*key)
            return self._made[key]

    def made(self) -> tuple[T, ...]:
        """Return the results so far, without making one."""
        return tuple(self._made.values())

    def cache_clear(self) -> None:
        """Forget all results."""
        self._made.clear()


@contextmanager
def compiling() -> Iterator[None]:
    """Have forks of other threads wait for a compilation that needs no lock of ours."""
    thread = threading.get_ident()
    with _IDLE:
        _COMPILING[thread] += 1
    try:
        yield
    finally:
        with _IDLE:
            _COMPILING[thread] -= 1
            if not _COMPILING[thread]:
                del _COMPILING[thread]
            _IDLE.notify_all()


def held_at_fork(lock: AbstractContextManager[Any, Any]) -> None:
    """Have forks wait for a lock too; whoever holds it must not take `LOCK`."""
    _HELD.append(lock)


def _before_fork() -> None:
    while True:
        LOCK.acquire()
        _IDLE.acquire()
        if not _COMPILING.keys() - {threading.get_ident()}:
            break
        LOCK.release()  # who compiles may need it to finish
        _IDLE.wait()
        _IDLE.release()
    for lock in _HELD:
        lock.__enter__()


def _after_fork() -> None:
    for lock in reversed(_HELD):
        lock.__exit__(None, None, None)
    _IDLE.release()
    LOCK.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
)
