"""Facts of the machine; what cannot be read is ``unknown``, never a guess.

`describe` returns four groups: ``identity`` (which machine this is; two runs whose
identities differ do not compare), ``settings`` (how it is set up), ``versions``, and
``moment`` (load, memory and frequency just now; they differ between any two runs).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.trial import UNKNOWN
from steelyard.machine import git, heap

CPUS: Final = Path("/sys/devices/system/cpu")
PACKAGES: Final = ("steelyard", "numpy", "llvmlite")

GIT_SECONDS: Final = 10.0
"""``git status`` of a large tree on a slow disk takes seconds; then it is unknown."""

Facts = dict[str, dict[str, Any]]


def describe(folder: Path | None = None) -> Facts:
    """Return the facts of this machine, and of the git checkout ``folder`` is in."""
    return {
        "identity": _identity(),
        "settings": _settings(),
        "versions": versions() | _checkout(folder or Path.cwd()),
        "moment": moment(),
    }


def _identity() -> dict[str, Any]:
    return {
        "id": machine_id(),
        "cpu": cpu_model(),
        "cores": os.cpu_count() or UNKNOWN,
        "caches": caches(),
        # Whole GiB: what a kernel keeps for itself changes from version to version.
        "memory": _psutil(lambda p: round(p.virtual_memory().total / 2**30) << 30),
        "hypervisor": hypervisor(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _settings() -> dict[str, Any]:
    return {
        "kernel": platform.release() or UNKNOWN,
        "affinity": affinity(),
        "cpu_quota": cpu_quota(),
        "smt": {"0": "off", "1": "on"}.get(read(CPUS / "smt/active"), UNKNOWN),
        "governor": read(CPUS / "cpu0/cpufreq/scaling_governor"),
        "boost": boost(),
        "clocksource": read(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "huge_pages": chosen(read("/sys/kernel/mm/transparent_hugepage/enabled")),
        "freed_memory": heap.policy(),
        "aslr": {"0": "off", "1": "on", "2": "on"}.get(
            read("/proc/sys/kernel/randomize_va_space"), UNKNOWN
        ),
    }


def moment() -> dict[str, Any]:
    """Return what changes from minute to minute: load, free memory, frequency."""
    return {
        "load": _unless(OSError, lambda: round(os.getloadavg()[0], 2)),
        "memory_free": _psutil(lambda psutil: psutil.virtual_memory().available),
        "mhz": _psutil(lambda psutil: round(psutil.cpu_freq().current)),
    }


def clock_mhz() -> int | str:
    """Return the fastest core's frequency now, as far as the kernel reports it."""
    seen = re.findall(r"^cpu MHz\s*: ([\d.]+)", read("/proc/cpuinfo"), re.MULTILINE)
    return round(max(map(float, seen))) if seen else UNKNOWN


def swap_used() -> int | str:
    """Return the bytes of memory that were moved to the disk."""
    used: int | str = _psutil(lambda psutil: psutil.swap_memory().used)
    return used


