"""LLVM IR of a loop kernel, for the CPU: SSA, explicit vectors, no passes after.

The entry is `void @NAME(ptr %args, ptr %ticket, i32 %index, i32 %count)`: `args`
holds 8-byte slots in parameter order (an address, or a scalar's bits), `ticket`
the count of chunks already taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from steelyard_device.llvm import Host
from steelyard_kernels.dtypes import bool_
from steelyard_kernels.emit.llvm_operations import expression, known_mask, scales
from steelyard_kernels.emit.llvm_text import (
    Writer,
    literal,
    mangle,
    memory,
    register,
    spell,
)
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.decompose import decomposed
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var

STREAMING = ", !nontemporal !0"
SELDOM = '!7 = !{!"branch_weights", i32 1, i32 1048575}'


def emit(kernel: Kernel, host: Host) -> str:
    """Return the LLVM IR text of a verified kernel for one machine.

    Raises `Unsupported` for what a CPU, or this one, cannot do.
    """
    emitter = Emitter(host, kernel.copies)
    entry = emitter.entry(kernel)
    declared = "\n".join(sorted(emitter.w.declared))
    text = f"{declared}\n\n{function(kernel, entry)}\n!0 = !{{i32 1}}\n"
    return text if text.isascii() else ascii_only(text)


def ascii_only(text: str) -> str:
    """Respell names that LLVM would want quoted: a user's parameter `λ`."""
    return "".join(c if c.isascii() else f"U{ord(c):04X}" for c in text)


