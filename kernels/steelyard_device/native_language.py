"""What our native code is written in: Python's grammar over words of memory, made LLVM IR.

    class Pair:
        one: i64
        next: ptr[Pair]

    def total(first: ptr[Pair], bias: i64) -> i64:
        found = bias
        while first != null:
            found = found + first.one
            first = first.next
        return found

Types are `i1` to `i64`, `double`, a `ptr`, which may be a `ptr[...]` to something, and a
`fn[...]` that returns something; a type is called to convert, numbers with zeros above.
`p[i]` is an element, of structs its address, `p.name` a field, `address(...)` where either
is. Numbers are signed; a literal has the type that it meets, else i64. `room(type, count,
alignment)` is memory of the function, `llvm(type, text, ...)` an instruction as LLVM spells
it, and `...` the body of what others define. A text by itself is LLVM's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

Value: TypeAlias = tuple[str, str]
"""A type, such as "i64", "ptr Pair" or "fn i32", "" of a literal; LLVM's spelling."""

BINARY: Final[dict[type, str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.LShift: "shl",
    ast.RShift: "lshr",
    ast.Eq: "icmp eq",
    ast.NotEq: "icmp ne",
    ast.Lt: "icmp slt",
    ast.LtE: "icmp sle",
    ast.Gt: "icmp sgt",
    ast.GtE: "icmp sge",
}


def own(
    source: str, entries: Sequence[str], given: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Load a source, in which `given` names are texts, and return its entries' addresses."""
    from steelyard_device import llvm  # llvmlite takes long to import

    names = dict(given or {})
    known = repr((source, entries, names, Path(__file__).read_text()))
    return llvm.own(known, entries, lambda: translated(source, entries, names))


def translated(source: str, entries: Sequence[str], given: Mapping[str, str]) -> str:
    """Return the LLVM IR of a source, whose locals are memory: a pass makes them registers.

    Functions but the entries are internal.
    """
    body = ast.parse(source).body
    structs = {
        node.name: {each.target.id: type_of(each.annotation) for each in node.body}  # type: ignore[attr-defined] # a struct has fields alone
        for node in body
        if isinstance(node, ast.ClassDef)
    }
    signatures = {
        n.name: (type_of(n.returns), [type_of(x.annotation) for x in n.args.args])
        for n in body
        if isinstance(n, ast.FunctionDef)
    }
    lines = [
        f"%{name} = type {{ {', '.join(map(spelled, fields.values()))} }}"
        for name, fields in structs.items()
    ]
    for node in body:
        if isinstance(node, ast.FunctionDef):
            internal = "internal " * (node.name not in entries)
            lines += Function(node, structs, signatures, given).text(internal)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.append(str(node.value.value))
    return "\n".join(lines)


def type_of(node: ast.expr | None) -> str:
    """Read a type, or LLVM's text of one; none is what returns nothing."""
    if isinstance(node, ast.Subscript):
        return f"{type_of(node.value)} {type_of(node.slice)}"
    if isinstance(node, ast.Constant) and node.value is not None:
        return str(node.value)
    return node.id if isinstance(node, ast.Name) else "void"


def spelled(type_: str) -> str:
    """Return a type as LLVM spells it."""
    return "ptr" if type_[:3] in {"ptr", "fn "} else type_


class Function:
    """Translates a function, which sees structs, others' signatures and given names."""

    def __init__(
        self,
        node: ast.FunctionDef,
        structs: Mapping[str, Mapping[str, str]],
        signatures: Mapping[str, tuple[str, list[str]]],
        given: Mapping[str, str],
    ) -> None:
        self.node, self.structs, self.signatures = node, structs, signatures
        self.given = given
        self.rooms: list[str] = []  # of locals
        self.lines: list[str] = []
        self.locals: dict[str, Value] = {}  # of what type, and where
        self.count = 0
        self.open = True  # whether something of this block may follow
        self.loops: list[tuple[str, str]] = []  # where each goes on, and ends

    def text(self, internal: str) -> list[str]:
        """Return the definition, or of what others define the declaration."""
        node, (of, types) = self.node, self.signatures[self.node.name]
        result, names = spelled(of), [each.arg for each in node.args.args]
        taken = list(zip(names, types, strict=True))
        match node.body:
            case [ast.Expr(ast.Constant(value)), *_] if value is ...:
                words = ", ".join([spelled(type_) for _, type_ in taken])
                return [f"declare {result} @{node.name}({words})"]
        for name, type_ in taken:
            self.keep(name, (type_, f"%{name}"))
        self.block(node.body)
        self.end("ret void" if result == "void" else "unreachable")
        words = ", ".join([f"{spelled(type_)} %{name}" for name, type_ in taken])
        head = f"define {internal}{result} @{node.name}({words}) {{"
        return [head, *self.rooms, *self.lines, "}"]

    # Instructions and blocks.

    def do(self, line: str) -> None:
        """Append an instruction, if anything comes to it."""
        if self.open:
            self.lines.append(line)

    def end(self, line: str) -> None:
        """Append the last instruction of a block."""
        self.do(line)
        self.open = False

    def begin(self, label: str) -> None:
        """Begin a block, to which the one before goes on."""
        self.end(f"br label %{label}")
        self.lines.append(f"{label}:")
        self.open = True

    def named(self, word: str) -> str:
        """Return a new name."""
        self.count += 1
        return f"{word}.{self.count}"

    def made(self, type_: str, line: str) -> Value:
        """Append an instruction that gives a value."""
        name = f"%{self.named('v')}"
        self.do(f"{name} = {line}")
        return type_, name

    def done(self, type_: str, line: str) -> Value:
        """Append an instruction that gives a value, or nothing."""
        if type_ != "void":
            return self.made(type_, line)
        self.do(line)
        return type_, ""

    def keep(self, name: str, value: Value) -> None:
        """Give a local a value; it has the type of its first."""
        if name not in self.locals:
            at = f"%{self.named(name)}"
            self.locals[name] = value[0] or "i64", at
            self.rooms.append(f"{at} = alloca {spelled(self.locals[name][0])}")
        self.store(self.locals[name], value)

    def store(self, place: Value, value: Value) -> None:
        """Store a value in a place."""
        self.do(f"store {spelled(place[0])} {value[1]}, ptr {place[1]}")

    # Statements.

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Translate statements, one after another."""
        for each in statements:
            self.statement(each)

    def statement(self, node: ast.stmt) -> None:  # noqa: C901 - one case a production
        """Translate a statement."""
        match node:
            case ast.Expr(ast.Constant()):
                pass  # it says why
            case ast.Expr(value):
                self.value(value)
            case ast.Return(None):
                self.end("ret void")
            case ast.Return(ast.expr() as value):
                type_ = spelled(type_of(self.node.returns))
                self.end(f"ret {type_} {self.value(value)[1]}")
            case ast.Assign([ast.Name(name)], value):
                self.keep(name, self.value(value))
            case ast.Assign([target], value):
                found = self.value(value)
                self.store(self.place(target), found)
            case ast.If(test, body, orelse):
                then, other, end = map(self.named, ("then", "else", "end"))
                self.test(test, then, other)
                for label, side in ((then, body), (other, orelse)):
                    self.begin(label)
                    self.block(side)
                    self.end(f"br label %{end}")
                self.begin(end)
            case ast.While(test, body):
                self.loop(lambda go, end: self.test(test, go, end), body)
            case ast.For(ast.Name(name), ast.Call(_, [*first, last]), body):
                self.counted(name, [self.value(each) for each in (*first, last)], body)
            case ast.Continue() | ast.Break():
                self.end(f"br label %{self.loops[-1][isinstance(node, ast.Break)]}")
            case _:
                raise SyntaxError(ast.unparse(node))

    def loop(
        self,
        test: Callable[[str, str], None],
        body: Sequence[ast.stmt],
        count: Callable[[], None] | None = None,
    ) -> None:
        """Translate a loop by the test before each turn, and what counts behind it."""
        head, inside, following, end = map(self.named, ("loop", "turn", "next", "end"))
        self.begin(head)
        test(inside, end)
        self.begin(inside)
        self.loops.append((following, end))
        self.block(body)
        self.loops.pop()
        self.begin(following)
        if count is not None:
            count()
        self.end(f"br label %{head}")
        self.begin(end)

    def counted(self, name: str, ends: list[Value], body: Sequence[ast.stmt]) -> None:
        """Translate a loop over numbers, from 0 or another one up to a last."""
        type_, last = ends[-1][0] or "i64", ends[-1][1]
        first = ends[0] if len(ends) > 1 else ("", "0")
        self.keep(name, (type_, first[1]))
        place = self.locals[name]

        def test(go: str, end: str) -> None:
            more = self.made("i1", f"icmp slt {type_} {self.loaded(place)[1]}, {last}")
            self.end(f"br i1 {more[1]}, label %{go}, label %{end}")

        def count() -> None:
            now = self.loaded(place)[1]
            self.store(place, self.made(type_, f"add {type_} {now}, 1"))

        self.loop(test, body, count)

    def test(self, node: ast.expr, yes: str, no: str) -> None:
        """Branch by a condition; of several no more is asked than decides."""
        match node:
            case ast.UnaryOp(ast.Not(), inner):
                self.test(inner, no, yes)
            case ast.BoolOp(op, [*first, last]):
                for each in first:
                    more = self.named("more")
                    ends = (more, no) if isinstance(op, ast.And) else (yes, more)
                    self.test(each, *ends)
                    self.begin(more)
                self.test(last, yes, no)
            case ast.Constant(bool()):
                self.end(f"br label %{yes if node.value else no}")
            case _:
                type_, value = self.value(node)
                if type_ != "i1":
                    none = "null" if spelled(type_) == "ptr" else "0"
                    line = f"icmp ne {spelled(type_)} {value}, {none}"
                    value = self.made("i1", line)[1]
                self.end(f"br i1 {value}, label %{yes}, label %{no}")

    # Values.

    def element(self, type_: str) -> Value:
        """Return the type of what a pointer points to, and LLVM's spelling."""
        of = type_.removeprefix("ptr ")
        return of, f"%{of}" if of in self.structs else spelled(of)

    def place(self, node: ast.expr) -> Value:
        """Return the type of what is in a local, a field or an element, and where it is."""
        match node:
            case ast.Name(name):
                return self.locals[name]
            case ast.Attribute(base, name):
                type_, at = self.value(base)
                of, form = self.element(type_)
                field = [*self.structs[of]].index(name)
                line = f"getelementptr {form}, ptr {at}, i32 0, i32 {field}"
                return self.structs[of][name], self.made("ptr", line)[1]
            case ast.Subscript(base, index):
                (type_, at), (by, number) = self.value(base), self.value(index)
                of, form = self.element(type_)
                line = f"getelementptr {form}, ptr {at}, {by or 'i64'} {number}"
                return of, self.made("ptr", line)[1]
        raise SyntaxError(ast.unparse(node))

    def loaded(self, place: Value) -> Value:
        """Return what is in a place; of a struct its address."""
        type_, at = place
        if type_ in self.structs:
            return f"ptr {type_}", at
        return self.made(type_, f"load {spelled(type_)}, ptr {at}")

    def value(self, node: ast.expr) -> Value:
        """Translate an expression."""
        match node:
            case ast.Constant(bool()):
                return "i1", str(node.value).lower()
            case ast.Constant(int() | str() as number):
                return "", str(number)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as number)):
                return "", str(-number)
            case ast.Name("null"):
                return "ptr", "null"
            case ast.Name(name) if self.is_function(name):
                return f"fn {self.signatures[name][0]}", f"@{name}"
            case ast.Name(name) if name in self.given:
                return "", self.given[name]
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                (a, x), (b, y) = self.value(left), self.value(right)
                word = BINARY[type(op)]
                line = f"{word} {spelled(a or b or 'i64')} {x}, {y}"
                return self.made("i1" if word[:4] == "icmp" else a or b, line)
            case ast.IfExp():
                return self.chosen(node)
            case ast.Call():
                return self.call(node)
        return self.loaded(self.place(node))

    def is_function(self, name: str) -> bool:
        """Say whether a name is a function's."""
        return name in self.signatures and name not in self.locals

    def chosen(self, node: ast.IfExp) -> Value:
        """Translate `a if x else b`."""
        name, yes, no, end = map(self.named, ("chosen", "yes", "no", "end"))
        self.test(node.test, yes, no)
        for label, side in ((yes, node.body), (no, node.orelse)):
            self.begin(label)
            self.keep(name, self.value(side))
            self.end(f"br label %{end}")
        self.begin(end)
        return self.loaded(self.locals[name])

    def call(self, node: ast.Call) -> Value:
        """Translate a call, a conversion, or what has a name of its own."""
        match node:
            case ast.Call(ast.Name("address"), [where]):
                type_, at = self.place(where)
                return f"ptr {type_}", at
            case ast.Call(ast.Name("room"), [of, count, ast.Constant(int() as least)]):
                type_, (by, many) = f"ptr {type_of(of)}", self.value(count)
                line = f"alloca {self.element(type_)[1]}, {by or 'i64'} {many}"
                return self.made(type_, f"{line}, align {least}")
            case ast.Call(ast.Name("llvm"), [of, text, *args]):
                line = self.value(text)[1].format(*[self.value(x)[1] for x in args])
                return self.done(type_of(of), line)
            case ast.Call(
                (ast.Name("ptr" | "i1" | "i8" | "i32" | "i64"))
                | ast.Subscript(ast.Name("ptr" | "fn")) as of,
                [value],
            ):
                return self.converted(self.value(value), type_of(of))
        function, given = self.value(node.func), [self.value(x) for x in node.args]
        result, wanted = function[0].removeprefix("fn "), [t for t, _ in given]
        if isinstance(node.func, ast.Name) and self.is_function(node.func.id):
            _, wanted = self.signatures[node.func.id]
        pairs = list(zip(wanted, given, strict=True))
        if any(t and spelled(t) != spelled(w) for w, (t, _) in pairs):
            raise SyntaxError(f"{ast.unparse(node)} takes {', '.join(wanted)}")
        words = ", ".join([f"{spelled(w or 'i64')} {value}" for w, (_, value) in pairs])
        return self.done(result, f"call {spelled(result)} {function[1]}({words})")

    def converted(self, value: Value, type_: str) -> Value:
        """Return a value as another type."""
        before, to = spelled(value[0]), spelled(type_)
        if before in {"", to}:
            return type_, value[1]
        step = "ptrtoint" if before == "ptr" else "inttoptr"
        if "ptr" not in {before, to}:
            step = "zext" if int(to[1:]) > int(before[1:]) else "trunc"
        return self.made(type_, f"{step} {before} {value[1]} to {to}")
