"""Equal launches that wait for nothing of one another, as one launch side by side.

A GPU's kernel that is not long begins and ends with idle multiprocessors, a CPU's with
threads that wait. Three products of one shape (a layer's queries, keys and values) or four
sums for biases are one grid with a row of blocks for each, or one fork and join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from steelyard_kernels.expression.structure import structure
from steelyard_kernels.plan.launches import Home, Launch

MOST: Final = 8
"""Copies of one launch: each has arguments of its own, of some hundred bytes."""


def abreast(launches: Iterable[Launch], updates: Mapping[str, str]) -> list[Launch]:
    """Return launches in order, equal ones together at the place of the first.

    `updates` maps an output's name to that of the input which it overwrites.
    """
    found: list[list[Launch]] = []
    alike: dict[object, list[int]] = {}
    wrote: dict[Home, int] = {}  # the last place that writes an array, or reads it
    read: dict[Home, int] = {}

    said = cache(structure)  # most launches have a program that others have

    def home(each: Home) -> Home:
        return updates.get(each, each) if isinstance(each, str) else each

    for launch in launches:
        into, of = map(home, launch.writes), [*map(home, launch.reads)]
        written = list(into)
        before = [wrote.get(each, -1) for each in (*of, *written)]
        before += [read.get(each, -1) for each in written]
        same = alike.setdefault(said(launch.program), [])
        free = [n for n in same if n > max(before) and len(found[n]) < MOST]
        place = free[0] if free else len(found)
        if not free:
            same.append(place)
            found.append([])
        found[place].append(launch)
        wrote |= dict.fromkeys(written, place)
        read |= {each: max(place, read.get(each, -1)) for each in of}
    return [_together(each) for each in found]


def _together(launches: Sequence[Launch]) -> Launch:
    """Return equal launches as one."""
    first = launches[0]
    if len(launches) == 1:
        return first
    return Launch(
        replace(first.program, copies=len(launches)),
        tuple([home for each in launches for home in each.reads]),
        tuple([home for each in launches for home in each.writes]),
        f"{len(launches)} side by side: {first.reason}",
    )
