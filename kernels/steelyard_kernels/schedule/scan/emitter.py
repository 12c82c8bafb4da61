"""From the nodes of one chain to loop IR, on any lanes.

Every value is a `Tensor` in the layout of its shape, so that values of one shape meet
without a conversion; what changes shape picks whole vectors where it can, and single
elements where not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Final, TypeAlias

from steelyard_kernels.builder import Builder, const
from steelyard_kernels.dtypes import HALVES, DType, float32
from steelyard_kernels.errors import CompilerBug, Unsupported
from steelyard_kernels.expr import (
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
from steelyard_kernels.loops import Operand
from steelyard_kernels.schedule import values
from steelyard_kernels.schedule.scan.lanes import Ahead, Lanes, tree
from steelyard_kernels.schedule.scan.layout import (
    Vector,
    broadcast,
    lane_axis,
    layout,
    places,
    transposed,
)
from steelyard_kernels.schedule.scan.outline import Body
from steelyard_kernels.schedule.scan.tensor import Tensor, View

MOST_ELEMENTS: Final = 4096  # of a value in registers: each vector is some text
SUMS: Final = 4  # sums of a product that grow side by side
REDUCED: Final = {"sum": "add", "mean": "add", "var": "add", "max": "max", "min": "min"}

Value: TypeAlias = Tensor | View


class Emitter:
    """Emits nodes without state: what each does is a method.

    `env` has the values by node number; `target` is "cpu" or "cuda". What was derived
    of a value (its elements, its splat) is remembered within the innermost open body.
    """

    def __init__(self, name: str, lanes: Lanes | Ahead, target: str) -> None:
        self.name = name
        self.b: Builder = lanes.b
        self.lanes = lanes
        self.target = target
        self.env: dict[int, Value] = {}
        self.derived: dict[object, Sequence[Operand]] = {}
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

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget, at the end, what is only defined in a nested body."""
        derived = self.derived
        self.derived = derived.copy()
        yield
        self.derived = derived

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
        self.env[node.number] = rule(node)

    def tensor(self, node: Node) -> Tensor:
        """Return a node's value in registers; loads it where it lies in memory."""
        value = self.env[node.number]
        if isinstance(value, View):
            value = self.env[node.number] = self.load(value)
        return value

    def spread(self, value: Operand, lanes: int) -> Operand:
        """Return a scalar in so many lanes, the same vector every time."""
        if value.type.lanes == lanes:
            return value
        key = value, lanes
        if key not in self.derived:
            self.derived[key] = (self.b.splat(value, lanes),)
        return self.derived[key][0]

    def let(self, op: str, *args: Operand) -> Operand:
        """Emit an operation of vectors and scalars, which are spread."""
        lanes = max(arg.type.lanes for arg in args)
        return self.b.let(op, *[self.spread(arg, lanes) for arg in args])

    def checked(self, shape: Shape) -> tuple[Vector, ...]:
        """Return a shape's layout; raises Unsupported for one too large."""
        if prod(shape) > MOST_ELEMENTS:
            raise Unsupported(
                f"{self.name}: a value of shape {shape} has {prod(shape)} elements, at "
                f"most {MOST_ELEMENTS} are held by a chain; take rows of an array, one "
                "in each iteration."
            )
        return layout(shape, self.lanes.width)

    # What a value is made of.

    def elements(self, value: Tensor) -> Sequence[Operand]:
        """Return all elements of a value as scalars, in row-major order."""
        count = prod(value.shape)
        if value.same or count == 0:
            return value.vectors * count
        if value in self.derived:
            return self.derived[value]
        extent, width = max(value.shape), self.lanes.width
        each = -(-extent // width)  # vectors of a lane axis
        order = self.checked(value.shape)
        found: dict[int, Operand] = {}
        for first in range(0, len(order), each):
            numbers = [e for vector in order[first : first + each] for e in vector]
            scalars = self.lanes.elements(value.vectors[first : first + each], extent)
            found.update(zip(numbers, scalars, strict=True))
        self.derived[value] = [found[element] for element in range(count)]
        return self.derived[value]

    def pick(self, value: Tensor, wanted: Vector) -> Operand:
        """Return a vector of these elements; a scalar where they are one."""
        if value.same:
            return value.vectors[0]
        place = places(value.shape, self.lanes.width).get(wanted)
        if place is not None:
            return value.vectors[place]
        elements = self.elements(value)
        if len(set(wanted)) == 1:
            return elements[wanted[0]]
        return self.lanes.pack([elements[number] for number in wanted])

    def arrange(self, value: Tensor, source: Vector, shape: Shape) -> Tensor:
        """Return the value whose elements are those at `source`, in order."""
        if value.same:
            return Tensor(shape, value.vectors, same=True)
        if prod(shape) == 1:
            return Tensor(shape, (self.elements(value)[source[0]],), same=True)
        return Tensor(
            shape,
            tuple(
                self.pick(value, tuple([source[e] for e in vector]))
                for vector in self.checked(shape)
            ),
        )

    def widen(self, value: Tensor, shape: Shape) -> Tensor:
        """Return a value broadcast to a shape."""
        if value.shape == shape:
            return value
        if value.same:
            return Tensor(shape, value.vectors, same=True)
        return self.arrange(value, broadcast(value.shape, shape), shape)

    def each(
        self,
        shape: Shape,
        parts: Sequence[Tensor],
        emit: Callable[[Sequence[Operand]], Operand],
    ) -> Tensor:
        """Return what `emit` makes of each vector of values broadcast to a shape."""
        wide = [self.widen(part, shape) for part in parts]
        if all(part.same for part in wide):
            return Tensor(shape, (emit([part.vectors[0] for part in wide]),), same=True)
        count = len(self.checked(shape))
        vectors = [emit([part.vector(k) for part in wide]) for k in range(count)]
        return Tensor(shape, tuple(vectors))

    def let_each(self, op: str, shape: Shape, *parts: Tensor) -> Tensor:
        """Emit an operation of every element."""
        return self.each(shape, parts, lambda args: self.let(op, *args))

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """Emit the conversion of every element."""
        return self.each(value.shape, [value], lambda a: self.b.cast(a[0], dtype))

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

        return self.each(node.shape, [self.tensor(arg) for arg in reads], emit)

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
            return Tensor(node.shape, (const(0, dtype),), same=True)
        total = self.reduced(REDUCED[node.op], value, node.shape)
        count = Tensor((), (const(extent, wide),), same=True)
        if node.op in {"mean", "var"}:
            total = self.let_each("div", node.shape, total, count)
        if node.op == "var":
            kept = Tensor((*value.shape[:-1], 1), total.vectors, total.same)
            far = self.let_each("sub", value.shape, value, kept)
            square = self.let_each("mul", value.shape, far, far)
            total = self.reduced("add", square, node.shape)
            total = self.let_each("div", node.shape, total, count)
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

    def _of_one(self, op: str, value: Operand, extent: int) -> Operand:
        if op != "add" or extent == 1:
            return value
        return self.let("mul", value, const(extent, value.type.dtype))

    def _tree(self, op: str, vectors: Sequence[Operand]) -> Operand:
        lanes = max(vector.type.lanes for vector in vectors)
        return tree(self.b, op, [self.spread(vector, lanes) for vector in vectors])

    def totals(
        self, op: str, rows: Sequence[Sequence[Operand]], extent: int
    ) -> Sequence[Operand]:
        """Emit the reductions of lane axes of `extent`, each some vectors."""
        lanes = self.lanes
        rest = extent - (len(rows[0]) - 1) * lanes.width if rows else 0
        if rows and len(rows[0]) == 1:
            return lanes.totals(op, [(row[0], extent) for row in rows])
        joined = []
        for row in rows:
            last = lanes.masked(op, lanes.splat(row[-1]), rest)
            joined.append((self._tree(op, [*row[:-1], last]), lanes.width))
        return lanes.totals(op, joined)

    def scattered(self, scalars: Sequence[Operand], shape: Shape) -> Tensor:
        """Return the value of these elements."""
        if len(scalars) == 1:
            return Tensor(shape, tuple(scalars), same=True)
        vectors = [
            self.lanes.pack([scalars[e] for e in vector])
            for vector in self.checked(shape)
        ]
        return Tensor(shape, tuple(vectors))

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
        return Tensor(shape, tuple([self._sum_of(a, b, v, len(order)) for v in order]))

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
                        "mul",
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
            total = self.let("mul", left, right)
            for left, right in terms[first + several :: several]:
                total = self.let("fma", left, right, total)
            sums.append(total)
        return self._tree("add", sums)

    # Memory.

    def load(self, view: View) -> Tensor:
        """Emit the loads of a value."""
        b, lanes = self.b, self.lanes
        if isinstance(lanes, Ahead):
            raise CompilerBug("memory is read in what is computed ahead")
        vectors = []
        for vector in self.checked(view.shape):
            offset, stride = _line(view, vector)
            at = b.at("add", view.base, offset)
            if len(vector) == 1:
                vectors.append(lanes.load_uniform(view.buffer, at))
            else:
                vectors.append(lanes.load(view.buffer, at, stride, len(vector)))
        return Tensor(view.shape, tuple(vectors), same=prod(view.shape) == 1)

    def store(self, view: View, value: Tensor) -> None:
        """Emit the stores of a value."""
        b, lanes = self.b, self.lanes
        if isinstance(lanes, Ahead):
            raise CompilerBug("memory is written in what is computed ahead")
        value = self.widen(value, view.shape)
        for place, vector in enumerate(self.checked(view.shape)):
            offset, stride = _line(view, vector)
            at, operand = b.at("add", view.base, offset), value.vector(place)
            if len(vector) == 1:
                (scalar,) = lanes.elements([operand], 1)
                lanes.store_uniform(view.buffer, at, scalar)
            else:
                whole = lanes.splat(operand)
                lanes.store(view.buffer, at, stride, len(vector), whole)


def _line(view: View, vector: Vector) -> tuple[int, int]:
    """Return where a vector's first element lies, and how far apart they are."""
    first = view.offset(vector[0])
    return first, view.offset(vector[1]) - first if len(vector) > 1 else 1
