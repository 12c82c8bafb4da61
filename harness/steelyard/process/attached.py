"""Run a program that nobody rewrote, and write down what it did: `steelyard attach`.

``python -P -m steelyard.process.attached ANSWER HOW [-m] PROGRAM ARGUMENTS...`` runs it
as Python would, under CUPTI where there is one, with the spans of `timings` open. The answer
is a file of NumPy's, which `read` reads, and the program's exit code is its own. ``HOW`` is
the JSON of `How`. A launch that is captured becomes the members of a capsule.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import io
import json
import os
import re
import runpy
import signal
import sys
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn, TypedDict

import numpy as np
from numpy.typing import NDArray

from steelyard.analyse.program import Events
from steelyard.declare.handles import CUDA
from steelyard.machine import mangled
from steelyard.prepare import capsules
from steelyard.prepare.capsule_checks import INDEX
from steelyard_device import cubin
from steelyard_device.cuda import program
from steelyard_device.cuda.capture import Launched, Region
from steelyard_device.cuda.program import Event, Recorder, host_now
from steelyard_device.errors import DeviceError
from steelyard_device.timings import timings

COLUMNS: Final = ("kind", "name", "start", "end", "stream", "nbytes")


class How(TypedDict):
    """What is recorded beside kernels and copies."""

    every: bool
    """Memory and waits."""
    kernel: str | None
    """The name of one whose launch is captured."""
    launch: int
    folder: str
    """Where the members of its capsule go."""


def main(answer: str, settings: str, *words: str) -> None:
    """Run the program; the answer is written when all of it is over.

    That is behind its threads and what it has `atexit` call: the first registered is
    the last called; or when it ends its process by `os._exit`.
    """
    how: How = json.loads(settings)
    recorder, note = _recorder(how)
    now = recorder.now if recorder else host_now
    open_spans = ExitStack()
    found = open_spans.enter_context(timings())
    about = {"began": now(), "code": 0}
    process, leave = os.getpid(), os._exit

    def finish() -> None:
        nonlocal note
        if os.getpid() != process:  # a child that it forked
            return
        events: list[Event] = []
        about["ended"] = now()
        open_spans.close()
        if recorder:
            try:
                events = recorder.end()
            except DeviceError as error:
                note = str(error)
        said = {
            "note": note,
            "captured": _captured(recorder, how, words),
            "refused": recorder.refused if recorder else 0,
            "spans": found.table() if len(found.rows()) > 1 else "",
        }
        _write(Path(answer), events, about | said)

    def left(status: int) -> NoReturn:
        about["code"] = status & 0xFF
        finish()
        leave(status)

    atexit.register(finish)
    os._exit = left
    try:
        _run(words)
    except SystemExit as end:
        said = end.code
        about["code"] = said if isinstance(said, int) else int(said is not None)
        raise
    except BaseException as error:  # noqa: BLE001 # whatever the program raises, as Python shows it
        _show(error)
        stopped = isinstance(error, KeyboardInterrupt)
        about["code"] = 128 + signal.SIGINT if stopped else 1
        sys.exit(about["code"])


def _recorder(how: How) -> tuple[Recorder | None, str]:
    """Begin to record; else say why there is nothing to record with."""
    try:
        recorder = Recorder(every=how["every"])
        if how["kernel"]:
            recorder.capture(_named(how["kernel"]), how["launch"])
        recorder.begin()
    except DeviceError as error:
        return None, str(error)
    return recorder, ""


def _named(kernel: str) -> Callable[[str], bool]:
    """Return what says of a mangled name whether it is of the kernel that is named.

    As a whole, as it is mangled, written, or without namespaces and arguments; ``*``
    stands for anything.
    """
    pattern = re.compile(".*".join(map(re.escape, kernel.split("*"))), re.DOTALL)

    @functools.cache
    def wanted(name: str) -> bool:
        known = name, mangled.plain(name), mangled.word(name)
        return any(map(pattern.fullmatch, known))

    return wanted


def _captured(recorder: Recorder | None, how: How, words: Sequence[str]) -> Any:
    """Return the content of a capsule whose members were written, or a sentence."""
    capture = recorder.captured if recorder else None
    if capture is None:
        return None
    kernel, number = how["kernel"], how["launch"]
    if capture.found is None:
        seen = (
            f"{capture.seen} launches of {kernel} were seen, and {number} was wanted; "
            "what graphs launch is not seen one by one"
        )
        return f"{capture.why or seen}."
    program = words[1] if words[0] == "-m" else words[0]
    return record(capture.found, number, program, Path(how["folder"]))


def _run(words: Sequence[str]) -> None:
    """Run ``-m MODULE ...`` or ``FILE ...`` in a ``__main__`` that stays, as Python does."""
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    sys.argv[:] = [name, *arguments]
    whole = not module and (Path(name).is_dir() or zipfile.is_zipfile(name))
    folder = name if whole else str(Path(name).resolve().parent)
    if whole or not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd() if module else folder)  # noqa: PTH109 # as Python has it
    main = sys.modules["__main__"] = ModuleType("__main__")
    if module or whole:
        run = runpy._run_module_as_main  # type: ignore[attr-defined] # noqa: SLF001 # what `python -m` calls
        run(name if module else "__main__", alter_argv=module)
        return
    try:
        with io.open_code(str(Path(name).absolute())) as file:
            text = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {name!r}: {error}\n")
        sys.exit(2)
    main.__dict__.update(__file__=name, __builtins__=builtins)
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 # the program


def _show(error: BaseException) -> None:
    """Have the program's hook show what it raised, without the frames that ran it."""
    trace = error.__traceback__
    ours = (globals(), vars(runpy))
    while trace and any(trace.tb_frame.f_globals is names for names in ours):
        trace = trace.tb_next
    error.__traceback__ = trace
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:  # noqa: BLE001 # the program's too
        sys.stderr.write("Error in sys.excepthook:\n")
        traceback.print_exc()
        sys.__excepthook__(type(error), error, trace)


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


