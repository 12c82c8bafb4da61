"""Which values of a GPU's kernel are the same in every thread of a block.

A barrier behind a condition that depends on the thread hangs, or lets threads pass
each other. A value is varying when anything it is made of is: the thread's number, a
shuffle (lanes of one warp agree after one, warps of a block do not), a load whose
index or mask varies, or one from memory of this thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Kernel, Operand, Var

VARYING = frozenset({"thread", "shuffle_xor", "shuffle_down", "shuffle", "any_warp"})
BARRIERS = frozenset({"barrier", "any_block"})
PRIVATE = frozenset({"register", "stack"})


def divergent_barriers(kernel: Kernel) -> tuple[ir.Effect | ir.Let, ...]:
    """Return the barriers that not every thread of a block is sure to reach."""
    if next(_barriers(kernel.body, _Every(), diverged=False), None) is None:
        return ()  # none behind a condition, as in most kernels
    varying: set[str] = set()
    size = -1
    while len(varying) != size:  # what a loop carries may vary from its second turn on
        size = len(varying)
        _mark(kernel.body, varying)
    return tuple(_barriers(kernel.body, varying, diverged=False))


class _Every(set[str]):
    """All names."""

    def __contains__(self, _name: object) -> bool:
        return True


def _varies(varying: set[str], *operands: Operand | None) -> bool:
    for each in operands:  # noqa: SIM110 - of some thousands a generator is most
        if type(each) is Var and each.name in varying:
            return True
    return False


def _mark(body: Sequence[ir.Statement], varying: set[str]) -> None:
    """Add what varies, of one walk over the statements."""
    for node in body:
        if isinstance(node, ir.Let):
            told = node.op == "any_block"  # whatever each thread said
            if node.op in VARYING or (_varies(varying, *node.args) and not told):
                varying.add(node.var.name)
        elif isinstance(node, ir.Load):
            if node.buffer.space in PRIVATE or _varies(varying, node.index, node.mask):
                varying.add(node.var.name)
        elif isinstance(node, ir.For):
            _mark_loop(node, varying)
        elif isinstance(node, ir.If):
            _mark_branch(node, varying)
        elif isinstance(node, ir.Parallel):
            _mark(node.body, varying)


def _mark_branch(node: ir.If, varying: set[str]) -> None:
    _mark(node.body, varying)
    _mark(node.orelse, varying)
    for result, *sides in zip(node.results, node.values, node.else_values, strict=True):
        if _varies(varying, node.condition, *sides):
            varying.add(result.name)


def _mark_loop(node: ir.For, varying: set[str]) -> None:
    turns = _varies(varying, node.start, node.stop, node.until)
    if turns:
        varying.add(node.var.name)
    for (var, first), last in zip(node.carried, node.yields, strict=True):
        if turns or _varies(varying, first, last):
            varying.add(var.name)
    _mark(node.body, varying)
    for result, (var, _), last in zip(
        node.results, node.carried, node.yields, strict=True
    ):
        if turns or _varies(varying, var, last):
            varying.add(result.name)


def _barriers(
    body: Sequence[ir.Statement], varying: set[str], *, diverged: bool
) -> Iterator[ir.Effect | ir.Let]:
    """Yield the barriers in bodies that only some threads may run."""
    for node in body:
        if isinstance(node, ir.Effect | ir.Let):
            if diverged and node.op in BARRIERS:
                yield node
        elif isinstance(node, ir.For):
            inside = diverged or _varies(varying, node.start, node.stop, node.until)
            yield from _barriers(node.body, varying, diverged=inside)
        elif isinstance(node, ir.If):
            inside = diverged or _varies(varying, node.condition)
            yield from _barriers(node.body, varying, diverged=inside)
            yield from _barriers(node.orelse, varying, diverged=inside)
