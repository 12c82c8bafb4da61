"""The timed region of each mode."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import repeat
from time import monotonic_ns, perf_counter_ns
from typing import Any, Final

from steelyard.clocks import Clock
from steelyard.declare.benchmark import Case
from steelyard.declare.mode import Mode
from steelyard.errors import BenchmarkError
from steelyard.machine import children
from steelyard.measure import ledger
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import work
from steelyard_device import cpu, cuda

FIRST: Final = (
    "from time import monotonic_ns; began = monotonic_ns(); import sys; "
    "from steelyard.process import first; first.main(began, *sys.argv[1:])"
)
"""What a fresh process runs: its clock is read before anything of ours is imported."""

Window = Callable[[int], tuple[int, int]]
"""One timed window of so many units of work: both readings of the clock."""


def window_of(prepared: PreparedCase, mode: Mode, clock: Clock) -> tuple[Window, int]:
    """Return a window of ``count`` units of work, and the launches of a unit."""
    bound = prepared.work
    if mode.quantity != "build" and not prepared.launched:
        raise BenchmarkError(
            f"mode {mode} asks for launches, but {prepared.case.id} is only built, for "
            f"{prepared.description.call.built_for}. Measure it in build/cold, "
            "build/warm-disk, build/warm-memory or build/first."
        )
    if mode.quantity == "kernel":
        dependent = mode.flavour == "dependent"
        return (lambda n: clock.window(bound, n, dependent=dependent)), 1
    if mode.quantity == "build":
        return _building(prepared, mode), 1
    if mode.quantity == "per_launch":
        one: Callable[[], Any] = bound.launch
    elif mode.flavour == "allocated":
        one = work.allocating(prepared.description, prepared.buffers)
    else:
        one = work.calling(prepared.description, prepared.buffers)
    if mode.flavour == "graph":
        return _graph(prepared, mode), mode.batch
    each = bound.wait if mode.flavour == "dependent" else None
    return _batches(one, each, bound.wait, mode.batch), mode.batch


def _batches(
    one: Callable[[], Any],
    each: Callable[[], None] | None,
    wait: Callable[[], None],
    batch: int,
) -> Window:
    """Return a window of batches as a host program issues them, one call at a time."""
    # Spelled out beforehand: loops over ranges cost a small call's time a batch.
    calls = (one,) * batch if each is None else (one, each) * batch
    calls += (wait,)

    def window(count: int) -> tuple[int, int]:
        start = perf_counter_ns()
        for _ in repeat(None, count):
            for call in calls:
                call()
        return start, perf_counter_ns()

    return window


def _graph(prepared: PreparedCase, mode: Mode) -> Window:
    """Return a window of batches that are each one CUDA graph, made beforehand."""
    bound = prepared.work
    if not isinstance(bound, work.DeviceWork):
        raise BenchmarkError(
            f"mode {mode} asks for a CUDA graph, but {prepared.case.id} runs on the "
            "CPU. Leave the word graph out, or put the case on a GPU with b.on."
        )
    graph = cuda.Graph(bound, mode.batch)
    return _batches(graph.launch, None, graph.wait, 1)


def _building(prepared: PreparedCase, mode: Mode) -> Window:
    bound = prepared.work
    if mode.cache == "first":
        prepared.starts.clear()
        gpu = bound.context.device.index if isinstance(bound, work.DeviceWork) else 0
        return lambda _count: _fresh_process(prepared.case, gpu, prepared.starts)
    if not isinstance(bound, work.Buildable):
        raise BenchmarkError(
            f"mode {mode} asks for a build, but {prepared.case.id} launches a plain "
            "callable. Leave the mode out for it, or launch a kernel."
        )
    build = bound.build

    def window(count: int) -> tuple[int, int]:
        start = perf_counter_ns()
        for _ in range(count):
            build(mode.cache)
        return start, perf_counter_ns()

    return window


def _fresh_process(
    case: Case, gpu: int, parts: list[Mapping[str, int]]
) -> tuple[int, int]:
    """Time a new interpreter from its start to the end of the case's first launch.

    Where the time went is added to ``parts``; no cache on disk is found or left.
    """
    command = [sys.executable, "-P", "-c", FIRST, str(case.benchmark.path)]
    command += [case.benchmark.name, json.dumps(dict(case.axes)), str(gpu)]
    environment = children.environment(STEELYARD_CACHE="off")
    start = monotonic_ns()
    with cpu.unpinned():  # a process inherits the processors it may run on
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        code = done.returncode
        how = f"signal {-code} killed it" if code < 0 else f"exit code {code}"
        raise BenchmarkError(f"a fresh process failed: {last or how}")
    said = json.loads(done.stdout.splitlines()[-1])
    parts.append({"interpreter": said.pop("began") - start, **said})
    return start, start + ledger.whole(parts[-1])
