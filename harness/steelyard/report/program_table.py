"""A program that nobody rewrote, as a sentence, a ledger and a trace.

Where its stacks were sampled they are shown function by function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from steelyard import units
from steelyard.analyse.program import KINDS, Events, Ledger
from steelyard.machine import mangled
from steelyard.process import perfetto
from steelyard.process.perfetto import Recording, Span, Work
from steelyard.process.stacks import Stacks
from steelyard.report.grid import Line, sheet_of
from steelyard.units import NOTHING

LISTED: Final = 20
"""Kernels that have a line; the others share one."""

LONGEST: Final = 70
"""Characters of a kernel's name."""

TRACED: Final = 100_000
"""Events of a trace; its viewer is slow with more."""

TITLES: Final = ("what", "count", "total", "share", "each", "gap before", "bytes")

COPIES: Final = {"in": "copies in", "out": "copies out", "within": "copies within"}


def sentence(events: Events, found: Ledger) -> str:
    """Say what a program's GPU did most of the time."""
    if not found.launches:
        return "no kernel ran on a GPU."
    several = f"{found.launches} launches"
    if found.iteration:
        several = f"{found.iteration} launches an iteration"
    apart = f"{several}, {units.duration(found.apart, 2)} apart"
    idle = 100 * found.idle
    of = f"of the {units.duration(found.span, 3)} between the first kernel and the last"
    waits = events.count("wait")
    end = f"; the host waited {waits} times" if waits else ""
    if idle >= 50:
        return f"{idle:.0f} % {of} no kernel runs: {apart}{end}."
    return f"kernels run in {100 - idle:.0f} % {of}: {apart}{end}."


def page(events: Events, found: Ledger) -> Iterator[RenderableType]:
    """Yield the sentence, the ledger, and what is not in it."""
    if not events.about["note"]:
        yield Text(sentence(events, found), style="bold")
    if found.launches:
        lines = list(_lines(events, found))
        table = sheet_of(TITLES, lines, right=TITLES[1:], folds={"what"})
        yield from ("", table)
    if events.about["spans"]:
        yield Text(f"\nour own spans\n{events.about['spans']}")
    if events.about["refused"]:
        count = events.about["refused"]
        yield Text(
            f"\n{count} activities are missing: they were too many, or not done."
        )
    if events.about["note"]:
        yield Text(f"\nnothing is known of a GPU: {events.about['note']}")


def _lines(events: Events, found: Ledger) -> Iterator[Line]:
    span = found.span

    def line(
        what: str, count: int, total: int, gap: str = NOTHING, nbytes: int = 0
    ) -> Line:
        return (
            what,
            str(count) if count else NOTHING,
            units.duration(total) if total else NOTHING,
            f"{100 * total / span:.1f} %" if total and span else NOTHING,
            units.duration(total / count) if total and count else NOTHING,
            gap,
            units.size(nbytes) if nbytes else NOTHING,
        )

    for one in found.kernels[:LISTED]:
        gap = units.duration(one.gap)
        yield line(shown(one.name), one.count, one.total, gap)
    rest = found.kernels[LISTED:]
    if rest:
        counts, total = sum(k.count for k in rest), sum(k.total for k in rest)
        yield line(f"{len(rest)} other kernels", counts, total)
    yield line("no kernel runs", 0, span - found.busy)
    for name, words in COPIES.items():
        if count := events.count("copy", name):
            total = events.total("copy", name)
            yield line(words, count, total, nbytes=events.bytes("copy", name))
    if count := events.count("fill"):
        yield line("fills", count, events.total("fill"), nbytes=events.bytes("fill"))
    for name in ("allocated", "freed"):
        if count := events.count("memory", name):
            yield line(f"memory {name}", count, 0, nbytes=events.bytes("memory", name))
    if count := events.count("wait"):
        yield line("the host waits", count, events.total("wait"))


def trace(events: Events, title: str) -> dict[str, Any]:
    """Return a trace that ui.perfetto.dev opens, of the last events where they are many."""
    kinds = [KINDS.index(kind) for kind in ("kernel", "copy", "fill")]
    works = []
    for at in range(len(events.start)):
        if events.kind[at] in kinds:
            word = KINDS[int(events.kind[at])]
            name = events.names[int(events.name[at])]
            works.append(
                Work(
                    shown(name) if word == "kernel" else f"{word} {name}",
                    int(events.start[at]),
                    int(events.end[at]),
                    int(events.stream[at]),
                    None,
                    {"bytes": int(events.nbytes[at])} if word != "kernel" else {},
                )
            )
    waits = [
        Span("wait", int(events.start[at]), int(events.end[at]))
        for at in events.of("wait")
    ]
    whole = Span(title, events.about["began"], events.about["ended"])
    made = Recording(title, [whole, *waits[-TRACED:]], works[-TRACED:])
    return perfetto.document([made], {"clock": "CLOCK_REALTIME"})


def shown(name: str) -> str:
    """Return a kernel's name as its author wrote it, without what does not fit a line."""
    plain = mangled.plain(name)
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."


FUNCTIONS: Final = 15

STACK_TITLES: Final = ("function", "own", "share", "with what it calls", "share of all")


def samples(count: float) -> str:
    """Write a number of samples."""
    return f"{count:.0f} samples"


def stacks_page(found: Stacks) -> Iterator[RenderableType]:
    """Yield the functions in which most of the time was spent."""
    write, total = units.duration if found.timed else samples, found.total
    every = found.functions()
    yield Text(f"\nsampled stacks: {write(total)} in {len(every)} functions")
    lines = [
        (
            name,
            write(own),
            f"{100 * own / total:.1f} %",
            write(within),
            f"{100 * within / total:.1f} %",
        )
        for name, own, within in every[:FUNCTIONS]
    ]
    yield ""
    yield sheet_of(STACK_TITLES, lines, right=STACK_TITLES[1:], folds={"function"})
