"""One run as one file: a JSON document that another store can load.

``{"steelyard": "run", "format": 1, "digest": ..., "content": {"run": {...},
"trials": [{"document": {...}, "samples": base64}, ...]}}``. The digest is BLAKE2b of
the content's canonical text (sorted keys, no spaces). A page of `report` holds such a
document too, with ``"packed"`` instead of ``"content"``: base64 of xz of the JSON ``{"run": {...},
"trials": [document, ...], "ticks": [[...], ...], ...}``, with an entry a trial in each array
of samples, an eighth of the file. There ``starts`` are the pauses before each window and
``cpu`` is less the ticks: numbers that compress.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypedDict

from steelyard.analyse.trial import Run, Samples, Trial
from steelyard.errors import StoreError
from steelyard.machine import decoding
from steelyard.machine.decoding import (
    Malformed,
    Within,
    canonical,
    checked,
    digest,
    parsed,
)
from steelyard.store import codec, private
from steelyard_device import install

KIND: Final = "run"
PAGE: Final = "page"
"""Of the document in a page that holds no run."""
FORMAT: Final = 1
"""Raised when a key changes meaning; a newer file is refused, never guessed at."""


def write(run: Run, trials: Sequence[Trial], *, with_paths: bool = True) -> bytes:
    """Return the file of a run; of absolute paths only the last part if so asked."""
    content: dict[str, Any] = {
        "run": codec.plain(asdict(run)),
        "trials": [
            {
                "document": codec.document(trial),
                "samples": base64.b64encode(
                    codec.pack(trial.samples, trial.clock.floor)
                ).decode(),
            }
            for trial in trials
        ],
    }
    if not with_paths:
        content = private.anonymous(content)
    head = {"steelyard": KIND, "format": FORMAT, "digest": digest(content)}
    return json.dumps(head | {"content": content}, indent=1).encode()


def for_page(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the document of a run that a page holds, without the folders of paths."""
    content = packed_content(run, trials)
    head = {"steelyard": KIND, "format": FORMAT, "digest": digest(content)}
    return head | {"packed": pack(canonical(content))}


def read(data: bytes) -> tuple[Run, list[Trial]]:
    """Return the run of a file, or of a page of a report, and its trials.

    Raises:
        StoreError: as `document` and `run_of`.
    """
    return run_of(document(data))


def run_of(document: Any) -> tuple[Run, list[Trial]]:
    """Return the run of a document, and its trials.

    Raises:
        StoreError: it is not an exported run, of a newer format, or damaged.
    """
    _require_kind(document)
    try:
        if "packed" in document:
            content = unpack(document["packed"])
            _require_whole(document, content)
            return packed_run(content)
        content = document.get("content")
        _require_whole(document, content)
        found = checked(content, _Content)
        run = codec.run(found["run"])
        return run, [_trial(one, at) for at, one in enumerate(found["trials"])]
    except Malformed as error:
        raise _damaged(str(error)) from error


class _Trial(TypedDict):
    document: dict[str, Any]
    samples: str


class _Content(TypedDict):
    run: dict[str, Any]
    trials: list[_Trial]


def _trial(found: _Trial, at: int) -> Trial:
    try:
        blob = base64.b64decode(found["samples"], validate=True)
        return codec.trial(found["document"], blob)
    except ValueError as error:  # binascii.Error and Malformed are ones
        raise Malformed(f"trial {at}: {error}") from error


def document(data: bytes) -> Any:
    """Return the JSON of a file, or of a page of a report.

    Raises:
        StoreError: it has none.
    """
    content = decoding.page_content(data)
    try:
        return parsed(content)
    except Malformed as error:
        raise StoreError(
            f"this is not an exported run: it begins with {content[:16]!r} and {error}. "
            "Make one with `steelyard export RUN FILE`."
        ) from error


def _require_kind(document: Any) -> None:
    """Refuse what is no run, or of a newer format."""
    if isinstance(document, dict) and document.get("steelyard") == PAGE:
        raise StoreError(
            "this page was written without the samples of its run, or is of none. Write "
            "one with `steelyard report RUN --samples`."
        )
    if not isinstance(document, dict) or document.get("steelyard") != KIND:
        raise StoreError(
            'this JSON is not an exported run: it has no key "steelyard" that says '
            '"run". Make one with `steelyard export RUN FILE`.'
        )
    version = document.get("format")
    if version != FORMAT or isinstance(version, bool | float):
        raise StoreError(
            f"this run has export format {version}, this steelyard reads {FORMAT}; "
            f"upgrade with {install.upgrade()}."
        )


def _require_whole(document: dict[str, Any], content: Any) -> None:
    if document.get("digest") != digest(content):
        raise _damaged("its digest differs")


def _damaged(why: str) -> StoreError:
    return StoreError(
        f"this exported run is not what was written ({why}); nothing was imported. "
        "Export it again."
    )


LARGEST: Final = 1 << 30
"""Bytes of JSON, and of memory to unpack it: what an exported file may have."""

WIDEST: Final = 2**63
"""Integers of samples are less, to either side."""

ARRAYS: Final = (*codec.ARRAYS, "mhz", "floor")

Integers = list[list[Annotated[int, Within(1 - WIDEST, WIDEST - 1)]]]


class _Packed(TypedDict):
    run: dict[str, Any]
    trials: list[dict[str, Any]]
    ticks: Integers
    starts: Integers
    launches: Integers
    cpu: Integers
    preemptions: Integers
    mhz: Integers
    floor: Integers


def packed_content(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
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
    """Return the content of what `pack` wrote; `packed_run` reads it.

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


def packed_run(value: Any) -> tuple[Run, list[Trial]]:
    """Return the run and the trials of a content.

    Raises:
        Malformed: a value is missing, or not what belongs there.
        StoreError: as `codec.trial`.
    """
    found = checked(value, _Packed)
    arrays: Mapping[str, Integers] = {name: value[name] for name in ARRAYS}
    if {len(each) for each in arrays.values()} != {len(found["trials"])}:
        raise Malformed("there are more or fewer trials than samples")
    return codec.run(found["run"]), [
        _whole_trial(one, {name: each[at] for name, each in arrays.items()}, at)
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


def _whole_trial(document: Any, arrays: dict[str, list[int]], at: int) -> Trial:
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
