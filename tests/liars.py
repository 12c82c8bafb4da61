"""A suite of work that lies: each case does less than it says, or changes what measures.

`test_liars` measures them through the processes of a run. Honest work takes 0.3 ms.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from steelyard import benchmark

SIZE = 4096
TURNS = 80


def honest(x, out, turns=TURNS):
    """Do all of the work."""
    for _ in range(turns):
        np.exp(x, out=out)


def memo(key, missed=honest):
    """Return work that keeps results by what ``key`` makes of its input.

    ``missed`` does the work of an input that is new.
    """
    known = {}

    def work(x, out):
        what = key(x)
        if what not in known:
            missed(x, out)
            known[what] = out.copy()
        out[...] = known[what]

    return work


def sample(x):
    """Return some of an input."""
    return x[::97].tobytes()


def keeping(is_looked_at):
    """Return work that repeats its last result where nobody looks at the output."""
    known = []

    def work(x, out):
        if is_looked_at(out) or not known:
            honest(x, out)
            known[:] = [out.copy()]
        else:
            out[...] = known[0]

    return work


def skipping(when):
    """Return work that leaves its output as it is when ``when`` says so."""

    def work(x, out):
        if not when(x, out):
            honest(x, out)

    return work


def every(number):
    """Return work that skips all calls but one in ``number``."""
    calls = iter(range(10**9))
    return skipping(lambda _x, _out: next(calls) % number)


def one_in(number):
    """Return work that skips one call in ``number``."""
    calls = iter(range(10**9))
    return skipping(lambda _x, _out: next(calls) % number == number - 1)


def at_random(share=0.5):
    """Skip a share of the calls, once it has been called for a while."""
    draw, calls = np.random.default_rng(5), iter(range(10**9))
    return skipping(lambda _x, _out: next(calls) > 20 and draw.random() < share)


def hasty():
    """Skip calls that follow each other at once."""
    last = [0]

    def when(_x, _out):
        before, last[0] = last[0], time.perf_counter_ns()
        return last[0] - before < 4_000_000  # honest work takes up to 1.8 ms

    return skipping(when)


def lasting(seconds=1.0):
    """Keep the result for a while."""
    kept = {}

    def work(x, out):
        key = sample(x)
        when, result = kept.get(key, (0, None))
        if time.monotonic() - when > seconds:
            honest(x, out)
            kept[key] = time.monotonic(), out.copy()
        else:
            out[...] = result

    return work


def unless_poison():
    """Work only where the output holds what the harness writes there."""
    return skipping(lambda _x, out: out[0] > -1e300)


def there_already():
    """Look at some of the output, and leave what is right."""
    return skipping(lambda x, out: np.array_equal(out[::512], np.exp(x[::512])))


def tenth(x, out):
    """Work on all of it only where there is poison, else on a tenth."""
    if out[-1] < -1e300:
        honest(x, out)
    else:
        honest(x[: SIZE // 10], out[: SIZE // 10])


def half_stale(x, out):
    """Write every other element unless there is poison."""
    if out[1] < -1e300:
        honest(x, out)
    else:
        np.exp(x[::2], out=out[::2])


def single(x, out):
    """Compute in half of the precision."""
    out[...] = np.exp(x.astype(np.float32))


def sorts(x, out):
    """Change its input, so that the next launch is quick."""
    if np.any(x[:-1] > x[1:]):
        honest(x, out)
        x.sort()
    np.exp(x, out=out)


def later(x, out):
    """Have a thread write the result a moment after."""
    threading.Timer(0.0005, honest, (x.copy(), out)).start()


def same_as_before():
    """Compare all of the input with the last one."""
    last = [np.empty(0), np.empty(0)]

    def work(x, out):
        if not np.array_equal(last[0], x):
            honest(x, out)
            last[:] = x.copy(), out.copy()
        else:
            out[...] = last[1]

    return work


def called_by(*names):
    """Return whether any caller is a function of such a name."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def stack():
    """Work where the caller is one that looks."""
    looks = (
        "audit",
        "_audit",
        "__init__",
        "solve",
        "check",
        "stream_of",
        "warm_caches",
    )
    return keeping(lambda out: called_by(*looks) or out[0] < -1e300)


def uncollected():
    """Skip while the garbage collector is off, as it is in windows."""
    return keeping(lambda _out: gc.isenabled())


class Kernel:
    """Work that is bound to its arrays before it is launched."""

    def __init__(self, bound):
        self._bound = bound

    def bind(self, x, *, out):
        """Bind."""
        return self._bound(x, out)

    def __call__(self, x, *, out):
        """Launch."""
        honest(x, out)


class Bound:
    """Does all of its work."""

    def __init__(self, x, out):
        self.x, self.out, self.result = x, out, np.exp(x)

    def ready(self):
        """Nothing sleeps."""

    def launch(self, count=1):
        """Do all of it."""
        for _ in range(count):
            honest(self.x, self.out)

    def wait(self):
        """Nothing is under way."""

    def facts(self):
        """Say nothing."""
        return {}


