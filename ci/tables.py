"""Write the output of commands into README.md and docs, between markers that name them.

    python ci/tables.py [PAGE]...

Between ``<!-- $ steelyard show RUN --format markdown -->`` and ``<!-- $ -->`` stands what
that command prints now.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- \$ (steelyard [^\n]+?) -->\n).*?(<!-- \$ -->)", re.DOTALL)


def written(text: str) -> str:
    """Return a page with the output of its commands made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{output(found[2])}{found[3]}", text)


def output(command: str) -> str:
    """Return what a command prints; a claim that fails is printed too."""
    program, *arguments = shlex.split(command)
    line = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    places = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in map(Path, sys.argv[1:] or places):
        page.write_text(written(page.read_text()))
