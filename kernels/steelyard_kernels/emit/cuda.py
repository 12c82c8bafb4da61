"""CUDA C++ of loop kernels, for NVRTC: no headers, one line or a few a statement.

A kernel is `extern "C" __global__ void ENTRY(parameters)`: buffers as pointers that
never alias, scalars by value. The text of a kernel depends on nothing but it and its
entry, so that many can be one program; `#line 1 "ENTRY"` before each makes the
compiler's messages name it. To be compiled with -fmad=false: the IR says what is fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steelyard_kernels.dtypes import HALVES
from steelyard_kernels.emit import ENTRY, cuda_memory, cuda_tiles
from steelyard_kernels.emit.cuda_effects import Effects
from steelyard_kernels.emit.cuda_helpers import functions, preamble
from steelyard_kernels.emit.cuda_template import copy, own
from steelyard_kernels.emit.cuda_text import memory, register
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.decompose import decomposed
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Var

MOST_REGISTERS = 255  # a thread can have: no bound at all
TENSOR = "const __grid_constant__ Tensor"
LINE = '#line 1 "{}"\n'  # before a kernel: the compiler's messages name it


def emit(kernel: Kernel, *, entry: str = ENTRY) -> str:
    """Return the CUDA C++ of a verified kernel.

    Raises `Unsupported` for what a GPU cannot do.
    """
    emitter = _Emitter()
    own = emitter.entry(kernel, entry)
    helpers = preamble(emitter.w.helpers, doubles="double" in own)
    return f"{helpers}{LINE.format(entry)}{own}"


def joined(texts: Iterable[tuple[str, str]]) -> str:
    """Return one program of texts of `ENTRY`, by the entries that they get.

    What helps several is there once; each is its entry's line 1, as if it were alone.
    """
    helpers: dict[str, None] = {}
    every = []
    for entry, text in texts:
        shared, _, own = text.rpartition(LINE.format(ENTRY))
        helpers |= dict.fromkeys(functions(shared))
        renamed = own.replace(f" {ENTRY}(", f" {entry}(", 1)
        every.append(f"{LINE.format(entry)}{renamed}")
    return "".join([*helpers, *every])


class _Emitter(Effects):
    """Emits one kernel: a method a statement, tables for the operations."""

    __slots__ = ("arrays", "checks", "dynamic", "shared")

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[str] = []
        self.dynamic = False
        self.shared: list[Buffer] = []
        self.checks = ir.methods(self)

    def entry(self, kernel: Kernel, entry: str) -> str:
        """Return the kernel's text; scratch memory is declared first."""
        extents = {p.extent for p in kernel.parameters if isinstance(p, Buffer)}
        extents |= {p for p in kernel.parameters[-1:] if isinstance(p, Var)}
        spelled = self.parameters(kernel, extents)
        self.dynamic = kernel.shared > 0  # memory of the launch's size
        self.arrays += [cuda_tiles.DYNAMIC] * self.dynamic
        self.body(kernel.body)
        takes = any(isinstance(p, ir.Tensor) for p in kernel.parameters)
        head = (cuda_tiles.TENSOR if takes else "") + (
            f'extern "C" __global__ void {_bounds(kernel)} {entry}'
            f"({', '.join(spelled)}) {{"
        )
        arrays = [f"  {line}" for line in self.arrays]
        return "\n".join([head, *arrays, *self.w.lines, "}\n"])

    def parameters(self, kernel: Kernel, extents: set[Operand]) -> list[str]:
        """Return all parameters: arrays of each copy, of which the first lines choose."""
        pairs = [self.parameter(each, extents) for each in kernel.parameters]
        if kernel.copies == 1:
            return [f"{type_} {name}" for type_, name in pairs]
        every = list(zip(kernel.parameters, pairs, strict=True))
        arrays = [pair for p, pair in every if not isinstance(p, Var)]
        for type_, name in arrays:
            own = f"{name}of0"
            for number in range(1, kernel.copies):
                own = f"blockIdx.y == {number} ? {name}of{number} : {own}"
            local = "const Tensor &" if type_ == TENSOR else f"{type_} const "
            self.arrays.append(f"{local}{name} = {own};")
        every_copy = range(kernel.copies)
        return [
            *[f"{type_} {name}of{k}" for k in every_copy for type_, name in arrays],
            *[f"{type_} {name}" for p, (type_, name) in every if isinstance(p, Var)],
        ]

    def parameter(
        self, parameter: ir.Parameter, extents: set[Operand]
    ) -> tuple[str, str]:
        """Return the type and the name of a parameter."""
        name = self.w.name(parameter.name)
        if isinstance(parameter, ir.Tensor):
            self.buffers[parameter.name] = name
            return TENSOR, name
        if isinstance(parameter, Buffer):
            self.buffers[parameter.name] = name
            const = "const " if parameter.access == "in" else ""
            return f"{const}{memory(parameter.dtype)} *__restrict__", name
        self.w.refs[parameter.name] = name, True
        if parameter not in extents:
            self.w.wraps.add(parameter.name)
        return parameter.type.dtype.cuda, name

    def body(self, statements: Sequence[ir.Statement]) -> None:
        checks = self.checks
        for statement in statements:
            checks[type(statement)](statement)

    def nested(self, statements: Sequence[ir.Statement]) -> None:
        """Emit a body in its block; what it widened is forgotten after it."""
        twins = self.w.twins
        self.w.twins = twins.copy()
        self.body(statements)
        self.w.twins = twins

    def let(self, node: ir.Let) -> None:
        """Emit an operation, or those it is made of where CUDA C++ has no text for it."""
        scope = f"{node.op}_{len(self.w.refs)}x"
        statements = decomposed(node, "cuda", scope)
        if statements is None:
            self.w.let(node)
        else:
            self.body(statements)

    def load(self, node: ir.Load) -> None:
        w, type_ = self.w, node.var.type
        how, packed, place = self.access(node, type_)
        mask, flag = self.mask(node.mask)
        made = cuda_memory.load(type_, how, mask, packed=packed)
        name = w.define(node.var)
        if type_.dtype.kind == "int":
            w.wraps.add(node.var.name)
        w.put(made, name, *place, flag)

    def access(
        self, node: ir.Load | ir.Store, type_: ir.Type
    ) -> tuple[str, bool, tuple[str, str]]:
        """Return how memory is read or written, in pairs of halves or not, and where."""
        buffer, (index, _) = node.buffer, self.w.ref(node.index)
        packed = buffer.space in cuda_memory.PRIVATE and buffer.dtype in HALVES
        how = cuda_memory.access(buffer, type_.lanes, node.alignment)
        return how, packed, (self.buffers[buffer.name], index)

    def store(self, node: ir.Store) -> None:
        w, type_ = self.w, node.value.type
        how, packed, place = self.access(node, type_)
        mask, flag = self.mask(node.mask)
        value, uniform = w.ref(node.value)
        made = cuda_memory.store(type_, how, mask, packed=packed, uniform=uniform)
        w.put(made, value, *place, flag)

    def mask(self, mask: Operand | None) -> tuple[str, str]:
        """Return whether a mask is one condition or one a lane, and its spelling."""
        if mask is None:
            return "none", ""
        text, uniform = self.w.ref(mask)
        return "all" if uniform else "lanes", text

    def alloc(self, node: ir.Alloc) -> None:
        """Declare at the top: the same memory however often this runs."""
        buffer = node.buffer
        name = self.buffers[buffer.name] = self.w.name(buffer.name)
        assert isinstance(buffer.extent, Const)
        if self.dynamic and buffer.space == "shared":
            self.shared.append(buffer)
            at = ir.shared_places(self.shared)[0][buffer.name]
            element = memory(buffer.dtype)
            place = f"({element} *)(dynamic_memory + {at})"
            self.arrays.append(f"{element} *const {name} = {place};")
            return
        self.arrays.append(cuda_memory.array(buffer, name, int(buffer.extent.value)))

    def loop(self, node: ir.For) -> None:
        """Carried values are variables of this level, assigned when a turn ends."""
        w = self.w
        names = []
        for var, first in node.carried:
            names.append(w.define(var))
            self.w.copied(first, names[-1], declared=True)
            self.w.wraps.add(var.name)
        if node.unroll:
            w.do(f"#pragma unroll {node.unroll}")
        start, stop = w.ref(node.start)[0], w.ref(node.stop)[0]
        name, type_ = w.define(node.var), register(node.var.type)
        step = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
        w.open(f"for ({type_} {name} = {start}; {name} < {stop}; {step})")
        self.nested(node.body)
        until = self.asked(names, node.until)
        self.turn(names, node.yields)
        if until:
            w.do(f"if ({until}) break;")
        w.close()
        for result, name in zip(node.results, names, strict=True):
            w.refs[result.name] = name, result.type.lanes == 1
            self.w.wraps.add(result.name)

    def asked(self, names: Sequence[str], until: Operand | None) -> str:
        """Return what ends a loop, apart from carried values that are assigned now."""
        if until is None:
            return ""
        text, _ = self.w.ref(until)
        if text in names:
            self.w.copied(until, f"{text}u", declared=True)
            return f"{text}u"
        return text

    def turn(self, names: Sequence[str], values: Sequence[Operand]) -> None:
        """Assign what the next turn carries, all at once: two may change places."""
        w, moves = self.w, []
        for name, value in zip(names, values, strict=True):
            text, uniform = w.ref(value)
            if text == name:
                continue
            if any(text == other or text.startswith(f"{other}_") for other in names):
                w.copied(value, f"{name}n", declared=True)
                text, uniform = f"{name}n", value.type.lanes == 1
            moves.append(
                (copy(value.type, uniform=uniform, declared=False), name, text)
            )
        for made, name, text in moves:
            w.put(made, name, text)

    def branch(self, node: ir.If) -> None:
        """Results are variables of this level, assigned at the end of both sides."""
        w = self.w
        names = []
        for result in node.results:
            names.append(w.define(result))
            declared = ", ".join(own(result.type)).format(names[-1])
            w.do(f"{register(result.type)} {declared};")
            self.w.wraps.add(result.name)
        w.open(f"if ({w.ref(node.condition)[0]})")
        self.side(names, node.body, node.values)
        if node.orelse or names:
            w.close("} else {")
            w.indent += "  "
            self.side(names, node.orelse, node.else_values)
        w.close()

    def side(
        self,
        names: Sequence[str],
        body: Sequence[ir.Statement],
        values: Sequence[Operand],
    ) -> None:
        self.nested(body)
        for name, value in zip(names, values, strict=True):
            self.w.copied(value, name, declared=False)

    def parallel(self, _node: ir.Parallel) -> None:
        raise Unsupported(
            "a loop that a CPU's threads share does not exist on target cuda; "
            "choose a schedule made for cuda."
        )


def _bounds(kernel: Kernel) -> str:
    """Return what the compiler is told of a block: C++ takes one of the two."""
    cluster = f" __cluster_dims__({kernel.cluster}, 1, 1)" if kernel.cluster > 1 else ""
    if 0 < kernel.registers < MOST_REGISTERS:
        return f"__maxnreg__({kernel.registers}){cluster}"
    held = f", {kernel.resident}" if kernel.resident else ""
    return f"__launch_bounds__({kernel.threads}{held}){cluster}"