class Readied(Bound):
    """Work that is done when it is told to be ready."""

    def ready(self):
        """Do all of it."""
        honest(self.x, self.result)

    def launch(self, count=1):
        """Copy what is there."""
        for _ in range(count):
            self.out[...] = self.result


class OncePerWindow(Bound):
    """A kernel whose launches of a window are one."""

    def launch(self, count=1):
        """Launch once, whatever was asked for."""
        honest(self.x, self.out, turns=1 if count else 0)


class OwnClock(Bound):
    """A kernel that brings its own clock."""

    def window(self, count, *, dependent=False):
        """Say that it took a tenth."""
        del dependent
        start = time.perf_counter_ns()
        self.launch(count)
        return start, start + (time.perf_counter_ns() - start) // 10

    def null(self):
        """Return the same."""
        return self


def clock(factor, *names):
    """Have every module's clocks of some names run slow."""
    for module in list(sys.modules.values()):
        for name in names:
            read = getattr(module, name, None)
            if callable(read) and (module.__name__ or "").startswith("steelyard"):
                first = read()
                slow = lambda *a, r=read, f=first: f + (r(*a) - f) // factor  # noqa: E731
                with suppress(Exception):
                    setattr(module, name, slow)


def patching(how):
    """Return honest work that changes the harness round it at its first call."""
    done = []

    def work(x, out):
        if not done:
            done.append(how())
        honest(x, out)

    return work


def slow_clock():
    """Patch the clock of windows."""
    clock(10, "perf_counter_ns")


def slow_clocks():
    """Patch the other clock too."""
    from steelyard.measure import stream

    clock(10, "perf_counter_ns", "process_time_ns", "monotonic_ns")
    read = stream.other_clock
    first = read()
    stream.other_clock = lambda: first + (read() - first) // 10


def no_audit():
    """Replace the audit."""
    from steelyard.measure import audit

    audit.audit = lambda *_: {}


def short_samples():
    """Write less time into each sample than it took."""
    from steelyard.measure import sampler

    add = sampler.Record.add
    sampler.Record.add = lambda self, start, stop, *rest: add(
        self, start, start + (stop - start) // 10, *rest
    )


