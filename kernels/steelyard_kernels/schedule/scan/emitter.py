"""From the nodes of one chain to loop IR, on any lanes: a rule for each production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression.expr import (
    Apply,
    Arange,
    Broadcast,
    Cast,
    Constant,
    Dot,
    Node,
    Reduce,
    Reshape,
    Row,
    Shape,
    Transpose,
)
from steelyard_kernels.ir.builder import const
from steelyard_kernels.ir.loops import Operand
from steelyard_kernels.monoids import MONOIDS
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule import values
from steelyard_kernels.schedule.scan.lanes import Ahead, CpuLanes, Lanes
from steelyard_kernels.schedule.scan.layout import (
    Vector,
    lane_axis,
    layout,
    transposed,
)
from steelyard_kernels.schedule.scan.outline import Body
from steelyard_kernels.schedule.scan.registers import Registers
from steelyard_kernels.schedule.scan.tensor import Tensor, Value, View

FUNCTION: Final = 10  # instructions of an operation that is a function
MOST_VECTORS: Final = 48  # of a matrix that a product spells out
SUMS: Final = 4  # sums of a product that grow side by side


class Emitter(Registers):
    """Emits nodes without state: what each does is a method.

    `env` has the values by node number; `target` is "cpu" or "cuda".
    """

    def __init__(self, name: str, lanes: Lanes | Ahead, target: str) -> None:
        super().__init__(name, lanes)
        self.target = target
        self.env: dict[int, Value] = {}
        self.rules: dict[type, Callable[..., Value]] = {
            Constant: self._constant,
            Apply: self._apply,
            Cast: self._cast,
            Broadcast: self._broadcast,
            Reduce: self._reduce,
            Arange: self._arange,
            Reshape: self._reshape,
            Transpose: self._transpose,
            Dot: self._dot,
            Row: self._row,
        }

    def run(self, body: Body) -> None:
        """Emit nodes in order."""
        self.fused = body.fused
        for node in body.nodes:
            self.emit(node)
            self.fused = body.fused  # a loop among them has others

    def emit(self, node: Node) -> None:
        """Emit one node, whose operands are in the environment."""
        rule = self.rules.get(type(node))
        if rule is None:
            raise CompilerBug(f"no rule of scan for a {type(node).__name__}")
        self.doing = f"{getattr(node, 'op', type(node).__name__.lower())} of"
        self.env[node.number] = rule(node)

    def tensor(self, node: Node) -> Tensor:
        """Return a node's value in registers; loads it where it lies in memory."""
        value = self.env[node.number]
        if isinstance(value, Tensor):
            return value
        if value not in self.derived:
            self.derived[value] = self.load(value)
        found: Tensor = self.derived[value]
        return found

    # One rule a production of the grammar.

    def _constant(self, node: Constant) -> Value:
        return Tensor((), (const(node.value, node.dtype),), same=True)

    def _apply(self, node: Apply) -> Value:
        fusion = self.fused.get(node.number)
        reads = (fusion.a, fusion.b, fusion.c) if fusion else node.args
        numbers = [arg.number for arg in reads]

        def emit(args: Sequence[Operand]) -> Operand:
            lanes = max(arg.type.lanes for arg in args)
            env = {
                number: self.spread(arg, lanes)
                for number, arg in zip(numbers, args, strict=True)
            }
            return values.lower(
                self.b, env, node, lanes, self.fused, target=self.target
            )

        parts = [self.tensor(arg) for arg in reads]
        heavy = node.dtype if OPERATIONS[node.op].cost.cpu >= FUNCTION else None
        return self.each(node.shape, parts, emit, heavy=heavy)

    def _cast(self, node: Cast) -> Value:
        return self.cast(self.tensor(node.arg), node.dtype)

    def _broadcast(self, node: Broadcast) -> Value:
        return self.widen(self.tensor(node.arg), node.shape)

    def _arange(self, node: Arange) -> Value:
        dtype, order = node.dtype, self.checked(node.shape)
        if prod(node.shape) == 1:
            return Tensor(node.shape, (const(0, dtype),), same=True)
        if self.lanes.width == 1:
            return Tensor(node.shape, tuple([const(v[0], dtype) for v in order]))
        numbers = self.lanes.numbers(dtype)
        vectors = [
            self.let("add", numbers, const(v[0], dtype)) if v[0] else numbers
            for v in order
        ]
        return Tensor(node.shape, tuple(vectors))

    def _reshape(self, node: Reshape) -> Value:
        value = self.env[node.arg.number]
        if isinstance(value, View):
            view = value.reshaped(node.shape)
            if view is not None:
                return view
        source = tuple(range(prod(node.shape)))
        return self.arrange(self.tensor(node.arg), source, node.shape)

    def _transpose(self, node: Transpose) -> Value:
        value = self.env[node.arg.number]
        if isinstance(value, View):
            return value.transposed()
        return self.arrange(value, transposed(value.shape), node.shape)

    def _row(self, node: Row) -> Value:
        value = self.env[node.arg.number]
        if isinstance(value, View):
            return value.row(self.b, self.tensor(node.index).vectors[0])
        if not isinstance(node.index, Constant):
            raise CompilerBug("a row at a runtime index of a value in registers")
        size = prod(node.shape)
        first = int(node.index.value) * size
        return self.arrange(value, tuple(range(first, first + size)), node.shape)

    def _reduce(self, node: Reduce) -> Value:
        value = self.tensor(node.arg)
        if node.dtype in HALVES:
            value = self.cast(value, float32)
        extent, dtype = node.arg.shape[-1], node.dtype
        wide = float32 if dtype in HALVES else dtype
        if extent == 0:
            start = const(MONOIDS[node.op].start, dtype)
            return Tensor(node.shape, (start,), same=True)
        total = self.reduced(MONOIDS[node.op].combine, value, node.shape)
        count = Tensor((), (const(extent, wide),), same=True)
        if MONOIDS[node.op].mean:
            total = self.let_each("divide", node.shape, total, count)
        return self.cast(total, dtype)

    def reduced(self, op: str, value: Tensor, shape: Shape) -> Tensor:
        """Emit a reduction of the last axis, which is gone or 1 in `shape`."""
        extent, count = value.shape[-1], prod(shape)
        if value.same:
            return Tensor(shape, (self._of_one(op, value.vectors[0], extent),), True)
        if lane_axis(value.shape) < len(value.shape) - 1:
            found = []
            for vector in self.checked(shape):
                parts = [
                    self.pick(value, tuple([e * extent + k for e in vector]))
                    for k in range(extent)
                ]
                found.append(self._tree(op, parts))
            return Tensor(shape, tuple(found), count == 1)
        each = -(-extent // self.lanes.width)
        rows = [
            value.vectors[first : first + each]
            for first in range(0, count * each, each)
        ]
        return self.scattered(self.totals(op, rows, extent), shape)

    def _dot(self, node: Dot) -> Value:
        a, b = self.tensor(node.a), self.tensor(node.b)
        if node.dtype in HALVES:
            a, b = self.cast(a, float32), self.cast(b, float32)
        return self.cast(self._product(a, b, node.shape), node.dtype)

    def _product(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit the sums of products, along lanes or across them."""
        inner = b.shape[0]
        if inner == 0:
            zero = const(0, (*a.vectors, *b.vectors, const(0, float32))[0].type.dtype)
            return Tensor(shape, (zero,), same=True)
        wholly = not (a.same and b.same)
        along = lane_axis(a.shape) == len(a.shape) - 1 and lane_axis(b.shape) == 0
        if wholly and inner > 1 and along:
            return self._across(a, b, shape)
        if prod(shape) == 1 or not wholly:
            return Tensor(shape, (self._sum_of(a, b, (0,)),), same=True)
        order = self.checked(shape)
        if self.walks_memory(a, b):
            return self._walked(a, b, shape)
        return Tensor(shape, tuple([self._sum_of(a, b, v, len(order)) for v in order]))

    def walks_memory(self, a: Tensor, b: Tensor) -> bool:
        """Say whether a product is a loop over the rows of `b`, in memory.

        Those of one row of `a` are, where spelling them out is much text.
        """
        lanes = self.lanes
        single = len(a.shape) == 1 or prod(a.shape[:-1]) == 1
        many = isinstance(lanes, CpuLanes) and len(b.vectors) > MOST_VECTORS
        return many and single and lanes.width > 1 and lane_axis(b.shape) == 1

    def _walked(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit a loop over rows of `b`, of which several sums grow side by side."""
        inner, width = b.shape[0], self.lanes.width
        each = len(b.vectors) // inner
        if a.same:
            a = Tensor((inner,), a.vectors * len(layout((inner,), width)))
        left, right = self.spilled(a, width), self.spilled(b, width)
        rows = next(
            n
            for n in (SUMS, 2, 1)
            if n == 1 or (inner % n == 0 and n * each <= SUMS**2)
        )
        zero = const(0, right.dtype, width)
        builder = self.b
        with builder.loop(0, inner, rows, *[zero] * (rows * each)) as turn:
            sums = []
            for place, total in enumerate(turn.carried):
                row = builder.at("add", turn.var, place // each)
                factor = self.b.splat(builder.load(left, row), width)
                at = builder.at("multiply", row, each * width)
                at = builder.at("add", at, place % each * width)
                vector = builder.load(right, at, width)
                sums.append(builder.let("fma", factor, vector, total))
            turn.yields(*sums)
        totals = [self._tree("add", turn.results[place::each]) for place in range(each)]
        return Tensor(shape, tuple(totals))

    def _across(self, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
        """Emit products of lane axes, added up across lanes."""
        inner, columns = b.shape
        width = self.lanes.width
        rows = []
        for element in range(prod(shape)):
            row, column = divmod(element, columns)
            rows.append(
                [
                    self.let(
                        "multiply",
                        self.pick(a, tuple([row * inner + k for k in part])),
                        self.pick(b, tuple([k * columns + column for k in part])),
                    )
                    for part in layout((inner,), width)
                ]
            )
        return self.scattered(self.totals("add", rows, inner), shape)

    def _sum_of(
        self, a: Tensor, b: Tensor, vector: Vector, vectors: int = 1
    ) -> Operand:
        """Emit the sums of one vector, several growing side by side."""
        inner, columns = b.shape
        where = [divmod(element, columns) for element in vector]
        terms = [
            (
                self.pick(a, tuple([row * inner + k for row, _ in where])),
                self.pick(b, tuple([k * columns + column for _, column in where])),
            )
            for k in range(inner)
        ]
        several = max(1, min(SUMS, inner // 2, 4 * SUMS // vectors))
        sums = []
        for first in range(several):
            left, right = terms[first]
            total = self.let("multiply", left, right)
            for left, right in terms[first + several :: several]:
                total = self.let("fma", left, right, total)
            sums.append(total)
        return self._tree("add", sums)
