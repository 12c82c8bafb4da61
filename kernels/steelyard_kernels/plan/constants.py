"""What of a program depends on constants alone: computed once, and stored for all calls.

    Program --split--> Program of constants, Program of the rest and of what that stores

Casts to more bytes, views and broadcasts are left to those who read them: stored they
would only be more memory. So is all that has more bytes than the constants it is made of.
But a product's factor is stored as the product reads it: see `packing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

from msgspec import Struct

from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.expression.structure import reachable
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan.cuts import nbytes, spreads
from steelyard_kernels.plan.launches import Home
from steelyard_kernels.plan.packing import Panel, is_widened, panel_of
from steelyard_kernels.plan.partition import partition
from steelyard_kernels.plan.products import factors_of
from steelyard_kernels.plan.rates import is_kernel
from steelyard_kernels.schedule.blocking import blocking_of, lying
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.strategies import heuristic

VARYING = (expr.Scalar, expr.Chain, expr.Handed, expr.Result)
"""What differs from call to call or from chain to chain, and loops."""

Made = Mapping[int, frozenset[expr.Input]]
"""The constants that nodes are made of, by number, of those made of nothing else."""


class Split(Struct, frozen=True):
    """A program in two: `once` stores what `rest` reads of constants.

    `once` is of the constants, by name; `rest` of the other inputs and then of the outputs
    of `once`. `packed` says of some outputs how, by name.
    """

    once: Program
    rest: Program
    packed: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(nbytes(output.value) for output in self.once.outputs)

    def text(self) -> str:
        """Return a line for each array that is stored, and one of their bytes."""
        lines = [
            f"{each.name}: {nbytes(each.value)} bytes, "
            f"{self.packed.get(each.name, 'computed')} once\n"
            for each in self.once.outputs
        ]
        return "".join(lines) + f"constants: {self.nbytes} bytes\n"


def split(
    program: Program, constant: Mapping[str, object], device: Machine | Gpu
) -> Split:
    """Return a program in two, of inputs that are constant, by name with what they are.

    Equal ones are one. Panels are only for products that read them as such. Raises
    KernelError for names that are no inputs, or updated in place.
    """
    _check(program, constant)
    first = {constant[name]: name for name in sorted(constant, reverse=True)}
    same = {name: first[what] for name, what in constant.items()}
    program = simplify(program)
    made = _made(program, same)
    panels = {
        node.number: panel
        for node in program.nodes
        if node.number not in made and (panel := panel_of(node, made, device))
    }
    found, names = _Halves(program, made, panels, device).split(same)
    unread = _unread(found, device) if panels else set()
    if unread:
        kept = {n: p for n, p in panels.items() if names[p] not in unread}
        found, _ = _Halves(program, made, kept, device).split(same)
    return found


def _check(program: Program, constant: Iterable[str]) -> None:
    kernel, names = program.name, [node.name for node in program.inputs]
    updated = {names[o.updates] for o in program.outputs if o.updates is not None}
    for name in constant:
        if name not in names:
            raise KernelError(
                f"{kernel}: constant {name!r} is no array of it, expected names among "
                f"{', '.join(names)}, as constant=({names[-1]!r},)."
            )
        if name in updated:
            raise KernelError(
                f"{kernel}: {name} is constant, and updated in place; leave it out of "
                "constant, or return it under another name."
            )


def _made(program: Program, same: Mapping[str, str]) -> Made:
    inputs = {node.name: node for node in program.inputs}
    found: dict[int, frozenset[expr.Input]] = {}
    for node in program.nodes:
        args = [found.get(arg.number) for arg in expr.operands(node)]
        if isinstance(node, expr.Input):
            if node.name in same:
                found[node.number] = frozenset({inputs[same[node.name]]})
        elif not isinstance(node, VARYING) and None not in args:
            found[node.number] = frozenset[expr.Input]().union(*filter(None, args))
    return found


def _unread(found: Split, device: Machine | Gpu) -> set[str]:
    """Return the panels that some launch does not read as a product's right factor."""
    if isinstance(device, Gpu):
        return set()
    program = simplify(found.rest)
    plan = partition(program, device)
    homes: tuple[Home, ...] = tuple(node.name for node in program.inputs)
    every = [(each.program, each.reads) for each in plan.launches] if plan else []
    unread: set[str] = set()
    for each, reads in every or [(program, homes)]:
        whole = contraction_of(nest_of(each)) if is_kernel(each) else ""
        right = None
        if not isinstance(whole, str):
            cut = blocking_of(whole, heuristic(each, device))
            right = lying(whole.right).source if cut and not cut.copies[1] else None
        pairs = zip(each.inputs * each.copies, reads, strict=True)
        used = {arg.number for node in each.nodes for arg in expr.operands(node)}
        unread |= {
            str(home) for x, home in pairs if x.number in used and x is not right
        }
    return unread & found.packed.keys()


