"""What about this machine's GPUs makes numbers lie; it reads and changes nothing.

Clocks, limits and modes are an administrator's to set: the advice is for them.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from steelyard import units
from steelyard.analyse.doubts.machine import STEADY
from steelyard.analyse.trial import UNKNOWN
from steelyard.machine import facts as machine
from steelyard.machine import gpu_choice as gpu
from steelyard.machine import gpu_state, lock
from steelyard.machine.doctor import Finding, Setting, judge, setting
from steelyard_device import install

if TYPE_CHECKING:
    from steelyard_device.cuda import Device

CAPS: Final = frozenset(
    {
        "sw_power_cap",
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    }
)
"""NVML's reasons for a lower clock that nobody chose."""

HOT: Final = 80
"""Degrees from which on a GPU in a closed case lowers its clock by itself."""

PROBES: Final = 100
"""Kernels whose own frequency is looked at."""

STEPS: Final = 500_000
"""Dependent multiply-adds of each: a millisecond, in which a clock is known to 1e-4."""

PARAMETERS: Final = "/proc/driver/nvidia/params"
"""Where the driver says whether only administrators may read counters."""


def findings() -> Iterator[Finding]:
    """Look at every GPU that can be seen here; takes a second each."""
    why = gpu.missing()
    if why is not None:
        needed = f"to measure on one: NVIDIA's driver and {install.command('cuda')}"
        yield Finding("GPU", why, "none", "only the CPU's cases are measured", needed)
        return
    yield _activities()
    yield _counters()
    for device in gpu.devices():
        yield from _of(device)


def _of(device: Device) -> Iterator[Finding]:
    name = f"GPU {device.index}"
    settings = gpu_state.settings(device.uuid)
    now = gpu_state.now(device.uuid)
    yield Finding(name, f"{device.name}, driver {settings['driver']}", "ok")
    yield from (setting(one, settings, f"{name} ") for one in MODES)
    yield from _limits(name, settings, now)
    yield _company(name, now)
    yield _clock(name, device, settings)


def _activities() -> Finding:
    from steelyard_device.cuda import activity

    why = activity.missing()
    return judge(
        "CUPTI",
        "usable" if why is None else why,
        why is None,
        "kernels are read by pairs of events, 0.2 us less surely",
        install.command("cuda", "cupti"),
    )


def _counters() -> Finding:
    found = shutil.which("ncu")
    return judge(
        "ncu",
        _counting(found),
        found is not None and _may_count(),
        "nothing shows that cold launches were cold; it stays unknown",
        "install Nsight Compute; counters for all: the driver's module option "
        "NVreg_RestrictProfilingToAdminUsers=0",
    )


def _counting(found: str | None) -> str:
    if found is None:
        return "not on PATH"
    return f"{found}, counters " + ("allowed" if _may_count() else "for root only")


def _may_count() -> bool:
    """Tell whether the driver lets this user read counters, as far as it says."""
    only = re.search(r"RmProfilingAdminOnly: (\d)", machine.read(PARAMETERS))
    return os.geteuid() == 0 or only is None or only[1] == "0"


MODES: Final = (
    Setting(
        *("persistence", "persistence", ("on",)),
        "the driver starts anew for each process that finds the GPU idle",
        "nvidia-smi -pm 1",
    ),
    Setting(
        *("MIG", "mig", ("off",)),
        "a part of the GPU is measured, and others use the rest",
        "take a whole GPU",
    ),
    Setting(
        *("compute mode", "compute_mode", ("default", "exclusive_process")),
        "no process, or no second one, may use the GPU",
        "nvidia-smi -c DEFAULT",
    ),
    Setting("ECC", "ecc", ("on", "off")),
)


def _limits(
    name: str, settings: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Finding]:
    limit, usual = settings["power_limit_w"], settings["power_limit_default_w"]
    known = UNKNOWN not in {limit, usual}
    yield judge(
        f"{name} power limit",
        f"{limit} W of {settings['power_limit_max_w']}, {now['power_w']} W just now",
        limit >= usual if known else None,
        "heavy kernels run at a lower clock than this GPU could hold",
        f"nvidia-smi -pl {usual}",
    )
    heat = now["temperature_c"]
    yield judge(
        f"{name} temperature",
        f"{heat} °C",
        None if heat == UNKNOWN else heat < HOT,
        "a hot GPU lowers its clock",
        "wait, or cool it better",
    )
    reasons = now["throttle"]
    capped = isinstance(reasons, list) and sorted(CAPS & set(reasons))
    yield judge(
        f"{name} throttling",
        ", ".join(capped) if capped else "none just now",
        not capped if isinstance(reasons, list) else None,
        "the clock is lowered as you look",
        "end what uses the GPU, and let it cool down",
    )


def _company(name: str, now: Mapping[str, Any]) -> Finding:
    found = now["processes"]
    known = isinstance(found, list)
    shown = [f"{one['pid']} ({_size(one['bytes'])})" for one in found if known]
    return judge(
        f"{name} processes",
        f"{', '.join(shown) or 'none'}; {_size(now['memory_used'])} in use",
        not found if known else None,
        "another process takes turns on the GPU and pushes data out of its cache",
        "end it, or choose another GPU with --gpu",
    )


def _size(value: Any) -> str:
    return units.size(value) if isinstance(value, int) else str(value)


def _clock(name: str, device: Device, settings: Mapping[str, Any]) -> Finding:
    """Watch the clock under a light load, unless somebody measures just now."""
    highest = settings["max_sm_mhz"]
    seen = [] if lock.is_held() else _frequencies(device.index)
    advice = (
        f"an administrator can lock it: nvidia-smi -i {device.uuid} -lgc MHZ with a "
        "frequency that your heaviest kernel holds"
    )
    if not seen:
        return judge(f"{name} clock", UNKNOWN, None, "", advice)
    low, high = min(seen), max(seen)
    shown = (
        f"{statistics.median(seen):.0f} of {highest} MHz; {100 * (high / low - 1):.2f} % "
        f"between the slowest and fastest of {len(seen)} light kernels, which is what a "
        "lock would take away from them"
    )
    return judge(
        f"{name} clock",
        shown,
        low >= STEADY * high,
        "the same kernel takes another time at another clock",
        advice,
    )


def _frequencies(index: int) -> list[float]:
    """Return the megahertz that a multiprocessor ran at, each over a millisecond."""
    from steelyard_device import cuda

    probe = cuda.Delay(cuda.context(index), STEPS)
    found = []
    for _ in range(PROBES):
        probe.launch()
        found.append(1000 * probe.cycles() / probe.nanoseconds())
    return found
