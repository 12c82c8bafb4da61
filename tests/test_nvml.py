"""What NVML says of a GPU, by a fake of its bindings; no GPU is needed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from steelyard_device import nvml
from steelyard_device.nvml import Monitor, reasons


class NVMLError(Exception):
    """What the bindings raise."""


ANSWERS = {
    "PersistenceMode": 1,
    "ComputeMode": 3,
    "EccMode": [1, 0],
    "MigMode": [0, 0],
    "EnforcedPowerLimit": 650_000,
    "PowerManagementDefaultLimit": 700_000,
    "PowerManagementLimitConstraints": [200_000, 700_000],
    "MaxClockInfo": {1: 1980, 2: 3201},
    "ApplicationsClock": {1: 1500},
    "DefaultApplicationsClock": {1: 1980},
    "CurrPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "ClockInfo": {1: 1965, 2: 3201},
    "PowerUsage": 126_803,
    "Temperature": {0: 42},
    "CurrentClocksEventReasons": 0x24,
    "MemoryInfo": SimpleNamespace(used=1 << 30),
    "ComputeRunningProcesses": [
        SimpleNamespace(pid=7, usedGpuMemory=5),
        SimpleNamespace(pid=3, usedGpuMemory=None),
    ],
    "GraphicsRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=5)],
    "TotalEnergyConsumption": 6_887_922,
    "UtilizationRates": SimpleNamespace(gpu=19, memory=3),
    "ViolationStatus": {
        policy: SimpleNamespace(referenceTime=1, violationTime=1000 + policy)
        for policy in range(4)
    },
}

UUID = "GPU-47e4f408"


@pytest.fixture
def answers(monkeypatch):
    """Install a fake pynvml; what is taken out of its answers is refused."""
    answers = dict(ANSWERS)
    fake = ModuleType("pynvml")
    fake.NVMLError = NVMLError

    def handle(uuid):
        if uuid != UUID:
            raise NVMLError("Not Found")
        return "handle"

    def asked(name):
        def ask(given, *args):
            assert given == "handle"
            if name not in answers:
                raise NVMLError("Not Supported")
            return answers[name][args[0]] if args else answers[name]

        return ask

    fake.nvmlInit = lambda: None
    fake.nvmlSystemGetDriverVersion = lambda: "580.159.04"
    fake.nvmlDeviceGetHandleByUUID = handle
    for name in ANSWERS:
        setattr(fake, f"nvmlDeviceGet{name}", asked(name))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    nvml._library.cache_clear()
    yield answers
    nvml._library.cache_clear()


def test_settings_are_in_watts_megahertz_and_words(answers):
    """As the machine's owner chose them."""
    monitor = Monitor(UUID)
    assert monitor.missing is None
    assert monitor.settings() == {
        "driver": "580.159.04",
        "persistence": "on",
        "compute_mode": "exclusive_process",
        "ecc": "on",
        "mig": "off",
        "power_limit_w": 650.0,
        "power_limit_default_w": 700.0,
        "power_limit_max_w": 700.0,
        "max_sm_mhz": 1980,
        "max_memory_mhz": 3201,
        "applications_sm_mhz": 1500,
        "applications_sm_default_mhz": 1980,
        "pcie_link": "gen5 x16",
    }


def test_a_moment_has_every_process_once(answers):
    """Those that compute and draw, with their memory where NVML tells it."""
    assert Monitor(UUID).moment() == {
        "sm_mhz": 1965,
        "memory_mhz": 3201,
        "power_w": 126.803,
        "temperature_c": 42,
        "throttle": ["sw_power_cap", "sw_thermal_slowdown"],
        "memory_used": 1 << 30,
        "processes": [{"pid": 3, "bytes": "unknown"}, {"pid": 7, "bytes": 5}],
        "energy_mj": 6_887_922,
        "gpu_use": 19,
    }


@pytest.mark.parametrize("name", ANSWERS)
def test_one_refusal_costs_one_fact(answers, name):
    """All others are still there."""
    known = Monitor(UUID).settings() | Monitor(UUID).moment()
    del answers[name]
    found = Monitor(UUID).settings() | Monitor(UUID).moment()
    changed = [key for key in known if found[key] != known[key]]
    assert len(changed) <= 2  # one clock's query serves two facts
    assert {found[key] for key in changed if key != "processes"} <= {"unknown"}


def test_all_facts_are_unknown_when_everything_is_refused(answers):
    """None is missing, none is a guess."""
    keys = list(Monitor(UUID).moment()) + list(Monitor(UUID).settings())
    answers.clear()
    found = Monitor(UUID).moment() | Monitor(UUID).settings()
    assert list(found) == keys
    assert found.pop("driver") == "580.159.04"
    assert set(found.values()) == {"unknown"}


def test_how_long_a_clock_was_held_back_is_counted_by_reason(answers):
    """Each as far as it is known."""
    found = {"power": 1000, "thermal": 1001, "sync": 1002, "board": 1003}
    assert Monitor(UUID).held_back() == found
    del answers["ViolationStatus"]
    assert set(Monitor(UUID).held_back().values()) == {"unknown"}
    assert set(Monitor("GPU-other").held_back().values()) == {"unknown"}


def test_older_bindings_lack_functions(answers, monkeypatch):
    """Which is a refusal like others."""
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetCurrentClocksEventReasons")
    assert Monitor(UUID).moment()["throttle"] == "unknown"


def test_a_gpu_that_nvml_does_not_know_is_named(answers):
    """As a MIG instance's or a virtual one's may be."""
    monitor = Monitor("GPU-0")
    assert monitor.missing == "NVML does not know the GPU GPU-0 (Not Found)."
    assert monitor.moment()["power_w"] == "unknown"
    assert monitor.energy_mj() == "unknown"


def test_without_bindings_or_driver_a_sentence_says_so(answers, monkeypatch):
    """And every fact is unknown."""

    def refuse():
        raise NVMLError("Driver Not Loaded")

    sys.modules["pynvml"].nvmlInit = refuse
    monitor = Monitor(UUID)
    assert monitor.missing == (
        "NVML does not start (Driver Not Loaded): check nvidia-smi."
    )
    assert set(monitor.settings().values()) == {"unknown"}
    nvml._library.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install" in Monitor(UUID).missing


def test_reasons_are_words_and_new_ones_their_bits():
    """Whatever a later driver adds."""
    assert reasons(0) == []
    assert reasons(0x1) == ["gpu_idle"]
    assert reasons(0x408) == ["hw_slowdown", "reason_0x400"]
