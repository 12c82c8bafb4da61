"""What is made of NVML's facts, and metering with a counter that moves in steps."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.declare.plan import Settings
from steelyard.machine import gpu_state
from steelyard.measure import gpu_instruments


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ("unknown", "unknown"),
        ([], "unknown"),
        ([{"pid": 7, "bytes": 1}], []),
        ([{"pid": 7, "bytes": 1}, {"pid": 8, "bytes": 2}], [{"pid": 8, "bytes": 2}]),
        ([{"pid": 8, "bytes": 2}], "unknown"),
    ],
)
def test_others_are_known_only_where_we_see_ourselves(processes, found):
    """In a container the list may be empty, or have another numbering."""
    assert gpu_state.others(processes, 7) == found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [(5, 5, 0), (5, 905, 900), ("unknown", 5, "unknown"), (5, "unknown", "unknown")],
)
def test_a_held_back_clock_is_counted_round_the_samples_alone(
    monkeypatch, before, after, found
):
    """What was counted before, or is known at one end only, is not theirs."""
    read = iter([{"power": before, "board": 7}, {"power": after, "board": 7}])
    monitor = SimpleNamespace(held_back=lambda: next(read))
    monkeypatch.setattr(gpu_state, "monitor", lambda _: monitor)
    context = SimpleNamespace(device=SimpleNamespace(uuid="GPU-1"))
    with gpu_state.capped(context) as capped:
        assert capped == {}
    assert capped == {"power": found, "board": 0}


class Meter:
    """A GPU that draws constant power; its counter moves every 20 ms."""

    def __init__(self, watts, launch_ns, step_ns=20_000_000):
        self.time, self.watts = 0, watts
        self.launch_ns, self.step_ns = launch_ns, step_ns

    def submit(self, count):
        """Run launches."""
        self.time += count * self.launch_ns

    def counter(self):
        """Read millijoules; asking takes time too, in which the GPU goes on."""
        steps = self.time // self.step_ns
        return int(self.watts * steps * self.step_ns / 1e6)

    def metered(self, count, seconds=0.5):
        """Meter it."""
        return gpu_instruments.metered(
            lambda: self.submit(count),
            self.counter,
            lambda: self.time,
            count,
            seconds=seconds,
        )


@given(
    watts=st.floats(50, 700),
    launch_ns=st.integers(1_000, 5_000_000),
)
def test_power_and_energy_are_found_between_two_steps_of_the_counter(watts, launch_ns):
    """Within the stretches by which the first and the last step are seen late."""
    count = max(1, round(5e6 / launch_ns))
    found = Meter(watts, launch_ns).metered(count)
    assert found["watts"] == pytest.approx(watts, rel=0.03)
    assert found["joules_per_launch"] == pytest.approx(
        watts * launch_ns / 1e9, rel=0.03
    )
    assert 0.5 <= found["seconds"] < 0.55


def test_a_counter_that_stands_still_tells_nothing():
    """Or moves too seldom."""
    assert Meter(300, 1000, step_ns=10**12).metered(1000) is None
    assert Meter(300, 1000, step_ns=500_000_000).metered(1000) is None


def test_the_counter_is_asked_near_both_ends_alone():
    """Asking takes milliseconds of the driver, and slows copies down."""
    meter = Meter(300, 1_000_000)
    asked = []

    def counter():
        asked.append(meter.time)
        return meter.counter()

    gpu_instruments.metered(
        lambda: meter.submit(5), counter, lambda: meter.time, 5, seconds=0.5
    )
    assert all(at <= 25e6 or at >= 500e6 for at in asked)


def test_without_a_counter_there_is_no_energy():
    """NVML may refuse it."""
    ticks = iter(range(0, 10**10, 10**6))
    found = gpu_instruments.metered(
        lambda: None, lambda: "unknown", lambda: next(ticks), 1, seconds=0.1
    )
    assert found is None


def test_energy_is_metered_where_it_is_asked_for_or_inputs_are_compared():
    """It takes half a second a case."""
    assert not gpu_instruments.wants_energy(Settings(), {"n": 1})
    assert gpu_instruments.wants_energy(Settings(energy=True), {})
    assert gpu_instruments.wants_energy(Settings(), {"inputs": "constant"})
