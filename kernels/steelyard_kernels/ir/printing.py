"""The loop IR as text that reads like pseudo-code: for golden files and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Var


def text(kernel: Kernel) -> str:
    """Return the whole kernel as indented pseudo-code, one statement a line."""
    head = ", ".join(_parameter(parameter) for parameter in kernel.parameters)
    block = f" by {kernel.threads} threads" if kernel.threads else ""
    most = f" of {kernel.registers} registers" if kernel.registers else ""
    held = f", {kernel.resident} resident" if kernel.resident else ""
    held += f" in clusters of {kernel.cluster}" if kernel.cluster > 1 else ""
    held += f", {kernel.shared} bytes shared" if kernel.shared else ""
    first = f"kernel {kernel.name}({head}){block}{most}{held}:"
    lines = [first, *_body(kernel.body, 1)]
    return "\n".join(lines) + "\n"


def statement_text(statement: ir.Statement) -> str:
    """Return a statement's first line (its body, if it has one, left out)."""
    return next(_lines(statement, 0))


def _parameter(parameter: ir.Parameter) -> str:
    if isinstance(parameter, Var):
        return f"{parameter.name}: {parameter.type}"
    if isinstance(parameter, ir.Tensor):
        box, extents = parameter.box, parameter.extents
        return f"tensor {parameter.name}: {parameter.dtype}{extents} by {box}"
    return f"{parameter.access} {_buffer(parameter)}"


def _buffer(buffer: Buffer) -> str:
    aligned = f" align {buffer.alignment}" if buffer.alignment else ""
    space = "" if buffer.space == "global" else f" in {buffer.space}"
    shown = _operand(buffer.extent)
    return f"{buffer.name}: {buffer.dtype.name}[{shown}]{space}{aligned}"


def _operand(operand: Operand | Buffer | ir.Tensor) -> str:
    if not isinstance(operand, Const):
        return operand.name
    bare = operand.type.lanes == 1 and operand.type.dtype.name == "int64"
    return f"{operand.value}" if bare else f"{operand.type}({operand.value})"


def _operands(operands: Sequence[Operand | Buffer | ir.Tensor]) -> str:
    return ", ".join(_operand(operand) for operand in operands)


def _body(body: Sequence[ir.Statement], depth: int) -> Iterator[str]:
    for statement in body:
        yield from _lines(statement, depth)
    if not body:
        yield "    " * depth + "pass"


def _lines(statement: ir.Statement, depth: int) -> Iterator[str]:
    pad = "    " * depth
    match statement:
        case ir.For() | ir.If() | ir.Parallel():
            yield from _nested(statement, depth)
        case ir.Let(var, op, args):
            yield f"{pad}{var.name}: {var.type} = {op}({_operands(args)})"
        case ir.Load(var, buffer, index, mask, alignment):
            tail = _where(mask, alignment)
            at = f"{buffer.name}[{_operand(index)}]"
            yield f"{pad}{var.name}: {var.type} = {at}{tail}"
        case ir.Store(buffer, index, value, mask, streaming, alignment):
            tail = _where(mask, alignment) + (" streaming" if streaming else "")
            yield f"{pad}{buffer.name}[{_operand(index)}] = {_operand(value)}{tail}"
        case ir.Prefetch(buffer, index, locality):
            at = f"{buffer.name}[{_operand(index)}]"
            yield f"{pad}prefetch {at} locality {locality}"
        case ir.Alloc(buffer):
            yield f"{pad}alloc {_buffer(buffer)}"
        case ir.Fence():
            yield f"{pad}fence"
        case ir.Effect(op, args):
            yield f"{pad}{op}({_operands(args)})"
        case ir.Multiply(sums, rows, columns, more, by_warp):
            factors = f"{', '.join(map(_tile, rows))} @ {_tile(columns)}"
            whose = " by warp" if by_warp else ""
            yield f"{pad}{sums.name} += {factors}{whose} where more {_operand(more)}"
        case _:
            assert_never(statement)


def _tile(tile: ir.Tile | ir.Fragment) -> str:
    if isinstance(tile, ir.Fragment):
        return f"{tile.buffer.name}[{tile.first}]"
    across = " across" if tile.across else ""
    first = f" + {tile.first}" if tile.first else ""
    return f"{tile.buffer.name}[{_operand(tile.index)}{first}]{across}"


def _where(mask: Operand | None, alignment: int) -> str:
    masked = "" if mask is None else f" where {_operand(mask)}"
    return masked + (f" align {alignment}" if alignment else "")


def _nested(node: ir.For | ir.If | ir.Parallel, depth: int) -> Iterator[str]:
    pad = "    " * depth
    match node:
        case ir.For(
            var, start, stop, step, carried, body, yields, results, unroll, until
        ):
            first = ", ".join(f"{var.name} = {_operand(x)}" for var, x in carried)
            given = f" -> {_operands(results)}" if results else ""
            head = f"{_operand(start)}, {_operand(stop)}, {step}"
            carrying = f" carrying {first}" if first else ""
            spelled = f" unroll {unroll}" if unroll else ""
            yield f"{pad}for {var.name} in range({head}){spelled}{carrying}{given}:"
            yield from _body(body, depth + 1)
            if yields:
                yield f"{pad}    yield {_operands(yields)}"
            if until is not None:
                yield f"{pad}    until {_operand(until)}"
        case ir.If(condition, body, values, orelse, else_values, results):
            given = f" -> {_operands(results)}" if results else ""
            yield f"{pad}if {_operand(condition)}{given}:"
            yield from _body(body, depth + 1)
            if values:
                yield f"{pad}    yield {_operands(values)}"
            if orelse or else_values:
                yield f"{pad}else:"
                yield from _body(orelse, depth + 1)
            if else_values:
                yield f"{pad}    yield {_operands(else_values)}"
        case ir.Parallel(low, high, extent, chunk, threads, body):
            head = f"range(0, {_operand(extent)}, {chunk})"
            who = f"{threads} threads" if threads else "all threads"
            yield f"{pad}parallel {low.name}:{high.name} in {head} by {who}:"
            yield from _body(body, depth + 1)