KNOWN: Final = 8192
"""Bytes of a region that are known to be right: they say the same as all others."""


def record(found: Launched, number: int, program: str, folder: Path) -> dict[str, Any]:
    """Write the members of a launch's capsule to a folder; return the manifest's content.

    Memory is one handle for each allocation, of bytes: input where the launch left it as
    it was, else inout. Its results are bytes too, and compared exactly.
    """
    for part in ("data", "check"):
        (folder / part).mkdir(parents=True)
    (folder / capsules.CODE).write_bytes(found.image)
    for place, one in enumerate(found.regions):
        with (folder / "data" / f"{place}.npy").open("wb") as file:
            np.save(file, one.before)
    word = mangled.word(found.entry)[:80]
    return {
        "case": f"{word}[launch={number}]",
        "benchmark": word,
        "axes": {"launch": number},
        "source": blake2b(found.image, digest_size=8).hexdigest(),
        "file": Path(program).name,
        "line": 0,
        "device": CUDA,
        "features": [],
        "seed": 0,
        "modes": [],
        "counts": {"bytes": 0.0},  # how much of its memory it moves is not known
        "handles": [_handle(n, one) for n, one in enumerate(found.regions)],
        "arrays": [
            {"name": _name(n), "handle": _name(n), "bytes": one.before.size}
            for n, one in enumerate(found.regions)
        ],
        "launch": {
            "entry": found.entry,
            "slots": [_slot(found, n, body) for n, body in enumerate(found.parameters)],
            "facts": _facts(found),
            "grid": found.grid,
            "block": found.block,
            "shared": found.shared,
        },
        "check": _check(found, folder),
    }


def _name(number: int) -> str:
    return f"memory{number}"


def _handle(number: int, one: Region) -> dict[str, Any]:
    data = one.before
    return {
        "name": _name(number),
        "role": "inout" if one.written else "input",
        "shape": [data.size],
        "dtype": "uint8",
        "recipe": [("file", ""), ("constant", bool((data == data[0]).all()))],
    }


def _slot(found: Launched, number: int, body: bytes) -> list[Any]:
    pointers = found.pointers(body)
    if not pointers:
        return ["bytes", str(number), body.hex()]
    at = [(place, _name(region), shift) for place, region, shift in pointers]
    return ["addresses", str(number), {"bytes": body.hex(), "at": at}]


def _facts(found: Launched) -> Mapping[str, Any]:
    taken = cubin.read(found.image)[found.entry]
    return {
        "code_hash": taken.code_hash,
        "target": f"cuda:{taken.arch}",
        "registers": taken.registers,
        "stack_bytes": taken.stack,
        "shared_bytes": taken.shared + found.shared,
        "grid": found.grid,
        "block": found.block,
        "loads_128": taken.loads_128,
        "tensor_core": taken.tensor_core,
        "local_memory": taken.local_loads + taken.local_stores,
        "opcodes": dict(taken.opcodes),
    }


def _check(found: Launched, folder: Path) -> Mapping[str, Any] | None:
    """Write some of the bytes that the launch changed, if it changes the same each time."""
    written = [one for one in found.regions if one.written]
    if not (written and found.repeats):
        return None
    kept = []
    for number, one in enumerate(written):
        places = _known(np.flatnonzero(one.before != one.after))
        (folder / "check" / f"{number}.indices").write_bytes(places.tobytes())
        (folder / "check" / f"{number}.wanted").write_bytes(one.after[places].tobytes())
        kept.append({"rows": len(places), "dtype": "uint8"})
    return {"rtol": 0.0, "atol": 0.0, "results": kept}


def _known(changed: NDArray[np.intp]) -> NDArray[Any]:
    """Return some of the places that a launch changed, evenly, in order."""
    step = max(1, -(-changed.size // KNOWN))
    return changed[::step].astype(INDEX)


if __name__ == "__main__":
    main(*sys.argv[1:])
