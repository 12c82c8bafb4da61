"""Loops walked back: a loop over the iterations in reverse order.

The loop that goes forward stacks the carries that the walk back needs, as each
iteration began; the one that goes backward takes them row by row, makes what the
iteration computed of them again (noise from its counter, too), and carries the
cotangents of the carries and the sums of those of what all iterations read. Rows that
each iteration read of an array have their cotangents stacked.

Where the carries would take more memory than there may be, the forward loop runs in
segments and stacks only what each began with. The backward loop then runs a segment
forward again, with its carries stacked, before it goes back through it: of T
iterations about 2 sqrt(T) rows are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Loop, Node
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rows import row
from steelyard_kernels.grad.iteration import Body, Iteration, mirrored, zeros
from steelyard_kernels.grad.reverse import Passed, Reverse, again


def passed(
    reverse: Reverse,
    loop: Loop,
    bars: Sequence[Node | None],
    asked: AbstractSet[int],
) -> Passed:
    """Return the cotangents of what a loop reads, given those of its results.

    `asked` are the nodes that are to have one. Raises KernelError for a loop with a
    condition or a runtime length, whose iterations are not known.
    """
    length = _length(reverse.graph, loop)
    if length == 0:
        pairs = zip(loop.inits, bars, strict=False)
        return Passed([(init, bar) for init, bar in pairs if bar is not None], ())
    iteration = Body(reverse, loop, bars, asked).passed()
    backward = _Backward(reverse.graph, loop, length, iteration)
    if not backward.iteration.roots:
        return Passed([], ())
    inits = [
        zeros(reverse.graph, loop.inits[place], bars[place])
        for place in backward.iteration.places
    ]
    segment = backward.segment(reverse.memory)
    if segment == length:
        return backward.stored(inits)
    return backward.recomputed(inits, segment)


def _length(graph: Graph, loop: Loop) -> int:
    if loop.condition is not None:
        raise KernelError(
            f"{graph.kernel}: a gradient through a while_loop, expected a scan, whose "
            "iterations are known; scan over the most there can be, and keep the carry "
            "with where once it is done."
        )
    if not isinstance(loop.length, int):
        raise KernelError(
            f"{graph.kernel}: a gradient through a loop whose length is given at "
            "launch, expected an int; pass the length when the kernel is traced."
        )
    return loop.length


class _Backward(Struct, frozen=True):
    """A loop to go back through, and what each of its iterations passes back.

    Cotangents are handed on as one list: those of the live carries, then the sums.
    """

    graph: Graph
    loop: Loop
    length: int
    iteration: Iteration

    def segment(self, memory: int) -> int:
        """Return how many iterations' carries are stacked at once.

        Segments are equal where rows are stacked, for nothing joins arrays: all are
        kept where the iterations have no divisor. Else the last may be shorter.
        """
        chains = max(1, self.graph.chains)
        kept = chains * _bytes(self.iteration.needed)
        begun = chains * _bytes(self.loop.carries)
        if self.length * kept <= memory:
            return self.length
        whole = bool(self.loop.stacked or self.iteration.rows)
        return _segment(self.length, kept, begun, whole=whole)

    def stored(self, bars: Sequence[Node]) -> Passed:
        """Go back through all iterations by their stacked carries."""
        loop, needed = self.loop, self.iteration.needed
        results = self.graph.loop(
            loop.length,
            loop.inits,
            (loop.carries, loop.index),
            loop.nexts,
            [*loop.stacked, *needed],
            unroll=loop.unroll,
            reverse=loop.reverse,
        )
        count = len(loop.nexts) + len(loop.stacked)
        ends, rows = self._back(self.length, None, results[count:], self._begin(bars))
        return Passed(self._cotangents(ends, rows), results[:count] if needed else ())

    def recomputed(self, bars: Sequence[Node], segment: int) -> Passed:
        """Go back segment by segment, each run forward again before."""
        graph, needed = self.graph, self.iteration.needed
        count, rest = divmod(self.length, segment)
        ends, stacked, begins = self._segments(count, segment)
        given: Sequence[Node] = self._begin(bars)
        if rest:
            first = graph.constant(count * segment, dtypes.int64)
            ends, kept = self._forward(rest, first, ends, needed)
            given, _ = self._back(rest, first, kept, given)
        carries, index = graph.parameters(given)
        number = mirrored(graph, count, index)
        place = index if self.loop.reverse else number
        begun = [row(graph, each, place) for each in begins]
        first = self._first(number, segment)
        _, kept = self._forward(segment, first, begun, needed)
        nexts, rows = self._back(segment, first, kept, carries)
        results = graph.loop(
            count,
            given,
            (carries, index),
            nexts,
            rows,
            reverse=not self.loop.reverse,
        )
        whole = [self._joined(node) for node in results[len(given) :]]
        found = self._cotangents(results[: len(given)], whole)
        return Passed(found, [*ends, *stacked])

    def _begin(self, bars: Sequence[Node]) -> list[Node]:
        """Return what is handed to the last iteration; halves are summed in float32."""
        graph = self.graph
        sums = (zeros(graph, node) for node, _ in self.iteration.sums)
        wide = (
            graph.cast(node, dtypes.float32) if node.dtype in dtypes.HALVES else node
            for node in sums
        )
        return [*bars, *wide]

    def _cotangents(
        self, ends: Sequence[Node], rows: Sequence[Node]
    ) -> list[tuple[Node, Node]]:
        """Return what each operand of the loop is passed, of a backward loop's results."""
        each = self.iteration
        reads = [
            *(self.loop.inits[place] for place in each.places),
            *(node for node, _ in each.sums),
            *(array for array, _ in each.rows),
        ]
        return [
            (node, self.graph.cast(cotangent, node.dtype))
            for node, cotangent in zip(reads, [*ends, *rows], strict=True)
        ]

    def _first(self, number: Node, segment: int) -> Node:
        """Return the first iteration of a segment."""
        extent = self.graph.constant(segment, number.dtype)
        return self.graph.apply("multiply", number, extent)

    def _joined(self, node: Node) -> Node:
        """Return the rows of all segments as those of the iterations."""
        return self.graph.reshape(node, (self.length, *node.shape[2:]))

    def _segments(
        self, count: int, segment: int
    ) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node]]:
        """Run whole segments forward; return carries, rows, and what each began with."""
        graph, loop = self.graph, self.loop
        carries, index = graph.parameters(loop.inits)
        first = self._first(index, segment)
        ends, rows = self._forward(segment, first, carries, loop.stacked)
        results = graph.loop(
            count,
            loop.inits,
            (carries, index),
            ends,
            [*rows, *carries],
            reverse=loop.reverse,
        )
        stacked = results[len(carries) :]
        joined = [self._joined(node) for node in stacked[: len(rows)]]
        return results[: len(carries)], joined, stacked[len(rows) :]

    def _forward(
        self,
        length: int,
        first: Node,
        inits: Sequence[Node],
        stacked: Sequence[Node],
    ) -> tuple[Sequence[Node], Sequence[Node]]:
        """Run iterations forward from the one numbered `first`; return carries and rows."""
        graph, loop = self.graph, self.loop
        carries, index = graph.parameters(inits)
        made: dict[int, Node] = {
            old.number: new for old, new in zip(loop.carries, carries, strict=True)
        }
        made[loop.index.number] = graph.apply("add", first, index)
        nodes = again(graph, [*loop.nexts, *stacked], made, {})
        results = graph.loop(
            length,
            inits,
            (carries, index),
            nodes[: len(carries)],
            nodes[len(carries) :],
            unroll=loop.unroll,
            reverse=loop.reverse,
        )
        return results[: len(carries)], results[len(carries) :]

    def _back(
        self,
        length: int,
        first: Node | None,
        kept: Sequence[Node],
        given: Sequence[Node],
    ) -> tuple[Sequence[Node], Sequence[Node]]:
        """Go back through iterations; return the cotangents handed on, and the rows.

        `kept` are the needed carries, stacked as the iterations began.
        """
        graph, loop, each = self.graph, self.loop, self.iteration
        carries, index = graph.parameters(given)
        number = mirrored(graph, length, index)
        place = index if loop.reverse else number
        made: dict[int, Node] = {
            carry.number: row(graph, rows, place)
            for carry, rows in zip(each.needed, kept, strict=True)
        }
        made |= {e.number: n for e, n in zip(each.after, carries, strict=False)}
        made[loop.index.number] = (
            number if first is None else graph.apply("add", first, number)
        )
        terms = again(graph, each.roots, made, each.replaced)
        results = graph.loop(
            length,
            given,
            (carries, index),
            self._handed(carries, terms),
            terms[len(carries) :],
            unroll=loop.unroll,
            reverse=not loop.reverse,
        )
        return results[: len(carries)], results[len(carries) :]

    def _handed(self, carries: Sequence[Node], terms: Sequence[Node]) -> list[Node]:
        """Return what an iteration hands on: new cotangents, and sums grown by terms."""
        count, graph = len(self.iteration.before), self.graph
        totals = carries[count:]
        return [
            *terms[:count],
            *(
                graph.apply("add", total, graph.cast(term, total.dtype))
                for total, term in zip(totals, terms[count : len(carries)], strict=True)
            ),
        ]


def _segment(length: int, kept: int, begun: int, *, whole: bool) -> int:
    """Return the iterations of a segment for the least memory.

    `kept` are the bytes of an iteration, `begun` those of a segment's begin; `whole`:
    it divides the length. Of as many segments the longest take the least, so that only
    the quotients of the length need be looked at.
    """
    small = range(1, math.isqrt(length) + 1)
    sizes = (
        (length // each * begun + (each + length % each) * kept, each)
        for each in {*small, *(length // count for count in small)} - {length}
        if not (whole and length % each)
    )
    best: tuple[int, int] = min([(length * kept, length), *sizes])
    return best[1]


def _bytes(nodes: Sequence[Node]) -> int:
    return sum(math.prod(node.shape) * node.dtype.bytes for node in nodes)
