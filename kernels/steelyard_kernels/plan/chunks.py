"""Long reductions and running totals in chunks, which cores or blocks walk side by side.

A reduction to one value is that of its chunks' results. Of a running total the totals of
all chunks are one launch, the running total of these another, and in the last one each
chunk goes on from what is before it. The order is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import (
    Along,
    Dot,
    Handed,
    Node,
    Program,
    Reduce,
)
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import axis
from steelyard_kernels.expression.lines import along, handed
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.expression.structure import users
from steelyard_kernels.monoids import ALONG, MONOIDS, accumulator
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.schedule.cluster import words
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.strategies import FEW, LONG, is_long

COUNTS: Final = range(4096, 127, -1)
"""Of a reduction's chunks, the most first: some for each core or multiprocessor."""
LEAST: Final = 1 << 14
"""Elements of a running total's chunk: fewer are walked before two more launches begin.

As many a GPU's block holds in registers: 16.8 M float32 took 0.9 of the time of twice as
many.
"""
SERIAL: Final = 1 << 12
"""Elements that one thread of a GPU walks in the time of a launch or two."""
HANDED: Final = 1 << 13
"""Those of a chunk whose total is handed over, which another one waits for."""
MOST_HANDED: Final = 4096
"""Chunks whose totals blocks hand over: each takes in all before it, 8 bytes of each."""
PARTS: Final = 256
"""Parts of an axis, or elements of one, about."""
EACH: Final = 4
"""Chunks for each core, so that they end together."""


def in_chunks(program: Program, device: Machine | Gpu, *, hands: bool) -> Program:
    """Return a program with its long reductions, and its outputs that run, in chunks.

    Itself where there are none, or lines enough for all cores. Where a device `hands` totals
    over, the chunks of an output that runs along its last axis do, if there are not too
    many: they overwrite memory, which nothing else may read.
    """
    hands = hands and isinstance(device, Gpu) and device.hands
    found = _in_chunks(program, device, hands=hands)
    memory = [node.memory for node in found.nodes if isinstance(node, Handed)]
    shown = {stored(output).number for output in found.outputs}
    read = users(found.nodes)
    if any(read[m.number] > 1 or m.number in shown for m in memory):
        return _in_chunks(program, device, hands=False)
    return found


