"""What `steelyard compile` builds: kernels at points of their axes, for targets.

    KERNEL... x axes x targets --> Point*  --ready--> what a builder needs

A point is plain data, so that another process can find the same kernel again. A kernel
is one of ours, what an importer made of another library's function, or what the cases of
a benchmark launch, whose axes and arrays are the benchmark's.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from msgspec import structs

from steelyard import Benchmark
from steelyard.declare.axes import text_of
from steelyard.declare.benchmark import select
from steelyard_kernels import dtypes, library
from steelyard_kernels.building.build import Request, plan_of, tuned
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError, sentence
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.imported import ImportedKernel
from steelyard_kernels.library import examples
from steelyard_kernels.library.examples import Spec
from steelyard_kernels.plan.launches import Plan
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.schedule import Schedule, partition_of
from steelyard_kernels.targets import CUDA, device, parse, parse_all

Axis: TypeAlias = "int | float | str | tuple[Axis, ...] | None"
"""A value of an axis: of the library's a length or a dtype, of a benchmark's its own."""

Found: TypeAlias = KernelFunction | ImportedKernel | Benchmark


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel to build: for which arrays and target, and how if it was said."""

    kernel: str
    """A kernel of the library, or ``path.py:name`` of a kernel or a benchmark."""
    axes: tuple[tuple[str, Axis], ...]
    arrays: tuple[Spec, ...]
    target: str
    schedule: str = ""
    """The label of a candidate, or of a partition; empty: those that builds take."""
    registers: int = 0
    """The most that a thread may have; 0: as the schedule says."""
    nvrtc: str = ""
    """The library that compiles it; empty: the one that is found."""
    dropped: tuple[str, ...] = ()
    """The levels of cache that are left out."""
    launch: int | None = None
    """Which launch of a kernel of several, by number; None: all of them."""

    @property
    def label(self) -> str:
        """Say kernel, axes and target in one line."""
        words = [f"{name}={text_of(at)}" for name, at in self.axes] or self.shapes
        inside = f"[{','.join(words)}]" if words else ""
        part = "" if self.launch is None else f" launch {self.launch}"
        return f"{self.kernel.rpartition(':')[2]}{inside}{part} {self.target}"

    @property
    def shapes(self) -> list[str]:
        """The arrays as ``--arg`` reads them."""
        return [f"{'x'.join(map(str, shape))}:{dtype}" for shape, dtype in self.arrays]


Arrays = tuple[tuple[tuple[int, ...], DType], ...]


def ready(point: Point) -> tuple[KernelFunction, Arrays, Schedule | None]:
    """Find a point's kernel, arrays and schedule; raises KernelError for none."""
    kernel, arrays = _given(point)
    partition = partition_of(point.schedule)
    if point.launch is not None:
        plan = planned(point)
        if plan is None or point.launch >= len(plan.launches):
            count = len(plan.launches) if plan else 1
            raise KernelError(
                f"--launch {point.launch}: {replace(point, launch=None).label} has "
                f"{count} launches, numbered from 0 on; `steelyard compile` lists them."
            )
        program = plan.launches[point.launch].program
        kernel = kernel.part(program)
        arrays = tuple((node.shape, node.dtype) for node in program.inputs)
        if partition and not point.registers:
            return kernel, arrays, None
    elif (partition or not point.schedule) and not point.registers:
        return kernel, arrays, partition
    elif plan := planned(point):
        raise KernelError(
            f"{point.label} is {len(plan.launches)} launches, a schedule and a limit of "
            "registers are of one; name it by --launch N."
        )
    return kernel, arrays, _schedule(point, traced(point, kernel, arrays))


def planned(point: Point) -> Plan | None:
    """Return the launches of a point's kernel; None where it is one."""
    program, target = traced(point, *_given(point)), parse(point.target)
    chosen = partition_of(point.schedule) or tuned(program, target, aligned=True)
    return plan_of(Request(program, chosen, target))


def _given(point: Point) -> tuple[KernelFunction, Arrays]:
    """Return a point's kernel, which may be several launches, and what it takes."""
    found, specs = find(point.kernel), point.arrays
    if isinstance(found, Benchmark):
        call = found.case(dict(point.axes)).describe().call
        found, specs = call.target, tuple((h.shape, h.dtype) for h in call.args)
    if isinstance(found, KernelFunction):
        return found, tuple((shape, dtypes.of(dtype)) for shape, dtype in specs)
    if isinstance(found, ImportedKernel):
        made = found.like(*specs)
        every = made.specs()
        return made.kernel, tuple((shape, dtypes.of(dtype)) for shape, dtype in every)
    raise KernelError(
        f"{point.label} launches a {type(found).__name__}, expected a kernel; choose "
        "other cases by -p, such as -p impl=ours."
    )


def traced(point: Point, kernel: KernelFunction, arrays: Sequence[Any]) -> Program:
    """Return a point's program; what a user's function raises is a KernelError."""
    try:
        return kernel.program(*arrays)
    except KernelError:
        raise
    except (Exception, SystemExit) as error:
        raise KernelError(
            f"{point.label} cannot be traced: {sentence(error)}. Mend it first."
        ) from error


def spec_of(text: str) -> Spec:
    """Read ``1024x768:float16``; raises KernelError for anything else."""
    shape, _, dtype = text.partition(":")
    lengths = shape.split("x") if shape else []
    if not all(length.isdecimal() for length in lengths):
        raise KernelError(f"{text}: expected SHAPE:DTYPE, such as 1024x768:float16.")
    return tuple(map(int, lengths)), dtype or "float32"


def find(name: str) -> Found:
    """Return a kernel of the library, or what is ``path.py:name``."""
    path, colon, inside = name.rpartition(":")
    if colon:
        return _member(_module(path), inside, path)
    return _member(library, name, "the library")


