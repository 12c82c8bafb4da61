"""Work that lies about how long it takes, and what is launched on it.

Each liar is a work of one benchmark; `test_zoo` measures it as it is, and again without
the one defence that catches it.
"""

from __future__ import annotations

import queue
import threading
import time
from functools import lru_cache

import numpy as np

ROWS = 512
WIDE = 1 << 16


def negate(x, out):
    """Do what is asked, slowly enough to see who does not."""
    for _ in range(20):
        np.negative(x, out=out)


class Lagging:
    """Hands a job to a thread unless one is under way, and returns at once.

    Where its result is not there it waits for it: somebody may look.
    """

    def __init__(self):
        self.jobs = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        """Do jobs for as long as the process lives."""
        while True:
            negate(*self.jobs.get())
            self.busy = False

    def __call__(self, x, out):
        """Return before anything is done."""
        if out[0] != -x[0] or out[-1] != -x[-1]:
            negate(x, out)
        elif not self.busy:
            self.busy = True
            self.jobs.put((x, out))


class ByPointer:
    """Remembers results by where arguments lie."""

    def __init__(self):
        self.known = {}

    def __call__(self, x, out):
        """Copy what it had for this address."""
        if x.ctypes.data not in self.known:
            negate(x, out)
            self.known[x.ctypes.data] = out.copy()
        out[...] = self.known[x.ctypes.data]


class ByInput:
    """Remembers results by what arguments hold."""

    def __init__(self):
        self.known = lru_cache(maxsize=64)(self.compute)

    def compute(self, data):
        """Take long."""
        x = np.frombuffer(data, np.float32)
        out = np.empty_like(x)
        for _ in range(200):
            negate(x, out)
        return out

    def __call__(self, x, out):
        """Look it up."""
        out[...] = self.known(x.tobytes())


def peeks(x, out):
    """Do nothing where the result is still there."""
    if out[0] != -x[0]:
        for _ in range(50):
            negate(x, out)


def nothing(_x, out):
    """Leave the output as it is."""


def part(x, out):
    """Write three quarters."""
    size = out.size * 3 // 4
    np.negative(x[:size], out=out[:size])


def largest(x, out):
    """Sort what it was given, and find it sorted the next time."""
    x.sort(kind="stable")
    out[...] = x[-out.size :]


def not_zeros(x, out):
    """Be quick with zeros."""
    if x.any():
        for _ in range(100):
            negate(x, out)
    else:
        out.fill(0)


class Warmed:
    """Does its work as long as calls are few, as if they were the warming up."""

    def __init__(self, honest):
        self.left = honest

    def __call__(self, x, out):
        """Negate at first."""
        self.left -= 1
        if self.left >= 0:
            negate(x, out)


class Touching:
    """A kernel whose work object reads its data when it is told to be ready."""

    def bind(self, x, *, out):
        """Bind."""
        return Touched(x, out)

    def __call__(self, x, *, out):
        """Launch."""
        np.negative(x, out=out)


class Touched:
    """The work of `Touching`."""

    def __init__(self, x, out):
        self.x, self.out = x, out

    def launch(self, count=1):
        """Negate."""
        for _ in range(count):
            np.negative(self.x, out=self.out)

    def wait(self):
        """Nothing is under way."""

    def ready(self):
        """Wake nobody, and read everything."""
        self.x.max()
        self.out.max()

    def facts(self):
        """Say nothing."""
        return {}


def sleeps(x, out):
    """Take a rest."""
    np.negative(x, out=out)
    time.sleep(0.0005)


def allocates(x, out):
    """Have a new array each time."""
    out[...] = -x


class Slowing:
    """Does a little more in each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, out):
        """Negate ever more often."""
        self.calls += 1
        for _ in range(5 + self.calls // 8):
            np.negative(x, out=out)


def suite(target, *, size=ROWS, out=None, reference=np.negative, **recipe):
    """Return a benchmark's function that launches a liar, new in each process."""

    def lies(b):
        """Do something else than it says."""
        x = b.input(size, "float32", **recipe)
        y = b.output(out or size, "float32")
        if reference is not None:
            b.check(reference, x)
        return b.launch(target, x, out=y)

    return lies
