"""What the tables of README.md and docs are made of: stored results, and cells."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from steelyard import units
from steelyard.analyse import stats
from steelyard.analyse.rows import by_value, mode_rank
from steelyard.analyse.stats import Estimate
from steelyard.declare.axes import plain
from steelyard.measure.ledger import PARTS
from steelyard.report import pivot, tables, text
from steelyard.report.grid import Grid

RESULTS: Final = Path(__file__).parent.parent / "docs" / "results"

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
            t["block"]: Estimate(t["estimate"], t["low"], t["high"], _systematic(t))
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
        """Return a fact of a row's last trial, None if nobody knows it."""
        return self.trials[case, mode][-1].get(name)


Key = tuple[str, str]


def across(
    suite: Suite,
    name: str,
    wanted: Callable[[str, str], bool],
    cell: Callable[[Key], str] | None = None,
) -> Iterator[Grid]:
    """Yield what ``steelyard show --across NAME`` shows of the cases and modes wanted.

    A grid a benchmark, of time unless ``cell`` says something else of a row.
    """
    keys = sorted(filter(lambda key: wanted(*key), suite.trials), key=_order(suite))
    for benchmark, group in groupby(keys, key=lambda key: key[0].partition("[")[0]):
        readings = [
            pivot.Reading(
                benchmark,
                {n: plain(v) for n, v in suite.trials[key][-1]["axes"].items()},
                key[1],
                cell(key) if cell else time(suite.time(*key)),
            )
            for key in group
        ]
        yield pivot.grid(readings, name)


def _order(suite: Suite) -> Callable[[Key], Any]:
    def order(key: Key) -> Any:
        axes = suite.trials[key][-1]["axes"].values()
        return key[0].partition("[")[0], [by_value(v) for v in axes], mode_rank(key[1])

    return order


def ledger(suite: Suite, wanted: Callable[[str, str], bool]) -> Iterator[str]:
    """Yield where the time of one call went, and why parts may be more than it."""
    keys = sorted(
        (k for k in suite.trials if wanted(*k) and suite.trials[k][-1]["ledger"]),
        key=_order(suite),
    )
    said = {part for key in keys for t in suite.trials[key] for part in t["ledger"]}
    parts = [part for part in PARTS if part in said]
    lines, least = [], 0.0
    for key in keys:
        whole, trials = suite.time(*key), suite.trials[key]
        assert whole is not None
        found = {p: [t["ledger"][p] for t in trials if p in t["ledger"]] for p in parts}
        means = {p: statistics.fmean(v) for p, v in found.items() if v}
        left = whole.value - sum(means.values())
        least = min(least, left / whole.value)
        cells = [units.duration(means[p]) if p in means else "-" for p in parts]
        lines.append([*key, time(whole), *cells, units.duration(left)])
    yield from table(["case", "mode", "one call", *parts, "untracked"], lines)
    if least < -tables.EXCESS:
        yield ""
        yield f"{tables.OVERLAP[0].upper()}{tables.OVERLAP[1:]}."


def _systematic(trial: Mapping[str, Any]) -> float:
    """Return the part of half an interval that more samples do not make less."""
    parts: Mapping[str, float] = trial.get("budget") or {}
    return parts.get("offset", 0.0) + parts.get("drift", 0.0)


def bar_table(path: Path) -> Iterator[str]:
    """Every bar of a campaign with its figure."""
    document = json.loads(path.read_text())
    yield machine(document["machine"], document["command"])
    yield "(weighed in parts; the commit is that of the last)"
    yield ""
    yield from _bars(document["bars"].values())


def gate_bars() -> Iterator[str]:
    """Every bar of ci/gate_bars.py with its figure."""
    document = json.loads((RESULTS / "gate-bars.json").read_text())
    yield machine(document["machine"], "python ci/gate_bars.py")
    commits = dict.fromkeys(one["commit"][:10] for one in document["sections"].values())
    yield f"(weighed in parts, at {', '.join(f'`{commit}`' for commit in commits)})"
    yield ""
    yield from _bars(one["bars"] for one in document["sections"].values())


def _bars(sections: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield from table(
        ["what", "bar", "measured", ""],
        [
            [bar["what"], bar["bar"], bar["figure"], mark(bar["met"])]
            for bars in sections
            for bar in bars
        ],
    )


def machine(facts: Mapping[str, Any], command: str) -> str:
    """Return one line on where and how something was measured."""
    identity, settings = facts["identity"], facts["settings"]
    checkout, gpu = facts["versions"], facts.get("gpu")
    where = f"{gpu['name']} (driver {gpu['driver']}), " if gpu else ""
    return (
        f"`{command}` on {where}{identity['cpu']}, {len(settings['affinity'])} cores, "
        f"hypervisor {identity['hypervisor']}, Python {checkout['python']}, commit "
        f"`{checkout.get('commit', 'unknown')[:10]}`"
    )


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for line in lines:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


def value(found: Estimate | None) -> float:
    """Return a number to sort by: nothing is last."""
    return found.value if found else float("inf")


def time(found: Estimate | None) -> str:
    """Return the cell of a time."""
    if found is None:
        return "-"
    return f"{units.duration(found.value)} {text.margin(found)}"


def ratio(found: Estimate | None) -> str:
    """Return the cell of a ratio."""
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found else "-"


def mark(met: bool | None) -> str:
    """Return the cell of whether a bar was met."""
    return {True: "met", False: "**missed**", None: "not to its end"}[met]


def provenance(suite: Suite) -> str:
    """Return one line on where and how a run was measured."""
    return machine(suite.document["machine"], suite.document["run"]["command"])
