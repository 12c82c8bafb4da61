"""Trace the launches of a case, host and device on one time axis: ``run --trace``.

They are made by a fresh process, ``python -m steelyard.process.tracing``. What the GPU does is
CUPTI's to say; without it, and on the CPU, there are the host's spans alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.process import perfetto, stage
from steelyard.process.perfetto import Span, Work
from steelyard_device.errors import DeviceError

if TYPE_CHECKING:
    from steelyard_device.cuda import activity

MODULE: Final = "steelyard.process.tracing"

ROUNDS: Final = 5
"""Launches in a trace, each with what comes before it and the wait behind it: the first
ones show what only first ones do."""

READINGS: Final = 50
"""Of two clocks in turn; the pair with the least between them aligns the two."""

KEYS: Final = ("spans", "works", "note")
"""What the fresh process answers: lists of fields, and what is missing and why."""


def trace(
    turns: Sequence[PlannedTrial],
    settings: Settings,
    place: Path,
    say: Callable[[str], None],
) -> None:
    """Write the trace of a plan's cases, each state of their caches once.

    What failed, or has no device part, is said in a sentence.

    Raises:
        SteelyardError: no case could be traced, or the file cannot be written.
    """
    recordings = []
    for case, cache in stage.points(turns):
        line = stage.program(MODULE, case, cache, settings)
        said = stage.run(line, settings.timeout)
        answer = said.answer(KEYS)
        if answer is None:
            say(f"--trace: {case.id} {cache}: {said.reason() or 'it said nothing'}")
            continue
        if answer["note"]:
            say(f"--trace: {case.id} {cache}: {answer['note']}")
        recordings.append(perfetto.recording(f"{case.id} {cache}", answer))
    if not recordings:
        raise SteelyardError(
            f"--trace {place}: no launch could be traced. Choose cases that are launched."
        )
    about = {"clock": "CLOCK_MONOTONIC", "rounds": ROUNDS}
    text = json.dumps(perfetto.document(recordings, about), allow_nan=False)
    files.save(place, f"{text}\n", "--trace")
    say(f"--trace: {place} has {len(recordings)} traces; open it at ui.perfetto.dev")


class Tracer:
    """Takes the host's spans, and the device's work where there is a recorder."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._recorder: activity.Recorder | None = None
        self._offset = 0

    @contextmanager
    def recording(
        self, recorder: activity.Recorder, now: Callable[[], int]
    ) -> Iterator[None]:
        """Record what the GPU does within a ``with``; ``now`` reads its clock."""
        self._recorder, self._offset = recorder, offset(now)
        with recorder.recording():
            yield

    @contextmanager
    def span(self, name: str, *, submits: bool = True) -> Iterator[None]:
        """Time what is done within a ``with``; what it submits is its own.

        Marking where that begins and ends costs some microseconds beside the span.
        """
        with ExitStack() as stack:
            if self._recorder is not None and submits:
                stack.enter_context(self._recorder.window(len(self.spans)))
            start = monotonic_ns()
            yield
            self.spans.append(Span(name, start, monotonic_ns()))

    def works(self) -> list[Work]:
        """Return what the GPU did; all of it is done."""
        if self._recorder is None:
            return []
        return [
            _work(one, span, self._offset)
            for span, found in self._recorder.collect().items()
            for one in found
        ]


def _work(one: activity.Activity, span: int, offset: int) -> Work:
    facts: dict[str, Any] = {"correlation": one.correlation}
    if one.kind == "kernel":
        facts |= {"grid": one.grid, "block": one.block}
        facts |= {"registers": one.registers, "shared": one.shared}
    else:
        facts["bytes"] = one.nbytes
    return Work(one.name, one.start + offset, one.end + offset, one.stream, span, facts)


def offset(now: Callable[[], int]) -> int:
    """Return what added to a clock's nanoseconds makes them CLOCK_MONOTONIC's."""
    found = []
    for _ in range(READINGS):
        before = monotonic_ns()
        read = now()
        after = monotonic_ns()
        found.append((after - before, (before + after) // 2 - read))
    return min(found)[1]


def main(*line: str) -> None:
    """Prepare a case, launch it a few times, and print what was recorded."""
    case, prepare, settings = stage.opened(*line)
    tracer = Tracer()
    on_cpu = case.device() == "cpu"
    with ExitStack() as stack:
        note = "it runs on the CPU: there are the host's spans alone."
        if not on_cpu:
            note = _record(tracer, settings, stack)
        with tracer.span("prepare"):
            staged = prepare()
            staged.work.wait()
        for _ in range(ROUNDS):
            for name, step in staged.before:
                with tracer.span(name):
                    step()
            with tracer.span("launch"):
                staged.work.launch(1)
            with tracer.span("wait", submits=False):
                staged.work.wait()
    answer = (
        [astuple(s) for s in tracer.spans],
        [astuple(w) for w in tracer.works()],
        note,
    )
    print(json.dumps(dict(zip(KEYS, answer, strict=True))))  # noqa: T201 # the answer


def _record(tracer: Tracer, settings: Settings, stack: ExitStack) -> str:
    """Have CUPTI record until ``stack`` is closed; return why it cannot."""
    from steelyard_device import cuda
    from steelyard_device.cuda import activity

    context = cuda.context(settings.gpu)
    why = activity.missing()
    if why is not None:
        return f"there are the host's spans alone: {why}"
    recorder = activity.Recorder(context)
    stack.enter_context(tracer.recording(recorder, activity.now))
    return ""


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (SteelyardError, DeviceError) as error:
        sys.exit(str(error))
