"""What a GPU was measured to do at most, and what share of that a launch reached.

The table of a GPU, as it is kept and as a run stores it::

    {
      "method": 1,
      "clock": "cupti",
      "uncertainty": 20.0,
      "drift": 0.0,
      "copy": {"warm": {"65536": 1180.0, ...}, "cold": {...}},
      "rates": {"float16": {"tensor": 7.1e14, "fma": 1.2e14}, ...}
    }

``copy`` has the nanoseconds of the best copy by the bytes that it reads and writes;
``rates`` the operations per second of each dtype by the units that do them. The clock's
``uncertainty`` is in nanoseconds of any copy, its ``drift`` a share of any time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

METHOD: Final = 1
"""Raised whenever peaks are measured in another way: kept ones are measured again."""

COPY: Final = "copy"

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peak:
    """How near a launch came to what its machine can do."""

    share: float
    """Of the bound it is nearest to."""
    bound: str
    """``copy``, or a dtype with the units that compute it: ``float16 tensor``."""
    error: float = 0.0
    """Share of the bound by which the clock that read it may be wrong."""


def nearest(
    table: Table,
    nanoseconds: float,
    *,
    cache: str,
    nbytes: float = 0,
    operations: float = 0,
    dtype: str = "",
) -> Peak | None:
    """Return the bound that a launch of this time is nearest to.

    Bytes are held against the best copy of as many bytes in the same state of the
    cache, operations against the fastest units for the dtype. None where neither is
    known, as below the least size that was copied.
    """
    if not nanoseconds > 0:
        return None
    found = []
    drift = table.get("drift", 0.0)
    times = table.get(COPY, {}).get(cache, {})
    if times and nbytes >= min(map(int, times)):
        copied = _copied(times, nbytes)
        error = drift + table.get("uncertainty", 0.0) / copied
        found.append(Peak(copied / nanoseconds, COPY, error))
    rates = table.get("rates", {}).get(dtype, {})
    if operations and rates:
        units = max(rates, key=lambda name: float(rates[name]))
        share = operations / nanoseconds * 1e9 / rates[units]
        found.append(Peak(share, f"{dtype} {units}", drift))
    return max(found, key=lambda peak: peak.share, default=None)


def _copied(times: Mapping[str, float], nbytes: float) -> float:
    """Return the nanoseconds of the best copy of so many bytes.

    Between two sizes as a power of the size; above the largest its rate stays.
    """
    known = sorted((int(size), float(time)) for size, time in times.items())
    largest, longest = known[-1]
    if nbytes >= largest:
        return longest * nbytes / largest
    for (size, time), (beyond, later) in itertools.pairwise(known):
        if nbytes <= beyond:
            part = math.log(nbytes / size) / math.log(beyond / size)
            return float(time * (later / time) ** part)
    raise AssertionError(nbytes)
