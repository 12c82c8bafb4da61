"""What NVML says of a real GPU."""

import os

import gpu
import pytest

from steelyard_device.nvml import Monitor


@pytest.fixture(scope="module")
def monitor():
    """Give the first GPU's monitor; skip without one."""
    pytest.importorskip("pynvml", reason="needs the cuda extra")
    return Monitor(gpu.context().device.uuid)


def test_a_uuid_of_the_driver_is_one_of_nvml(monitor):
    """However CUDA_VISIBLE_DEVICES numbers it."""
    assert monitor.missing is None
    assert monitor.settings()["driver"] != "unknown"


def test_a_moment_has_plausible_facts(monitor):
    """In the units that are stated."""
    moment = monitor.moment()
    assert 100 < moment["sm_mhz"] < 5000
    assert 1 < moment["power_w"] < 3000
    assert 0 < moment["temperature_c"] < 120
    assert moment["memory_used"] > 1 << 20
    assert isinstance(moment["throttle"], list)


def test_this_process_is_among_those_on_the_gpu(monitor):
    """With its memory."""
    found = {each["pid"]: each["bytes"] for each in monitor.processes()}
    if os.getpid() not in found:
        pytest.skip("NVML tells pids of another namespace")
    assert found[os.getpid()] == "unknown" or found[os.getpid()] > 1 << 20
