"""Where the values of launches lie, and the plan that follows from it.

Equal launches that wait for nothing of one another are one, side by side. A GPU's kernel
that is not long begins and ends with idle multiprocessors, a CPU's with threads that
wait. Three products of one shape (a layer's queries, keys and values) or four sums for
biases are one grid with a row of blocks for each, or one fork and join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node
from steelyard_kernels.expression.structure import structure
from steelyard_kernels.nest.axes import stored
from steelyard_kernels.plan.bodies import Body
from steelyard_kernels.plan.cuts import is_walk, nbytes
from steelyard_kernels.plan.groups import Groups
from steelyard_kernels.plan.launches import Home, Launch, Plan
from steelyard_kernels.plan.parts import parts_of
from steelyard_kernels.plan.pieces import Group, copying
from steelyard_kernels.plan.products import is_product
from steelyard_kernels.plan.repeats import Flow, Repeated

MOST: Final = 8
"""Copies of one launch: each has arguments of its own, of some hundred bytes."""


def abreast(launches: Iterable[Launch], updates: Mapping[str, str]) -> list[Launch]:
    """Return launches in order, equal ones together at the place of the first.

    `updates` maps an output's name to that of the input which it overwrites.
    """
    found: list[list[Launch]] = []
    alike: dict[object, list[int]] = {}
    wrote: dict[Home, int] = {}  # the last place that writes an array, or reads it
    read: dict[Home, int] = {}

    said = cache(structure)  # most launches have a program that others have

    def home(each: Home) -> Home:
        return updates.get(each, each) if isinstance(each, str) else each

    for launch in launches:
        into, of = map(home, launch.writes), [*map(home, launch.reads)]
        written = list(into)
        before = [wrote.get(each, -1) for each in (*of, *written)]
        before += [read.get(each, -1) for each in written]
        same = alike.setdefault(said(launch.program), [])
        free = [n for n in same if n > max(before) and len(found[n]) < MOST]
        place = free[0] if free else len(found)
        if not free:
            same.append(place)
            found.append([])
        found[place].append(launch)
        wrote |= dict.fromkeys(written, place)
        read |= {each: max(place, read.get(each, -1)) for each in of}
    return [_together(each) for each in found]


def _together(launches: Sequence[Launch]) -> Launch:
    """Return equal launches as one."""
    first = launches[0]
    if len(launches) == 1:
        return first
    return Launch(
        replace(first.program, copies=len(launches)),
        tuple([home for each in launches for home in each.reads]),
        tuple([home for each in launches for home in each.writes]),
        f"{len(launches)} side by side: {first.reason}",
    )


class Laid:
    """Homes of the values that launches store, some `over` others, by their numbers.

    What `copied` outputs are lies elsewhere first.
    """

    def __init__(
        self,
        groups: Groups,
        order: Sequence[Group],
        over: Mapping[int, Node],
        copied: Sequence[expr.Output],
    ) -> None:
        self._groups, self._order, self._over = groups, order, over
        self._copied, self._program = copied, groups.cuts.program
        self._outputs: dict[int, list[expr.Output]] = {}
        for output in self._program.outputs:
            if output not in copied:
                self._outputs.setdefault(stored(output).number, []).append(output)
        shown = self._program.outputs
        self._late = {each.name for each in shown if each.updates is not None}
        self._flow = Flow()
        self._homes: dict[int, Home] = {}
        self._repeats: dict[int, Repeated] = {}
        for group in order:  # of which some say where what is before them lies
            body = groups.body(group)
            if body is not None:
                self._place(group)
                self._repeats[id(group)] = self._repeated(body, group)
        for group in order:
            self._place(group)
            for node in group.values:
                if node.number in over:
                    below = over[node.number].number
                    self._homes[node.number] = self._homes[below]

    def _place(self, group: Group) -> None:
        """Give values that have none a home: that of an output, or a buffer."""
        homes = self._homes
        for node in group.values:
            own = self._outputs.get(node.number)
            if own:
                homes[node.number] = own[0].name
            elif node.number not in homes and node.number not in self._over:
                reason = self._groups.stored[node.number]
                homes[node.number] = self._flow.buffer(nbytes(node), reason)

    def _repeated(self, body: Body, group: Group) -> Repeated:
        """Return a loop with homes; what a carry begins as is written there at once.

        But what others read too is copied there, and to an array that is updated.
        """
        values = [node for node in group.values if isinstance(node, expr.Result)]
        results = {node.place: self._homes[node.number] for node in values}
        found = Repeated(body, self._flow, results.get)
        read = {node.number for node in body.reads}
        for init, (begin, _) in zip(body.loop.inits, found.homes, strict=True):
            kept = init.number in (*self._over, *self._outputs) or begin in self._late
            mine = self._groups.readers(init) == (group,) and init.number not in read
            if mine and not kept and not isinstance(init, expr.Input | expr.Result):
                self._homes[init.number] = begin
                read.add(init.number)
        return found

    def plan(self) -> Plan:
        """Return all launches in order, equal ones side by side where they can be."""
        inputs, flow = self._program.inputs, self._flow
        updates = {
            output.name: inputs[output.updates].name
            for output in self._program.outputs
            if output.updates is not None
        }
        waiting: list[Launch] = []
        for group in self._order:
            repeated = self._repeats.get(id(group))
            if repeated is None:
                waiting.append(self._launch(group))
                continue
            waiting += repeated.before(self._home)
            flow.launches += abreast(waiting, updates)
            repeated.add(self._home)
            waiting = [
                self._copy(each, node)
                for node in group.values
                for each in self._outputs.get(node.number, ())[1:]
            ]
        waiting += [self._copy(each, stored(each)) for each in self._copied]
        flow.launches += abreast(waiting, updates)
        return replace(flow.plan(), parts=parts_of(self._groups))

    def _home(self, node: Node) -> Home:
        return node.name if isinstance(node, expr.Input) else self._homes[node.number]

    def _launch(self, group: Group) -> Launch:
        values: list[Node] = []
        writes: list[Home] = []
        updates: list[int | None] = []
        for node in group.values:
            every: list[expr.Output | None] = [*self._outputs.get(node.number, ())]
            for output in every or [None]:
                values.append(node)
                own = self._homes[node.number]
                writes.append(own if output is None else output.name)
                source = self._under(node, output)
                updates.append(
                    source.number if source and source in group.reads else None
                )
        memory = self._groups.memory(group)
        made, read = self._groups.pieces.of(values, memory, updates)
        reads = tuple(map(self._home, read))
        if not group.reason:
            nodes, _ = self._groups.pieces.inside(group.values, memory)
            group.reason = reason_of(nodes, group.values, again=bool(group.again))
        return Launch(made, reads, tuple(writes), group.reason)

    def _under(self, node: Node, output: expr.Output | None) -> Node | None:
        """Return what lies where a value is written, if anything does."""
        if output is None:
            return self._over.get(node.number)
        into = output.updates
        return None if into is None else self._program.inputs[into]

    def _copy(self, output: expr.Output, value: Node) -> Launch:
        made, home = copying(self._program.name, value), self._homes[value.number]
        return Launch(made, (home,), (output.name,), "copied: others read it before")


def reason_of(
    nodes: Sequence[Node], values: Sequence[Node], *, again: bool = False
) -> str:
    """Return what a launch computes, and the traffic that its parts save together.

    `again`: it weighs sums by what it computes again.
    """
    products = [node for node in nodes if is_product(node)]
    reductions = [node for node in nodes if is_walk(node)]
    names = dict.fromkeys(node.op for node in nodes if isinstance(node, expr.Apply))
    own = {node.number for node in values}
    saved = sum(2 * nbytes(node) for node in reductions if node.number not in own)
    what = "loops" if expr.loops(nodes) else "elementwise"
    if again:
        shown = " and ".join("x".join(map(str, node.shape)) for node in values)
        what = f"weighted sums {shown}"
    elif len(products) > 1:
        what = f"attention {'x'.join(map(str, products[0].shape))}"
    elif products:
        (product,) = products
        depth = product.a.shape[-1] if isinstance(product, expr.Dot) else 0
        if isinstance(product, expr.Reduce):
            depth = nbytes(product.arg) // product.arg.dtype.bytes
            depth //= max(1, nbytes(product) // product.dtype.bytes)
        what = f"product {'x'.join(map(str, product.shape))} of depth {depth}"
        names.pop("multiply", None) if isinstance(product, expr.Reduce) else None
    elif reductions:
        what = "rows: " + ", ".join(
            dict.fromkeys(getattr(n, "op", "segments") for n in reductions)
        )
    fused = f" with {', '.join(names)}" if names and reductions else ""
    gain = f": saves {_size(saved)}" if fused and saved else ""
    return f"{what}{fused}{gain}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
