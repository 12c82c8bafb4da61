"""A program as text, one line a node, for people and for golden files."""

from __future__ import annotations

from collections.abc import Iterable

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program


def text(program: Program) -> str:
    """Return a program as one line per node, in evaluation order; bodies indented."""
    chains = f" chains {program.chains}" if program.chains else ""
    lines = [f"program {program.name}{chains}", *_lines(program.nodes, "  ")]
    for output in program.outputs:
        place = "" if output.updates is None else " in place"
        place = " hidden" if output.hidden else place
        lines.append(f"  {output.name} = %{output.value.number}{place}")
    return "\n".join(lines) + "\n"


def _lines(nodes: Iterable[Node], indent: str) -> list[str]:
    lines = []
    said: set[int] = set()  # loops, by identity: all results of one share its body
    for node in nodes:
        if isinstance(node, expr.Result) and id(node.loop) not in said:
            said.add(id(node.loop))
            lines += _loop_lines(node.loop, indent)
        args = "" if isinstance(node, expr.Result) else _references(expr.operands(node))
        head = f"{node.dtype}{node.shape} = {_head(node)}({args})"
        lines.append(f"{indent}%{node.number}: {head}")
    return lines


def _loop_lines(loop: expr.Loop, indent: str) -> list[str]:
    times = loop.length if isinstance(loop.length, int) else f"%{loop.length.number}"
    head = f"{indent}loop %{loop.index.number} < {times}"
    if loop.condition is not None:
        head += f" while %{loop.condition.number}"
    if loop.unroll:
        head += f" unroll {loop.unroll}"
    if loop.reverse:
        head += " reverse"
    pairs = zip(loop.carries, loop.inits, strict=True)
    carries = ", ".join(f"%{c.number} = %{i.number}" for c, i in pairs)
    return [
        f"{head}: {carries}".rstrip(": "),
        *_lines(loop.nodes, indent + "  "),
        f"{indent}  next {_references(loop.nexts)}".rstrip(),
        *([f"{indent}  stack {_references(loop.stacked)}"] if loop.stacked else []),
    ]


def _references(nodes: Iterable[Node]) -> str:
    return ", ".join(f"%{node.number}" for node in nodes)


def _head(node: Node) -> str:
    if isinstance(node, expr.Apply):
        return node.op
    if isinstance(node, expr.Reduce):
        axes = "" if node.of_rows else f" over {node.axes}"
        return f"{node.op}{axes}{'[keepdims]' if node.keepdims else ''}"
    if isinstance(node, expr.View):
        return f"view[{', '.join(map(str, node.index))}]"
    if isinstance(node, expr.Gather):
        named = [str(each) for each in node.index]
        named[node.place] = f"%{node.which.number}"
        return f"gather[{', '.join(named)}]"
    if isinstance(node, expr.Along | expr.Handed):
        along = "along" if isinstance(node, expr.Along) else "handed along"
        return f"{node.op} {along} {node.axis}{'[reverse]' if node.reverse else ''}"
    if isinstance(node, expr.Constant):
        return f"constant {node.value!r}"
    if isinstance(node, expr.Input | expr.Scalar):
        return f"{type(node).__name__.lower()} {node.name}"
    if isinstance(node, expr.Parameter):
        return node.role
    if isinstance(node, expr.Result):
        return f"loop %{node.loop.index.number} [{node.place}]"
    along = f" along {node.axis}" if isinstance(node, expr.Segments) else ""
    return f"{type(node).__name__.lower()}{along}"
