import ctypes
import json
import pickle
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import timings as module
from steelyard_device.spans import NOT_TRACKED, Row, Span, union
from steelyard_device.timings import listening, record, span, timings
from steelyard_device.timings_cost import cost
from steelyard_device.timings_print import duration


class Clock:
    """A clock that stands until it is told to go on."""

    def __init__(self):
        self.now = 1000

    def __call__(self):
        """Return the time."""
        return self.now

    def run(self, nanoseconds):
        """Let time pass."""
        self.now += nanoseconds


@pytest.fixture
def clock():
    """Return a clock that stands."""
    return Clock()


def shape(recorder):
    """Return rows as (path joined, calls, nanoseconds)."""
    return [("/".join(r.path), r.calls, r.nanoseconds) for r in recorder.rows()]


def test_spans_nest_and_add_up(clock):
    """By path, the longest first; what is left is not tracked."""
    with timings(clock=clock) as t:
        for _ in range(2):
            with span("schedule"):
                clock.run(10)
                with span("candidates"):
                    clock.run(30)
        with span("compile"):
            clock.run(100)
        clock.run(20)
    assert shape(t) == [
        ("compile", 1, 100),
        ("schedule", 2, 80),
        ("schedule/candidates", 2, 60),
        ("schedule/not tracked", 0, 20),
        ("not tracked", 0, 20),
    ]
    assert t.wall == 200
    assert t.coverage == 0.9


def test_nothing_is_recorded_when_nobody_asked():
    """One shared object, made once: a span allocates nothing."""
    assert span("a") is span("b")

    def many():
        before = sys.getallocatedblocks()
        for _ in range(1000):
            with span("a"):
                pass
        return sys.getallocatedblocks() - before

    assert min(many() for _ in range(5)) < 10
    record("phase", 0, 10)


def test_a_program_can_ask_whether_anybody_listens():
    """From any thread: asking a compiler for its times costs something."""
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(listening).result()
        with timings():
            assert pool.submit(listening).result()
        assert not listening()


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("allocations", [False, True])
def test_an_exception_passes_and_closes_its_spans(clock, on, allocations):
    """It is neither swallowed nor changed, and later spans are not inside."""

    def fails():
        with span("outer"), span("inner"):
            clock.run(5)
            raise KeyError("mine")

    if not on:
        with pytest.raises(KeyError, match="mine"):
            fails()
        return
    with timings(clock=clock, allocations=allocations) as t:
        with pytest.raises(KeyError, match="mine"):
            fails()
        with span("after"):
            clock.run(5)
    paths = [("outer", 1, 5), ("outer/inner", 1, 5), ("after", 1, 5)]
    assert shape(t) == paths


def test_an_exception_closes_the_timings(clock):
    """They can be read, and spans are off again."""

    def fails():
        with timings(clock=clock) as t, span("a"):
            seen.append(t)
            clock.run(7)
            raise KeyError

    seen = []
    with pytest.raises(KeyError):
        fails()
    (t,) = seen
    clock.run(100)
    assert shape(t) == [("a", 1, 7)]
    assert span("a") is module.OFF


def test_a_thousand_levels_are_kept(clock):
    """Depth costs no recursion while recording."""
    with timings(clock=clock) as t:
        spans = [span(f"level {k}") for k in range(1000)]
        for each in spans:
            each.__enter__()
        clock.run(1)
        for each in reversed(spans):
            each.__exit__(None, None, None)
    assert len(t.spans()[-1].path) == 1000
    assert t.spans()[-1].nanoseconds == 1


def test_no_time_at_all_is_no_error(clock):
    """A wall of nothing with spans of nothing, and one without spans."""
    with timings(clock=clock) as t, span("a"):
        pass
    assert shape(t) == [("a", 1, 0)]
    assert t.coverage == 1.0
    assert "0.00 ns" in t.table()
    with timings(clock=clock) as t:
        pass
    assert t.rows() == ()
    with timings(clock=clock) as t:
        clock.run(10)
    assert shape(t) == [("not tracked", 0, 10)]
    assert t.coverage == 0.0


def test_a_percent_untracked_has_no_row(clock):
    """Above one percent of the wall it has."""
    for rest, shown in ((10, False), (11, True)):
        with timings(clock=clock) as t:
            with span("a"):
                clock.run(1000 - rest)
            clock.run(rest)
        assert (("not tracked", 0, rest) in shape(t)) is shown


def test_a_span_may_be_made_before_it_is_entered(clock):
    """And entered again, inside of another: its name is noted when it starts."""
    with timings(clock=clock) as t:
        a, b = span("a"), span("b")
        with b, a:
            clock.run(3)
        with a:
            clock.run(4)
    assert shape(t) == [("a", 1, 4), ("b", 1, 3), ("b/a", 1, 3)]


