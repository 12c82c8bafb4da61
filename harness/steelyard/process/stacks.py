"""Stacks of a program that others sampled: what py-spy, perf and flame graphs write. Pure.

Read are Speedscope's JSON (https://www.speedscope.app/file-format-schema.json), what `perf
script` prints, and folded lines (``main;work;inner 12``, outermost first).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from steelyard.machine.decoding import Malformed, Within, checked, parsed

SPEEDSCOPE: Final = b"speedscope.app/file-format-schema"

DEEPEST: Final = 300
"""Functions of a stack that are kept, the outermost: recursion has more."""

MOST: Final = 2_000_000
"""Samples of a file."""

UNITS: Final = {
    "seconds": 1e9,
    "milliseconds": 1e6,
    "microseconds": 1e3,
    "nanoseconds": 1.0,
}
"""Nanoseconds of Speedscope's units of time; it has others."""

FOLDED: Final = re.compile(r"(\S.*) (\d{1,15}(?:\.\d{1,9})?)")
SYMBOL: Final = re.compile(r"\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \(.*\)")
"""A function of `perf script`: its address, name, offset, and the file it lies in."""

OURS: Final = re.compile(r"\brunpy\b|\battached\.py\b")
"""What runs an attached program, outside of it."""

RUN: Final = re.compile(r"\b_run\b.*\battached\.py\b")
"""What is outside of the program, and of no import of ours."""

Stack = tuple[str, ...]
"""Names of functions, the outermost first."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """How long each stack was seen."""

    weights: Mapping[Stack, float]
    timed: bool
    """Whether weights are nanoseconds; else they are counts of samples."""

    @property
    def total(self) -> float:
        """Return all that was seen."""
        return sum(self.weights.values())

    def functions(self) -> list[tuple[str, float, float]]:
        """Return each function's own weight and that of all within it, longest own first."""
        own: dict[str, float] = defaultdict(float)
        within: dict[str, float] = defaultdict(float)
        for stack, weight in self.weights.items():
            own[stack[-1]] += weight
            for name in set(stack):
                within[name] += weight
        every = [(name, own[name], total) for name, total in within.items()]
        return sorted(every, key=lambda one: (-one[1], -one[2], one[0]))


class _Frame(TypedDict):
    name: str
    file: NotRequired[str | None]
    line: NotRequired[int | None]


class _Shared(TypedDict):
    frames: list[_Frame]


Index = Annotated[int, Within(0, 2**31)]
Amount = Annotated[float, Within(0, 1e18)]


class _Event(TypedDict):
    type: Literal["O", "C"]
    frame: Index
    at: Amount


class _Profile(TypedDict):
    type: Literal["sampled", "evented"]
    unit: str
    samples: NotRequired[list[list[Index]]]
    weights: NotRequired[list[Amount]]
    events: NotRequired[list[_Event]]


class _Scope(TypedDict):
    shared: _Shared
    profiles: list[_Profile]


def read(data: bytes) -> Stacks:
    """Return the stacks of a file.

    Raises:
        Malformed: it is of none of these formats, or holds none.
    """
    if data.lstrip()[:1] == b"{":
        found = _speedscope(checked(parsed(data), _Scope))
    else:
        lines = data.decode("utf-8", "replace").splitlines()
        found = Stacks(_added(_folded(lines) or _perf(lines)), timed=False)
    if not found.total > 0:
        raise Malformed("it has no stacks")
    return found


def _added(pairs: Sequence[tuple[Stack, float]]) -> dict[Stack, float]:
    if len(pairs) > MOST:
        raise Malformed(f"it has {len(pairs)} samples, and {MOST} are read")
    weights: dict[Stack, float] = {}
    for stack, weight in pairs:
        if stack and weight > 0:
            kept = stack[:DEEPEST]
            weights[kept] = weights.get(kept, 0.0) + weight
    return weights


def _speedscope(scope: _Scope) -> Stacks:
    names = [_named(frame) for frame in scope["shared"]["frames"]]
    units = {profile["unit"] for profile in scope["profiles"]}
    timed = units <= UNITS.keys() and bool(units)
    pairs = [
        (stack, weight * (UNITS[profile["unit"]] if timed else 1.0))
        for profile in scope["profiles"]
        for stack, weight in _profile(profile, names)
    ]
    return Stacks(_added(pairs), timed)


def _named(frame: _Frame) -> str:
    place = frame.get("file")
    return f"{frame['name']} ({place.rpartition('/')[2]})" if place else frame["name"]


def _profile(profile: _Profile, names: Sequence[str]) -> Iterator[tuple[Stack, float]]:
    """Yield the stacks of a thread, whose first functions may be those that run it."""
    try:
        if profile["type"] == "sampled":
            samples, weights = profile.get("samples", []), profile.get("weights", [])
            for sample, weight in zip(samples, weights, strict=True):
                yield tuple(names[at] for at in sample), weight
        else:
            yield from _between(profile.get("events", []), names)
    except (IndexError, ValueError) as error:
        raise Malformed(f"a profile is not whole ({error})") from None


def _between(
    events: Sequence[_Event], names: Sequence[str]
) -> Iterator[tuple[Stack, float]]:
    """Yield the stack between one event and the next, and how long that was."""
    stack: list[str] = []
    before = math.inf
    for event in events:
        if event["at"] > before and stack:
            yield tuple(stack), event["at"] - before
        before = event["at"]
        if event["type"] == "O":
            stack.append(names[event["frame"]])
        elif stack:
            stack.pop()


def _folded(lines: Sequence[str]) -> list[tuple[Stack, float]]:
    """Return folded stacks; none where a line is something else."""
    pairs = []
    for line in filter(str.strip, lines):
        found = FOLDED.fullmatch(line)
        if found is None:
            return []
        pairs.append((tuple(found[1].split(";")), float(found[2])))
    return pairs


def _perf(lines: Sequence[str]) -> list[tuple[Stack, float]]:
    """Return what `perf script` prints: a head a sample, a function a line, innermost first."""
    pairs: list[tuple[Stack, float]] = []
    stack: list[str] = []
    for line in (*lines, ""):
        symbol = SYMBOL.fullmatch(line)
        if symbol:
            stack.append(symbol[1])
        elif not line.strip() and stack:
            pairs.append((tuple(reversed(stack)), 1.0))
            stack = []
    return pairs


def of_program(found: Stacks) -> Stacks:
    """Return the stacks of an attached program alone: not of what runs it, or begins to."""

    def inner(stack: Stack) -> Stack:
        ours = [at for at, name in enumerate(stack) if OURS.search(name)]
        if ours and not any(RUN.search(name) for name in stack):
            return ()
        return stack[ours[-1] + 1 :] if ours else stack

    pairs = [(inner(stack), weight) for stack, weight in found.weights.items()]
    return Stacks(_added(pairs), found.timed)
