"""`@kernel`: a plain function over arrays, callable on NumPy arrays.

    @kernel
    def triad(a, b, *, s=3.0):
        return a + s * b

    c = triad(a, b)                      # runs once, allocates c
    work = triad.bind(a, b, out=c)       # checked and packed, for many launches
    built = triad.build(a, b)            # Built or Failed, by shapes and dtypes

Builds are remembered by shapes, dtypes, schedule and alignment; the lookup is done
before anything is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from steelyard_kernels import bind as binding
from steelyard_kernels.bind import Array, BoundKernel, Outputs
from steelyard_kernels.build import Built, Failed, build, machine
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Program
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.strategies import Schedule
from steelyard_kernels.trace import Spec, signature, trace

Result: TypeAlias = "Array | tuple[Array, ...] | dict[str, Array] | None"

LEVELS = ("cold", "warm-memory")
LINE = 64  # bytes; outputs that start on a multiple may be streamed to


class KernelFunction:
    """A kernel: trace it, build it, bind it, call it.

    Where a method takes arrays, `(shape, dtype)` pairs do as well, except to run.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.signature = signature(function)
        self.name = self.signature.name
        self.__doc__ = function.__doc__
        self._builds: dict[object, Built | Failed] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.signature.arrays)})>"

    def program(self, *arrays: Array | Spec) -> Program:
        """Trace the function for arrays of these shapes and dtypes."""
        return trace(self.function, self.signature, self._specs(arrays))

    def candidates(self, *arrays: Array | Spec) -> tuple[Schedule, ...]:
        """Return every legal schedule worth trying."""
        return strategies.candidates(self.program(*arrays), machine())

    def explain(self, *arrays: Array | Spec) -> str:
        """Return the model's table of the best schedules: why one was chosen."""
        return strategies.explain(self.program(*arrays), machine())

    def build(
        self,
        *arrays: Array | Spec,
        schedule: Schedule | None = None,
        cache: str = "warm-memory",
        aligned: bool = True,
    ) -> Built | Failed:
        """Build for arrays of these shapes and dtypes; never raises for a candidate.

        `cache` "warm-memory" gives what was built before, "cold" builds everything
        anew. `aligned` says that outputs start on a cache line.
        """
        try:
            key = (
                tuple([(array.shape, array.dtype) for array in arrays]),  # type: ignore[union-attr]
                schedule,
                aligned,
            )
        except AttributeError:  # specs
            key = (arrays, schedule, aligned)  # type: ignore[assignment]
        if cache == "warm-memory":
            found = self._builds.get(key)
            if found is not None:
                return found
        elif cache != "cold":
            raise KernelError(
                f"{self.name}: cache {cache!r} is not known, expected one of "
                f"{', '.join(LEVELS)}; pass one of these."
            )
        specs = self._specs(arrays)
        built = build(
            lambda: trace(self.function, self.signature, specs),
            schedule,
            name=self.name,
            aligned=aligned,
            cached=cache != "cold",
        )
        self._builds[key] = built
        return built

    def bind(
        self,
        *arrays: Array,
        out: Outputs = None,
        schedule: Schedule | None = None,
        **scalars: float,
    ) -> BoundKernel:
        """Check the arguments and pack them; raises KernelError with one sentence."""
        name = self.name
        for parameter, array in zip(self.signature.arrays, arrays, strict=False):
            binding.check_array(name, parameter, array)
        built = self._built(arrays, schedule, aligned=True)
        named = dict(zip(self.signature.arrays, arrays, strict=True))
        for output in built.program.outputs:
            if output.updates is not None:
                binding.check_writeable(name, output.name, named[output.name])
        named.update(binding.outputs_of(name, built.program, out))
        addresses = {one: binding.address(array) for one, array in named.items()}
        aligned = True
        if built.schedule.streaming:
            aligned = all(
                addresses[output.name] % LINE == 0 for output in built.program.outputs
            )
            if not aligned:
                built = self._built(arrays, schedule, aligned=False)
        binding.check_overlap(name, built.program, named, addresses)
        values = binding.scalar_values(self.signature, scalars)

        def rebuild(level: str) -> Built | Failed:
            return self.build(*arrays, schedule=schedule, cache=level, aligned=aligned)

        return BoundKernel(built, named, addresses, values, rebuild)

    def __call__(self, *arrays: Array, out: Outputs = None, **scalars: float) -> Result:
        """Run once; return the outputs as the function returned them."""
        bound = self.bind(*arrays, out=out, schedule=None, **scalars)
        bound.launch()
        outputs = bound.outputs
        names = list(outputs)
        if names == ["out"]:
            return outputs["out"]
        if names == [f"out{place}" for place in range(len(names))]:
            return tuple(outputs.values()) or None
        return outputs

    def _built(
        self, arrays: tuple[Array, ...], schedule: Schedule | None, *, aligned: bool
    ) -> Built:
        built = self.build(*arrays, schedule=schedule, aligned=aligned)
        if isinstance(built, Failed):
            raise built.cause
        return built

    def _specs(self, arrays: tuple[Array | Spec, ...]) -> list[Spec]:
        """Return shape and element type of every array, or of every pair of them."""
        names = [*self.signature.arrays, *(f"array {i}" for i in range(len(arrays)))]
        specs = []
        for name, array in zip(names, arrays, strict=False):
            if isinstance(array, tuple) and len(array) == 2:
                shape, dtype = tuple(array[0]), array[1]
                specs.append((shape, binding.element_type(self.name, name, dtype)))
            else:
                binding.check_array(self.name, name, array)
                element = binding.element_type(self.name, name, array.dtype)
                specs.append((array.shape, element))
        return specs


def kernel(function: Callable[..., Any]) -> KernelFunction:
    """Make a kernel of a plain function; see the module's example."""
    return KernelFunction(function)