def test_open_spans_read_up_to_now(clock):
    """A table can be asked for in the middle; a later end is cut at the close."""
    with timings(clock=clock) as t:
        late = span("late")
        late.__enter__()
        clock.run(5)
        assert shape(t) == [("late", 1, 5)]
        clock.run(5)
    clock.run(5)
    late.__exit__(None, None, None)
    assert shape(t) == [("late", 1, 10)]


def test_threads_started_inside_have_their_own_root(clock):
    """Their time lies beside the wall, not in it."""

    def work():
        with span("job"):
            clock.run(40)

    with timings(clock=clock) as t, span("wait"):
        thread = threading.Thread(target=work, name="worker 1")
        thread.start()
        thread.join()
    assert shape(t) == [("wait", 1, 40), ("worker 1", 1, 40), ("worker 1/job", 1, 40)]
    assert t.coverage == 1.0
    assert [row.beside for row in t.rows()] == [False, True, True]


def test_threads_of_a_pool_follow_the_timings(clock):
    """A thread that outlives one is recorded by the next, and by none when off."""

    def job(name):
        with span(name):
            clock.run(1)

    with ThreadPoolExecutor(1, "pool") as pool:
        pool.submit(job, "before").result()
        with timings(clock=clock) as first:
            pool.submit(job, "one").result()
            with timings(clock=clock) as inner:
                pool.submit(job, "two").result()
            pool.submit(job, "three").result()
        pool.submit(job, "between").result()
        with timings(clock=clock) as second:
            pool.submit(job, "four").result()
    expected = [("pool_0", 1, 3), *((f"pool_0/{k}", 1, 1) for k in ("one", "two"))]
    beside = [row for row in shape(first) if row[0] != NOT_TRACKED]
    assert beside == [*expected, ("pool_0/three", 1, 1)]
    assert [r.path[-1] for r in inner.rows() if r.beside] == ["pool_0", "two"]
    assert [r.path[-1] for r in second.rows() if r.beside] == ["pool_0", "four"]


def test_inner_timings_give_their_spans_to_the_outer(clock):
    """They appear where they ran; the inner ones see only their own."""
    with timings(clock=clock) as outer, span("build"):
        clock.run(1)
        with timings(clock=clock) as inner, span("emit"):
            clock.run(2)
        with span("load"):
            clock.run(3)
    assert shape(inner) == [("emit", 1, 2)]
    assert [row for row in shape(outer) if row[1]] == [
        ("build", 1, 6),
        ("build/load", 1, 3),
        ("build/emit", 1, 2),
    ]


def test_timings_of_two_threads_do_not_mix(clock):
    """Each thread records into its own; the first opened also gets the other's."""
    turn = threading.Barrier(2, timeout=30)
    seen = {}

    def work():
        with timings(clock=clock) as seen["second"]:
            turn.wait()
            with span("theirs"):
                clock.run(5)
            turn.wait()

    with timings(clock=clock) as first:
        thread = threading.Thread(target=work, name="other")
        thread.start()
        turn.wait()
        with span("mine"):
            pass
        turn.wait()
        thread.join()
        assert shape(seen["second"]) == [("theirs", 1, 5)]
    own = [row.path for row in first.rows() if not row.beside and row.calls]
    beside = [row.path for row in first.rows() if row.beside]
    assert own == [("mine",)]
    assert beside == [("other",), ("other", "theirs")]


def test_timings_may_close_out_of_order(clock):
    """A stack that is unwound from the wrong end loses no later span."""
    first, second = timings(clock=clock), timings(clock=clock)
    one = first.__enter__()
    two = second.__enter__()
    first.__exit__(None, None, None)
    with span("a"):
        clock.run(1)
    second.__exit__(None, None, None)
    assert shape(two) == [("a", 1, 1)]
    assert one.spans() == ()
    assert span("a") is module.OFF


