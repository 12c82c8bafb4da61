"""Builds for all extents of some axes, up to a bound: each launch's code is one.

    Program* at points --partition--> Plan* --lower--> Lowered* --common--> Artifact

The program is lowered at several extents, in the way of any program of those, under one
schedule; `common` has what these have in common. The extents are at least the bounds,
which numbers are cut into as little of as possible (see `points`), so that nothing is
left out that other extents need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from steelyard_kernels.artifact import Artifact, Code
from steelyard_kernels.building.build import Request, loaded, plan_of
from steelyard_kernels.building.programs import composed
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.expression.structure import described
from steelyard_kernels.extents.common import RuntimeSlot, common
from steelyard_kernels.extents.formulas import Fitter, Point
from steelyard_kernels.extents.programs import Likeness, likeness
from steelyard_kernels.group.build import compile_texts
from steelyard_kernels.group.run import Outcome
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.parameters import Lowered, side_by_side
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import device
from steelyard_kernels.toolchains import toolchain

LEAST: Final = (10, 130, 1030, 0)
"""Extents from which points are taken, until one kernel serves all: few elements are
often held in registers, each by statements of its own. With 0 points are up to the bounds,
for programs that are none beyond them."""

ALONG: Final = 9
"""Extents of an axis that are looked at, up to more than twice the first: an axis is in
as many parts at all of these only where it is one part."""

BELOW: Final = 128
"""The least bound below which there are as many extents to look at."""

SLOWER: Final = 1.5
"""How much more time than under the best schedule is no reason to look further."""

TRIED: Final = 64
"""Schedules that are lowered at most, the best predicted first."""


def points(bounds: Sequence[int], least: int) -> tuple[Point, ...]:
    """Return extents of all axes, from their bounds or `least` on, even and odd ones.

    None is a multiple of 3 or 4, or one more than a multiple of 4, and no two axes have
    the same: what is whole, or is one more, has code that others cannot share. With a
    `least` of 0 those of bounds that have as many below them are below.
    """
    taken: set[int] = set()
    every = []
    for bound in bounds:
        first, turn, own = max(bound, least), 1, list[int]()
        if not least and bound >= BELOW:
            turn = -1
        last = first * 11 // 5 if turn > 0 else first * 5 // 11
        for place in range(ALONG):
            wanted = first + place * (last - first) // (ALONG - 1)
            while wanted % 4 != 2 + place % 2 or not wanted % 3 or wanted in taken:
                wanted += turn
            own.append(wanted)
            taken.add(wanted)
        every.append(own)
    return tuple(
        tuple(
            [
                own[(at * (1 + 2 * axis) + at // ALONG * axis) % ALONG]
                for axis, own in enumerate(every)
            ]
        )
        for at in range(ALONG if len(bounds) == 1 else 2 * ALONG)
    )


@dataclass(frozen=True, slots=True)
class Part:
    """One launch for all extents: its build and its loops, without slots, and these.

    `predicted` is its time at the first point, `best` that under the best schedule there.
    """

    built: Artifact
    lowered: Lowered
    slots: tuple[RuntimeSlot, ...]
    predicted: float
    best: float

    def at(self, point: Point) -> Artifact:
        """Return the launch at some extents."""
        slots = [slot.at(point) for slot in self.slots]
        return replace(self.built, slots=side_by_side(slots, self.built.program))


@dataclass(frozen=True, slots=True)
class Ranged:
    """A build for all extents up to some bounds: one part, or those of a plan."""

    likeness: Likeness
    plan: Plan | None
    parts: tuple[Part, ...]

    @property
    def slower(self) -> float:
        """Return its time over that under the best schedules, as predicted."""
        best = sum([part.best for part in self.parts])
        return sum([part.predicted for part in self.parts]) / best if best else 1.0

    def check(self, program: Program, point: Point) -> None:
        """Raise Unsupported for a program that is none of those it was made of."""
        if why := self.likeness.difference(program, point):
            raise Unsupported(
                f"{program.name}: at extents {point} {why}, which it has not where it "
                "was built; have it ask for no extent that a call has."
            )

    def at(self, point: Point, program: Program, asked: Request) -> Artifact:
        """Return the build at some extents, of which the program is."""
        made = tuple([part.at(point) for part in self.parts])
        if self.plan is None:
            return replace(made[0], program=program)
        return composed(replace(asked, program=program), self.plan, made)


def ranged(
    trace: Callable[[Point], Program], bounds: Sequence[int], asked: Request
) -> Ranged:
    """Go as far as texts for what tracing gives at extents up to bounds.

    Raises what made it impossible.
    """
    why: KernelError | None = None
    best: Ranged | None = None
    for least in LEAST:
        at = points(bounds, least)
        try:
            made = _ranged(trace, at, tuple(bounds), asked)
        except KernelError as error:
            why = why or error
            continue
        if best is None or made.slower < best.slower:
            best = made
        if best.slower <= SLOWER:
            return best
    if best is None:
        assert why is not None
        raise why
    return best


def _ranged(
    trace: Callable[[Point], Program],
    at: Sequence[Point],
    bounds: Point,
    asked: Request,
) -> Ranged:
    programs = [trace(point) for point in at]
    alike = likeness(programs, Fitter(at, bounds))
    programs = [simplify(program) for program in programs]
    found = [plan_of(replace(asked, program=program)) for program in programs]
    plans = [plan for plan in found if plan is not None]
    if not plans:
        return Ranged(alike, None, (_part(programs, at, bounds, asked),))
    if len(plans) < len(found) or len({_form(each) for each in plans}) > 1:
        raise _unlike(programs[0], at, "they are other launches")
    distinct: dict[tuple[str, ...], Part] = {}
    parts = []
    for each in zip(*[plan.launches for plan in plans], strict=True):
        own = [launch.program for launch in each]
        key = tuple([described(program) for program in own])
        if key not in distinct:
            distinct[key] = _part(own, at, bounds, asked)
        parts.append(distinct[key])
    most = plan_of(replace(asked, program=simplify(trace(bounds))))
    if most is None or _form(most) != _form(plans[0]):
        most = plans[0]
    return Ranged(alike, most, tuple(parts))


def _unlike(program: Program, at: Sequence[Point], why: str) -> Unsupported:
    return Unsupported(
        f"{program.name}: no kernel serves both extents {at[0]} and {at[-1]}: {why}; "
        "declare fewer extents, or call it without them."
    )


def _form(plan: Plan) -> tuple[Any, ...]:
    """Return what plans at all extents share."""
    lives = [(each.first, each.last) for each in plan.buffers]
    return *[(each.reads, each.writes) for each in plan.launches], *lives


def _part(
    programs: Sequence[Program], at: Sequence[Point], bounds: Point, asked: Request
) -> Part:
    """Return the text of one launch, under the best schedule that one kernel fits."""
    why, fitter = "", Fitter(at, bounds)
    whole, programs = programs[0], [simplify(program) for program in programs]
    if not _lengths(programs, fitter):
        raise _unlike(programs[0], at, "axes of its loops are unlike")
    best = 0.0
    for schedule, total in islice(_schedules(programs[0], asked), TRIED):
        best = best or total
        try:
            made, slots = _lowered(programs, schedule, fitter, asked)
            verify(made.kernel, asked.target.family)
        except KernelError as error:
            why = why or str(error)
            continue
        kernel = replace(made.kernel, copies=whole.copies)
        text = toolchain(asked.target).emit(kernel)
        how = (), made.threads, made.per_block, made.shared
        built = Artifact(whole, schedule, str(asked.target), text, *how)
        by = "caller" if asked.schedule else "heuristic"
        return Part(replace(built, chosen_by=by), made, slots, total, best)
    raise _unlike(programs[0], at, why)


def _lowered(
    programs: Sequence[Program], schedule: Schedule, fitter: Fitter, asked: Request
) -> tuple[Lowered, tuple[RuntimeSlot, ...]]:
    """Return one kernel under a schedule; raises what made it impossible."""
    where, every = device(asked.target), list[Lowered]()
    for program in (programs[0], programs[-1], *programs[1:-1]):
        every.append(strategies.lower(program, schedule, where, aligned=asked.aligned))
        if len(every) == 2:  # most that differ do so here
            common(every, None)
    every.append(every.pop(1))
    fitter.cut([cut.size for cut in schedule.cuts])
    return common(every, fitter)


def _schedules(program: Program, asked: Request) -> Iterator[tuple[Schedule, float]]:
    """Yield the schedules to try with their times: the caller's, or the best predicted."""
    if asked.schedule is not None:
        yield asked.schedule, 0.0
        return
    for schedule, found in strategies.rank(
        program, device(asked.target), aligned=asked.aligned
    ):
        yield schedule, found.total


def _lengths(programs: Sequence[Program], fitter: Fitter) -> bool:
    """Tell of the extents of a nest's axes, which schedules cut; False if they differ."""
    if strategies.strategy(programs[0]) == "carries":
        return True
    every = [nest_of(program).extents for program in programs]
    alike = len({len(each) for each in every}) == 1
    return alike and all(map(fitter.length, zip(*every, strict=True)))


def compiled(made: Ranged, asked: Request) -> Ranged:
    """Return a build with its code, of all texts together; raises what was refused."""
    texts = tuple(dict.fromkeys(part.built.text for part in made.parts))
    codes: dict[str, Code] = {}

    def settle(outcome: Outcome) -> None:
        for error in outcome.refused.values():
            raise error
        for number, code in outcome.made.items():
            codes[texts[number]] = loaded(code, asked.target, asked.phases)

    compile_texts(texts, asked.target, settle)
    built = [replace(p.built, code=codes[p.built.text]) for p in made.parts]
    return replace(
        made,
        parts=tuple(
            [replace(p, built=b) for p, b in zip(made.parts, built, strict=True)]
        ),
    )
