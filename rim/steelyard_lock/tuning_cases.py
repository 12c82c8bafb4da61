"""Candidates as cases of the harness: a kernel launched under each of its schedules."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import Benchmark, Builder, benchmark
from steelyard.declare.benchmark import Case
from steelyard.declare.handles import Call, Handle
from steelyard.prepare.work import BoundOnCall
from steelyard_kernels import reference
from steelyard_kernels.artifact import digest
from steelyard_kernels.building.cache import disk
from steelyard_kernels.dtypes import DType
from steelyard_kernels.expression.expr import Dot, Program, Reduce
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.expression.structure import described, everywhere
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.library.examples import Spec
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Schedule, partition_of
from steelyard_kernels.targets import CPU, device, parse
from steelyard_lock.options import MODES
from steelyard_lock.points import Arrays, Point, find, ready, spec_of, traced

Array = NDArray[Any]

ULPS: Final = 32
"""Epsilons of an output's dtype by which a value may be off."""

LAMBDA: Final = 8
"""Of a sum of k numbers also 8 sqrt(k) epsilons of what they are added up in: Higham and
Mary, "A new approach to probabilistic rounding error analysis", 2019."""

MOVED: Final = 2.0**-20
"""Relative difference of inputs by which it is found how outputs move: far from
float64's, and small enough that they move in proportion."""

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

    def schedule(self, label: str) -> Schedule:
        """Return the candidate of a label."""
        return partition_of(label) or self._schedules[label]

    @cached_property
    def _schedules(self) -> Mapping[str, Schedule]:
        machine = device(parse(self.target))
        every = strategies.candidates(simplify(self.program), machine)
        return {schedule.label: schedule for schedule in every}

    @cached_property
    def _answers(self) -> dict[bytes, Any]:
        return {}

    def oracle(self, *arrays: Array) -> list[Array]:
        """Return what outputs, then updated inputs, hold: in float64."""
        given = self.kernel.signature.scalars
        scalars = {s.name: s.default for s in given if s.default is not None}
        found = reference.evaluate(self.program, arrays, scalars)
        seen = [output for output in self.program.outputs if not output.hidden]
        seen.sort(key=lambda o: -1 if o.updates is None else o.updates)
        return [found[output.name] for output in seen]

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the reference of all candidates: the first one's.

        Candidates share buffers only where their references are one object.
        """
        return self._shared.setdefault("reference", partial(self._once, function))

    @cached_property
    def _shared(self) -> dict[str, Callable[..., Any]]:
        return {}

    def _once(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """Return what a reference says of arrays: all candidates ask it of the same."""
        name = blake2b(digest_size=16)
        for array in arrays:
            name.update(np.ascontiguousarray(array).tobytes())
        answers = self._answers
        if name.digest() not in answers:
            while len(answers) >= ANSWERS:
                answers.pop(next(iter(answers)))
            answers[name.digest()] = function(*arrays)
        return answers[name.digest()]

    def tolerances(self, *, launches: bool) -> tuple[float, float | None]:
        """Return the relative and the absolute error that are allowed.

        Of several `launches` errors of the first go through all others, as those of
        inputs do.
        """
        floats = [o.value.dtype for o in self.program.outputs]
        relative = ULPS * max(map(_epsilon, floats), default=0.0)
        sums = [
            n for n in everywhere(self.program.nodes) if isinstance(n, Reduce | Dot)
        ]
        if not sums or not relative:
            return relative, None
        added = [LAMBDA * _added(n) ** 0.5 * _epsilon(n.dtype) for n in sums]
        relative = max(relative, *added)
        size, moves = self._scale()
        return relative, relative * (max(size, moves) if launches else size)

    def _scale(self) -> tuple[float, float]:
        """Return the root mean square of the largest output, and how outputs move.

        That is the most by which one differs where inputs do, over the relative
        difference of these. Kept on disk by program.
        """
        name = digest(f"scales {described(self.program)}".encode())
        kept = disk().get(name)
        if kept is not None:
            size, moves = json.loads(kept)
            return size, moves
        draw = np.random.default_rng(0)
        drawn = [_drawn(draw, *spec) for spec in self.arrays]
        moved = [_moved(draw, each) for each in drawn]
        pairs = [*zip(self.oracle(*drawn), self.oracle(*moved), strict=True)]
        size = max(float(np.sqrt(np.mean(np.square(one)))) for one, _ in pairs)
        most = max(
            float(np.max(np.abs(one - other), initial=0)) for one, other in pairs
        )
        disk().put(name, json.dumps((size, most / MOVED)).encode())
        return size, most / MOVED


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


def _moved(draw: np.random.Generator, array: Array) -> Array:
    signs = draw.choice((-MOVED, MOVED), array.shape)
    return array * (1 + signs) if array.dtype.kind == "f" else array


@lru_cache(maxsize=4)
def _tuned(kernel: str, axes: str, arrays: str, target: str, launch: str) -> Tuned:
    place = ast.literal_eval(axes) if axes else ()
    number, _, own = launch.partition(" of ")
    which = int(number) if number else None
    point = Point(kernel, place, specs_of(arrays), target, own, launch=which)
    return Tuned.of(point)


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
    chosen, own = found.schedule(schedule), find(kernel)
    work = Scheduled(found.kernel, chosen)
    if isinstance(own, Benchmark) and not launch:
        return _of_suite(b, own, axes, found, work)
    if target != CPU:
        b.on("cuda")
    given, made = declare(b, found.kernel, found.arrays, found.program)
    rtol, atol = found.tolerances(launches=bool(chosen.launches))
    b.check(found.reference(found.oracle), *given, rtol=rtol, atol=atol)
    b.mode(*MODES)
    return b.launch(work, *given, out=made if len(made) != 1 else made[0])


def _of_suite(
    b: Builder, own: Benchmark, axes: str, found: Tuned, work: Scheduled
) -> Call:
    """Return a benchmark's case under a schedule: its data, its reference, its bounds."""
    call = own.function(b, **dict(ast.literal_eval(axes) if axes else ()))
    if b.checked is not None and b.checked.function is not None:
        reference = found.reference(b.checked.function)
        b.checked = replace(b.checked, function=reference)
    b.modes = ()
    b.mode(*MODES)
    rest = {name: each for name, each in call.scalars.items() if name != "constant"}
    return replace(call, target=work, scalars=rest)


BENCHMARK: Final[Benchmark] = benchmark(
    kernel=[""], axes=[""], arrays=[""], launch=[""], target=[""], schedule=[""]
)(tune)
"""Found by its file and name where a process measures."""


def case(point: Point, schedule: Schedule) -> Case:
    """Return one candidate of a point."""
    own = f" of {point.schedule}" if point.schedule else ""
    axes = {
        "kernel": point.kernel,
        "axes": "" if point.arrays else repr(point.axes) if point.axes else "",
        "arrays": " ".join(point.shapes),
        "launch": "" if point.launch is None else f"{point.launch}{own}",
        "target": point.target,
        "schedule": schedule.label,
    }
    return BENCHMARK.case(axes)