def test_many_threads_lose_nothing():
    """Eight at once, some thousand spans: all are there, each in its thread."""

    def work():
        for _ in range(500):
            with span("outer"), span("inner"):
                pass

    with timings() as t:
        threads = [threading.Thread(target=work, name="worker") for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            t.rows()
        for thread in threads:
            thread.join()
    calls = {row.path: row.calls for row in t.rows() if row.calls}
    assert calls == {
        ("worker",): 8,
        ("worker", "outer"): 4000,
        ("worker", "outer", "inner"): 4000,
    }


def test_a_foreign_span_lies_in_the_current_one(clock):
    """With spans inside of it; the clock is theirs."""
    with timings(clock=clock) as t, span("compile"):
        start = clock()
        clock.run(50)
        inside = [(("parse",), start, 10), (("optimize",), start + 10, 20)]
        record("nvrtc", start, 50, inside)
    assert shape(t) == [
        ("compile", 1, 50),
        ("compile/nvrtc", 1, 50),
        ("compile/nvrtc/optimize", 1, 20),
        ("compile/nvrtc/parse", 1, 10),
        ("compile/nvrtc/not tracked", 0, 20),
    ]


def test_a_span_without_its_parent_is_refused(clock):
    """It would be in no row."""
    with timings(clock=clock) as t, pytest.raises(ValueError, match="Give that one"):
        t.merge([(("a", "b"), 0, 1)], "worker")
    with pytest.raises(ValueError, match="Give that one"):
        record("x", 0, 1, [((), 0, 1)])


def test_spans_of_other_processes_are_merged(clock):
    """As plain tuples; workers of one name share rows; wall is when any ran."""
    with timings(clock=clock) as other:
        with span("emit"):
            clock.run(10)
        with span("compile"):
            clock.run(30)
    sent = pickle.loads(pickle.dumps(other.spans()))
    assert all(isinstance(each, tuple) for each in sent)
    later = [each._replace(start=each.start + 20) for each in sent]
    clock.now = 1000
    with timings(clock=clock) as t, span("wait"):
        clock.run(60)
    t.merge(sent, "workers")
    t.merge(later, "workers")
    assert t.rows() == (
        Row(("wait",), 1, 60, 60, 0, 0, 0, beside=False),
        Row(("workers",), 2, 80, 60, 0, 0, 0, beside=True),
        Row(("workers", "compile"), 2, 60, 50, 0, 0, 0, beside=True),
        Row(("workers", "emit"), 2, 20, 20, 0, 0, 0, beside=True),
    )
    assert t.coverage == 1.0


def test_a_span_has_the_most_memory_that_was_held_inside_of_it(clock):
    """Whatever was freed again, and whichever span inside of it held it."""
    with timings(clock=clock, allocations=True) as t, span("all"):
        with span("small"):
            kept = bytearray(10_000)
        with span("large"):
            bytearray(3_000_000)
        with span("none"):
            pass
    del kept
    peaks = {row.path[-1]: row.peak for row in t.rows()}
    assert 10_000 <= peaks["small"] < 20_000
    assert 3_000_000 <= peaks["large"] < 3_010_000
    assert 3_010_000 <= peaks["all"] < 3_030_000
    assert peaks["none"] < 10_000
    assert not tracemalloc.is_tracing()


def test_memory_of_the_c_library_is_told_where_it_is_kept(clock):
    """What LLVM holds on to is no block of the interpreter."""
    heap = ctypes.CDLL(None)
    heap.malloc.restype = ctypes.c_void_p
    heap.free.argtypes = [ctypes.c_void_p]
    with timings(clock=clock, allocations=True) as t:
        with span("taken"):
            at = heap.malloc(ctypes.c_size_t(5_000_000))
        with span("given back"):
            heap.free(at)
    kept = {row.path[-1]: row.heap for row in t.rows()}
    assert kept["taken"] == pytest.approx(5_000_000, rel=0.01)
    assert kept["given back"] == pytest.approx(-5_000_000, rel=0.01)


def test_allocations_are_counted_when_asked_for(monkeypatch, clock):
    """Outside of the span's own time, with what counting costs."""
    blocks = iter([0] * module.COUNTS + [100, 110, 150, 175])

    def count():
        clock.run(3)
        return next(blocks)

    monkeypatch.setattr(sys, "getallocatedblocks", count)
    with timings(clock=clock, allocations=True) as t, span("a"):
        with span("b"):
            clock.run(10)
        record("phase", clock(), 0)
    monkeypatch.undo()
    rows = {row.path[-1]: (row.nanoseconds, row.blocks) for row in t.rows()}
    assert rows["a"] == (16, 75)
    assert rows["b"] == (10, 40)
    assert t.counting == 3
    assert "counting memory: 4 counts of 3.00 ns, 12.0 ns of the time" in t.table()
    assert json.loads(t.json())["counting"] == 3


def fill(clock):
    """Spans of all kinds: nested, beside, foreign, untracked."""
    with span("schedule"), span("candidates"):
        clock.run(1_500_000)
    for _ in range(3):
        with span("compile"):
            with span("optimize"):
                clock.run(412_345_678)
            clock.run(70_000_000)
    with span("a name that is as long as names of kernels sometimes are"):
        clock.run(40_000)
    clock.run(200_000_000)


def test_the_table_reads_at_a_glance(clock, golden):
    """Indented, with units, and the same in a narrow terminal."""
    with timings(clock=clock) as t:
        fill(clock)
    golden(t.table(), "table")
    golden(t.table(width=60), "table_narrow")
    assert max(map(len, t.table(width=60).splitlines())) <= 60


def test_the_table_says_how_workers_add_up(clock, golden):
    """Sum and wall in columns of their own."""
    with timings(clock=clock) as other:
        fill(clock)
    clock.now = 1000
    with timings(clock=clock) as t, span("build_all"):
        clock.run(2_000_000_000)
    for _ in range(2):
        t.merge(other.spans(), "workers")
    golden(t.table())


def test_the_trace_is_what_perfetto_reads(clock):
    """Complete events in microseconds from the start, a named track for each thread."""
    with timings(clock=clock) as t:
        clock.run(1500)
        with span("a"), span("b"):
            clock.run(2500)
    t.merge([Span(("c",), 2000, 500, 9, 8)], "worker")
    trace = json.loads(t.chrome_trace())

    def event(kind, name, thread, **more):
        return {"name": name, "ph": kind, "pid": 1, "tid": thread, **more}

    assert trace["displayTimeUnit"] == "ns"
    assert trace["traceEvents"] == [
        event("M", "thread_name", 0, args={"name": "main"}),
        *(event("X", name, 0, ts=1.5, dur=2.5) for name in "ab"),
        event("M", "thread_name", 1, args={"name": "worker"}),
        event("X", "c", 1, ts=1.0, dur=0.5, args={"blocks": 9, "peak": 8}),
    ]


def test_json_has_all_rows(clock):
    """As `rows` does, with wall and coverage."""
    with timings(clock=clock) as t, span("a"):
        clock.run(10)
    assert json.loads(t.json()) == {
        "wall": 10,
        "coverage": 1.0,
        "explained": 1.0,
        "counting": None,
        "rows": [
            {
                "path": ["a"],
                "calls": 1,
                "nanoseconds": 10,
                "wall": 10,
                "blocks": 0,
                "peak": 0,
                "heap": 0,
                "beside": False,
            }
        ],
    }


def test_a_row_that_holds_others_explains_only_what_they_do(clock):
    """All of a build in one row would be all measured, and nothing said."""
    with timings(clock=clock) as t, span("build"):
        clock.run(10)
        with span("compile"):
            clock.run(30)
    found = json.loads(t.json())
    assert found["coverage"] == 1.0
    assert found["explained"] == 0.75
    assert "100.0% measured, 75.0% in innermost rows" in t.table()


TREES = st.recursive(
    st.builds(dict, name=st.sampled_from("abc"), before=st.integers(0, 99)),
    lambda inner: st.builds(
        dict,
        name=st.sampled_from("abc"),
        before=st.integers(0, 99),
        inside=st.lists(inner, max_size=3),
    ),
    max_leaves=15,
)


@given(st.lists(TREES, max_size=3))
def test_rows_are_the_sums_of_any_tree(trees):
    """Calls and time by path, against a walk that adds up itself."""
    clock = Clock()
    calls, times = Counter(), Counter()

    def walk(tree, above):
        path = (*above, tree["name"])
        with span(tree["name"]):
            clock.run(tree["before"])
            inside = sum(walk(each, path) for each in tree.get("inside", ()))
        calls[path] += 1
        times[path] += tree["before"] + inside
        return tree["before"] + inside

    with timings(clock=clock) as t:
        total = sum(walk(tree, ()) for tree in trees)
    tracked = [row for row in t.rows() if row.path[-1] != NOT_TRACKED]
    assert {row.path: row.calls for row in tracked} == calls
    assert {row.path: row.nanoseconds for row in tracked} == times
    assert all(row.wall == row.nanoseconds for row in tracked)
    assert t.wall == total


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)))
def test_a_union_counts_each_instant_once(intervals):
    """Against counting instants."""
    instants = {at for start, end in intervals for at in range(start, end)}
    assert union(map(tuple, intervals)) == len(instants)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.00 ns"),
        (1.5, "1.50 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (25.2e6, "25.2 ms"),
        (3.119e9, "3.12 s"),
        (12_345e9, "12345 s"),
    ],
)
def test_durations_have_three_figures(nanoseconds, text):
    """In the largest unit that leaves one before the point."""
    assert duration(nanoseconds) == text


def test_the_cost_of_a_span_can_be_measured():
    """Off, on and counting; finite, whatever the machine."""
    assert all(abs(each) < 1e9 for each in cost(rounds=2, count=10))
