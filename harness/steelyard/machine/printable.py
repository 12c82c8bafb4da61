"""Foreign text as a terminal, a store and a page can take it.

Error texts come from the code under test, other texts from another user's lock file or
an imported run. They may be endless, hold escape sequences, or no Unicode at all.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

LONGEST: Final = 2000
"""Characters of a foreign sentence that anybody reads."""


def printable(text: str, most: int = LONGEST, keep: str = "") -> str:
    r"""Return text of which nothing controls a terminal, cut to ``most`` characters.

    What is not printable is written as Python does, such as ``\x1b``; those in ``keep``
    stay as they are.
    """
    left = len(text) - most
    text = text[:most]
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text
        )
    return f"{text} ... ({left} more characters)" if left > 0 else text


def cleaned(value: Any, most: int = LONGEST) -> Any:
    """Return plain data whose texts, keys among them, are printable."""
    if isinstance(value, str):
        return printable(value, most, keep="\n\t")
    if isinstance(value, dict):
        return {cleaned(n, most): cleaned(one, most) for n, one in value.items()}
    if isinstance(value, list):
        return [cleaned(one, most) for one in value]
    return value


def open_closed_streams() -> None:
    """Open what was closed of standard input, output and error, on nothing.

    The next file or pipe would have their numbers, and be printed to.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
