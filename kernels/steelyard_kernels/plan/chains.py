"""Programs of many chains as launches for each of them, one chain after another."""

from __future__ import annotations

from collections.abc import Mapping

from steelyard_kernels.expression.expr import (
    Chain,
    Chains,
    Input,
    Node,
    Output,
    Program,
    Scalar,
    everywhere,
    operands,
    reachable,
)
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import Again
from steelyard_kernels.plan.bodies import Planner
from steelyard_kernels.plan.cuts import nbytes
from steelyard_kernels.plan.launches import Home, Launch, Plan, Walk
from steelyard_kernels.plan.pieces import copying
from steelyard_kernels.plan.repeats import Flow


def chain_by_chain(program: Program, planner: Planner) -> Plan:
    """Return launches that are repeated for each chain of a program.

    An input that all chains read is overwritten when all are done.
    """
    reads = _reads(program)
    shown = [output for output in program.outputs if not output.hidden]
    single = _of_one(program, reads, shown)
    flow, homes, late = Flow(), dict[str, Home](), list[tuple[Output, Home]]()
    number = flow.begin()
    for node, own in zip(reads, single.inputs, strict=True):
        name = _array(node).name
        step = nbytes(own) if isinstance(node, Chain) else 0
        homes[own.name] = Walk(name, name, number, 0, step)
    for output, part in zip(shown, single.outputs, strict=True):
        home: Home = output.name
        if _is_shared(output, reads):
            home = flow.buffer(
                nbytes(output.value), "other chains read what it will be"
            )
            late.append((output, home))
        homes[part.name] = Walk(home, home, number, 0, nbytes(part.value))
    flow.insert(planner(single), homes, {})
    flow.repeat(number, length=program.chains)
    for output, home in late:
        copy, why = copying(program.name, output.value), "copied: others read it before"
        flow.launches.append(Launch(copy, (home,), (output.name,), why))
    return flow.plan()


def _reads(program: Program) -> list[Node]:
    """Return what one chain reads: its parts of inputs, and inputs that all of them do."""
    every = [*everywhere(program.nodes)]
    parts = [node for node in every if isinstance(node, Chain)]
    read = {a.number for n in every if not isinstance(n, Chain) for a in operands(n)}
    return [*parts, *[node for node in program.inputs if node.number in read]]


def _array(node: Node) -> Input:
    array = node.arg if isinstance(node, Chain) else node
    assert isinstance(array, Input), "a chain has a part of an input"
    return array


def _is_shared(output: Output, reads: list[Node]) -> bool:
    """Say whether an output overwrites what other chains read."""
    every = [node.index for node in reads if isinstance(node, Input)]
    return output.updates in every


def _of_one(program: Program, reads: list[Node], shown: list[Output]) -> Program:
    """Return the program of one chain; the inputs are what it reads, in order."""

    def rule(_: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        return made[node.arg.number] if isinstance(node, Chains) else None

    again, inputs = Again(Graph(program.name), rule), list[Input]()
    for place, node in enumerate(reads):
        made = again.graph.input(f"x{place}", place, node.shape, node.dtype)
        again.made[node.number] = made
        inputs.append(made)
    whole = {node.number for node in program.inputs}
    again.add([node for node in program.nodes if node.number not in whole])
    places = {
        _array(node).index: place
        for place, node in enumerate(reads)
        if isinstance(node, Chain)
    }
    outputs = []
    for number, output in enumerate(shown):
        late = output.updates is None or _is_shared(output, reads)
        into = None if late else places.get(output.updates or 0)
        outputs.append(Output(f"y{number}", again.made[output.value.number], into))
    nodes = reachable(output.value for output in outputs)
    scalars = tuple([node for node in nodes if isinstance(node, Scalar)])
    return Program(program.name, tuple(inputs), scalars, tuple(outputs), nodes)
