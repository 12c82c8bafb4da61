"""Rows: what all blocks of one case in one mode say together. Pure."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from steelyard.analyse import agreement, expression, peaks, stats
from steelyard.analyse.doubts.clocks import (
    ABOVE,
    ABOVE_PEAK,
    CLOCKS_DISAGREE,
    host_clocks_differ,
)
from steelyard.analyse.doubts.samples import ONE_BLOCK, UNSETTLED, WIDE
from steelyard.analyse.peaks import Peak
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import QUANTITIES, Trial
from steelyard.errors import SteelyardError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One case in one mode; times are nanoseconds per launch."""

    case: str
    axes: Mapping[str, Any]
    mode: str
    trials: tuple[Trial, ...]
    """One per block, in order, of those that have samples and did not fail."""
    estimate: Estimate | None
    """All blocks together; None where every one failed."""
    errors: tuple[str, ...] = ()
    relative: Estimate | None = None
    """Time over that of the reference case, paired within blocks."""
    peak: Peak | None = None
    """Its share of what this machine was measured to do at most, where that is known."""

    @property
    def benchmark(self) -> str:
        """The name before the axes."""
        return self.case.partition("[")[0]

    @property
    def minimum(self) -> float:
        """The fastest window of all blocks, without its clock's offset."""
        return min(min(stats.corrected(t)) for t in self.trials)

    @property
    def samples(self) -> int:
        """Windows of all blocks."""
        return sum(len(t.samples) for t in self.trials)

    @property
    def floor(self) -> float | None:
        """What the clock reads around nothing, as its share of one launch."""
        shares = [f for f in map(floor_share, self.trials) if f is not None]
        return max(shares) if shares else None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Doubts of any block, and of all of them together."""
        found = {d for t in self.trials for d in t.doubts} - {UNSETTLED.name}
        if self.estimate is not None and self.estimate.sampled > WIDE:
            found.add(UNSETTLED.name)
        if len(self.trials) == 1:
            found.add(ONE_BLOCK.name)
        if self.peak is not None and self.estimate is not None:
            surely = self.peak.share * self.estimate.value / self.estimate.high
            surely *= 1 - self.peak.error
            if surely > ABOVE:
                found.add(ABOVE_PEAK.name)
        return tuple(sorted(found))

    @property
    def processor_time(self) -> float:
        """Nanoseconds of processor time of the process for each launch."""
        spent = [c for t in self.trials for c in t.samples.cpu]
        return sum(spent) / max(
            1, sum(n for t in self.trials for n in t.samples.launches)
        )

    def energy(self, name: str) -> float | None:
        """Return ``watts`` or ``joules_per_launch``, the mean of the blocks with it."""
        each = [t.extra.get("gpu", {}).get("energy", {}).get(name) for t in self.trials]
        known = [value for value in each if isinstance(value, (int, float))]
        return sum(known) / len(known) if known else None

    def histogram(self) -> str:
        """All windows of all blocks in one line of bars."""
        return stats.histogram([x for t in self.trials for x in stats.corrected(t)])

    def rate(self, quantity: str) -> float | None:
        """Return bytes, operations or items per second; a build moves none of them."""
        if self.mode.startswith("build/"):
            return None
        estimate = self.estimate
        amount = self.trials[-1].facts.get(quantity) if self.trials else None
        if not amount or estimate is None or not estimate.value > 0:
            return None
        return float(amount) / estimate.value * 1e9

    def fact(self, name: str) -> Any:
        """Return what the work last said of itself under ``name``, or None."""
        return self.trials[-1].facts.get(name) if self.trials else None

    def ledger(self) -> dict[str, float]:
        """Return the parts of one call, each the mean over blocks."""
        parts: dict[str, list[float]] = defaultdict(list)
        for trial in self.trials:
            for name, value in trial.ledger.items():
                parts[name].append(value)
        return {name: sum(v) / len(v) for name, v in parts.items()}


def rows(trials: Iterable[Trial]) -> list[Row]:
    """Group trials into rows, sorted by benchmark, axes and mode."""
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[trial.case, trial.mode].append(trial)
    return sorted((_row(*key, group) for key, group in groups.items()), key=_order)


def _row(case: str, mode: str, group: Sequence[Trial]) -> Row:
    usable = tuple(sorted((t for t in group if t.usable), key=lambda t: t.block))
    return Row(
        case=case,
        axes=group[0].axes,
        mode=mode,
        trials=usable,
        estimate=combined([block_estimate(t) for t in usable]),
        errors=tuple(dict.fromkeys(t.error for t in group if t.error)),
    )


def _order(row: Row) -> tuple[Any, ...]:
    """Sort numbers as numbers, words as words, and modes as their table lists them."""
    return row.benchmark, [by_value(v) for v in row.axes.values()], mode_rank(row.mode)


def by_value(value: Any) -> tuple[int, float, str]:
    """Return what sorts values of an axis: numbers first, as numbers, then words."""
    number = isinstance(value, (int, float))
    return (0, value, "") if number else (1, 0, str(value))


def mode_rank(text: str) -> tuple[int, list[str], list[int]]:
    """Return what sorts modes as their table lists them, small batches first."""
    quantity, *words = text.split("/")
    known = quantity in QUANTITIES
    rank = QUANTITIES.index(quantity) if known else len(QUANTITIES)
    batch = [int(word) for word in words if word.isdecimal()]
    return rank, [w for w in words if not w.isdecimal()], batch


def block_estimate(trial: Trial) -> Estimate:
    """Return the estimate of one block."""
    return stats.of(trial).estimate


def combined(blocks: Sequence[Estimate]) -> Estimate | None:
    """Combine the estimates of blocks; None of none."""
    if not blocks:
        return None
    if min(b.value for b in blocks) > 0:
        return stats.combine(blocks)
    # A clock too coarse to see the work reads zero, which has no logarithm.
    mean = sum(b.value for b in blocks) / len(blocks)
    low, high = min(b.low for b in blocks), max(b.high for b in blocks)
    return Estimate(mean, low, high, max(b.systematic for b in blocks))


def as_read(made: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows as each clock read them, by its id: those that it read in all blocks.

    They have no doubt that clocks disagree, unless those of the host do.
    """
    found = defaultdict[str, list[Trial]](list)
    for row in made:
        seen = [agreement.views(trial) for trial in row.trials]
        for clock in set.intersection(*map(set, seen)) if seen else ():
            found[clock] += [_by_one_clock(each[clock]) for each in seen]
    return {clock: rows(trials) for clock, trials in found.items()}


