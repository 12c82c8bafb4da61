"""What a legal kernel is: run between all passes, a page of rules.

Every rule is one sentence of RULES (or of the table of operations); a program
that breaks one is our bug, so `verify` raises `CompilerBug` with the node and
the sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from steelyard_kernels.dtypes import ALL, TENSOR, bool_, float32, int32
from steelyard_kernels.errors import CompilerBug, Unsupported
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.effects import EFFECTS
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var
from steelyard_kernels.ir.operations import operation
from steelyard_kernels.ir.printing import statement_text
from steelyard_kernels.ir.uniform import divergent_barriers

RULES = {
    "once": "a name is defined once in the whole kernel",
    "scope": "a variable is defined before its use, in this body or one around it",
    "buffer": "a buffer is a parameter or allocated before its use",
    "known": "an operation or effect is a row of the tables",
    "arity": "an operation has the arguments of its row",
    "index": "an index, bound or extent is an int64 scalar, or int32 on a GPU",
    "element": "a value has its buffer's dtype",
    "mask": "a mask is bool with the value's lanes",
    "type": "a type comes from `typed` and has a power of two of lanes, up to 64",
    "name": "a kernel's name is an ASCII identifier, for it is a symbol",
    "written": "an 'in' buffer is never stored to",
    "read": "an 'out' buffer is never loaded from",
    "streaming": "a CPU's streaming store states an alignment of 16 bytes, no mask",
    "fenced": "a kernel with streaming stores ends with a fence",
    "alignment": "an alignment is a power of two",
    "step": "a loop's step and a chunk are positive",
    "carried": "carried values, yields and results agree in number and type",
    "branches": "both sides of an if give what its results say",
    "condition": "a condition, and what a loop goes on until, is a bool scalar",
    "parallel": "a parallel loop is a statement of the kernel itself, and the only one",
    "space": "a buffer's space is one its place allows",
    "stack": "the extent of a stack, shared or register buffer is a constant",
    "block": "a GPU's kernel has the threads of a block, up to 1024, a CPU's none",
    "uniform": "every thread of a block reaches a barrier: no condition or bound around "
    "it depends on the thread",
    "tensor": "a tensor is a parameter",
    "tile": "a product has n / 2 float32 or int32 sums in registers, n a multiple of 8 up "
    "to 256, and tiles that tensor cores multiply in shared memory, swizzled by 32, 64 or "
    "128 bytes and across only of halves, or rows in registers, 8 a thread",
    "dynamic": "a kernel's shared buffers end within the dynamic memory that it states, "
    "and begin there where its tiles must",
    "lane": "the lane of an extract or insert is a constant inside the vector",
}
INDICES = {"cpu": (ir.INDEX,), "cuda": (ir.INDEX, ir.typed(int32))}
SPACES_OF = {"cpu": ("stack",), "cuda": ("stack", "shared", "register")}
TYPES = frozenset(ir.typed(dtype, 1 << power) for dtype in ALL for power in range(7))


def verify(kernel: Kernel, target: str = "cpu") -> None:
    """Raise `CompilerBug` if `kernel` breaks a rule.

    `target` is "cpu" or "cuda"; an operation that it lacks raises `Unsupported`.
    """
    _Verifier(target).kernel(kernel)


class _Verifier:
    """Walks a kernel once, with the names in scope and all names ever defined."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.indices = INDICES[target]
        self.defined: set[str] = set()
        self.scope: dict[str, Type] = {}
        self.buffers: dict[str, Buffer] = {}
        self.shared: list[Buffer] = []
        self.tensors: dict[str, ir.Tensor] = {}
        self.fences = True  # no streaming store since the last fence
        self.parallels = 0
        self.checks = ir.methods(self)

    def kernel(self, kernel: Kernel) -> None:
        named = kernel.name.isascii() and kernel.name.isidentifier()
        self.require(named, "name", kernel.name)
        threads = range(1, 1025) if self.target == "cuda" else (0,)
        self.require(kernel.threads in threads, "block", kernel.name)
        self.parameters(kernel)
        for statement in kernel.body:
            if type(statement) is ir.Parallel:
                self.parallels += 1
                self.require(self.parallels == 1, "parallel", statement)
                self.parallel_body(statement)
            else:
                self.checks[type(statement)](statement)
        self.require(self.fences or self.target == "cuda", "fenced", kernel.name)
        if kernel.shared:
            ends = ir.shared_places(self.shared)[1]
            self.require(ends <= kernel.shared, "dynamic", kernel.name)
        if self.target == "cuda":
            for barrier in divergent_barriers(kernel):
                _broken(RULES["uniform"], barrier)

    def parameters(self, kernel: Kernel) -> None:
        for scalar in kernel.parameters:  # first: extents name them
            if isinstance(scalar, Var):
                self.define(scalar, scalar.name)
        for parameter in kernel.parameters:
            if isinstance(parameter, Buffer):
                legal = parameter.space == "global"
                self.add_buffer(parameter, parameter.name, legal=legal)
            elif isinstance(parameter, ir.Tensor):
                self.require(parameter.name not in self.defined, "once", kernel.name)
                self.defined.add(parameter.name)
                self.tensors[parameter.name] = parameter

    def require(self, holds: bool, rule: str, node: ir.Statement | str) -> None:
        if not holds:
            _broken(RULES[rule], node)

    def define(self, var: Var, node: ir.Statement | str) -> None:
        name = var.name
        if name in self.defined:
            _broken(RULES["once"], node)
        if var.type not in TYPES:
            _broken(RULES["type"], node)
        self.defined.add(name)
        self.scope[name] = var.type

    def use(self, operand: Operand, node: ir.Statement) -> None:
        if type(operand) is Var:
            if self.scope.get(operand.name) is not operand.type:
                _broken(f"{RULES['scope']} ({operand.name})", node)
        elif operand.type not in TYPES:
            _broken(RULES["type"], node)

    def is_index(self, operand: Operand, node: ir.Statement) -> None:
        self.use(operand, node)
        if operand.type not in self.indices:
            _broken(RULES["index"], node)

    def add_buffer(
        self, buffer: Buffer, node: ir.Statement | str, *, legal: bool
    ) -> None:
        self.require(buffer.name not in self.defined, "once", node)
        legal = legal and buffer.space in ir.SPACES and buffer.access in ir.ACCESSES
        self.require(legal, "space", node)
        extent = buffer.extent
        known = isinstance(extent, Const) or extent.name in self.scope
        self.require(known and extent.type in self.indices, "index", node)
        self.is_alignment(buffer.alignment, node)
        self.defined.add(buffer.name)
        self.buffers[buffer.name] = buffer

    def is_buffer(self, buffer: Buffer, node: ir.Statement) -> None:
        if self.buffers.get(buffer.name) is not buffer:
            self.require(self.buffers.get(buffer.name) == buffer, "buffer", node)

    def is_alignment(self, alignment: int, node: ir.Statement | str) -> None:
        self.require(alignment & (alignment - 1) == 0, "alignment", node)

    def is_mask(self, mask: Operand | None, lanes: int, node: ir.Statement) -> None:
        if mask is not None:
            self.use(mask, node)
            fits = mask.type.dtype is bool_ and mask.type.lanes == lanes
            self.require(fits, "mask", node)

    def let(self, node: ir.Let) -> None:
        row = operation(node.op)
        if row is None:
            _broken(RULES["known"], node)
        if self.target not in row.targets:
            _unsupported(node.op, self.target)
        args = node.args
        self.require(len(args) == row.arity, "arity", node)
        for arg in args:
            self.use(arg, node)
        stated = node.var.type
        result = row.rule.result(stated, *[arg.type for arg in args])
        if result is not stated:
            _broken(f"{node.op}: {row.rule.sentence}", node)
        if node.op in {"extract", "insert"}:
            lane = args[-1]
            inside = isinstance(lane, Const) and 0 <= lane.value < args[0].type.lanes
            self.require(inside, "lane", node)
        self.define(node.var, node)

    def access(self, node: ir.Load | ir.Store, type_: Type) -> None:
        self.is_buffer(node.buffer, node)
        self.is_index(node.index, node)
        self.is_alignment(node.alignment, node)
        self.is_mask(node.mask, type_.lanes, node)
        self.require(type_.dtype is node.buffer.dtype, "element", node)

    def load(self, node: ir.Load) -> None:
        self.access(node, node.var.type)
        self.require(node.buffer.access != "out", "read", node)
        self.define(node.var, node)

    def store(self, node: ir.Store) -> None:
        self.use(node.value, node)
        self.access(node, node.value.type)
        self.require(node.buffer.access != "in", "written", node)
        if node.streaming:
            legal = node.alignment >= 16 and node.mask is None
            self.require(legal and self.target == "cpu", "streaming", node)
            self.fences = False

    def prefetch(self, node: ir.Prefetch) -> None:
        self.is_buffer(node.buffer, node)
        self.is_index(node.index, node)

    def alloc(self, node: ir.Alloc) -> None:
        space = node.buffer.space
        legal = space in SPACES_OF[self.target]
        self.add_buffer(node.buffer, node, legal=legal)
        self.require(isinstance(node.buffer.extent, Const), "stack", node)
        if space == "shared":
            self.shared.append(node.buffer)

    def fence(self, _node: ir.Fence) -> None:
        self.fences = True

    def effect(self, node: ir.Effect) -> None:
        row = EFFECTS.get(node.op)
        if row is None:
            _broken(RULES["known"], node)
        arity, rule = row
        self.require(len(node.args) == arity, "arity", node)
        if self.target != "cuda":
            _unsupported(node.op, self.target)
        for arg in node.args:
            if isinstance(arg, Buffer):
                self.is_buffer(arg, node)
            elif isinstance(arg, ir.Tensor):
                self.require(self.tensors.get(arg.name) is arg, "tensor", node)
            else:
                self.use(arg, node)
        kinds = tuple(
            a if isinstance(a, Buffer | ir.Tensor) else a.type for a in node.args
        )
        if not rule.holds(kinds):
            _broken(f"{node.op}: {rule.sentence}", node)

    def multiply(self, node: ir.Multiply) -> None:
        if self.target != "cuda":
            _unsupported("a product of tiles", self.target)
        self.is_index(node.more, node)
        for tile in (*node.rows, node.columns):
            self.is_buffer(tile.buffer, node)
            self.is_index(tile.index, node)
        self.is_buffer(node.sums, node)
        self.require(_is_tile(node), "tile", node)

    def loop(self, node: ir.For) -> None:
        for bound in (node.start, node.stop):
            self.is_index(bound, node)
        self.require(node.step > 0, "step", node)
        for _, first in node.carried:
            self.use(first, node)
        inner = [node.var, *(var for var, _ in node.carried)]
        self.require(node.var.type in self.indices, "index", node)
        until = () if node.until is None else (node.until,)
        self.within(node.body, inner, (*node.yields, *until), node)
        self.require(all(x.type is ir.CONDITION for x in until), "condition", node)
        types = [var.type for var, _ in node.carried]
        for values in ([first for _, first in node.carried], node.yields, node.results):
            self.require([x.type for x in values] == types, "carried", node)
        for result in node.results:
            self.define(result, node)

    def branch(self, node: ir.If) -> None:
        self.use(node.condition, node)
        self.require(node.condition.type == ir.CONDITION, "condition", node)
        self.within(node.body, (), node.values, node)
        self.within(node.orelse, (), node.else_values, node)
        types = [var.type for var in node.results]
        for values in (node.values, node.else_values):
            self.require([x.type for x in values] == types, "branches", node)
        for result in node.results:
            self.define(result, node)

    def within(
        self,
        body: Sequence[ir.Statement],
        defines: Iterable[Var],
        gives: Sequence[Operand],
        node: ir.Statement,
    ) -> None:
        """Check a nested body, whose names are gone after it."""
        scope, buffers = self.scope, self.buffers
        self.scope, self.buffers = scope.copy(), buffers.copy()
        for var in defines:
            self.define(var, node)
        checks = self.checks
        for statement in body:
            checks[type(statement)](statement)
        for value in gives:
            self.use(value, node)
        self.scope, self.buffers = scope, buffers

    def parallel(self, node: ir.Parallel) -> None:
        _broken(RULES["parallel"], node)

    def parallel_body(self, node: ir.Parallel) -> None:
        self.is_index(node.extent, node)
        self.require(node.chunk > 0, "step", node)
        self.require(node.threads >= 0, "step", node)
        for bound in (node.low, node.high):
            self.require(bound.type in self.indices, "index", node)
        self.within(node.body, (node.low, node.high), (), node)


