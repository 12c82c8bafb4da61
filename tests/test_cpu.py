import os
from pathlib import Path
from threading import Thread

import llvmlite.binding
import numpy as np
import pytest
import shell
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import caches, cpu, llvm, native, native_language
from steelyard_device.errors import DeviceError

# Counts, per thread, how often it ran; per ticket, how often it was drawn; and keeps
# the last argument: args are (runs, tickets, last, value).
COUNT = """
define void @count(ptr noalias %args, ptr %ticket, i32 %index, i32 %count) {
  %runs = load ptr, ptr %args
  %run = getelementptr i64, ptr %runs, i32 %index
  %ran = atomicrmw add ptr %run, i64 1 monotonic
  %tickets.at = getelementptr i64, ptr %args, i64 1
  %tickets = load ptr, ptr %tickets.at
  %drawn = atomicrmw add ptr %ticket, i64 1 monotonic
  %ticket.at = getelementptr i64, ptr %tickets, i64 %drawn
  %counted = atomicrmw add ptr %ticket.at, i64 1 monotonic
  %last.at = getelementptr i64, ptr %args, i64 2
  %last = load ptr, ptr %last.at
  %value.at = getelementptr i64, ptr %args, i64 3
  %value = load i64, ptr %value.at
  store i64 %value, ptr %last
  ret void
}
"""

FORKS = f"""
import os, signal
import numpy as np
from steelyard_device import cpu, llvm

COUNT = '''{COUNT}'''

def packed(runs):
    function = cpu.load(llvm.assemble(COUNT), "count")
    room = np.zeros(64, np.int64)
    kept.append(room)
    slots = [runs.ctypes.data, room.ctypes.data, room[63:].ctypes.data, 0]
    return cpu.Launch(function, slots, cpu.pool_size())

kept = []
before, after = np.zeros(64, np.int64), np.zeros(64, np.int64)
old = packed(before)
old.launch(3)
child = os.fork()
if child == 0:
    signal.alarm(30)  # a launch on threads that are gone never returns
    old.launch(4)
    packed(after).launch(5)
    cpu.null(cpu.pool_size()).launch(6)
    right = all((before[k], after[k]) == (7, 5) for k in range(cpu.pool_size()))
    os._exit(0 if right else 1)
_, status = os.waitpid(child, 0)
old.launch(2)
assert all(before[k] == 5 for k in range(cpu.pool_size())), "the parent's pool"
assert os.waitstatus_to_exitcode(status) == 0, f"the child's: {{status}}"
"""


class Counted:
    """A launch of `count`, and what it counted."""

    def __init__(self, threads, value=0):
        self.runs = np.zeros(256, np.int64)
        self.tickets = np.zeros(256, np.int64)
        self.last = np.zeros(1, np.int64)
        arrays = (self.runs, self.tickets, self.last)
        slots = [*(array.ctypes.data for array in arrays), value]
        function = cpu.load(llvm.assemble(COUNT), "count")
        self.launch = cpu.Launch(function, slots, threads)


@pytest.fixture(params=["one", "all"])
def threads(request):
    """Give one thread, then all of them."""
    return 1 if request.param == "one" else cpu.pool_size()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_every_thread_takes_part_in_each_launch(threads, count):
    """And nobody else does; tickets start from 0 in each launch."""
    counted = Counted(threads)
    counted.launch.launch(count)
    assert counted.runs[:threads].tolist() == [count] * threads
    assert not counted.runs[threads:].any()
    assert counted.tickets[:threads].tolist() == [count] * threads
    assert not counted.tickets[threads:].any()


@pytest.mark.parametrize("dependent", [False, True])
def test_a_window_launches_as_often_as_it_says(threads, dependent):
    """Its two readings of the clock are in order, whatever lies between."""
    counted = Counted(threads)
    readings = []
    for count in (0, 1, 13, -1):
        readings += counted.launch.window(count, dependent=dependent)
    assert counted.runs[:threads].tolist() == [14] * threads
    assert readings == sorted(readings)
    assert all(isinstance(tick, int) for tick in readings)


