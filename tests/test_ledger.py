import numpy as np
import pytest
from fakes import FakeClock, launching, prepared

from steelyard.measure import ledger
from steelyard.prepare.work import realise


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that passes only when work says so, to the ledger."""
    fake = FakeClock()
    monkeypatch.setattr(ledger, "perf_counter_ns", fake)
    return fake


def parts_of(body, *, allocated=False):
    """Return the parts of a call of the one case of a benchmark."""
    description, buffers = prepared(body)
    work = realise(description, buffers)
    return ledger.parts(description, buffers, work, allocated=allocated)


@pytest.mark.parametrize("each", [0.5, 7, 100, 25_000])
def test_time_per_call_is_that_of_long_windows(clock, each):
    """Whatever a call takes; nothing but a call that takes none ends the search."""
    asked = []

    def run(count):
        asked.append(count)
        clock.time += int(count * each)

    assert ledger.per_call(run) == pytest.approx(each, rel=0.01)
    assert asked[-1] * each >= 20_000
    assert asked.count(asked[-1]) == ledger.WINDOWS


def test_calls_that_take_no_time_end_the_search(clock):
    """At 65,536 of them."""
    counts = []
    assert ledger.per_call(counts.append) == 0
    assert max(counts) == 1 << 16
    assert clock.time == 0


def test_a_plain_callable_is_all_kernel_but_for_the_call(clock):
    """It cannot be looked into."""

    def spend(x, out):
        np.copyto(out, x)
        clock.time += 5000

    found = parts_of(launching(spend))
    assert found == {"submit": 0.0, "kernel": 5000.0}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5), "float32"), ((0, 3), "int8"), ((), "bool")]
)
def test_new_outputs_are_allocated_and_touched(shape, dtype):
    """Both have their parts, of every dtype and of no bytes too."""

    def body(b):
        y = b.output(shape, dtype)
        return b.launch(lambda **_: None, out=y)

    found = parts_of(body, allocated=True)
    assert set(found) == {"allocate", "first_touch", "submit", "kernel"}
    assert found["allocate"] > 0
    assert found["first_touch"] >= 0


def test_updates_in_place_start_from_their_data_in_every_window(clock):
    """A kernel that halves its argument was timed on denormals."""
    seen = []

    def halve(u):
        clock.time += 25_000
        seen.append(float(u[0]))
        u *= 0.5

    def body(b):
        u = b.inout(1, dist="constant", value=1.0)
        return b.launch(halve, u)

    parts_of(body)
    assert seen == [1.0] * ledger.WINDOWS


def test_handing_native_work_over_is_counted_for_every_call(clock):
    """It was once divided by the launches of a native loop, and read as nothing."""

    class Crossing:
        """A launch of nothing: 500 ns into native code and back, however many."""

        def launch(self, count=1):
            clock.time += 500

        def window(self, count, *, dependent=False):
            start, clock.time = clock.time, clock.time + 10 * count
            return start, clock.time

    class Native(Crossing):
        def null(self):
            return Crossing()

    def body(b):
        x = b.input(4)
        return b.launch(np.abs, x)

    parts = ledger._native(*prepared(body), Native())
    assert parts["submit"] == pytest.approx(490, rel=0.01)
