"""Names of C++ functions as their authors wrote them (Itanium C++ ABI)."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Final

LIBRARY: Final = "libstdc++.so.6"


@functools.lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return a mangled name as it was written, if a C++ library can be asked."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return name
    demangle = getattr(library, "__cxa_demangle")  # or Python mangles it
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not found:
        return name
    text = ctypes.string_at(found).decode(errors="replace")
    free = ctypes.CDLL(None).free
    free.argtypes = (ctypes.c_void_p,)
    free(found)
    return text.removeprefix("void ")


def word(name: str) -> str:
    """Return the name of a function alone: ``add`` of ``ns::add<float>(float*)``."""
    own, before = plain(name), ""
    while own != before:  # from the innermost brackets outwards
        own, before = re.sub(r"<[^<>]*>|\([^()]*\)", "", own), own
    return re.sub(r"[^\w.-]", "_", own.rsplit("::", 1)[-1].strip()) or "kernel"
