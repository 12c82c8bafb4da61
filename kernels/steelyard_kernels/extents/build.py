"""Builds for all extents of some axes, up to a bound: each launch's code is one.

    Program* at points --partition--> Plan* --lower--> Lowered* --common--> Artifact

The program is lowered at several extents, in the way of any program of those, under one
schedule; `common` has what these have in common. The extents are at least the bounds,
which numbers are cut into as little of as possible (see `points`), so that nothing is
left out that other extents need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from steelyard_kernels.artifact import Artifact, Code
from steelyard_kernels.building.build import Request, loaded, plan_of
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.expression.structure import described
from steelyard_kernels.extents.common import Common, common
from steelyard_kernels.extents.formulas import Differs, Fitter, Point
from steelyard_kernels.extents.points import one_beyond, points
from steelyard_kernels.extents.schedules import schedules
from steelyard_kernels.extents.served import Part, Ranged, likeness
from steelyard_kernels.extents.within import fits, prove
from steelyard_kernels.group.build import compile_texts
from steelyard_kernels.group.run import Outcome
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import device
from steelyard_kernels.toolchains import toolchain

LEAST: Final = (10, 130, 1030, 0)
"""Extents from which points are taken, until one kernel serves all: few elements are
often held in registers, each by statements of its own. With 0 points are up to the bounds,
for programs that are none beyond them."""

SLOWER: Final = 1.5
"""How much more time than under the best schedule is no reason to look further."""

FROM: Final = (1, 2, 8)
"""Extents from which on accesses are proved to be within arrays, the first that does."""

FRESH: Final = 4
"""Other extents whose kernels must say the same numbers."""


class _Beyond(Unsupported):
    """There is no program at some extents, as where a table ends at the bound."""


def ranged(
    trace: Callable[[Point], Program], bounds: Sequence[int], asked: Request
) -> Ranged:
    """Go as far as texts for what tracing gives at extents up to bounds.

    Raises what made it impossible.
    """
    why: KernelError | None = None
    best: Ranged | None = None
    but = one_beyond(trace(tuple(bounds)), bounds)
    for least in LEAST:
        at = points(bounds, least, but)
        try:
            made = _ranged(trace, at, tuple(bounds), asked, simplify)
        except KernelError as error:
            why = error if why is None or isinstance(why, _Beyond) else why
            try:
                made = _ranged(trace, at, tuple(bounds), asked, _by_axes)
            except KernelError:
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
    made_of: Callable[[Program], Program],
) -> Ranged:
    programs = _traced(trace, at)
    fitter = Fitter(at, bounds)
    try:
        alike = likeness(programs, fitter)
    except Differs as error:
        raise _unlike(programs[0], at, str(error)) from error
    made = list(map(made_of, programs))
    most = plan_of(replace(asked, program=made_of(trace(bounds))))
    found = _plans(made, (most, made[at.index(max(at, key=prod))]), asked)
    fresh = dict[Point, Sequence[Program]]()
    for point in _fresh(at, bounds):
        with suppress(KernelError):
            program = trace(point)
            if alike.serves(program, point):
                fresh[point] = _launched(made_of(program), found[0], asked)
    plans = [plan for plan in found if plan is not None]
    if not plans:
        own = {point: every[0] for point, every in fresh.items() if every}
        like = _largest(lambda p: made_of(trace(p)), at, bounds, None, asked)
        part = _part(made, own, like[0] if like else made[0], fitter, asked)
        return Ranged(alike, None, (part,))
    repeats = any(plan.repeats for plan in plans)
    if repeats or len(plans) < len(found) or len({_form(e) for e in plans}) > 1:
        why = (
            "its loops are repeated launches" if repeats else "they are other launches"
        )
        raise _unlike(made[0], at, why)
    if most is None or _form(most) != _form(plans[0]):
        most = plans[0]
    if why := _room_problem(most, plans, fitter):
        raise _unlike(made[0], at, why)
    like = _largest(lambda p: made_of(trace(p)), at, bounds, plans[0], asked)
    distinct: dict[tuple[str, ...], Part] = {}
    parts = []
    for number, each in enumerate(zip(*[p.launches for p in plans], strict=True)):
        programs = [launch.program for launch in each]
        key = tuple([described(program) for program in programs])
        if key not in distinct:
            own = {point: every[number] for point, every in fresh.items() if every}
            chosen = simplify(like[number] if like else programs[0])
            distinct[key] = _part(programs, own, chosen, fitter, asked)
        parts.append(distinct[key])
    return Ranged(alike, most, tuple(parts))


def _by_axes(program: Program) -> Program:
    """Return a simplified program with the same reductions at all extents.

    Raises Differs for one that has none to be made axis by axis.
    """
    from steelyard_kernels.plan.chunks import by_axes  # few ask

    simple = simplify(program)
    found = by_axes(simple)
    if len(found.nodes) == len(simple.nodes):
        raise Differs("reductions have no axes")
    return simplify(found)


def _traced(trace: Callable[[Point], Program], at: Sequence[Point]) -> list[Program]:
    try:
        return [trace(point) for point in at]
    except KernelError as error:
        raise _Beyond(f"at extents up to {max(at)}: {error}") from error


def _plans(
    programs: Sequence[Program], like: tuple[Plan | None, Program], asked: Request
) -> list[Plan | None]:
    """Return the launches at all extents, each as it is found there where these differ.

    All are as a plan, that of the bounds, or else of the largest.
    """
    most, largest = like
    for plan in (most, plan_of(replace(asked, program=largest))):
        if plan is not None:
            given = replace(asked, schedule=plan.schedule)
            with suppress(KernelError):
                found = [plan_of(replace(given, program=each)) for each in programs]
                if len({_form(each) for each in found if each}) == 1:
                    return found
    return [plan_of(replace(asked, program=each)) for each in programs]


def _fresh(at: Sequence[Point], bounds: Point) -> Iterator[Point]:
    """Yield extents that no formula is made of, no fewer, the same ones each time.

    Kernels of fewer elements may well have less memory, or smaller parts. There are none
    beyond the bounds where no points are.
    """
    draw = Random(repr(at))  # noqa: S311 - of numbers that anyone may know
    ends = [
        (min(own), 2 * max(own) if max(own) > bound else bound)
        for own, bound in zip(zip(*at, strict=True), bounds, strict=True)
    ]
    for _ in range(FRESH):
        yield tuple([draw.randint(*each) for each in ends])


def _launched(program: Program, like: Plan | None, asked: Request) -> list[Program]:
    """Return the launches of a program; none where they are unlike those of a plan."""
    if like is None:
        return [] if plan_of(replace(asked, program=program)) else [program]
    plan = plan_of(replace(asked, program=program, schedule=like.schedule))
    assert plan is not None
    if _form(plan) != _form(like):
        return []
    return [launch.program for launch in plan.launches]


def _largest(
    trace: Callable[[Point], Program],
    at: Sequence[Point],
    bounds: Point,
    like: Plan | None,
    asked: Request,
) -> list[Program]:
    """Return the launches at the largest extents that there are; none if they are unlike.

    Memory that has room for all of theirs has it at all others.
    """
    ends = zip(*at, bounds, strict=True)
    try:
        return _launched(trace(tuple(map(max, ends))), like, asked)
    except KernelError:
        return []


def _room_problem(most: Plan, plans: Sequence[Plan], fitter: Fitter) -> str:
    """Say why the memory between launches is not enough at all extents; "" if it is."""
    for room, *every in zip(most.buffers, *[p.buffers for p in plans], strict=True):
        try:
            needed = fitter.number([each.nbytes for each in every]).formula
        except Differs as error:
            return f"of memory between launches {error}"
        if not fits(needed, room.nbytes, fitter.bounds):
            return "fewer elements need more memory"
    return ""


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
    programs: Sequence[Program],
    fresh: Mapping[Point, Program],
    like: Program,
    found: Fitter,
    asked: Request,
) -> Part:
    """Return the text of one launch, under the best schedule that one kernel fits.

    They are those of a program `like` these, see `_largest`.
    """
    why, at, bounds = "", found.points, found.bounds
    fitter = Fitter(at, bounds)
    whole, programs = programs[0], [simplify(program) for program in programs]
    kind = strategies.strategy(programs[0])
    nests = [] if kind == "carries" else [nest_of(program) for program in programs]
    same = strategies.strategy(like) == kind
    if not same or (nests and nest_of(like).axes != nests[0].axes):
        like = programs[0]
    if not _lengths(nests, fitter, ()):
        raise _unlike(programs[0], at, "axes of its loops are unlike")
    best = 0.0
    for schedule, total in schedules(like, nests, asked):
        best = best or total
        try:
            _lengths(nests, fitter, [cut.axes for cut in schedule.cuts])
            made = _lowered(programs, schedule, fitter, fresh, asked)
            verify(made.lowered.kernel, asked.target.family)
            least = _proved(made, bounds)
        except KernelError as error:
            why = why or str(error)
            continue
        kernel, how = made.lowered.kernel, made.lowered
        text = toolchain(asked.target).emit(replace(kernel, copies=whole.copies))
        sizes = (), how.threads, how.per_block, how.shared
        built = Artifact(whole, schedule, str(asked.target), text, *sizes)
        by = "caller" if asked.schedule else "heuristic"
        built = replace(built, chosen_by=by)
        return Part(built, how, made.slots, least, total, best)
    raise _unlike(programs[0], at, why)


def _proved(made: Common, bounds: Point) -> int:
    """Return the extent from which on all accesses are within arrays; raises if none."""
    *fewer, last = FROM
    for least in fewer:
        with suppress(Unsupported):
            prove(made, tuple([min(least, bound) for bound in bounds]), bounds)
            return least
    prove(made, tuple([min(last, bound) for bound in bounds]), bounds)
    return last


def _lowered(
    programs: Sequence[Program],
    schedule: Schedule,
    fitter: Fitter,
    fresh: Mapping[Point, Program],
    asked: Request,
) -> Common:
    """Return one kernel under a schedule; raises what made it impossible."""
    where = device(asked.target)

    def one(program: Program) -> Lowered:
        return strategies.lower(program, schedule, where, aligned=asked.aligned)

    first, last = one(programs[0]), one(programs[-1])
    common([first, last], None)  # those that differ do so here, or at odd extents
    second = one(programs[1])
    common([first, second], None)
    every = [first, second, *map(one, programs[2:-1]), last]
    fitter.cut([cut.size for cut in schedule.cuts])
    made = common(every, fitter)
    for number, node in enumerate(programs[0].inputs):
        counts = [prod(program.inputs[number].shape) for program in programs]
        made.arrays[f"input {node.index}"] = fitter.number(counts).formula
    for point, program in fresh.items():
        try:
            other = one(simplify(program))
        except KernelError:  # fewer elements may have no such schedule
            continue
        made.compare(first, other, point)
    return made


def _lengths(nests: Sequence[Nest], fitter: Fitter, joined: Sequence[str]) -> bool:
    """Tell of the extents of a nest's axes, which schedules cut; False if they differ.

    Those that a schedule has as one loop are `joined` by their names.
    """
    every = [(*n.extents, *[n.extent_of(names) for names in joined]) for n in nests]
    alike = len({len(each) for each in every}) < 2
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
