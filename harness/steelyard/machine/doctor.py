"""What on this machine makes numbers lie; it reads and changes nothing."""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Literal

from steelyard import units
from steelyard.analyse.trial import UNKNOWN
from steelyard.machine import facts as machine
from steelyard.machine import lock
from steelyard.machine.ticks import empty_window, smallest_step
from steelyard_device import disk, memory

Verdict = Literal["ok", "doubt", "unknown", "none"]
"""``none``: there is no such thing here, and nothing to be wrong with it."""

WATCH_SECONDS: Final = 0.5
"""How long the processors are watched: 50 ticks of /proc/stat, so 2 % is one tick."""

BUSY: Final = 0.1
"""Cores' worth of others' work that is seen in the samples of a two-core machine."""

STOLEN: Final = 0.01
"""Share of time the hypervisor may take before medians move by as much."""

COARSE: Final = 100.0
"""Nanoseconds of a clock's tick or empty window beyond which windows grow long."""

ROOM: Final = 1 << 30
"""Bytes of disk: a store takes about 2 KB a trial, so this is plenty."""

READINGS: Final = 1001


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    seen: str
    verdict: Verdict
    why: str = ""
    """What it does to numbers."""
    advice: str = ""


def findings(store_folder: Path | None = None) -> list[Finding]:
    """Look at everything that is known to make numbers lie; takes about a second."""
    facts = machine.describe()
    settings, identity = facts["settings"], facts["identity"]
    return [
        *(setting(one, settings | identity) for one in SETTINGS),
        *_neighbours(),
        _load(facts["moment"]["load"], identity["cores"]),
        _affinity(settings["affinity"], identity["cores"]),
        _siblings(settings["affinity"]),
        _huge_pages(settings["huge_pages"], _had()),
        _swap(),
        *_clock(),
        _other_run(),
        _disk(store_folder or Path.cwd()),
        _builds(),
    ]


def judge(
    topic: str, seen: Any, good: bool | None, why: str = "", advice: str = ""
) -> Finding:
    """Return a finding: ``good`` is None where it could not be read."""
    if good is None:
        return Finding(topic, UNKNOWN, "unknown", why, "cannot be read here; " + advice)
    if good:
        return Finding(topic, str(seen), "ok")
    return Finding(topic, str(seen), "doubt", why, advice)


@dataclass(frozen=True, slots=True)
class Setting:
    """A fact that should have one of a few values."""

    topic: str
    name: str
    """As the facts have it."""
    good: tuple[str, ...]
    why: str = ""
    advice: str = ""


def setting(one: Setting, facts: Mapping[str, Any], of: str = "") -> Finding:
    """Return whether a fact is as it should be, of a part of the machine."""
    seen = facts[one.name]
    good = None if seen == UNKNOWN else seen in one.good
    return judge(f"{of}{one.topic}", seen, good, one.why, one.advice)


SETTINGS: Final = (
    Setting(
        *("frequency governor", "governor", ("performance",)),
        "cores start slow and speed up while they are timed",
        "cpupower frequency-set -g performance",
    ),
    Setting(
        *("boost", "boost", ("off",)),
        "the frequency depends on heat and on what other cores do",
        "compare only within a run, or turn boost off in the firmware or sysfs",
    ),
    Setting(
        *("hypervisor", "hypervisor", ("no",)),
        "other guests share caches, memory and cores; frequency is hidden",
        "compare only within a run; use a dedicated or bare-metal machine",
    ),
    Setting(
        *("CPU quota", "cpu_quota", ("none",)),
        "the control group stops all threads once its share of a period is used up",
        "raise the container's limit, or give it whole cores (a cpuset)",
    ),
    Setting(
        *("address randomisation", "aslr", ("off",)),
        "code and data lie elsewhere in each process, so two runs differ by a little",
        "leave it on and believe only differences that several runs agree on",
    ),
    Setting(
        *("clock source", "clocksource", ("tsc", "arch_sys_counter")),
        "every reading of the clock is a system call or a trap",
        "boot with tsc=reliable if the machine's counter is",
    ),
)


def _builds() -> Finding:
    folder = disk.default_directory()
    refusal = disk.Disk(folder).refusal()
    why = "every process builds its kernels anew"
    return judge("kept builds", folder or "off", refusal is None, why, refusal or "")


