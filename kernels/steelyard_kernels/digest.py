"""A name for bytes."""

from __future__ import annotations

from hashlib import blake2b


def digest(data: bytes) -> str:
    """Return 128 bits of BLAKE2b, in hex."""
    return blake2b(data, digest_size=16).hexdigest()