def _member(module: ModuleType, name: str, place: str) -> Found:
    found = getattr(module, name, None)
    if isinstance(found, Found):
        return found
    kernels = [k for k, v in vars(module).items() if isinstance(v, Found)]
    near = difflib.get_close_matches(name, kernels, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(kernels)}."
    if not kernels:
        hint = "put @kernel over a function there."
    file = "" if module is not library else "; a file's is path.py:name"
    raise KernelError(f"{place} has no kernel {name!r}{file}; {hint}")


def _module(path: str) -> ModuleType:
    if not Path(path).is_file():
        raise KernelError(f"there is no file {path}; name one as path.py:kernel.")
    from steelyard.declare import discovery  # suites of other commits import this file

    return discovery.import_file(Path(path))


def _schedule(point: Point, program: Program) -> Schedule:
    target = parse(point.target)
    machine, simple = device(target), simplify(program)
    if point.schedule and not partition_of(point.schedule):
        chosen = _labelled(point, strategies.candidates(simple, machine))
    else:
        found = tuned(program, target, aligned=True)
        chosen = found or strategies.heuristic(simple, machine)
    if not point.registers:
        return chosen
    if machine is not GPUS.get(target.arch):
        raise KernelError(
            f"--max-registers {point.registers} limits a GPU's threads, {point.label} is "
            "for none; name cuda targets only."
        )
    return limited(chosen, point.registers)


def limited(schedule: Schedule, registers: int) -> Schedule:
    """Return a GPU's schedule with at most so many registers a thread."""
    knobs: dict[str, Any] = {"registers": registers}
    return structs.replace(schedule, **knobs)


def _labelled(point: Point, candidates: Sequence[Schedule]) -> Schedule:
    labels = {one.label: one for one in candidates}
    if point.schedule in labels:
        return labels[point.schedule]
    near = difflib.get_close_matches(point.schedule, labels, 1, cutoff=0.0)
    raise KernelError(
        f"{point.label} has no candidate {point.schedule!r} among {len(labels)}; the "
        f"nearest is {near[0]!r}, --candidates lists them all."
    )


def points(
    kernels: Sequence[str],
    targets: str,
    *,
    axes: Mapping[str, Sequence[Axis]],
    arrays: Sequence[Spec],
    schedule: str = "",
    registers: int = 0,
    libraries: Sequence[str] = ("",),
    launch: int | None = None,
) -> list[Point]:
    """Return every kernel x point of its axes x target x NVRTC; "all" is the library.

    `axes` replace the values of those kernels that have them; `arrays` replace a
    kernel's own. Raises KernelError for an axis that no kernel has.
    """
    named = [examples.SHAPES if name == "all" else (name,) for name in kernels]
    kernels = list(dict.fromkeys(itertools.chain.from_iterable(named)))
    found = {name: find(name) for name in kernels}
    own = {name: _axes(name, one, arrays) for name, one in found.items()}
    _require_known(axes, dict.fromkeys(itertools.chain.from_iterable(own.values())))
    made = [
        Point(name, tuple(place.items()), arrays_, str(target), schedule, registers)
        for name, one in found.items()
        for place in _places(one, own[name], axes)
        for arrays_ in [
            tuple(arrays)
            or (examples.specs(name, place) if name in examples.SHAPES else ())
        ]
        for target in parse_all(targets)
    ]
    others = [point for point in made if parse(point.target).kind != CUDA]
    if any(libraries) and others:
        raise KernelError(
            f"--nvrtc chooses the compiler of cuda targets, {others[0].label} is of "
            "LLVM's; name cuda targets only, such as --target cuda:sm_90a."
        )
    every = (
        replace(point, nvrtc=path, launch=launch)
        for point in made
        for path in libraries
    )
    return list(dict.fromkeys(every))


def _require_known(axes: Collection[str], known: Collection[str]) -> None:
    for axis in axes:
        if axis not in known:
            raise KernelError(
                f"-p {axis}: no kernel named here has this axis, expected one of "
                f"{', '.join(known) or 'none'}; arrays are given by --arg."
            )


def _axes(name: str, found: Found, arrays: Sequence[Spec]) -> Sequence[str]:
    """Return the axes of a kernel; raises KernelError where its arrays are not known."""
    if isinstance(found, Benchmark):
        if arrays:
            raise KernelError(
                f"--arg gives arrays, {name} is a benchmark with its own; leave --arg "
                "out, and choose cases by -p."
            )
        return tuple(found.axes)
    if name in examples.SHAPES:
        return () if arrays else examples.axes_of(name)
    if isinstance(found, KernelFunction) and found.signature.arrays and not arrays:
        raise KernelError(
            f"{name} takes {', '.join(found.signature.arrays)} and is not of the "
            "library; give each a --arg SHAPE:DTYPE, such as --arg 1024x768:float16."
        )
    return ()


def _places(
    found: Found, own: Sequence[str], axes: Mapping[str, Sequence[Axis]]
) -> list[dict[str, Any]]:
    asked = {name: values for name, values in axes.items() if name in own}
    if isinstance(found, Benchmark):
        return [dict(case.axes) for case in select([found], None, asked)]
    values = [
        [_length(axis, value) for value in asked.get(axis, (examples.AXES[axis],))]
        for axis in own
    ]
    return [dict(zip(own, place, strict=True)) for place in itertools.product(*values)]


def _length(axis: str, value: Axis) -> int | str:
    """Return a value of one of the library's axes."""
    if axis == "dtype":
        return str(value)
    number = value if isinstance(value, (int, float)) else math.nan
    if not (0 <= number < math.inf and number == int(number)):
        raise KernelError(f"-p {axis}={value}: expected a whole number from 0 up.")
    return int(number)
