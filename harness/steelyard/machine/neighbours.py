"""Who else runs while a case is measured: others, threads left behind, and how."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, process_time_ns, sleep
from typing import Final

TICKS: Final = 10_000_000 * (os.cpu_count() or 1)
"""Nanoseconds that the kernel's accounts, kept in ticks of 10 ms a core, may be off."""

MOMENT: Final = 0.02
"""Seconds for which other threads are watched at a time."""
SPINS: Final = 20
"""Moments after which they never end: OpenMP's may wait actively for 0.2 s."""
BUSY: Final = 0.05
"""Share of a processor that is more than watching takes."""


JOB: Final = "STEELYARD_JOB"
"""The variable that names a fleet's job, the claim and the machine."""


class Neighbours:
    """How much of the machine others used meanwhile."""

    def __init__(self) -> None:
        self._terminals = _on_terminals()
        self._began = perf_counter_ns(), _own_ns(), _busy_ns()

    def busy(self) -> float:
        """Return processors' worth of work that was not this process's or a child's."""
        wall, own, all_ = self._began
        elapsed = max(1, perf_counter_ns() - wall)
        others = (_busy_ns() - all_) - (_own_ns() - own) - TICKS
        return max(0.0, others / elapsed)

    def found(self) -> dict[str, float]:
        """Return what a trial has of both."""
        terminals = self.terminals()
        return {"neighbours": self.busy()} | (
            {"terminals": terminals} if terminals else {}
        )

    def terminals(self) -> int:
        """Return how many processes on terminals ran meanwhile, where a fleet measures.

        Nobody works on such a machine: its jobs have no terminal, a login has one.
        """
        return len(_on_terminals() - self._terminals)


def _on_terminals() -> set[tuple[str, ...]]:
    """Return the processes on terminals with the processor time of each.

    A line of ``/proc/PID/stat`` has after the name: state, parent, group, session,
    terminal, and as the 12th and 13th fields user and system time (man 5 proc).
    """
    found = set()
    if JOB in os.environ:
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                said = file.read_text(errors="replace").rpartition(")")[2].split()
                if said[4] != "0":
                    found.add((file.parent.name, *said[11:13]))
    return found


def _own_ns() -> int:
    """Return the processor time of this process and of its children that ended."""
    times = os.times()
    return int((sum(times[:4])) * 1e9)


def _busy_ns() -> int:
    """Return what all processors did but wait.

    The numbers are ticks of user, nice, system, idle, iowait, irq, softirq and steal, of
    which guests' are a part (man 5 proc_stat).
    """
    with Path("/proc/stat").open("rb") as file:
        ticks = [int(each) for each in file.readline().split()[1:9]]
    return int((sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK") * 1e9)


def scheduling() -> dict[str, object]:
    """Return how the scheduler treats this process: its niceness, policy, processors."""
    return {
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "processors": sorted(os.sched_getaffinity(0)),
    }


_AT_START: Final = scheduling()


def rescheduled() -> str:
    """Say what the scheduler does otherwise than when this process began."""
    now = scheduling()
    changed = [f"{n} {_AT_START[n]} -> {now[n]}" for n in now if now[n] != _AT_START[n]]
    return ", ".join(changed)


def spins() -> bool:
    """Whether other threads of this process keep a processor busy while it waits.

    Libraries' threads wait actively for a while after a launch; these do not end.
    """
    for _ in range(SPINS):
        used, waited = process_time_ns(), _waited()
        sleep(MOMENT)
        used = process_time_ns() - used
        # On a busy machine such a thread waits for a processor all the while.
        wanted = used + _waited() - waited
        if wanted < BUSY * MOMENT * 1e9 and not _runnable():
            return False
    return True


def threads(process: int | str = "self") -> dict[str, tuple[int, int]]:
    """Return by thread what each has had of processors, and waited for one (ns)."""
    found = {}
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # it ended
            had, waited, _ = map(int, file.read_text().split())
            found[file.parent.name] = had, waited
    return found


def _waited() -> int:
    own = str(threading.get_native_id())
    return sum(waited for name, (_, waited) in threads().items() if name != own)


def _runnable() -> bool:
    """Whether any other thread of this process could run now."""
    for file in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):
            state = file.read_text().rpartition(")")[2].split()[0]
            if state == "R" and file.parent.name != str(threading.get_native_id()):
                return True
    return False
