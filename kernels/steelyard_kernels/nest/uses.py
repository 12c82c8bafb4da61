"""Which nodes are read at which places, users first, and the values that these are."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

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
    operands,
)
from steelyard_kernels.expression.indices import Index, axis, offset_in
from steelyard_kernels.expression.structure import users
from steelyard_kernels.monoids import ALONG
from steelyard_kernels.nest.axes import (
    ELEMENTWISE,
    NOWHERE,
    Guard,
    Place,
    Source,
    Value,
    source,
    stored,
)

_LATE = (Reduce, Dot, Segments)
_FOLLOWED = (*ELEMENTWISE, Along)


def read_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node asks for: of what is taken two neighbours, and of starts.

    Of what is handed over only what a block comes to: memory for it has no place.
    """
    if isinstance(node, Gather):
        return node.arg, node.arg, node.which
    if isinstance(node, Segments):
        return node.arg, node.starts, node.starts
    return (node.arg,) if isinstance(node, Handed) else operands(node)


class Use(Struct, eq=False):
    """A node at one place: what it reads there, what it reduces, what it comes to."""

    node: Node
    place: Place
    args: tuple[Use, ...] = ()
    over: tuple[int, ...] = ()
    runs: int | None = None
    value: Value | None = None


def users_first(program: Program) -> list[Node]:
    """Return nodes in an order in which each stands behind its users.

    Reductions come as late as can be: they take axes that there are by then.
    """
    waits = users(program.nodes)
    ready = [_turn(node) for node in program.nodes if not waits.get(node.number)]
    ready.sort()
    found: list[Node] = []
    while ready:
        *_, node = ready.pop()
        found.append(node)
        for arg in operands(node):
            waits[arg.number] -= 1
            if not waits[arg.number]:
                insort(ready, _turn(arg))
    return found


def _turn(node: Node) -> tuple[bool, int, Node]:
    """Return a node behind what says when its turn is; those of no two are equal."""
    return not isinstance(node, _LATE), node.number, node


def places_behind(
    nodes: Iterable[Node], uses: Mapping[int, Iterable[Use]]
) -> Iterator[Place]:
    """Yield where nodes, and all of their shape that they are made of, are asked for."""
    pending, looked = list(nodes), set[int]()
    while pending:
        node = pending.pop()
        looked.add(node.number)
        for use in uses.get(node.number, ()):
            yield use.place
        if isinstance(node, ELEMENTWISE):
            below = [arg for arg in operands(node) if arg.shape == node.shape]
            pending += [arg for arg in below if arg.number not in looked]


def varies(place: Place) -> frozenset[int]:
    """Return the axes that a place varies with."""
    return frozenset[int]().union(*[index.axes for index in place])


def walked_by(node: Along, place: Place) -> int | None:
    """Return the axis that walks all of a total's line up to a place, from its beginning."""
    index, extent = place[node.axis], node.shape[node.axis]
    begins = index.constant >= extent - 1 if node.reverse else index.constant <= 0
    if not (ALONG[node.op].total and begins and len(index.terms) == 1):
        return None
    ((axis, step),) = index.terms
    return (
        axis if isinstance(axis, int) and step == (-1 if node.reverse else 1) else None
    )


def read_along(node: Along, place: Place, extents: Sequence[int]) -> int | None:
    """Return the axis that has all places of a line, one behind the other or backwards."""
    index = place[node.axis]
    if len(index.terms) != 1:
        return None
    ((along, step),) = index.terms
    if not isinstance(along, int) or extents[along] != node.shape[node.axis]:
        return None
    return along if abs(step) == 1 else None


def guards_of(place: Place, shape: Shape, extents: Sequence[int]) -> tuple[Guard, ...]:
    """Return which of the indices may lie outside of an array."""
    found = []
    for index, extent in zip(place, shape, strict=True):
        if index.terms or index.constant:
            low, high = index.bounds(extents)
            if low < 0 or high >= extent:
                found.append((index, extent))
    return tuple(found)


def place_of_outputs(program: Program, full: Shape) -> Place:
    """Return the outputs' elements: from the last on along axes where all totals run so."""
    found: dict[int, set[bool]] = {}
    pending, looked = [stored(output) for output in program.outputs], set[int]()
    while pending:
        node = pending.pop()
        if node.number in looked or not isinstance(node, _FOLLOWED):
            continue
        looked.add(node.number)
        pending += () if isinstance(node, Along) else operands(node)
        if isinstance(node, Along) and ALONG[node.op].total:
            aligned = node.axis + len(full) - len(node.shape)
            found.setdefault(aligned, set()).add(node.reverse)
    back = {each for each, reverse in found.items() if reverse == {True}}
    forth = [NOWHERE if n == 1 else axis(k) for k, n in enumerate(full)]
    return tuple(
        [at * -1 + (full[k] - 1) if k in back else at for k, at in enumerate(forth)]
    )


