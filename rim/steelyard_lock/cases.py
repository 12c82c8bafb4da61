"""What is locked: kernels of the library at sizes that matter, and for what targets.

And programs of several launches: a layer of BERT's, a step of an MLP's training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from steelyard_device.processors import PROCESSORS
from steelyard_kernels import dtypes, library
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.library import bert, examples, mlp
from steelyard_kernels.schedule.gpu import GPUS, Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.targets import CPU, CUDA

DTYPES: Final = ("float16", "float32")
LOOPED: Final = ("float32", "float64")
"""Of loops with state, whose numbers are drawn in these."""

SMALL: Final = 100
LARGE: Final = 1024 * 4096
"""Beside the axes' own size: a launch that is all overhead, and the issue's of Adam."""

ROWS: Final = 8192
HIDDEN: Final = (
    768,
    1024,
    1280,
    1536,
    1600,
    2048,
    2560,
    4096,
    5140,
    12288,
    16384,
    20480,
)
"""The LayerNorm widths that the suites measure."""

THREADS: Final = 8
"""Of the processors that code is locked for: schedules know their number, and the file
must be the same on every machine."""

TARGETS: Final = (
    *(f"{CPU}:{name}" for name in PROCESSORS),
    *(f"{CUDA}:{arch}" for arch in GPUS),
)


PROGRAMS: Final[Mapping[str, Mapping[str, int]]] = {
    "bert": {"batch": 1, "words": 64, "columns": 384},
    "mlp_step": {"rows": 64, "columns": 256, "units": 512, "classes": 10},
}
"""Of several launches, with their sizes: of float32 on a CPU, of halves on an H100."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one point of its axes, for some targets."""

    kernel: str
    axes: tuple[tuple[str, int | str], ...]
    targets: tuple[str, ...] = TARGETS

    @property
    def label(self) -> str:
        """Say kernel and axes as benchmarks do."""
        inside = ",".join(f"{name}={value}" for name, value in self.axes)
        return f"{self.kernel}[{inside}]" if inside else self.kernel

    def program(self) -> Program:
        """Trace the kernel."""
        if self.kernel in PROGRAMS:
            return _PROGRAMS[self.kernel](**dict(self.axes))
        kernel = getattr(library, self.kernel)
        assert isinstance(kernel, KernelFunction)
        specs = examples.specs(self.kernel, dict(self.axes))
        return kernel.program(*((shape, dtypes.of(dtype)) for shape, dtype in specs))


def cases() -> tuple[Case, ...]:
    """Return all cases; every kernel of the library has one."""
    programs = [
        Case(name, (*axes.items(), ("dtype", dtype)), targets)
        for name, axes in PROGRAMS.items()
        for dtype, targets in (
            ("float16", ("cuda:sm_90a",)),
            ("float32", tuple(t for t in TARGETS if t.startswith(CPU))),
        )
    ]
    return tuple(sorted([*_cases(), *programs], key=_order))


def _bert(*, batch: int, words: int, columns: int, dtype: str) -> Program:
    shapes = (batch, words, columns), *bert.shapes_of(columns)
    return bert.bert(1).program(*[(shape, dtypes.of(dtype)) for shape in shapes])


def _mlp_step(
    *, rows: int, columns: int, units: int, classes: int, dtype: str
) -> Program:
    weights = (columns, units), (units,), (units, classes), (classes,)
    x, *own = [(shape, dtypes.of(dtype)) for shape in ((rows, columns), *weights)]
    return mlp.step.program(x, ((rows,), dtypes.int64), *own)


_PROGRAMS: Final[Mapping[str, Callable[..., Program]]] = {
    "bert": _bert,
    "mlp_step": _mlp_step,
}


def _order(case: Case) -> tuple[str, list[tuple[str, str, int]]]:
    """Sort by name and axes, numbers by their value."""
    keys = [
        (name, "", value) if isinstance(value, int) else (name, value, 0)
        for name, value in case.axes
    ]
    return case.kernel, keys


def _cases() -> Iterator[Case]:
    for kernel in examples.SHAPES:
        for point in _points(kernel):
            names = examples.axes_of(kernel)
            yield Case(kernel, tuple((name, point[name]) for name in names))


def _points(kernel: str) -> Iterator[dict[str, int | str]]:
    """Yield the points of a kernel's axes."""
    own = dict(examples.AXES)
    axes = examples.axes_of(kernel)
    if not axes:
        yield own
    for dtype in (
        (LOOPED if "units" in axes or "width" in axes else DTYPES) if axes else ()
    ):
        yield {**own, "dtype": dtype}
        if "hidden" in axes:
            widths = HIDDEN if kernel == "bias_layernorm" else (4096,)
            for width in widths:
                yield {**own, "rows": ROWS, "hidden": width, "dtype": dtype}
    if kernel == "adam":
        yield from ({**own, "n": n, "dtype": "float32"} for n in (SMALL, LARGE))


def device(target: str) -> Machine | Gpu:
    """Describe a target to the schedules."""
    kind, _, name = target.partition(":")
    if kind == CPU:
        return Machine(PROCESSORS[name].vector_bytes, THREADS)
    return GPUS[name]
