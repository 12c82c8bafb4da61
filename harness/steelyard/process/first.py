"""Build and launch one case in this fresh process, then print where its time went.

Run as `regions.FIRST` with PATH NAME AXES GPU, axes in JSON; the parent has the time it
started. Prints JSON: ``began`` in CLOCK_MONOTONIC, and the nanoseconds of each part (see
`ledger`) and, where the work can be built, of a second build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Final

import numpy as np

from steelyard.declare import discovery
from steelyard.declare.benchmark import Description
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import Settings
from steelyard.measure import ledger
from steelyard.prepare import allocation, work
from steelyard_device import cuda
from steelyard_device.cuda.module import LOADING
from steelyard_device.timings import timings

SOME: Final = 1 << 20
"""Bytes of the first allocation and the first copy: neither the least nor many."""


def main(began: int, path: str, name: str, axes: str, gpu: str) -> None:
    """Launch the case once; the time its data takes is nowhere counted.

    ``began`` is when the process came to the first line of ours.
    """
    case = discovery.load(Path(path), name).case(json.loads(axes))
    description = case.describe()
    settings = Settings(gpu=int(gpu))
    said = {"began": began, "import": monotonic_ns() - began}
    launched = not description.call.built_for
    if launched and description.device == CUDA:
        parts, bound = _on_gpu(description, settings)
    else:
        parts, bound = _here(description, settings, launched=launched)
    said |= parts
    if isinstance(bound, work.Buildable):
        start = monotonic_ns()
        bound.build("cold")
        said[ledger.SECOND] = monotonic_ns() - start
    print(json.dumps(said))  # noqa: T201 # the answer to the parent


def _here(
    description: Description, settings: Settings, *, launched: bool
) -> tuple[Mapping[str, int], work.Work]:
    handles = description.handles if launched else ()
    described = replace(description, handles=handles)
    buffers = allocation.allocate(described, settings)
    laps = _Laps()
    bound = work.realise(description, buffers)
    if launched:
        bound.launch(1)
        bound.wait()
    laps.end("first kernel")
    return laps.taken, bound


def _on_gpu(
    description: Description, settings: Settings
) -> tuple[Mapping[str, int], work.Work]:
    laps = _Laps()
    context = cuda.context(settings.gpu)
    laps.end("context")
    memory = cuda.Buffer(context, (SOME,), np.uint8)
    context.wait()
    laps.end("first allocation")
    memory.write(np.zeros(SOME, np.uint8))
    laps.end("first copy")
    buffers = allocation.allocate(description, settings)
    context.wait()
    laps.again()
    with timings() as recorded:
        bound = work.realise(description, buffers)
    laps.end("build")
    load = sum(s.nanoseconds for s in recorded.tracks[0].spans if s.path[-1] == LOADING)
    laps.taken |= {"build": laps.taken["build"] - load, "module load": load}
    laps.again()
    for launch in ("first launch", "second launch"):
        bound.launch(1)
        bound.wait()
        laps.end(launch)
    return laps.taken, bound


class _Laps:
    """Nanoseconds from one end of a part to the next."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.again()

    def again(self) -> None:
        """Begin a part now."""
        self._start = monotonic_ns()

    def end(self, name: str) -> None:
        """End a part and begin the next."""
        now = monotonic_ns()
        self.taken[name] = now - self._start
        self.again()