def _neighbours() -> Iterator[Finding]:
    """Watch for a moment what others and the hypervisor take of the processors."""
    import psutil

    shares = psutil.cpu_times_percent(interval=WATCH_SECONDS)
    idle = shares.idle + getattr(shares, "iowait", 0.0)
    busy = max(0.0, 1 - idle / 100) * (psutil.cpu_count() or 1)
    yield judge(
        "neighbours",
        f"{busy:.2f} cores busy with other work",
        busy <= BUSY,
        "other processes take cores and push data out of the shared cache",
        "stop them: `top` lists them",
    )
    steal = getattr(shares, "steal", None)
    yield judge(
        "steal",
        f"{steal} % of the time",
        None if steal is None else steal <= 100 * STOLEN,
        "the hypervisor runs other guests on these cores in the middle of windows",
        "use a machine of your own",
    )


def _load(load: Any, cores: Any) -> Finding:
    good = None if UNKNOWN in {load, cores} else load <= BUSY * cores + BUSY
    return judge(
        "load",
        f"{load} over the last minute",
        good,
        "something ran a moment ago and may run again",
        "wait until it is below 0.1 a core",
    )


def _affinity(seen: Any, cores: Any) -> Finding:
    known = isinstance(seen, list)
    return judge(
        "affinity",
        f"cores {core_list(seen)} of {cores}" if known else seen,
        len(seen) > 1 if known else None,
        "the harness and the kernel share one core, and no kernel uses threads",
        "give it at least two cores: taskset, cpuset",
    )


def core_list(cpus: Any) -> str:
    """Write a list of cores: ``0,1,2``."""
    return ",".join(map(str, cpus))


def _siblings(affinity: Any) -> Finding:
    pairs = machine.siblings(affinity) if isinstance(affinity, list) else UNKNOWN
    known = isinstance(pairs, list)
    shown = " ".join(core_list(pair) for pair in pairs) if known else UNKNOWN
    return judge(
        "hyperthreads",
        f"share a core: {shown}" if shown else "no two of these share a core",
        not pairs if known else None,
        "two threads of one core share its units and caches",
        "pin to one thread a core: taskset",
    )


def _had() -> bool | None:
    """Ask for two huge pages and look whether they are; None where that is unknown."""
    asked = memory.empty((2 * memory.HUGE,), "uint8", huge=True)
    asked.fill(1)
    got = memory.in_huge_pages([asked])
    return None if got is None else got > 0


def _huge_pages(seen: str, had: bool | None) -> Finding:
    good = None if seen == UNKNOWN else seen in {"always", "madvise"}
    given = "" if had is not False else ", but none was to be had"
    return judge(
        "huge pages",
        f"{seen}{given}",
        good and had is not False,
        "large arrays miss the TLB, and by how much depends on where they lie",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _swap() -> Finding:
    used = machine.swap_used()
    return judge(
        "swap",
        f"{units.size(used)} in use" if isinstance(used, int) else UNKNOWN,
        used == 0 if isinstance(used, int) else None,
        "a page that is read from the disk takes a million times longer",
        "free memory, then swapoff -a and swapon -a",
    )


def _clock() -> Iterator[Finding]:
    """Measure the clock itself: its tick, and what it reads around nothing."""
    tick = smallest_step(perf_counter_ns)
    yield judge(
        "clock tick",
        units.duration(tick) if math.isfinite(tick) else "it stands still",
        tick <= COARSE,
        "short windows take only a few values",
        "find another clock source",
    )
    empty = statistics.median(empty_window() for _ in range(READINGS))
    yield judge(
        "empty window",
        units.duration(empty),
        empty <= COARSE,
        "the clock itself is a large part of short windows",
        "find another clock source",
    )


def _other_run() -> Finding:
    held = lock.is_held()
    return judge(
        "another run",
        lock.describe(lock.content()) if held else "none measures now",
        None if held is None else not held,
        "two runs measure each other",
        "wait for it: `steelyard run --wait SECONDS`",
    )


def _disk(folder: Path) -> Finding:
    return judge(
        "disk",
        *_room(folder),
        "a run whose trials cannot be stored ends",
        "free some space, or name a store elsewhere with --store",
    )


def _room(folder: Path) -> tuple[str, bool | None]:
    """Return what is free where the store is or will be."""
    while not folder.exists():
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return UNKNOWN, None
    writable = os.access(folder, os.W_OK)
    seen = f"{units.size(free)} free in {folder}"
    return (
        seen if writable else f"{folder} cannot be written"
    ), writable and free > ROOM
