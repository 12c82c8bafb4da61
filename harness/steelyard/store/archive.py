"""One run as one file: a JSON document that another store can load.

``{"steelyard": "run", "format": 1, "digest": ..., "content": {"run": {...},
"trials": [{"document": {...}, "samples": base64}, ...]}}``. The digest is BLAKE2b of
the content's canonical text (sorted keys, no spaces). A page of `report` holds such a
document too, with ``"packed"`` instead of ``"content"``: see `packed`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, TypedDict

from steelyard.analyse.run import Run
from steelyard.analyse.trial import Trial
from steelyard.errors import StoreError
from steelyard.machine import embedded
from steelyard.machine.decoding import Malformed, canonical, checked, digest, parsed
from steelyard.store import codec, packed, private
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
    content = packed.content(run, trials)
    head = {"steelyard": KIND, "format": FORMAT, "digest": digest(content)}
    return head | {"packed": packed.pack(canonical(content))}


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
            content = packed.unpack(document["packed"])
            _require_whole(document, content)
            return packed.run(content)
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
    content = embedded.content(data)
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