def shorten(samples):
    """Write a tenth of each window."""
    samples["ticks"] = [ticks // 10 for ticks in samples["ticks"]]


def forged_answer():
    """Wrap what sends answers: ticks a tenth, no doubts."""
    from steelyard.process import wire

    send = wire.Pipe.send

    def forge(pipe, message):
        if "trial" in message:
            shorten(message["trial"]["samples"])
            message["trial"]["doubts"] = ()
        send(pipe, message)

    wire.Pipe.send = forge


def forged_json():
    """Replace what writes JSON."""
    dumps = json.dumps

    def forge(message, **how):
        if isinstance(message, dict) and "trial" in message:
            shorten(message["trial"]["samples"])
        return dumps(message, **how)

    json.dumps = forge


def no_comparison():
    """Believe any result, and compute a tenth."""
    from steelyard.prepare import checking

    checking.Expectation._compare = lambda *_: None
    checking.wrong_on_new_data = lambda *_: ""


def kinder():
    """Have more of the processor than others."""
    with suppress(OSError):
        os.nice(-5)
    with suppress(OSError):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def spinning():
    """Leave a thread that keeps a processor busy."""

    def spin():
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()


def blocks():
    """Be honest in the first process that has it."""
    mark = Path(os.environ["LIARS"]) / "first"
    if mark.exists():
        return memo(sample)
    mark.write_text("")
    return honest


def first_buffer():
    """Write to the first output that it was given, and to no other."""
    kept = []

    def work(x, out):
        kept.append(out) if not kept else None
        honest(x, kept[0])

    return work


def lazy():
    """Compute where the output is the buffer that is looked at, else only note it."""
    kept = []

    def work(x, out):
        if not kept:
            kept.append(out.ctypes.data)
        if out.ctypes.data == kept[0]:
            honest(x, out)

    return work


def by_clock():
    """Work in one tenth of a second of five."""
    return skipping(lambda _x, _out: int(time.monotonic() * 10) % 5)


def unaudited(missed):
    """Return work that keeps results, and has new data seen to by ``missed``."""
    no_audit()
    return memo(sample, missed)


def thread(x, out):
    """Work in a thread of its own, which ends."""
    one = threading.Thread(target=honest, args=(x, out))
    one.start()
    one.join()


def taking_turns(*, on_one):
    """Return work for which threads take turns, or get into each other's way."""
    hands = [ThreadPoolExecutor(1) for _ in range(10)]

    def part(x, out):
        if on_one:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        honest(x, out, turns=TURNS // 10)

    def missed(x, out):
        parts = []
        for hand in hands:
            parts.append(hand.submit(part, x, np.empty_like(out)))
            if not on_one:
                parts[-1].result()
        for one in parts:
            one.result()
        honest(x, out, turns=1)

    return missed


def computed(x):
    """Return the result."""
    out = np.empty_like(x)
    honest(x, out)
    return out


def slow_answers():
    """Take long over problems where there are none."""
    from steelyard.measure import regions

    solve = regions.Solver.solve

    def slowly(self, first, last):
        if first == last:
            time.sleep(0.02)
        solve(self, first, last)

    regions.Solver.solve = slowly
    return unaudited(honest)


def afterwards():
    """Say that problems are solved, and have a thread solve them then."""
    from steelyard.measure import regions

    regions.Solver.solve = lambda self, first, last: threading.Thread(
        target=solve_all, args=(self._area, first, last)
    ).start()
    return unaudited(honest)


def solve_all(area, first, last):
    """Solve a range of problems."""
    for number in range(first, last):
        honest(area.given["x"][number], area.left["y"][number])


def beforehand():
    """Have a thread solve problems as soon as they can be seen."""
    from steelyard.measure import regions

    before = regions.Solver.__init__
    done = {}

    def watch(area):
        for number in [*range(len(area.given["x"]))] * 10_000:
            x = np.array(area.given["x"][number])
            if number not in done and x.all():
                done[number] = computed(x)

    def begin(self, prepared, mode, scale, area):
        before(self, prepared, mode, scale, area)
        threading.Thread(target=watch, args=(area,), daemon=True).start()

    def solve(self, first, last):
        for number in range(first, last):
            if number not in done:
                done[number] = computed(self._area.given["x"][number])
            self._area.left["y"][number] = done[number]

    regions.Solver.__init__, regions.Solver.solve = begin, solve
    return unaudited(honest)


LIES = {
    "by address": lambda: memo(lambda x: x.ctypes.data),
    "by id": lambda: memo(id),
    "by shape": lambda: memo(np.shape),
    "by first element": lambda: memo(lambda x: x[0]),
    "by a sample": lambda: memo(sample),
    "by content": lambda: memo(lambda x: hash(x.tobytes())),
    "for a while": lasting,
    "same as before": same_as_before,
    "unless poison": unless_poison,
    "there already": there_already,
    "a tenth": lambda: tenth,
    "half stale": lambda: half_stale,
    "single": lambda: single,
    "sorts": lambda: sorts,
    "later": lambda: later,
    "every other": lambda: every(2),
    "every tenth": lambda: every(10),
    "all but one in seven": lambda: one_in(7),
    "at random": at_random,
    "hasty": hasty,
    "ready": lambda: Kernel(Readied),
    "once a window": lambda: Kernel(OncePerWindow),
    "own clock": lambda: Kernel(OwnClock),
    "stack": stack,
    "uncollected": uncollected,
    "first buffer": first_buffer,
    "lazy": lazy,
    "blocks": blocks,
    "by the clock": by_clock,
    "nine of ten": lambda: at_random(0.9),
    "in a thread": lambda: unaudited(thread),
    "taking turns": lambda: unaudited(taking_turns(on_one=False)),
    "in each other's way": lambda: unaudited(taking_turns(on_one=True)),
    "slow answers": slow_answers,
    "afterwards": afterwards,
    "beforehand": beforehand,
    "slow clock": lambda: patching(slow_clock),
    "slow clocks": lambda: patching(slow_clocks),
    "short samples": lambda: patching(short_samples),
    "forged answer": lambda: patching(forged_answer),
    "no audit": lambda: (no_audit(), memo(sample))[1],
    "no comparison": lambda: (no_comparison(), tenth)[1],
    "kinder": lambda: patching(kinder),
    "spinning": lambda: patching(spinning),
}
"""What returns the work of each lie."""

PATCHES = (
    *("slow clock", "slow clocks", "short samples", "forged answer", "forged json"),
    *("no audit", "no comparison", "kinder", "spinning", "later", "blocks"),
    *("in a thread", "taking turns", "in each other's way"),
    *("slow answers", "afterwards", "beforehand"),
)
"""Lies that would change what is measured of others in their process."""

HONEST = {
    "forged json": lambda: patching(forged_json),  # which nobody uses any more
    "honest": lambda: honest,
    "quick": lambda: partial(honest, turns=1),
    "allocates": lambda: lambda x, out: np.copyto(out, np.exp(x)),
}


@benchmark(shape=["none", "empty", "one"])
def shapes(b, shape):
    """Add one to an array of an odd shape in place, and give its double."""
    of = {"none": (), "empty": (0, 3), "one": (1,)}[shape]
    x = b.input(of, "int64", dist="integers")
    u = b.inout(of, "float32")
    y = b.output(of, "int64")
    b.check(lambda x, u: (2 * x, u + 1), x, u)
    return b.launch(doubled, x, u, out=y)


def doubled(x, u, out):
    """Do it."""
    np.multiply(x, 2, out=out)
    np.add(u, 1, out=u)


@benchmark(lie=[*LIES, *HONEST])
def lies(b, lie):
    """Take the exponential of an array, or do not."""
    x = b.input(SIZE, "float64")
    y = b.output(SIZE, "float64")
    b.check(np.exp, x)
    return b.launch((LIES | HONEST)[lie](), x, out=y)
