"""Write the tables of README.md and docs/*.md from the results under docs/results.

    python ci/readme.py            rewrite the tables
    python ci/readme.py --check    end with 1 if they are not what the results say
    python ci/readme.py --run      first run the commands whose output is shown

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, with the words that lead
to it where it may be missing: of results that are not there, nothing is shown.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import readme_gpu
import readme_loops
from readme_results import (
    RESULTS,
    Suite,
    across,
    bar_table,
    gate_bars,
    ledger,
    provenance,
    ratio,
    table,
    time,
    value,
)

ROOT: Final = Path(__file__).parent.parent
BARS: Final = RESULTS / "cpu-bars.json"
BUILD_BARS: Final = RESULTS / "build-bars.json"
SUITE: Final = RESULTS / "cpu-suite.json"

COMMANDS: Final = {
    "build-timings": "steelyard compile adam --target cuda:sm_90a --timings",
    "build-candidates": (
        "steelyard compile bias_layernorm -p dtype=float16 --target cuda:sm_90a "
        "--candidates"
    ),
}
"""Commands whose output is kept, under these names, and shown."""


def bars() -> Iterator[str]:
    """Every bar of ci/bars.py with its figure."""
    yield from bar_table(BARS)


def build_bars() -> Iterator[str]:
    """Every bar of ci/build_bars.py that was weighed, with its figure."""
    yield from bar_table(BUILD_BARS)


def layernorm() -> Iterator[str]:
    """Set the kernel of Fuser#383 beside the fastest copy of its bytes."""
    suite = _suite()
    yield provenance(suite)
    yield ""
    lines = []
    for dtype in ("float32", "float16"):
        for hidden in (768, 1600, 4096, 5140):
            point = f"bias_layernorm[hidden={hidden},dtype={dtype},impl="
            lines.append([dtype, str(hidden), *_layernorm(suite, point)])
    heads = [
        "dtype",
        "hidden",
        "cold",
        "GB/s",
        "over copy",
        "NumPy, warm",
        "ours, warm",
    ]
    yield from table(heads, lines)


def _layernorm(suite: Suite, point: str) -> list[str]:
    cold, warm = "kernel/cold", "kernel/warm"
    ours = f"{point}ours]"
    copies = [f"{point}copy]", f"{point}copy_streaming]"]
    found = suite.time(ours, cold)
    assert found is not None
    fastest = min(copies, key=lambda one: value(suite.time(one, cold)))
    rate = suite.fact(ours, cold, "bytes") / found.value
    return [
        time(found),
        f"{rate:.1f}",
        ratio(suite.ratio(ours, fastest, cold)),
        time(suite.time(f"{point}numpy]", warm)),
        time(suite.time(ours, warm)),
    ]


def dispatch() -> Iterator[str]:
    """Say what one call costs on a CPU (iree#17012)."""
    suite = _suite()
    yield provenance(suite)
    yield ""
    for one in across(suite, "mode", lambda case, _: case.startswith("dispatch[")):
        yield from one.markdown()


def ledgers() -> Iterator[str]:
    """Say what the time of one call goes to."""
    suite = _suite()
    yield provenance(suite)
    yield ""
    yield from ledger(suite, lambda case, _: case.startswith("dispatch["))


def build_timings() -> Iterator[str]:
    """Show where the time of a build goes: the table under the rows."""
    lines = _output("build-timings")
    start = next(n for n, line in enumerate(lines) if line.startswith("wall "))
    yield from _shown("build-timings", lines[start:])


def build_candidates() -> Iterator[str]:
    """Show a whole space: its first rows, its stages and its sums."""
    lines = _output("build-candidates")
    stages = next(n for n, line in enumerate(lines) if line.startswith("stage "))
    yield from _shown("build-candidates", [*lines[:8], "...", "", *lines[stages:]])


def build_sums() -> Iterator[str]:
    """Show the last lines of both: what all took together."""
    timings = next(x for x in _output("build-timings") if x.startswith("wall "))
    *_, candidates = _output("build-candidates")
    yield "```text"
    yield f"adam[n=65536,dtype=float32] cuda:sm_90a, five builds: {timings}"
    yield candidates.partition(" (sums")[0]
    yield "```"


def _output(name: str) -> list[str]:
    text = (RESULTS / f"{name}.txt").read_text()
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _shown(name: str, lines: Sequence[str]) -> Iterator[str]:
    yield "```text"
    yield f"$ {COMMANDS[name]}"
    yield from lines
    yield "```"


def run_commands() -> None:
    """Keep what the commands print here and now."""
    for name, command in COMMANDS.items():
        program, *arguments = command.split()
        found = [str(Path(sys.executable).with_name(program)), *arguments]
        done = subprocess.run(found, check=True, capture_output=True, text=True)
        (RESULTS / f"{name}.txt").write_text(done.stdout)


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "bars": bars,
    "build-bars": build_bars,
    "gate-bars": gate_bars,
    "build-timings": build_timings,
    "build-candidates": build_candidates,
    "build-sums": build_sums,
    "layernorm": layernorm,
    "dispatch": dispatch,
    "ledger": ledgers,
    **readme_gpu.TABLES,
    **readme_loops.TABLES,
}


LEADS: Final = {
    "gate-bars": "## Of the gate",
    **readme_gpu.LEADS,
}
"""What stands above a table that may be missing, and goes with it."""


def _suite() -> Suite:
    return Suite(json.loads(SUITE.read_text()))


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
        lines = list(TABLES[name]())
    except FileNotFoundError:
        return []  # not weighed yet
    lead = LEADS.get(name)
    return [*([lead, ""] if lead else []), *lines]


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the tables are current.")
@click.option("--run", "again", is_flag=True, help="Run the commands shown first.")
def main(*, check: bool, again: bool) -> None:
    """Write the tables of README.md and docs."""
    if again:
        run_commands()
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
