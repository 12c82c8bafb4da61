r"""All candidates of a kernel (hidet#426): how many, how many distinct, how long.

A row is a whole space, built cold in groups: its size, its distinct codes, and what
lowering, emitting and compiling took, summed over workers, beside the wall.

hidet#426 reports, for matmul, convolution and attention on 32 threads of an i9-13900K with
an RTX 4090, 8.05, 7.22 and 3.83 times less time where candidates are compiled together, and
222 s, then 177, for the build and the runs of a BERT
(https://github.com/hidet-org/hidet/pull/426).

Of a product, a convolution and attention, which have 330, 453 and 8 candidates, 32 stand
for all, in groups and each alone: two minutes on two cores. All of them, by as many
compilers at a time as are listed (3 minutes on two cores for each number):

    steelyard run suites/candidates.py -k cuda_operators \
        -p most=1000 -p threads=1,2,4,8 --blocks 1 --timeout 600

What their time goes with is among the facts of `steelyard show RUN CASE`. `steelyard
compile suites/products.py:product --candidates --alone --threads 1,2,4,8` prints the same
of one kernel as a sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels.artifact import Failure
from steelyard_kernels.building import keys
from steelyard_kernels.building.build import Request, prepare
from steelyard_kernels.errors import KernelError
from steelyard_kernels.group import Candidate, build_all
from steelyard_kernels.library import examples
from steelyard_kernels.targets import parse
from steelyard_lock import drivers
from steelyard_lock.points import Point
from steelyard_lock.spaces import Space, build_space, candidates, kernels_of

from .build import OTHERS
from .common import cuda_targets

KERNELS: Final = ["triad", "bias_layernorm"]
GROUP: Final = 64
"""Candidates that are built together and apart: what seeds/002's factor of 8 is of."""

FROM: Final[dict[str, Sequence[str]]] = {
    "mixed": ("copy", "triad", "scale", "adam_m"),
    "triad": ("triad",),
    "adam_update": ("adam_update",),
}
"""The kernels a group's candidates are taken from: the less a candidate takes, the
more is saved, so that one operator, and one that divides, stand beside the mixture."""

OPERATORS: Final[dict[str, tuple[str, tuple[examples.Spec, ...]]]] = {
    "product": ("products.py", (((64, 768), "float16"), ((768, 768), "float16"))),
    "convolution": (
        "convolutions.py",
        (((1, 56, 56, 64), "float16"), ((64, 3, 3, 64), "float16")),
    ),
    "attention": ("attention.py", (((8, 12, 128, 64), "float16"),) * 3),
}
"""The three of hidet#426: in which suite each is, and of which arrays."""

DTYPES: Final = ("float32", "float64", "float16", "int32")


class SpaceBuild:
    """All candidates of a kernel, built again and again."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._space: Space | None = None
        build_space(point, most=1)  # compilers are loaded once a process

    def _built(self) -> Space:
        return build_space(self._point)

    def build(self, cache: str) -> None:
        """Build the whole space; its candidates are always built cold."""
        del cache
        self._space = self._built()

    def facts(self) -> Mapping[str, Any]:
        """Return the sizes and times of the last time, if there was one."""
        space = self._space
        made = {**_compiler(space), **space.facts()} if space else {}
        return {"target": self._point.target, **made}


class OperatorBuild(SpaceBuild):
    """Candidates of an operator, in groups or each alone, on so many threads."""

    def __init__(self, point: Point, threads: int, most: int, *, alone: bool) -> None:
        self._how = partial(build_space, threads=threads, alone=alone, most=most)
        super().__init__(point)

    def _built(self) -> Space:
        return self._how(self._point)

    def facts(self) -> Mapping[str, Any]:
        """Return also what compile time goes with."""
        found = drivers.correlations(self._space).items() if self._space else ()
        return {**super().facts(), **{f"rank of {k}": round(v, 2) for k, v in found}}


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel of another suite, for `Builder.build`."""

    name: str
    threads: int
    most: int
    alone: bool

    def for_target(self, target: str) -> SpaceBuild:
        """Return what builds its candidates."""
        file, arrays = OPERATORS[self.name]
        kernel = f"{Path(__file__).with_name(file)}:{self.name}"
        point = Point(kernel, (), arrays, target)
        return OperatorBuild(point, self.threads, self.most, alone=self.alone)

    def made_of(self, target: str) -> Mapping[str, Any]:
        """Return what the builds depend on beside this suite's own files."""
        return _made_of(target)


