import statistics
from dataclasses import replace

import pytest
from fake_gpu import FakeClock, Machine
from hypothesis import given
from hypothesis import strategies as st
from test_sampler import sample

from steelyard.clocks import Expired, in_queues
from steelyard.errors import BenchmarkError
from steelyard.measure import sampler
from steelyard.measure.gpu_instruments import frequencies
from steelyard.measure.gpu_stream import EXPIRIES, DeviceStream


def spoken(clock=None, **changes):
    """Return windows whose doings a machine logs."""
    machine = clock.machine if clock else Machine()
    stream = DeviceStream(
        work=object(),
        clock=clock or FakeClock(machine),
        offset=2000.0,
        stamps=machine,
        room=8,
        ramp_clocks=machine.does("lead"),
        warm_caches=machine.does("touch"),
        restore=machine.does("restore"),
        flush_caches=machine.does("flush"),
        poison=machine.does("poison"),
        checks=lambda launches: machine.log.append(f"check {launches}"),
    )
    return replace(stream, **changes), machine


def test_nothing_waits_between_what_leads_to_a_window_and_its_launches():
    """The warming launch stands before the data and the poison, the flush behind."""
    stream, machine = spoken()
    sample(stream, sampler.Record(), 0, samples=1)
    around = [
        "lead",
        "stamp 0",
        "touch",
        "restore",
        "poison",
        "flush",
        "launch",
        "wait",
    ]
    assert machine.log == [*around, "stamp 1", "check 1"]


@given(st.integers(0, 500), st.integers(1, 40))
def test_a_checked_window_stands_alone_in_its_queue(seed, longest):
    """The windows of all queues are those that are drawn, in their order."""
    drawn, found = sampler.draw(seed), []
    for windows, checked in sampler.queues(seed, longest):
        assert 1 <= windows <= longest
        assert not checked or windows == 1
        found += [checked] * windows
        if len(found) > 100:
            break
    assert found == [next(drawn) for _ in found]


@pytest.mark.parametrize("samples", [1, 2, 9, 31])
def test_all_windows_of_the_last_queue_are_kept(samples):
    """Stopping in the middle of it would choose among samples that are there."""
    stream, machine = spoken()
    record = sampler.Record()
    fed = sample(stream, record, 3, samples)
    taken = record.samples()
    assert len(taken) == len(fed) == machine.log.count("launch")
    assert samples <= len(taken) < samples + stream.room
    assert len(taken.mhz) == len(taken.cpu) == len(taken.preemptions) == len(taken)
    assert set(taken.ticks) == {3200 + 2000}
    assert set(taken.mhz) == {1980}
    assert list(taken.starts) == sorted(taken.starts)


def test_a_queue_has_one_lead_before_everything():
    """An idle GPU is slower at first; within a queue it is busy."""
    stream, machine = spoken()
    sample(stream, sampler.Record(), 0, samples=30)
    assert machine.log.count("lead") == machine.log.count("wait")
    assert machine.log[machine.log.index("lead") + 1] == "stamp 0"


def test_stopping_is_fed_what_is_left_without_the_offset():
    """Or a wide interval of a short kernel would pass for a narrow one."""
    stream, _ = spoken()
    assert set(sample(stream, sampler.Record(), 0, samples=3)) == {3200.0}


def test_a_queue_that_comes_late_is_thrown_away_and_halved():
    """All its windows are taken again; how many were is told."""
    stream, machine = spoken(FakeClock(Machine(), late=[8, 4]))
    record = sampler.Record()
    sample(stream, record, 0, samples=40)
    assert stream.expired == 2
    assert machine.log.count("launch") == len(record.ticks) >= 40
    sizes = stream.clock.asked
    assert max(sizes[sizes.index(4) + 1 :]) == stream.fits == 2


@pytest.mark.parametrize("late", [[1], [256, 128, 64, 32, 16, 8, 4, 2]])
def test_a_host_that_is_always_late_fails_the_trial(late):
    """One window cannot be halved, and each attempt costs seconds."""
    clock = FakeClock(Machine(), late=list(late))
    stream, _ = spoken(clock, room=256)
    with pytest.raises(Expired):
        sample(stream, sampler.Record(), 0, samples=999)
    assert 1 <= stream.expired <= EXPIRIES


def test_samples_before_a_wrong_result_are_kept():
    """The window whose outputs were wrong among them, with its frequency."""

    def fail(_):
        raise BenchmarkError("wrong")

    stream, _ = spoken(checks=fail)
    record = sampler.Record()
    with pytest.raises(BenchmarkError, match="wrong"):
        sample(stream, record, 0)
    assert len(record.samples()) == len(record.samples().mhz) == 1


def test_a_frequency_is_cycles_over_time_between_two_stamps():
    """Around a missed stamp those beside it count; one that goes back is none."""
    machine = Machine(mhz=1500)
    for place in (0, 1, 2):
        machine.stamp(place)
    assert frequencies(machine, 3) == [1500, 1500, 1500]
    del machine.marks[1]
    assert frequencies(machine, 3) == [1500, 1500, 1500]
    machine.marks[1] = (1, machine.marks[0][1])
    assert frequencies(machine, 3)[0] == 0


def test_another_clock_reads_the_same_windows():
    """With all that stands before them, and no poison."""
    stream, machine = spoken()
    other = FakeClock(machine, kernel=3300, room=4)
    readings = in_queues(other, stream.work, 9, stream.ahead)
    assert other.asked == [4, 4, 1]
    assert statistics.median(r.ticks for r in readings) == 3300 + 2000
    assert machine.log.count("flush") == 9
    assert "poison" not in machine.log