def test_the_clock_of_a_window_is_pythons_monotonic_clock():
    """Readings of the two can be put in one order."""
    from time import monotonic_ns

    before = monotonic_ns()
    start, stop = cpu.null().window(1)
    assert before <= start <= stop <= monotonic_ns()


def test_waking_the_threads_launches_nothing(threads):
    """Ready runs an empty kernel, wait none: neither is seen by the one that is weighed."""
    counted = Counted(threads)
    counted.launch.ready()
    counted.launch.wait()
    assert not counted.runs.any()
    assert counted.launch.facts() == {"threads": threads}


def test_the_null_launch_stands_on_the_same_threads(threads):
    """A floor is measured with the hand-over of what it is the floor of."""
    counted = Counted(threads)
    assert counted.launch.null().facts() == counted.launch.facts()
    counted.launch.null().launch(3)
    assert not counted.runs.any()


def test_launches_take_turns_on_one_pool():
    """Two functions launched in turn never see each other's arguments."""
    one, two = Counted(cpu.pool_size(), 1), Counted(cpu.pool_size(), 2)
    for _ in range(200):
        one.launch.launch()
        two.launch.launch(2)
    assert (one.last[0], two.last[0]) == (1, 2)
    assert set(one.runs[: cpu.pool_size()]) == {200}
    assert set(two.runs[: cpu.pool_size()]) == {400}


def test_only_one_thread_or_all_of_them_can_be_had():
    """A part of the mask would leave pinned threads out; the sentence says so."""
    with pytest.raises(DeviceError, match=r"0 threads; a launch uses 1 or all"):
        cpu.Launch(cpu.Function("f", 0), [], 0)


