"""What a build for all extents is, as data: code, and numbers that follow from extents."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.build import Request, linked
from steelyard_kernels.building.cache import disk
from steelyard_kernels.building.programs import composed
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.structure import described
from steelyard_kernels.extents.formulas import Differs, Fitter, Formula, Number, Point
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule.parameters import Lowered, Slot, side_by_side

NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


class RuntimeSlot(Struct, frozen=True):
    """A slot, and the formulas of what its number or its tensor's extents are."""

    slot: Slot
    index: Formula
    extents: tuple[Formula, ...] = ()
    strides: tuple[Formula, ...] = ()

    def at(self, point: Point) -> Slot:
        """Return the slot at some extents."""
        tensor = self.slot.tensor
        if tensor is not None:
            sizes = tuple([each.at(point) for each in self.extents])
            steps = tuple([each.at(point) for each in self.strides])
            tensor = replace(tensor, extents=sizes, strides=steps)
        return replace(self.slot, index=self.index.at(point), tensor=tensor)


class Likeness(Struct, frozen=True):
    """All that programs say at several extents: words, and numbers between them."""

    words: tuple[str, ...]
    numbers: tuple[Number, ...]

    def serves(self, program: Program, point: Point) -> bool:
        """Say whether a program at some extents is one of these."""
        found = NUMBER.split(described(program))
        return tuple(found[::2]) == self.words and all(
            number.is_at(point, float(seen))
            for number, seen in zip(self.numbers, found[1::2], strict=True)
        )


def likeness(programs: Sequence[Program], fitter: Fitter) -> Likeness:
    """Return what programs at all points have in common; raises Differs for too little.

    That of a call's extents may be another: a function may ask for an extent.
    """
    every = [NUMBER.split(described(program)) for program in programs]
    if len({tuple(each[::2]) for each in every}) > 1:
        raise Differs("operations are unlike")
    numbers = zip(*[map(float, each[1::2]) for each in every], strict=True)
    return Likeness(tuple(every[0][::2]), tuple(map(fitter.number, numbers)))


class Part(Struct, frozen=True):
    """One launch for all extents: its build and its loops, without slots, and these.

    All accesses are within arrays from the extent `least` on. `predicted` is its time at the first point, `best` that under the best schedule there.
    """

    built: Artifact
    lowered: Lowered
    slots: tuple[RuntimeSlot, ...]
    least: int
    predicted: float
    best: float

    def at(self, point: Point) -> Artifact:
        """Return the launch at some extents."""
        slots = [slot.at(point) for slot in self.slots]
        return replace(self.built, slots=side_by_side(slots, self.built.program))


class Ranged(Struct, frozen=True):
    """A build for all extents up to some bounds: one part, or those of a plan."""

    likeness: Likeness
    plan: Plan | None
    parts: tuple[Part, ...]

    @property
    def slower(self) -> float:
        """Return its time over that under the best schedules, as predicted."""
        best = sum([part.best for part in self.parts])
        return sum([part.predicted for part in self.parts]) / best if best else 1.0

    def serves(self, program: Program, point: Point) -> bool:
        """Say whether it is the build of a program at some extents."""
        least = max([part.least for part in self.parts])
        return min(point) >= least and self.likeness.serves(program, point)

    def at(self, point: Point, asked: Request) -> Artifact:
        """Return the build at some extents, of which the program asked for is."""
        made = tuple([part.at(point) for part in self.parts])
        if self.plan is None:
            return replace(made[0], program=asked.program)
        return composed(asked, self.plan, made)


def keep(made: Ranged, named: str) -> None:
    """Keep a build on disk; one of programs that are too deep to be written is not."""
    parts = [
        replace(each, built=replace(own, code=replace(own.code, function=None)))
        for each, own in [(each, each.built) for each in made.parts]
    ]
    with suppress(RecursionError):
        disk().put(named, pickle.dumps(replace(made, parts=tuple(parts))))


def recalled(named: str, asked: Request) -> Ranged | None:
    """Return a build that was kept, with its code loaded."""
    found = disk().get(named)
    if found is None:
        return None
    made: Ranged = pickle.loads(found)  # noqa: S301 # the disk vouches for every byte
    parts = [replace(each, built=linked(each.built, asked)) for each in made.parts]
    return replace(made, parts=tuple(parts))
