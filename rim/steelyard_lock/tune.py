"""Find a kernel's fastest schedule by measuring its candidates.

The command line finds it by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from steelyard.commands import _options as common
from steelyard.declare import config
from steelyard.declare.plan import Settings
from steelyard.errors import FAILED, SteelyardError
from steelyard.machine import files
from steelyard_lock.options import MODES, arrays_option, axes_option, sentences
from steelyard_lock.terminal import progress, show

if TYPE_CHECKING:
    from steelyard_kernels.group import Progress
    from steelyard_kernels.library.examples import Spec
    from steelyard_lock.points import Axis, Point
    from steelyard_lock.tuning import Tuning
    from steelyard_lock.tuning_space import How

KEEP = "tuned.json"
"""Where choices go unless builds here read another file."""


@click.command(name="tune")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...")
@axes_option
@arrays_option
@common.option(
    "--target",
    "What to tune for: this machine's processor or GPU.",
    shown=True,
    default="cpu",
    metavar="cpu|cuda:ARCH",
)
@common.option(
    "--list listed",
    "Print every candidate, and why others are none; measure nothing.",
    is_flag=True,
)
@common.option(
    "--mode",
    "Measure candidates warm, or with caches that hold none of their arrays.",
    shown=True,
    default=MODES[0],
    type=click.Choice(MODES),
)
@common.option(
    "--top",
    "Build only so many, those that the model predicts to be best.",
    "all",
    type=click.IntRange(1),
    metavar="N",
)
@common.option(
    "--budget",
    "Build only so many that all kernels take about so long, each its share, but "
    "measure the finalists in two blocks in any case.",
    "as long as it takes",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
)
@common.option(
    "--threads",
    "Compile so many groups at a time.",
    "one a processor",
    type=click.IntRange(1),
    metavar="N",
)
@common.option(
    "--keep",
    "Write the choice to a file; builds read it where STEELYARD_TUNED names it.",
    f"$STEELYARD_TUNED, else {KEEP}",
    metavar="FILE|off",
)
@common.option("--json as_json", "Print JSON and nothing else.", is_flag=True)
@common.blocks_option
@common.seed_option
@common.timeout_option
@common.gpu_option
@common.wait_option
@common.store_option
def command(
    *,
    kernels: tuple[str, ...],
    axes: dict[str, list[Axis]],
    arrays: list[Spec],
    target: str,
    listed: bool,
    keep: str | None,
    top: int | None,
    budget: float | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Measure the candidates of kernels and keep the fastest schedule of each.

    KERNEL is as `steelyard compile` takes it; of several launches first their partition
    is tuned, then each distinct kernel of the one that is chosen. Candidates are built in groups, screened in rounds of which a quarter goes
    on, and the finalists confirmed. Every trial is stored: what was stopped goes on when
    it is asked for again.
    """
    left = _Budget(budget)
    with sentences():
        from steelyard_lock import points, spaces, tuning_report

        asked_for = points.points(kernels, target, axes=axes, arrays=arrays)
        if listed:
            _list(
                [e for one in asked_for for e in (one, *spaces.launches_of(one))],
                as_json=as_json,
            )
            return 0
        place = keep or os.environ.get("STEELYARD_TUNED") or KEEP
        if place != "off":
            files.require_writable(place, "--keep" if keep else "the choices' file")
        made = []
        for done in _tuned(asked_for, left, top, asked):
            made.append(done)
            if place != "off":
                done.keep(place)
            if not as_json:
                show(tuning_report.tuning_page(done))
        if as_json:
            click.echo(tuning_report.dumps(made))
        elif place != "off":
            click.echo(f"kept in {place}: builds read it with STEELYARD_TUNED={place}")
        return FAILED if any(one.failures for one in made) else 0


def _list(found: Sequence[Point], *, as_json: bool) -> None:
    from steelyard_lock import tuning_report, tuning_space

    tried = [tuning_space.Space.of(point) for point in found]
    if as_json:
        click.echo(tuning_report.space_dumps(tried))
    for space in () if as_json else tried:
        show(tuning_report.space_page(space))


def _tuned(
    asked_for: Sequence[Point], left: _Budget, top: int | None, asked: Mapping[str, Any]
) -> Iterator[Tuning]:
    """Yield what becomes of each kernel for which there is time, and of partitions."""
    from steelyard_lock import spaces, tuning, tuning_space

    parts = {point: spaces.launches_of(point) for point in asked_for}
    pending = [*asked_for]
    while pending:
        point = pending.pop(0)
        kernels = parts.get(point, ())
        if not left.more:
            click.echo(f"no time left for {point.label}", err=True)
            continue
        space = tuning_space.Space.of(point)
        if not kernels or len(space.ranked) > 1:
            count = sum(1 + len(parts.get(one, ())) for one in (point, *pending))
            how = _how(point, top=left.top(top, count), **asked)
            done = tuning.tune(space, replace(how, seconds=left.share(count)))
            left.spent(done)
            yield done
            if kernels:
                own = replace(point, schedule=done.chosen.label)
                kernels = spaces.launches_of(own)
        pending = [*kernels, *pending]


class _Budget:
    """Seconds from now, in equal shares of what is left for the kernels to come."""

    FIRST = 0.2
    """Seconds that a candidate is expected to take before any was tuned."""

    def __init__(self, seconds: float | None) -> None:
        self._end, self._each = perf_counter() + (seconds or math.inf), self.FIRST

    @property
    def more(self) -> bool:
        """Whether any time is left, which the first kernel does not ask."""
        return self._left > 0 or self._each == self.FIRST

    @property
    def _left(self) -> float:
        return self._end - perf_counter()

    def share(self, kernels: int) -> float:
        """Return the seconds of the next of so many."""
        return self._left / kernels

    def top(self, asked: int | None, kernels: int) -> int | None:
        """Return how many candidates of the next of so many there is time for."""
        if math.isinf(self._left):
            return asked
        count = max(1, int(self.share(kernels) / self._each))
        return count if asked is None else min(count, asked)

    def spent(self, done: Tuning) -> None:
        """Learn from a kernel what its candidates took."""
        self._each = sum(done.seconds.values()) / len(done.batch.results)


def _how(
    point: Point,
    *,
    mode: str,
    top: int | None,
    threads: int | None,
    wait: float,
    **flags: Any,
) -> How:
    """Return how a point is tuned; raises SteelyardError without its GPU."""
    from steelyard.declare.config import OFF
    from steelyard.store import session
    from steelyard_kernels.targets import CPU
    from steelyard_lock.tuning_space import How

    chosen = replace(config.load(flags), peaks=OFF)
    settings = Settings(seed=chosen.seed, timeout=chosen.timeout)
    gpu: dict[str, Any] = {}
    if point.target != CPU:
        settings, gpu = session.on_chosen(settings, chosen)
        kind, _, arch = point.target.partition(":")
        if kind != "cuda" or gpu["arch"] != arch:
            raise SteelyardError(
                f"--target {point.target}: the GPU here is a {gpu['name']}; tune for "
                f"cuda:{gpu['arch']}, or --list the candidates."
            )
    return How(
        settings,
        gpu,
        chosen.store,
        top,
        chosen.blocks,
        threads,
        wait,
        partial(_built, point),
        partial(_measured, point),
        mode,
    )


def _built(point: Point, seen: Progress) -> None:
    progress(f"{point.label}: building,", seen.built + seen.failed, seen.total)


def _measured(point: Point, what: str, done: int, total: int) -> None:
    progress(f"{point.label}: {what},", done, total)
