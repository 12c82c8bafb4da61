"""One case on a page: its blocks, modes, ledger, clocks, facts, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from steelyard import units
from steelyard.analyse import stats
from steelyard.analyse.rows import Row
from steelyard.analyse.trial import Run, Trial
from steelyard.report import clocks_table, details, scale, tables, text
from steelyard.report.pages import svg
from steelyard.report.pages.html import Markup, join, sheet, tag
from steelyard.store import private

WIDE: Final = 460
LEFT: Final = 30
LINE: Final = 15
"""Pixels of a block."""

SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
POINTS: Final = 60
"""Of a distribution's line, at most."""

CODE: Final = (
    *("bytes", "operations", "dtype", "schedule", "registers", "spill_bytes"),
    *("library", "code_hash"),
)
"""Facts of a case on a page of many."""

SHOWN: Final = ("facts", "hashes", "clock (ns)", "error bar (ns, half)", "extra")


def section(run: Run, group: Sequence[Row], name: str, *, whole: bool) -> Markup:
    """Return a case's part of a page; ``whole`` adds every statistic and fact."""
    good = [row for row in group if row.trials]
    errors = dict.fromkeys(chain.from_iterable(row.errors for row in group))
    parts: list[str] = [tag("h3", group[0].case)]
    parts += (
        tag("p", f"failed: {private.anonymous(error)}", class_="bad")
        for error in errors
    )
    if whole and len(good) > 1:
        parts.append(modes(good))
    parts += [tag("div", *map(blocks, good), class_="row")] if good else []
    parts += chain.from_iterable(map(ledger, good))
    if whole:
        parts += chain.from_iterable(map(_whole, good))
    elif good:
        parts.append(_facts(good[0]))
    parts += [_repeat(run, good)] if good else []
    return tag("section", *parts, class_="case", id=name)


def modes(group: Sequence[Row]) -> Markup:
    """Return the times of a case's modes below each other: warm against cold."""
    known = [(row.mode, row.estimate) for row in group if row.estimate]
    values = [one.value for _, one in known if one.value > 0]
    if not values:
        return join(())
    x = scale.of(values, 150, WIDE - 80, log=True)
    parts = []
    for at, (mode, one) in enumerate(known):
        y = LINE * (at + 0.7)
        parts += [
            svg.words(0, y + 4, mode),
            svg.interval(x, y, one, f"k{at % svg.COLOURS}"),
            svg.words(WIDE, y + 4, units.duration(one.value), "end", "name"),
        ]
    said = ", ".join(f"{mode} {units.duration(one.value)}" for mode, one in known)
    return svg.picture(WIDE, LINE * (len(known) + 0.5), "modes", said, *parts)


def blocks(row: Row) -> Markup:
    """Return a strip a block: 5 to 95 % of its windows, the middle half, the median."""
    each = [_quantiles(trial) for trial in row.trials]
    x = scale.of(list(chain.from_iterable(each)), LEFT, WIDE)
    thin, box, mid, marks = "", "", "", []
    for at, (trial, found) in enumerate(zip(row.trials, each, strict=True)):
        y = LINE * at + 8
        a, b, c, d, e = (round(x(value)) for value in found)
        thin += f"M{a} {y}H{e}"
        box += f"M{b} {y}H{max(d, b + 1)}"
        mid += f"M{c} {y - 5}v10"
        if trial.block != at:  # the usual numbers say nothing
            marks.append(svg.words(LEFT - 8, y + 4, str(trial.block)))
    bottom = LINE * len(each)
    low, high = min(found[0] for found in each), max(found[-1] for found in each)
    ends = (svg.words(x(v), bottom + 12, units.duration(v)) for v in (low, high))
    strips = svg.picture(
        WIDE,
        bottom + LINE,
        row.mode,
        "",
        *(tag("path", d=each) for each in (thin, box, mid)),
        *([tag("g", *marks)] if marks else []),
        *ends,
        styled=True,
    )
    said = f"{row.mode} {text.time(row)} {text.margin(row.estimate)}"
    doubts = (join((" ", tag("a", d, href=f"#d-{d}"))) for d in row.doubts)
    return tag("div", tag("p", said, *doubts), strips)


def _quantiles(trial: Trial) -> list[float]:
    ordered = sorted(stats.corrected(trial))
    return [stats.quantile(ordered, share) for share in SHARES]


