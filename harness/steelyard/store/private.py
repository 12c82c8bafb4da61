"""What a run says of the people and folders of a machine, and how it is left out."""

from __future__ import annotations

import re
from typing import Any, Final

PATH: Final = re.compile(
    r"(?<![\w.~/\])}*])(~?(?:/[^/\s'\"`,;:()\[\]{}<>]+)+/)(?=[^/\s])"
)
"""The folders of an absolute path, or of one from somebody's home; a URL has none."""

QUOTED: Final = re.compile(r"(['\"])~?/(?:[^'\"\n]*/)([^'\"/\n]+)\1")
"""A path in quotes, which may have spaces."""

USER: Final = re.compile(r"(://)[^/@\s'\"]+@")
"""The name of a user in a URL, and what stands for the password."""

FILE: Final = re.compile(r"(file://|sqlite(?:\+\w+)?:///)[^\s'\"]*/")
"""A URL that is a path after all; of SQLite's stores behind its own three slashes."""

ELSEWHERE: Final = ".../"
"""Stands for the folders."""

BLOBS: Final = frozenset({"samples"})
"""Keys of what is no text."""


def anonymous(value: Any) -> Any:
    """Return JSON values without the folders of paths, and without names in URLs."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [anonymous(one) for one in value]
    if isinstance(value, dict):
        return {
            _text(key): one if key in BLOBS else anonymous(one)
            for key, one in value.items()
        }
    return value


def _text(text: str) -> str:
    if text.startswith(("/", "~/")) and "\n" not in text and len(text) > 1:
        return ELSEWHERE + text.rstrip("/").rpartition("/")[2]
    text = FILE.sub(rf"\1{ELSEWHERE}", text)
    text = USER.sub(r"\1***@", text)
    text = QUOTED.sub(rf"\1{ELSEWHERE}\2\1", text)
    return PATH.sub(ELSEWHERE, text)
