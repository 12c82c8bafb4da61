"""Values as CUDA C++: what an operation appends, and what needs no line at all.

A splat is its scalar, a lane of a vector one of its variables, a cast of a half to
float32 the twin that arithmetic on it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from steelyard_kernels.dtypes import HALVES
from steelyard_kernels.emit.cuda_operations import BITS, template
from steelyard_kernels.emit.cuda_template import Template, copy, widen
from steelyard_kernels.emit.cuda_text import Ref, Writer, is_packed, register, widened
from steelyard_kernels.ir.loops import Const, Let, Operand, Var

INDEX_OPS: Final = frozenset(
    {"add", "subtract", "multiply"}
)  # where nothing wraps, C++'s own
INDEX_NAME: Final = "i."  # what `Builder.at` calls the results of index arithmetic
SHIFTS: Final = frozenset({"bitwise_left_shift", "shift_right_logical"})
NUMBERING: Final = INDEX_OPS | {  # give indices of indices
    *(
        "div",
        "rem",
        "negative",
        "abs",
        "minimum",
        "maximum",
        "where",
        "thread",
        "block",
    ),
}


class Values(Writer):
    """A writer of values.

    `wraps` are the integers that are not surely indices: what is made of a loaded
    value, of a user's scalar or of a carried one may exceed its type and must wrap, and
    so must what a program computes of a loop's index.
    """

    __slots__ = ("wraps",)

    def __init__(self) -> None:
        super().__init__()
        self.wraps: set[str] = set()

    def put(self, made: Template, *names: str) -> None:
        """Append a template's lines."""
        lines, indent = self.lines, self.indent
        for line in made.lines:
            lines.append(indent + line.format(*names))
        if made.helpers:
            self.helpers |= made.helpers

    def let(self, node: Let) -> None:
        """Append an operation."""
        op, result = node.op, node.var.type
        shape = SHAPES.get(op)
        if shape is not None and shape(self, node):
            return
        names: list[str] = [self.define(node.var)]
        given: list[Any] = []
        for arg in node.args:
            as_twin = arg.type.dtype in HALVES and op not in BITS
            text, uniform = self.wide(arg) if as_twin else self.ref(arg)
            names.append(text)
            given += arg.type, uniform
        if result.dtype.kind == "int" and self.is_index(node) and op in INDEX_OPS:
            op = f"index_{op}"
        if op in SHIFTS and is_inside(node):
            op = f"inside_{op}"
        self.put(template(op, result, *given), *names)

    def is_index(self, node: Let) -> bool:
        """Say whether an integer is made of indices only; note it if it is not."""
        wraps = self.wraps
        cast = node.op == "cast" and node.args[0].type.dtype.kind == "int"
        users = node.op in INDEX_OPS and not node.var.name.startswith(INDEX_NAME)
        numbers = (cast or node.op in NUMBERING) and not users
        if not numbers or node.var.type.lanes > 1:
            wraps.add(node.var.name)
            return False
        for arg in node.args:
            if type(arg) is Var and arg.name in wraps:
                wraps.add(node.var.name)
                return False
        return True

    def wide(self, operand: Operand) -> Ref:
        """Return the float32 twin of a half operand, made at its first use."""
        if isinstance(operand, Const):
            return widened(operand), True
        text, uniform = self.refs[operand.name]
        twin = self.twins.get(text)
        if twin is None:
            made = widen(operand.type, uniform=uniform)
            twin = self.twins[text] = f"{text}f", uniform
            self.put(made, twin[0], text)
        return twin

    def cast(self, node: Let) -> bool:
        """Emit a cast that is no operation: to its own type, or a half's twin."""
        (arg,) = node.args
        source, target = arg.type.dtype, node.var.type.dtype
        if isinstance(arg, Const) or (source is not target and source not in HALVES):
            return False
        if source is target:
            self.refs[node.var.name] = self.ref(arg)
        elif target.name == "float32":
            self.refs[node.var.name] = self.wide(arg)
        else:
            return False
        if target.kind == "int" and arg.name in self.wraps:
            self.wraps.add(node.var.name)
        return True

    def splat(self, node: Let) -> bool:
        """Take the scalar for its splat; pack halves, once for all pairs."""
        (arg,) = node.args
        text, _ = self.ref(arg)
        if is_packed(node.var.type):
            name = self.define(node.var)
            self.do(f"unsigned {name} = {text} * 0x10001u;")
            text = name
        self.refs[node.var.name] = text, True
        if node.var.type.dtype.kind == "int":
            self.wraps.add(node.var.name)
        return True

    def extract(self, node: Let) -> bool:
        """Take a lane for one of the vector's variables; cut a half from its pair."""
        vector, lane = node.args
        assert isinstance(lane, Const)
        text, uniform = self.ref(vector)
        at, packed = int(lane.value), is_packed(vector.type)
        if not uniform:
            text = f"{text}_{at // 2 if packed else at}"
        if packed or type(vector) is Const:
            name, type_ = self.define(node.var), register(node.var.type)
            high = " >> 16" if packed and at % 2 else ""
            self.do(f"{type_} {name} = ({type_})({text}{high});")
        else:
            self.refs[node.var.name] = text, True
        if node.var.type.dtype.kind == "int":
            self.wraps.add(node.var.name)
        return True

    def slide(self, node: Let) -> bool:
        """Name the lanes of two vectors anew; none of halves is moved so."""
        vector, before, count = node.args
        assert isinstance(count, Const)
        name, by, lanes = self.define(node.var), int(count.value), vector.type.lanes
        for lane in range(lanes):
            text, uniform = self.ref(vector if lane >= by else before)
            part = "" if uniform else f"_{(lane - by) % lanes}"
            self.do(f"{register(node.var.type)} {name}_{lane} = {text}{part};")
        return True

    def copied(self, value: Operand, name: str, *, declared: bool) -> None:
        """Assign a value to a variable with parts."""
        text, uniform = self.ref(value)
        self.put(copy(value.type, uniform=uniform, declared=declared), name, text)


def is_inside(node: Let) -> bool:
    """Say whether a shift is by a constant that leaves bits."""
    by = node.args[1]
    return isinstance(by, Const) and 0 <= by.value < 8 * by.type.dtype.bytes


SHAPES: Final[dict[str, Callable[[Values, Let], bool]]] = {
    "cast": Values.cast,
    "splat": Values.splat,
    "extract": Values.extract,
    "slide": Values.slide,
}