def _is_tile(node: ir.Multiply) -> bool:
    def lies(tile: ir.Tile | ir.Fragment) -> bool:
        if isinstance(tile, ir.Fragment):
            return tile.buffer.space == "register" and not tile.first % 8
        lies = tile.buffer.space == "shared" and tile.swizzle in {32, 64, 128}
        return lies and not (tile.across and dtype.bytes != 2)

    sums, dtype = node.sums, node.columns.buffer.dtype
    count = 2 * sums.extent.value if isinstance(sums.extent, Const) else 0
    floats = dtype.kind == "float"
    several = len(node.rows) == 1 or node.by_warp
    return (
        (sums.space, sums.dtype) == ("register", float32 if floats else int32)
        and count in range(8 * len(node.rows), 257 * len(node.rows), 8 * len(node.rows))
        and several
        and dtype in TENSOR
        and all(each.buffer.dtype.bytes == dtype.bytes for each in node.rows)
        and all(each.buffer.dtype.kind == dtype.kind for each in node.rows)
        and all(map(lies, node.rows))
        and lies(node.columns)
    )


def _broken(sentence: str, node: ir.Statement | str) -> NoReturn:
    shown = node if isinstance(node, str) else statement_text(node)
    raise CompilerBug(
        f"`{shown}` breaks the rule that {sentence}; report it with the kernel's text."
    )


def _unsupported(op: str, target: str) -> NoReturn:
    raise Unsupported(
        f"{op} does not exist on target {target}; choose a schedule made for {target}."
    )
