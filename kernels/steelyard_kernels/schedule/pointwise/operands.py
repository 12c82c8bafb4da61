"""What a pointwise program computes with: elements of inputs, and of 0, 1, 2, ...

An operand is an input, an Arange, or one of them reshaped: in each the element at an
offset follows from the offset alone. An Arange's is the offset.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from steelyard_kernels.expression.expr import (
    Apply,
    Arange,
    Broadcast,
    Cast,
    Constant,
    Input,
    Node,
    Output,
    Program,
    Reshape,
    Scalar,
    Shape,
    operands,
    reachable,
)
from steelyard_kernels.expression.graph import broadcast_shape

if TYPE_CHECKING:
    from steelyard_kernels.ir.builder import Builder
    from steelyard_kernels.ir.loops import Operand
    from steelyard_kernels.schedule.parameters import Arguments


def source(node: Node) -> Input | Arange | None:
    """Return what an operand's elements are of; None for what is computed."""
    while isinstance(node, Reshape):
        node = node.arg
    return node if isinstance(node, Input | Arange) else None


def stored(output: Output) -> Node:
    """Return the value whose elements, in their order, an output has."""
    node = output.value
    while isinstance(node, Reshape) and source(node) is None:
        node = node.arg
    return node


def full_shape(program: Program) -> Shape | None:
    """Return what all outputs broadcast to; None where that is nothing."""
    full: Shape | None = ()
    for output in program.outputs:
        full = None if full is None else broadcast_shape(full, stored(output).shape)
    return full


def smaller(program: Program) -> list[int]:
    """Return the places of the outputs with fewer elements than all broadcast to.

    They are stored again with every row that has them: always the same values.
    """
    most = prod(full_shape(program) or ())
    return [
        place
        for place, output in enumerate(program.outputs)
        if prod(stored(output).shape) < most
    ]


def one_pass(program: Program) -> bool:
    """Say whether all outputs broadcast to one shape, whose pass gives each its elements.

    A smaller one may update nothing: what it overwrites is read again with every row.
    """
    full = full_shape(program)
    if full is None or 0 in full:
        return full is not None and all(0 in o.value.shape for o in program.outputs)
    return all(program.outputs[k].updates is None for k in smaller(program))


def others(program: Program) -> tuple[Node, ...]:
    """Return the nodes that are neither operands nor computed element by element.

    What only the outputs' shapes differ by is neither, and none of them.
    """
    values = [stored(output) for output in program.outputs]
    return tuple(
        node
        for node in reachable(values)
        if not isinstance(node, Scalar | Constant | Apply | Cast | Broadcast)
        and source(node) is None
    )


def read(program: Program) -> tuple[Node, ...]:
    """Return the operands that are computed with or are outputs, in order."""
    used = {stored(output).number for output in program.outputs}
    for node in program.nodes:
        if source(node) is None:
            used.update(arg.number for arg in operands(node))
    return tuple(node for node in program.nodes if node.number in used and source(node))


def fetched(  # noqa: PLR0917 - as a load
    b: Builder,
    args: Arguments,
    node: Node,
    at: Operand | int,
    lanes: int,
    mask: Operand | None = None,
    alignment: int = 0,
) -> Operand:
    """Emit an operand's elements from an offset on."""
    of = source(node)
    if isinstance(of, Input):
        return b.load(args.inputs[of.index], at, lanes, mask, alignment)
    first = b.cast(b.number(at), node.dtype)
    if lanes == 1:
        return first
    return b.let("add", b.splat(first, lanes), b.iota(lanes, node.dtype))
