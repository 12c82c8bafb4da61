"""Copies of a product's factors, as the product reads them: each emitted as a value is.

So whatever a factor is made of is computed once for each copy: it is widened, scaled,
padded, or read through a window, and never lies in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from steelyard_kernels.expression.expr import Input
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer, Operand
from steelyard_kernels.nest.axes import Value
from steelyard_kernels.nest.emitter import Emitter
from steelyard_kernels.schedule.blocking import Blocking, Panel

# Rows of a copy that an array is asked for ahead: of 1024 x 1024 float32 and 512 x 512
# float64, 4 made products 0.96 of the time of none, 1 and 8 about 0.98.
AHEAD: Final = 4
Span: TypeAlias = tuple[Operand, Operand]  # the first index, and how many


class Copies:
    """Emits copies of parts of factors."""

    def __init__(self, blocking: Blocking, emitter: Emitter) -> None:
        self.blocking, self.product = blocking, blocking.product
        self.emitter, self.b = emitter, emitter.b

    def emit(
        self, panel: Panel, buffer: Buffer, own: Span, unit: int, depth: Span
    ) -> None:
        """Emit the copy of some rows or columns, up to a multiple of `unit`, and depth.

        What lies beyond the last of them is any finite number.
        """
        if panel.turned:
            self._turned(panel, buffer, own, unit, depth)
        elif panel.by_rows:
            self._by_rows(panel, buffer, own, unit, depth)
        elif panel.across:
            self._plain(panel, buffer, depth, own, unit)
        else:
            self._plain(panel, buffer, own, depth, unit)

    def _loops(self, panel: Panel) -> tuple[int, int]:
        """Return the loops of a factor's own axes and of the depth."""
        own, deep = map(self.emitter.loops_of, (panel.axes, self.product.depth))
        return own[0], deep[0]

    def _up(self, count: Operand, unit: int) -> Operand:
        """Emit a number rounded up to a multiple."""
        b = self.b
        more = b.at("add", count, unit - 1)
        return b.at("multiply", b.at("div", more, unit), unit)

    def _inside(self, place: Operand, extent: int, unit: int) -> Operand:
        """Emit a place that surely exists, instead of those behind the end."""
        return self.b.at("minimum", place, extent - 1) if extent % unit else place

    def _mask(
        self, place: Operand, extent: int, lanes: int, *, exact: bool
    ) -> Operand | None:
        """Emit which lanes from a place on exist; None: all."""
        if exact or lanes == 1:
            return None
        return self.b.mask_below(self.b.at("subtract", extent, place), lanes)

    def _plain(
        self, panel: Panel, buffer: Buffer, far: Span, near: Span, unit: int
    ) -> None:
        """Emit a copy whose vectors are read as they are stored."""
        b, emitter, lanes = self.b, self.emitter, panel.lanes
        own, deep = self._loops(panel)
        own_extent, depth = self.product.extent(panel.axes), self.product.extents[3]
        outer, inner = (deep, own) if panel.across else (own, deep)
        rows, row = far[1], near[1]
        if panel.across:
            extent, exact = own_extent, own_extent % unit == 0 and unit % lanes == 0
            row = self._up(row, unit) if own_extent % unit else row
        else:
            extent, exact = depth, self._whole_depth(lanes)
            rows = self._up(rows, unit) if own_extent % unit else rows
        values = self._made(panel)
        with b.loop(0, rows, 1) as down, emitter.aside():
            place = b.at("add", far[0], down.var)
            if not panel.across:
                place = self._inside(place, own_extent, unit)
            begin = b.at("multiply", down.var, panel.pitch)
            with emitter.opened(outer, [place], 1):
                rest = emitter.ready(values)
                with b.loop(0, row, lanes) as over:
                    place = b.at("add", near[0], over.var)
                    if panel.across and lanes == 1:
                        place = self._inside(place, own_extent, unit)
                    mask = self._mask(place, extent, lanes, exact=exact)
                    with emitter.opened(inner, [place], lanes, [mask]):
                        (found,) = self._emitted(rest, panel)
                        self._ask_ahead(panel, down=not panel.across)
                        b.store(buffer, b.at("add", begin, over.var), found)

    def _whole_depth(self, lanes: int) -> bool:
        """Say whether vectors divide every step's depth."""
        whole = self.product.extents[3] % lanes == 0
        return whole and (self.blocking.steps == 1 or self.blocking.depth % lanes == 0)

    def _turned(
        self, panel: Panel, buffer: Buffer, own: Span, unit: int, depth: Span
    ) -> None:
        """Emit a copy of vectors along the depth, square by square transposed."""
        b, emitter, lanes = self.b, self.emitter, panel.lanes
        loop, deep = self._loops(panel)
        extent, exact = self.product.extent(panel.axes), self._whole_depth(lanes)
        count = self._up(own[1], unit) if extent % unit else own[1]
        values = self._made(panel)
        with b.loop(0, count, lanes) as over, emitter.aside():
            first = b.at("add", own[0], over.var)
            places = [
                self._inside(b.at("add", first, lane), extent, unit)
                for lane in range(lanes)
            ]
            with emitter.opened(loop, places, 1):
                rest = emitter.ready(values)
                with b.loop(0, depth[1], lanes) as down:
                    place = b.at("add", depth[0], down.var)
                    mask = self._mask(
                        place, self.product.extents[3], lanes, exact=exact
                    )
                    begin = b.at("multiply", down.var, panel.pitch)
                    begin = b.at("add", begin, over.var)
                    with emitter.opened(deep, [place], lanes, [mask]):
                        rows = transposed(b, self._emitted(rest, panel))
                        for k, row in enumerate(rows):
                            b.store(buffer, b.at("add", begin, k * panel.pitch), row)

    def _by_rows(
        self, panel: Panel, buffer: Buffer, own: Span, unit: int, depth: Span
    ) -> None:
        """Emit a copy of vectors that end where the last axis does.

        What a row's last vector has beyond it, the next row's first one overwrites.
        """
        b, emitter, lanes = self.b, self.emitter, panel.lanes
        loop, deep = self._loops(panel)
        length = self.product.nest.extents[panel.axes[-1]]
        end = b.at("add", own[0], own[1])
        first = b.at("div", own[0], length)
        last = b.at("div", b.at("add", end, length - 1), length)
        values = self._made(panel)
        with b.loop(0, depth[1], 1) as down, emitter.aside():
            begin = b.at("multiply", down.var, panel.pitch)
            with emitter.opened(deep, [b.at("add", depth[0], down.var)], 1):
                rest = emitter.ready(values)
                with b.loop(first, last, 1) as over, emitter.aside():
                    start = b.at("multiply", over.var, length)
                    low = b.let("maximum", b.number(0), b.at("subtract", own[0], start))
                    high = b.at("minimum", b.at("subtract", end, start), length)
                    outer = self._positions(over.var, panel.axes[:-1])
                    with b.loop(low, high, lanes) as along:
                        place = b.at("add", start, along.var)
                        mask = self._mask(along.var, length, lanes, exact=False)
                        with emitter.opened(loop, [place], lanes, [mask]):
                            emitter.know_positions(loop, [*outer, along.var])
                            (found,) = self._emitted(rest, panel)
                            to = b.at("subtract", place, own[0])
                            b.store(buffer, b.at("add", begin, to), found)
            if self.product.extent(panel.axes) % unit:
                nothing = const(0, self.product.dtype, lanes)
                with b.loop(own[1], self._up(own[1], unit), lanes) as over:
                    b.store(buffer, b.at("add", begin, over.var), nothing)

    def _positions(self, row: Operand, axes: Sequence[int]) -> list[Operand]:
        """Emit the indices along some axes, taken as one."""
        found: list[Operand] = []
        for axis in reversed(axes):
            extent = self.product.nest.extents[axis]
            outermost = axis == axes[0]
            found.insert(0, row if outermost else self.b.at("rem", row, extent))
            row = row if outermost else self.b.at("div", row, extent)
        return found

    def _ask_ahead(self, panel: Panel, *, down: bool) -> None:
        """Ask for what arrays have some rows of the copy later; `down` its own axes."""
        b, emitter = self.b, self.emitter
        axes = panel.axes if down else self.product.depth
        for value in self._made(panel) if panel.lanes > 1 else ():
            step = self.product.walks(value.offset, axes)
            if isinstance(value.source, Input) and step and not value.step:
                (place,) = emitter.every()
                start = b.at("add", emitter.offset(value.offset, place), AHEAD * step)
                b.prefetch(emitter.args.inputs[value.source.index], start)

    def _made(self, panel: Panel) -> tuple[Value, ...]:
        """Return what a factor is made of."""
        return self.product.made_of[panel.axes == self.product.columns]

    def _emitted(self, values: Sequence[Value], panel: Panel) -> list[Operand]:
        """Emit a factor at all places, as it is multiplied."""
        emitter, b = self.emitter, self.b
        every = emitter.every()
        emitter.emit(values, every)
        return [
            b.cast(emitter.at(panel.value, at, panel.lanes), self.product.dtype)
            for at in every
        ]