def _in_chunks(program: Program, device: Machine | Gpu, *, hands: bool) -> Program:
    on_gpu = isinstance(device, Gpu)
    most = device.multiprocessors if isinstance(device, Gpu) else device.threads
    read = users(program.nodes)
    least = SERIAL if on_gpu else LONG
    long = [node for node in program.nodes if is_long(node, least)]
    sizes, over = {node.number: _size(node) for node in long}, dict[int, int]()
    for node in map(stored, program.outputs):
        if isinstance(node, Along) and ALONG[node.op].total:
            lines = prod(node.shape) // node.shape[node.axis]
            if not on_gpu and MONOIDS[ALONG[node.op].total].runs_in_order(node.dtype):
                continue
            if not read.get(node.number) and 1 <= lines < most:
                extent, size = node.shape[node.axis], accumulator(node.dtype).bytes
                held = chunk_of(extent, extent, LEAST * 4 // size) if on_gpu else 0
                sizes[node.number] = held or chunk_of(extent, EACH * most // lines)
                if hands and node.axis == len(node.shape) - 1:
                    count = MOST_HANDED // lines
                    over[node.number] = chunk_of(extent, count, HANDED * 4 // size)

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        size = sizes.get(node.number)
        if size and isinstance(node, Reduce):
            chunks = prod(node.arg.shape) // size, size
            arg = graph.reshape(made[node.arg.number], chunks)
            return _nested(graph, node, arg, [(0,), (1,)])
        if size and isinstance(node, Along):
            arg = made[node.arg.number]
            if handed_size := over.get(node.number):
                spare = list(over).index(node.number)  # so that no two are one memory
                return _handed_over(graph, node, arg, handed_size, spare)
            return _running(graph, node, arg, size, backwards=on_gpu)
        return None

    return rewritten(program, rule) if any(sizes.values()) else program


def by_axes(
    program: Program, *, neighbours: bool = False, parts: bool = False
) -> Program:
    """Return a program whose reductions over several axes are made axis by axis.

    Itself where there are none. Those over `neighbours` may stay one reduction. In `parts`
    are walked a single axis of few results, and the common axis of two matrices.

    Chunks of all elements are as many as divide these, which is another number at other
    extents; of axes they are as many. Nor have axes that lie apart, or that arrays are
    broadcast along, one walk that threads share.
    """

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        if parts and isinstance(node, Dot) and len(node.shape) == 2:
            return _multiplied(graph, node, made[node.a.number], made[node.b.number])
        if not isinstance(node, Reduce):
            return None
        axes: list[tuple[int, ...]] = []
        for place in node.axes:
            if neighbours and axes and axes[-1][-1] == place - 1:
                axes[-1] += (place,)
            elif node.arg.shape[place] > 1:
                axes.append((place,))
        arg = made[node.arg.number]
        if len(axes) == 1 and parts:
            ((place,),) = axes
            shape, extent = arg.shape, arg.shape[place]
            size = chunk_of(extent, PARTS, PARTS) if prod(node.shape) < FEW else 0
            if size:
                split = *shape[:place], extent // size, size, *shape[place + 1 :]
                arg = graph.reshape(arg, split)
                axes = [(place,), (place + 1,)]
        return _nested(graph, node, arg, axes) if len(axes) > 1 else None

    return rewritten(program, rule)


def _multiplied(graph: Graph, node: Dot, a: Node, b: Node) -> Node | None:
    """Return a product of matrices as the sum of those of parts of their rows and columns."""
    (rows, extent), columns = a.shape, b.shape[1]
    size = chunk_of(extent, PARTS, PARTS)
    if not size:
        return None
    shape = (extent // size, rows, columns, size)
    part, row, column, inner = map(axis, range(4))
    a = graph.reshape(a, (rows, *shape[::3]))
    b = graph.reshape(b, (*shape[::3], columns))
    factors = (
        graph.view(a, (row, part, inner), shape),
        graph.view(b, (part, inner, column), shape),
    )
    wide = [graph.cast(factor, accumulator(node.dtype)) for factor in factors]
    sums = graph.reduce("sum", graph.apply("multiply", *wide), (3,), keepdims=False)
    return graph.cast(graph.reduce("sum", sums, (0,), keepdims=False), node.dtype)


def _nested(
    graph: Graph, node: Reduce, arg: Node, axes: Sequence[tuple[int, ...]]
) -> Node:
    """Return a reduction as those over some axes each of its operand, the last ones first."""
    row, wide = MONOIDS[node.op], graph.cast(arg, accumulator(node.dtype))
    every = [place for together in axes for place in together]
    count = graph.constant(prod([arg.shape[place] for place in every]), wide.dtype)

    def over(value: Node, op: str) -> Node:
        for together in reversed(axes):
            value = graph.reduce(op, value, together, keepdims=True)
        return value

    if row.moments:
        mean = graph.apply("divide", over(wide, "sum"), count)
        wide = graph.apply("subtract", wide, mean)
        wide = graph.apply("multiply", wide, wide)
    shared = row.mean or row.moments
    total = over(wide, "sum" if shared else node.op)
    total = graph.apply("divide", total, count) if shared else total
    return graph.reshape(graph.cast(total, node.dtype), node.shape)


def chunk_of(extent: int, count: int, least: int = LEAST) -> int:
    """Return the elements of a chunk, of which a line has about so many; 0: it has none.

    All chunks are alike, so that an element's chunk is a step of an axis.
    """
    wanted = max(least, -(-extent // count))
    fits = [
        n for n in range(wanted, min(2 * wanted, extent // 2 + 1)) if not extent % n
    ]
    return min(fits, default=0)


def _size(node: Node) -> int:
    """Return the elements of a reduction's chunk, the same for all devices; 0: it has none."""
    size = prod(node.arg.shape) if isinstance(node, Reduce) else 0
    return next((size // count for count in COUNTS if size % count == 0), 0)


def _handed_over(graph: Graph, node: Along, arg: Node, size: int, spare: int) -> Node:
    """Return a running total in one launch, whose blocks hand their totals over.

    Their memory has so many words to `spare`.
    """
    place, (*before, extent) = node.axis, node.shape
    count, row = extent // size, MONOIDS[ALONG[node.op].total]
    wide = accumulator(node.dtype)
    parts = graph.reshape(graph.cast(arg, wide), (*before, count, size))
    totals = graph.reduce(ALONG[node.op].total, parts, (place + 1,), keepdims=True)
    zero = graph.constant(0, dtypes.int64)
    memory = graph.broadcast(zero, (words(wide, prod(before) * count) + spare,))
    back = node.reverse
    # A block's own comes first: others' totals are on their way meanwhile.
    own = along(graph, node.op, parts, place + 1, reverse=back)
    start = handed(graph, node.op, totals, memory, axis=place, reverse=back)
    found = graph.apply(row.combine, own, start)
    return graph.reshape(graph.cast(found, node.dtype), node.shape)


def _running(
    graph: Graph, node: Along, arg: Node, size: int, *, backwards: bool
) -> Node:
    """Return a running total as that of each chunk, behind that of the chunks' totals.

    The chunks' totals may be found `backwards`, the last one's first: what was read last is
    still in a cache when the last launch begins with it.
    """
    place, rank = node.axis, len(node.shape)
    before, behind = node.shape[:place], node.shape[place + 1 :]
    count = node.shape[place] // size
    row = MONOIDS[ALONG[node.op].total]
    wide = accumulator(node.dtype)
    parts = graph.reshape(graph.cast(arg, wide), (*before, count, size, *behind))
    index = [axis(k) for k in range(rank + 1)]
    index[place] = index[place] * -1 + (count - 1)

    def turned(value: Node) -> Node:
        return graph.view(value, tuple(index), value.shape) if backwards else value

    totals = turned(
        graph.reduce(ALONG[node.op].total, turned(parts), (place + 1,), keepdims=True)
    )
    every = along(graph, node.op, totals, place, reverse=node.reverse)
    before_it = list(map(axis, range(rank + 1)))
    before_it[place] += 1 if node.reverse else -1
    moved = graph.view(every, tuple(before_it), every.shape)
    line = (1,) * place + (count,) + (1,) * (rank - place)
    numbers = graph.reshape(graph.arange(count, dtypes.int32), line)
    first = graph.constant(count - 1 if node.reverse else 0, dtypes.int32)
    is_first = graph.apply("equal", numbers, first)
    nothing = graph.constant(row.neutral(wide), wide)
    start = graph.apply("where", is_first, nothing, moved)
    # The later one is what a launch begins with: what it reads is stored.
    own = along(graph, node.op, parts, place + 1, reverse=node.reverse)
    found = graph.apply(row.combine, start, own)
    return graph.reshape(graph.cast(found, node.dtype), node.shape)
