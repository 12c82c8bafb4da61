"""A suite of cases that leave their process changed; measured by test_apart."""

from __future__ import annotations

import ctypes
import decimal
import gc
import json
import locale
import os
import random
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np

from steelyard import benchmark


def setitimer():
    """Have a signal sent ten thousand times a second."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)


def limit():
    """Allow fewer files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))


def replace(place, name):
    """Replace something by itself in another name."""
    old = getattr(place, name)
    setattr(place, name, lambda *args, **keywords: old(*args, **keywords))  # noqa: PLW0108 # another


def become_nobody():
    """Give up root's rights, if there are any."""
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)


CHANGES = {
    "nothing": int,
    "seterr": lambda: np.seterr(all="raise"),
    "folder": lambda: os.chdir("/"),
    "variable": lambda: os.environ.update(OMP_NUM_THREADS="1", HOME="/"),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "processors": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "niceness": lambda: os.nice(1),
    "umask": lambda: os.umask(0),
    "limit": limit,
    "handler": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "timer": setitimer,
    "path": lambda: sys.path.insert(0, "/"),
    "stdout": lambda: setattr(sys, "stdout", open(os.devnull, "w")),  # noqa: PTH123, SIM115
    "shut": lambda: sys.stdout.close(),  # noqa: PLW0108 # that of the worker
    "descriptor": lambda: os.closerange(1, 2),
    "user": become_nobody,
    "hook": lambda: setattr(sys, "excepthook", print),
    "recursion": lambda: sys.setrecursionlimit(5000),
    "filters": lambda: warnings.simplefilter("error"),
    "collector": gc.disable,
    "frozen": gc.freeze,
    "seed": lambda: (random.seed(1), np.random.seed(1)),  # noqa: NPY002
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 5),
    "rounding": lambda: ctypes.CDLL("libm.so.6").fesetround(0x400),
    "json": lambda: replace(json, "dumps"),
    "numpy": lambda: replace(np, "add"),
    "time": lambda: replace(sys.modules["time"], "perf_counter_ns"),
}


def seen():
    """Return what a case finds of its process."""
    return [
        np.geterr(),
        os.getcwd(),  # noqa: PTH109
        dict(os.environ),
        locale.setlocale(locale.LC_ALL),
        sorted(os.sched_getaffinity(0)),
        os.nice(0),
        Path("/proc/self/status").read_text().partition("Umask")[2][:10],
        resource.getrlimit(resource.RLIMIT_NOFILE),
        signal.getsignal(signal.SIGUSR1),
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        signal.getitimer(signal.ITIMER_REAL),
        list(sys.path),
        sys.stdout is sys.__stdout__,
        sys.stdout.closed,
        os.fstat(1).st_ino,
        os.getresuid(),
        sys.excepthook is sys.__excepthook__,
        sys.getrecursionlimit(),
        list(warnings.filters),
        gc.get_threshold(),
        gc.get_freeze_count(),
        random.getstate()[1][:3],
        np.random.get_state()[1][:3].tolist(),  # noqa: NPY002
        decimal.getcontext().prec,
        1.0 + np.float64(1e-17),
        json.dumps.__name__,
        np.add is np._core.umath.add,
        sys.modules["time"].perf_counter_ns.__name__,
    ]


FIRST: list[object] = []


@benchmark(how=list(CHANGES))
def leaks(b, how):
    """Change the process in the work, as a first launch may."""
    return b.launch(CHANGES[how])


def look():
    """Fail where the process is not what it was at first."""
    FIRST[:] = FIRST or seen()
    pairs = zip(FIRST, seen(), strict=True)
    if changed := [pair for pair in pairs if len({*map(str, pair)}) > 1]:
        raise RuntimeError(changed)


@benchmark
def innocent(b):
    """Change nothing."""
    return b.launch(look)
