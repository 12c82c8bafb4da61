"""Capsules: a kernel's code, launch, inputs and measurement as one file, ``x.syc``.

A capsule is a zip archive (PKWARE's APPNOTE, stored or deflated) of these members::

    manifest.json   {"steelyard": "capsule", "format": 1 (2 of several launches),
                    "digest": ..., "content": ...}
    code            object code (CPU) or a cubin (GPU), with ``entry`` in it
    run.json        the run that measured it, as `steelyard export` writes one: machine,
                    settings, and the raw ticks, facts and doubts of each trial
    data/N.npy      what input N holds, where it came from a file
    check/N.indices, check/N.wanted    int64 places along the first axis of result N,
                    and what the reference expects there, C order, little-endian

The digest is BLAKE2b (16 bytes) of the content's canonical JSON (sorted keys, no spaces),
and the content has size and digest of every other member. Keys of the content are those
of `Manifest`; ``launch`` is the head that `steelyard_device.binary` describes. Inputs
without a file are drawn from ``seed``, as `prepare.inputs` says.

`read` looks at all of this and loads nothing. A capsule says what is to be run, not that
it may be: see `machine.trust`.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import SteelyardError
from steelyard.machine.decoding import Malformed, checked, digest, parsed
from steelyard.prepare import capsule_checks
from steelyard.prepare.capsule_checks import Manifest, Member
from steelyard_device import install

SUFFIX: Final = ".syc"
KIND: Final = "capsule"
FORMAT: Final = 2
"""Raised when a key changes meaning; a newer file is refused, never guessed at."""

LARGEST: Final = 1 << 30
"""Bytes of a capsule, and of all that it unpacks to."""

END: Final = 22
"""Bytes that an archive without a comment ends in."""

MOST: Final = 1000
"""Members of the archive."""

MANIFEST, RUN, CODE = "manifest.json", "run.json", "code"
BOUNDS: Final = {MANIFEST: 1 << 20, RUN: 1 << 28, CODE: 1 << 26}
"""Bytes of members."""


@dataclass(frozen=True, slots=True)
class Capsule:
    """A file that was looked at whole; nothing of it was loaded."""

    manifest: Manifest
    members: Mapping[str, bytes]
    digest: str
    """Of the file's bytes."""
    data: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers, twice what is updated in place."""
        return sum(
            capsule_checks.size(one) * (1 + (one["role"] == "inout"))
            for one in self.manifest["handles"]
        ) + sum(one["bytes"] for one in self.manifest["arrays"] if not one["handle"])

    def known(self, number: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the places of the known rows of a result, and these rows."""
        check = self.manifest["check"]
        assert check is not None
        kept = check["results"][number]
        handle = capsule_checks.results(self.manifest)[number]
        places, rows = (
            self.members[f"check/{number}.{what}"] for what in ("indices", "wanted")
        )
        dtype = np.dtype(kept["dtype"]).newbyteorder("<")
        found = np.frombuffer(rows, dtype).reshape(capsule_checks.shape(kept, handle))
        return np.frombuffer(places, capsule_checks.INDEX), found


def write(content: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """Return the file of a content without ``members``, and of these.

    The same content gives the same bytes.
    """
    about = {name: _member(body) for name, body in members.items()}
    whole = {**content, "members": about}
    # The oldest that says as much: 2 has several launches.
    oldest = FORMAT if "launches" in whole["launch"] else 1
    head = {"steelyard": KIND, "format": oldest, "digest": digest(whole)}
    manifest = json.dumps(head | {"content": whole}, indent=1).encode()
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as box:
        for name, body in {MANIFEST: manifest, **members}.items():
            box.writestr(zipfile.ZipInfo(name), body, zipfile.ZIP_DEFLATED)
    return room.getvalue()


def read(data: bytes) -> Capsule:
    """Return a capsule whose every part is as its manifest says.

    Raises:
        SteelyardError: it is no capsule, of a newer format, or damaged.
    """
    try:
        members = _members(data)
        manifest = _manifest(members.pop(MANIFEST, b""))
        _require_members(manifest, members)
        capsule_checks.require(manifest, members)
    except Malformed as error:
        raise SteelyardError(
            f"this capsule is not what was written ({error}); nothing of it was loaded. "
            "Make or fetch it again."
        ) from error
    return Capsule(manifest, members, blake2b(data, digest_size=16).hexdigest(), data)


def _members(data: bytes) -> dict[str, bytes]:
    """Return what the archive holds, none of it larger than it may be."""
    if not data.startswith(b"PK\3\4"):
        raise SteelyardError(
            f"this is no capsule: it begins with {data[:8]!r}. Make one with `steelyard "
            "capsule CASE -o FILE`."
        )
    if not (data[-END:].startswith(b"PK\5\6") and data.endswith(b"\0\0")):
        raise Malformed("bytes follow the archive, or it has a comment")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as box:
            return _unpacked(box)
    except Malformed:
        raise
    except Exception as error:  # noqa: BLE001 # zipfile lets damage come out as anything
        raise Malformed(f"{type(error).__name__} in the archive") from None


def _unpacked(box: zipfile.ZipFile) -> dict[str, bytes]:
    listed, room = box.infolist(), LARGEST
    if len(listed) > MOST or len({one.filename for one in listed}) < len(listed):
        raise Malformed("members are too many, or there twice")
    found = {}
    for one in listed:
        room -= one.file_size
        if one.file_size > BOUNDS.get(one.filename, LARGEST) or room < 0:
            raise Malformed(f"{one.filename!a} is too large")
        with box.open(one) as member:
            found[one.filename] = member.read(one.file_size + 1)
    return found


def _manifest(body: bytes) -> Manifest:
    document = parsed(body)
    if not isinstance(document, dict) or document.get("steelyard") != KIND:
        raise Malformed(f"{MANIFEST} says nothing of a capsule")
    version = document.get("format")
    if version not in {1, FORMAT} or isinstance(version, bool | float):
        raise SteelyardError(
            f"this capsule has format {version!a:.40}, this steelyard reads 1 and {FORMAT}; "
            f"upgrade with {install.upgrade()}."
        )
    content = document.get("content")
    if document.get("digest") != digest(content):
        raise Malformed("its digest differs")
    return checked(content, Manifest)


def _member(body: bytes) -> Member:
    return {"bytes": len(body), "digest": blake2b(body, digest_size=16).hexdigest()}


def _require_members(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """Refuse other members than the manifest's, or than it has to have."""
    check, needed = manifest["check"], {RUN, CODE}
    for number, handle in enumerate(manifest["handles"]):
        if dict(handle["recipe"]).get("file") is not None:
            needed.add(f"data/{number}.npy")
    for number in range(len(check["results"]) if check else 0):
        needed |= {f"check/{number}.indices", f"check/{number}.wanted"}
    if not members.keys() == manifest["members"].keys() == needed:
        raise Malformed("its members are others than it says")
    for name, body in members.items():
        if manifest["members"][name] != _member(body):
            raise Malformed(f"the digest of {name} differs")


FAMILIES: Final = re.compile(r"avx|sse|fma|bmi|f16c|amx|lzcnt|popcnt|adx|gfni|neon|sve")
"""Instruction sets that code may use, among all that a processor tells of."""


def lacking(manifest: Manifest, here: Collection[str]) -> list[str]:
    """Return the instruction sets that code was made for and that are not here."""
    made_for = filter(FAMILIES.match, manifest["features"])
    return sorted(set(made_for) - set(here))
