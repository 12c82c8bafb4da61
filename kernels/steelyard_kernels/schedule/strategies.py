"""All strategies: which fits a program, and what each can do with it on a target."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import (
    Arange,
    Gather,
    Node,
    Program,
    Reduce,
    Reshape,
    View,
    everywhere,
)
from steelyard_kernels.nest.axes import beyond, one_space, stored
from steelyard_kernels.nest.places import nest_of, walks
from steelyard_kernels.schedule.aliasing import check_updates, updates_in_place
from steelyard_kernels.schedule.gpu import WARP, Gpu
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.schedule import Schedule as Cuts
from steelyard_kernels.schedule.schedule import from_json as cuts_from_json

if TYPE_CHECKING:  # loaded when first needed: the first kernel of a process is a bar
    from steelyard_kernels.schedule.scan.cuda import CudaScan
    from steelyard_kernels.schedule.scan.schedule import Scan

Schedule: TypeAlias = "Cuts | Scan | CudaScan"  # Cuts: of a nest
Device: TypeAlias = Machine | Gpu

# What a nest does not lower, by strategy and kind of target: the folder, the knobs'
# module and class, and the modules that choose (candidates, rank, heuristic) and lower.
_PARTS: Final = {
    ("scan", "cpu"): ("scan", "schedule", "Scan", "model", "lowering"),
    ("scan", "cuda"): ("scan", "cuda", "CudaScan", "cuda_model", "cuda_lowering"),
}
_FOLDER, _KNOBS, _CLASS, _MODEL, _LOWERING = range(5)


@lru_cache(maxsize=2)  # every phase of a build asks
def strategy(program: Program) -> str:
    """Return the name of the strategy that fits: by what kinds of nodes there are.

    Elementwise ones, with reductions of rows or without, then all others of one space;
    loops that carry state, and small results of several shapes, are held in registers.
    Raises KernelError for what none takes.
    """
    others = beyond(program)
    rows = all(isinstance(node, Reduce) and node.of_rows for node in others)
    counts = any(isinstance(node, Arange | Reshape) for node in program.nodes)
    if others and rows and not counts:
        return "rows"
    odd = next(filter(_is_odd, everywhere(program.nodes)), None)
    if all(map(walks, others)):
        fits = is_nothing(program) or (
            one_space(program) and updates_in_place(nest_of(program))
        )
        if fits or odd is not None or not _are_small(program):
            return "loops" if others else "pointwise"
    elif odd is not None:
        raise KernelError(
            f"{program.name}: no schedule has a {type(odd).__name__.lower()} of shape {odd.shape} beside a loop yet; compute it "
            "in a kernel of its own."
        )
    return "scan"


def _is_odd(node: Node) -> bool:
    """Say whether a node is a view, or a reduction of other axes than the last."""
    return isinstance(node, View | Gather) or (
        isinstance(node, Reduce) and not node.of_rows
    )


def _are_small(program: Program) -> bool:
    """Say whether all outputs fit in registers."""
    shapes = {stored(output).shape for output in program.outputs}
    from steelyard_kernels.schedule.scan.registers import MOST_ELEMENTS

    return max(map(prod, shapes)) <= MOST_ELEMENTS


def is_nothing(program: Program) -> bool:
    """Say whether a program has no element to compute."""
    return all(0 in output.value.shape for output in program.outputs)


def rank(
    program: Program, device: Device, *, aligned: bool = True
) -> list[tuple[Schedule, Prediction]]:
    """Return every candidate with its prediction, the best predicted first."""
    if is_nothing(program):
        return [(Cuts(()), Prediction(()))]
    ranked = _model(program, device).rank(program, device, aligned=aligned)
    return sorted(ranked, key=lambda row: row[1].total)  # stable: ties keep order


def candidates(
    program: Program, device: Device, *, aligned: bool = True
) -> tuple[Schedule, ...]:
    """Return every legal schedule worth trying, in order."""
    if is_nothing(program):
        return (Cuts(()),)
    found: tuple[Schedule, ...] = _model(program, device).candidates(
        program, device, aligned=aligned
    )
    return found


def heuristic(program: Program, device: Device, *, aligned: bool = True) -> Schedule:
    """Return the candidate that the model predicts to be fastest."""
    if is_nothing(program):
        return Cuts(())
    best: Schedule = _model(program, device).heuristic(program, device, aligned=aligned)
    return best


def lower(
    program: Program, schedule: Schedule, device: Device, *, aligned: bool = True
) -> Lowered:
    """Return the loop-level kernel of a program under a schedule."""
    kind = _kind(device)
    from steelyard_kernels.nest import lower as nest

    if is_nothing(program):
        return nest.nothing(program, WARP if kind == "cuda" else 0)
    fits = strategy(program)
    check_updates(program, fits, kind)
    if type(schedule).__name__ != _class(fits, kind):
        raise KernelError(
            f"{program.name}: got the schedule {schedule.label}, a "
            f"{type(schedule).__name__}, but this program needs a {_class(fits, kind)}; "
            "leave the schedule out, or take one of its candidates."
        )
    if isinstance(schedule, Cuts):
        if schedule.multiplies_tiles and isinstance(device, Gpu):
            return nest.lower_product(program, schedule, device, aligned=aligned)
        return nest.lower(program, schedule, kind, aligned=aligned)
    lowered: Lowered = _module((fits, kind), _LOWERING).lower(
        program, schedule, aligned=aligned
    )
    return lowered


def _class(fits: str, kind: str) -> str:
    parts = _PARTS.get((fits, kind))
    return parts[_CLASS] if parts else "Schedule"


def estimated_registers(program: Program, schedule: Schedule) -> int:
    """Return how many registers a GPU's thread is estimated to need."""
    if isinstance(schedule, Cuts):
        from steelyard_kernels.schedule import search

        return search.estimated_registers(program, schedule)
    model = _module(_place(type(schedule).__name__), _MODEL)
    found: int = model.estimate_registers(program, schedule)
    return found


def to_json(schedule: Schedule) -> list[Any]:
    """Return a schedule's class and knobs as JSON has them."""
    return [type(schedule).__name__, asdict(schedule)]


def from_json(facts: list[Any]) -> Schedule:
    """Read what `to_json` wrote; raises KeyError, TypeError or ValueError for others."""
    name, knobs = facts
    if name == "Schedule":
        return cuts_from_json(knobs)
    module = _module(_place(name), _KNOBS)
    schedule: Schedule = getattr(module, name)(**knobs)
    return schedule


def _place(name: str) -> tuple[str, str]:
    """Return the strategy and kind of target whose knobs are a class; raises KeyError."""
    return {parts[_CLASS]: place for place, parts in _PARTS.items()}[name]


def _kind(device: Device) -> str:
    return "cuda" if isinstance(device, Gpu) else "cpu"


def _model(program: Program, device: Device) -> Any:
    fits, kind = strategy(program), _kind(device)
    check_updates(program, fits, kind)
    if (fits, kind) not in _PARTS:
        return import_module("steelyard_kernels.schedule.search")
    return _module((fits, kind), _MODEL)


def _module(place: tuple[str, str], part: int) -> Any:
    parts = _PARTS[place]
    return import_module(f"steelyard_kernels.schedule.{parts[_FOLDER]}.{parts[part]}")


def explain(
    program: Program, device: Device, *, aligned: bool = True, top: int = 10
) -> str:
    """Return a table of the best predicted schedules and their terms, in us."""
    ranked = rank(program, device, aligned=aligned)
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
