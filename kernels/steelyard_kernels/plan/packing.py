"""Constant factors of products, stored as the product reads them.

On a CPU they lie in panels of as many columns as registers multiply at a time; on a GPU,
of 8 bits, along the depth, as tensor cores take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import prod
from typing import Final

from msgspec import Struct

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.indices import Index, axis, part
from steelyard_kernels.monoids import accumulator
from steelyard_kernels.plan.products import factors_of
from steelyard_kernels.schedule.contraction import keeps
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.recipes.blocks import shapes

MOST_WIDENED: Final = 32
"""Rows for which each block widens a panel of fewer bytes: of 64 it took 1.17 of the time
of widening copies, of 32 0.9."""


class Panel(Struct, frozen=True):
    """A product's constant factor, of which two axes are the depth and the columns.

    It is stored `wide` columns at a time, with zeros behind the last; 0: transposed.
    """

    factor: Node
    depth: int
    columns: int
    wide: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that the factor is."""
        return self.factor.shape[self.depth], self.factor.shape[self.columns]

    def stored(self, graph: Graph, factor: Node) -> Node:
        """Return the factor, made again or narrower, as it is stored."""
        (k, n), wide = self.shape, self.wide
        places = (axis(2) + axis(0) * wide, axis(1)) if wide else (axis(0), axis(1))
        shape = (-(-n // wide), k, wide) if wide else (n, k)
        index = [Index()] * len(factor.shape)
        index[self.columns], index[self.depth] = places
        return graph.view(factor, tuple(index), shape)

    def read(self, graph: Graph, stored: Node) -> Node:
        """Return the factor of what is stored."""
        shape, k, n = self.factor.shape, axis(self.depth), axis(self.columns)
        wide = self.wide
        index = (
            (part(n, wide, 0, shape), k, part(n, 1, wide, shape)) if wide else (n, k)
        )
        found = graph.view(stored, index, shape)
        return graph.cast(found, self.factor.dtype)


def panel_of(
    node: Node, made: Mapping[int, AbstractSet[expr.Input]], device: Machine | Gpu
) -> Panel | None:
    """Return how a product's constant factor is stored; None of others."""
    for factor in factors_of(node):
        axes = (0, 1) if isinstance(node, expr.Dot) else _axes(node, factor)
        if (
            not made.get(factor.number)
            or not axes
            or factor is getattr(node, "a", None)
        ):
            continue
        wide = _wide(node, Panel(factor, *axes, 0), device)
        return None if wide is None else Panel(factor, *axes, wide)
    return None


def _axes(node: Node, factor: Node) -> tuple[int, int] | None:
    """Return the depth and columns of a factor that varies with no other axes."""
    assert isinstance(node, expr.Reduce)
    last, inner = len(factor.shape) - 1, factor
    while isinstance(inner, expr.Cast):
        inner = inner.arg
    if not isinstance(inner, expr.View) or node.axes != (last,) or last < 2:
        return None
    varies = frozenset[int]().union(*[each.axes for each in inner.index])
    return (last, last - 1) if varies == {last, last - 1} else None


def _wide(node: Node, panel: Panel, device: Machine | Gpu) -> int | None:
    """Return how wide panels are; None where the factor is better read as it lies."""
    k, n = panel.shape
    found, shape = panel.factor, panel.factor.shape
    index = tuple(map(axis, range(len(shape))))
    while isinstance(found, expr.View) or is_widened(found, device):
        if isinstance(found, expr.View):
            index = tuple(each.at(index, shape) for each in found.index)
        (found,) = expr.operands(found)
    if isinstance(device, Gpu):
        along = panel.depth in index[-1].axes if index else True
        return None if along or not device.cores or found.dtype.bytes > 1 else 0
    dtype = (
        accumulator(node.dtype) if isinstance(node, expr.Dot) else panel.factor.dtype
    )
    rows = prod(node.shape) // max(n, 1)
    narrow = found.dtype.bytes < dtype.bytes
    if rows < 2 or not k * n or (narrow and rows > MOST_WIDENED):
        return None
    lanes = device.lanes(dtype.bytes)
    return lanes * shapes((rows, n), device, lanes)[0][1]


def is_widened(node: Node, device: Machine | Gpu) -> bool:
    """Say whether a product reads what a cast is of as quickly as the cast."""
    if not isinstance(node, expr.Cast) or not keeps(node):
        return False
    dtype = node.arg.dtype
    return isinstance(device, Gpu) or dtype.kind == "int" or dtype.bytes > 1
