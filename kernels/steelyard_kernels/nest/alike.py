"""Sums that walk one axis together, though the nest has an axis for each of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import combinations

from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.nest.axes import Nest, Stored, Value


def together(nest: Nest, sums: list[Value]) -> Nest:
    """Return the nest with some sums over one axis each walked along one common axis.

    What both are made of, at places that are then the same, is one value.
    """
    names = list(range(len(nest.extents)))
    first, *rest = sums
    for each in rest:
        names[each.over[0]] = first.over[0]
    pairs = list(combinations([v for v in nest.values if v.over], 2))
    while True:
        before = list(names)
        for a, b in pairs:
            same = {names[k] for k in a.axes} == {names[k] for k in b.axes}
            if a.node is b.node and same:
                for mine, other in zip(a.over, b.over, strict=True):
                    names[other] = names[mine]
        if names == before:
            return _renamed(nest, names)


def _renamed(nest: Nest, names: list[int]) -> Nest:
    """Return a nest with other names of axes, and one value for those that are equal."""
    kept = sorted(set(names))
    names = [kept.index(name) for name in names]
    extents = tuple([nest.extents[name] for name in kept])
    places = [axis(name) for name in names]

    def moved(index: Index) -> Index:
        return index.at(places, extents)

    made: dict[int, Value] = {}
    known: dict[Hashable, Value] = {}
    for value in nest.values:
        new = replace(
            value,
            number=len(known),
            args={n: made[arg.number] for n, arg in value.args.items()},
            axes=frozenset([names[k] for k in value.axes]),
            over=tuple([names[k] for k in value.over]),
            offset=moved(value.offset),
            guards=tuple([(moved(index), end) for index, end in value.guards]),
            runs=None if value.runs is None else names[value.runs],
        )
        args = tuple([arg.number for arg in new.args.values()])
        key = new.node.number, args, new.axes, new.over, new.offset, new.guards
        made[value.number] = known.setdefault((*key, new.step, new.runs), new)
    outputs = [Stored(made[o.value.number], moved(o.offset)) for o in nest.outputs]
    values = tuple(known.values())
    return replace(nest, extents=extents, values=values, outputs=tuple(outputs))
