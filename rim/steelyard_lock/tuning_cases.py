"""Candidates as cases of the harness: a kernel launched under each of its schedules."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import Benchmark, Builder, benchmark
from steelyard.declare.benchmark import Case
from steelyard.declare.handles import Call, Handle
from steelyard.prepare.work import BoundOnCall
from steelyard_kernels import reference
from steelyard_kernels.building.cache import disk
from steelyard_kernels.digest import digest
from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Dot, Program, Reduce, everywhere
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.expression.structure import described
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.library.examples import Spec
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, device, parse
from steelyard_lock.points import Arrays, Point, ready, spec_of, traced

Array = NDArray[Any]

ULPS: Final = 32
"""Epsilons of an output's dtype by which a value may be off."""

LAMBDA: Final = 8
"""Of a sum of k numbers also 8 sqrt(k) epsilons of what they are added up in: Higham and
Mary, "A new approach to probabilistic rounding error analysis", 2019."""

ANSWERS: Final = 2
"""Answers of the reference that are held: of the cases' own data, and of other data."""


@dataclass(frozen=True, slots=True)
class Scheduled(BoundOnCall):
    """A kernel under one schedule, for `Builder.launch`."""

    kernel: KernelFunction
    schedule: Schedule

    def bind(self, *arrays: Any, **keywords: Any) -> Any:
        """Bind the kernel under it."""
        return self.kernel.bind(*arrays, schedule=self.schedule, **keywords)


@dataclass(frozen=True)
class Tuned:
    """What all candidates of a point share."""

    kernel: KernelFunction
    arrays: Arrays
    program: Program
    target: str

    @classmethod
    def of(cls, point: Point) -> Tuned:
        """Find a point's kernel and trace it; raises KernelError."""
        kernel, arrays, _ = ready(point)
        return cls(kernel, arrays, traced(point, kernel, arrays), point.target)

    @cached_property
    def schedules(self) -> Mapping[str, Schedule]:
        """Every candidate by its label."""
        machine = device(parse(self.target))
        every = strategies.candidates(simplify(self.program), machine)
        return {schedule.label: schedule for schedule in every}

    @cached_property
    def _answers(self) -> dict[bytes, list[Array]]:
        return {}

    def oracle(self, *arrays: Array) -> list[Array]:
        """Return what outputs, then updated inputs, hold: in float64.

        All candidates ask it of the same data, and are answered once.
        """
        name = blake2b(digest_size=16)
        for array in arrays:
            name.update(np.ascontiguousarray(array).tobytes())
        answers = self._answers
        if name.digest() not in answers:
            while len(answers) >= ANSWERS:
                answers.pop(next(iter(answers)))
            given = self.kernel.signature.scalars
            scalars = {s.name: s.default for s in given if s.default is not None}
            found = reference.evaluate(self.program, arrays, scalars)
            seen = [output for output in self.program.outputs if not output.hidden]
            seen.sort(key=lambda o: -1 if o.updates is None else o.updates)
            answers[name.digest()] = [found[output.name] for output in seen]
        return answers[name.digest()]

    @cached_property
    def tolerances(self) -> tuple[float, float | None]:
        """The relative and the absolute error that are allowed."""
        floats = [o.value.dtype for o in self.program.outputs]
        relative = ULPS * max(map(_epsilon, floats), default=0.0)
        sums = [
            n for n in everywhere(self.program.nodes) if isinstance(n, Reduce | Dot)
        ]
        if not sums or not relative:
            return relative, None
        added = [LAMBDA * _added(n) ** 0.5 * _epsilon(n.dtype) for n in sums]
        relative = max(relative, *added)
        return relative, relative * self._scale()

    def _scale(self) -> float:
        """Return the root mean square of the largest output, kept on disk by program."""
        name = digest(f"scale {described(self.program)}".encode())
        kept = disk().get(name)
        if kept is not None:
            return float(json.loads(kept))
        draw = np.random.default_rng(0)
        drawn = [_drawn(draw, *spec) for spec in self.arrays]
        found = max(
            float(np.sqrt(np.mean(np.square(each)))) for each in self.oracle(*drawn)
        )
        disk().put(name, json.dumps(found).encode())
        return found


def _added(node: Reduce | Dot) -> float:
    """Return how many numbers each sum is of."""
    if isinstance(node, Dot):
        return node.a.shape[-1]
    return math.prod(node.arg.shape) / max(1, math.prod(node.shape))


def _epsilon(dtype: DType) -> float:
    return 2.0 ** (1 - dtype.digits) if dtype.kind == "float" else 0.0


def _drawn(draw: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.kind == "float":
        return draw.normal(size=shape).astype(dtype.numpy).astype(np.float64)
    return draw.integers(100, size=shape).astype(dtype.numpy)


@lru_cache(maxsize=4)
def _tuned(kernel: str, axes: str, arrays: str, target: str, launch: str) -> Tuned:
    place = ast.literal_eval(axes) if axes else ()
    number = int(launch) if launch else None
    return Tuned.of(Point(kernel, place, specs_of(arrays), target, launch=number))


def specs_of(text: str) -> tuple[Spec, ...]:
    """Read the arrays of a case, which stand apart by spaces."""
    return tuple(map(spec_of, text.split()))


def declare(
    b: Builder, kernel: KernelFunction, arrays: Arrays, program: Program
) -> tuple[list[Handle], tuple[Handle, ...]]:
    """Declare what a program takes, and what it gives beside what it updates."""
    names, given = kernel.signature.arrays, []
    updated = {output.updates for output in program.outputs}
    for place, (name, (shape, dtype)) in enumerate(zip(names, arrays, strict=True)):
        one = b.inout if place in updated else b.input
        dist = None if dtype.kind == "float" else "integers"
        given.append(one(shape, dtype.name, name=name, dist=dist))
    made = tuple(
        b.output(output.value.shape, output.value.dtype.name, name=output.name)
        for output in program.outputs
        if output.updates is None and not output.hidden
    )
    return given, made


def tune(  # noqa: PLR0917 - the axes
    b: Builder,
    kernel: str,
    axes: str,
    arrays: str,
    launch: str,
    target: str,
    schedule: str,
) -> Call:
    """Launch a kernel under one schedule."""
    found = _tuned(kernel, axes, arrays, target, launch)
    if target != CPU:
        b.on("cuda")
    given, made = declare(b, found.kernel, found.arrays, found.program)
    rtol, atol = found.tolerances
    b.check(found.oracle, *given, rtol=rtol, atol=atol)
    b.mode("kernel/warm")
    work = Scheduled(found.kernel, found.schedules[schedule])
    return b.launch(work, *given, out=made if len(made) != 1 else made[0])


BENCHMARK: Final[Benchmark] = benchmark(
    kernel=[""], axes=[""], arrays=[""], launch=[""], target=[""], schedule=[""]
)(tune)
"""Found by its file and name where a process measures."""


def case(point: Point, schedule: Schedule) -> Case:
    """Return one candidate of a point."""
    axes = {
        "kernel": point.kernel,
        "axes": "" if point.arrays else repr(point.axes) if point.axes else "",
        "arrays": " ".join(point.shapes),
        "launch": "" if point.launch is None else str(point.launch),
        "target": point.target,
        "schedule": schedule.label,
    }
    return BENCHMARK.case(axes)