def distribution(row: Row) -> Markup:
    """Return the share of windows below each time, a line a block."""
    every = sorted(chain.from_iterable(map(stats.corrected, row.trials)))
    low, high = every[0], stats.quantile(every, 0.98)
    x, y = scale.of([low, high], LEFT, WIDE), scale.Scale(0, 1, 110, 20)
    parts = list(svg.axis(x, 20, 110, units.duration))
    for at, trial in enumerate(row.trials):
        ordered = sorted(stats.corrected(trial))
        count = min(len(ordered), POINTS)
        shares = [n / (count - 1) if count > 1 else 0.5 for n in range(count)]
        d = "".join(
            f"H{x(stats.quantile(ordered, share)):.0f}V{y(share):.0f}"
            for share in shares
        )
        start = f"M{x(ordered[0]):.0f} 110"
        parts.append(
            svg.line(start + d, f"k{at % svg.COLOURS}", f"block {trial.block}")
        )
    parts.append(svg.words(LEFT, 12, f"{row.mode}: share of windows that took at most"))
    blocks = units.count(len(row.trials), "block")
    about = f"{blocks} from {units.duration(low)} to {units.duration(high)}"
    return svg.picture(WIDE, 132, f"{row.mode}: distribution by block", about, *parts)


def ledger(row: Row) -> Iterator[Markup]:
    """Yield where the time of one call went as a bar, where that is known."""
    total = row.estimate.value if row.estimate else 0.0
    parts = {name: value for name, value in row.ledger().items() if name != "untracked"}
    if not parts or not total > 0:
        return
    parts["untracked"] = tables.untracked(row)
    whole = sum(max(value, 0.0) for value in parts.values())
    x, at, made = scale.Scale(0, whole, 0, WIDE), 0.0, []
    names = []
    for n, (name, value) in enumerate(parts.items()):
        said = f"{name} {units.duration(value)}, {100 * value / total:.1f} %"
        if value > 0:
            size = {"x": f"{x(at):.1f}", "width": f"{x(at + value) - x(at):.1f}"}
            colour = f"f{n % svg.COLOURS}" if name != "untracked" else "f6"
            kind = {"y": 2, "height": 18, "class_": f"on {colour}"}
            made.append(tag("rect", **size, **kind))
            at += value
        names.append(said)
    about = "; ".join(names)
    bar = svg.picture(WIDE, 22, f"{row.mode}: ledger of one call", about, *made)
    keys = (
        tag(
            "li",
            tag("b", "■ ", class_=f"t{n % svg.COLOURS if m != 'untracked' else 6}"),
            said,
        )
        for n, (m, said) in enumerate(zip(parts, names, strict=True))
    )
    yield tag("figure", bar, tag("figcaption", tag("ul", *keys, class_="keys")))


def _facts(row: Row) -> Markup:
    """Return what is said most of a case's code in a line."""
    facts = details.groups(row)["facts"]
    said = " · ".join(f"{name} {facts[name]}" for name in CODE if name in facts)
    return tag("p", private.anonymous(said), class_="note")


def _whole(row: Row) -> Iterator[Markup]:
    yield distribution(row)
    yield from clocks(row)
    yield sheet(details.blocks(row))
    groups: Mapping[str, Mapping[str, str]] = details.groups(row)
    lines = [
        (tag("dt", name), tag("dd", private.anonymous(value)))
        for group in SHOWN
        for name, value in groups[group].items()
    ]
    yield tag("dl", *chain.from_iterable(lines))


def clocks(row: Row) -> Iterator[Markup]:
    """Yield the times that several clocks read side by side, with the error's parts."""
    found = clocks_table.by_clock(row)
    if len(found) < 2:
        return
    read = {name: clocks_table.together(trials) for name, trials in found.items()}
    ends = [end for one in read.values() for end in (one.low, one.high)]
    x, parts = scale.of(ends, 110, WIDE), []
    for at, (name, one) in enumerate(read.items()):
        y = LINE * (at + 0.7)
        mark = svg.interval(x, y, one, f"k{at % svg.COLOURS}")
        parts += [svg.words(0, y + 4, name), mark]
    bottom = LINE * len(read)
    parts += svg.axis(x, 0, bottom, units.duration)
    yield svg.picture(WIDE, bottom + LINE, f"{row.mode} by clock", "", *parts)
    yield sheet(clocks_table.beside(row.mode, found))


def _repeat(run: Run, group: Sequence[Row]) -> Markup:
    """Return the command that measures all modes of a case again."""
    modes = ",".join(row.mode for row in group)
    lines = "$ " + details.reproduce(run, group[0], modes)
    return tag("p", tag("code", private.anonymous(lines)), class_="run")
