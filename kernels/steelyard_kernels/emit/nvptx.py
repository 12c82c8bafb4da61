"""LLVM IR of a loop kernel for one thread of a GPU: what differs from the CPU's.

For a single kernel's latency: `steelyard_device.nvptx` makes a cubin of it. The text is
the same for all architectures. It is rounded as what NVRTC builds is, every operation
correctly or by the one instruction that NVRTC takes as well, but for the functions that
the CUDA library has and `ir.functions` spells out here: their errors are stated there.
What there is no need to spell (asynchronous copies, matrices) is `Unsupported`: NVRTC
builds it.

Loops that a schedule unrolls are spelled out, a turn after the other, each with names of
its own. Index arithmetic on the loop's variable folds as it goes, so that what a turn says
of its place in a register buffer is a constant, as LLVM needs to put it in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from steelyard_device.llvm import Host
from steelyard_kernels.dtypes import HALVES, bool_, float32, float64
from steelyard_kernels.emit import llvm_convert
from steelyard_kernels.emit.llvm import Emitter, ascii_only, ref
from steelyard_kernels.emit.llvm_text import Writer, memory, register
from steelyard_kernels.errors import CompilerBug, Unsupported
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.builder import FOLDED
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var

TRIPLE: Final = "nvptx64-nvidia-cuda"
ADDRESSES: Final = {
    "global": "ptr addrspace(1)",
    "shared": "ptr addrspace(3)",
    "register": "ptr",  # LLVM's registers in the end, its generic memory at first
    "stack": "ptr",
}
WORD: Final = 16  # bytes of the widest access
ROLLED: Final = """
!9 = distinct !{!9, !8}
!8 = !{!"llvm.loop.unroll.disable"}
"""


def emit(kernel: Kernel, *, entry: str = "kernel") -> str:
    """Return the LLVM IR text of a verified kernel, its entry a `ptx_kernel`.

    Raises `Unsupported` for what only NVRTC builds.
    """
    from steelyard_device.llvm import Host

    host = Host(TRIPLE, "any", frozenset(), WORD)
    emitter = _NvptxEmitter(host, kernel.copies)
    body = emitter.entry(kernel)
    arrays = [_parameter(p) for p in kernel.parameters if isinstance(p, Buffer)]
    numbers = [_parameter(p) for p in kernel.parameters if isinstance(p, Var)]
    if kernel.copies > 1:
        arrays = [f"{p}.of{copy}" for copy in range(kernel.copies) for p in arrays]
    parameters = ", ".join([*arrays, *numbers])
    declared = [*sorted(emitter.w.declared), *emitter.shared]
    bounds = [f'!{{ptr @{entry}, !"maxntidx", i32 {kernel.threads}}}']
    if kernel.registers:
        bounds.append(f'!{{ptr @{entry}, !"maxnreg", i32 {kernel.registers}}}')
    if kernel.resident:
        bounds.append(f'!{{ptr @{entry}, !"minctasm", i32 {kernel.resident}}}')
    numbered = [f"!{k} = {bound}" for k, bound in enumerate(bounds)]
    names = ", ".join([f"!{k}" for k in range(len(bounds))])
    lines = [
        f'target triple = "{TRIPLE}"',
        *declared,
        f"define ptx_kernel void @{entry}({parameters}) {{",
        body,
        "}",
        f"!nvvm.annotations = !{{{names}}}",
        *numbered,
    ]
    text = "\n".join(lines) + ROLLED
    return text if text.isascii() else ascii_only(text)


def _parameter(parameter: Buffer | Var) -> str:
    if isinstance(parameter, Buffer):
        only = "readonly " if parameter.access == "in" else ""
        return f"{ADDRESSES['global']} noalias {only}%{parameter.name}"
    if parameter.type.dtype is bool_:
        return f"i8 %{parameter.name}.byte"
    return f"{register(parameter.type)} %{parameter.name}"


class _NvptxEmitter(Emitter):
    """Emits one kernel for a GPU."""

    __slots__ = ("shared", "splats")

    def __init__(self, host: Host, copies: int) -> None:
        super().__init__(host, copies)
        self.shared: list[str] = []
        self.splats: dict[str, str] = {}  # of bool vectors: their one condition

    def argument(self, slot: int, parameter: Buffer | Var) -> None:  # noqa: ARG002 - all are passed by value
        """Choose this copy's array, and read a bool from its byte; others are there."""
        w, name = self.w, parameter.name
        if isinstance(parameter, Var):
            if parameter.type.dtype is bool_:
                w.do(f"%{name} = icmp ne i8 %{name}.byte, 0")
            return
        own, type_ = f"%{name}.of0", ADDRESSES[parameter.space]
        for copy in range(1, self.copies):
            number = w.put(w.call("i32", "llvm.nvvm.read.ptx.sreg.ctaid.y"))
            here = w.put(f"icmp eq i32 {number}, {copy}")
            own = w.put(f"select i1 {here}, {type_} %{name}.of{copy}, {type_} {own}")
        if self.copies > 1:
            w.do(f"%{name} = getelementptr i8, {type_} {own}, i64 0")

    def pointer(self, buffer: Buffer) -> tuple[str, str]:
        """Return the type and the value of a buffer's address, by its space."""
        sign = "@" if buffer.space == "shared" else "%"
        return ADDRESSES[buffer.space], f"{sign}{buffer.name}"

    def condition(self, mask: Operand) -> str | None:
        """Return the one condition of a mask that is a splat."""
        if isinstance(mask, Const):
            return "true" if mask.value else "false"
        return self.splats.get(mask.name) or super().condition(mask)

    def let(self, node: ir.Let) -> None:
        """Emit an operation."""
        if node.op == "rsqrt" and node.var.type.dtype is not float64:
            self.root(node)
            return
        own = OWN.get(node.op)
        if own is None:
            super().let(node)
            if node.op == "splat" and node.var.type.dtype is bool_:
                self.splats[node.var.name] = ref(node.args[0])
            return
        args = [ref(arg) for arg in node.args]
        types = [arg.type for arg in node.args]
        spelled = own(self.w, node.op, args, [*types, node.var.type])
        self.w.do(f"%{node.var.name} = {spelled}")

    def root(self, node: ir.Let) -> None:
        """Emit 1 / sqrt(x) of float32, for which there is an instruction.

        It is within 2 ulp (PTX ISA, `rsqrt.approx`), as is the CUDA library's rsqrtf.
        """
        w, x, type_ = self.w, ref(node.args[0]), node.var.type
        if type_.dtype in HALVES:
            x = llvm_convert.widened(w, x, type_)
        root = _approximate(w, "rsqrt.approx", [x], [ir.typed(float32, type_.lanes)])
        if type_.dtype in HALVES:
            root = llvm_convert.narrow(w, w.put(root), type_)
        w.do(f"%{node.var.name} = {root}")

    def alloc(self, node: ir.Alloc) -> None:
        """Reserve a block's memory beside the kernel, a thread's in its entry."""
        buffer = node.buffer
        if buffer.space != "shared":
            super().alloc(node)
            return
        room = f"[{ref(buffer.extent)} x {memory(ir.typed(buffer.dtype))}]"
        self.shared.append(
            f"@{buffer.name} = internal addrspace(3) global {room} poison, align {WORD}"
        )

    def loop(self, node: ir.For) -> None:
        """Emit a loop, or every turn of it where that was asked for."""
        if not is_spelled_out(node):
            super().loop(node)
            return
        statements, last = spelled_out(node, f".{self.w.fresh()}")
        self.body(statements)
        for result, value in zip(node.results, last, strict=True):
            type_ = register(result.type)
            self.w.do(f"%{result.name} = bitcast {type_} {ref(value)} to {type_}")

    def hint(self, node: ir.For) -> str:
        """Keep a loop rolled where that was asked for."""
        return ", !llvm.loop !9" if node.unroll == 1 else ""

    def effect(self, node: ir.Effect) -> None:
        """Emit a barrier; of the others there is none."""
        if node.op != "barrier":
            raise _only_nvrtc(node.op)
        self.w.do(self.w.call("void", "llvm.nvvm.barrier0"))

    def parallel(self, node: ir.Parallel) -> None:
        """Refuse: blocks are dealt out by the launch."""
        raise Unsupported(
            f"threads of a GPU take no chunks of {node.chunk}; choose a schedule made "
            "for cuda."
        )


