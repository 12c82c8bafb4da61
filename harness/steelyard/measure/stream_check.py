"""Does the work stay on our stream? Asked once, before anything is timed.

Clocks look at one stream: work on the default one, on one of its own or begun by
another thread would be timed as nothing.
"""

from __future__ import annotations

import functools
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from steelyard.errors import BenchmarkError
from steelyard.prepare.buffers import Buffers
from steelyard_device import cuda

if TYPE_CHECKING:
    from steelyard.prepare.work import DeviceWork

HELD: Final = 0.2
"""Seconds that a stream is held at most. Work that waits for it inside a launch goes on
then, and is known by that."""

WATCHED: Final = 0.02
"""Seconds for which results are watched while the stream is held: another stream, or a
thread that was just started, does its work in far less."""

AFTER: Final = 0.005
"""Seconds for which they are watched once everything on the GPU is done."""

SAMPLE: Final = 1 << 16
"""Bytes that are watched of a result's start, middle and end: who writes it writes
some of them."""

Seen = dict[str, list[bytes]]


def check_stream(work: DeviceWork, buffers: Buffers) -> bool:
    """Launch once and watch the results; return whether the launch waits for the GPU.

    It was launched before, so that nothing is loaded now. Buffers are restored and
    poisoned first, and hold the results of one launch afterwards.

    Raises:
        BenchmarkError: a result changed while the stream was held, or after the work
            was done.
    """
    context = work.context
    watched = _watched(buffers, cuda.beside(context))
    spin = _spin(context)
    buffers.restore()
    buffers.poison()
    context.wait_for_all()
    before = _look(watched)
    with spin.held():
        work.launch(1)
        escaped = _changed(watched, before, WATCHED)
    work.wait()
    context.wait()
    if escaped and not spin.expired:
        context.wait_for_all()
        raise BenchmarkError(
            f"the work wrote {escaped} while its stream was held back: it runs on "
            "another stream, the default one or one of its own, where no clock looks. "
            "Pass it b.stream, or take as_='torch' or 'cupy', whose current stream is "
            "ours."
        )
    done = _look(watched)
    context.wait_for_all()
    if late := _changed(watched, done, AFTER):
        context.wait_for_all()
        raise BenchmarkError(
            f"the work changed {late} after everything on its stream was done: it runs "
            "on another stream, or another thread goes on with it. Pass it b.stream, "
            "and return when all of it is submitted."
        )
    return spin.expired


@functools.cache
def _spin(context: cuda.Context) -> cuda.Spin:
    return cuda.Spin(context, seconds=HELD)


def _watched(buffers: Buffers, beside: cuda.Context) -> dict[str, list[cuda.View]]:
    """Return parts of all results that are read on another stream than theirs."""
    found = {}
    for handle in buffers.handles:
        view: cuda.View = buffers.arrays[handle.name]
        if handle.role != "input" and view.nbytes:
            size = min(SAMPLE, view.nbytes)
            starts = {0, (view.nbytes - size) // 2, view.nbytes - size}
            found[handle.name] = [
                cuda.View(beside, view.address + start, (size,), np.uint8, view)
                for start in sorted(starts)
            ]
    return found


def _look(watched: dict[str, list[cuda.View]]) -> Seen:
    return {
        name: [part.read().tobytes() for part in parts]
        for name, parts in watched.items()
    }


def _changed(watched: dict[str, list[cuda.View]], before: Seen, seconds: float) -> str:
    """Watch for so long; return which result changed first, if one did."""
    end = perf_counter() + seconds
    while True:
        now = _look(watched)
        for name, parts in now.items():
            if parts != before[name]:
                return name
        if perf_counter() >= end:
            return ""
