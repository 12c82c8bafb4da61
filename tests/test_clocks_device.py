"""Clocks of a GPU, on one that is made up: its kernels take what the test says."""

import random
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trials
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import stats
from steelyard.clocks import Expired, Reading, offsets
from steelyard.clocks import gpu as registry
from steelyard.clocks.gpu import cupti, events, globaltimer, graph
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.machine.ticks import common_tick

TICK = 32
ROOM = 1020
"""Entries behind a spin that still waits."""


class Gpu:
    """A GPU's time line: what is submitted runs at once, in order.

    An event takes `event` ns to pass, a launch `launch` more than its kernel, a node of
    a graph `node`; a kernel of user's `extra` beyond what a delay has.
    """

    def __init__(
        self,
        *,
        event=1250.0,
        launch=1500.0,
        node=10.0,
        extra=events.OWN,
        seed=0,
        fetch=0.0,
    ):
        self.event, self.launch, self.node, self.extra = event, launch, node, extra
        self.fetch, self.all_entries = fetch, 0
        self.now = 0.0
        self.random = random.Random(seed)
        self.kernels, self.entries, self.held, self.captured = [], 0, False, None
        self.ways = ("",)  # of the copies that a window's activities are
        self.stuck = False
        self.context = self  # offsets are known by it: each GPU has its own
        self.device = SimpleNamespace(name="NVIDIA H200")
        self.stream, self.waits = 0x57, 0

    def wait(self):
        """Nothing runs while a spin is held."""
        assert not self.held, "somebody waits for a GPU that waits for the host"
        self.waits += 1

    def entry(self):
        """Take a place in the queue."""
        self.entries += 1
        self.all_entries += 1
        # Every eighth is fetched late: what comes after it waits.
        self.now += self.fetch * (self.all_entries % 8 == 0)
        self.stuck |= self.held and self.entries > ROOM

    def kernel(self, nanoseconds, extra=0.0, stream=13):
        """Run a kernel of so many nanoseconds."""
        if self.captured is not None:
            self.captured.append(nanoseconds)
            return
        self.entry()
        self.now += self.launch + extra + self.random.uniform(0, TICK)
        self.kernels.append((self.now, self.now + nanoseconds, stream))
        self.now += nanoseconds


class Work:
    """A user's kernel."""

    def __init__(self, gpu, nanoseconds, stream=13, several=1):
        self.gpu, self.nanoseconds, self.on = gpu, nanoseconds, stream
        self.context, self.stream = gpu.context, 0x57
        self.several, self.launched = several, 0

    def launch(self, count=1):
        """Run it."""
        self.launched += count
        for _ in range(count * self.several):
            self.gpu.kernel(self.nanoseconds, self.gpu.extra, self.on)


class Stampable(Work):
    """One that has a copy that writes down its time."""

    def stamped(self):
        """Return that copy."""
        inside = round((self.nanoseconds - offsets.LAUNCH) / TICK) * TICK
        return SimpleNamespace(
            launch=self.launch, wait=self.gpu.wait, nanoseconds=lambda: inside
        )


def module_of(gpu):  # noqa: C901 # one class for each of the module's
    """Return what stands for `steelyard_device.cuda` with this GPU."""

    class Event:
        def __init__(self, context):
            assert context is gpu.context

        def record(self):
            gpu.entry()
            gpu.now += gpu.event
            self.at = gpu.now // TICK * TICK

        def since(self, before):
            return self.at - before.at

    class EventPair:
        def __init__(self, context):
            self.before, self.after = Event(context), Event(context)

        def nanoseconds(self):
            return self.after.since(self.before)

    class Delay:
        def __init__(self, context, steps):
            self.context, self.stream = context, 0x57
            self.takes = 2.27 * steps + offsets.LAUNCH

        def launch(self, count=1):
            for _ in range(count):
                gpu.kernel(self.takes)

        def nanoseconds(self):
            gpu.wait()
            return round((self.takes - offsets.LAUNCH) / TICK) * TICK

    class Graph:
        def __init__(self, launches, nodes):
            gpu.captured = []
            launches.launch(nodes)
            self.kernels, gpu.captured = gpu.captured, None

        def launch(self):
            gpu.entry()
            gpu.now += gpu.launch
            for each in self.kernels:
                gpu.now += gpu.node + each

    class Spin:
        def __init__(self, context, seconds):
            self.expired = False

        @contextmanager
        def held(self):
            gpu.held, gpu.entries, gpu.stuck = True, 1, False
            try:
                yield
            finally:
                gpu.held, self.expired = False, gpu.stuck

    return SimpleNamespace(
        Event=Event,
        EventPair=EventPair,
        Delay=Delay,
        Graph=Graph,
        Spin=Spin,
        QUEUE=900,
        null=lambda _: SimpleNamespace(launch=lambda: gpu.kernel(550.0)),
    )