def _only_nvrtc(op: str) -> Unsupported:
    return Unsupported(f"{op} is not emitted as LLVM IR; build this kernel with NVRTC.")


def _position(w: Writer, op: str, _args: list[str], types: list[Type]) -> str:
    """Return which thread or block this is; both are below 2**31."""
    name = {"thread": "tid", "block": "ctaid"}[op]
    call = w.call("i32", f"llvm.nvvm.read.ptx.sreg.{name}.x")
    to = types[-1].dtype.llvm
    return f"zext i32 {w.put(call)} to {to}" if to != "i32" else call


def _shuffle(w: Writer, op: str, args: list[str], types: list[Type]) -> str:
    """Return a value of another lane of the warp, by words of 32 bits."""
    value, lane = args
    type_, index = types[0], types[1].dtype.llvm
    if type_.lanes > 1:
        one = ir.typed(type_.dtype)
        return _lane_by_lane(
            w, value, type_, lambda x: _shuffle(w, op, [x, lane], [one, types[1]])
        )
    if index != "i32":
        lane = w.put(f"trunc {index} {lane} to i32")
    spelled, width = register(type_), 8 * type_.dtype.bytes
    how = {"shuffle_xor": "bfly", "shuffle_down": "down"}[op]

    def moved(word: str) -> str:
        pairs = [("i32", x) for x in ("-1", word, lane, "31")]  # all of the warp's 32
        return w.call("i32", f"llvm.nvvm.shfl.sync.{how}.i32", *pairs)

    if width < 32:
        word = w.put(f"zext {spelled} {value} to i32")
        return f"trunc i32 {w.put(moved(word))} to {spelled}"
    if width == 32:
        word = w.put(f"bitcast {spelled} {value} to i32")
        return f"bitcast i32 {w.put(moved(word))} to {spelled}"
    both = w.put(f"bitcast {spelled} {value} to <2 x i32>")
    whole = "poison"
    for k in range(2):
        word = w.put(f"extractelement <2 x i32> {both}, i64 {k}")
        other = w.put(moved(word))
        whole = w.put(f"insertelement <2 x i32> {whole}, i32 {other}, i64 {k}")
    return f"bitcast <2 x i32> {whole} to {spelled}"


