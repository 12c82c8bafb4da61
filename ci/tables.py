"""Write the tables of README.md and docs again: `python ci/tables.py [WORDS]`.

What lies between `<!-- COMMAND -->` and `<!-- end -->` is what the command prints. Those
whose command has WORDS are run, which are `steelyard show` unless others are given: that
measures nothing, and needs a run of that name in the store. Ends with 1 where one cannot be
run; its table stays.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = re.compile(
    r"<!-- ((?:steelyard|python) .*?) -->\n(.*?)<!-- end -->\n", re.DOTALL
)
"""A command, and what it printed."""


def printed(command: str) -> str | None:
    """Return what a command prints; None where it fails, which it says itself."""
    tool, *words = shlex.split(command)
    module = ["-m", "steelyard.cli"] if tool == "steelyard" else []
    line = [sys.executable, *module, *words]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def refreshed(text: str, words: str) -> tuple[str, bool]:
    """Return a page with new tables, and whether all of them could be made."""
    done = True

    def replaced(found: re.Match[str]) -> str:
        nonlocal done
        new = printed(found[1]) if words in found[1] else found[2]
        done = done and new is not None
        return f"<!-- {found[1]} -->\n{found[2] if new is None else new}<!-- end -->\n"

    return TABLE.sub(replaced, text), done


def main(words: str = "steelyard show") -> int:
    """Refresh every page."""
    every = True
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text, done = refreshed(page.read_text(), words)
        page.write_text(text)
        every = every and done
    click.echo("done" if every else "some tables stay as they were", err=True)
    return 0 if every else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
