"""A run as a page of `report` holds it: an eighth of an exported file, and all of it.

base64 of xz of the JSON ``{"run": {...}, "trials": [document, ...], "ticks": [[...], ...],
...}``, with an entry a trial in each array of samples. There ``starts`` are the pauses
before each window and ``cpu`` is less the ticks: numbers that compress.
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypedDict

from steelyard.analyse.run import Run
from steelyard.analyse.trial import Samples, Trial
from steelyard.machine.decoding import Malformed, Within, checked, parsed
from steelyard.store import codec, private

LARGEST: Final = 1 << 30
"""Bytes of JSON, and of memory to unpack it: what an exported file may have."""

WIDEST: Final = 2**63
"""Integers of samples are less, to either side."""

ARRAYS: Final = (*codec.ARRAYS, "mhz", "floor")

Integers = list[list[Annotated[int, Within(1 - WIDEST, WIDEST - 1)]]]


class _Content(TypedDict):
    run: dict[str, Any]
    trials: list[dict[str, Any]]
    ticks: Integers
    starts: Integers
    launches: Integers
    cpu: Integers
    preemptions: Integers
    mhz: Integers
    floor: Integers


def content(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return what is packed of a run; of absolute paths only the last part."""
    documents = [codec.document(trial) for trial in trials]
    said = {"run": codec.plain(asdict(run)), "trials": documents}
    found: dict[str, Any] = private.anonymous(said)
    each = [_differences(trial) for trial in trials]
    return found | {name: [one[name] for one in each] for name in ARRAYS}


def pack(text: str) -> str:
    """Return the content's JSON as a page has it."""
    return base64.b64encode(lzma.compress(text.encode())).decode()


def unpack(body: Any) -> Any:
    """Return the content of what `pack` wrote; `run` reads it.

    Raises:
        Malformed: it is something else.
    """
    try:
        unpacker = lzma.LZMADecompressor(memlimit=LARGEST)
        text = unpacker.decompress(base64.b64decode(body, validate=True), LARGEST)
    except (ValueError, TypeError, lzma.LZMAError) as error:
        raise Malformed(str(error)) from error
    if not unpacker.eof:
        raise Malformed("it holds more, or less, than it promises")
    return parsed(text)


def run(value: Any) -> tuple[Run, list[Trial]]:
    """Return the run and the trials of a content.

    Raises:
        Malformed: a value is missing, or not what belongs there.
        StoreError: as `codec.trial`.
    """
    found = checked(value, _Content)
    arrays: Mapping[str, Integers] = {name: value[name] for name in ARRAYS}
    if {len(each) for each in arrays.values()} != {len(found["trials"])}:
        raise Malformed("there are more or fewer trials than samples")
    return codec.run(found["run"]), [
        _trial(one, {name: each[at] for name, each in arrays.items()}, at)
        for at, one in enumerate(found["trials"])
    ]


def _differences(trial: Trial) -> dict[str, list[int]]:
    """Return the arrays of a trial as they are packed."""
    samples, end = trial.samples, 0
    found = {name: list(getattr(samples, name)) for name in (*codec.ARRAYS, "mhz")}
    for at, (start, ticks) in enumerate(
        zip(samples.starts, samples.ticks, strict=True)
    ):
        found["starts"][at], end = start - end, start + ticks
    found["cpu"] = [a - b for a, b in zip(samples.cpu, samples.ticks, strict=True)]
    return found | {"floor": list(trial.clock.floor)}


def _trial(document: Any, arrays: dict[str, list[int]], at: int) -> Trial:
    floor = tuple(arrays.pop("floor"))
    lengths = {len(arrays[name]) for name in codec.ARRAYS}
    if len(lengths) != 1 or len(arrays["mhz"]) not in {0, *lengths}:
        raise Malformed(f"trial {at}: its arrays are of different lengths")
    starts, end = [], 0
    for pause, ticks in zip(arrays["starts"], arrays["ticks"], strict=True):
        starts.append(end + pause)
        end = starts[-1] + ticks
    cpu = [a + b for a, b in zip(arrays["cpu"], arrays["ticks"], strict=True)]
    if max(map(abs, (*starts, *cpu, *floor)), default=0) >= WIDEST:
        raise Malformed(f"trial {at}: its times are longer than any")
    whole = {name: tuple(values) for name, values in arrays.items()}
    samples = Samples(**whole | {"starts": tuple(starts), "cpu": tuple(cpu)})
    try:
        return codec.trial(document, codec.pack(samples, floor))
    except ValueError as error:  # Malformed is one
        raise Malformed(f"trial {at}: {error}") from error
