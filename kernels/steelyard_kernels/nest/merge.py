"""Merging neighbouring axes that every array treats alike, and numbering what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import Merge, Program
from steelyard_kernels.expression.indices import Index, Part, axis, total
from steelyard_kernels.nest.axes import NAMES, Nest, Stored, Value

MOST_AXES: Final = 8 * len(NAMES)
"""Axes before they are merged: each layer of attention asks for twice as many."""


class Axes(Struct, frozen=True):
    """What was found of a program's axes, by their numbers.

    The first `shared` are the outputs'; `before` has the axes that are opened before
    one, for each that is reduced for each index of others.
    """

    extents: Sequence[int]
    shared: int
    before: Mapping[int, AbstractSet[int]]


def merged(
    program: Program, axes: Axes, values: Sequence[Value], outputs: Sequence[Stored]
) -> Nest:
    """Return the nest of values over axes: these in order, and merged."""
    every = range(axes.shared, len(axes.extents))
    order = [*_ordered(axes), *every]
    groups = [value.over for value in values if value.over]
    groups += [(value.runs,) for value in values if value.runs is not None]
    placed = [v for v in values if v.source is not None or isinstance(v.node, Merge)]
    offsets = [value.offset for value in placed]
    offsets += [output.offset for output in outputs]
    fixed = _fixed(values)
    kept: list[int] = []
    extents: list[int] = []
    for inner in order:
        outer, extent = kept[-1] if kept else inner, axes.extents[inner]
        if (
            kept
            and not {outer, inner} & fixed
            and (outer < axes.shared) == (inner < axes.shared)
            and (outer in axes.before) == (inner in axes.before)
            and all((outer in over) == (inner in over) for over in groups)
            and all(o.step(outer) == (o.step(inner) or 0) * extent for o in offsets)
        ):
            extents[-1] *= extent
            kept[-1] = inner
        else:
            kept.append(inner)
            extents.append(extent)
    if len(kept) > len(NAMES):
        raise too_many(program, str(len(kept)))
    return _numbered(program, axes, (values, outputs), kept, extents)


SEVERAL: Final = (
    "a call, or the kernel's build without a schedule, makes several launches of it: "
    "take these, or make kernels of its parts"
)
"""What to do with a program that one kernel cannot compute."""


def too_many(program: Program, count: str) -> Unsupported:
    """Return the error for a program that one nest would walk along too many axes."""
    return Unsupported(
        f"{program.name}: one kernel would walk {count} axes, and has {len(NAMES)} at "
        f"most; {SEVERAL}."
    )


def _ordered(axes: Axes) -> list[int]:
    """Put the outputs' axes in order: each behind those that are opened before it."""
    rest = [k for k in range(axes.shared) if axes.extents[k] != 1]
    found: list[int] = []
    while rest:
        free = [k for k in rest if not axes.before.get(k, set()) & set(rest)]
        found.append(free[0])
        rest.remove(free[0])
    return found


def _fixed(values: Iterable[Value]) -> set[int]:
    """Return the axes that guards and parts of indices name."""
    found: set[int] = set()
    for value in values:
        for index, _ in value.guards:
            found |= index.axes
        for term, _ in value.offset.terms:
            if isinstance(term, Part):
                found |= term.index.axes
    return found


def _numbered(
    program: Program,
    axes: Axes,
    found: tuple[Sequence[Value], Sequence[Stored]],
    kept: list[int],
    extents: list[int],
) -> Nest:
    """Return the nest over the axes that are left, numbered from 0 on.

    One element has an axis of the outputs too, and so has one row that is reduced: all
    values vary with it, so that what is done once a row is done in its loop.
    """
    values, outputs = found
    shared = [k for k in kept if k < axes.shared]
    first = shared[:1] + [k for k in shared if axes.before.get(k) == set()]
    lonely = not shared or any(k in axes.before for k in first)
    numbers = {old: new + lonely for new, old in enumerate(kept)}
    made: dict[int, Value] = {}
    same = kept == list(range(len(axes.extents))) and not lonely
    if same and all(v.number == place for place, v in enumerate(values)):  # no views
        made = {value.number: value for value in values}  # nothing changes
    for value in values if not made else ():
        args = {key: made[arg.number] for key, arg in value.args.items()}
        offset = _renumbered(value.offset, numbers)
        along = frozenset([numbers[k] for k in value.axes if k in numbers])
        if lonely and (value.source is not None or any(a.axes for a in args.values())):
            offset += axis(0)
            along |= {0}
        made[value.number] = Value(
            len(made),
            value.node,
            args,
            along,
            tuple([numbers[k] for k in value.over if k in numbers]),
            value.source,
            offset,
            tuple([(_renumbered(i, numbers), n) for i, n in value.guards]),
            value.step,
            None if value.runs is None else numbers[value.runs],
        )
    return Nest(
        program,
        (*((1,) * lonely), *extents),
        len(shared) + lonely,
        frozenset(
            [
                numbers[k]
                for k in shared
                if k in axes.before and (lonely or axes.before[k])
            ]
        ),
        tuple(made.values()),
        tuple(
            Stored(
                made[output.value.number],
                _renumbered(output.offset, numbers) + (axis(0) if lonely else 0),
            )
            for output in outputs
        ),
    )


def _renumbered(index: Index, numbers: Mapping[int, int]) -> Index:
    """Return an index over other axes; those without a number are parts of others."""
    terms: list[tuple[int | Part, int]] = []
    for term, step in index.terms:
        if isinstance(term, Part):
            inner = _renumbered(term.index, numbers)
            terms.append((Part(inner, term.divisor, term.modulus), step))
        elif term in numbers:
            terms.append((numbers[term], step))
    return total(index.constant, terms)
