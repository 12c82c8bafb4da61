"""Whose files may be run: minisign signatures by keys that the user listed.

A public key is a line of ``trusted_keys`` in the user's own configuration folder, as
minisign prints it (``RW...``); lines that begin with ``#`` or ``untrusted comment:`` say
whose it is. The signature of FILE lies in FILE.minisig, as ``minisign -S -m FILE`` writes
it: Ed25519 of the file's bytes (``Ed``) or of their BLAKE2b-512 (``ED``), and over
signature and trusted comment once more (https://jedisct1.github.io/minisign/).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard_device import install

SUFFIX: Final = ".minisig"
LISTED: Final = "trusted_keys"
LIMIT: Final = 64 << 10
"""Bytes of a signature, and of the list of keys."""

UNTRUSTED, TRUSTED = "untrusted comment:", "trusted comment: "
RAW, HASHED = b"Ed", b"ED"
KEY, SIGNATURE, PUBLIC = 8, 64, 32
"""Bytes of a key's number, of a signature, of a public key."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The key whose signature a file has."""

    number: str
    comment: str
    """What the signer says of the file, under the signature too."""


def keys_file() -> Path:
    """Return where the user lists whom to trust."""
    import platformdirs

    return platformdirs.user_config_path("steelyard") / LISTED


def signer(path: Path, data: bytes) -> Signer | None:
    """Return who signed a file, of those that the user listed; None without a signature.

    Raises:
        SteelyardError: its signature is damaged, by nobody that is listed, or wrong; or
            what verifies it is not installed.
    """
    place = path.with_name(path.name + SUFFIX)
    if not place.exists():
        return None
    kind, number, signature, comment, whole = _signature(place)
    listed = _listed(keys_file())
    if number not in listed:
        raise SteelyardError(
            f"{place}: signed by key {number}, which {keys_file()} does not list. Add its "
            "public key there if you trust whose it is."
        )
    signed = blake2b(data).digest() if kind == HASHED else data
    covered = signature + comment.encode("utf-8", "surrogateescape")
    if not (
        _verified(listed[number], signed, signature)
        and _verified(listed[number], covered, whole)
    ):
        raise SteelyardError(
            f"{place}: this signature by key {number} is not of {path.name} as it is. "
            "Fetch both again."
        )
    return Signer(number, comment)


def _signature(place: Path) -> tuple[bytes, str, bytes, str, bytes]:
    """Return kind, key, signature, trusted comment and the signature over both."""
    try:
        text = files.read(place, limit=LIMIT).decode("utf-8", "surrogateescape")
        first, encoded, comment, over = text.splitlines()[:4]
        body = base64.b64decode(encoded, validate=True)
        whole = base64.b64decode(over, validate=True)
    except (OSError, ValueError) as error:
        raise _damaged(place) from error
    kind, number = body[:2], body[2 : 2 + KEY]
    right = len(body) == 2 + KEY + SIGNATURE and len(whole) == SIGNATURE
    commented = first.startswith(UNTRUSTED) and comment.startswith(TRUSTED)
    if not (right and commented and kind in {RAW, HASHED}):
        raise _damaged(place)
    signature = body[2 + KEY :]
    return kind, _number(number), signature, comment.removeprefix(TRUSTED), whole


def _damaged(place: Path) -> SteelyardError:
    return SteelyardError(
        f"{place}: this is no signature of minisign's. Fetch it again."
    )


def _listed(place: Path) -> Mapping[str, bytes]:
    """Return the public keys that a user listed, by their numbers."""
    try:
        lines = files.read(place, limit=LIMIT).decode().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SteelyardError(
            f"{place} cannot be read: {error}. Make it a text file of public keys."
        ) from error
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith(("#", UNTRUSTED)):
            continue
        try:
            body = base64.b64decode(line, validate=True)
        except ValueError:
            body = b""
        if len(body) != 2 + KEY + PUBLIC or not body.startswith(RAW):
            raise SteelyardError(
                f"{place}:{number}: {line!a:.60} is no public key of minisign's. Write "
                "one a line, as `minisign -G` prints it."
            )
        found[_number(body[2 : 2 + KEY])] = body[2 + KEY :]
    return found


def _number(key: bytes) -> str:
    """Return a key's number as minisign shows it: little-endian, in hexadecimal."""
    return key[::-1].hex().upper()


def _verified(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        from nacl.exceptions import BadSignatureError
        from nacl.signing import VerifyKey
    except ImportError:
        raise SteelyardError(
            f"PyNaCl, which verifies signatures, is not here: {install.command('sign')}, "
            "or pass --trust for code that you know."
        ) from None
    try:
        VerifyKey(key).verify(message, signature)
    except (BadSignatureError, ValueError, TypeError):
        return False
    return True