@dataclass(frozen=True, slots=True)
class Everything:
    """A kernel's whole space, for `Builder.build`."""

    kernel: str

    def for_target(
        self, target: str, *specs: tuple[tuple[int, ...], str]
    ) -> SpaceBuild:
        """Return what builds it."""
        return SpaceBuild(Point(self.kernel, (), specs, target))

    def made_of(self, target: str, *_: object) -> Mapping[str, Any]:
        """Return what the library's builds depend on; the kernel is one of its sources."""
        return _made_of(target)


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
        failed = [one for one in batch.results if isinstance(one, Failure)]
        assert not failed, failed[0].error

    def facts(self) -> Mapping[str, Any]:
        """Say how many they are."""
        return {"target": self._target, "candidates": len(self._chosen)}


@dataclass(frozen=True, slots=True)
class Many:
    """As many small candidates as make a group, for `Builder.build`."""

    kernels: str
    alone: bool

    def for_target(self, target: str) -> ManyBuild:
        """Build them once."""
        return ManyBuild(small(self.kernels, target), target, alone=self.alone)

    def made_of(self, target: str) -> Mapping[str, Any]:
        """Return what the library's builds depend on."""
        return _made_of(target)


def small(kernels: str, target: str) -> list[Candidate]:
    """Return as many candidates as make a group: of distinct codes the shortest texts."""
    texts: dict[str, Candidate] = {}
    for one in _every(FROM[kernels], target):
        assert one.schedule is not None
        made = prepare(Request(one.program, one.schedule, parse(target)))
        texts.setdefault(made.text, one)
    shortest = [
        texts[text] for text in sorted(texts, key=lambda text: (len(text), text))
    ]
    built = build_all(shortest[: 2 * GROUP], target=target, levels=frozenset())
    distinct = [
        one
        for place, one in enumerate(shortest[: 2 * GROUP])
        if place not in built.duplicates
    ]
    assert len(distinct) >= GROUP, f"{kernels} has {len(distinct)} distinct codes"
    return distinct[:GROUP]


def _every(kernels: Iterable[str], target: str) -> Iterator[Candidate]:
    """Yield all candidates of kernels, in each type that they are defined in."""
    for kernel in kernels:
        for dtype in DTYPES:
            specs = examples.specs(kernel, {"dtype": dtype})
            with suppress(KernelError):  # a float's product with integers is refused
                point = Point(kernel, (), specs, target)
                for part in kernels_of(point):
                    yield from candidates(point, part)


def _made_of(target: str) -> dict[str, Any]:
    return {
        "target": target,
        "compiler": keys.compiled_by(parse(target)),
        "compiler_hash": keys.sources(),
    }


def _compiler(space: Space) -> dict[str, Any]:
    built = space.batch.distinct
    return {"compiler": built[0].code.compiler} if built else {}


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

    @benchmark(
        kernels=axis("mixed", others=[name for name in FROM if name != "mixed"]),
        impl=["group", "single"],
        target=axis(*cuda_targets(), others=OTHERS),
    )
    def group(b: Builder, kernels: str, impl: str, target: str) -> Call:
        """Build 64 small candidates in groups, or as a program each."""
        b.mode("build/cold")
        return b.build(Many(kernels, impl == "single"), target=target)

    @benchmark(
        kernel=list(OPERATORS),
        impl=["group", "single"],
        threads=axis(2, others=[1, 4, 8]),
        most=axis(32, others=[8, 16, 1000]),
    )
    def cuda_operators(
        b: Builder, kernel: str, impl: str, threads: int, most: int
    ) -> Call:
        """Build candidates of one operator in groups, or as a program each."""
        b.mode("build/cold")
        asked = Operator(kernel, threads, most, impl == "single")
        return b.build(asked, target=cuda_targets()[0])
