"""What whole lines take of a thread's memory or a block's, and of a core's time."""

from __future__ import annotations

from math import prod
from typing import Final

from steelyard_kernels.dtypes import DType, int32, int64
from steelyard_kernels.expression.expr import Along
from steelyard_kernels.nest.axes import Nest, Value

BLOCK: Final = 32
"""Elements in order that a CPU compares at a time with others."""
CHOSEN: Final = 56
"""Elements that are put in order at a time, beside the first ones, to choose these."""
FEWER: Final = 4
"""Times as many elements as that has a line of which some are chosen."""
SORT_NS: Final = 12.0
CHOOSE_NS: Final = 0.3
"""Of an element by one core: 65,536 float32 took 0.8 ms, the first 5 of 50,257 16 us."""
EXCHANGE_NS: Final = 35.0
SHARED_NS: Final = 0.15
MEET_NS: Final = 20.0
"""Of two elements by a thread that waits for them, by shared memory, and of a barrier: by
latencies and rates of Hopper's, not measured."""


def line_of(line: Value) -> tuple[Along, int]:
    """Return the node of a line, and how many elements it has."""
    node = line.node
    assert isinstance(node, Along)
    return node, node.shape[node.axis]


def wanted(nest: Nest, line: Value) -> int:
    """Return how many of a line's first elements are asked for."""
    _, extent = line_of(line)
    reads = [
        v for v in nest.values if v.source is line.node and line in v.args.values()
    ]
    ends = [extent if v.step else v.offset.bounds(nest.extents)[1] + 1 for v in reads]
    return min(extent, max(ends, default=extent))


def held(nest: Nest, line: Value) -> int:
    """Return how many elements of an order a thread of a CPU puts in order at a time."""
    return chosen(wanted(nest, line), line_of(line)[1])


def chosen(first: int, extent: int) -> int:
    """Return how many elements are put in order at a time to have the first of a line.

    All of them, or fewer, of which the first are kept again and again.
    """
    some = -(-(first + max(first, CHOSEN)) // BLOCK) * BLOCK
    return some if FEWER * some <= extent else extent


def kinds_of(node: Along) -> tuple[DType, ...]:
    """Return what each element of a line is kept as: of an order see `nest.sorts`."""
    if node.op != "order":
        return (node.dtype,)
    return (int64,) if node.arg.dtype is int32 else (int64, int64)


def elements(nest: Nest, line: Value, *, cpu: bool) -> int:
    """Return how many elements a line's memory has: a CPU sorts from half to half."""
    node, extent = line_of(line)
    if node.op != "order" or not cpu:
        return extent
    return 2 * -(-held(nest, line) // BLOCK) * BLOCK


def line_bytes(nest: Nest, *, cpu: bool) -> int:
    """Return the bytes of all lines that a thread has, or threads have together."""
    nodes = [(line, line_of(line)[0]) for line in nest.lines]
    return sum(
        elements(nest, line, cpu=cpu) * sum(kind.bytes for kind in kinds_of(node))
        for line, node in nodes
    )


def block_ns(nest: Nest, threads: int) -> float:
    """Return what a GPU's threads take to put lines in order together."""
    total = 0.0
    for line in nest.lines:
        node, extent = line_of(line)
        if node.op == "order":
            turns = (extent - 1).bit_length()
            each = -(-extent // (2 * threads)) * EXCHANGE_NS
            stage = max(each, extent / 2 * SHARED_NS) + MEET_NS
            total += turns * (turns + 1) / 2 * stage
    return total


def line_ns(nest: Nest) -> float:
    """Return what a core takes to put lines in order."""
    total = 0.0
    for line in nest.lines:
        node, extent = line_of(line)
        if node.op == "order":
            count = prod([nest.extents[axis] for axis in line.axes]) * extent
            rate = SORT_NS if held(nest, line) == extent else CHOOSE_NS
            total += count * rate * (1 if node.arg.dtype is int32 else 2)
    return total
