"""What doctor says of made-up GPUs; it reads and sets nothing."""

import shutil

import pytest

from steelyard.machine import gpu_choice as gpu
from steelyard.machine import gpu_doctor as doctor_gpu
from steelyard.machine import gpu_state, lock
from steelyard_device import install
from steelyard_device.cuda import Device, activity

SETTINGS = {
    "driver": "580.159.04",
    "persistence": "on",
    "compute_mode": "default",
    "ecc": "on",
    "mig": "off",
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "power_limit_max_w": 700.0,
    "max_sm_mhz": 1980,
}
NOW = {
    "power_w": 127.0,
    "temperature_c": 38,
    "throttle": ["gpu_idle"],
    "memory_used": 600 << 20,
    "processes": [],
}
WRONG = {
    "persistence": "off",
    "mig": "on",
    "compute_mode": "prohibited",
    "power_limit_w": 350.0,
    "temperature_c": 86,
    "throttle": ["sw_power_cap", "hw_thermal_slowdown"],
    "processes": [{"pid": 4711, "bytes": 1 << 30}],
}


@pytest.fixture
def look(monkeypatch):
    """Return the findings of one made-up GPU by topic."""

    def findings(settings=SETTINGS, now=NOW, mhz=(1979.0, 1981.0), **around):
        device = Device(0, "NVIDIA H200", "GPU-aabb", "sm_90a", 132, 60 << 20, 1 << 37)
        monkeypatch.setattr(gpu, "_seen", lambda: ((device,), ""))
        monkeypatch.setattr(gpu_state, "settings", lambda _: settings)
        monkeypatch.setattr(gpu_state, "now", lambda _: now)
        monkeypatch.setattr(activity, "missing", lambda: around.get("cupti"))
        monkeypatch.setattr(shutil, "which", lambda _: around.get("ncu", "/bin/ncu"))
        monkeypatch.setattr(lock, "is_held", lambda: around.get("held", False))
        monkeypatch.setattr(doctor_gpu, "_frequencies", lambda _: list(mhz))
        monkeypatch.setattr(doctor_gpu, "PARAMETERS", "/nowhere")
        return {one.topic: one for one in doctor_gpu.findings()}

    return findings


def test_without_a_gpu_there_is_one_line_that_says_why(monkeypatch):
    """It is no doubt: a machine need not have one."""
    monkeypatch.setattr(gpu, "_seen", lambda: ((), "there is no driver."))
    (only,) = doctor_gpu.findings()
    assert (only.topic, only.seen, only.verdict) == (
        "GPU",
        "there is no driver.",
        "none",
    )
    assert install.command("cuda") in only.advice


def test_a_gpu_as_it_should_be_is_ok(look):
    """Everything is named, nothing is doubted."""
    found = look()
    assert {one.verdict for one in found.values()} == {"ok"}
    assert found["GPU 0"].seen == "NVIDIA H200, driver 580.159.04"
    assert "0.10 % between the slowest and fastest" in found["GPU 0 clock"].seen


def test_everything_wrong_is_doubted_with_what_an_administrator_can_do(look):
    """A reason and an advice each; none of it is done here."""
    found = look(
        SETTINGS | WRONG, NOW | WRONG, (1500.0, 1980.0), cupti="no cupti.", ncu=None
    )
    for topic in ("persistence", "MIG", "compute mode", "power limit", "temperature"):
        assert found[f"GPU 0 {topic}"].verdict == "doubt", topic
        assert found[f"GPU 0 {topic}"].advice
    assert "hw_thermal_slowdown, sw_power_cap" in found["GPU 0 throttling"].seen
    assert "4711 (1.00 GiB)" in found["GPU 0 processes"].seen
    assert "nvidia-smi -i GPU-aabb -lgc" in found["GPU 0 clock"].advice
    assert "32.00 % between" in found["GPU 0 clock"].seen
    assert found["CUPTI"].seen == "no cupti."
    assert found["ncu"].seen == "not on PATH"


def test_what_cannot_be_read_is_unknown_and_never_ok(look):
    """NVML may refuse any fact, or all."""
    nothing = dict.fromkeys({**SETTINGS, **NOW}, "unknown")
    found = look(nothing, nothing)
    known = {"GPU 0", "GPU 0 clock", "CUPTI", "ncu"}
    assert {topic for topic, one in found.items() if one.verdict != "unknown"} == known


def test_the_clock_is_not_probed_while_somebody_measures(look):
    """The probe would be measured with their kernels."""
    assert look(held=True)["GPU 0 clock"].verdict == "unknown"


@pytest.mark.parametrize(("only", "may"), [("0", True), ("1", False)])
def test_counters_may_be_for_administrators_only(
    look, monkeypatch, tmp_path, only, may
):
    """The driver says so in a file; root always may."""
    look()
    file = tmp_path / "params"
    file.write_text(f"Mobile: 4\nRmProfilingAdminOnly: {only}\n")
    monkeypatch.setattr(doctor_gpu, "PARAMETERS", str(file))
    monkeypatch.setattr(doctor_gpu.os, "geteuid", lambda: 1000)
    found = {one.topic: one for one in doctor_gpu.findings()}["ncu"]
    assert (found.verdict == "ok") is may
    monkeypatch.setattr(doctor_gpu.os, "geteuid", lambda: 0)
    found = {one.topic: one for one in doctor_gpu.findings()}["ncu"]
    assert found.verdict == "ok"
