"""Lowering of passes over a block of rows: what every target does alike.

Each row of the block has its own accumulators and scalars; columns (a bias, a weight)
are loaded and widened once for all of them. A target says how a walk visits the
vectors of a row, and how what it carried becomes one number a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final, Generic, TypeAlias, TypeVar

from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.schedule.normalization.outline import ROW
from steelyard_kernels.schedule.normalization.passes import Pass, Sum, Walk
from steelyard_kernels.schedule.normalization.sums import (
    accumulate,
    cancelled,
    finish,
    lasting,
    neutral,
)
from steelyard_kernels.schedule.normalization.values import Row, RowValues, Spot
from steelyard_kernels.schedule.tile import Carried
from steelyard_kernels.schedule.values import Env, operand

# visit(k, env, carried, spot) uses one vector of the block's row k and returns what
# the row carries on.
Visit: TypeAlias = Callable[[int, Env, Carried, Spot], Carried]
Totals: TypeAlias = dict[int, dict[str, Operand]]
Values = TypeVar("Values", bound=RowValues)

MOMENTS: Final = ("mean", "var")  # what a second walk finds


class PassEmitter(ABC, Generic[Values]):
    """Emits a program cut into passes over one block of rows.

    `shifted`: moments are taken about the row's first element.
    """

    def __init__(self, values: Values, *, shifted: bool) -> None:
        self.values: Values = values
        self.b = values.b
        self.rows = values.rows
        self.args = values.args
        self.lanes = values.lanes
        self.shifted = shifted

    @abstractmethod
    def walk(
        self,
        walk: Walk,
        block: Sequence[Row],
        first: Carried,
        visit: Visit,
        *,
        final: bool = False,
    ) -> list[list[Carried]]:
        """Emit a walk over the block that carries `first` for every row.

        Returns what each row carries in the end, a tuple for each accumulator that it
        has of each. `final`: the block is not walked again.
        """

    @abstractmethod
    def totals(
        self, items: Sequence[Sum], parts: Sequence[Sequence[Carried]]
    ) -> Iterator[tuple[Operand, ...]]:
        """Emit, row by row and sum by sum, one number for each of its accumulators."""

    def passes(self, block: Sequence[Row]) -> None:
        """Emit all passes, and the outputs that have one value a row."""
        last = len(self.rows.passes) - 1
        for index, each in enumerate(self.rows.passes):
            self._pass(each, block, final=index == last)
            for row in block:
                self.values.scalars(row.scope, row.starts, ROW, index + 1)
        self._row_outputs(block)

    def _pass(self, each: Pass, block: Sequence[Row], *, final: bool) -> None:
        """Emit one walk over the block, then what its reductions come to."""
        b, lanes = self.b, self.lanes
        shifts = [
            self.values.shifts(each, row) if self.shifted else {} for row in block
        ]
        wide = [
            {number: b.splat(value, lanes) for number, value in row_shifts.items()}
            for row_shifts in shifts
        ]
        start = [neutral(item, lanes) for item in each.sums]

        def visit(k: int, env: Env, into: Carried, spot: Spot) -> Carried:
            row = block[k]
            out: list[Operand] = []
            for item, values in zip(each.sums, start, strict=True):
                mine = into[len(out) : len(out) + len(values)]
                shift = wide[k].get(item.arg.number)
                if item.kind != "moments":
                    shift = None
                out += accumulate(
                    b, item, env, mine, shift=shift, mask=spot.live or spot.mask
                )
            self._keep(each, env, row, spot)
            self._store(each, env, row, spot)
            return tuple(out)

        first = tuple(value for values in start for value in values)
        parts = self.walk(each.walk, block, first, visit, final=final)
        totals = self.totals(each.sums, parts)
        found = [self._finish(each, totals, row_shifts) for row_shifts in shifts]
        if each.again is not None:
            self._walk_again(each, each.again, block, found)
        for row, values in zip(block, found, strict=True):
            for node in each.reduces:
                value = values[node.arg.number][node.op]
                row.scope.scalars[node.number] = b.cast(value, node.dtype)

    def _keep(self, each: Pass, env: Env, row: Row, spot: Spot) -> None:
        """Emit the stores of what is kept, which has room for dead lanes."""
        b = self.b
        for node in each.walk.elements:
            if node.number in each.stores and node.number not in self.values.staged:
                buffer, begin = self.values.slot(node, row)
                at = b.at("add", spot.kept, begin)
                alignment = self.values.alignment(buffer)
                b.store(buffer, at, env[node.number], alignment=alignment)

    def _store(self, each: Pass, env: Env, row: Row, spot: Spot) -> None:
        """Emit the outputs of this pass."""
        for place in each.outputs:
            value = self.rows.program.outputs[place].value
            self.put(place, row, spot, operand(self.b, env, value, self.lanes))

    @abstractmethod
    def put(self, place: int, row: Row, spot: Spot, value: Operand) -> None:
        """Emit the store of one vector of an output."""

    def _finish(
        self,
        each: Pass,
        totals: Iterator[tuple[Operand, ...]],
        shifts: Mapping[int, Operand],
    ) -> Totals:
        """Emit what a row's sums come to, by argument and the reduction's name."""
        found: Totals = {}
        for item in each.sums:
            shift = shifts.get(item.arg.number)
            results = finish(self.b, item, next(totals), shift, self.rows.extent)
            found.setdefault(item.arg.number, {}).update(results)
        return found

    def _walk_again(
        self, each: Pass, walk: Walk, block: Sequence[Row], found: Sequence[Totals]
    ) -> None:
        """Emit a second walk for the variances, taken where a row cancelled."""
        b = self.b
        args = [item.arg for item in each.sums if item.kind == "moments"]
        items = [Sum("moments", arg, frozenset()) for arg in args]
        mine = [values[arg.number] for values in found for arg in args]
        lost = [cancelled(b, values, shifted=self.shifted) for values in mine]
        means = [values["mean"] for values in mine]
        with b.branch(reduce(lambda x, y: b.let("bitwise_or", x, y), lost)) as branch:
            branch.gives(*self.moments(walk, block, items, means))
            branch.otherwise()
            branch.gives(*(values[op] for values in mine for op in MOMENTS))
        results = iter(branch.results)
        for values in mine:
            values.update(zip(MOMENTS, results, strict=False))

    def moments(
        self,
        walk: Walk,
        block: Sequence[Row],
        items: Sequence[Sum],
        means: Sequence[Operand],
    ) -> list[Operand]:
        """Emit mean and variance by deviations from the mean, by row, then by item."""
        b, lanes = self.b, self.lanes
        spread = [b.splat(mean, lanes) for mean in means]

        def visit(k: int, env: Env, into: Carried, spot: Spot) -> Carried:
            out: list[Operand] = []
            pairs = zip(into[::2], into[1::2], strict=True)
            for place, (item, value) in enumerate(zip(items, pairs, strict=True)):
                mean = spread[k * len(items) + place]
                mask = spot.live or spot.mask
                out += accumulate(b, item, env, value, shift=mean, mask=mask)
            return tuple(out)

        start = tuple(value for item in items for value in neutral(item, lanes))
        totals = self.totals(items, self.walk(walk, block, start, visit))
        exact: list[Operand] = []
        extent = self.rows.extent
        for item, mean in zip([*items] * len(block), means, strict=True):
            found = finish(b, item, next(totals), mean, extent)
            both = found["mean"], lasting(b, found, extent)
            exact += [b.cast(value, mean.type.dtype) for value in both]
        return exact

    def _row_outputs(self, block: Sequence[Row]) -> None:
        """Emit the outputs that have one value a row."""
        wide = {place for each in self.rows.passes for place in each.outputs}
        for place, output in enumerate(self.rows.program.outputs):
            if place not in wide:
                for row in block:
                    self.put_row(place, row, row.scope.scalars[output.value.number])

    @abstractmethod
    def put_row(self, place: int, row: Row, value: Operand) -> None:
        """Emit the store of a row's one value of an output."""
