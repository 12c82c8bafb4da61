"""A short way to make loop IR: fresh names, inferred types, loops as `with`.

    b = Builder()
    with b.parallel(extent, chunk=32, threads=0) as (low, high):
        with b.loop(low, high, 1) as row:
            with b.loop(0, 4096, 16, zero) as loop:
                (total,) = loop.carried
                x = b.load(buffer, loop.var, 16)
                loop.yields(b.let("add", total, x))
            (total,) = loop.results
    kernel = b.kernel("sum", parameters)

Python integers stand for int64 constants wherever an index is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeAlias

from steelyard_kernels.dtypes import DType, bool_, int64
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Operand, Type, Var
from steelyard_kernels.ir.operations import operation

Index: TypeAlias = Operand | int
FOLDED: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
}
NEUTRAL = {"add": 0, "subtract": 0, "multiply": 1, "div": 1}  # on the right


def const(value: float, dtype: DType, lanes: int = 1) -> Const:
    """Return a constant of `dtype` in every lane."""
    return Const(value, ir.typed(dtype, lanes))


def index(value: int) -> Const:
    """Return an int64 index."""
    return Const(value, ir.INDEX)


class Builder:
    """Collects the statements of the innermost open body.

    `index` is the type of its indices: INDEX, or int32 on a GPU, where half the
    registers and instructions do as long as nothing is larger.
    """

    __slots__ = ("body", "count", "index", "scope")

    def __init__(self, index: Type = ir.INDEX, scope: str = "") -> None:
        self.body: list[ir.Statement] = []
        self.count = 0
        self.index = index
        self.scope = scope  # what its names begin with

    def number(self, value: Index) -> Operand:
        """Return an index of a Python integer or an operand."""
        return Const(value, self.index) if isinstance(value, int) else value

    def fresh(self, type_: Type, name: str = "v") -> Var:
        """Return a new variable `name.N`; parameters have no dot, so none clashes."""
        self.count += 1
        return Var(f"{self.scope}{name}.{self.count}", type_)

    def let(self, op: str, *args: Operand, name: str = "v") -> Var:
        """Append `op` of `args` and return its value, typed by the table."""
        row = operation(op)
        if row is None:
            raise CompilerBug(f"{op} is no operation of the loop IR.")
        types = [arg.type for arg in args]
        result = row.rule.result(None, *types) if len(args) == row.arity else None
        if result is None:
            shown = ", ".join(map(str, types))
            raise CompilerBug(f"{op}({shown}): {row.rule.sentence}.")
        var = self.fresh(result, name)
        self.body.append(ir.Let(var, op, args))
        return var

    def _made(self, op: str, type_: Type, *args: Operand) -> Var:
        """Append an operation that is told its result's type."""
        var = self.fresh(type_)
        self.body.append(ir.Let(var, op, args))
        return var

    def cast(self, value: Operand, dtype: DType) -> Operand:
        """Convert every lane to `dtype`; a value of that dtype is its own cast."""
        if value.type.dtype is dtype:
            return value
        return self._made("cast", ir.typed(dtype, value.type.lanes), value)

    def bitcast(self, value: Operand, dtype: DType) -> Operand:
        """Read every lane's bits as those of a dtype that is as wide."""
        return self._made("bitcast", ir.typed(dtype, value.type.lanes), value)

    def splat(self, value: Operand, lanes: int) -> Operand:
        """Put a scalar in every lane; a constant stays a constant."""
        if lanes == value.type.lanes:
            return value
        type_ = ir.typed(value.type.dtype, lanes)
        if isinstance(value, Const):
            return Const(value.value, type_)
        return self._made("splat", type_, value)

    def iota(self, lanes: int, dtype: DType = int64) -> Var:
        """Return 0, 1, 2, ... by lane."""
        return self._made("iota", ir.typed(dtype, lanes))

    def mask_below(self, count: Index, lanes: int) -> Var:
        """Return the mask of the lanes below `count`."""
        return self._made("mask_below", ir.typed(bool_, lanes), self.number(count))

    def added(self, x: Operand, y: Operand, total: Operand) -> Operand:
        """Add a product to a total; of floats it is not rounded before."""
        if total.type.dtype.kind == "float":
            return self.let("fma", x, y, total)
        return self.let("add", total, self.let("multiply", x, y))

    def both(self, mask: Operand | None, other: Operand | None) -> Operand | None:
        """Return the conjunction of two masks, of which None always holds."""
        if mask is None or other is None:
            return other if mask is None else mask
        lanes = max(mask.type.lanes, other.type.lanes)
        return self.let("bitwise_and", *[self.splat(x, lanes) for x in (mask, other)])

    def at(self, op: str, a: Index, b: Index) -> Operand:
        """Do index arithmetic: constants fold, and adding 0 or times 1 is free."""
        a, b = self.number(a), self.number(b)
        if isinstance(b, Const):
            if isinstance(a, Const) and op in FOLDED:
                return Const(FOLDED[op](a.value, b.value), self.index)
            if NEUTRAL.get(op) == b.value:
                return a
        elif isinstance(a, Const) and op in {"add", "multiply"}:
            return self.at(op, b, a)
        return self.let(op, a, b, name="i")

    def load(
        self,
        buffer: Buffer,
        at: Index,
        lanes: int = 1,
        mask: Operand | None = None,
        alignment: int = 0,
    ) -> Var:
        """Read `lanes` elements from `buffer[at]` on."""
        var = self.fresh(ir.typed(buffer.dtype, lanes), buffer.name.split(".", 1)[0])
        self.body.append(ir.Load(var, buffer, self.number(at), mask, alignment))
        return var

    def store(
        self,
        buffer: Buffer,
        at: Index,
        value: Operand,
        mask: Operand | None = None,
        *,
        streaming: bool = False,
        alignment: int = 0,
    ) -> None:
        """Write the lanes of `value` to `buffer[at]` on."""
        made = ir.Store(buffer, self.number(at), value, mask, streaming, alignment)
        self.body.append(made)

    def prefetch(self, buffer: Buffer, at: Index, locality: int = 3) -> None:
        """Ask for the cache line of `buffer[at]`."""
        self.body.append(ir.Prefetch(buffer, self.number(at), locality))

    def fence(self) -> None:
        """Order the streaming stores before what follows."""
        self.body.append(ir.Fence())

    def effect(self, op: str, *args: Operand | Buffer | ir.Tensor) -> None:
        """Append a row of the table of effects."""
        self.body.append(ir.Effect(op, args))

    def alloc(
        self,
        name: str,
        dtype: DType,
        extent: int,
        space: str = "stack",
        alignment: int = 64,
    ) -> Buffer:
        """Return scratch memory of `extent` elements, aligned to a cache line."""
        self.count += 1
        named = f"{name}.{self.count}"
        buffer = Buffer(named, dtype, index(extent), space, alignment, "inout")
        self.body.append(ir.Alloc(buffer))
        return buffer

    def loop(
        self, start: Index, stop: Index, step: int, *first: Operand, unroll: int = 0
    ) -> Loop:
        """Open `for var in range(start, stop, step)` carrying the values `first`."""
        bounds = self.number(start), self.number(stop)
        return Loop(self, *bounds, step, first, unroll=unroll)

    def branch(self, condition: Operand, *, seldom: bool = False) -> Branch:
        """Open a two-way branch: see `Branch`."""
        return Branch(self, condition, seldom=seldom)

    @contextmanager
    def parallel(
        self, extent: Index, chunk: int, threads: int = 0
    ) -> Iterator[tuple[Var, Var]]:
        """Open the outermost loop; entering it gives (low, high) of a chunk."""
        low, high = self.fresh(self.index, "low"), self.fresh(self.index, "high")
        body = _Open(self)
        with body:
            yield low, high
        made = ir.Parallel(
            low, high, self.number(extent), chunk, threads, body.statements
        )
        self.body.append(made)

    def thread(self) -> Var:
        """Return which thread of its block this is."""
        return self._made("thread", self.index)

    def block(self) -> Var:
        """Return which block of the launch this is."""
        return self._made("block", self.index)

    def kernel(
        self,
        name: str,
        parameters: Sequence[ir.Parameter],
        *,
        threads: int = 0,
        registers: int = 0,
    ) -> Kernel:
        """Close the kernel; see `Kernel` for what a GPU's has besides."""
        return Kernel(name, tuple(parameters), tuple(self.body), threads, registers)


