"""What NVRTC says of a compilation: errors, what ptxas made of each kernel, phases.

Pure functions of text. The spellings are those of NVRTC 13.0 and 13.5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct


class Diagnostic(Struct, frozen=True):
    """One error of the compiler."""

    source: str
    """The name a ``#line 1 "name"`` gave, or the function that ptxas refused; where
    neither is known, the part of the compiler that spoke."""
    line: int
    """Line within ``source``; 0 when ptxas spoke, who knows no lines of the text."""
    message: str


class KernelLog(Struct, frozen=True):
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


class Phase(Struct, frozen=True):
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


def phases(
    table: str, kernels: Sequence[KernelLog], nanoseconds: int
) -> tuple[Phase, ...]:
    """Read what ``-time`` writes: one phase a line, in whole milliseconds, in order.

    ptxas' time for each of the ``kernels`` lies in the last phase. A phase ends with the
    call, after ``nanoseconds``, if rounding would have it end later.
    """
    found: list[Phase] = []
    start = 0
    for line in table.splitlines():
        _, name, time, unit = [*(word.strip() for word in line.split(",")), *[""] * 4][
            :4
        ]
        if unit == "ms":
            taken = min(int(time) * 1_000_000, nanoseconds - start)
            found.append(Phase(name, start, taken, 0))
            start += taken
    if found:
        begin, end = found[-1].start, start
        for kernel in kernels:
            taken = min(kernel.nanoseconds, end - begin)
            found.append(Phase(f"ptxas {kernel.entry}", begin, taken, 1))
            begin += taken
    return tuple(found)
