"""The state of a GPU by NVML: what its owner set, and how it is at a moment.

Read only: nothing is ever set. A fact that NVML refuses, lacks or cannot be asked for
reads ``"unknown"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard_device import install
from steelyard_device.threads import Once

UNKNOWN = "unknown"

Fact = int | float | str | list[str] | list[dict[str, int | str]]

_SM, _MEMORY = 1, 2
"""Clocks as NVML numbers them."""

_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Why clocks are below what is possible, by NVML's bits (nvmlClocksEventReasons)."""

_POLICIES = {"power": 0, "thermal": 1, "sync": 2, "board": 3}
"""Policies that hold a clock back and count for how long (nvmlPerfPolicyType_t)."""

_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_SWITCH = ("off", "on")


@Once
def _library() -> tuple[Any, str | None]:
    """Return NVML, started, or None and why not. It stays started."""
    try:
        import pynvml
    except ImportError:
        return None, f"there is no pynvml here: {install.command('cuda')}."
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML does not start ({error}): check nvidia-smi."
    return pynvml, None


class Monitor:
    """One GPU, by the UUID that ``Device.uuid`` has: CUDA_VISIBLE_DEVICES renumbers.

    ``missing`` says why nothing is known, None where something is.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._handle: Any = None
        self._nvml, self.missing = _library()
        if self._nvml is None:
            return
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            self.missing = f"NVML does not know the GPU {uuid} ({error})."

    def settings(self) -> dict[str, Fact]:
        """Return what the machine's owner chose, and what the GPU could do.

        Megahertz, watts, words. NVML tells no locked clocks; application clocks it
        does.
        """
        return {
            "driver": self._driver(),
            "persistence": self._word("PersistenceMode", _SWITCH),
            "compute_mode": self._word("ComputeMode", _COMPUTE_MODES),
            "ecc": self._word("EccMode", _SWITCH),
            "mig": self._word("MigMode", _SWITCH),
            "power_limit_w": self._asked("EnforcedPowerLimit", use=_thousandth),
            "power_limit_default_w": self._asked(
                "PowerManagementDefaultLimit", use=_thousandth
            ),
            "power_limit_max_w": self._asked(
                "PowerManagementLimitConstraints", use=lambda found: found[1] / 1000
            ),
            "max_sm_mhz": self._asked("MaxClockInfo", _SM),
            "max_memory_mhz": self._asked("MaxClockInfo", _MEMORY),
            "applications_sm_mhz": self._asked("ApplicationsClock", _SM),
            "applications_sm_default_mhz": self._asked("DefaultApplicationsClock", _SM),
            "pcie_link": self._link(),
        }

    def moment(self) -> dict[str, Fact]:
        """Return how the GPU is now: a few milliseconds, never within a window.

        Megahertz, watts, degrees Celsius, bytes, percent, millijoules.
        """
        return {
            "sm_mhz": self._asked("ClockInfo", _SM),
            "memory_mhz": self._asked("ClockInfo", _MEMORY),
            "power_w": self._asked("PowerUsage", use=_thousandth),
            "temperature_c": self._asked("Temperature", 0),
            "throttle": self._asked("CurrentClocksEventReasons", use=reasons),
            "memory_used": self._asked("MemoryInfo", use=lambda found: int(found.used)),
            "processes": self.processes(),
            "energy_mj": self.energy_mj(),
            "gpu_use": self._asked("UtilizationRates", use=lambda found: found.gpu),
        }

    def held_back(self) -> dict[str, int | str]:
        """Return for how long the clock was held back, by why; only differences count.

        Nanoseconds.
        """
        return {
            why: self._asked("ViolationStatus", policy, use=_violation)
            for why, policy in _POLICIES.items()
        }

    def energy_mj(self) -> int | str:
        """Return what the GPU used since the driver started; an H200's steps are 20 ms.

        Millijoules.
        """
        found: int | str = self._asked("TotalEnergyConsumption")
        return found

    def processes(self) -> list[dict[str, int | str]] | str:
        """Return ``pid`` and ``bytes`` of whoever uses the GPU, this process included.

        In a container pids may be those of the host.
        """
        kinds = ("ComputeRunningProcesses", "GraphicsRunningProcesses")
        lists = [self._asked(kind) for kind in kinds]
        if all(each == UNKNOWN for each in lists):
            return UNKNOWN
        found = {each.pid: each for some in lists if some != UNKNOWN for each in some}
        return [
            {
                "pid": pid,
                "bytes": UNKNOWN
                if each.usedGpuMemory is None
                else int(each.usedGpuMemory),
            }
            for pid, each in sorted(found.items())
        ]

    def _asked(
        self, what: str, *args: int, use: Callable[[Any], Any] | None = None
    ) -> Any:
        """Ask for ``what``, and make of it what ``use`` does."""
        if self._handle is None:
            return UNKNOWN
        try:
            found = getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *args)
        except (self._nvml.NVMLError, AttributeError):  # refused; or bindings are older
            return UNKNOWN
        return use(found) if use else found

    def _word(self, what: str, words: tuple[str, ...]) -> str:
        """Ask for one of numbered modes; of a pair, now and after a restart, now."""
        found = self._asked(what)
        number = found[0] if isinstance(found, list | tuple) else found
        known = isinstance(number, int) and 0 <= number < len(words)
        return words[number] if known else UNKNOWN

    def _driver(self) -> str:
        if self._nvml is None:
            return UNKNOWN
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return UNKNOWN

    def _link(self) -> str:
        generation = self._asked("CurrPcieLinkGeneration")
        width = self._asked("CurrPcieLinkWidth")
        if UNKNOWN in {generation, width}:
            return UNKNOWN
        return f"gen{generation} x{width}"


def reasons(bits: int) -> list[str]:
    """Spell why clocks are lowered; a bit without a word is its number."""
    return [
        _REASONS.get(1 << place, f"reason_{1 << place:#x}")
        for place in range(bits.bit_length())
        if bits >> place & 1
    ]


def _violation(found: Any) -> int:
    return int(found.violationTime)


def _thousandth(found: int) -> float:
    return found / 1000
