"""The process that writes a run or holds the lock: its command, and who it is."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steelyard.analyse.trial import UNKNOWN
from steelyard.machine import facts as machine
from steelyard.machine.printable import anonymous, printable


def now() -> str:
    """Return this moment in UTC, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def command() -> str:
    """Return the command line as it was typed, but for the passwords of URLs.

    It is stored, exported, and shown to whoever meets the lock.
    """
    words = [Path(sys.argv[0]).name, *map(anonymous, sys.argv[1:])]
    return printable(shlex.join(words), 1 << 16)


def process(pid: int) -> dict[str, Any]:
    """Return what identifies a process among all that ever have its number."""
    return {
        "machine": machine.machine_id(),
        "boot": machine.read("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": pid,
        "started": _process_start(pid),
    }


def _namespace() -> str:
    """Return the process-number space; the numbers of two containers are unrelated."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return UNKNOWN


def _process_start(pid: int) -> str:
    """Return when a process started, in ticks since boot (proc(5), stat, field 22)."""
    _, found, rest = machine.read(f"/proc/{pid}/stat").rpartition(") ")
    return rest.split()[19] if found else UNKNOWN
