"""The texts of one build: program, schedule, loops, compiler's input and output."""

from __future__ import annotations

from collections.abc import Iterator

from steelyard_device.passes import timed
from steelyard_kernels.building.build import Request, lowered, plan_of, tuned
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
    found = [
        text for name, text in _stages(point) if name == ("text" if kinds else what)
    ]
    if kinds:
        found = [toolchain(target).TEXTS[what](text, target) for text in found]
    return "\n".join(found)


def passes(point: Point) -> list[tuple[str, int]]:
    """Return LLVM's passes over a build, with nanoseconds.

    Raises:
        KernelError: another compiler makes the target's code.
    """
    if "llvm" not in toolchain(parse(point.target)).TEXTS:
        raise KernelError(
            f"--passes are LLVM's, {point.label} is compiled by another; name --target "
            "cpu or nvptx:ARCH, or read NVRTC's phases in --timings."
        )
    return timed(emitted(point, "llvm"), parse(point.target).arch)


def after_all(point: Point) -> str:
    """Return what each phase made, each under its name."""
    headings = {"program": "simplify", "loops": "lower", "text": "emit"}
    return "\n".join(
        f"=== {point.label} after {headings.get(name, name)} ===\n{text.rstrip()}\n"
        for name, text in _stages(point)
    )


def _stages(point: Point) -> Iterator[tuple[str, str]]:
    kernel, arrays, schedule = ready(point)
    program, target = traced(point, kernel, arrays), parse(point.target)
    yield "trace", expr_print.text(program)
    yield "program", expr_print.text(simplify(program))
    schedule = schedule or tuned(program, target, aligned=True)
    loops = schedule and not schedule.launches
    plan = None if loops else plan_of(Request(program, schedule, target))
    if plan is not None:
        yield "launches", plan.text()
    for part in [each.program for each in plan.launches] if plan else [program]:
        stated = tuned(part, target, aligned=True) if plan else schedule
        chosen, made = lowered(Request(part, stated, target))
        yield "schedule", f"{strategy(part)} {chosen.label}\n{chosen}\n"
        yield "loops", loops_print.text(made.kernel)
        yield "text", toolchain(target).emit(made.kernel)
