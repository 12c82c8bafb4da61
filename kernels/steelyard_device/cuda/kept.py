"""Our own small cubins, compiled once a machine and kept in the user's cache folder.

Every process that measures needs them, and starting NVRTC costs it 0.1 to 0.3 s.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from steelyard_device import nvrtc
from steelyard_device.cuda.module import check_whole
from steelyard_device.errors import DeviceError
from steelyard_device.threads import Once

_DIGEST = 16
"""Bytes of the hash that stands before a kept cubin, of what follows it."""


def folder() -> Path | None:
    """Return where cubins are kept: under $STEELYARD_CACHE, or the user's cache folder.

    None if it says `off`.
    """
    chosen = os.environ.get("STEELYARD_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser() / "probes"
    import platformdirs

    return platformdirs.user_cache_path("steelyard") / "probes"


@Once
def cubin(text: str, arch: str) -> bytes:
    """Return the cubin of a CUDA C++ text, compiled where none is kept.

    It is known by text, arch and the version of NVRTC's package: asking NVRTC itself
    would load it. A damaged file is compiled anew, and a folder that cannot be written
    keeps nothing.

    Raises:
        CompileError: NVRTC refuses the text.
    """
    at = folder()
    if at is None:
        return nvrtc.compile(text, arch).cubin
    named = repr((text, arch, _version()))
    path = at / f"{hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}.cubin"
    kept = _read(path)
    if kept is None:
        kept = nvrtc.compile(text, arch).cubin
        with suppress(OSError):
            _write(path, kept)
    return kept


def _version() -> str:
    """Return the version of the package that NVRTC is from, if it is from one."""
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return "system"


def _read(path: Path) -> bytes | None:
    """Return a kept cubin if all of it is there."""
    try:
        found = path.read_bytes()
        check_whole(found[_DIGEST:])
    except (OSError, DeviceError):
        return None
    return found[_DIGEST:] if found[:_DIGEST] == _hash(found[_DIGEST:]) else None


def _write(path: Path, cubin: bytes) -> None:
    """Write aside and rename: whoever reads meanwhile sees all of it, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_hash(cubin) + cubin)
        Path(aside).replace(path)
    except OSError:
        Path(aside).unlink(missing_ok=True)
        raise


def _hash(cubin: bytes) -> bytes:
    return hashlib.blake2b(cubin, digest_size=_DIGEST).digest()
