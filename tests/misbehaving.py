"""A suite of work that does what it should not; measured by test_runner in workers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from itertools import count
from pathlib import Path

import numpy as np

from steelyard import benchmark

CALLS = count()


def later(act, *arguments):
    """Do as one should in the first four calls, then act."""

    def work(x, out):
        if next(CALLS) < 4:
            np.negative(x, out=out)
        else:
            act(*arguments)

    return work


def then(act):
    """Act before the work is done as it should be."""

    def work(x, out):
        act(x, out)
        np.negative(x, out=out)

    return work


def wrong(x, out):
    """Leave one element as it was."""
    np.negative(x, out=out)
    out[2, 5] = x[2, 5]


def fork(*, returns):
    """Fork a child, once, that ends or that goes on with the parent's work."""
    if next(CALLS) == 0 and os.fork() == 0 and not returns:
        os._exit(0)


def overrun(_x, out):
    """Write one element behind the end."""
    np.lib.stride_tricks.as_strided(out, (65,), (4,))[64] = 1


def spawn(*_):
    """Start a process that outlives the call, and note its number."""
    note = Path(os.environ["STEELYARD_TEST_CHILD"])
    if not note.exists():
        note.write_text(str(subprocess.Popen(["sleep", "1000"]).pid))


def leave_daemon(*_):
    """Start a process in a session of its own, which nobody waits for."""
    if next(CALLS) == 0:
        script = "sleep 1000 & echo $! > $STEELYARD_TEST_CHILD"
        subprocess.run(["setsid", "-w", "sh", "-c", script], check=True)


def write_everywhere(*_):
    """Write to everything that is open."""
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"written by the work\n" * 10)


def patch(place, name):
    """Replace something of the standard library, once."""
    setattr(place, name, lambda *_, **__: "patched")


def pause(*_):
    """Take long in one early call."""
    if next(CALLS) == 4:
        time.sleep(0.2)


class Mute(Exception):  # noqa: N818 # that is what it is
    """An exception without a text."""

    def __str__(self):
        """End the process instead."""
        raise SystemExit(3)


def fail(error):
    """Raise."""
    raise error


def shout(*_):
    """Print to standard output in every way there is."""
    print("printed by the work")  # noqa: T201 # the misdeed itself
    os.write(1, b"written by the work\n")
    sys.stdout.flush()


def shout_for_long(*_):
    """Print 10 MB in each call."""
    text = "printed by the work\n" * 50_000
    sys.stderr.write(text)
    for _ in range(9):
        sys.stdout.write(text)


def thread(*_):
    """Do something elsewhere, which fails there."""
    one = threading.Thread(target=lambda: 1 / 0)
    one.start()
    one.join()


def recurse(*arguments, **keywords):
    """Never end by itself."""
    recurse(*arguments, **keywords)


def spin(*_):
    """Never end."""
    while True:
        pass


def exit_code(code):
    """End as a script does."""
    sys.exit(code)


def interrupt(*_):
    """Be interrupted."""
    raise KeyboardInterrupt


WORK = {
    "good": np.negative,
    "prints": then(shout),
    "prints 10 MB": then(shout_for_long),
    "warns": then(lambda *_: warnings.warn("odd", stacklevel=1)),
    "threads": then(thread),
    "forks": then(lambda *_: fork(returns=False)),
    "forks and returns": then(lambda *_: fork(returns=True)),
    "spawns": then(spawn),
    "returns things": then(lambda *_: iter([1])),
    "raises": lambda x, out: x / 0 + [] + out,
    "raises later": later(lambda: {}["key"]),
    "recurses": recurse,
    "exits": lambda *_, **__: exit_code(0),
    "exits later": later(exit_code, 3),
    "asks for too much": lambda *_, **__: np.empty(1 << 50),
    "interrupts": lambda *_, **__: interrupt(),
    "raises past exceptions": lambda *_, **__: fail(BaseException("past")),
    "ends the process": lambda *_, **__: os._exit(7),
    "crashes": lambda *_, **__: ctypes.string_at(0),
    "kills itself": later(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "closes everything": lambda *_, **__: os.closerange(3, 256),
    "wrong": wrong,
    "wrong later": later(lambda: None),
    "allocates": lambda x, **_: -x,
    "changes its input": then(lambda x, _: x.__setitem__((0, 0), 1)),
    "sorts its input": then(lambda x, _: x.sort()),
    "overruns": then(overrun),
    "takes its time": then(lambda *_: time.sleep(0.1)),
    "spins": lambda *_, **__: spin(),
    "writes everywhere": then(write_everywhere),
    "patches json": then(lambda *_: patch(json, "dumps")),
    "patches the encoder": then(lambda *_: patch(json.JSONEncoder, "encode")),
    "clears modules": then(lambda *_: sys.modules.clear()),
    "hides modules": then(lambda *_: sys.modules.update(json=None, numpy=None)),
    "raises a surrogate": lambda *_, **__: fail(ValueError("\ud800")),
    "raises escapes": lambda *_, **__: fail(ValueError("\x1b[2J\a" * 10)),
    "raises no text": lambda *_, **__: fail(Mute()),
    "raises 100 MB": lambda *_, **__: fail(ValueError("x" * 100_000_000)),
    "interrupts its parent": then(lambda *_: os.kill(os.getppid(), signal.SIGINT)),
    "stops its parent": then(lambda *_: os.kill(os.getppid(), signal.SIGSTOP)),
    "leaves a daemon": then(leave_daemon),
    "pauses": then(pause),
    "asks wrongly": np.negative,
    "is described wrongly": np.negative,
}


@benchmark(how=list(WORK), shape=[(4, 16)])
def odd(b, how, shape):
    """Negate an array, or do something else."""
    assert isinstance(shape, tuple)
    if how == "is described wrongly":
        raise RuntimeError(how)
    x = b.input(shape)
    y = b.output(shape)
    b.check(lambda x: -x if how != "asks wrongly" else x / {}, x)
    return b.launch(WORK[how], x, out=y)