class Emitter:
    """Emits one kernel: a method a statement, tables for the operations.

    `nvptx` overrides what a GPU does otherwise.
    """

    __slots__ = ("allocas", "arrays", "checks", "copies", "masks", "w")

    def __init__(self, host: Host, copies: int = 1) -> None:
        self.w = Writer(host)
        self.copies = copies
        self.arrays = 0  # parameters before the numbers
        self.allocas: list[str] = []
        self.masks: dict[Operand, str] = {}  # those that are known, spelled out
        self.checks = ir.methods(self)

    def entry(self, kernel: Kernel) -> str:
        """Return the function's body: arguments, scratch memory, statements."""
        w = self.w
        for slot, parameter in enumerate(kernel.parameters):
            if isinstance(parameter, ir.Tensor):
                raise Unsupported(
                    f"{parameter.name} is a tensor of bulk copies, which LLVM IR has not; "
                    "build it for target cuda:sm_90a."
                )
            self.argument(slot, parameter)
        arguments, w.lines = w.lines, []
        self.body(kernel.body)
        w.do("ret void")
        return "\n".join(["entry:", *arguments, *self.allocas, *w.lines])

    def argument(self, slot: int, parameter: Buffer | Var) -> None:
        """Read one parameter from its slot."""
        w, first = self.w, "%args"
        self.arrays += isinstance(parameter, Buffer)
        if self.copies > 1 and isinstance(parameter, Var):
            first, slot = "%numbers", slot - self.arrays
        at = w.put(f"getelementptr inbounds i64, ptr {first}, i64 {slot}")
        if isinstance(parameter, Buffer):
            w.do(f"%{parameter.name} = load ptr, ptr {at}, align 8")
        elif parameter.type.dtype is bool_:
            byte = w.put(f"load i8, ptr {at}, align 8")
            w.do(f"%{parameter.name} = icmp ne i8 {byte}, 0")
        else:
            type_ = register(parameter.type)
            w.do(f"%{parameter.name} = load {type_}, ptr {at}, align 8")

    def body(self, statements: Sequence[ir.Statement]) -> None:
        """Emit statements."""
        checks = self.checks
        for statement in statements:
            checks[type(statement)](statement)

    def nested(self, statements: Sequence[ir.Statement]) -> None:
        """Emit a body in its blocks; what it widened is forgotten after it."""
        wide = self.w.wide
        self.w.wide = wide.copy()
        self.body(statements)
        self.w.wide = wide

    def let(self, node: ir.Let) -> None:
        """Emit an operation; a function in the operations that it is made of."""
        spelled = node.op == "scaled" and scales(self.w, node.var.type)
        scope = f"{node.op}.{self.w.count}."
        statements = None if spelled else decomposed(node, "llvm", scope)
        if statements is not None:
            self.w.fresh()
            self.body(statements)
            return
        args = [ref(arg) for arg in node.args]
        result = node.var.type
        if node.op == "mask_below" and isinstance(node.args[0], Const):
            count = int(node.args[0].value)
            self.masks[node.var] = known_mask(count, result.lanes)
        type_ = node.args[0].type if args else result
        text = expression(self.w, node.op, args, type_, result)
        self.w.lines.append(f"  %{node.var.name} = {text}")

    def pointer(self, buffer: Buffer) -> tuple[str, str]:
        """Return the type and the value of a buffer's address."""
        return "ptr", f"%{buffer.name}"

    def address(
        self, buffer: Buffer, index: Operand, inbounds: str = " inbounds"
    ) -> tuple[str, str]:
        """Return the type and the value of an element's address."""
        kind, base = self.pointer(buffer)
        if isinstance(index, Const) and index.value == 0:
            return kind, base
        element, number = memory(ir.typed(buffer.dtype)), index.type.dtype.llvm
        return kind, self.w.put(
            f"getelementptr{inbounds} {element}, {kind} {base}, {number} {ref(index)}"
        )

    def flags(self, mask: Operand, type_: Type) -> tuple[str, str]:
        """Return the type and the value of a mask of what is loaded or stored.

        A known mask of less than 16 bytes is spelled where it is used: LLVM 22 widens
        these vectors, and of a mask from another block it may read bits that it never
        wrote as those of the lanes behind.
        """
        known = self.masks if type_.lanes * type_.dtype.bytes < 16 else {}
        return spell("i1", type_.lanes), known.get(mask, ref(mask))

    def condition(self, mask: Operand) -> str | None:
        """Return the one condition that a mask is in every lane, if it is known."""
        return ref(mask) if mask.type.lanes == 1 else None

    def load(self, node: ir.Load) -> None:
        """Emit a load; a bool is a byte in memory."""
        w, type_ = self.w, node.var.type
        at = self.address(node.buffer, node.index)
        align = node.alignment or type_.dtype.bytes
        spelled = memory(type_)
        if node.mask is None:
            expression = f"load {spelled}, {at[0]} {at[1]}, align {align}"
        else:
            expression = self.masked_load(node, node.mask, at, align)
        if type_.dtype is bool_:
            expression = f"icmp ne {spelled} {w.put(expression)}, zeroinitializer"
        w.lines.append(f"  %{node.var.name} = {expression}")

    def masked_load(
        self, node: ir.Load, mask: Operand, at: tuple[str, str], align: int
    ) -> str:
        """Return a load under a mask, its last step unnamed."""
        type_ = node.var.type
        spelled, flag = memory(type_), self.condition(mask)
        if flag is not None:
            return self.load_if(at, spelled, flag, align)
        name = f"llvm.masked.load.{_element_name(type_)}.{_space_name(at)}"
        zeros = (spelled, "zeroinitializer")
        how = ("i32", str(align)), self.flags(mask, type_)
        return self.w.call(spelled, name, at, *how, zeros)

    def load_if(self, at: tuple[str, str], spelled: str, flag: str, align: int) -> str:
        """Load behind a branch."""
        w = self.w
        before, name = w.block, f"masked.{w.fresh()}"
        w.do(f"br i1 {flag}, label %{name}, label %{name}.end")
        w.label(name)
        value = w.put(f"load {spelled}, {at[0]} {at[1]}, align {align}")
        w.do(f"br label %{name}.end")
        w.label(f"{name}.end")
        return f"phi {spelled} [ {value}, %{name} ], [ zeroinitializer, %{before} ]"

    def store(self, node: ir.Store) -> None:
        """Emit a store, behind a branch where one condition masks all lanes."""
        w, type_ = self.w, node.value.type
        value, spelled = ref(node.value), memory(type_)
        if type_.dtype is bool_:
            value = w.put(f"zext {register(type_)} {value} to {spelled}")
        at = self.address(node.buffer, node.index)
        align = node.alignment or type_.dtype.bytes
        if node.mask is None:
            hint = STREAMING if node.streaming else ""
            w.do(f"store {spelled} {value}, {at[0]} {at[1]}, align {align}{hint}")
            return
        flag = self.condition(node.mask)
        if flag is not None:
            name = f"masked.{w.fresh()}"
            w.do(f"br i1 {flag}, label %{name}, label %{name}.end")
            w.label(name)
            w.do(f"store {spelled} {value}, {at[0]} {at[1]}, align {align}")
            w.do(f"br label %{name}.end")
            w.label(f"{name}.end")
        else:
            name = f"llvm.masked.store.{_element_name(type_)}.{_space_name(at)}"
            how = ("i32", str(align)), self.flags(node.mask, type_)
            w.do(w.call("void", name, (spelled, value), at, *how))

    def prefetch(self, node: ir.Prefetch) -> None:
        """Ask for a cache line."""
        at = self.address(node.buffer, node.index, inbounds="")
        how = [("i32", "0"), ("i32", str(node.locality)), ("i32", "1")]  # read, data
        self.w.do(self.w.call("void", "llvm.prefetch.p0", at, *how))

    def alloc(self, node: ir.Alloc) -> None:
        """Reserve in the entry block: the same memory however often this runs."""
        buffer = node.buffer
        element, extent = memory(ir.typed(buffer.dtype)), ref(buffer.extent)
        align = buffer.alignment or buffer.dtype.bytes
        self.allocas.append(
            f"  %{buffer.name} = alloca [{extent} x {element}], align {align}"
        )

    def fence(self, node: ir.Fence) -> None:  # noqa: ARG002 - all are one
        """Order streaming stores."""
        if self.w.host.architecture == "x86_64":
            self.w.do(self.w.call("void", "llvm.x86.sse.sfence"))
        else:
            self.w.do("fence seq_cst")

    def effect(self, node: ir.Effect) -> None:
        """Refuse: a CPU has none of them."""
        raise Unsupported(
            f"{node.op} does not exist on target cpu; choose a schedule made for cpu."
        )

    def loop(self, node: ir.For) -> None:
        """Emit a loop tested at its end, behind a guard unless it surely runs."""
        w = self.w
        start, stop = ref(node.start), ref(node.stop)
        name, before = f"loop.{w.fresh()}", w.block
        index = node.var.type.dtype.llvm
        guarded = not _surely_runs(node)
        if guarded:
            runs = w.put(f"icmp slt {index} {start}, {stop}")
            w.do(f"br i1 {runs}, label %{name}, label %{name}.end")
        else:
            w.do(f"br label %{name}")
        w.label(name)
        phis = len(w.lines)  # filled in when the last values have names
        w.lines += [""] * (1 + len(node.carried))
        self.nested(node.body)
        latch = w.block
        following = w.put(f"add nsw {index} %{node.var.name}, {node.step}")
        more = w.put(f"icmp slt {index} {following}, {stop}")
        if node.until is not None:
            goes_on = w.put(f"xor i1 {ref(node.until)}, true")
            more = w.put(f"and i1 {more}, {goes_on}")
        w.do(f"br i1 {more}, label %{name}, label %{name}.end{self.hint(node)}")
        w.lines[phis] = _phi(node.var, (start, before), (following, latch))
        for at, ((var, first), last) in enumerate(
            zip(node.carried, node.yields, strict=True), phis + 1
        ):
            w.lines[at] = _phi(var, (ref(first), before), (ref(last), latch))
        w.label(f"{name}.end")
        for result, (_, first), last in zip(
            node.results, node.carried, node.yields, strict=True
        ):
            edges = [(ref(last), latch)]
            if guarded:
                edges.append((ref(first), before))
            w.lines.append(_phi(result, *edges))

    def hint(self, node: ir.For) -> str:  # noqa: ARG002 - for those who override it
        """Return what a loop's branch tells the code generator."""
        return ""

    def branch(self, node: ir.If) -> None:
        """Emit both sides; results are phis behind them."""
        w = self.w
        name = f"if.{w.fresh()}"
        then, orelse, end = f"{name}.then", f"{name}.else", f"{name}.end"
        hint = ""
        if node.seldom:
            w.declared[SELDOM] = None
            hint = ", !prof !7"
        w.do(f"br i1 {ref(node.condition)}, label %{then}, label %{orelse}{hint}")
        edges = []
        for label, body in ((then, node.body), (orelse, node.orelse)):
            w.label(label)
            self.nested(body)
            edges.append(w.block)
            w.do(f"br label %{end}")
        w.label(end)
        for result, a, b in zip(
            node.results, node.values, node.else_values, strict=True
        ):
            w.lines.append(_phi(result, (ref(a), edges[0]), (ref(b), edges[1])))

    def parallel(self, node: ir.Parallel) -> None:
        """Take chunks by the ticket; one thread runs the body once, over all."""
        w = self.w
        low, high, extent = node.low.name, node.high.name, ref(node.extent)
        if node.threads == 1:
            w.do(f"%{low} = bitcast i64 0 to i64")
            w.do(f"%{high} = bitcast i64 {extent} to i64")
            self.nested(node.body)
            return
        w.do("br label %take")
        w.label("take")
        turn = w.put("atomicrmw add ptr %ticket, i64 1 monotonic")
        w.do(f"%{low} = mul nsw i64 {turn}, {node.chunk}")
        more = w.put(f"icmp slt i64 %{low}, {extent}")
        w.do(f"br i1 {more}, label %chunk, label %done")
        w.label("chunk")
        full = w.put(f"add nsw i64 %{low}, {node.chunk}")
        least = w.call("i64", "llvm.smin.i64", ("i64", full), ("i64", extent))
        w.do(f"%{high} = {least}")
        self.nested(node.body)
        w.do("br label %take")
        w.label("done")


