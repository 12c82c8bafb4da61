"""The texts of one build: program, schedule, loops, compiler's input and output."""

from __future__ import annotations

from collections.abc import Iterator

from steelyard_kernels.building.build import Phases, Source, prepare
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import printing as expr_print
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.schedule.strategies import strategy
from steelyard_kernels.targets import CPU, parse
from steelyard_kernels.toolchains import TOOLCHAINS, toolchain
from steelyard_lock.points import Point, ready, traced


def emitted(point: Point, what: str) -> str:
    """Return one text of a build; raises KernelError where the target has none."""
    target = parse(point.target)
    kinds = [kind for kind, chain in TOOLCHAINS.items() if what in chain.TEXTS]
    if kinds and target.kind not in kinds:
        example = CPU if CPU in kinds else f"{kinds[0]}:sm_90a"
        raise KernelError(
            f"--emit {what} is of {' and '.join(kinds)} targets, {point.label} is not; "
            f"name one, such as --target {example}."
        )
    source = _source(point)
    if kinds:
        return toolchain(target).TEXTS[what](source.text, target)
    return dict(_stages(source))[what]


def after_all(point: Point) -> str:
    """Return what each phase made, each under its name."""
    source = _source(point)
    texts = {"trace": expr_print.text(source.program), **dict(_stages(source))}
    headings = {
        "trace": "trace",
        "program": "simplify",
        "schedule": "schedule",
        "loops": "lower",
        "text": "emit",
    }
    return "\n".join(
        f"=== {point.label} after {headings[name]} ===\n{text.rstrip()}\n"
        for name, text in texts.items()
    )


def _source(point: Point) -> Source:
    kernel, arrays, schedule = ready(point)
    program = traced(point, kernel, arrays)
    target = parse(point.target)
    return prepare(program, schedule, target, Phases(), aligned=True)


def _stages(source: Source) -> Iterator[tuple[str, str]]:
    yield "program", expr_print.text(simplify(source.program))
    chosen = source.schedule
    yield "schedule", f"{strategy(source.program)} {chosen.label}\n{chosen}\n"
    yield "loops", loops_print.text(source.kernel)
    yield "text", source.text
