"""Whether outputs may overwrite the inputs that they update, for every recipe.

A work item is what runs by itself: an element, a row, a chain. Items run in any order
and side by side, so each element of an input that is updated may be read by no item but
the one that writes it, and by that one no later than it writes. Any other update is
Unsupported. By recipe:

- of a nest: an item is an element, or a row, which is reduced before it is stored. It
  reads what it overwrites at the same index only.
- of carries: an item is a chain. It loads what it computes with in the order of the nodes, and
  stores at its end, but what a loop stacks row by row, in its iterations. On a GPU the
  threads of a chain are in different rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.structure import everywhere
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.nest.keep import has_rows
from steelyard_kernels.nest.places import nest_of


def check_updates(program: Program, recipe: str, kind: str) -> None:
    """Raise Unsupported where an update overwrites what is still to be read.

    `kind` is that of the target, "cpu" or "cuda".
    """
    if all(output.updates is None for output in program.outputs):
        return
    read: dict[int | None, expr.Input] = {
        node.index: node for node in program.nodes if isinstance(node, expr.Input)
    }
    updates = [o for o in program.outputs if o.updates in read]  # of what is read
    if recipe == "carries":
        for output in updates:
            _check_chains(program, output, read[output.updates])
            if kind == "cuda":
                _check_threads(program, output)
    elif updates and not in_place(program, rows=recipe == "rows"):
        how = "element by element while others read it"
        raise _refusal(program, updates[0], how)


def in_place(program: Program, *, rows: bool = False) -> bool:
    """Say whether a program updates in place; most overwrite nothing, and need no nest."""
    if all(output.updates is None for output in program.outputs):
        return True
    try:
        nest = nest_of(program)
    except Unsupported:  # of more axes than one kernel has
        return False
    return updates_in_place(nest, rows=rows)


def updates_in_place(nest: Nest, *, rows: bool = False) -> bool:
    """Say whether no element is overwritten that another index still reads.

    Of `rows` that one thread walks, one value each is read before the elements are.
    """
    outputs = zip(nest.program.outputs, nest.outputs, strict=True)
    written = {o.updates: s.offset for o, s in outputs if o.updates is not None}
    if not written:
        return True
    once = [frozenset(range(nest.space))]
    if rows and has_rows(nest):
        once.append(frozenset(range(len(nest.extents) - 1)))
    return all(
        written[value.source.index] == value.offset and value.axes in once
        for value in nest.values
        if isinstance(value.source, expr.Input) and value.source.index in written
    )


def _refusal(program: Program, output: expr.Output, how: str) -> Unsupported:
    return Unsupported(
        f"{program.name}: {output.name} is overwritten {how}; return it under "
        "another name, and copy it where it is to be."
    )


def _check_chains(program: Program, output: expr.Output, node: expr.Input) -> None:
    """Check that a chain reads its own part only, and that before it is overwritten."""
    if program.chains > 1:
        for each in everywhere(program.nodes):
            if node in expr.operands(each) and not isinstance(each, expr.Chain):
                how = "chain by chain while other chains read it"
                raise _refusal(program, output, how)
    value = output.each
    if not (isinstance(value, expr.Result) and value.stacks):
        return
    begin = _begin(program, value.loop)
    for read, position, loop in _placed(program.nodes):
        if position < begin or _root(read) is not node or read is node:
            continue
        own = loop is value.loop and _is_own_row(read, value.loop)
        if not (own or _of_own_row(read, value.loop)):
            how = "row by row in a loop while other rows of it are still read"
            raise _refusal(program, output, how)


def _check_threads(program: Program, output: expr.Output) -> None:
    value = output.each
    if isinstance(value, expr.Result) and value.stacks:
        how = "row by row in a loop while a GPU's other threads may still read it"
        raise _refusal(program, output, how)


def _begin(program: Program, loop: expr.Loop) -> int:
    """Return where a loop is run: at the first of its results."""
    return next(
        node.number
        for node in program.nodes
        if isinstance(node, expr.Result) and node.loop is loop
    )


def _placed(
    nodes: Iterable[Node], at: int | None = None, inside: expr.Loop | None = None
) -> Iterator[tuple[Node, int, expr.Loop | None]]:
    """Give every node, where it is computed, and the loop whose body it is in."""
    seen: set[int] = set()
    for node in nodes:
        position = node.number if at is None else at
        yield node, position, inside
        if isinstance(node, expr.Result) and id(node.loop) not in seen:
            seen.add(id(node.loop))
            yield from _placed(node.loop.nodes, position, node.loop)


def _root(node: Node) -> Node:
    """Return the array that a node is a part of, or the node."""
    while isinstance(
        node, expr.Row | expr.View | expr.Gather | expr.Reshape | expr.Chain
    ):
        node = node.arg
    return node


def _is_own_row(node: Node, loop: expr.Loop) -> bool:
    """Say whether a node is the row of its array that this iteration stacks."""
    if not isinstance(node, expr.Row) or not isinstance(
        node.arg, expr.Input | expr.Chain
    ):
        return False
    if not loop.reverse:
        return node.index is loop.index
    index = node.index
    return (
        isinstance(index, expr.Apply)
        and index.op == "subtract"
        and isinstance(index.args[0], expr.Constant)
        and isinstance(loop.length, int)
        and index.args[0].value == loop.length - 1
        and index.args[1] is loop.index
    )


def _of_own_row(node: Node, loop: expr.Loop) -> bool:
    """Say whether a node is a part of the row that this iteration stacks."""
    while isinstance(node, expr.Row | expr.View | expr.Reshape):
        node = node.arg
        if _is_own_row(node, loop):
            return True
    return False
