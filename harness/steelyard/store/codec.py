"""Trials as bytes and as JSON values: what a store row and an exported file hold.

The samples of a trial are one blob, little-endian::

    magic     4 bytes   b"STYD"
    version   u16       2
    flags     u16       bit 0: the body is compressed by zlib
                        bit 1: there are frequencies (from version 2 on)
    windows   u32       n
    floors    u32       m
    digest    16 bytes  BLAKE2b of the uncompressed body
    body      i64[n] ticks, i64[n] starts, i64[n] launches, i64[n] cpu,
              i64[n] preemptions, i64[n] mhz where bit 1 says so,
              i64[m] raw readings of the clock's floor
"""

from __future__ import annotations

import functools
import math
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from hashlib import blake2b
from typing import Any, Final

from steelyard.analyse.trial import ClockFacts, Run, Samples, Trial
from steelyard.errors import StoreError
from steelyard.machine.decoding import Malformed, checked
from steelyard.store import shapes

MAGIC: Final = b"STYD"
VERSION: Final = 2
COMPRESSED: Final = 1
FREQUENCIES: Final = 2
HEADER: Final = struct.Struct("<4sHHII16s")
ARRAYS: Final = ("ticks", "starts", "launches", "cpu", "preemptions")

COMPRESSION: Final = 1
"""zlib's fastest level: ticks shrink to about half, and higher levels gain 2 %."""

LARGEST: Final = 1100
"""Times as many bytes as it has been compressed to: zlib's limit is 1032."""

FLOAT: Final = "$float"
"""Key of a float that JSON has no word for: NaN and the infinities."""


def pack(samples: Samples, floor: tuple[int, ...]) -> bytes:
    """Write samples and the clock's raw floor readings as one blob."""
    flags = COMPRESSED | (FREQUENCIES if samples.mhz else 0)
    numbers = [x for name in _arrays(flags) for x in getattr(samples, name)]
    body = struct.pack(f"<{len(numbers) + len(floor)}q", *numbers, *floor)
    digest = blake2b(body, digest_size=16).digest()
    head = HEADER.pack(MAGIC, VERSION, flags, len(samples), len(floor), digest)
    return head + zlib.compress(body, COMPRESSION)


def unpack(blob: bytes) -> tuple[Samples, tuple[int, ...]]:
    """Read what `pack` wrote.

    Raises:
        StoreError: the blob is cut, of a newer version, or not what was written.
    """
    names, count, floors, body = _checked(blob)
    numbers = struct.unpack(f"<{len(names) * count + floors}q", body)
    arrays = {
        name: numbers[i * count : (i + 1) * count] for i, name in enumerate(names)
    }
    return Samples(**arrays), numbers[len(names) * count :]


def _arrays(flags: int) -> tuple[str, ...]:
    """Return the arrays of a body in their order."""
    return (*ARRAYS, "mhz") if flags & FREQUENCIES else ARRAYS


def _checked(blob: bytes) -> tuple[tuple[str, ...], int, int, bytes]:
    """Return arrays, windows, floor readings and body once all of it is verified."""
    if len(blob) < HEADER.size or blob[:4] != MAGIC:
        raise StoreError(
            f"samples begin with {blob[:4]!r}, expected {MAGIC!r}; this row was not "
            "written by steelyard or was damaged. Measure the case again."
        )
    _, version, flags, count, floors, digest = HEADER.unpack_from(blob)
    if version > VERSION:
        raise StoreError(
            f"samples have format {version}, this steelyard reads up to {VERSION}; "
            "upgrade steelyard."
        )
    try:
        body = blob[HEADER.size :]
        size = 8 * (len(_arrays(flags)) * count + floors)
        body = _decompressed(body, size) if flags & COMPRESSED else body
    except zlib.error as error:
        raise _damaged(str(error)) from error
    if blake2b(body, digest_size=16).digest() != digest:
        raise _damaged("the digest differs")
    names = _arrays(flags)
    if len(body) != 8 * (len(names) * count + floors):
        raise _damaged("the length differs")
    return names, count, floors, body