def kept_of(node: Reduce, at: Place) -> tuple[Index | None, ...]:
    """Return the place in the operand; None along the axes that are reduced."""
    rest = iter(at)
    found: list[Index | None] = []
    for k in range(len(node.arg.shape)):
        if k in node.axes:
            found.append(None)
            if node.keepdims:
                next(rest)
        else:
            found.append(next(rest))
    return tuple(found)


def known(use: Use) -> Value:
    """Return what a use came to, of which the value was made before."""
    assert use.value is not None
    return use.value


class ValueMaker:
    """Makes the values of uses over axes of known extents, for a kernel of a name."""

    def __init__(self, name: str, extents: Sequence[int]) -> None:
        self.name = name
        self.extents = extents

    def value(self, number: int, use: Use) -> Value:
        """Make the value of a use whose operands have theirs."""
        node, args = use.node, dict[int, Value]()
        if isinstance(node, ELEMENTWISE):  # as most are
            args = {arg.node.number: known(arg) for arg in use.args}
            axes = frozenset[int]().union(*[arg.axes for arg in args.values()])
            use.value = Value(number, node, args, axes)
            return use.value
        of = source(node)
        for arg in use.args:  # but a row's index; x @ x reads x at two places
            twice = arg.node.number in args and isinstance(node, Dot | Segments)
            args[-arg.node.number if twice else arg.node.number] = known(arg)
        if isinstance(node, Broadcast) or (isinstance(node, Reshape) and of is None):
            use.value = args[node.arg.number]
        elif of is not None:
            use.value = self._array(number, node, of, use.place)
        elif isinstance(node, Along) and not use.over:
            use.value = self._along(number, node, use)
        elif isinstance(node, Gather):
            use.value = self._gathered(number, use)
        elif isinstance(node, Merge):
            (array,) = args.values()
            if array.source is None:
                raise self._in_no_memory(node.arg)
            at = use.place[-2] * node.shape[-1] + use.place[-1]
            every = array.axes | varies(use.place)
            use.value = Value(number, node, args, every, offset=at, runs=use.runs)
        elif isinstance(node, View):
            (arg,) = use.args
            use.value = self._viewed(number, node, known(arg), arg.place)
        else:
            axes = frozenset[int]().union(*[arg.axes for arg in args.values()])
            own = varies(use.place) if isinstance(node, Handed) else axes
            use.value = Value(number, node, args, own.difference(use.over), use.over)
        return use.value

    def _along(self, number: int, node: Along, use: Use) -> Value:
        """Return a running total, or an element of a line."""
        taken, at = known(use.args[0]), use.place[node.axis]
        guards = guards_of((at,), (node.shape[node.axis],), self.extents)
        if use.runs is not None:
            args, axes = {node.arg.number: taken}, taken.axes | varies(use.place)
            return Value(number, node, args, axes, guards=guards, runs=use.runs)
        axes = taken.axes | varies((at, *[index for index, _ in guards]))
        return Value(number, node, {-node.number: taken}, axes, (), node, at, guards)

    def _array(self, count: int, node: Node, of: Source, place: Place) -> Value:
        guards = guards_of(place, node.shape, self.extents)
        offset = offset_in(node.shape, place)
        axes = offset.axes.union(*[index.axes for index, _ in guards])
        return Value(count, node, {}, axes, (), of, offset, guards)

    def _viewed(self, count: int, node: View, arg: Value, place: Place) -> Value:
        guards = guards_of(place, node.arg.shape, self.extents)
        if not guards or set(guards) <= set(arg.guards):
            return arg
        axes = arg.axes.union(*[index.axes for index, _ in guards])
        if arg.source is None:
            return Value(count, node, {node.arg.number: arg}, axes, guards=guards)
        guards = tuple(dict.fromkeys((*arg.guards, *guards)))
        return replace(arg, number=count, axes=axes, guards=guards)

    def _in_no_memory(self, node: Node) -> Unsupported:
        return Unsupported(
            f"{self.name}: elements are taken at computed places of a value "
            f"of shape {node.shape} that lies in no memory; make it "
            "an output of one kernel and a parameter of another."
        )

    def _gathered(self, number: int, use: Use) -> Value:
        """Return an array's element so many steps on as another value says."""
        first, following, which = map(known, use.args)
        offset, source = first.offset, first.source
        twice = first.step  # of other axes
        if source is None or twice or offset.terms != following.offset.terms:
            raise self._in_no_memory(operands(use.node)[0])
        step = following.offset.constant - offset.constant
        axes, args = first.axes | which.axes, {**first.args, which.node.number: which}
        rest = source, offset, first.guards, step
        return Value(number, use.node, args, axes, (), *rest)
