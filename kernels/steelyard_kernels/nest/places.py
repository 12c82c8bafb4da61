"""Axes: which of them each value of a program varies with, found from its outputs down.

Every output is stored along axes of its own space, and each value is asked for at an
index of these for each of its dimensions: elementwise operations pass theirs on, views
put their own for it, a reduction adds an axis for each that it reduces. What is asked
for at other indices is another value, so that an array may be read in several orders.
A reduction takes the axis along which its operand is asked for anyway, unless that had
to be walked outside of itself. Neighbouring axes that every array treats alike become
one.

Views are no values: they are read where their elements lie. An array in memory, or one
of 0, 1, 2, ..., is read at its offset; guards say which of these places there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.expr import (
    Along,
    Broadcast,
    Dot,
    Gather,
    Handed,
    Merge,
    Node,
    Program,
    Reduce,
    Reshape,
    Segments,
    Shape,
    View,
)
from steelyard_kernels.expression.graph import broadcast_shape
from steelyard_kernels.expression.indices import Index, axis, offset_in, reshaped
from steelyard_kernels.nest.axes import (
    ELEMENTWISE,
    NOWHERE,
    Nest,
    Place,
    Stored,
    aligned,
    behind,
    beyond,
    source,
    space,
    stored,
)
from steelyard_kernels.nest.merge import MOST_AXES, SEVERAL, Axes, merged, too_many
from steelyard_kernels.nest.uses import (
    Use,
    ValueMaker,
    kept_of,
    known,
    place_of_outputs,
    places_behind,
    read_along,
    read_of,
    users_first,
    varies,
    walked_by,
)

# Asked of each node: see `axes`.
_ALIKE = (*ELEMENTWISE, Broadcast, Handed)
_TAKEN = (Gather, View, Reshape)
_WALKED = (Reduce, Dot, *_TAKEN, Along, Handed, Merge, Segments)


@lru_cache(maxsize=16)  # builds choose a schedule, then lower; plans join launches
def nest_of(program: Program) -> Nest:
    """Return the nest of a program that has elements; raises Unsupported for others."""
    for node in beyond(program):
        if not walks(node):
            what = type(node).__name__.lower()
            raise Unsupported(
                f"{program.name}: this schedule walks axes, which a {what} has not; leave "
                "the schedule out, or take one of the program's candidates."
            )
    full = space(program)
    if full is None or 0 in full:
        shapes = {stored(output).shape for output in program.outputs}
        shown = " and ".join(map(str, sorted(shapes)))
        raise Unsupported(
            f"{program.name}: outputs have shapes {shown}, one kernel gives those that "
            f"broadcast to one, with elements; {SEVERAL}."
        )
    return _Asked(program, full).nest()


def walks(node: Node) -> bool:
    """Say whether a node that is not elementwise reads its operand along axes."""
    return isinstance(node, _WALKED)


class _Asked:
    """Asks each node for the places that its users need it at."""

    def __init__(self, program: Program, full: Shape) -> None:
        self.program = program
        self.full = full
        self.extents = list(full)
        self.every = place_of_outputs(program, full)
        self.uses: dict[int, list[Use]] = {}
        self.lines: dict[int, list[Use]] = {}  # what elements of Along are taken of
        self.before: dict[int, set[int]] = {}  # the axes that are opened before one

    def nest(self) -> Nest:
        """Ask from the last node to the first, then make values in their order."""
        shapes = aligned(self.program)
        wanted = [
            self._ask(node, behind(self.every, self.full, shape)[: len(node.shape)])
            for node, shape in zip(
                map(stored, self.program.outputs), shapes, strict=True
            )
        ]
        for node in users_first(self.program):
            for use in self.uses.get(node.number, ()):
                if isinstance(node, Along):
                    use.runs = self._runs(use, node)
                    runs = use.runs is not None
                    use.args = (
                        self._ask(node.arg, use.place)
                        if runs
                        else self._line(use, node),
                    )
                    continue
                if isinstance(node, Merge):
                    use.runs = self._merges(use, node)
                places = self._read(use, use.place)
                pairs = zip(read_of(node), places, strict=False)
                use.args = tuple([self._ask(arg, place) for arg, place in pairs])
        self._open_behind_lines()
        every = [
            use
            for node in self.program.nodes
            for found in (self.lines, self.uses)
            for use in found.get(node.number, ())
        ]
        maker = ValueMaker(self.program.name, self.extents)
        values = [maker.value(number, use) for number, use in enumerate(every)]
        outputs = [
            Stored(known(use), offset_in(use.node.shape, use.place)) for use in wanted
        ]
        axes = Axes(self.extents, len(self.full), self.before)
        # Views are those that they show.
        return merged(self.program, axes, tuple(dict.fromkeys(values)), outputs)

    def _ask(self, node: Node, place: Place) -> Use:
        uses = self.uses.setdefault(node.number, [])
        for use in uses:
            if use.place == place:
                return use
        uses.append(Use(node, place))
        return uses[-1]

    def _read(self, use: Use, at: Place) -> tuple[Place, ...]:
        """Return where the operands of a node are read, for one place of it."""
        node = use.node
        if isinstance(node, _ALIKE):
            return tuple([behind(at, node.shape, n.shape) for n in read_of(node)])
        if source(node) is not None:
            return ()
        if isinstance(node, View):
            return (tuple([each.at(at, self.extents) for each in node.index]),)
        if isinstance(node, Gather):
            return *self._beside(node, at), at
        if isinstance(node, Segments):
            return self._segments(use, node, at)
        if isinstance(node, Merge):
            return ((*at[:-2], NOWHERE),)
        if isinstance(node, Reshape):
            return (reshaped(node.shape, node.arg.shape, at, self.extents),)
        if isinstance(node, Reduce):
            return (self._along(use, node.arg, kept_of(node, at)),)
        if isinstance(node, Dot):
            left = self._along(use, node.a, (*at[:-1], None))
            return left, (left[-1], at[-1])
        return ()

    def _beside(self, node: Gather, at: Place) -> tuple[Place, Place]:
        """Return where the array has the first elements that may be taken, and next ones."""
        found = [each.at(at, self.extents) for each in node.index]
        following = list(found)
        following[node.place] += min(1, node.arg.shape[node.place] - 1)
        return tuple(found), tuple(following)

    def _segments(self, use: Use, node: Segments, at: Place) -> tuple[Place, ...]:
        """Return where sums read what they add up, along an axis of their own, and ends."""
        *before, start = at[: node.axis + 1]
        walked = self._new(node.arg.shape[node.axis])
        use.over = tuple(walked.axes)
        self.before.setdefault(use.over[0], set()).update(varies(at))
        ends = ((*before, start), (*before, start + 1))
        return (*before, walked, *at[node.axis + 1 :]), *ends

    def _along(self, use: Use, arg: Node, kept: tuple[Index | None, ...]) -> Place:
        """Return where a reduction reads its operand: along axes there are, or new ones.

        A line is read from its beginning.
        """
        outer = varies(use.place)
        found = self._seen(arg, kept, outer, forth=isinstance(use.node, Along))
        if found is None:
            found = tuple(
                [
                    each if each is not None else self._new(extent)
                    for each, extent in zip(kept, arg.shape, strict=True)
                ]
            )
        gone = [each for each, old in zip(found, kept, strict=True) if old is None]
        use.over = tuple([next(iter(each.axes)) for each in gone if each.axes])
        for reduced in use.over:
            self.before.setdefault(reduced, set()).update(outer)
        return found

    def _runs(self, use: Use, node: Along) -> int | None:
        """Return the axis along which a total runs, where it is asked for in that order.

        The walk must begin at a line's end or before, inside of all other axes.
        """
        along = walked_by(node, use.place)
        outer = varies((*use.place[: node.axis], *use.place[node.axis + 1 :]))
        if along is None or not self._is_inside(along, outer):
            return None
        self.before.setdefault(along, set()).update(outer)
        return along

    def _merges(self, use: Use, node: Merge) -> int | None:
        """Return the axis along which a thread goes on where it was; None: it searches."""
        *others, last = use.place
        outer, axes = varies(tuple(others)), last.axes
        along = next(iter(axes)) if last.terms and last == axis(*axes) else None
        if along is None or not self._is_inside(along, outer):
            return None
        self.before.setdefault(along, set()).update(outer)
        return along if self.extents[along] == node.shape[-1] else None

    def _is_inside(self, along: int, outer: frozenset[int]) -> bool:
        """Say whether a walk along an axis is inside of all of others."""
        first = len(self.full)  # of the axes that are reduced
        later = any(k >= max(along, first) for k in outer)
        return not (
            along in outer or later or any(self._opened(k, {along}) for k in outer)
        )

    def _shared(self, use: Use, node: Along) -> int | None:
        """Return the axis that a line is read along, if it can be walked along it first."""
        along = read_along(node, use.place, self.extents)
        if along is None:
            return None
        outer = varies((*use.place[: node.axis], *use.place[node.axis + 1 :]))
        alone = (
            outer or along >= len(self.full) or prod(self.full) == self.extents[along]
        )
        return along if alone and self._is_inside(along, outer) else None

    def _line(self, use: Use, node: Along) -> Use:
        """Return the line that an element is taken of, at one place of the other axes."""
        at = (*use.place[: node.axis], NOWHERE, *use.place[node.axis + 1 :])
        every = self.lines.setdefault(node.number, [])
        for line in every:
            if line.place == at:
                return line
        line = Use(node, at)
        every.append(line)
        shared = None if node.op == "order" else self._shared(use, node)
        if shared is None and not node.reverse and node.op != "order":
            kept = (*at[: node.axis], None, *at[node.axis + 1 :])
            place = self._along(line, node.arg, kept)
        else:
            extent = node.shape[node.axis]
            walked = self._new(extent) if shared is None else axis(shared)
            line.over = tuple(walked.axes)
            self.before.setdefault(line.over[0], set()).update(varies(at))
            along = walked * -1 + (extent - 1) if node.reverse else walked
            place = (*at[: node.axis], along, *at[node.axis + 1 :])
        line.args = (self._ask(node.arg, place),)
        return line

    def _open_behind_lines(self) -> None:
        """Have the outputs' axes opened behind those of the lines that are read along them."""
        for node in self.program.nodes:
            for use in self.uses.get(node.number, ()):
                under = use
                while isinstance(under.node, _TAKEN) and under.args:
                    under = under.args[0]
                if not isinstance(under.node, Along) or under.runs is not None:
                    continue
                outer = varies(under.args[0].place)
                for inner in varies(use.place) - outer:
                    shared = inner < len(self.full)
                    if shared and not any(self._opened(k, {inner}) for k in outer):
                        self.before.setdefault(inner, set()).update(outer)

    def _new(self, extent: int) -> Index:
        if len(self.extents) == MOST_AXES:
            raise too_many(self.program, f"more than {MOST_AXES}")
        self.extents.append(extent)
        return axis(len(self.extents) - 1)

    def _seen(
        self,
        arg: Node,
        kept: tuple[Index | None, ...],
        outer: frozenset[int],
        *,
        forth: bool,
    ) -> Place | None:
        """Return a place that an operand, or what it is made of, is asked for at.

        That of the outputs will do for others: they may ask later. So does one that
        another reduction walks.
        """
        for place in self._places(arg):
            walked = (x for x, old in zip(place, kept, strict=True) if old is None)
            turned = any(x.terms and x not in map(axis, x.axes) for x in walked)
            if not (forth and turned) and self._fits(place, kept, arg.shape, outer):
                return place
        return None

    def _places(self, arg: Node) -> Iterator[Place]:
        """Yield the places at which a reduction may find its operand."""
        yield from places_behind([arg], self.uses)
        if broadcast_shape(arg.shape, self.full) == self.full:
            yield behind(self.every, self.full, arg.shape)
        reduced = [n.arg for n in self.program.nodes if isinstance(n, Reduce)]
        alike = [node for node in reduced if node.shape == arg.shape]
        yield from places_behind(alike, self.uses)

    def _fits(
        self,
        place: Place,
        kept: tuple[Index | None, ...],
        shape: Shape,
        outer: frozenset[int],
    ) -> bool:
        """Say whether a reduction of a shape may walk along the axes of a place."""
        over: set[int] = set()
        for each, old, extent in zip(place, kept, shape, strict=True):
            if old is not None and each != old:
                return False
            if old is None:
                term = next(iter(each.axes), -1)
                whole = each.has_all(term, extent) and self.extents[term] == extent
                if term in over or not whole:
                    return False  # several axes or steps, a diagonal, or a slice
                over.add(term)
        walked = any(term < len(self.full) for term in over)
        if not outer and walked and prod(self.full[:-1]) > 1:
            return False  # it is walked before the outputs' loops are opened
        first = min(over, default=0)  # reduced axes are opened in their order
        late = len(self.full) <= first < max(outer, default=0)
        return not (late or over & outer or any(self._opened(k, over) for k in outer))

    def _opened(self, outer: int, over: set[int]) -> bool:
        """Say whether an axis must be opened behind one of some axes."""
        pending, looked = [outer], set[int]()
        while pending:
            here = pending.pop()
            if here in over:
                return True
            looked.add(here)
            pending += self.before.get(here, set()) - looked
        return False
