"""Foreign text as a terminal, a store and a page can take it.

Error texts come from the code under test, other texts from another user's lock file or
an imported run. They may be endless, hold escape sequences, or no Unicode at all.

Of a store's URL nobody is shown the password, whoever prints it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
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


HIDDEN: Final = "***"

SECRET: Final = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)
"""What the names of a URL's parameters have in them whose values nobody is shown."""

SHORTEST: Final = 3
"""Characters of a password that is looked for in a driver's sentence: of fewer any
word could have some."""


def shown(url: str) -> str:
    """Return a store's name for people: a URL without its password.

    Parameters such as ``?password=`` are hidden too, and all of a URL that cannot be
    read but its scheme.
    """
    if "://" not in url:
        return url
    import sqlalchemy as sa
    from sqlalchemy import exc

    scheme = url.partition("://")[0]
    unreadable = f"{scheme}://{HIDDEN}"
    try:
        made = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # of a port that is no number
        return unreadable
    if "@" in (made.host or "") or "@" in (made.database or ""):
        return (
            unreadable  # a password with an @ or a / that was not written as %40, %2F
        )
    secret = {name: HIDDEN for name in made.query if SECRET.search(name)}
    text = made.update_query_dict(secret).render_as_string(hide_password=True)
    return text.replace("%2A%2A%2A", HIDDEN)


def secrets(url: str) -> set[str]:
    """Return what of a URL must not be seen: its password, and secret parameters."""
    if "://" not in url:
        return set()
    import sqlalchemy as sa
    from sqlalchemy import exc

    try:
        made = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        return set(re.findall(r"[^:/@?&=\s]{4,}", url.partition("://")[2]))
    hidden = [value for name, value in made.query.items() if SECRET.search(name)]
    flat = [part for one in hidden for part in ([one] if isinstance(one, str) else one)]
    torn = [one for one in (made.host, made.database) if "@" in (one or "")]
    return {str(one) for one in (made.password, *flat, *torn) if one}


def without(text: str, hidden: Iterable[str]) -> str:
    """Return a sentence of somebody else's without some secrets."""
    for one in sorted(hidden, key=len, reverse=True):
        text = text.replace(one, HIDDEN) if len(one) >= SHORTEST else text
    return text


def anonymous(word: str) -> str:
    """Return a word of a command line without a password that a URL in it has."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("-") and "://" in value:
        return f"{option}={shown(value)}"
    return shown(word)
