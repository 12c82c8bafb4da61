"""The rows of a program, and what each of its values depends on."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from steelyard_kernels.expression.expr import Input, Program, Reduce, operands
from steelyard_kernels.schedule.normalization.space import (
    check_outputs,
    check_squeezed,
    row_space,
)
from steelyard_kernels.schedule.space import Space, collapse, strides_of

# What a value depends on.
UNIFORM: Final = 0
ROW: Final = 1
COLUMN: Final = 2
ELEMENT: Final = 3


@dataclass(frozen=True, slots=True)
class Outline:
    """A program over rows of `extent` elements.

    `space` is the collapsed outer space, with the strides of every input that is
    read, by `inputs`. `places` and `depths` are by node number.
    """

    program: Program
    extent: int
    rows: int
    space: Space
    inputs: dict[int, int]
    places: dict[int, int]
    depths: dict[int, int]


def outline(program: Program) -> Outline:
    """Return a program's rows, and what its values depend on.

    Raises Unsupported for programs whose rows do not line up.
    """
    full = row_space(program)
    check_outputs(program, full)
    check_squeezed(program)
    read = [node for node in program.nodes if isinstance(node, Input)]
    inputs = {node.number: place for place, node in enumerate(read)}
    strides = [strides_of(node.shape, full)[:-1] for node in read]
    space = collapse(full[:-1], strides)
    places, depths = _classify(program, full[-1], inputs, space)
    rows = prod(full[:-1])
    return Outline(program, full[-1], rows, space, inputs, places, depths)


def _classify(
    program: Program, extent: int, inputs: dict[int, int], space: Space
) -> tuple[dict[int, int], dict[int, int]]:
    """Return what each node depends on, and how many reductions it waits for."""
    places: dict[int, int] = {}
    depths: dict[int, int] = {}
    for node in program.nodes:
        below = operands(node)
        depth = max((depths[arg.number] for arg in below), default=0)
        if isinstance(node, Input):
            walks = any(space.strides[inputs[node.number]])
            along = bool(node.shape) and node.shape[-1] == extent != 1
            place = (ROW if walks else UNIFORM) | (COLUMN if along else UNIFORM)
        elif isinstance(node, Reduce):
            place, depth = ROW, depth + 1
        else:
            place = UNIFORM
            for arg in below:
                place |= places[arg.number]
        places[node.number] = place
        depths[node.number] = depth
    return places, depths