class _Halves:
    """Both programs of one in the making, with panels of some of its products."""

    def __init__(
        self,
        program: Program,
        made: Made,
        panels: Mapping[int, Panel],
        device: Machine | Gpu,
    ) -> None:
        self.program, self.made, self.panels = program, made, panels
        self.device = device
        self.kept: dict[int, Node] = {}  # values of constants that the rest reads
        self.needed: dict[int, Node] = {}  # what the rest computes
        pending = [output.value for output in program.outputs]
        while pending:
            node = pending.pop()
            of = made.get(node.number, frozenset())
            if of and not spreads(node) and nbytes(node) <= sum(map(nbytes, of)):
                self.kept[node.number] = node
            elif node.number not in self.needed:
                self.needed[node.number] = node
                pending += self._read(node)

    def _read(self, node: Node) -> list[Node]:
        """Return what the rest needs to compute a node, beside a panel."""
        panel = self.panels.get(node.number)
        if panel is None:
            return list(expr.operands(node))
        return [each for each in factors_of(node) if each is not panel.factor]

    def split(self, same: Mapping[str, str]) -> tuple[Split, dict[Panel, str]]:
        """Return both programs, and what panels are named."""
        program = self.program
        constants = [node for node in program.inputs if node.name in same]
        own = [node for node in constants if same[node.name] == node.name]
        once = Again(Graph(program.name), lambda *_: None)
        inputs = _inputs(once.graph, own)
        for node in constants:
            once.made[node.number] = inputs[same[node.name]]
        once.add([node for node in program.nodes if node.number in self.made])
        stored: dict[Node | Panel, Node] = {
            node: once.made[number] for number, node in sorted(self.kept.items())
        }
        for panel in self.panels.values():
            narrow = self._narrow(once, panel.factor)
            stored[panel] = panel.stored(once.graph, narrow)
        names = self._names(stored)
        named = {names[key]: node for key, node in stored.items()}
        outputs = tuple(expr.Output(name, node, None) for name, node in named.items())
        nodes = reachable(stored.values())
        made = Program(
            program.name, tuple(inputs.values()), (), outputs, nodes, 0, "tuple"
        )
        panels = {key: name for key, name in names.items() if isinstance(key, Panel)}
        packed = {
            name: f"packed by {panel.wide} columns" if panel.wide else "transposed"
            for panel, name in panels.items()
        }
        return Split(made, self._rest(same, stored, names), packed), panels

    def _names(self, stored: Mapping[Node | Panel, Node]) -> dict[Node | Panel, str]:
        """Return names that no parameter or output has, of equal values the same."""
        program = self.program
        taken = {node.name for node in program.inputs}
        taken |= {node.name for node in program.scalars}
        taken |= {output.name for output in program.outputs}
        found: dict[Node, str] = {}
        for key, value in stored.items():
            node = key.factor if isinstance(key, Panel) else key
            first = min(self.made[node.number], key=lambda each: each.index).name
            every = (f"{first}_once{n or ''}" for n in count())
            if value not in found:
                found[value] = next(each for each in every if each not in taken)
                taken.add(found[value])
        return {key: found[value] for key, value in stored.items()}

    def _narrow(self, once: Again, node: Node) -> Node:
        """Return a factor of fewer bytes, which the product widens as it reads it."""
        if isinstance(node, expr.View):
            return once.graph.view(self._narrow(once, node.arg), node.index, node.shape)
        if isinstance(node, expr.Cast) and is_widened(node, self.device):
            return self._narrow(once, node.arg)
        return once.made[node.number]

    def _rest(
        self,
        same: Mapping[str, str],
        stored: Mapping[Node | Panel, Node],
        names: Mapping[Node | Panel, str],
    ) -> Program:
        """Return the program of what differs from call to call."""
        program = self.program
        given = [node for node in program.inputs if node.name not in same]
        again = Again(Graph(program.name), self._product)
        again.graph.chains = program.chains
        inputs = _inputs(again.graph, given)
        again.made |= {node.number: inputs[node.name] for node in given}
        self.read: dict[Panel, Node] = {}
        for key, node in stored.items():
            name, how = names[key], (len(inputs), node.shape, node.dtype)
            if name not in inputs:
                inputs[name] = again.graph.input(name, *how)
            if isinstance(key, Panel):
                self.read[key] = key.read(again.graph, inputs[name])
            else:
                again.made[key.number] = inputs[name]
        again.add([self.needed[number] for number in sorted(self.needed)])
        outputs = tuple(
            expr.Output(
                each.name,
                again.made[each.value.number],
                None
                if each.updates is None
                else given.index(program.inputs[each.updates]),
                each.hidden,
            )
            for each in program.outputs
        )
        nodes = reachable(output.value for output in outputs)
        scalars = tuple(node for node in nodes if isinstance(node, expr.Scalar))
        form = program.chains, program.returns
        every = tuple(inputs.values())
        return Program(program.name, every, scalars, outputs, nodes, *form)

    def _product(
        self, graph: Graph, node: Node, made: Mapping[int, Node]
    ) -> Node | None:
        """Return a product with its panel; None of other nodes."""
        panel = self.panels.get(node.number)
        if panel is None:
            return None
        right = self.read[panel]
        (left,) = [made[each.number] for each in self._read(node)]
        if isinstance(node, expr.Dot):
            return graph.dot(left, right)
        assert isinstance(node, expr.Reduce)
        found = graph.cast(graph.apply("multiply", left, right), node.arg.dtype)
        return graph.reduce("sum", found, node.axes, keepdims=node.keepdims)


def _inputs(graph: Graph, nodes: list[expr.Input]) -> dict[str, expr.Input]:
    """Return inputs like others in a graph, in their order, by name."""
    return {
        node.name: graph.input(node.name, place, node.shape, node.dtype)
        for place, node in enumerate(nodes)
    }