class _Open:
    """A body that is being built: what is appended meanwhile is in it."""

    __slots__ = ("_builder", "_outer", "statements")

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def __enter__(self) -> Self:
        self._outer = self._builder.body
        self._builder.body = []
        return self

    def __exit__(self, *_: object) -> None:
        self.statements = tuple(self._builder.body)
        self._builder.body = self._outer


class Loop(_Open):
    """An open `For`: its `var`, what it `carried`, and its `results` after it."""

    __slots__ = ("_args", "_unroll", "_until", "_yields", "carried", "results", "var")

    def __init__(
        self,
        builder: Builder,
        start: Operand,
        stop: Operand,
        step: int,
        first: tuple[Operand, ...],
        *,
        unroll: int,
    ) -> None:
        super().__init__(builder)
        self._args = (start, stop, step, first)
        self._unroll = unroll
        self.var = builder.fresh(builder.index, "i")
        self.carried = tuple([builder.fresh(x.type, "c") for x in first])
        self.results = tuple([builder.fresh(x.type, "r") for x in first])
        self._yields: tuple[Operand, ...] = ()
        self._until: Operand | None = None

    def yields(self, *values: Operand, until: Operand | None = None) -> None:
        """State what the next iteration carries; say it once, last in the body.

        There is no next one if `until` is true.
        """
        self._yields = values
        self._until = until

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        start, stop, step, first = self._args
        carried = tuple(zip(self.carried, first, strict=True))
        self._builder.body.append(
            ir.For(
                self.var,
                start,
                stop,
                step,
                carried,
                self.statements,
                self._yields,
                self.results,
                self._unroll,
                self._until,
            )
        )


class Branch(_Open):
    """An open `If`, and the values that its two sides give.

    with b.branch(condition) as branch:
        branch.gives(x)
        branch.otherwise()
        branch.gives(y)
    (z,) = branch.results
    """

    __slots__ = ("_condition", "_seldom", "_sides", "_values", "results")

    def __init__(self, builder: Builder, condition: Operand, *, seldom: bool) -> None:
        super().__init__(builder)
        self._condition = condition
        self._seldom = seldom
        self._sides: list[tuple[ir.Statement, ...]] = []
        self._values: list[tuple[Operand, ...]] = [()]
        self.results: tuple[Var, ...] = ()

    def gives(self, *values: Operand) -> None:
        """State what this side's results are; say it once, last in the side."""
        self._values[-1] = values

    def otherwise(self) -> None:
        """Close the first side and open the second."""
        super().__exit__()
        self._sides.append(self.statements)
        self._values.append(())
        self.__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._sides.append(self.statements)
        then, orelse = (*self._sides, ())[:2]
        values, else_values = (*self._values, ())[:2]
        self.results = tuple([self._builder.fresh(x.type, "r") for x in values])
        self._builder.body.append(
            ir.If(
                self._condition,
                then,
                values,
                orelse,
                else_values,
                self.results,
                self._seldom,
            )
        )
