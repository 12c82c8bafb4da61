"""All strategies: which fits a program, and what each can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Program, Reduce
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.pointwise import lowering as pointwise_lowering
from steelyard_kernels.schedule.pointwise import model as pointwise_model
from steelyard_kernels.schedule.pointwise.schedule import Pointwise

if TYPE_CHECKING:  # loaded when first needed: the first kernel of a process is a bar
    from steelyard_kernels.schedule.normalization.schedule import Normalization

Schedule: TypeAlias = "Pointwise | Normalization"


def strategy(program: Program) -> str:
    """Return the name of the strategy that fits: by whether anything is reduced."""
    reduces = any(isinstance(node, Reduce) for node in program.nodes)
    return "normalization" if reduces else "pointwise"


def is_nothing(program: Program) -> bool:
    """Say whether a program has no element to compute."""
    return all(0 in output.value.shape for output in program.outputs)


def rank(
    program: Program, machine: Machine, *, aligned: bool = True
) -> list[tuple[Schedule, Prediction]]:
    """Return every candidate with its prediction, the best predicted first."""
    ranked: list[tuple[Schedule, Prediction]] = []
    if is_nothing(program):
        ranked += [(_nothing(machine), Prediction(()))]
    elif strategy(program) == "pointwise":
        ranked += pointwise_model.rank(program, machine, aligned=aligned)
    else:
        from steelyard_kernels.schedule.normalization import model

        ranked += model.rank(program, machine, aligned=aligned)
    return sorted(ranked, key=lambda row: row[1].total)  # stable: ties keep order


def _nothing(machine: Machine) -> Pointwise:
    return Pointwise(machine.lanes(4), 1, 1, 1, streaming=False, prefetch=0)


def candidates(
    program: Program, machine: Machine, *, aligned: bool = True
) -> tuple[Schedule, ...]:
    """Return every legal schedule worth trying, in order."""
    if is_nothing(program):
        return (_nothing(machine),)
    if strategy(program) == "pointwise":
        return pointwise_model.candidates(program, machine, aligned=aligned)
    from steelyard_kernels.schedule.normalization import model

    return model.candidates(program, machine, aligned=aligned)


def heuristic(program: Program, machine: Machine, *, aligned: bool = True) -> Schedule:
    """Return the candidate that the model predicts to be fastest."""
    if is_nothing(program):
        return _nothing(machine)
    if strategy(program) == "pointwise":
        return pointwise_model.heuristic(program, machine, aligned=aligned)
    from steelyard_kernels.schedule.normalization import model

    return model.heuristic(program, machine, aligned=aligned)


def lower(program: Program, schedule: Schedule, *, aligned: bool = True) -> Lowered:
    """Return the loop-level kernel of a program under a schedule."""
    if is_nothing(program):
        return pointwise_lowering.nothing(program)
    fits = strategy(program)
    if schedule.strategy != fits:
        raise KernelError(
            f"{program.name}: got a {schedule.strategy} schedule, but this program "
            f"needs {fits}; leave the schedule out, or take one of its candidates."
        )
    if isinstance(schedule, Pointwise):
        return pointwise_lowering.lower(program, schedule, aligned=aligned)
    from steelyard_kernels.schedule.normalization import lowering

    return lowering.lower(program, schedule, aligned=aligned)


def explain(
    program: Program, machine: Machine, *, aligned: bool = True, top: int = 10
) -> str:
    """Return a table of the best predicted schedules and their terms, in us."""
    ranked = rank(program, machine, aligned=aligned)
    if not ranked[0][1].terms:
        return f"{program.name}: nothing to compute\n"
    names = [name for name, _ in ranked[0][1].terms]
    width = max(len(schedule.label) for schedule, _ in ranked[:top])
    title = f"{min(top, len(ranked))} best predicted of {len(ranked)} schedules, in us"
    lines = [
        f"{program.name} ({strategy(program)}): the {title}",
        "  ".join([" " * width, "    total", *names]),
    ]
    for schedule, prediction in ranked[:top]:
        terms = [f"{value / 1000:{len(name)}.2f}" for name, value in prediction.terms]
        total = f"{prediction.total / 1000:9.2f}"
        lines.append("  ".join([schedule.label.ljust(width), total, *terms]))
    return "\n".join(lines) + "\n"