def activities_of(gpu):
    """Return what stands for the recording module with this GPU."""

    class Recorder:
        def __init__(self, context):
            self.stream, self.found, self.on = 13, {}, False

        @contextmanager
        def recording(self):
            self.on = True
            yield
            self.on = False

        @contextmanager
        def window(self, number):
            assert self.on
            assert number not in self.found
            first = len(gpu.kernels)
            yield
            self.found[number] = [
                SimpleNamespace(
                    name=f"kernel of stream {stream}",
                    start=round(start // TICK * TICK) + gpu.random.randint(0, 1),
                    end=round(end // TICK * TICK),
                    stream=stream,
                    way=gpu.ways[place % len(gpu.ways)],
                )
                for place, (start, end, stream) in enumerate(gpu.kernels[first:])
            ]

        def collect(self):
            found, self.found = self.found, {}
            return {number: tuple(acts) for number, acts in found.items()}

    return SimpleNamespace(Recorder=Recorder, missing=lambda: None)


def build(monkeypatch, kind, **how):
    """Return a GPU with a clock of it."""
    gpu = Gpu(**how)
    made = module_of(gpu)
    for module in (cupti, events, globaltimer, graph, offsets):
        monkeypatch.setattr(module, "cuda", made)
    monkeypatch.setattr(cupti, "activity", activities_of(gpu))
    return gpu, kind(gpu.context)


def nothing(_):
    """Lead to a window by nothing."""


def estimate(clock, work, count=60):
    """Return what a clock says of a work, from queues as long as they may be."""
    taken = []
    while len(taken) < count:
        windows = min(count - len(taken), clock.capacity(1))
        taken += clock.read(work, windows, nothing)
    ticks = [reading.ticks for reading in taken]
    trial = trials.trial(samples=trials.samples(ticks), clock=clock.facts)
    return stats.of(trial).estimate


CLOCKS = {
    "cupti": cupti.CuptiClock,
    "events": events.EventsClock,
    "graph": graph.GraphClock,
    "globaltimer": globaltimer.GlobaltimerClock,
}
KINDS = pytest.mark.parametrize("kind", CLOCKS.values(), ids=CLOCKS)


@KINDS
@pytest.mark.parametrize("nanoseconds", [700.0, 3205.0, 49_700.0, 500_000.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_clocks_error_bar_holds_the_kernels_time(
    monkeypatch, kind, nanoseconds, seed
):
    """On a GPU whose events, launches and nodes cost what they like."""
    costs = random.Random(seed)
    how = {
        "event": costs.uniform(500, 2000),
        "launch": costs.uniform(700, 3000),
        "node": costs.uniform(-100, 900),
        "extra": events.OWN + costs.uniform(-90, 90),
    }
    gpu, clock = build(monkeypatch, kind, seed=seed, **how)
    found = estimate(clock, Stampable(gpu, nanoseconds))
    assert found.low <= nanoseconds <= found.high
    assert (found.high - found.low) / 2 <= 200 + 0.01 * nanoseconds


def test_a_pair_of_events_reads_more_round_cold_kernels(monkeypatch):
    """By a constant of its own; other clocks read no more there."""
    for kind in CLOCKS.values():
        _, clock = build(monkeypatch, kind)
        warm, cold = clock.facts_in("warm"), clock.facts_in("cold")
        more = events.COLD if kind is events.EventsClock else 0.0
        assert warm == clock.facts
        assert cold == replace(warm, offset=warm.offset + more)


@pytest.mark.parametrize("length", range(9))
def test_how_windows_lie_in_what_the_gpu_fetches_does_not_matter(monkeypatch, length):
    """Of any length: each lies in every way in turn, as those of the offsets do."""
    gpu, clock = build(monkeypatch, events.EventsClock, fetch=1500.0)
    lead = Work(gpu, 10.0)
    taken = clock.read(Work(gpu, 3205.0), 40, lambda _: lead.launch(length))
    ticks = [reading.ticks for reading in taken]
    trial = trials.trial(samples=trials.samples(ticks), clock=clock.facts)
    assert abs(stats.of(trial).mean - 3205.0) < clock.facts.uncertainty


@KINDS
def test_every_clock_finds_its_tick_and_names_itself(monkeypatch, kind):
    """What an H200 ticks in, though CUPTI's ends are a nanosecond off."""
    _, clock = build(monkeypatch, kind)
    assert clock.facts.quantum == TICK
    assert CLOCKS[clock.facts.id] is kind
    assert clock.facts.uncertainty >= 0
    assert kind is not cupti.CuptiClock or set(clock.facts.floor) == {0}


def test_where_nobody_has_looked_an_offset_may_be_wrong_by_more(monkeypatch):
    """What a launch takes beside its instructions was found on an H200."""
    for kind in (events.EventsClock, graph.GraphClock, globaltimer.GlobaltimerClock):
        _, clock = build(monkeypatch, kind)
        known = clock.facts.uncertainty
        gpu, clock = build(monkeypatch, kind)
        gpu.device.name = "NVIDIA A10G"
        wider = clock.facts.uncertainty - known
        assert wider == offsets.LAUNCH - offsets.LAUNCH_UNKNOWN


@KINDS
def test_what_leads_to_a_window_comes_before_it_and_nobody_waits_between(
    monkeypatch, kind
):
    """The host is behind the GPU from the first submission to the last."""
    gpu, clock = build(monkeypatch, kind)
    work = Stampable(gpu, 1000.0)
    clock.read(work, 1, nothing)  # graphs are made at first
    seen, waits = [], []
    clock.read(
        work,
        3,
        lambda place: (seen.append(place), waits.append((gpu.waits, gpu.held))),
    )
    assert sorted(set(seen)) == seen[:: len(seen) // 3] == [0, 1, 2]
    if kind is not globaltimer.GlobaltimerClock:
        assert set(waits) == {(waits[0][0], True)}


@KINDS
def test_the_last_thing_that_wrote_the_outputs_is_the_windows_own_launches(
    monkeypatch, kind
):
    """So that a check of in-place arguments counts what was launched since the restore."""
    gpu, clock = build(monkeypatch, kind)
    work = Stampable(gpu, 1000.0)
    restored = []
    clock.read(work, 2, lambda _: restored.append(work.launched))
    assert work.launched - restored[-1] == 1


@pytest.mark.parametrize("kind", [events.EventsClock, cupti.CuptiClock])
def test_a_queue_that_is_too_long_is_told_and_the_next_one_is_read(monkeypatch, kind):
    """The spin gives up: the GPU waited for the host."""
    gpu, clock = build(monkeypatch, kind)
    with pytest.raises(Expired, match="not filled within"):
        clock.read(Work(gpu, 1000.0, several=ROOM), 2, nothing)
    (reading,) = clock.read(Work(gpu, 1000.0), 1, nothing)
    assert reading.ticks > 900


@given(kernels=st.integers(1, 2000), kind=st.sampled_from(sorted(CLOCKS)))
def test_a_queue_of_a_clocks_capacity_fits_behind_its_spin(kernels, kind):
    """With what leads to a window, as far as it is reckoned with."""
    with pytest.MonkeyPatch.context() as patch:
        gpu, clock = build(patch, CLOCKS[kind])
        windows = clock.capacity(kernels)
        assert windows >= 1
        if kernels > 800:
            return
        lead = Work(gpu, 10.0)
        work = Stampable(gpu, 1000.0, several=kernels)
        taken = clock.read(work, windows, lambda _: lead.launch(6))
        assert len(taken) == windows


@pytest.mark.parametrize(
    ("intervals", "total"),
    [
        ([], 0),
        ([(5, 5)], 0),
        ([(0, 10)], 10),
        ([(0, 10), (20, 25)], 15),
        ([(0, 10), (5, 12)], 12),
        ([(0, 10), (2, 3)], 10),
        ([(7, 9), (0, 8), (0, 1)], 9),
        ([(0, 4), (4, 8)], 8),
    ],
)
def test_busy_time_counts_overlaps_once_and_gaps_not_at_all(intervals, total):
    """Two kernels at once are not twice as long."""
    assert cupti.busy(intervals) == total


def test_cupti_counts_the_kernels_of_a_window(monkeypatch):
    """Six a launch."""
    gpu, clock = build(monkeypatch, cupti.CuptiClock)
    first, second = clock.read(Work(gpu, 1000.0, several=6), 2, nothing)
    assert (first.kernels, second.kernels) == (6, 6)
    assert first.ticks == pytest.approx(6000, abs=6 * TICK)
    assert first.start < second.start


@pytest.mark.parametrize(
    ("kind", "how", "says"),
    [
        # Nothing orders it with the flush.
        (cupti.CuptiClock, {"stream": 7}, "kernel of stream 7 ran on another"),
        # A time of zero would be the fastest kernel of all.
        (cupti.CuptiClock, {"several": 0}, "did nothing on the GPU"),
        # A library's kernel does not write down its time.
        (globaltimer.GlobaltimerClock, {}, "steelyard_kernels alone"),
    ],
)
def test_what_a_clock_cannot_read_is_refused(monkeypatch, kind, how, says):
    """In a sentence of its own."""
    gpu, clock = build(monkeypatch, kind)
    with pytest.raises(BenchmarkError, match=says):
        clock.read(Work(gpu, 1000.0, **how), 1, nothing)


def test_cupti_refuses_a_launch_that_goes_through_the_host(monkeypatch):
    """What is computed there no clock of the GPU sees; a copy one way is no detour."""
    gpu, clock = build(monkeypatch, cupti.CuptiClock)
    gpu.ways = ("out", "in")
    clock.read(Work(gpu, 1000.0, several=1), 2, nothing)
    with pytest.raises(BenchmarkError, match="to the host and back"):
        clock.read(Work(gpu, 1000.0, several=2), 1, nothing)


def test_a_single_window_needs_no_spin_with_cupti(monkeypatch):
    """Work that waits for the GPU inside would wait for it forever."""
    gpu, clock = build(monkeypatch, cupti.CuptiClock)
    work = Work(gpu, 1000.0)
    launch, held = work.launch, []
    work.launch = lambda count: (held.append(gpu.held), launch(count))
    clock.read(work, 1, nothing)
    clock.read(work, 2, nothing)
    assert held == [False, True, True]


def test_work_that_cannot_be_recorded_has_no_graph(monkeypatch):
    """One sentence says with what to measure it."""
    gpu, clock = build(monkeypatch, graph.GraphClock)
    work = Work(gpu, 1000.0)
    launch = work.launch

    def refuse(count=1):
        if gpu.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        launch(count)

    work.launch = refuse
    with pytest.raises(BenchmarkError, match=r"cannot be recorded.*--clock events"):
        clock.read(work, 1, nothing)


def test_a_graph_is_made_once_for_a_work(monkeypatch):
    """And anew for another."""
    gpu, clock = build(monkeypatch, graph.GraphClock)
    one, other = Work(gpu, 1000.0), Work(gpu, 2000.0)
    for _ in range(2):
        before = one.launched
        clock.read(one, 2, nothing)
    assert one.launched - before == 2
    (reading,) = clock.read(other, 1, nothing)
    assert reading.ticks == pytest.approx(2010, abs=TICK)


def test_globaltimer_reads_what_the_kernel_wrote_down(monkeypatch):
    """From its first instruction to its last."""
    gpu, clock = build(monkeypatch, globaltimer.GlobaltimerClock)
    inside = round((5000.0 - offsets.LAUNCH) / TICK) * TICK
    (reading,) = clock.read(Stampable(gpu, 5000.0), 1, nothing)
    assert reading == Reading(inside, reading.start, 0)


def test_graphs_serve_warm_caches_alone(monkeypatch):
    """The rest serves both, and nothing else."""
    for kind in CLOCKS.values():
        _, clock = build(monkeypatch, kind)
        assert clock.serves("warm")
        assert clock.serves("cold") is (kind is not graph.GraphClock)
        assert not clock.serves("first")


@pytest.mark.parametrize(
    ("which", "missing", "ids"),
    [
        ("auto", None, ["cupti", "events"]),
        ("auto", "there is none", ["events", "graph"]),
        ("all", None, ["cupti", "events", "graph", "globaltimer"]),
        ("all", "there is none", ["events", "graph", "globaltimer"]),
        ("events", "there is none", ["events"]),
        ("cupti", None, ["cupti"]),
    ],
)
def test_clocks_are_chosen_the_most_trusted_first(monkeypatch, which, missing, ids):
    """CUPTI where it can be used."""
    gpu, _ = build(monkeypatch, cupti.CuptiClock)
    monkeypatch.setattr(cupti.activity, "missing", lambda: missing)
    assert [type(clock) for clock in registry.clocks(gpu.context, which)] == [
        CLOCKS[name] for name in ids
    ]


def test_a_clock_that_is_not_there_is_refused_in_a_sentence(monkeypatch):
    """Which there are, or why not."""
    gpu, _ = build(monkeypatch, cupti.CuptiClock)
    with pytest.raises(SteelyardError, match="no clock sundial: choose one of cupti,"):
        registry.clocks(gpu.context, "sundial")
    monkeypatch.setattr(cupti.activity, "missing", lambda: "ncu has it.")
    with pytest.raises(SteelyardError, match="--clock cupti cannot be used: ncu has"):
        registry.clocks(gpu.context, "cupti")


@given(
    st.integers(6, 1024),
    st.lists(st.integers(1, 500), min_size=8, max_size=40, unique=True),
    st.randoms(),
)
def test_a_tick_is_found_though_times_are_a_nanosecond_off(tick, counts, random_):
    """Or one that all of them are multiples of as well."""
    times = [count * tick + random_.randint(-1, 1) for count in [*counts, 1, 2, 3]]
    found = common_tick(times)
    assert found == tick or (found > tick and abs(found / tick % 1) < 0.5)
    assert all(abs(t - found * round(t / found)) <= 1 for t in times)


def test_times_without_a_tick_have_one_of_a_nanosecond():
    """Rather than none."""
    assert common_tick(range(100, 120)) == 1.0
