"""Threads and forks: whoever comes first, everyone works on the same pool and code."""

import subprocess
import sys
import threading

import pytest

from steelyard_device.threads import Once

BEGIN = """
import faulthandler, os, signal, sys, threading, time
import numpy as np
from steelyard_kernels import kernel

faulthandler.dump_traceback_later(500, exit=True)  # a hang is a failure
THREADS = 8
sys.setswitchinterval(1e-6)  # so that threads meet in every gap
failures = []

def at_once(work):
    barrier = threading.Barrier(THREADS)
    def begin(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(repr(error))
    threads = [threading.Thread(target=begin, args=(n,)) for n in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures, failures

def right(got, expected):
    assert np.array_equal(got, expected), (got, expected)
"""

FIRST = (
    BEGIN
    + """
double = kernel(lambda x: x * 2)
x = np.ones(300_000, np.float32)
double.build(x)
works, kept = [], []

def bind(number):
    works.append(double.bind(x))
    kept.extend(np.full(4328, 7, np.uint8) for _ in range(500))  # where freed memory was

at_once(bind)
launches = [each._launch for each in works]
assert len({each._words[each._first] for each in launches}) == 1, "several pools"
for each in works:
    each.launch()
    right(each.outputs["out"], x * 2)
assert all((each == 7).all() for each in kept)
"""
)

ROUNDS = (
    BEGIN
    + """
small, large = np.arange(16, dtype=np.float32), np.ones(200_000, np.float32)

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(400)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a forked child failed or hung"

deadline = time.monotonic() + float(sys.argv[1])
rounds = 0
while time.monotonic() < deadline or rounds < 3:
    rounds += 1
    shared = kernel(lambda x, y: x * 3 + y)
    def work(number):
        own = kernel(lambda x, *, s=1.0: x * float(number + rounds) + s)
        right(shared(small, small), small * 4)
        out = np.empty_like(large)
        bound = shared.bind(large, large, out=out)
        bound.launch(3)
        right(out, large * 4)
        for _ in range(20):
            right(shared(small, small, out=np.empty_like(small)), small * 4)
            right(own(small, s=2.0), small * (number + rounds) + 2)
            shared(large, large, out=out)
        right(own(large), large * (number + rounds) + 1)
        right(out, large * 4)
        shared.build(small, small, cache="cold")
        if number in (2, 5):
            def child():
                right(shared(small, small), small * 4)
                right(kernel(lambda x: x - number)(large), large - number)
                bound.launch()
            in_child(child)
    at_once(work)
print(rounds)
"""
)


def run(script, *arguments, cache="off"):
    """Run a script in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        env={"STEELYARD_CACHE": cache, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eight_threads_that_bind_first_share_one_pool():
    """Each once made its own, whose memory was freed while its threads ran on it."""
    for _ in range(4):
        run(FIRST)


@pytest.mark.parametrize("cache", ["off", "on"])
def test_eight_threads_build_bind_launch_and_fork(cache, tmp_path):
    """The same kernel and one of each thread's own, and children of two of them."""
    assert int(run(ROUNDS, "3", cache="off" if cache == "off" else str(tmp_path))) >= 3


def test_a_claimed_launch_waits_for_no_thread_that_never_began():
    """Nobody but the caller runs here: what it did alone is all there was to do."""
    run(
        BEGIN
        + """
from steelyard_device import cpu
cpu._start_thread = lambda *given: None
x = np.ones(300_000, np.float32)
double = kernel(lambda x: x * 2)
right(double(x), x * 2)
bound = double.bind(x)
bound.launch(1000)
right(bound.outputs["out"], x * 2)
"""
    )


def test_what_is_made_once_is_made_by_one_thread():
    """Others wait for it; what was raised is tried again."""
    made, begun = [], threading.Event()

    @Once
    def make(key):
        begun.set()
        threading.Event().wait(0.05)
        made.append(key)
        if len(made) == 1:
            raise ValueError(key)
        return object()

    found = []
    threads = [threading.Thread(target=lambda: found.append(make(1))) for _ in range(4)]
    with pytest.raises(ValueError, match="1"):
        make(1)
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == [1, 1]
    assert len(set(found)) == 1
    assert make.made() == (found[0],)
