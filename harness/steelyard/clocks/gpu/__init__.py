"""The clocks that read kernels on a GPU: one a file, named like the clock's id.

A file's ``CLOCK`` is its `Kind`. Packages add clocks as entry points of `GROUP`, whose
names are ids and whose values name a `Kind`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from steelyard.analyse.trial import Traits
from steelyard.errors import SteelyardError
from steelyard_device.entries import entry_points

if TYPE_CHECKING:
    from steelyard.clocks import DeviceClock
    from steelyard_device import cuda

GROUP: Final = "steelyard.clocks"

BEST: Final = ("auto", "all")
"""The most trusted clock with one to check it, and every clock there is."""


def _always() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Kind:
    """A clock that can be made for a GPU."""

    make: Callable[[cuda.Context], DeviceClock]
    rank: int
    """Less for a clock that is trusted more."""
    traits: Traits
    missing: Callable[[], str | None] = _always
    """Returns why it cannot be used here, or None."""


def own() -> tuple[str, ...]:
    """Return the ids of the clocks that come with this package; none is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def names() -> tuple[str, ...]:
    """Return the ids of all clocks: every installed distribution is read."""
    return tuple(sorted({*own(), *(p.name for p in entry_points(GROUP))}))


@functools.cache
def kind(name: str) -> Kind:
    """Return the clock of an id."""
    if name in own():
        found = import_module(f"{__name__}.{name}").CLOCK
    else:
        (point,) = [each for each in entry_points(GROUP) if each.name == name]
        found = point.load()
    assert isinstance(found, Kind)
    return found


def known(name: str) -> str:
    """Return the id of a clock, or ``auto`` or ``all``.

    Raises:
        SteelyardError: there is no such clock.
    """
    if name not in (*own(), *BEST) and name not in names():
        choices = ", ".join((*names(), *BEST))
        raise SteelyardError(f"there is no clock {name}: choose one of {choices}.")
    return name


def clocks(context: cuda.Context, which: str) -> tuple[DeviceClock, ...]:
    """Return the clock of an id, the two most trusted ones, or ``all`` there are.

    Of two the second checks the first.

    Raises:
        SteelyardError: there is no such clock, or it cannot be used here.
    """
    if known(which) not in BEST:
        if missing := kind(which).missing():
            raise SteelyardError(f"--clock {which} cannot be used: {missing}")
        return (kind(which).make(context),)
    here = [each for each in map(kind, names()) if not each.missing()]
    here.sort(key=lambda each: each.rank)
    return tuple(each.make(context) for each in (here if which == "all" else here[:2]))