def read(path: str | Path) -> str:
    """Return a file's text without its edges, or ``unknown``."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return UNKNOWN


def chosen(options: str) -> str:
    """Return the option in brackets: ``madvise`` of ``always [madvise] never``."""
    found = re.search(r"\[(.+?)\]", options)
    return found[1] if found else UNKNOWN


@functools.cache
def machine_id() -> str:
    """Return twelve hexadecimal digits that stay with this machine and its CPU.

    Hashed, so that a stored or published run does not tell the machine's own id.
    """
    own = read("/etc/machine-id")
    if own in {UNKNOWN, "", "uninitialized"}:
        return UNKNOWN
    text = f"steelyard {own} {cpu_model()}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@functools.cache
def cpu_model() -> str:
    """Return the name the CPU gives itself."""
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or UNKNOWN


def hypervisor() -> str:
    """Return ``yes`` where the CPU says that it is virtual, else ``no``."""
    info = read("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)  # x86 only
    if not flags:
        return UNKNOWN
    return "yes" if "hypervisor" in flags[1].split() else "no"


def caches(folder: Path = CPUS / "cpu0/cache") -> dict[str, Any]:
    """Return the data caches of the first core: bytes and how many cores share it."""
    found: dict[str, Any] = {}
    for index in sorted(folder.glob("index*")):
        kind, level = read(index / "type"), read(index / "level")
        if kind not in {"Data", "Unified"}:
            continue
        shared = read(index / "shared_cpu_list")
        found[f"L{level}"] = {
            "bytes": _bytes(read(index / "size")),
            "shared_by": UNKNOWN if shared == UNKNOWN else len(cpu_list(shared)),
        }
    return found or {UNKNOWN: UNKNOWN}


def _bytes(text: str) -> int | str:
    """Read a size of sysfs: ``32K``."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not found:
        return UNKNOWN
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def cpu_list(text: str) -> list[int]:
    """Read a list of the kernel's: ``0-2,8`` is 0, 1, 2 and 8."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def affinity() -> list[int] | str:
    """Return the cores this process may run on."""
    if not hasattr(os, "sched_getaffinity"):
        return UNKNOWN
    return sorted(os.sched_getaffinity(0))


def siblings(cpus: Sequence[int]) -> list[list[int]] | str:
    """Return the groups of ``cpus`` that are threads of one core."""
    groups = set()
    for cpu in cpus:
        text = read(CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        if text == UNKNOWN:
            return UNKNOWN
        groups.add(tuple(c for c in cpu_list(text) if c in cpus))
    return sorted(list(g) for g in groups if len(g) > 1)


def boost() -> str:
    """Return whether cores may run above their nominal frequency."""
    no_turbo = read(CPUS / "intel_pstate/no_turbo")
    if no_turbo in {"0", "1"}:
        return "off" if no_turbo == "1" else "on"
    return {"0": "off", "1": "on"}.get(read(CPUS / "cpufreq/boost"), UNKNOWN)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | str:
    """Return the cores a control group grants, ``none`` where it sets no limit."""
    limits = []
    for path in _groups(root):
        if path.name == "cpu.max":
            quota, _, period = read(path).partition(" ")
        else:
            quota, period = read(path), read(path.with_name("cpu.cfs_period_us"))
        if quota.isdecimal() and period.isdecimal():
            limits.append(int(quota) / int(period))
        elif quota != UNKNOWN:
            limits.append(float("inf"))
    if not limits:
        return UNKNOWN
    return "none" if min(limits) == float("inf") else min(limits)


def _groups(root: Path) -> list[Path]:
    """Return the quota files of this process's control group and those above it."""
    files = []
    for line in read("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            base, name = root, "cpu.max"
        elif "cpu" in controllers.split(","):
            base, name = root / controllers, "cpu.cfs_quota_us"
        else:
            continue
        inner = Path(group.lstrip("/"))
        files += [base / part / name for part in (inner, *inner.parents)]
    return files


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages numbers depend on."""
    return {"python": platform.python_version()} | installed(*PACKAGES)


def installed(*packages: str) -> dict[str, str]:
    """Return the versions of packages."""
    from importlib import metadata  # 20 ms, in the process that begins a run alone

    return {
        name: _unless(
            metadata.PackageNotFoundError, functools.partial(metadata.version, name)
        )
        for name in packages
    }


def _checkout(folder: Path) -> dict[str, Any]:
    """Return the git commit of ``folder`` and whether files differ from it."""
    commit, changes = (
        git.output(folder, *line, seconds=GIT_SECONDS)
        for line in (
            ("rev-parse", "HEAD"),
            ("status", "--porcelain", "--untracked-files=no"),
        )
    )
    return {
        "commit": UNKNOWN if commit is None else commit,
        "dirty": UNKNOWN if changes is None else bool(changes),
    }


def _psutil(fact: Callable[[Any], Any]) -> Any:
    """Return a fact of psutil's; a container may hide any of them."""
    import psutil

    kinds = (psutil.Error, OSError, AttributeError, NotImplementedError)
    return _unless(kinds, lambda: fact(psutil))


def _unless(
    errors: type[Exception] | tuple[type[Exception], ...], fact: Callable[[], Any]
) -> Any:
    try:
        return fact()
    except errors:
        return UNKNOWN
