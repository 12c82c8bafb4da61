"""Write the tables of README.md from the results under docs/results.

    python ci/readme.py            rewrite the tables
    python ci/readme.py --check    end with 1 if they are not what the results say
    python ci/readme.py --run      first run the commands whose output is shown

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from steelyard import stats, units
from steelyard.stats import Estimate

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "docs" / "results"
BARS: Final = RESULTS / "cpu-bars.json"
BUILD_BARS: Final = RESULTS / "build-bars.json"
SUITE: Final = RESULTS / "cpu-suite.json"
EXAMPLE: Final = RESULTS / "example.txt"

COMMANDS: Final = {
    "build-timings": "steelyard compile adam --target cuda:sm_90a --timings",
    "build-candidates": (
        "steelyard compile bias_layernorm -p dtype=float16 --target cuda:sm_90a "
        "--candidates"
    ),
}
"""Commands whose output is kept, under these names, and shown."""

Blocks = dict[int, Estimate]


class Suite:
    """A stored `steelyard run --json` by case and mode."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.trials: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for trial in document["trials"]:
            if trial["estimate"] is not None:
                self.trials.setdefault((trial["case"], trial["mode"]), []).append(trial)

    def blocks(self, case: str, mode: str) -> Blocks:
        """Return the estimate of each block; none if the row is missing."""
        return {
            t["block"]: Estimate(t["estimate"], t["low"], t["high"])
            for t in self.trials.get((case, mode), [])
        }

    def time(self, case: str, mode: str) -> Estimate | None:
        """Return the estimate over all blocks."""
        found = self.blocks(case, mode)
        return stats.combine(list(found.values())) if found else None

    def ratio(self, case: str, base: str, mode: str) -> Estimate | None:
        """Return time over that of another case, paired by block."""
        new, old = self.blocks(case, mode), self.blocks(base, mode)
        shared = sorted(set(new) & set(old))
        if not shared:
            return None
        return stats.ratio([new[b] for b in shared], [old[b] for b in shared])

    def fact(self, case: str, mode: str, name: str) -> Any:
        """Return a fact of a row's last trial."""
        return self.trials[case, mode][-1][name]


def bars() -> Iterator[str]:
    """Every bar of ci/bars.py with its figure."""
    yield from _bars(BARS)


def build_bars() -> Iterator[str]:
    """Every bar of ci/build_bars.py that was weighed, with its figure."""
    yield from _bars(BUILD_BARS)


def _bars(path: Path) -> Iterator[str]:
    document = json.loads(path.read_text())
    yield machine(document["machine"], document["command"])
    yield "(weighed in parts; the commit is that of the last)"
    yield ""
    yield from _table(
        ["what", "bar", "measured", ""],
        [
            [bar["what"], bar["bar"], bar["figure"], _mark(bar["met"])]
            for bars in document["bars"].values()
            for bar in bars
        ],
    )


def layernorm() -> Iterator[str]:
    """Set the kernel of Fuser#383 beside the fastest copy of its bytes."""
    suite = _suite()
    yield _provenance(suite)
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
    yield from _table(heads, lines)


def _layernorm(suite: Suite, point: str) -> list[str]:
    cold, warm = "kernel/cold", "kernel/warm"
    ours = f"{point}ours]"
    copies = [f"{point}copy]", f"{point}copy_streaming]"]
    found = suite.time(ours, cold)
    assert found is not None
    fastest = min(copies, key=lambda one: _value(suite.time(one, cold)))
    rate = suite.fact(ours, cold, "bytes") / found.value
    return [
        _time(found),
        f"{rate:.1f}",
        _ratio(suite.ratio(ours, fastest, cold)),
        _time(suite.time(f"{point}numpy]", warm)),
        _time(suite.time(ours, warm)),
    ]


def dispatch() -> Iterator[str]:
    """Say what the time of one call goes to (iree#17012)."""
    suite = _suite()
    yield _provenance(suite)
    yield ""
    parts = ["allocate", "first_touch", "pack", "submit", "kernel", "synchronise"]
    parts.append("untracked")
    lines = []
    for impl in ("numpy", "ours"):
        for n in (1000, 1_000_000):
            case = f"dispatch[n={n},impl={impl}]"
            for mode in ("latency/warm/allocated", "latency/warm", "latency/warm/64"):
                if suite.time(case, mode) is None:
                    continue
                ledgers = [t["ledger"] for t in suite.trials[case, mode]]
                cells = [_part(ledgers, part) for part in parts]
                lines.append([case, mode, _time(suite.time(case, mode)), *cells])
    yield from _table(["case", "mode", "one call", *parts], lines)


def _part(ledgers: Sequence[Mapping[str, float]], part: str) -> str:
    values = [ledger[part] for ledger in ledgers if part in ledger]
    return units.duration(statistics.median(values)) if values else "-"


def example() -> Iterator[str]:
    """Show what a terminal shows."""
    yield "```text"
    yield EXAMPLE.read_text().rstrip()
    yield "```"


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
    "build-timings": build_timings,
    "build-candidates": build_candidates,
    "layernorm": layernorm,
    "dispatch": dispatch,
    "example": example,
}


def machine(facts: Mapping[str, Any], command: str) -> str:
    """Return one line on where and how something was measured."""
    identity, settings = facts["identity"], facts["settings"]
    checkout = facts["versions"]
    return (
        f"`{command}` on {identity['cpu']}, {len(settings['affinity'])} cores, "
        f"hypervisor {identity['hypervisor']}, Python {checkout['python']}, commit "
        f"`{checkout.get('commit', 'unknown')[:10]}`"
    )


def _suite() -> Suite:
    return Suite(json.loads(SUITE.read_text()))


def _provenance(suite: Suite) -> str:
    return machine(suite.document["machine"], suite.document["run"]["command"])


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for line in lines:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


def _value(found: Estimate | None) -> float:
    return found.value if found else float("inf")


def _time(found: Estimate | None) -> str:
    if found is None:
        return "-"
    return f"{units.duration(found.value)} ± {100 * found.half_width:.1f} %"


def _ratio(found: Estimate | None) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found else "-"


def _mark(met: bool | None) -> str:
    return {True: "met", False: "**missed**", None: "not measured"}[met]


def written(text: str) -> str:
    """Return README text with its tables made anew."""
    for name, made in TABLES.items():
        block = f"<!-- {name} -->\n" + "\n".join(made()) + f"\n<!-- /{name} -->"
        pattern = f"<!-- {name} -->.*?<!-- /{name} -->"
        text = re.sub(pattern, lambda _, b=block: b, text, flags=re.DOTALL)
    return text


@click.command()
@click.option("--check", is_flag=True, help="Only say whether the tables are current.")
@click.option("--run", "again", is_flag=True, help="Run the commands shown first.")
def main(*, check: bool, again: bool) -> None:
    """Write the tables of README.md."""
    if again:
        run_commands()
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = written(before)
    if check and before != after:
        click.echo(
            "error: README.md's tables differ from docs/results. Run ci/readme.py."
        )
        sys.exit(1)
    readme.write_text(after)


if __name__ == "__main__":
    main()
