"""Quantities for people: SI units, four significant figures at most."""

from __future__ import annotations

import math
from typing import Final

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_ENERGIES = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

NOTHING: Final = "-"
"""What stands where there is no number."""


def figures(value: float, count: int = 4) -> str:
    """Write ``value`` with ``count`` significant figures and no exponent."""
    if not math.isfinite(value):
        return str(value)
    digits = count if value == 0 else count - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, min(digits, 9))}f}"


def duration(nanoseconds: float, count: int = 4) -> str:
    """Write a duration: ``3.200 us``."""
    for scale, unit in _TIMES:
        if abs(nanoseconds) >= scale:
            return f"{figures(nanoseconds / scale, count)} {unit}"
    tiny = abs(nanoseconds) < 0.0005  # what rounding leaves of nothing
    return f"{figures(0 if tiny else nanoseconds, 3)} ns"


def left(taken: float, done: int, rest: int, budget: float | None = None) -> str:
    """Write how long ``rest`` turns take if they go on as those ``done``: ``, about 3 s left``.

    Nothing while none is done. ``taken`` is in seconds, as is the ``budget``, which may
    end before.
    """
    if not done:
        return ""
    most = math.inf if budget is None else budget - taken
    seconds = max(0.0, min(taken * rest / done, most))
    about = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    return f", about {about} left"


def count(number: int, what: str) -> str:
    """Write a number of things: ``1 case``, ``2 cases``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(count: float) -> str:
    """Write a number of bytes in binary units: ``48.0 MiB``."""
    for scale, unit in _SIZES:
        if count >= scale:
            return f"{figures(count / scale, 3)} {unit}"
    return f"{count:.0f} B"


def rate(per_second: float, unit: str) -> str:
    """Write a rate in decimal units: ``4.200 TB/s``."""
    for scale, prefix in _PREFIXES:
        if per_second >= scale:
            return f"{figures(per_second / scale)} {prefix}{unit}/s"
    return f"{figures(per_second)} {unit}/s"


def energy(joules: float) -> str:
    """Write an energy: ``12.40 mJ``."""
    for scale, unit in _ENERGIES:
        if abs(joules) >= scale:
            return f"{figures(joules / scale)} {unit}"
    return f"{figures(joules * 1e9)} nJ"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with its sign: ``+1.25 %``."""
    return f"{100 * fraction:+.2f} %"
