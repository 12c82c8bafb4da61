"""Commands that install more of steelyard, as this installation came about.

The name steelyard is nobody's on a package index until it is published there: a command
names an index only where this installation came from one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Final

NAME: Final = "steelyard"


def command(*extras: str) -> str:
    """Return the command that installs extras, ``cuda`` and ``cupti`` for example."""
    return f"pip install {requirement(_origin(), extras)}"


def upgrade() -> str:
    """Return what brings a newer steelyard."""
    origin = _origin()
    if origin is None:
        return f"`pip install -U {NAME}`"
    return f"a newer copy of {origin['url']}, then `pip install {requirement(origin)}`"


ELSEWHERE: Final[dict[str, object]] = {
    "url": "https://github.com/OWNER/steelyard",
    "vcs_info": {"vcs": "git", "commit_id": "main"},
}
"""Stands for the repository where this installation came from a folder: its reader has
to say which it is."""


def elsewhere(*projects: str) -> tuple[str, bool]:
    """Return what installs projects and this on another machine, and whether that works.

    It does not where this came from a folder, which other machines do not have.
    """
    origin = _origin()
    known = origin is None or not str(origin["url"]).startswith("file://")
    here = requirement(origin if known else ELSEWHERE)
    return " ".join(["python -m pip install", *projects, here]), known


def requirement(origin: dict[str, object] | None, extras: tuple[str, ...] = ()) -> str:
    """Return what pip takes, quoted, for an origin as in ``direct_url.json``.

    ``origin`` is None where the distribution came from an index (PEP 610).
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    if origin is None:
        return f'"{NAME}{wanted}"'
    url, folder = str(origin["url"]), origin.get("dir_info")
    if isinstance(folder, dict) and url.startswith("file://"):
        flag = "-e " if folder.get("editable") else ""
        return f'{flag}"{_path(url)}{wanted}"'
    version = origin.get("vcs_info")
    if isinstance(version, dict):
        url = f"{version['vcs']}+{url}@{version['commit_id']}"
    return f'"{NAME}{wanted} @ {url}"'


def _path(url: str) -> str:
    quoted = re.sub("^file://(localhost)?", "", url)
    return re.sub("%([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), quoted)


@cache
def _origin() -> dict[str, object] | None:
    # 20 ms to import, and most processes lack nothing.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        text = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) and "url" in found else None