def transposed(b: Builder, rows: Sequence[Operand]) -> list[Operand]:
    """Emit the columns of a square of vectors.

    First of as many rows as a part of 16 bytes has lanes: these change places within
    parts, in one instruction, so that each vector has one column a part. Then whole parts
    change places. One group of rows follows the other: few vectors are live at once.
    """
    part = min(len(rows), 16 // rows[0].type.dtype.bytes)
    groups = [
        _within_parts(b, rows[first : first + part])
        for first in range(0, len(rows), part)
    ]
    columns = [_of_parts(b, vectors) for vectors in zip(*groups, strict=True)]
    return [column for each in zip(*columns, strict=True) for column in each]


def _within_parts(b: Builder, rows: Sequence[Operand]) -> list[Operand]:
    """Emit vectors that have in each part a column of some rows."""
    found: list[Operand] = list(rows)
    count = 1
    while count < len(rows):
        found = [
            b.let(f"interleave_{half}", found[k], found[k + count], b.number(count))
            for first in range(0, len(rows), 2 * count)
            for k in range(first, first + count)
            for half in ("low", "high")
        ]
        count *= 2
    return found


def _of_parts(b: Builder, vectors: Sequence[Operand]) -> list[Operand]:
    """Emit the columns of which each of some vectors has a part."""
    found: list[Operand] = list(vectors)
    for _ in range(len(vectors).bit_length() - 1):
        pairs = list(zip(found[::2], found[1::2], strict=True))
        found = [b.let(f"parts_{k}", *pair) for k in ("even", "odd") for pair in pairs]
    return found
