"""The gate held against itself: `steelyard selftest`.

For half the time a side is compared with itself: what is then told as slower or faster is
a false alarm, and how far its blocks lie apart says which changes a case can show. In the
other half kernels of one side have work of known length behind them (`inject`), and the
share that is found is the gate's power.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

from steelyard.analyse import stats
from steelyard.analyse.trial import Trial
from steelyard.analyse.verdict import Judgement, Policy
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import Settings
from steelyard.gate import decide
from steelyard.gate.blocks import Blocks, Point, by_case
from steelyard.gate.calibration import Key, Tally
from steelyard.gate.measure import Measured, measure
from steelyard.gate.outcome import BASE, HEAD
from steelyard.gate.sides import Side
from steelyard.measure import inject
from steelyard.process import scratch

SIZES: Final = (0.05, 0.03, 0.02, 0.1, 0.01)
"""Shares of a kernel's time that are injected, in turn; what the gate is asked for most
comes first."""

INJECTED: Final = 0.5
"""Share of the time for injected slowdowns."""

CHUNK: Final = 12
"""Cases measured together, as a rule: enough to share what a worker costs to start, few
enough that those of a last, unfinished chunk are no loss."""

GRAIN: Final = 256
"""Multiply-adds that work on a GPU is injected in whole numbers of (`cuda.Delay`)."""

EXACT: Final = 0.1
"""How far what can be injected may be off what was asked for, as a share of that."""

Keep = Callable[[str, Trial], None]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a multiply-add is: on the CPU, and on the GPU if there is one."""

    cpu: float
    gpu: float = 0.0

    @classmethod
    def measured(cls, points: Sequence[Point], gpu: int) -> StepTimes:
        """Measure them, on a GPU only if a point needs it."""
        needed = any(point.case.device() == CUDA for point in points)
        return cls(inject.step_ns(), inject.device_step_ns(gpu) if needed else 0.0)

    def of(self, point: Point, nanoseconds: float) -> int | None:
        """Return how many take so long, or None where so few are not to be had."""
        on_gpu = point.case.device() == CUDA
        one, grain = (self.gpu, GRAIN) if on_gpu else (self.cpu, 1)
        count = round(nanoseconds / one / grain) * grain if one else 0
        exact = abs(count * one - nanoseconds) <= EXACT * nanoseconds
        return count if count and exact else None


