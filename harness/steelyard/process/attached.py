"""Run a program that nobody rewrote, and write down what it did: `steelyard attach`.

``python -m steelyard.process.attached ANSWER KINDS [-m] PROGRAM ARGUMENTS...`` runs it as
Python would, under CUPTI where there is one, with the spans of `timings` open. The answer
is a file of NumPy's, which `read` reads, and the program's exit code is its own.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from steelyard.analyse.program import Events
from steelyard_device.cuda import program
from steelyard_device.cuda.program import Event, Recorder, host_now
from steelyard_device.errors import DeviceError
from steelyard_device.timings import timings

COLUMNS: Final = ("kind", "name", "start", "end", "stream", "nbytes")


EVERY: Final = "every"
"""As ``KINDS``: memory and waits too."""


def main(answer: str, kinds: str, *words: str) -> None:
    """Run the program and write the answer; end as the program did."""
    recorder, note = _recorder(every=kinds == EVERY)
    now = recorder.now if recorder else host_now
    events: list[Event] = []
    with timings() as found:
        began = now()
        code = _run(words)
        ended = now()
    if recorder:
        try:
            events = recorder.end()
        except DeviceError as error:
            note = str(error)
    about = {
        "began": began,
        "ended": ended,
        "code": code,
        "note": note,
        "refused": recorder.refused if recorder else 0,
        "spans": found.table() if len(found.rows()) > 1 else "",
    }
    _write(Path(answer), events, about)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _recorder(*, every: bool) -> tuple[Recorder | None, str]:
    """Begin to record; else say why there is nothing to record with."""
    try:
        recorder = Recorder(every=every)
        recorder.begin()
    except DeviceError as error:
        return None, str(error)
    return recorder, ""


def _run(words: Sequence[str]) -> int:
    """Run ``-m MODULE ...`` or ``FILE ...`` as Python does; return how it ended."""
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    sys.argv[:] = [name, *arguments]
    sys.path[0:0] = [os.getcwd() if module else str(Path(name).resolve().parent)]  # noqa: PTH109 # as Python has it
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 # whatever the program raises, as Python shows it
        traceback.print_exc()
        return 1
    return 0


def read(place: Path) -> Events:
    """Return the answer of a program's process.

    Raises:
        OSError, ValueError, KeyError: it wrote none, or not all of it.
    """
    with np.load(place, allow_pickle=False) as found:
        about = json.loads(str(found["about"]))
        columns = {name: found[name] for name in COLUMNS}
    return Events(**columns, names=about.pop("names"), about=about)


def _write(place: Path, events: Sequence[Event], about: dict[str, Any]) -> None:
    names = {name: i for i, name in enumerate(dict.fromkeys(e.name for e in events))}
    kinds = list(program.KINDS.values())
    columns = {
        "kind": np.array([kinds.index(e.kind) for e in events], np.int8),
        "name": np.array([names[e.name] for e in events], np.int32),
        "start": np.array([e.start for e in events], np.int64),
        "end": np.array([e.end for e in events], np.int64),
        "stream": np.array([e.stream for e in events], np.int64),
        "nbytes": np.array([e.nbytes for e in events], np.int64),
    }
    text = json.dumps(about | {"names": list(names)})
    aside = place.with_suffix(".new")
    with aside.open("wb") as file:
        np.savez(file, allow_pickle=False, about=np.array(text), **columns)  # type: ignore[arg-type] # columns are arrays
    with suppress(OSError):
        aside.replace(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