def test_a_forked_child_has_a_pool_of_its_own():
    """Launches packed before the fork run there too: they once waited for ever."""
    done = shell.python("-W", "ignore::DeprecationWarning", "-c", FORKS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("steps", [0, 1, 2, 1000])
def test_a_delay_computes_each_of_its_steps(steps):
    """Its result is that of fused multiply-adds one after the other, bit for bit."""
    result = np.full(1, np.nan, np.float32)
    cpu.delay(steps, result).launch()
    x = np.float32(1)
    for _ in range(steps):
        # Exact in float64 (9 and 24 bits), so that it is rounded once, as fused.
        x = np.float32(np.float64(x) * (1 - 2.0**-9) + 2.0**-10)
    assert result[0] == x


@pytest.mark.parametrize("nbytes", [0, 1, 128, 129, 4096, 4097, 64 << 20])
def test_a_flush_reads_every_line_of_a_core_s_part(nbytes):
    """Memory of ones: the sum of each core is the number of lines it has seen."""
    flush = cpu.Flush(nbytes)
    flush()
    lines = max(2, 2 * -(-nbytes // 128))
    sums = flush._sums[:: 64 // flush._sums.itemsize]
    parts = caches.parts(64 * lines, list(map(caches.last, cpu.cpus())))
    assert sums.tolist() == [(behind - first) // 64 for first, behind in parts]
    assert flush._memory.nbytes == 64 * lines


MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "shared", "parts"),
    [
        (64 * MIB, ["0"], [(0, 64)]),
        (64 * MIB, ["0-1", "0-1"], [(0, 32), (32, 64)]),
        (64 * MIB, ["0-1", "2", "0-1"], [(0, 32), (0, 64), (32, 64)]),
        (6 * MIB, ["0-2"] * 3, [(0, 4), (2, 6), (2, 6)]),
        (2 * MIB, ["0-1", "0-1"], [(0, 2), (0, 2)]),
    ],
)
def test_cores_walk_a_cache_that_they_share_together(
    nbytes, shared, parts, monkeypatch
):
    """All of it, and each at least what its own cache holds four times over."""
    monkeypatch.setattr(caches, "second", lambda: MIB)
    wanted = [(first * MIB, behind * MIB) for first, behind in parts]
    assert caches.parts(nbytes, shared) == wanted


def test_a_second_cache_is_as_large_as_linux_says():
    """Python's own sysconf knows no caches."""
    text = Path(f"/sys/devices/system/cpu/cpu{cpu.cpus()[0]}/cache/index2/size")
    said = text.read_text(encoding="ascii").strip() if text.exists() else "1024K"
    assert f"{caches.second() >> 10}K" == said


@given(st.integers(1, 9999), st.lists(st.sampled_from("abc"), min_size=1))
def test_every_line_of_a_flush_is_walked_beside_each_cache(lines, shared):
    """However many processors share a cache."""
    nbytes = 128 * lines
    parts = caches.parts(nbytes, shared)
    for cache in set(shared):
        behind = 0
        for own, part in sorted(zip(shared, parts, strict=True)):
            if own == cache:
                assert part[0] <= behind
                behind = max(behind, part[1])
        assert behind == nbytes


def test_a_pinned_thread_stays_on_the_first_processor():
    """Afterwards it may run anywhere again, also when the work raised."""
    mask = os.sched_getaffinity(0)
    with cpu.pinned():
        assert os.sched_getaffinity(0) == {min(mask)}
        assert cpu.pool_size() == len(mask)
    with pytest.raises(ZeroDivisionError), cpu.pinned():
        raise ZeroDivisionError
    assert os.sched_getaffinity(0) == mask


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_keep_their_bits(value):
    """A slot is the number's two's complement."""
    assert cpu.slot(value, "q") == value % 2**64


@given(st.floats(width=32))
def test_single_precision_keeps_its_bits(value):
    """Infinities, denormals and NaN among them, in the low four bytes."""
    bits = cpu.slot(value, "f")
    assert bits < 2**32
    back = np.uint32(bits).view(np.float32)
    assert back == np.float32(value) or (np.isnan(back) and np.isnan(value))


@pytest.mark.parametrize(
    ("value", "code"), [(2**63, "q"), (1e39, "f"), (1e5, "e"), (1.5, "i"), ("x", "d")]
)
def test_what_does_not_fit_a_scalar_is_refused(value, code):
    """The sentence has the value and the format."""
    with pytest.raises(DeviceError, match=rf"does not fit a scalar of format '{code}'"):
        cpu.slot(value, code)


def test_both_architectures_have_launch_code():
    """What is made for the other one is a legal program too; a third is refused."""
    host = llvm.host()
    for triple, futex in (("x86_64-linux", "i64 202"), ("aarch64-linux", "i64 98")):
        source, names = native.source(type(host)(triple, "generic", frozenset(), 16))
        text = native_language.translated(source, native.ENTRIES, names)
        assert futex in text
        llvmlite.binding.parse_assembly(text).verify()
    with pytest.raises(DeviceError, match="this machine is riscv64"):
        native.source(type(host)("riscv64-linux", "generic", frozenset(), 16))


def test_two_python_threads_share_the_pool():
    """A launch lets go of the interpreter; the second caller once hung both."""
    nothing = cpu._library().null
    launches = [cpu.Launch(nothing, (), cpu.pool_size()) for _ in range(2)]

    def launch_often(one):
        for _ in range(2000):
            one.launch(10)

    threads = [Thread(target=launch_often, args=(one,)) for one in launches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("threads", sorted({1, cpu.pool_size()}))
def test_one_launch_after_another_is_one_launch_of_both(threads):
    """Each thread does both, with the arguments of each."""
    first, second = Counted(threads, value=7), Counted(1, value=8)
    both = first.launch.then(second.launch)
    both.launch(3)
    for counted, value in ((first, 7), (second, 8)):
        assert counted.runs[:threads].tolist() == [3] * threads
        assert counted.last[0] == value
    assert both.facts() == {"threads": threads}
