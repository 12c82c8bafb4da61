"""Loops spelled out: a turn after the other, each with names of its own.

Index arithmetic on the loop's variable folds as it goes, so that what a turn says of
its place in a register buffer is a constant, as LLVM needs to put it in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.builder import FOLDED
from steelyard_kernels.ir.loops import Const, Operand, Var


def is_spelled_out(node: ir.For) -> bool:
    """Say whether a loop's hint asks for every turn, and no turn may end it."""
    start, stop = node.start, node.stop
    if node.until is not None or not (
        isinstance(start, Const) and isinstance(stop, Const)
    ):
        return False
    return len(range(int(start.value), int(stop.value), node.step)) <= node.unroll


def spelled_out(node: ir.For, suffix: str) -> tuple[list[ir.Statement], list[Operand]]:
    """Return the statements of all turns, and what the loop carried in the end.

    Names get `suffix` and the turn's number, so that both together are new.
    """
    assert isinstance(node.start, Const)
    assert isinstance(node.stop, Const)
    carried = [first for _, first in node.carried]
    statements: list[ir.Statement] = []
    turns = range(int(node.start.value), int(node.stop.value), node.step)
    for turn, at in enumerate(turns):
        copy = _Copy(f"{suffix}.{turn}", first=turn == 0)
        copy.values[node.var.name] = Const(at, node.var.type)
        for (var, _), value in zip(node.carried, carried, strict=True):
            copy.values[var.name] = value
        statements += copy.body(node.body)
        carried = [copy.operand(value) for value in node.yields]
    return statements, carried


class _Copy:
    """One turn's copy of a body.

    `values` are what variables of the body became; other variables are from outside.
    """

    __slots__ = ("first", "suffix", "values")

    def __init__(self, suffix: str, *, first: bool) -> None:
        self.suffix = suffix
        self.first = first
        self.values: dict[str, Operand] = {}

    def operand(self, value: Any) -> Any:
        """Return what a variable became; anything else is as it was."""
        return self.values.get(value.name, value) if isinstance(value, Var) else value

    def operands(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([self.operand(value) for value in values])

    def define(self, var: Var) -> Var:
        own = Var(f"{var.name}{self.suffix}", var.type)
        self.values[var.name] = own
        return own

    def body(self, statements: Sequence[ir.Statement]) -> list[ir.Statement]:
        copies = [self.statement(statement) for statement in statements]
        return [copy for copy in copies if copy is not None]

    def statement(self, node: ir.Statement) -> ir.Statement | None:
        """Return a statement's copy, or None if there is nothing left of it."""
        if isinstance(node, ir.Let):
            return self.let(node)
        if isinstance(node, ir.Alloc):
            return node if self.first else None  # the same memory in every turn
        if not isinstance(node, ir.Load | ir.Store | ir.For | ir.If | ir.Effect):
            raise CompilerBug(f"a loop holds {type(node).__name__}, which no loop may.")
        own = [self.part(each.name, getattr(node, each.name)) for each in fields(node)]
        return type(node)(*own)

    def part(self, name: str, value: Any) -> Any:
        """Return a field's copy; fields are in the order in which they are known."""
        if name == "var":
            return self.define(value)
        if name == "results":
            return tuple(map(self.define, value))
        if name == "carried":
            return tuple([(self.define(var), self.operand(x)) for var, x in value])
        if name in {"body", "orelse"}:
            return tuple(self.body(value))
        return self.operands(value) if type(value) is tuple else self.operand(value)

    def let(self, node: ir.Let) -> ir.Statement | None:
        """Copy an operation, or remember its result if it is a known index."""
        args, type_ = self.operands(node.args), node.var.type
        numbers = [arg.value for arg in args if isinstance(arg, Const)]
        fold = FOLDED.get(node.op)
        if fold and type_.dtype.kind == "int" and len(numbers) == 2:
            value = fold(*numbers)
            if abs(value) < 1 << (8 * type_.dtype.bytes - 1):
                self.values[node.var.name] = Const(value, type_)
                return None
        return ir.Let(self.define(node.var), node.op, args)
