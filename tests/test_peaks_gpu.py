"""Peaks and the state of a real GPU."""

import pytest

from steelyard.clocks.gpu import clocks
from steelyard.machine import gpu_choice as gpu
from steelyard.machine import gpu_state
from steelyard.measure import gpu_instruments, gpu_peaks
from steelyard_device import cuda
from steelyard_device.cuda import peaks


def test_every_shape_copies_all_bytes(context):
    """From one word to sizes that fill no block."""
    copies = peaks.Copies(context, 1 << 20)
    for nbytes in (32, 1 << 10, 96 << 10, 1 << 20):
        for launch in copies.launches(nbytes):
            copies._to.fill(0)
            launch.launch()
            copied = copies._to.read()[: nbytes // 2]
            assert (copied == copies._from.read()[: nbytes // 2]).all()
            assert not copies._to.read()[nbytes // 2 :].any()


def test_operations_take_time_in_proportion_to_their_number(context):
    """So nothing of the loop was left out by the compiler."""
    clock = clocks(context, "auto")[0]

    def times(turns):
        return {
            (rate.dtype, rate.units): gpu_peaks.read(clock, rate.launch, 9, None)
            for rate in peaks.rates(context, turns)
        }

    short, long = times(64), times(256)
    for what, time in long.items():
        assert 3.5 < time / short[what] < 4.2, what


def test_matrix_units_are_faster_than_multiply_adds(context):
    """Of each dtype that has both."""
    clock = clocks(context, "auto")[0]
    found = {}
    for rate in peaks.rates(context):
        time = gpu_peaks.read(clock, rate.launch, 9, None)
        found.setdefault(rate.dtype, {})[rate.units] = rate.operations / time
    for dtype, rates in found.items():
        assert rates.get("tensor", rates.get("fma")) >= 0.99 * max(rates.values()), (
            dtype
        )


def test_a_gpu_is_chosen_described_and_looked_at(context):
    """NVML knows the same GPU by its UUID."""
    index = gpu.choose(context.device.uuid)
    assert index == context.device.index
    assert gpu.facts(index)["name"] == context.device.name
    state = gpu_state.after(context, gpu_state.before(context))
    assert state["before"].keys() == state["after"].keys()


def test_energy_of_a_launch_is_power_by_its_time(context):
    """Delays of a known length, back to back."""
    delay = cuda.Delay(context, 200_000)
    delay.launch()
    nanoseconds = delay.nanoseconds()
    work = delay._launch
    found = gpu_instruments.measured_energy(context, work, nanoseconds)
    if found is None:
        pytest.skip("NVML tells no energy here")
    each = found["joules_per_launch"] / found["watts"]
    assert each == pytest.approx(nanoseconds / 1e9, rel=0.1)