def _approximate(w: Writer, op: str, args: list[str], types: list[Type]) -> str:
    """Return an instruction's float32 of every lane, its last step unnamed."""
    name = f"llvm.nvvm.{APPROXIMATE.get(op, op)}.f"
    return _lane_by_lane(
        w, args[0], types[0], lambda x: w.call("float", name, ("float", x))
    )


def _lane_by_lane(w: Writer, x: str, type_: Type, spelled: Callable[[str], str]) -> str:
    """Return what is spelled of each lane, its last step unnamed."""
    if type_.lanes == 1:
        return spelled(x)
    vector, element, value = register(type_), register(ir.typed(type_.dtype)), "poison"
    for lane in range(type_.lanes):
        one = w.put(spelled(w.put(f"extractelement {vector} {x}, i64 {lane}")))
        last = f"insertelement {vector} {value}, {element} {one}, i64 {lane}"
        value = w.put(last) if lane + 1 < type_.lanes else last
    return value


def _refused(_w: Writer, op: str, _args: list[str], _types: list[Type]) -> str:
    raise _only_nvrtc(op)


APPROXIMATE: Final = {"exp2_approx": "ex2.approx.ftz"}  # by the GPU's instructions
OWN: Final[dict[str, Callable[[Writer, str, list[str], list[Type]], str]]] = {
    "thread": _position,
    "block": _position,
    "shuffle_xor": _shuffle,
    "shuffle_down": _shuffle,
    "exp2_approx": _approximate,
    **dict.fromkeys(("shuffle", "any_warp", "any_block"), _refused),
}


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
        own = [self.part(name, getattr(node, name)) for name in node.__struct_fields__]
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
