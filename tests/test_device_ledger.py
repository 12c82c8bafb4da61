from types import SimpleNamespace

import pytest
from fake_gpu import FakeClock, Machine
from fakes import FakeClock as HostClock
from fakes import case_of

from steelyard.measure import gpu_ledger as device_ledger
from steelyard.measure import ledger


class Rig:
    """A GPU's work whose parts take known times of the host's clock."""

    def __init__(self, monkeypatch, *, submit=3000, kernel=2000, wait=6000, **facts):
        self.host = HostClock()
        self.submit, self.end, self.facts = submit, wait, lambda: facts
        monkeypatch.setattr(device_ledger, "perf_counter_ns", self.host)
        monkeypatch.setattr(ledger, "perf_counter_ns", self.host)
        self.clock = FakeClock(Machine(), kernel=kernel)

    def launch(self, count=1):
        """Take the time of submitting."""
        self.host.time += count * self.submit

    def wait(self):
        """Take the time of waiting."""
        self.host.time += self.end

    def bind(self, *_, **__):
        """Make it one of our kernels."""

    def __call__(self, *_, out):
        """Call it as a user does: the arguments are packed too."""
        self.host.time += self.submit + 500

    def parts(self, *, allocated=False, bindable=True):
        """Return the parts of a call."""

        def body(b):
            target = self if bindable else (lambda *_, **__: None)
            return b.launch(target, b.input(8, name="x"), out=b.output(8, name="y"))

        buffers = SimpleNamespace(
            context=None, arrays={"x": None, "y": None}, restore=lambda: None
        )
        described = case_of(body).describe()
        return device_ledger.parts(
            described, buffers, self, self.clock, allocated=allocated
        )


@pytest.mark.parametrize("kernel", [600, 2000, 50_000])
def test_each_part_of_a_call_is_found(monkeypatch, kernel):
    """Waiting is the kernel, and what is left of it."""
    found = Rig(monkeypatch, kernel=kernel, wait=kernel + 4000).parts()
    assert found == {
        "submit": 3000,
        "kernel": kernel,
        "synchronise": 4000,
        "pack": 500,
    }
    whole = ledger.close(found, 3500 + kernel + 4100)
    assert whole["untracked"] == 100


def test_anyones_callable_packs_nothing_that_can_be_told(monkeypatch):
    """It is submitted as it is called."""
    assert "pack" not in Rig(monkeypatch).parts(bindable=False)


def test_work_that_waits_inside_is_one_part(monkeypatch):
    """Nobody outside can tell where it waits."""
    found = Rig(monkeypatch, submit=9000, wait=100, synchronises=True).parts()
    assert found == {"kernel": 9100}


def test_allocating_is_a_part_where_results_are_new(monkeypatch):
    """Once for each output."""
    found = Rig(monkeypatch).parts(allocated=True)
    assert found["allocate"] == 0
    assert list(ledger.close(found, 1.0)) == [
        "allocate",
        "pack",
        "submit",
        "kernel",
        "synchronise",
        "untracked",
    ]