def _decompressed(body: bytes, size: int) -> bytes:
    """Return what was compressed, without taking more memory than was promised."""
    if size > LARGEST * max(len(body), 1):
        raise _damaged("it promises more than it could hold")
    stream = zlib.decompressobj()
    found = stream.decompress(body, size + 1)
    if not stream.eof:
        raise _damaged("the length differs")
    return found


def _damaged(why: str) -> StoreError:
    return StoreError(
        f"samples are not what was written ({why}); the row was damaged. "
        "Restore the store from a copy, or measure the case again."
    )


def document(trial: Trial) -> dict[str, Any]:
    """Return everything of a trial but its blob as JSON values."""
    names = (*DOCUMENT, "doubts")
    values = {name: plain(getattr(trial, name)) for name in names}
    clock = asdict(trial.clock)
    del clock["floor"]  # in the blob
    return values | {"clock": plain(clock)}


APART: Final = frozenset({"clock", "doubts"})
"""What of a trial's document has another type than in the trial."""

DOCUMENT: Final = tuple(n for n in shapes.Document.__annotations__ if n not in APART)


def trial(values: Any, blob: bytes) -> Trial:
    """Rebuild a trial from its `document` and its blob.

    Raises:
        StoreError: the blob is damaged.
        Malformed: a value is missing, or not what belongs there.
    """
    samples, floor = unpack(blob)
    _require_counts(samples)
    values = restore(values)
    checked(values, shapes.Document)
    names = {field.name for field in fields(ClockFacts)}
    said = _traits(values["clock"]["id"]) | values["clock"]
    clock: dict[str, Any] = {n: value for n, value in said.items() if n in names}
    clock["floor"] = floor
    for name, read in values["extra"].get("clocks", {}).items():
        read.update(_traits(name) | read)
    rest: dict[str, Any] = {name: values[name] for name in DOCUMENT}
    return Trial(
        samples=samples,
        clock=ClockFacts(**clock),
        doubts=tuple(values["doubts"]),
        **rest,
    )


@functools.cache
def _traits(clock: str) -> dict[str, Any]:
    """Return the traits of a clock by its id: older runs do not say them."""
    from steelyard.clocks import gpu

    return {**gpu.kind(clock).traits} if clock in gpu.own() else {}


def _require_counts(samples: Samples) -> None:
    """Refuse windows without a launch, and counts below 0."""
    # Earlier versions stored processor times below 0.
    least = {"launches": 1, "preemptions": 0, "mhz": 0}
    for name, smallest in least.items():
        if min(getattr(samples, name), default=smallest) < smallest:
            raise Malformed(f"{name} of a window is less than {smallest}")


def plain(value: Any) -> Any:
    """Return ``value`` in the types of strict JSON; `restore` undoes it.

    Mappings become objects, sequences lists, other numbers Python's, and what JSON
    has no word for (a dtype, a path) its text.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, (int, str)):  # a member of an enumeration
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT: repr(float(value))}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain(value.item())  # a NumPy scalar
    return str(value)


def strict(value: Any) -> Any:
    """Return ``value`` as `plain`, null for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    return plain(value)


def restore(value: Any) -> Any:
    """Return what `plain` was given, as far as JSON can tell."""
    if isinstance(value, dict):
        if value.keys() == {FLOAT}:
            return _float(value[FLOAT])
        return {k: restore(v) for k, v in value.items()}
    if isinstance(value, list):
        return [restore(v) for v in value]
    if isinstance(value, int) and value.bit_length() >= sys.float_info.max_exp:
        raise Malformed(f"a number has {value.bit_length()} bits")
    return value


def _float(text: Any) -> float:
    if text not in {"nan", "inf", "-inf"}:
        raise Malformed(f"{FLOAT} is {str(text)[:40]!r}, expected nan, inf or -inf")
    return float(text)


def run(values: Mapping[str, Any]) -> Run:
    """Rebuild a run from JSON values.

    Raises:
        Malformed: a value is missing, or not what belongs there.
    """
    values = dict(restore(dict(values)))
    found = checked(values, shapes.Run)
    if found["writer"]:
        checked(found["writer"], shapes.Writer, "writer")
    names = (field.name for field in fields(Run))
    known: dict[str, Any] = {name: values[name] for name in names}
    known["tags"] = tuple(values["tags"])
    return Run(**known)
