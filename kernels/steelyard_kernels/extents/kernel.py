"""`runtime`: kernels some of whose axes have extents that only a call knows.

    batch, words = Extent("batch", 32), Extent("words", 512)
    layer = runtime(layer, x=(batch, words), mask=(batch, words))

    layer(x, mask, weights)              # x of any batch and words up to these

All calls run the same code, of which it is proved that it reads and writes the arrays
alone at all extents. What an axis is not named for is known when it is built, as ever.
Extents of 0 are built by themselves, and those at which the function computes something
else; where it does at 1, all calls with such an extent run one code of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.artifact import Artifact, Failure, digest
from steelyard_kernels.building.build import Phases, Request, failed
from steelyard_kernels.building.cache import keeps, levels_of
from steelyard_kernels.calling import arguments
from steelyard_kernels.calling.bind import Outputs, Result
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.extents.formulas import Point
from steelyard_kernels.extents.served import Ranged, keep, recalled
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, parse
from steelyard_kernels.trace import Spec


class Extent(Struct, frozen=True):
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
                if not isinstance(each, Extent | None):
                    raise KernelError(
                        f"{self.name}: an axis of {name} is {each!r}, expected an Extent, "
                        "or None where the extent is known when it is built."
                    )
                if each and named.setdefault(each.name, each) != each:
                    raise KernelError(
                        f"{self.name}: extent {each.name} is at most {each.most} and "
                        f"{named[each.name].most}, expected one bound; give one of them "
                        "another name."
                    )
        self.extents = tuple(named.values())
        self._ranged: dict[object, Ranged | Failure] = {}
        self._ones: dict[Point, RuntimeKernel] = {}
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
        how: dict[str, Any] = {
            "schedule": schedule,
            "target": target,
            "cache": cache,
            "drop": drop,
            "aligned": aligned,
        }
        specs = self._specs(arrays)
        found, program = self._found(specs), self.program(*specs)
        nothing = 0 in found or any(0 in node.shape for node in program.nodes)
        if self.extents and not nothing:
            levels = levels_of(self.name, cache, drop)
            where = parse(target)
            asked = Request(program, schedule, where, aligned, levels, Phases())
            made = self._built(specs, asked)
            if isinstance(made, Failure):
                return made
            if made.serves(program, found):
                return made.at(found, asked)
            if 1 in found:  # of one index nothing is broadcast or added up
                return self._of_one(found).build(*specs, **how)
        return super().build(*arrays, **how)

    def ranged(self, specs: Sequence[Spec], asked: Request) -> Ranged:
        """Go as far as texts for all extents; raises what made it impossible."""
        from steelyard_kernels.extents.build import ranged  # a build may be kept

        bounds = tuple([each.most for each in self.extents])
        return ranged(
            lambda point: self.program(*self._at(specs, point)), bounds, asked
        )

    def _of_one(self, found: Point) -> RuntimeKernel:
        """Return the kernel of which extents that are 1 are known."""
        if found not in self._ones:
            ones = {e for e, n in zip(self.extents, found, strict=True) if n == 1}
            axes = {
                name: tuple([None if each in ones else each for each in every])
                for name, every in self._axes.items()
            }
            self._ones[found] = RuntimeKernel(self._whole, axes)
        return self._ones[found]

    def _built(self, specs: Sequence[Spec], asked: Request) -> Ranged | Failure:
        """Return the build for all extents: what was built before, if that is asked."""
        bounds = tuple([each.most for each in self.extents])
        every = tuple(self._at(specs, bounds))
        key = every, asked.schedule, str(asked.target), asked.aligned
        if "memory" not in asked.levels or key not in self._ranged:
            try:
                self._ranged[key] = self._made(every, asked)
            except Exception as error:  # noqa: BLE001 - a failure is data
                where = str(asked.target)
                found = failed(self.name, asked.schedule, where, asked.phases, error)
                self._ranged[key] = found
        return self._ranged[key]

    def _made(self, specs: Sequence[Spec], asked: Request) -> Ranged:
        """Return the build that is kept on disk, or a new one, for shapes at bounds."""
        from steelyard_kernels.building.keys import key

        named = ""
        if "disk" in asked.levels and keeps():
            most = self.program(*specs)
            program = key(most, asked.schedule, asked.target, aligned=asked.aligned)
            named = digest(f"{program} at all of {self._axes}".encode())
            found = recalled(named, asked)
            if found:
                return found
        from steelyard_kernels.extents.build import compiled

        made = compiled(self.ranged(specs, asked), asked)
        if named:
            keep(made, named)
        return made

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

    def _inlined(
        self, arrays: tuple[Any, ...], out: Outputs, scalars: dict[str, Any]
    ) -> Result:
        """Return the outputs of a call within another kernel, of extents that it may have."""
        given = tuple(arguments.constants(self.signature, arrays))
        self._found([(each.shape, each.dtype) for each in given])
        return super()._inlined(given, out, scalars)

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
                if each is None:
                    continue
                if extent > each.most:
                    raise KernelError(
                        f"{self.name}: {name} has {each.name} {extent}, at most "
                        f"{each.most} were declared; declare more, or call it in parts."
                    )
                known, first = seen.setdefault(each, (extent, name))
                if extent != known:
                    raise KernelError(
                        f"{self.name}: {name} has {each.name} {extent}, but {first} has "
                        f"{known}; pass arrays of one {each.name}."
                    )
        missing = [each.name for each in self.extents if each not in seen]
        if missing:
            raise KernelError(
                f"{self.name}: got {len(specs)} arrays, of which none has extent "
                f"{missing[0]}; pass one for each parameter."
            )
        return tuple([seen[each][0] for each in self.extents])
