"""JSON within a page of HTML: written so that no text ends it, found again. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

OPENING: Final = '<script type="application/json" id="steelyard">'
CLOSING: Final = "</script>"

ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""What HTML reads within a script: in JSON these stand in strings only."""


def element(document: Any) -> str:
    """Return the element that holds a document of JSON's types."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return f"{OPENING}{text.translate(ESCAPES)}{CLOSING}"


def content(data: bytes) -> bytes:
    """Return the JSON of a page that has some; other bytes as they are."""
    if not data[:64].lstrip().lower().startswith(b"<!doctype html"):
        return data
    _, opened, rest = data.partition(OPENING.encode())
    return rest.partition(CLOSING.encode())[0] if opened else data
