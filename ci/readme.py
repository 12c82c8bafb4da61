"""Write the tables of README.md and docs/*.md from the results under docs/results.

    python ci/readme.py            rewrite the tables
    python ci/readme.py --check    end with 1 if they are not what the results say

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``; of results that are not
there, nothing is shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import readme_gpu
import readme_loops
from readme_results import (
    RESULTS,
    bar_table,
    gate_bars,
)

ROOT: Final = Path(__file__).parent.parent
BARS: Final = RESULTS / "cpu-bars.json"
BUILD_BARS: Final = RESULTS / "build-bars.json"


def bars() -> Iterator[str]:
    """Every bar of ci/bars.py with its figure."""
    yield from bar_table(BARS)


def build_bars() -> Iterator[str]:
    """Every bar of ci/build_bars.py that was weighed, with its figure."""
    yield from bar_table(BUILD_BARS)


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "bars": bars,
    "build-bars": build_bars,
    "gate-bars": gate_bars,
    **readme_gpu.TABLES,
    **readme_loops.TABLES,
}


def written(text: str) -> str:
    """Return a page's text with its tables made anew."""
    for name in TABLES:
        if f"<!-- {name} -->" not in text:
            continue
        block = "\n".join([f"<!-- {name} -->", *_made(name), f"<!-- /{name} -->"])
        pattern = f"<!-- {name} -->.*?<!-- /{name} -->"
        text = re.sub(pattern, lambda _, b=block: b, text, flags=re.DOTALL)
    return text


def _made(name: str) -> list[str]:
    try:
        return list(TABLES[name]())
    except FileNotFoundError:
        return []  # not weighed yet


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the tables are current.")
def main(*, check: bool) -> None:
    """Write the tables of README.md and docs."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = page.read_text()
        after = written(before)
        if check and before != after:
            click.echo(
                f"error: {page.relative_to(ROOT)} differs from docs/results. Run "
                "ci/readme.py."
            )
            sys.exit(1)
        page.write_text(after)


if __name__ == "__main__":
    main()
