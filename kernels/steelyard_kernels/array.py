"""The array namespace that kernels are written in: the array API's names over nodes.

    from steelyard_kernels import array as xp, kernel

    @kernel
    def softmax(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

An `Array` stands for values that exist when the kernel runs; operating on it adds
nodes to the graph of the trace. Python numbers and runtime scalars are weak: they
take the dtype of the array they meet, so float32 arithmetic stays float32.
Reductions are over all axes unless `axis` says which, as in the array API, and only
the last axis can be reduced: arrays of more dimensions than one need `axis=-1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expr import Node, Shape
from steelyard_kernels.graph import Graph

Operand: TypeAlias = "Array | float | int | bool"
Axis: TypeAlias = int | None  # of a reduction; None: all axes


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """A value of the kernel that is being traced; `weak` when it is a scalar."""

    graph: Graph
    node: Node
    weak: bool = False

    @property
    def shape(self) -> Shape:
        """The extents, outermost first."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.node.shape)

    @property
    def dtype(self) -> DType:
        """The type of an element."""
        return self.node.dtype

    def astype(self, dtype: DType | str) -> Array:
        """Return the values rounded to dtype."""
        return astype(self, dtype)

    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse NumPy's functions, which would want values."""
        raise KernelError(
            f"{self.graph.kernel}: numpy.{ufunc.__name__} was called on an array of a "
            f"kernel; call steelyard_kernels.array.{ufunc.__name__}, if there is one."
        )

    def _refuse(self, _other: object) -> NoReturn:
        raise KernelError(
            f"{self.graph.kernel}: arrays of a kernel have no operator // @ or %; what "
            "they have is listed in steelyard_kernels.array."
        )

    __floordiv__ = __matmul__ = __mod__ = _refuse

    def __add__(self, other: Operand) -> Array:
        return add(self, other)

    def __radd__(self, other: Operand) -> Array:
        return add(other, self)

    def __sub__(self, other: Operand) -> Array:
        return subtract(self, other)

    def __rsub__(self, other: Operand) -> Array:
        return subtract(other, self)

    def __mul__(self, other: Operand) -> Array:
        return multiply(self, other)

    def __rmul__(self, other: Operand) -> Array:
        return multiply(other, self)

    def __truediv__(self, other: Operand) -> Array:
        return divide(self, other)

    def __rtruediv__(self, other: Operand) -> Array:
        return divide(other, self)

    def __neg__(self) -> Array:
        return negative(self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return abs(self)

    def __pow__(self, exponent: Operand) -> Array:
        if isinstance(exponent, int) and exponent == 2:
            return square(self)
        raise KernelError(
            f"{self.graph.kernel}: power {exponent!r} is not an operation, only ** 2 "
            "is; write the product out, or exp(exponent * log(x))."
        )

    def __lt__(self, other: Operand) -> Array:
        return less(self, other)

    def __le__(self, other: Operand) -> Array:
        return less_equal(self, other)

    def __gt__(self, other: Operand) -> Array:
        return greater(self, other)

    def __ge__(self, other: Operand) -> Array:
        return greater_equal(self, other)

    def __eq__(self, other: Operand) -> Array:  # type: ignore[override]
        return equal(self, other)

    def __ne__(self, other: Operand) -> Array:  # type: ignore[override]
        return not_equal(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Operand) -> Array:
        return logical_and(self, other)

    def __or__(self, other: Operand) -> Array:
        return logical_or(self, other)

    def __invert__(self) -> Array:
        return logical_not(self)

    def __bool__(self) -> bool:
        raise KernelError(
            f"{self.graph.kernel}: a value of shape {self.shape} has no truth while "
            "the kernel is traced; use where(condition, a, b) instead of if."
        )

    def __getitem__(self, index: object) -> Array:
        raise KernelError(
            f"{self.graph.kernel}: a value of shape {self.shape} cannot be indexed or "
            "iterated while the kernel is traced; write whole-array operations."
        )


def _apply(op: str, *operands: Operand, first: int = 0) -> Array:
    """Apply op; weak operands from position `first` on take the arrays' dtype."""
    arrays = [operand for operand in operands if isinstance(operand, Array)]
    if not arrays:
        raise KernelError(
            f"{op} got {', '.join(type(o).__name__ for o in operands)} and no array; "
            "use Python arithmetic for numbers."
        )
    graph = arrays[0].graph
    strong = [o.dtype for o in operands[first:] if isinstance(o, Array) and not o.weak]
    common = _scalar_dtype(graph, op, operands[first:])
    if strong:
        common = strong[0]
    nodes = [
        _lift(
            graph, op, operand, common if place >= first else dtypes.bool_, bool(strong)
        )
        for place, operand in enumerate(operands)
    ]
    weak = not strong and all(not node.shape for node in nodes)
    return Array(graph, graph.apply(op, *nodes), weak)


def _scalar_dtype(graph: Graph, op: str, operands: tuple[Operand, ...]) -> DType:
    """Return the dtype of arithmetic among weak values only: the widest kind."""
    kinds = set()
    for operand in operands:
        if isinstance(operand, Array):
            kinds.add(operand.dtype.kind)
        elif isinstance(operand, bool):
            kinds.add("bool")
        elif isinstance(operand, int | float):
            kinds.add("int" if isinstance(operand, int) else "float")
        else:
            raise KernelError(
                f"{graph.kernel}: {op} got a {type(operand).__name__}, expected an "
                "array of the kernel or a Python number; pass it as a parameter."
            )
    if kinds == {"bool"}:
        return dtypes.bool_
    return dtypes.float64 if "float" in kinds else dtypes.int64


def _lift(graph: Graph, op: str, operand: Operand, common: DType, strong: bool) -> Node:
    """Return an operand's node; a weak one takes the dtype it meets."""
    if isinstance(operand, Array):
        if not operand.weak:
            return operand.node
        _check_weak(graph, op, (operand.dtype.kind, "a scalar"), common, strong=strong)
        return graph.cast(operand.node, common)
    kind = "bool" if isinstance(operand, bool) else "int"
    kind = "float" if isinstance(operand, float) else kind
    _check_weak(graph, op, (kind, repr(operand)), common, strong=strong)
    return graph.constant(operand, common)


def _check_weak(
    graph: Graph, op: str, what: tuple[str, str], common: DType, *, strong: bool
) -> None:
    """Check that a weak value, (kind, name), may become a value of dtype common."""
    kind, name = what
    if kind == common.kind or (kind == "int" and common.kind == "float"):
        return
    where = "an array" if strong else "a scalar"
    raise KernelError(
        f"{graph.kernel}: {op} mixes {name} of kind {kind} with {where} of "
        f"{common.name}; cast the array with astype, or write the number as {common.kind}."
    )


def add(a: Operand, b: Operand) -> Array:
    """Return a + b."""
    return _apply("add", a, b)


def subtract(a: Operand, b: Operand) -> Array:
    """Return a - b."""
    return _apply("subtract", a, b)


def multiply(a: Operand, b: Operand) -> Array:
    """Return a * b."""
    return _apply("multiply", a, b)


def divide(a: Operand, b: Operand) -> Array:
    """Return a / b of floating values; integers are an error that says to cast."""
    return _apply("divide", a, b)


def maximum(a: Operand, b: Operand) -> Array:
    """Return the larger value; NaN when either is NaN."""
    return _apply("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Array:
    """Return the smaller value; NaN when either is NaN."""
    return _apply("minimum", a, b)


def negative(x: Array) -> Array:
    """Return -x."""
    return _apply("negative", x)


def abs(x: Array) -> Array:  # noqa: A001 - the array API's name
    """Return the magnitude; the smallest integer stays itself, as in NumPy."""
    return _apply("abs", x)


def square(x: Array) -> Array:
    """Return x * x."""
    return _apply("multiply", x, x)


def sqrt(x: Array) -> Array:
    """Return the square root; NaN below zero."""
    return _apply("sqrt", x)


def rsqrt(x: Array) -> Array:
    """Return 1 / sqrt(x)."""
    return _apply("rsqrt", x)


def exp(x: Array) -> Array:
    """Return e ** x."""
    return _apply("exp", x)


def log(x: Array) -> Array:
    """Return the natural logarithm."""
    return _apply("log", x)


def less(a: Operand, b: Operand) -> Array:
    """Return a < b."""
    return _apply("less", a, b)


def less_equal(a: Operand, b: Operand) -> Array:
    """Return a <= b."""
    return _apply("less_equal", a, b)


def greater(a: Operand, b: Operand) -> Array:
    """Return a > b."""
    return _apply("greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Array:
    """Return a >= b."""
    return _apply("greater_equal", a, b)


def equal(a: Operand, b: Operand) -> Array:
    """Return a == b."""
    return _apply("equal", a, b)


def not_equal(a: Operand, b: Operand) -> Array:
    """Return a != b; true where either is NaN."""
    return _apply("not_equal", a, b)


def logical_and(a: Operand, b: Operand) -> Array:
    """Return a and b of booleans."""
    return _apply("logical_and", a, b)


def logical_or(a: Operand, b: Operand) -> Array:
    """Return a or b of booleans."""
    return _apply("logical_or", a, b)


def logical_not(x: Array) -> Array:
    """Return not x of booleans."""
    return _apply("logical_not", x)


def where(condition: Operand, a: Operand, b: Operand) -> Array:
    """Return a where the condition holds, else b."""
    return _apply("where", condition, a, b, first=1)


def astype(x: Array, dtype: DType | str) -> Array:
    """Return the values rounded to dtype; the result is no longer weak."""
    return Array(x.graph, x.graph.cast(x.node, dtypes.of(dtype)))


def broadcast_to(x: Array, shape: Shape) -> Array:
    """Return the values repeated into a larger shape."""
    return Array(x.graph, x.graph.broadcast(x.node, tuple(shape)))


def sum(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the sum; integers add up in int64."""
    return _reduce("sum", x, axis, keepdims)


def max(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the largest value; NaN when there is one."""
    return _reduce("max", x, axis, keepdims)


def min(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:  # noqa: A001 - as abs
    """Return the smallest value; NaN when there is one."""
    return _reduce("min", x, axis, keepdims)


def mean(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the mean."""
    return _reduce("mean", x, axis, keepdims)


def var(
    x: Array, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> Array:
    """Return the variance, divided by (extent - correction)."""
    result = _reduce("var", x, axis, keepdims)
    if correction == 0:
        return result
    extent = x.shape[-1] if x.shape else 1
    if extent <= correction:
        raise KernelError(
            f"{x.graph.kernel}: var with correction {correction} needs more elements "
            f"than the last axis of shape {x.shape} has; lower the correction."
        )
    return multiply(result, extent / (extent - correction))


def _reduce(op: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    """Reduce the last axis; None is all axes, of which there may be one at most."""
    if axis is None and x.ndim == 0:  # all of one element, and no axis to keep
        row = x.graph.broadcast(x.node, (1,))
        return Array(x.graph, x.graph.reduce(op, row, keepdims=False), x.weak)
    if axis not in {-1, x.ndim - 1} and (axis is not None or x.ndim > 1):
        over = "all axes" if axis is None else f"axis {axis}"
        raise KernelError(
            f"{x.graph.kernel}: {op} over {over} of shape {x.shape}, but only the last "
            "can be reduced; pass axis=-1, or the array transposed."
        )
    return Array(x.graph, x.graph.reduce(op, x.node, keepdims=keepdims))
