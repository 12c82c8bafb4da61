import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device.errors import DeviceError
from steelyard_kernels.artifact import Code
from steelyard_kernels.group.run import Task, Work, limit, run
from steelyard_kernels.group.worker import Reply
from steelyard_kernels.targets import parse
from steelyard_kernels.toolchains.costs import Costs

COSTS = Costs(0.016, 0.001)


class Fake:
    """Compiles what is not among the bad, the silent, the hanging or the deadly."""

    def __init__(self, bad=(), silent=(), hanging=(), deadly=()):
        self.bad, self.silent = set(bad), set(silent)
        self.hanging, self.deadly = set(hanging), set(deadly)
        self.jobs = []
        self.closed = False

    def compile(self, job):
        """Answer by what the entries are."""
        entries = [entry for entry, _ in job.parts]
        self.jobs.append(entries)
        if self.deadly & set(entries):
            self.deadly = self.deadly if len(entries) > 1 else set()
            return Reply(error=DeviceError("it died"), died=True)
        if self.hanging & set(entries):
            return Reply(error=DeviceError("time was up"), stopped=True)
        blamed = {each: DeviceError(f"{each} is bad") for each in self.bad & {*entries}}
        if blamed:
            return Reply(refused=blamed)
        if self.silent & set(entries):
            return Reply(error=DeviceError("something is bad"))
        made = {each: Code(b"", each, each, "fake", 1) for each in entries}
        return Reply(made)

    def close(self):
        """Remember that it was closed."""
        self.closed = True


def work(count, seconds=None):
    """Return so many parts of 10 ms."""
    parts = tuple((f"k{number}", f"text {number}") for number in range(count))
    return Work(parts, (0.01,) * count, parse("cuda:sm_90a"), COSTS, seconds)


def compiled(fakes, count, size=8):
    """Run groups of so many candidates; return what was made, refused, and groups."""
    groups = [tuple(range(count))[i : i + size] for i in range(0, count, size)]
    made, refused, callers = {}, {}, set()

    def told(outcome):
        callers.add(threading.current_thread())
        assert not (made.keys() | refused.keys()) & outcome.made.keys()
        made.update(outcome.made)
        refused.update({k: str(error) for k, error in outcome.refused.items()})

    done = run(work(count), groups, fakes, told)
    assert made.keys() | refused.keys() == set(range(count))
    assert all(fake.closed for fake in fakes)
    assert callers <= {threading.current_thread()}
    return made, refused, done


def test_nothing_to_compile_is_done():
    """No group, no job."""
    assert compiled([Fake()], 0) == ({}, {}, ())


def test_each_group_is_compiled_once_and_by_one_worker():
    """A record of each says who it was."""
    fakes = [Fake(), Fake()]
    made, refused, done = compiled(fakes, 20)
    assert sorted(made) == [*range(20)]
    assert refused == {}
    assert sorted(len(group.members) for group in done) == [4, 8, 8]
    for group in done:
        assert [f"k{each}" for each in group.members] in fakes[group.worker].jobs


@pytest.mark.parametrize("bad", [{3}, {0, 3, 7}, {*range(8)}])
def test_those_that_are_named_fail_and_the_rest_is_compiled_without_them(bad):
    """One, three or all of a group."""
    fake = Fake(bad={f"k{each}" for each in bad})
    made, refused, _ = compiled([fake], 8)
    assert refused == {each: f"k{each} is bad" for each in bad}
    assert made.keys() == {*range(8)} - bad
    assert len(fake.jobs) == (2 if made else 1)


@given(st.sets(st.integers(0, 63), max_size=3), st.integers(1, 3))
def test_an_error_that_names_nobody_is_found_by_halves(silent, workers):
    """In as many steps as halving takes."""
    silent_entries = {f"k{each}" for each in silent}
    fakes = [Fake(silent=silent_entries) for _ in range(workers)]
    _, refused, done = compiled(fakes, 64, size=64)
    assert refused == dict.fromkeys(silent, "something is bad")
    assert len(done) <= 1 + 2 * 6 * len(silent)


def test_one_that_hangs_among_64_is_found_after_three_limits():
    """64, then 8, then 1 together."""
    fake = Fake(hanging={"k41"})
    made, refused, done = compiled([fake], 64, size=64)
    assert refused == {41: "time was up"}
    assert len(made) == 63
    assert sum("k41" in job for job in fake.jobs) == 3
    assert len(done) == 1 + 8 + 8


def test_bad_silent_and_hanging_ones_are_told_apart():
    """Each fails for its own reason, and the rest is compiled."""
    fake = Fake(bad={"k1", "k9"}, silent={"k2"}, hanging={"k3"})
    made, refused, _ = compiled([fake], 16)
    assert refused == {
        1: "k1 is bad",
        9: "k9 is bad",
        2: "something is bad",
        3: "time was up",
    }
    assert len(made) == 12


def test_a_candidate_alone_with_a_dead_worker_is_tried_once_more():
    """Somebody else may have killed it."""
    fake = Fake(deadly={"k5"})
    made, refused, _ = compiled([fake], 8)
    assert len(made) == 8
    assert refused == {}
    assert fake.jobs.count(["k5"]) == 2


def test_who_breaks_a_worker_twice_fails():
    """The second time it is the candidate."""

    class Deadly(Fake):
        def compile(self, job):
            """Answer by what the entries are."""
            return Reply(error=DeviceError("it died"), died=True)

    _, refused, done = compiled([Deadly()], 1)
    assert refused == {0: "it died"}
    assert len(done) == 2


def test_workers_are_closed_when_the_caller_breaks_off():
    """An interrupt leaves no process behind."""
    fakes = [Fake(), Fake()]

    def interrupted(_outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(work(4), [(0, 1), (2, 3)], fakes, interrupted)
    assert all(fake.closed for fake in fakes)


@pytest.mark.parametrize(
    ("members", "seconds", "expected"),
    [
        (1, None, None),
        (1, 0.5, 0.5),
        (8, 0.5, 0.5 + 4 * (0.016 + 8 * 0.01)),
        (8, 0.01, 8 * 0.01),
    ],
)
def test_a_group_has_no_more_time_than_its_candidates_together(
    members, seconds, expected
):
    """And no more than one of them with slack for the others."""
    task = Task(tuple(range(members)))
    assert limit(work(8, seconds), task) == pytest.approx(expected)
