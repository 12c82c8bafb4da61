"""Shares of what a GPU was measured to do at most: pure, and kept in a file."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import peaks
from steelyard.analyse.trial import ClockFacts
from steelyard.clocks import Reading
from steelyard.errors import SteelyardError
from steelyard.machine import gpu_choice
from steelyard.measure import gpu_peaks

TABLE = {
    "method": peaks.METHOD,
    "copy": {
        "warm": {"65536": 1000.0, "131072": 1200.0, "1048576": 2000.0},
        "cold": {"65536": 1500.0, "1048576": 4000.0},
    },
    "rates": {"float16": {"fma": 1e14, "tensor": 8e14}, "float32": {"fma": 6e13}},
}


def share(nanoseconds, **of):
    """Return the share of a launch of so many nanoseconds."""
    return peaks.nearest(TABLE, nanoseconds, cache="warm", **of).share


@given(st.integers(65536, 1 << 24), st.integers(65536, 1 << 24))
def test_more_bytes_never_have_a_shorter_best_time(one, other):
    """Between two sizes the time of the best copy rises."""
    less, more = sorted((one, other))
    assert share(1e4, nbytes=less) <= share(1e4, nbytes=more) * (1 + 1e-12)


def test_cold_launches_are_held_against_cold_copies():
    """At the same bytes they have more time."""
    cold = peaks.nearest(TABLE, 4000.0, cache="cold", nbytes=1 << 20)
    assert cold == peaks.Peak(1.0, "copy")


def test_the_bound_is_the_one_that_is_nearest():
    """Operations of a dtype are held against its fastest units."""
    matmul = peaks.nearest(
        TABLE, 1e6, cache="warm", nbytes=65536, operations=4e11, dtype="float16"
    )
    assert matmul == peaks.Peak(0.5, "float16 tensor")
    copying = peaks.nearest(
        TABLE, 1000.0, cache="warm", nbytes=65536, operations=10, dtype="float16"
    )
    assert copying.bound == "copy"


@pytest.mark.parametrize(
    ("table", "nanoseconds", "of"),
    [
        ({}, 1.0, {"nbytes": 8}),
        (TABLE, 0.0, {"nbytes": 8}),
        (TABLE, float("nan"), {"nbytes": 8}),
        (TABLE, 1.0, {}),
        (TABLE, 1.0, {"nbytes": 65535}),
        (TABLE, 1.0, {"operations": 8, "dtype": "int4"}),
        ({"problem": "no clock"}, 1.0, {"nbytes": 8}),
    ],
)
def test_where_nothing_is_known_there_is_no_share(table, nanoseconds, of):
    """It is absent, never a guess."""
    assert peaks.nearest(table, nanoseconds, cache="warm", **of) is None


def test_a_table_is_kept_by_gpu_and_driver(tmp_path):
    """What was written is read; a driver of another number has a file of its own."""
    place = tmp_path / "deep" / "a.json"
    assert gpu_choice.kept(place) is None
    gpu_choice.keep(place, TABLE)
    assert gpu_choice.kept(place) == TABLE
    assert [file.name for file in place.parent.iterdir()] == ["a.json"]
    key = ("GPU-1", "580.1", "13.4", "cupti")
    others = [("GPU-2", *key[1:]), ("GPU-1", "580.2", *key[2:])]
    others += [(*key[:2], "13.5", "cupti"), (*key[:3], "events")]
    assert len({gpu_choice.kept_file(*each) for each in (key, *others)}) == 5


def test_the_table_of_the_best_clock_is_taken(tmp_path):
    """One that is damaged is none."""
    cupti, events = tmp_path / "cupti", tmp_path / "events"
    assert gpu_choice.best_kept([cupti, events]) == {}
    gpu_choice.keep(events, TABLE | {"clock": "events"})
    assert gpu_choice.best_kept([cupti, events])["clock"] == "events"
    gpu_choice.keep(cupti, TABLE | {"clock": "cupti"})
    assert gpu_choice.best_kept([cupti, events])["clock"] == "cupti"
    cupti.write_text("{")
    assert gpu_choice.best_kept([cupti, events])["clock"] == "events"


def test_a_share_knows_the_error_of_the_clock_that_read_the_peak():
    """Nanoseconds are much of a short copy; a rate was read over long ones."""
    table = TABLE | {"uncertainty": 100.0, "drift": 0.001}
    copied = peaks.nearest(table, 500.0, cache="warm", nbytes=65536)
    assert copied == peaks.Peak(2.0, "copy", pytest.approx(0.101))
    counted = peaks.nearest(table, 1e6, cache="warm", operations=1, dtype="float32")
    assert counted.error == 0.001


@pytest.mark.parametrize("text", ["", "{", "[]", '{"method": 0}', '{"method": 1}'])
def test_a_damaged_or_older_table_is_measured_again(tmp_path, text):
    """It counts as none."""
    place = tmp_path / "a.json"
    place.write_text(text)
    assert gpu_choice.kept(place) is None


def test_where_nothing_can_be_written_a_table_is_not_kept(tmp_path):
    """The run has it all the same."""
    (tmp_path / "file").write_text("")
    gpu_choice.keep(tmp_path / "file" / "a.json", TABLE)
    assert gpu_choice.kept(tmp_path / "file" / "a.json") is None


class Clock:
    """Reads kernels of known nanoseconds, some windows at a time, with an offset."""

    facts = ClockFacts("fake", 1, 1.0, (), offset=500.0)

    def __init__(self, times):
        self.times, self.queues = iter(times), []

    def facts_in(self, cache):
        """Cold kernels have another nanosecond beside them."""
        return replace(self.facts, offset=500.0 + (cache == "cold"))

    def capacity(self, kernels):
        """Three windows fit."""
        return 3 // kernels

    def read(self, work, windows, ahead):
        """Read a queue."""
        self.queues.append(windows)
        for window in range(windows):
            ahead(window)
        return [Reading(next(self.times) + 500, 0, 1) for _ in range(windows)]


class Work:
    """Counts launches."""

    def __init__(self):
        self.launched = 0

    def launch(self, count):
        """Launch."""
        self.launched += count


def test_a_peak_is_read_without_the_offset_in_queues_that_fit():
    """The median of all windows; a warm one has a launch before it."""
    clock, work = Clock([100, 120, 110, 90, 400, 105, 115]), Work()
    assert gpu_peaks.read(clock, work, 7, None) == 110
    assert clock.queues == [3, 3, 1]
    assert work.launched == 7


def test_a_cold_peak_is_read_behind_a_flush():
    """And nothing of the work comes before it."""
    flushes = []
    work = Work()
    read = gpu_peaks.read(Clock([1, 3]), work, 2, lambda: flushes.append(1))
    assert read == 2 - 1  # with the offset of cold kernels
    assert (len(flushes), work.launched) == (2, 0)


def test_peaks_that_cannot_be_measured_are_a_sentence():
    """Here there is no GPU: the process that measures says so."""
    pytest.importorskip("cuda.bindings.driver", reason="needs the cuda extra")
    with pytest.raises(SteelyardError, match="peaks of GPU 99 could not be measured"):
        gpu_peaks.in_its_process(99)