def ref(operand: Operand) -> str:
    """Return an operand without its type."""
    return literal(operand) if isinstance(operand, Const) else f"%{operand.name}"


def _phi(var: Var, *edges: tuple[str, str]) -> str:
    pairs = ", ".join([f"[ {value}, %{block} ]" for value, block in edges])
    return f"  %{var.name} = phi {register(var.type)} {pairs}"


def _surely_runs(node: ir.For) -> bool:
    start, stop = node.start, node.stop
    if isinstance(start, Const) and isinstance(stop, Const):
        return start.value < stop.value
    return False


def _space_name(at: tuple[str, str]) -> str:
    """Return an address's type as a masked intrinsic's name has it."""
    number = "".join(filter(str.isdigit, at[0])) or "0"  # of the address space
    return f"p{number}"


def _element_name(type_: Type) -> str:
    """Return a memory type as a masked intrinsic's name has it."""
    return mangle("i8" if type_.dtype is bool_ else type_.dtype.llvm, type_.lanes)


# A kernel on a CPU is one function, or one that does several copies in turn.
HEAD: Final = (
    "define void @{name}(ptr noalias %args, ptr %ticket, i32 %index, i32 %count) {{"
)
# Of a kernel whose launch has several copies: one of them, and all, one after another. Each
# has a counter of its own in the ticket's line: no thread waits between two.
ONE: Final = (
    "define internal void @{name}.one(ptr noalias %args, ptr noalias %numbers, "
    "ptr %ticket, i32 %index, i32 %count) {{"
)
COPY: Final = """\
  %args.{copy} = getelementptr i64, ptr %args, i64 {begin}
  %ticket.{copy} = getelementptr i64, ptr %ticket, i64 {copy}
  call void @{name}.one(ptr %args.{copy}, ptr %numbers, ptr %ticket.{copy}, \
i32 %index, i32 %count)
"""


def function(kernel: Kernel, body: str) -> str:
    """Return the text of a kernel whose body is given, and of all its copies."""
    if kernel.copies == 1:
        return f"{HEAD.format(name=kernel.name)}\n{body}\n}}\n"
    return f"{ONE.format(name=kernel.name)}\n{body}\n}}\n{_every(kernel)}"


def _every(kernel: Kernel) -> str:
    """Return the function that does all copies: arrays of each, then the numbers."""
    arrays = sum(isinstance(each, Buffer) for each in kernel.parameters)
    copies, name = kernel.copies, kernel.name
    numbers = f"  %numbers = getelementptr i64, ptr %args, i64 {arrays * copies}\n"
    calls = [COPY.format(name=name, copy=k, begin=arrays * k) for k in range(copies)]
    head = HEAD.format(name=name)
    return f"\n{head}\nentry:\n{numbers}{''.join(calls)}  ret void\n}}\n"
