"""What NVRTC says of a compilation: errors, what ptxas made of each kernel, phases.

Pure functions of text. The spellings are those of NVRTC 13.0 and 13.5.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error of the compiler."""

    source: str
    """The name a ``#line 1 "name"`` gave, or the function that ptxas refused; where
    neither is known, the part of the compiler that spoke."""
    line: int
    """Line within ``source``; 0 when ptxas spoke, who knows no lines of the text."""
    message: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What ``ptxas -v`` says of one kernel; memory in bytes."""

    entry: str
    registers: int
    stack: int
    """Frame per thread."""
    spill_stores: int
    spill_loads: int
    shared: int
    """Static shared memory per block."""
    nanoseconds: int
    """What assembling this kernel took."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the compiler's own time, by the compiler's own name for it."""

    name: str
    start: int
    """Nanoseconds since the compilation began."""
    nanoseconds: int
    depth: int
    """How many phases it lies in."""


_FRONT_END = re.compile(
    r"^(?:(?P<source>.+?)\((?P<line>\d+)\)|(?P<speaker>At end of source|nvrtc)): "
    r"(?:catastrophic |internal )?error(?: #\S+)?: (?P<message>.*)$",
    re.MULTILINE,
)
_PTXAS = re.compile(
    r"^ptxas (?:application ptx input, line (?P<line>\d+); )?"
    r"(?:error|fatal) *: (?P<message>.*)$",
    re.MULTILINE,
)
_ENTRY = re.compile(r"Entry function '([^']+)'")
_ABORTED = "Ptx assembly aborted due to errors"


def diagnostics(log: str, ptx: str = "") -> tuple[Diagnostic, ...]:
    """Return the errors in ``log``, in its order.

    ptxas names a line of the ``ptx``, in which the function is looked up.
    """
    front_end = [
        Diagnostic(
            match["source"] or match["speaker"],
            int(match["line"] or 0),
            match["message"],
        )
        for match in _FRONT_END.finditer(log)
    ]
    ptxas = [
        Diagnostic(_blamed(match, ptx), 0, match["message"])
        for match in _PTXAS.finditer(log)
    ]
    # The abortion follows from errors before it, and says nothing beside them.
    told = [found for found in ptxas if found.message != _ABORTED]
    return tuple(front_end + (told or ptxas))


def _blamed(match: re.Match[str], ptx: str) -> str:
    if named := _ENTRY.search(match["message"]):
        return named[1]
    if match["line"]:
        return _function_at(ptx, int(match["line"])) or "ptxas"
    return "ptxas"


_FUNCTION = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([\w$]+)")


def _function_at(ptx: str, line: int) -> str | None:
    """Return the function of ``ptx`` that its ``line`` (from 1) lies in."""
    above = "\n".join(ptx.splitlines()[:line])
    names: list[str] = _FUNCTION.findall(above)
    return names[-1] if names else None


_MEMORY = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_TIME = re.compile(r"Compile time = (\d+\.?\d*) ms")


def kernels(log: str) -> tuple[KernelLog, ...]:
    """Return what ``ptxas -v`` wrote of each kernel, in the order of assembly."""
    _, *parts = log.split("Compiling entry function '")
    return tuple(_kernel(part) for part in parts)


def _kernel(part: str) -> KernelLog:
    """Read one kernel; functions it calls are told of after it, and are not it."""
    memory = _MEMORY.search(part)
    stack, stores, loads = map(int, memory.groups()) if memory else (0, 0, 0)
    return KernelLog(
        entry=part.partition("'")[0],
        registers=int(_first(_REGISTERS, part)),
        stack=stack,
        spill_stores=stores,
        spill_loads=loads,
        shared=int(_first(_SHARED, part)),
        nanoseconds=round(float(_first(_TIME, part)) * 1e6),
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    """Return the number ``pattern`` finds; what ptxas does not mention is none."""
    found = pattern.search(text)
    return found[1] if found else "0"


_UNIT = "Optimizing compilation unit"

_REST = "Trace and Clean-up"

_PER_FUNCTION = {"OptFunction", "Scanning Function Body", "Generating Function IR"}
"""Thousands of events of microseconds each in a program of many kernels."""


def phases(trace: str, nanoseconds: int) -> tuple[Phase, ...]:
    """Read a ``--fdevice-time-trace`` (a Chrome trace in microseconds) as nested spans.

    They come in the order in which they began, each after the one it lies in. The last
    is ours, up to the end of the call after ``nanoseconds``: NVRTC writes the trace, a
    fifth of a millisecond a kilobyte, and frees what it held.
    """
    events = [
        event
        for event in json.loads(trace)["traceEvents"]
        if event.get("ph") == "X" and event["name"] not in _PER_FUNCTION
    ]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    found: list[Phase] = []
    ends: list[int] = []
    for event in events:
        while ends and event["ts"] >= ends[-1]:
            ends.pop()
        start, duration = event["ts"], event["dur"]
        found.append(Phase(_name(event), start * 1000, duration * 1000, len(ends)))
        ends.append(start + duration)
    told = max((phase.start + phase.nanoseconds for phase in found), default=0)
    return (*found, Phase(_REST, told, max(nanoseconds - told, 0), 0))


def _name(event: dict[str, Any]) -> str:
    """Name the phase; ptxas has one a kernel, which says whose it is."""
    name: str = event["name"]
    return f"{name} {event['args']['name']}" if name == _UNIT else name
