"""Traces: the format, the time axis, and what is there without a GPU."""

import json
from contextlib import contextmanager

import pytest
import shell
from fakes import FakeClock, case_of
from hypothesis import given
from hypothesis import strategies as st

from steelyard.declare import mode
from steelyard.declare.discovery import discover
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.machine import files, lock
from steelyard.process import perfetto, tracing
from steelyard.process.perfetto import HOST, Recording, Span, Work
from steelyard_device.cuda.activity import Activity

KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}
"""Of each phase of Chrome's trace event format that we write."""


def check(document):
    """Hold a trace against the format, and its arrows against its spans."""
    json.dumps(document, allow_nan=False)
    assert document["displayTimeUnit"] == "ns"
    events = document["traceEvents"]
    lasting = [event for event in events if event["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert event.keys() == KEYS[event["ph"]]
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert (event["pid"], event["tid"]) in named
    for event in events:
        if event["ph"] in "sf":  # an arrow ends at what lasts on its own thread then
            place = (event["pid"], event["tid"])
            assert any(
                (e["pid"], e["tid"]) == place
                and e["ts"] - 1e-3 <= event["ts"] <= e["ts"] + e["dur"] + 1e-3
                for e in lasting
            )
    arrows = [[e["id"] for e in events if e["ph"] == phase] for phase in "sf"]
    assert arrows[0] == arrows[1]
    assert len(set(arrows[0])) == len(arrows[0])
    return lasting


def on_the_cpu(b):
    """Copy on the CPU."""
    x = b.input(10)
    return b.launch(abs, x)


def turn(case, text="kernel/warm"):
    """Return a plan's one turn."""
    return PlannedTrial(0, 0, case, mode.parse(text))


TIMES = st.integers(0, 10**15)


@st.composite
def recordings(draw):
    """Make a case's spans one after another, and works that they submitted."""
    edges = sorted(draw(st.lists(TIMES, min_size=2, max_size=12)))
    spans = [Span("s", a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    works = [
        Work("k", start, start + draw(st.integers(0, 10**6)), stream, place, {})
        for start, stream, place in draw(
            st.lists(
                st.tuples(TIMES, st.integers(0, 3), st.integers(0, len(spans) - 1)),
                max_size=6,
            )
        )
    ]
    return Recording("a case", spans, works)


@given(st.lists(recordings(), max_size=3))
def test_any_trace_keeps_to_the_format(several):
    """Every event has its fields and its thread a name; every arrow its two ends."""
    lasting = check(perfetto.document(several, {}))
    assert len(lasting) == sum(len(one.spans) + len(one.works) for one in several)


def test_a_trace_begins_at_zero_and_keeps_a_nanosecond():
    """Microseconds since the first span, though the clock has run for weeks."""
    long_ago = 3 * 10**15
    spans = [
        Span("prepare", long_ago, long_ago + 1),
        Span("launch", long_ago + 5, long_ago + 9),
    ]
    first, second = check(perfetto.document([Recording("a", spans, [])], {}))
    assert (first["ts"], first["dur"]) == (0, 0.001)
    assert (second["ts"], second["dur"]) == (0.005, 0.004)


def test_each_stream_has_a_line_of_its_own():
    """Work that left our stream is seen at once."""
    works = [Work("k", 5, 6, 13, 0, {}), Work("k", 5, 6, 7, 0, {})]
    lasting = check(perfetto.document([Recording("a", [Span("s", 0, 9)], works)], {}))
    assert len({event["tid"] for event in lasting} - {HOST}) == 2


def test_arrows_start_in_turn_within_the_span_that_submitted():
    """Two kernels of one call do not seem to be submitted at one moment."""
    works = [Work("k", 20, 30, 1, 0, {}), Work("k", 30, 40, 1, 0, {})]
    found = perfetto.document([Recording("a", [Span("launch", 0, 8)], works)], {})
    starts = [e["ts"] for e in found["traceEvents"] if e["ph"] == "s"]
    assert starts == [0.002, 0.006]


def test_two_clocks_are_aligned_by_their_closest_readings(monkeypatch):
    """A reading that was interrupted does not count."""
    clock = FakeClock(1000, step=10)
    slow = iter([500, *[0] * 100])

    def other():
        clock.time += next(slow)
        return clock.time + 10**18

    monkeypatch.setattr(tracing, "monotonic_ns", clock)
    assert tracing.offset(other) == pytest.approx(-(10**18), abs=10)


class FakeRecorder:
    """Stands in for CUPTI's: each launch is a kernel a microsecond later."""

    def __init__(self, clock):
        self.clock = clock
        self.made = {}

    @contextmanager
    def recording(self):
        """Record nothing by itself."""
        yield

    @contextmanager
    def window(self, number):
        """Open a window that `submit` fills."""
        self.made[number] = []
        self.open = number
        yield

    def submit(self, kind="kernel"):
        """Make something that runs a microsecond later, by a clock 5000 ahead."""
        start = self.clock.time + 6000
        ones = (1, 1, 1)
        self.made[self.open].append(
            Activity(kind, kind, start, start + 500, 13, 1, 4, ones, ones, 8, 0, 64)
        )

    def collect(self):
        """Return what was submitted, by window."""
        return {number: tuple(found) for number, found in self.made.items()}


def test_device_work_lies_on_the_hosts_time_axis(monkeypatch):
    """Its span is the one it was submitted in, whatever CUPTI's clock reads."""
    clock = FakeClock(step=100)
    monkeypatch.setattr(tracing, "monotonic_ns", clock)
    tracer, recorder = tracing.Tracer(), FakeRecorder(clock)
    with tracer.recording(recorder, lambda: clock.time + 5000):
        with tracer.span("flush"):
            recorder.submit("memset")
        with tracer.span("launch"):
            recorder.submit()
            submitted = clock.time
        with tracer.span("wait"):
            clock.time += 9000
    fill, kernel = tracer.works()
    assert (fill.name, fill.span, fill.facts["bytes"]) == ("memset", 0, 64)
    assert (kernel.name, kernel.span) == ("kernel", 1)
    assert kernel.start == pytest.approx(submitted + 1000, abs=100)
    assert kernel.end - kernel.start == 500
    recording = Recording("a", tracer.spans, [fill, kernel])
    assert len(check(perfetto.document([recording], {}))) == 5


def plain(folder):
    """Write a suite of a plain callable on the CPU."""
    file = folder / "plain.py"
    file.write_text(
        "from steelyard import benchmark\n\n@benchmark\ndef plain(b):\n"
        "    x = b.input(10)\n    return b.launch(print, x)\n"
    )
    return file


def written(tmp_path, *modes):
    """Trace a plain callable on the CPU; return the document and what was said."""
    (case,) = discover([str(plain(tmp_path))])[0].cases()
    place, said = tmp_path / "trace.json", []
    how = Settings(flush_bytes=1 << 20)
    tracing.trace([turn(case, text) for text in modes], how, place, said.append)
    return json.loads(place.read_text()), said


def test_on_the_cpu_there_are_the_hosts_spans_and_it_says_so(tmp_path):
    """The work may print as it likes: the answer is found all the same."""
    document, said = written(tmp_path, "kernel/cold", "latency/cold", "kernel/warm")
    lasting = check(document)
    assert {event["name"] for event in lasting if event["pid"] == 1} == {
        "prepare",
        "restore",
        "flush",
        "wake",
        "launch",
        "wait",
    }
    assert sum(event["name"] == "launch" for event in lasting) == 2 * tracing.ROUNDS
    titles = [
        e["args"]["name"]
        for e in document["traceEvents"]
        if e["name"] == "process_name"
    ]
    assert titles == ["plain cold", "plain warm"]
    assert sum("runs on the CPU" in line for line in said) == 2


def test_a_case_that_fails_is_told_of_and_nothing_is_written(tmp_path):
    """An empty trace would look like a launch without work."""
    place, said = tmp_path / "trace.json", []
    for mode_ in ("kernel/warm", "build/cold"):  # a build launches nothing
        plan = [turn(case_of(on_the_cpu), mode_)]
        with pytest.raises(SteelyardError, match="no launch could be traced"):
            tracing.trace(plan, Settings(), place, said.append)
    assert "on_the_cpu" in said[0]
    assert not place.exists()


def test_a_place_that_cannot_be_written_is_refused_before_anything(tmp_path):
    """A folder that is missing; a file there, or one to come, is fine."""
    (tmp_path / "old.json").write_text("{}")
    for name in ("old.json", "new.json"):
        files.require_writable(tmp_path / name, "--trace")
    with pytest.raises(SteelyardError, match=r"--trace .* cannot be written: .* miss"):
        files.require_writable(tmp_path / "no" / "trace.json", "--trace")


def test_a_run_writes_the_trace_beside_its_results(tmp_path, monkeypatch):
    """One command does both; nothing of the trace is in what it prints as results."""
    monkeypatch.setattr(lock, "default_path", lambda: tmp_path / "lock")
    file, place = plain(tmp_path), tmp_path / "trace.json"
    line = ["run", str(file), "--mode", "kernel/warm", "--blocks", "1"]
    line += ["--store", str(tmp_path / "runs.db"), "--no-check"]
    done = shell.command(*line, "--trace", str(place), "--profile", "ncu")
    check(json.loads(place.read_text()))
    assert f"{place} has 1 traces" in done.stderr
    assert "no chosen case runs on a GPU" in done.stderr
    assert "--trace:" not in done.stdout
