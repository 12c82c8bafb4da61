"""All candidates of a kernel (hidet#426): how many, how many distinct, how long.

A row is a whole space, built cold in groups: its size, its distinct codes, and what
lowering, emitting and compiling took, summed over workers, beside the wall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from steelyard import Builder, axis, benchmark
from steelyard.handles import Call
from steelyard_kernels.binary import Failed
from steelyard_kernels.compiling.points import Point
from steelyard_kernels.compiling.spaces import Space, build_space, candidates
from steelyard_kernels.group import Candidate, build_all
from steelyard_kernels.library import examples

from .build import OTHERS
from .common import cuda_targets

KERNELS: Final = ["triad", "bias_layernorm"]
SMALL: Final = ("copy", "triad", "scale", "adam_m", "adam_v", "adam_update")
GROUP: Final = 64
"""Candidates that are built together and apart: what seeds/002's factor of 8 is of."""


class SpaceBuild:
    """All candidates of a kernel, built again and again."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._space: Space = build_space(point)

    def build(self, cache: str) -> None:
        """Build the whole space; its candidates are always built cold."""
        del cache
        self._space = build_space(self._point)

    def facts(self) -> Mapping[str, Any]:
        """Return the sizes and times of the last time."""
        return {
            "target": self._point.target,
            **_compiler(self._space),
            **self._space.facts(),
        }


@dataclass(frozen=True, slots=True)
class Everything:
    """A kernel's whole space, for `Builder.build`."""

    kernel: str

    def for_target(
        self, target: str, *specs: tuple[tuple[int, ...], str]
    ) -> SpaceBuild:
        """Build it once."""
        return SpaceBuild(Point(self.kernel, (), specs, target))


class ManyBuild:
    """Some candidates of one program, built together or each alone."""

    def __init__(
        self, chosen: Sequence[Candidate], target: str, *, alone: bool
    ) -> None:
        self._chosen = chosen
        self._target = target
        self._alone = alone
        self.build("cold")

    def build(self, cache: str) -> None:
        """Build them all, on as many threads either way."""
        del cache
        largest = 1 if self._alone else GROUP
        batch = build_all(
            self._chosen, target=self._target, levels=frozenset(), largest=largest
        )
        failed = [one for one in batch.results if isinstance(one, Failed)]
        assert not failed, failed[0].error

    def facts(self) -> Mapping[str, Any]:
        """Say how many they are."""
        return {"target": self._target, "candidates": len(self._chosen)}


@dataclass(frozen=True, slots=True)
class Many:
    """As many small candidates as make a group, for `Builder.build`."""

    alone: bool

    def for_target(self, target: str) -> ManyBuild:
        """Build them once."""
        return ManyBuild(small(target), target, alone=self.alone)


def _elements(one: Candidate) -> int:
    schedule: Any = one.schedule  # of a broadcast on a GPU
    return int(schedule.lanes * schedule.unroll)


def small(target: str) -> list[Candidate]:
    """Return the candidates of all broadcasts with the fewest elements a thread."""
    every = [
        one
        for kernel in SMALL
        for one in candidates(Point(kernel, (), examples.specs(kernel), target))
    ]
    every.sort(key=_elements)
    return every[:GROUP]


def _compiler(space: Space) -> dict[str, Any]:
    built = space.batch.distinct
    return {"compiler": built[0].compiler} if built else {}


if cuda_targets():

    @benchmark(
        kernel=axis(*KERNELS, others=[k for k in examples.SHAPES if k not in KERNELS]),
        target=axis(*cuda_targets(), others=OTHERS),
    )
    def space(b: Builder, kernel: str, target: str) -> Call:
        """Build every candidate of one kernel."""
        specs = examples.specs(kernel)
        b.mode("build/cold")
        handles = [b.input(*spec, name=f"x{n}") for n, spec in enumerate(specs)]
        return b.build(Everything(kernel), *handles, target=target)

    @benchmark(impl=["group", "single"], target=axis(*cuda_targets(), others=OTHERS))
    def group(b: Builder, impl: str, target: str) -> Call:
        """Build 64 small candidates in groups, or as a program each."""
        b.mode("build/cold")
        return b.build(Many(impl == "single"), target=target)