@dataclass(slots=True)
class SelfTest:
    """Rounds of comparisons on this machine until the time is over."""

    points: Sequence[Point]
    settings: Settings
    tally: Tally
    keep: Keep = lambda _side, _trial: None
    """Told of every trial as it arrives, with its side."""
    say: Callable[[str], None] = lambda _: None
    policy: Policy = decide.POLICY
    make: Callable[[Side, Side, Settings, Keep], Blocks] = Blocks
    """Makes what measures two sides."""
    now: Callable[[], float] = monotonic
    sides: tuple[Side, Side] = field(
        default_factory=lambda: (Side.head(BASE), Side.head(HEAD))
    )
    """Both are head; each runs under one side's name."""
    seed: int = 0
    sizes: Sequence[float] = SIZES
    chunk: int = CHUNK
    """Cases measured together."""
    _times: dict[Key, list[float]] = field(default_factory=dict)
    _positions: Iterator[int] = field(default_factory=itertools.count)

    def compare(self, until: float, rounds: int | None = None) -> None:
        """Compare head with itself, round by round.

        A round is judged when it ends, like a gate over the whole suite; what is not
        decided by then does not count.
        """
        for number in itertools.count() if rounds is None else range(rounds):
            if self.now() > until or not self._able(self.points):
                return
            self.say(f"round {number + 1}: head against itself")
            found = Measured()
            for chunk in self._chunks(self.points, number):
                blocks = self._blocks(*self.sides)
                _add(found, self._measured(blocks, chunk, until))
                if self.now() > until:
                    break
            self._judge_same(found)

    def inject(self, until: float, steps: Callable[[], StepTimes]) -> None:
        """Inject slowdowns of one size after another, each in some kernels.

        How long each kernel takes is known from comparing it with itself.
        """
        known = _kernels([p for p in self.points if _key(p) in self._times])
        if not known or self.now() > until:
            return
        length = steps()
        counts = {size: self._counts(known, size, length) for size in self.sizes}
        sizes = itertools.cycle(size for size in self.sizes if counts[size])
        for number, size in enumerate(sizes):
            fit = [point for point in known if point.case.id in counts[size]]
            chunk = next(self._chunks(fit, number), None)
            if chunk is None or self.now() > until:
                return
            self._inject(chunk, size, counts[size], until)

    def _counts(
        self, known: Sequence[Point], size: float, length: StepTimes
    ) -> dict[str, int]:
        """Return the multiply-adds that make each case so much slower, if any do."""
        asked = {
            point.case.id: length.of(point, size * median(self._times[_key(point)]))
            for point in known
        }
        return {case: steps for case, steps in asked.items() if steps is not None}

    def _inject(
        self,
        chunk: Sequence[Point],
        size: float,
        counts: Mapping[str, int],
        until: float,
    ) -> None:
        """Inject one size in some kernels and count how many of them are found."""
        self.say(f"{size:+.0%} injected in {len(chunk)} kernels")
        asked = {point.case.id: counts[point.case.id] for point in chunk}
        with injected(self.sides, asked) as sides:
            found = self._measured(self._blocks(*sides), chunk, until)
        judged = self._judged(found)
        for point in chunk:
            if point.key in judged:
                verdict = judged[point.key].verdict
                self.tally.injected.append((_key(point), size, verdict))

    def _blocks(self, base: Side, head: Side) -> Blocks:
        return self.make(base, head, self.settings, self._taken)

    def _taken(self, side: str, trial: Trial) -> None:
        """Keep a trial; of head against itself remember the time."""
        self.keep(side, replace(trial, position=next(self._positions)))
        if "injected" not in trial.facts and trial.usable:
            value = stats.of(trial).estimate.value
            self._times.setdefault((trial.case, trial.mode), []).append(value)

    def _measured(
        self, blocks: Blocks, chunk: Sequence[Point], until: float
    ) -> Measured:
        found = measure(blocks, chunk, self.policy, deadline=until, now=self.now)
        for point in chunk:
            if point.key in found.failed:
                why = next(iter(found.failed[point.key].values()))
                self.tally.failed[_key(point)] = why
        return found

    def _judge_same(self, found: Measured) -> None:
        """Count the verdicts of a round; all its blocks tell how noisy a case is."""
        keys = {point.key: _key(point) for point in self.points}
        for name, one in found.times.items():
            both = self.tally.blocks.setdefault(keys[name], [])
            both += one.blocks
        for name, judgement in self._judged(found).items():
            count = len(found.times[name].blocks)
            self.tally.same.append((keys[name], judgement.verdict, count))

    def _judged(self, found: Measured) -> dict[str, Judgement]:
        """Judge the points that need no more blocks."""
        able = {n: one for n, one in found.times.items() if n not in found.failed}
        open_ = decide.undecided(able, self.policy)
        times = {name: one for name, one in able.items() if name not in open_}
        cycles = {name: one for name, one in found.cycles.items() if name in times}
        judged = decide.judge(times, cycles, self.policy)
        return {name: judgement for name, (judgement, _) in judged.items()}

    def _able(self, points: Sequence[Point]) -> list[Point]:
        return [point for point in points if _key(point) not in self.tally.failed]

    def _chunks(self, points: Sequence[Point], number: int) -> Iterator[list[Point]]:
        """Yield the points in a new order, all modes of a case together."""
        order = by_case(self._able(points), f"{self.seed} {number}")
        while order:
            yield list(itertools.chain.from_iterable(order[: self.chunk]))
            del order[: self.chunk]


@contextmanager
def injected(
    sides: tuple[Side, Side], counts: Mapping[str, int]
) -> Iterator[tuple[Side, Side]]:
    """Give sides of which the second has multiply-adds behind each launch of a case.

    The first has none, but launches as if it had.
    """
    first, second = sides
    none = dict.fromkeys(counts, 0)
    with scratch.folder() as folder:
        place = Path(folder)
        yield _injected(first, none, place), _injected(second, counts, place)


def _injected(side: Side, counts: Mapping[str, int], folder: Path) -> Side:
    file = folder / f"{side.name}.json"
    file.write_text(json.dumps(counts), encoding="utf-8")
    return replace(side, environment={**side.environment, inject.FILE: str(file)})


def _add(whole: Measured, part: Measured) -> None:
    """Add what a chunk came to, without what failed."""
    for into, new in ((whole.times, part.times), (whole.cycles, part.cycles)):
        into |= {
            n: one for n, one in new.items() if n not in part.failed and one.blocks
        }


def _kernels(points: Sequence[Point]) -> list[Point]:
    """Return one point of each case that measures its kernel."""
    found: dict[str, Point] = {}
    for point in points:
        if point.mode.quantity == "kernel":
            found.setdefault(point.case.id, point)
    return list(found.values())


def _key(point: Point) -> Key:
    return point.case.id, str(point.mode)


def run(test: SelfTest, seconds: float, steps: Callable[[], StepTimes]) -> Tally:
    """Compare and inject, each for its part of the time."""
    began = test.now()
    test.compare(began + (1 - INJECTED) * seconds)
    test.inject(began + seconds, steps)
    return test.tally
