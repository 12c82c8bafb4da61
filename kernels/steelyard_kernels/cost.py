"""What a program must move and compute, counted from its expression alone."""

from __future__ import annotations

from math import prod

from steelyard_kernels.expr import (
    OPERATIONS,
    REDUCTIONS,
    Apply,
    Input,
    Program,
    Reduce,
)


def bytes_moved(program: Program) -> int:
    """Return the bytes of every input that is read, once, and every output, once.

    A broadcast input counts its own size, not the size it is broadcast to.
    """
    read = sum(
        prod(node.shape) * node.dtype.bytes
        for node in program.nodes
        if isinstance(node, Input)
    )
    written = sum(
        prod(output.value.shape) * output.value.dtype.bytes
        for output in program.outputs
    )
    return read + written


def operations(program: Program) -> int:
    """Return the arithmetic operations; casts, copies and selections count nothing.

    exp, log and square roots count one each; mean and max count one an element,
    var three (subtract, multiply, add).
    """
    total = 0
    for node in program.nodes:
        if isinstance(node, Apply):
            total += prod(node.shape) * OPERATIONS[node.op].cost
        elif isinstance(node, Reduce):
            total += prod(node.arg.shape) * REDUCTIONS[node.op]
    return total
