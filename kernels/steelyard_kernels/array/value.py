"""`Array`: a value of the kernel that is being traced, and how operands meet.

Python numbers and runtime scalars are weak: they take the dtype of the array they
meet, so float32 arithmetic stays float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeAlias

import numpy as np
from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.array.tracing import current, number, running
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import views
from steelyard_kernels.expression.expr import Constant, Node, Shape
from steelyard_kernels.expression.graph import Graph

Operand: TypeAlias = "Array | float | int | bool"
Operator: TypeAlias = "Callable[[Array, Operand], Array]"


def _operators(op: str) -> tuple[Operator, Operator]:
    """Return a row of OPERATIONS of an array and another operand, and of these exchanged."""
    return (
        lambda self, other: apply(op, self, other),
        lambda self, other: apply(op, other, self),
    )


class Array(Struct, frozen=True, eq=False):
    """A value of the kernel that is being traced; `weak` when it is a scalar."""

    graph: Graph
    node: Node
    weak: bool = False

    # Made of arrays, which set themselves here: `matmul`, x[index], and the package.
    product: ClassVar[Callable[[Any, Any], Array]]
    indexed: ClassVar[Callable[[Any, Any], Array]]
    namespace: ClassVar[ModuleType]

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

    if not TYPE_CHECKING:  # which refuses them itself

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse NumPy's methods with the function that there is."""
            known = not name.startswith("_") and hasattr(self.namespace, name)
            hint = f"; write xp.{name}(x, ...), of the namespace" if known else ""
            raise AttributeError(f"'Array' object has no attribute {name!r}{hint}")

    def astype(self, dtype: DType | str) -> Array:
        """Return the values rounded to dtype; the result is no longer weak."""
        return Array(self.graph, self.graph.cast(self.node, dtypes.of(dtype)))

    @property
    def T(self) -> Array:  # noqa: N802 - the array API's name
        """The array with its last two axes swapped."""
        if self.ndim < 2:
            raise KernelError(
                f"{self.graph.kernel}: transpose of shape {self.shape}, expected two axes "
                "or more; reshape it first."
            )
        *outer, rows, columns = range(self.ndim)
        order = (*outer, columns, rows)
        return Array(self.graph, views.permuted(self.graph, self.node, order))

    mT = T  # noqa: N815 - the array API's name

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.node.shape)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return `steelyard_kernels.array`; raises KernelError for versions it has not."""
        if api_version in {None, "2021.12", "2022.12", "2023.12", "2024.12"}:
            return type(self).namespace
        raise KernelError(
            f"{self.graph.kernel}: version {api_version!r} of the array API was asked for, "
            "expected '2024.12' or an earlier one; leave it out."
        )

    def __array_ufunc__(
        self, ufunc: Any, method: str, *operands: Any, **keywords: Any
    ) -> Any:
        """Return what the function of that name gives: arrays of NumPy's have operators."""
        name: str = ufunc.__name__
        name = _RENAMED.get(name, name)
        function = getattr(type(self).namespace, name, None)
        if function is None or method != "__call__" or keywords:
            raise KernelError(
                f"{self.graph.kernel}: numpy.{ufunc.__name__} was called on an array of a "
                "kernel, expected a function of steelyard_kernels.array; call one of these."
            )
        return function(*operands)

    def _number(self, *_: object, **__: object) -> NoReturn:
        """Refuse what would want values: float(), int(), range(), numpy.asarray()."""
        raise KernelError(
            f"{self.graph.kernel}: a value of shape {self.shape} is no number of Python's "
            "or NumPy's while the kernel is traced; compute with it as an array."
        )

    __float__ = __int__ = __index__ = __complex__ = __array__ = _number

    def __len__(self) -> int:
        raise KernelError(
            f"{self.graph.kernel}: len() of a value of shape {self.shape}, expected an "
            "axis to be named; write shape[0]."
        )

    def __matmul__(self, other: Operand) -> Array:
        return type(self).product(self, other)

    def __rmatmul__(self, other: Operand) -> Array:
        return type(self).product(other, self)

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("subtract")
    __mul__, __rmul__ = _operators("multiply")
    __truediv__, __rtruediv__ = _operators("divide")
    __floordiv__, __rfloordiv__ = _operators("floor_divide")
    __mod__, __rmod__ = _operators("remainder")
    __lshift__, __rlshift__ = _operators("bitwise_left_shift")
    __rshift__, __rrshift__ = _operators("bitwise_right_shift")
    __and__ = __rand__ = _operators("bitwise_and")[0]
    __or__ = __ror__ = _operators("bitwise_or")[0]
    __xor__ = __rxor__ = _operators("bitwise_xor")[0]
    __lt__, __gt__ = _operators("less")[0], _operators("greater")[0]
    __le__, __ge__ = _operators("less_equal")[0], _operators("greater_equal")[0]

    def __eq__(self, other: Operand) -> Array:  # type: ignore[override]
        return apply("equal", self, other)

    def __ne__(self, other: Operand) -> Array:  # type: ignore[override]
        return apply("not_equal", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Array:
        return apply("negative", self)

    def __pos__(self) -> Array:
        return self

    def __abs__(self) -> Array:
        return apply("abs", self)

    def __invert__(self) -> Array:
        return apply("bitwise_invert", self)

    def __pow__(self, exponent: Operand) -> Array:
        return power(self, exponent)

    def __rpow__(self, base: Operand) -> Array:
        return apply("pow", base, self)

    def __bool__(self) -> bool:
        raise KernelError(
            f"{self.graph.kernel}: a value of shape {self.shape} has no truth while "
            "the kernel is traced; use where(condition, a, b) instead of if."
        )

    def __getitem__(self, index: Any) -> Array:
        return type(self).indexed(self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise KernelError(
            f"{self.graph.kernel}: elements of a value of shape {self.shape} are assigned, "
            "expected whole values; write where(condition, new, old), or concat parts."
        )

    def __iter__(self) -> NoReturn:
        raise KernelError(
            f"{self.graph.kernel}: a value of shape {self.shape} cannot be iterated while "
            "the kernel is traced; write whole-array operations, or scan over it."
        )


_RENAMED: Final = {
    "power": "pow",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
}
"""Operators' names in the array API, by NumPy's."""


def whole(value: Any) -> int | None:
    """Return an int of Python's, NumPy's or anyone's; None for what is none."""
    try:
        return None if isinstance(value, bool | Array) else operator.index(value)
    except TypeError:
        return None


def as_array(value: object, what: str) -> Array:
    """Return an array as it is, a Python number as a weak one, NumPy's as constants."""
    if isinstance(value, Array):
        check_own(running() or value.graph, what, value)
        return value
    graph = current(what)
    if _is_numpys(value):
        constant: Array = Array.namespace.asarray(value)
        return constant
    if not isinstance(value, float | int):
        raise KernelError(
            f"{graph.kernel}: {what} got a {type(value).__name__}, expected an array of "
            "the kernel or a Python number; pass it as a parameter."
        )
    dtype = _scalar_dtype(graph, what, (value,))
    return Array(graph, number(graph, value, dtype), weak=True)


def check_own(graph: Graph, what: str, value: Array) -> None:
    """Raise KernelError for a value that another trace has left: its nodes mean others."""
    if value.graph is not graph:
        raise KernelError(
            f"{graph.kernel}: {what} got a value of {value.graph.kernel}, which was traced "
            "before, expected one of this trace; call kernels, and keep no values of them."
        )


_NUMPYS: Final = (np.ndarray, np.generic)


def _is_numpys(value: object) -> bool:
    """Say whether a value is NumPy's alone: its float64 is a Python number too."""
    return isinstance(value, _NUMPYS) and not kind_of(value)


def dot(a: Array | object, b: Array | object) -> Array:
    """Return the sum over k of a[..., k] * b[k, n]: (..., K) and (K, N) give (..., N).

    Both are floating; a 1-d `a` gives shape (N,). Raises KernelError for other shapes.
    """
    if not isinstance(a, Array) or not isinstance(b, Array):
        other = b if isinstance(a, Array) else a
        raise KernelError(
            f"dot got a {type(other).__name__}, expected two arrays of the kernel; "
            "multiply by numbers."
        )
    return Array(a.graph, a.graph.dot(a.node, b.node))


def power(x: Array, exponent: Operand) -> Array:
    """Return x ** exponent: a product where that is a known integer, of integers too.

    Of a negative one it is the reciprocal's, whose slope is right at 0 and infinity.
    """
    is_whole = isinstance(exponent, float) and exponent.is_integer()
    count = whole(int(exponent) if is_whole and x.dtype.kind == "float" else exponent)
    if count is None or abs(count) > 64:
        return apply("pow", x, exponent)
    if count < 0:
        return power(apply("divide", 1.0, x), -count)
    if count < 2:
        one = number(x.graph, 1, x.dtype)
        return x if count else Array(x.graph, x.graph.broadcast(one, x.shape), x.weak)
    half = power(x, count // 2)
    square = apply("multiply", half, half)
    return apply("multiply", square, x) if count % 2 else square


def apply(op: str, *operands: Operand, first: int = 0) -> Array:
    """Return a row of OPERATIONS of arrays, scalars and Python numbers.

    Weak operands from position `first` on take the arrays' dtype; raises KernelError
    where they cannot, or where the operands do not fit each other.
    """
    operands = tuple([as_array(o, op) if _is_numpys(o) else o for o in operands])
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
        common = dtypes.computed(strong[0])
    nodes = [
        lift(
            graph,
            op,
            operand,
            common if place >= first else dtypes.bool_,
            strong=bool(strong),
        )
        for place, operand in enumerate(operands)
    ]
    weak = not strong and all(not node.shape for node in nodes)
    return Array(graph, graph.apply(op, *nodes), weak)


def _scalar_dtype(graph: Graph, op: str, operands: tuple[Operand, ...]) -> DType:
    """Return the dtype of arithmetic among weak values only: the widest kind."""
    kinds = []
    for operand in operands:
        kind = kind_of(operand)
        if not kind:
            raise KernelError(
                f"{graph.kernel}: {op} got a {type(operand).__name__}, expected an "
                "array of the kernel or a Python number; pass it as a parameter."
            )
        kinds.append(kind)
    return widest(kinds)


def kind_of(value: object) -> str:
    """Return the kind of an array, or of a Python number; "" of anything else."""
    if isinstance(value, Array):
        return value.dtype.kind
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "float" * isinstance(value, float)


def widest(kinds: Iterable[str]) -> DType:
    """Return the dtype of Python numbers of some kinds together."""
    kind = max(kinds, key=("bool", "int", "float").index)
    return {"bool": dtypes.bool_, "int": dtypes.int64, "float": dtypes.float64}[kind]


def lift(
    graph: Graph, op: str, operand: Operand, common: DType, *, strong: bool
) -> Node:
    """Return an operand's node; a weak one takes the dtype it meets."""
    if isinstance(operand, Array):
        check_own(graph, op, operand)
        if not operand.weak:
            return operand.node
        _check_weak(graph, op, (operand.dtype.kind, "a scalar"), common, strong=strong)
        if isinstance(operand.node, Constant):  # which has to fit, too
            return number(graph, operand.node.value, common)
        return graph.cast(operand.node, common)
    kind = kind_of(operand)
    _check_weak(graph, op, (kind, repr(operand)), common, strong=strong)
    return number(graph, operand, common)


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
