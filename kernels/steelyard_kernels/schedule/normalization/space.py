"""What rows a program has, and whether its reductions and outputs line up with them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import Node, Program, Reduce, Shape, operands
from steelyard_kernels.expression.graph import broadcast_shape


def row_space(program: Program) -> Shape:
    """Return the shape that all reduced values broadcast to; its last axis is theirs."""
    full: Shape = (1,)
    extents = set()
    for node in program.nodes:
        if isinstance(node, Reduce):
            extents.add(node.arg.shape[-1])
            joined = broadcast_shape(full, node.arg.shape)
            full = joined if joined is not None else full
    if len(extents) > 1:
        shown = " and ".join(str(extent) for extent in sorted(extents))
        raise Unsupported(
            f"{program.name}: reduces rows of {shown} elements, a normalization kernel "
            "has rows of one length; make one kernel for each."
        )
    for output in program.outputs:
        shape = output.value.shape
        joined = broadcast_shape(full, shape) if len(shape) >= len(full) else full
        full = joined if joined is not None and joined[-1] == full[-1] else full
    return full


def check_outputs(program: Program, full: Shape) -> None:
    """Raise Unsupported for outputs that are neither rows nor one value a row.

    One of the rows' shape without their axis must have lost it: what has it from an
    input is aligned at the last axis, with columns.
    """
    allowed = {full, (*full[:-1], 1)}
    lost = squeezed(program.nodes)
    for output in program.outputs:
        value = output.value
        by_row = value.shape == full[:-1] and (
            value.number in lost or prod(value.shape) == 1
        )
        if value.shape not in allowed and not by_row:
            raise Unsupported(
                f"{program.name}: output {output.name} has shape {output.value.shape}, "
                f"expected rows like {full} or one value a row like {full[:-1]}; "
                "broadcast_to that shape, or return it from another kernel."
            )


def squeezed(nodes: Iterable[Node]) -> set[int]:
    """Return the numbers of values that lost the reduced axis (keepdims=False)."""
    found: set[int] = set()
    for node in nodes:
        lost = isinstance(node, Reduce) and not node.keepdims
        if node.shape and (lost or any(arg.number in found for arg in operands(node))):
            found.add(node.number)
    return found


def check_squeezed(program: Program) -> None:
    """Raise Unsupported where values without the reduced axis meet others with it."""
    lost = squeezed(program.nodes)
    for node in program.nodes:
        if isinstance(node, Reduce):
            if node.arg.number in lost:
                raise Unsupported(
                    f"{program.name}: {node.op} reduces what another reduction left; "
                    "only the last axis of the inputs can be reduced, make two kernels."
                )
            continue
        for arg in operands(node) if node.number in lost else ():
            if arg.number not in lost and prod(arg.shape) != 1:
                raise Unsupported(
                    f"{program.name}: a reduction without keepdims, now of shape "
                    f"{node.shape}, meets an array of shape {arg.shape}; reduce with "
                    "keepdims=True."
                )