def _by_one_clock(trial: Trial) -> Trial:
    if host_clocks_differ(trial.extra.get("spans", (0, 0))):
        return trial
    left = tuple(doubt for doubt in trial.doubts if doubt != CLOCKS_DISAGREE.name)
    return replace(trial, doubts=left)


def floor_share(trial: Trial) -> float | None:
    """Return what is read around nothing, in nanoseconds a launch.

    That is the empty window's share, and where a kernel is a Python callable on the CPU
    the time of calling one that is empty.
    """
    if "empty" not in trial.floors or not trial.samples.launches:
        return None
    kernel = trial.mode.startswith("kernel") and "gpu" not in trial.extra
    call = trial.floors.get("call", 0.0) if kernel and "called" in trial.extra else 0.0
    return trial.floors["empty"] / trial.samples.launches[0] + call


def paired_ratio(new: Sequence[Trial], base: Sequence[Trial]) -> Estimate | None:
    """Return new / base from the blocks that both have; None where there is none.

    One pair says nothing of how far the next is from it: the interval is every ratio
    that there can be, and not `Estimate.known`.

    Of two cases a clock's offset does not cancel: events were wrong by another 0.2 us
    round cuBLAS than round a copy.
    """
    by_block = {t.block: t for t in base}
    both = [(t, by_block[t.block]) for t in new if t.block in by_block]
    pairs = [(block_estimate(n), block_estimate(b)) for n, b in both]
    if not pairs or min(min(n.value, b.value) for n, b in pairs) <= 0:
        return None
    found = stats.ratio([n for n, _ in pairs], [b for _, b in pairs])
    if len(pairs) == 1:
        return Estimate(found.value, 0.0, math.inf)
    if new[0].case == base[0].case:
        return found
    # `stats.ratio` has the difference of both shares: with this it is their sum.
    apart = max(2 * min(map(_unknown, one)) for one in both)
    return stats.widened(found, found.value * apart)


