"""`runtime`: kernels some of whose axes have extents that only a call knows.

    batch, words = Extent("batch", 32), Extent("words", 512)
    layer = runtime(layer, x=(batch, words), mask=(batch, words))

    layer(x, mask, weights)              # x of any batch and words up to these

All calls run the same code. What an axis is not named for is known when it is built, as
ever; extents of 0 are built by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.build import Phases, Request, failed
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.extents.build import Ranged, compiled, ranged
from steelyard_kernels.extents.formulas import Point
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, parse
from steelyard_kernels.trace import Spec


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent that a call has, the same in all arrays, of at most `most`."""

    name: str
    most: int

    def __post_init__(self) -> None:
        if self.most < 1:
            raise KernelError(
                f"extent {self.name} is at most {self.most}, expected 1 or more; leave "
                "it out where there is nothing."
            )


Axes = Sequence[Extent | None]


def runtime(kernel: KernelFunction, **arrays: Axes) -> RuntimeKernel:
    """Return a kernel whose arrays have extents that only a call knows.

    `arrays` gives those of each array's axes, outermost first, None where the extent is
    known when it is built; axes behind them are. Raises KernelError for an array that the
    kernel has not, or two extents of one name.
    """
    return RuntimeKernel(kernel, {name: tuple(axes) for name, axes in arrays.items()})


class RuntimeKernel(KernelFunction):
    """A kernel of arrays whose extents only a call knows; see `runtime`."""

    def __init__(
        self, whole: KernelFunction, axes: dict[str, tuple[Extent | None, ...]]
    ) -> None:
        super().__init__(whole.function, whole.signature)
        self._whole, self._axes = whole, axes
        named: dict[str, Extent] = {}
        for name, every in axes.items():
            if name not in self.signature.arrays:
                raise KernelError(
                    f"{self.name}: extents are given for {name}, expected one of its "
                    f"arrays ({', '.join(self.signature.arrays)}); check the spelling."
                )
            for each in every:
                if each and named.setdefault(each.name, each) != each:
                    raise KernelError(
                        f"{self.name}: extent {each.name} is at most {each.most} and "
                        f"{named[each.name].most}, expected one bound; give one of them "
                        "another name."
                    )
        self.extents = tuple(named.values())
        self._ranged: dict[object, Ranged | Failure] = {}
        self._spare: dict[object, list[Any]] = {}
        self._shared: dict[int, tuple[Convention, Convention]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the kernel that it is of, and its extents."""
        return RuntimeKernel, (self._whole, self._axes)

    def program(self, *arrays: Any) -> Program:
        """Trace the function for arrays of these shapes and dtypes."""
        return self._whole.program(*arrays)

    def build(
        self,
        *arrays: Any,
        schedule: Schedule | None = None,
        target: str = CPU,
        cache: str = "warm-memory",
        drop: frozenset[str] = frozenset(),
        aligned: bool = True,
    ) -> Artifact | Failure:
        """Return the build for all extents at those of these shapes."""
        specs = self._specs(arrays)
        found = self._found(specs)
        program = self.program(*specs)
        nothing = 0 in found or any(0 in node.shape for node in program.nodes)
        if nothing or not self.extents:
            return super().build(
                *arrays,
                schedule=schedule,
                target=target,
                cache=cache,
                drop=drop,
                aligned=aligned,
            )
        asked = Request(program, schedule, parse(target), aligned, phases=Phases())
        made = self._built(specs, asked, again=cache == "cold" or bool(drop))
        if isinstance(made, Failure):
            return made
        try:  # of one index there is less to compute: nothing is broadcast or added up
            like = tuple([max(extent, 2) for extent in found])
            if like != found:
                made.check(self.program(*self._at(specs, like)), like)
            else:
                made.check(program, like)
        except KernelError as error:
            asked.phases.current = "trace"
            return failed(self.name, schedule, target, asked.phases, error)
        return made.at(found, asked.program, asked)

    def ranged(self, specs: Sequence[Spec], asked: Request) -> Ranged:
        """Go as far as texts for all extents; raises what made it impossible."""
        bounds = tuple([each.most for each in self.extents])
        return ranged(
            lambda point: self.program(*self._at(specs, point)), bounds, asked
        )

    def _built(
        self, specs: Sequence[Spec], asked: Request, *, again: bool = False
    ) -> Ranged | Failure:
        """Return the build for all extents: what was built before, unless `again`."""
        bounds = tuple([each.most for each in self.extents])
        every = tuple(self._at(specs, bounds))
        key = every, asked.schedule, str(asked.target), asked.aligned
        if again or key not in self._ranged:
            made: Ranged | Failure
            try:
                made = compiled(self.ranged(specs, asked), asked)
            except Exception as error:  # noqa: BLE001 - a failure is data
                where = str(asked.target)
                made = failed(self.name, asked.schedule, where, asked.phases, error)
            self._ranged[key] = made
        return self._ranged[key]

    def _convention(
        self,
        arrays: tuple[Any, ...],
        schedule: Schedule | None,
        target: str,
        *,
        aligned: bool,
    ) -> Convention:
        """Return the convention of a call, whose workspaces are those of all extents."""
        found = super()._convention(arrays, schedule, target, aligned=aligned)
        if not found.hidden:
            return found
        known, own = self._shared.get(id(found), (None, found))
        if known is not found:
            key = found.built.text, target, aligned
            own = replace(found, spare=self._spare.setdefault(key, found.spare))
            self._shared[id(found)] = found, own
        return own

    def _at(self, specs: Sequence[Spec], point: Point) -> list[Spec]:
        """Return the shapes at other extents."""
        values = dict(zip(self.extents, point, strict=True))
        made = []
        for name, (shape, dtype) in zip(self.signature.arrays, specs, strict=True):
            axes = self._axes.get(name, ())
            own = [values[e] if e else n for e, n in zip(axes, shape, strict=False)]
            made.append(((*own, *shape[len(axes) :]), dtype))
        return made

    def _found(self, specs: Sequence[Spec]) -> Point:
        """Return the extents of shapes; raises KernelError for what they cannot be."""
        seen: dict[Extent, tuple[int, str]] = {}
        for name, (shape, _) in zip(self.signature.arrays, specs, strict=False):
            axes = self._axes.get(name, ())
            if len(shape) < len(axes):
                raise KernelError(
                    f"{self.name}: {name} has shape {shape}, expected at least "
                    f"{len(axes)} axes, as its extents say; pass an array of these."
                )
            for each, extent in zip(axes, shape, strict=False):
                if each is not None:
                    self._check(
                        each, extent, name, seen.setdefault(each, (extent, name))
                    )
        missing = [each.name for each in self.extents if each not in seen]
        if missing:
            raise KernelError(
                f"{self.name}: got {len(specs)} arrays, of which none has extent "
                f"{missing[0]}; pass one for each parameter."
            )
        return tuple([seen[each][0] for each in self.extents])

    def _check(
        self, of: Extent, extent: int, name: str, first: tuple[int, str]
    ) -> None:
        if extent > of.most:
            raise KernelError(
                f"{self.name}: {name} has {of.name} {extent}, at most {of.most} were "
                "declared; declare more, or call it in parts."
            )
        if extent != first[0]:
            raise KernelError(
                f"{self.name}: {name} has {of.name} {extent}, but {first[1]} has "
                f"{first[0]}; pass arrays of one {of.name}."
            )