def _unknown(trial: Trial) -> float:
    """Return what is not known of its clock's offset as a share of its estimate."""
    each = trial.clock.uncertainty / trial.samples.launches[0]
    return each / block_estimate(trial).value


def with_peaks(made: Sequence[Row], table: Mapping[str, Any]) -> list[Row]:
    """Add to each row of a kernel on a GPU how near it came to the peaks of a run."""
    return [replace(r, peak=peak(r.trials, r.estimate, table)) for r in made]


def peak(
    trials: Sequence[Trial], estimate: Estimate | None, table: Mapping[str, Any]
) -> Peak | None:
    """Return how near an estimate came to peaks; None of what is no GPU's kernel."""
    if not trials or estimate is None:
        return None
    last = trials[-1]
    quantity, cache = (*last.mode.split("/"), "")[:2]
    if "gpu" not in last.extra or quantity != "kernel":
        return None
    return peaks.nearest(
        table,
        estimate.value,
        cache=cache,
        nbytes=last.facts.get("bytes") or 0,
        operations=last.facts.get("operations") or 0,
        dtype=str(last.axes.get("dtype", last.facts.get("dtype", ""))),
    )


def reference(points: Iterable[Mapping[str, Any]], text: str) -> tuple[str, str]:
    """Read ``impl=copy``: the axis and the value that other cases are related to.

    Raises:
        SteelyardError: the text is not ``axis=value``, or no point has that value.
    """
    axis, equals, value = text.partition("=")
    if not equals:
        raise SteelyardError(
            f"--relative-to is {text!r}, expected axis=value, for example impl=copy."
        )
    points = list(points)
    values = sorted({str(p[axis]) for p in points if axis in p})
    if value not in values:
        axes = sorted({a for p in points for a in p})
        near = ", ".join(difflib.get_close_matches(axis, axes, 1) or axes)
        what = f"values of {axis}: {', '.join(values)}" if values else f"axes: {near}"
        raise SteelyardError(f"--relative-to {text}: no case has it; {what}.")
    return axis, value


def relative_to(made: Sequence[Row], text: str) -> list[Row]:
    """Add each row's ratio to the row that differs from it in one axis only.

    Raises:
        SteelyardError: see `reference`.
    """
    axis, value = reference([row.axes for row in made], text)
    references = {_point(r, axis): r for r in made if str(r.axes.get(axis)) == value}
    return [_with_ratio(row, references.get(_point(row, axis))) for row in made]


def _point(row: Row, axis: str) -> tuple[Any, ...]:
    others = tuple((n, str(v)) for n, v in sorted(row.axes.items()) if n != axis)
    return row.benchmark, row.mode, others


def _with_ratio(row: Row, reference: Row | None) -> Row:
    if reference is None:
        return row
    return replace(row, relative=paired_ratio(row.trials, reference.trials))


def selected(
    every: Sequence[T], name: Callable[[T], str], pattern: str | None, none: str
) -> list[T]:
    """Return those whose name ``pattern`` is or accepts, as ``-k`` of a run does.

    Raises:
        SteelyardError: no name is; ``none`` says so. Or the pattern cannot be read.
    """
    if not pattern:
        return list(every)
    accepts = expression.parse(pattern)
    found = [one for one in every if name(one) == pattern or accepts(name(one))]
    if not found:
        raise SteelyardError(f"{none} {pattern!r}.{nearest(pattern, map(name, every))}")
    return found


def nearest(word: str, cases: Iterable[str]) -> str:
    """Return the end of a sentence that names the case most like ``word``, if any is."""
    ids = list(cases)
    by_name = {case.partition("[")[0]: case for case in ids} | {c: c for c in ids}
    near = difflib.get_close_matches(word, by_name, 1)
    return f" The nearest is {by_name[near[0]]}." if near else ""
